"""The page of the file formats."""

from __future__ import annotations

import importlib

from reference.keys import keys_of
from reference.markdown import page, prose, table

_FORMATS = (
    ("A checkpoint and a network", "engine.checkpoint"),
    ("The fingerprint of a run's data", "data.fingerprint"),
    ("Figures for other tools", "runs.events"),
    ("An enrolment", "device.vault"),
    ("Failed attempts", "device.attempts"),
    ("A model file", "device.model_file"),
    ("A web page", "export.webpage"),
    ("Converted weights", "nets.ready"),
    ("Decoded files", "data.cache"),
    ("A device's state", "deploy.memory"),
    ("The server's folder", "deploy.folder"),
    ("A message", "deploy.codec"),
    ("A record for a helper or an enclave", "enclave.records"),
    ("What crosses the enclave's boundary", "enclave.message"),
)


def files_page() -> str:
    from selfsame.device.card import Card

    sections = [f"## How files are written\n\n{prose(importlib.import_module('selfsame.files'))}\n"]
    for title, name in _FORMATS:
        module = importlib.import_module(f"selfsame.{name}")
        names = [
            value for key, value in vars(module).items() if key.strip("_").endswith("FORMAT") and type(value) is str
        ]
        known = f"\n\nFormat: {', '.join(f'`{one}`' for one in names)}." if names else ""
        sections.append(f"## {title}\n\n`selfsame.{name}`. {prose(module)}{known}\n")
        if name == "device.model_file":
            rows = [(key, kind, meaning) for key, kind, _, _, meaning in keys_of(Card)]
            sections.append(f"### The card inside it\n\n{prose(Card)}\n\n" + table(("field", "type", "meaning"), rows))
    opening = """
    The files that selfsame writes, as the modules that read and write them describe them. [The guide to
    runs](../guides/runs.md) lists the files of a run; [recipe keys](recipe.md) and [deployment](deployment.md) have
    what you write yourself.
    """
    return page("File formats", opening, *sections)
