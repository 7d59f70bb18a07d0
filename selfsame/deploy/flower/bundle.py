"""The Flower app that is submitted: a folder with one file, which names the apps inside the installed selfsame."""

from __future__ import annotations

from pathlib import Path

from selfsame import __version__

NAME = "selfsame-app"  # Flower takes no underscores here

TEXT = f"""\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{NAME}"
version = "{__version__}"
description = "Federated metric learning where every device knows only its owner"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "selfsame"

[tool.flwr.app.components]
serverapp = "selfsame.deploy.flower.server_app:app"
clientapp = "selfsame.deploy.flower.client_app:app"

[tool.flwr.app.config]
folder = ""
"""


def write_bundle(folder: Path) -> Path:
    """Write the app into `folder`/selfsame-app and return that path; no code in it, so that nodes run their own."""
    place = folder / NAME
    place.mkdir(parents=True, exist_ok=True)
    (place / "pyproject.toml").write_text(TEXT, encoding="utf-8")
    return place
