"""The page of the Python interface."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
from typing import Any

import selfsame
from reference.keys import default_of
from reference.markdown import page, prose, table

_ALSO = (  # beside `selfsame` itself: what a program of one's own may need
    ("selfsame.methods", ("LocalLoss", "register")),
    ("selfsame.methods.wire", ("Wire", "Bound")),
    ("selfsame.nets", ("register", "build")),
    ("selfsame.data", ("DataSet", "register")),
    ("selfsame.device.rules", ("Rule",)),
    ("selfsame.device.verifier", ("Verdict",)),
    ("selfsame.device.card", ("template", "score")),
    ("selfsame.device.samples", ("read_samples",)),
    ("selfsame.device.thresholds", ("Threshold", "warm_up", "bounded", "needed")),
    ("selfsame.audit.attackers", ("Finding", "register")),
    ("selfsame.privacy.accountant", ("Exchange", "composed_epsilon", "gaussian_sigma", "rounds_within")),
    ("selfsame.deploy.device", ("Device",)),
    ("selfsame.deploy.server", ("Server",)),
)


def python_page() -> str:
    names = [name for name in selfsame.__all__ if not name.startswith("_")]
    sections = ["## selfsame\n", *(_described(getattr(selfsame, name), f"selfsame.{name}") for name in names)]
    for module, several in _ALSO:
        home = importlib.import_module(module)
        sections.append(f"## {module}\n")
        sections += [_described(getattr(home, name), f"{module}.{name}") for name in several]
    opening = """
    `import selfsame` is quick: each name is imported when it is first used. What is not installed is said in one line.
    Bad input raises `selfsame.SelfsameError`. Other modules may change.
    """
    return page("Python", opening, *sections)


def _described(thing: Any, path: str) -> str:
    """Signature and docstring; of a class also its public methods and properties."""
    lines = [f"### {path}\n", _signed(thing, path.rpartition(".")[2]), prose(thing) + "\n"]
    if isinstance(thing, type) and not issubclass(thing, Exception):
        lines.append(table(("member", "what it does"), _members(thing)))
    return "\n".join(lines)


def _members(kind: type) -> list[tuple[str, str]]:
    """The public methods and properties of a class that say what they do."""
    found: dict[str, tuple[str, str]] = {}
    for base in reversed([one for one in kind.__mro__ if one.__module__.startswith("selfsame")]):
        for name, member in vars(base).items():
            if name.startswith("_") or not (inspect.isroutine(member) or isinstance(member, property)):
                continue
            shown = name if isinstance(member, property) else name + _shape(getattr(kind, name))
            found[name] = (f"`{shown}`", prose(getattr(kind, name)).replace("\n", " "))
    return [row for row in found.values() if row[1]]


def _signed(thing: Any, name: str) -> str:
    try:
        return f"```python\n{name}{_shape(thing, wide=110 - len(name))}\n```\n"
    except (TypeError, ValueError):
        return ""


def _shape(thing: Any, wide: int = 1000) -> str:
    """A signature as it is written, without `self`, without modules of types, and in lines where it is long."""
    made = inspect.signature(thing)
    parts: list[str] = []
    for name, one in made.parameters.items():
        if name == "self":
            continue
        if one.kind is one.KEYWORD_ONLY and "*" not in parts and not any(part.startswith("*") for part in parts):
            parts.append("*")
        star = {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}.get(one.kind, "")
        typed = "" if one.annotation is one.empty else f": {_plain(one.annotation)}"
        parts.append(star + name + typed + ("" if one.default is one.empty else f" = {_default(one.default)}"))
    ends = "" if isinstance(thing, type) or made.return_annotation is made.empty else _plain(made.return_annotation)
    ends = f" -> {ends}" if ends else ""
    text = f"({', '.join(parts)}){ends}"
    return text if len(text) <= wide else "(\n    " + ",\n    ".join(parts) + f",\n){ends}"


def _plain(annotation: Any) -> str:
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return re.sub(r"\b(?:[a-z_]+\.)+(?=[A-Z])", "", text.replace("'", ""))


def _default(value: Any) -> str:
    """A default as code would write it; a dataclass at its own defaults by its name."""
    text = repr(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        changed = [part.name for part in dataclasses.fields(value) if getattr(value, part.name) != default_of(part)]
        inside = ", ".join(f"{name}={getattr(value, name)!r}" for name in changed)
        return f"{type(value).__name__}({inside})"
    return "..." if text.startswith("<") else text
