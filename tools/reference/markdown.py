"""Markdown: tables, values, docstrings, pages."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

from selfsame.config import recipe


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table without the columns that are empty in every row."""
    found = [[" ".join(str(cell).replace("|", "\\|").split()) for cell in row] for row in rows]
    if not found:
        return ""
    keep = [i for i in range(len(heads)) if any(row[i] for row in found)]
    lines = [[heads[i] for i in keep], ["---"] * len(keep), *([row[i] for i in keep] for row in found)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def code(value: Any) -> str:
    """A value as a recipe writes it."""
    return f"`{recipe.toml_value(value)}`"


def prose(thing: Any) -> str:
    """A docstring as paragraphs: double backticks are single ones, and no underscore or angle bracket is markup."""
    text = (inspect.getdoc(thing) or "").replace("``", "`")
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"([*_<\[\]])", r"\\\1", part) for part in parts)


def page(title: str, opening: str, *sections: str) -> str:
    return "\n".join([f"# {title}\n", textwrap.dedent(opening).strip() + "\n", *sections]).rstrip() + "\n"
