"""JSON that has one reading: no name twice in an object, no NaN or Infinity."""

from __future__ import annotations

import json
from typing import Any, NoReturn


def read_json(text: str | bytes) -> Any:
    """What a text says; ValueError where two readers could take it differently."""
    return json.loads(text, object_pairs_hook=_once, parse_constant=_no_constant)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name stands twice")
    return found


def _no_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not a number")
