"""The fields of a dataclass as rows of a table."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping
from typing import Any, Union, get_args, get_origin, get_type_hints

from reference.comments import comments
from reference.limits import allowed, within_words
from reference.markdown import code

KEY_HEADS = ("key", "type", "default", "allowed", "meaning")
_WORDS = {bool: "true or false", int: "whole number", float: "number", str: "text"}
_MANY = {int: "whole numbers", float: "numbers", str: "texts"}


def keys_of(kind: type, without: tuple[str, ...] = ()) -> list[tuple[str, str, str, str, str]]:
    """Every field of a dataclass: name, type, default, allowed values, meaning."""
    said, limits, hints = comments(kind), allowed(kind), get_type_hints(kind)
    rows = []
    for part in dataclasses.fields(kind):
        if part.name in without:
            continue
        default = default_of(part)
        shown = "" if default is None or default is dataclasses.MISSING else code(default)
        within = part.metadata.get("within") or limits.get(part.name, "")
        if "bounds" in part.metadata:
            within = "[{:g}, {:g}]".format(*part.metadata["bounds"])
        rows.append(
            (f"`{part.name}`", kind_words(hints[part.name]), shown, within_words(within), said.get(part.name, ""))
        )
    return rows


def kind_words(kind: Any) -> str:
    """A type in words."""
    if get_origin(kind) in (Union, types.UnionType):
        return " or ".join(kind_words(part) for part in get_args(kind) if part is not type(None))
    if kind is tuple:
        return "list"
    if get_origin(kind) is tuple:
        return f"list of {_MANY.get(get_args(kind)[0], 'values')}"
    if get_origin(kind) in (dict, Mapping) or dataclasses.is_dataclass(kind):
        return "table"
    return _WORDS.get(kind, getattr(kind, "__name__", str(kind)))


def default_of(part: dataclasses.Field[Any]) -> Any:
    return part.default if part.default_factory is dataclasses.MISSING else part.default_factory()
