"""Fields: the one typed reader of options, TOML and JSON into frozen dataclasses and keyword arguments.

A value fits its type exactly, but that a whole number may stand for a number and a list for a tuple. Numbers are finite
and of at most 64 bits. What does not fit is said in one line that names the field and what was expected.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import importlib
import inspect
import math
import os
import re
import sys
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from selfsame.errors import SelfsameError

T = TypeVar("T")

_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
_PATH = re.compile(r"(?P<module>[^\W\d]\w*(\.[^\W\d]\w*)*):(?P<name>[^\W\d]\w*)")
_MANY = {int: "whole numbers", float: "numbers", str: "texts", bool: "truth values"}


def typed(where: str, value: Any, kind: Any) -> Any:
    """The value as this type, or one line that begins with `where`."""
    if _too_long(value):
        raise SelfsameError(f"{where}: expected a number of at most 64 bits")
    if get_origin(kind) in (Union, types.UnionType):
        return None if value is None else typed(where, value, _not_none(kind))
    if kind is tuple:  # without its entries' type: whole numbers
        kind = tuple[int, ...]
    if get_origin(kind) is tuple and isinstance(value, list | tuple):
        return tuple(_entries(where, value, kind))
    if dataclasses.is_dataclass(kind) and isinstance(kind, type) and isinstance(value, Mapping):
        return read_fields(where, value, kind)
    if get_origin(kind) in (dict, Mapping) and isinstance(value, Mapping):
        return {str(key): typed(f"{where}.{_shown(key)}", one, get_args(kind)[1]) for key, one in value.items()}
    if kind is Any:
        return value
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind:
        raise SelfsameError(f"{where}: expected {_expected(kind)}, got {repr(value)[:80]}")
    if kind is float and not math.isfinite(value):
        raise SelfsameError(f"{where}: expected a finite number, got {value}")
    return value


def read_fields(where: str, given: Any, kind: type[T], rest: str = "") -> T:
    """A dataclass from a table: every name known, every field that has no default there, every value typed.

    `rest` names a field that takes, as a table, what the others do not know.
    """
    if not isinstance(given, Mapping):
        raise SelfsameError(f"[{where}]: expected a table, got {repr(given)[:80]}")
    hints = _hints(kind)  # type: ignore[arg-type]
    known = [part for part in dataclasses.fields(kind) if part.init]  # type: ignore[arg-type]
    names = [part.name for part in known]
    values: dict[str, Any] = {}
    more: dict[str, Any] = {}
    for name, value in given.items():
        if name in names and name != rest:
            values[name] = typed(f"{where}.{name}", value, hints[name])
        elif rest and name == rest:
            if not isinstance(value, Mapping):
                raise SelfsameError(f"[{where}.{name}]: expected a table, got {repr(value)[:80]}")
            more.update(value)
        elif rest:
            more[name] = value
        else:
            raise SelfsameError(f"{where}.{_shown(name)}: unknown option{nearest(str(name), names)}")
    if more:
        values[rest] = more
    needed = [p.name for p in known if p.default is p.default_factory is dataclasses.MISSING]
    missing = [name for name in needed if name not in values]
    if missing:
        raise SelfsameError(f"{where}: needs {', '.join(missing)}")
    return kind(**values)


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    """The types of a dataclass's fields. They are written as texts, and reading those takes most of the time."""
    return get_type_hints(kind)


def options_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The keyword-only parameters of a function and their defaults."""
    parameters = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}


def check_options(owner: str, given: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The given options, each known and of its default's type."""
    checked = {}
    for name, value in given.items():
        if name not in defaults:
            known = ", ".join(sorted(defaults)) or "none"
            raise SelfsameError(f"{owner}: unknown option {name!r}; the options are: {known}")
        checked[name] = typed(f"{owner}: option {name}", value, type(defaults[name]))
    return checked


def one_of(where: str, value: str, allowed: Iterable[str]) -> None:
    """Refuse a word that is none of these."""
    if value not in allowed:
        raise SelfsameError(f"{where}: {value!r} is not one of {', '.join(allowed)}")


def at_least(where: str, value: float, least: float, *, strict: bool = False) -> None:
    """Refuse a number below this, or one that is not finite; with `strict` also the number itself."""
    if not least <= value < math.inf or (strict and value == least):
        raise SelfsameError(f"{where}: must be {'above' if strict else 'at least'} {least}, got {value}")


def nearest(word: str, known: Iterable[str]) -> str:
    """What the user may have meant, as the end of an error's line."""
    known = sorted(known)
    close = difflib.get_close_matches(word, known, 1)
    return f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(known)}"


def imported(path: str, what: str, loaded: bool = False) -> Any:
    """What stands at "package.module:Name", looked for in the current directory too. Importing runs the module.

    With `loaded` nothing is imported: the module must be one that this program has imported by itself.
    """
    found = _PATH.fullmatch(path)
    if found is None:
        raise SelfsameError(f"an own {what} is written as package.module:Name")
    module, name = found["module"], found["name"]
    if loaded and module not in sys.modules:
        raise SelfsameError(f"nobody else can have this program import code: it must import {module} itself, before")
    here = os.getcwd()
    if not {"", here} & set(sys.path):
        sys.path.append(here)  # last, so that no file here hides a library; it stays for what the module imports later
    importlib.invalidate_caches()
    try:
        held = sys.modules[module] if loaded else importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise SelfsameError(f"importing {module} fails: {in_one_line(error)}") from error
        raise SelfsameError(f"no module {error.name!r} in {here} or among the installed packages") from error
    except (Exception, SystemExit) as error:
        raise SelfsameError(f"importing {module} fails: {in_one_line(error)}") from error
    # A module's own __getattr__ may import more.
    value = vars(held).get(name) if loaded else getattr(held, name, None)
    if value is None:
        raise SelfsameError(f"module {module!r} has no {name!r}")
    return value


def short_name(path: str) -> str:
    """The last part of an import path, by which folders and titles call it; any other name is short already."""
    return path.rpartition(":")[2]


def in_one_line(error: BaseException) -> str:
    """An exception's kind and the start of its message."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def _entries(where: str, value: Iterable[Any], kind: Any) -> list[Any]:
    value, parts = list(value), get_args(kind)
    if len(parts) == 2 and parts[1] is Ellipsis:
        try:
            return [typed(where, one, parts[0]) for one in value]
        except SelfsameError:
            raise SelfsameError(f"{where}: expected {_expected(kind)}, got {repr(value)[:80]}") from None
    if len(parts) != len(value):
        raise SelfsameError(f"{where}: expected a list of {len(parts)}, got {repr(value)[:80]}")
    return [typed(where, one, part) for one, part in zip(value, parts, strict=True)]


def _not_none(kind: Any) -> Any:
    (only,) = (part for part in get_args(kind) if part is not type(None))
    return only


def _expected(kind: Any) -> str:
    if get_origin(kind) is tuple:
        return f"a list of {_MANY.get(get_args(kind)[0], 'values')}"
    if get_origin(kind) in (dict, Mapping) or dataclasses.is_dataclass(kind):
        return "a table"
    return _WORDS.get(kind, getattr(kind, "__name__", str(kind)))


def _shown(name: object) -> str:
    """A name as it may stand in an error's line: in quotes unless it is plain."""
    plain = isinstance(name, str) and name.replace("-", "_").isidentifier()
    return str(name) if plain else repr(name)[:80]


def _too_long(value: object) -> bool:
    return type(value) is int and not -(2**63) <= value < 2**63
