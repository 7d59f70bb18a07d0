"""Options by name: what a loader, a network or a method takes, and whether what the user gave fits."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

from selfsame.errors import SelfsameError

_KINDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    tuple: "a list of whole numbers",
}


def options_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The keyword-only parameters of a function and their defaults."""
    parameters = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}


def check_options(owner: str, given: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The given options, each known and of its default's type; a recipe's list becomes a tuple, an int a float."""
    checked = {}
    for name, value in given.items():
        if name not in defaults:
            known = ", ".join(sorted(defaults)) or "none"
            raise SelfsameError(f"{owner}: unknown option {name!r}; the options are: {known}")
        kind = type(defaults[name])
        if not _fits(value, kind):
            wanted = _KINDS.get(kind, kind.__name__)
            raise SelfsameError(f"{owner}: option {name} must be {wanted}, got {repr(value)[:80]}")
        checked[name] = kind(value) if kind in (float, tuple) else value
    return checked


def _fits(value: object, kind: type) -> bool:
    if kind is int:
        return _whole(value)
    if kind is float:  # the size limit keeps float(value) from overflowing
        return (_whole(value) and abs(value) < 2**63) or (isinstance(value, float) and math.isfinite(value))  # type: ignore[arg-type]
    if kind is tuple:
        return isinstance(value, list | tuple) and all(_whole(item) for item in value)
    return isinstance(value, kind)


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)  # True is an int to Python, not to a user
