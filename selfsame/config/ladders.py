"""What is tried of a recipe: ladders of values, every combination of them, and how many rounds each gets."""

from __future__ import annotations

import hashlib
import itertools
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from selfsame.config.experiment import inherit
from selfsame.config.recipe import PARTS, Recipe, from_mapping, parse_setting, to_mapping, toml_value
from selfsame.errors import SelfsameError
from selfsame.fields import nearest

Point = dict[str, Any]  # a value for each ladder, by keys like local.lr

KEPT = 3  # of so many settings one goes on to the next rung
_RUNGS = 5  # at most: a run's first figures after an 81st of its rounds
_LONG = 80  # characters of a folder's name
_NOT_TRIED = {
    "run.seed": "every setting has the same seeds; say how many with --seeds",
    "run.patience": "every setting has all its rounds; no run for choosing ends early",
    "data.name": "settings are compared on the same data",
    "data.path": "settings are compared on the same data",
    "data.apart": "every setting is judged by the same people; see --by",
    "data.apart_share": "every setting is judged by the same people; see --share",
}


@dataclass(frozen=True)
class Ladder:
    """A key of the recipe and the values that are tried of it, as they were named."""

    key: str  # like local.lr
    values: tuple[Any, ...]

    @property
    def words(self) -> str:
        return f"{self.key} = {', '.join(map(toml_value, self.values))}"


def read_ladder(text: str) -> Ladder:
    """'local.lr=0.03,0.1' as a ladder; a bare key is the method's, each list of net.channels=[8,4],[16,8] a value."""
    key, equals, values = text.partition("=")
    path = [part.strip() for part in key.split(".")]
    if not equals or not all(path) or not values.strip():
        raise SelfsameError(f"--over {text}: expected KEY=V1,V2,..., e.g. local.lr=0.03,0.1,0.3")
    part, name = path if len(path) == 2 else ("method", path[0])
    if len(path) > 2 or part not in PARTS:
        raise SelfsameError(f"--over {text}: unknown part {path[0]!r}{nearest(path[0], PARTS)}")
    full = f"{part}.{name}"
    if full in _NOT_TRIED:
        raise SelfsameError(f"--over {text}: {_NOT_TRIED[full]}")
    found = _values(values)
    if len({toml_value(value) for value in found}) < len(found):
        raise SelfsameError(f"--over {text}: names a value twice")
    return Ladder(full, tuple(found))


def _values(text: str) -> list[Any]:
    """The values between commas: as TOML where they are, else each by itself, as --set would take it."""
    try:
        found: list[Any] = tomllib.loads(f"v = [{text}]")["v"]
    except (ValueError, RecursionError):
        found = [parse_setting(f"v={value}")[1] for value in text.split(",") if value.strip()]
    return found


def read_ladders(texts: Sequence[str]) -> list[Ladder]:
    """Every --over, each of a key of its own."""
    found = [read_ladder(text) for text in texts]
    keys = [ladder.key for ladder in found]
    if not found:
        raise SelfsameError("--over: name a key and the values to try, e.g. --over local.lr=0.03,0.1,0.3")
    if twice := next((key for key in keys if keys.count(key) > 1), None):
        raise SelfsameError(f"--over {twice}: is there twice; name all its values at once")
    return found


def points(ladders: Sequence[Ladder]) -> list[Point]:
    """Every combination of the values, the last ladder fastest."""
    keys = [ladder.key for ladder in ladders]
    return [dict(zip(keys, some, strict=True)) for some in itertools.product(*(ladder.values for ladder in ladders))]


def laid(recipe: Recipe, point: Mapping[str, Any]) -> Recipe:
    """The recipe with the values of a point, each checked; another method or network inherits no options."""
    tables: dict[str, dict[str, Any]] = {}
    for key, value in point.items():
        part, _, name = key.partition(".")
        tables.setdefault(part, {})[name] = value
    try:
        return from_mapping(inherit(to_mapping(recipe), tables))
    except SelfsameError as error:
        raise SelfsameError(f"--over {point_words(point)}: {error}") from None


def point_words(point: Mapping[str, Any]) -> str:
    """'local.lr = 0.1, alpha = 0.01': the method's keys are bare."""
    return ", ".join(f"{key.removeprefix('method.')} = {toml_value(value)}" for key, value in point.items())


def point_name(point: Mapping[str, Any]) -> str:
    """The point as the name of a folder, the same whatever else is tried beside it."""
    plain = ",".join(f"{key.removeprefix('method.')}={toml_value(value)}" for key, value in point.items())
    name = re.sub(r"[^A-Za-z0-9.,=+_-]", "_", plain.replace('"', ""))
    if name == plain.replace('"', "") and len(name) <= _LONG and not name.startswith("."):
        return name
    return f"{name[:_LONG].lstrip('.')}-{hashlib.sha256(plain.encode()).hexdigest()[:8]}"


def at_an_end(ladders: Sequence[Ladder], point: Mapping[str, Any]) -> list[str]:
    """What to try next, where the chosen value is the smallest or the largest of a ladder of numbers.

    Zero is an end of its own.
    """
    out = []
    for ladder in ladders:
        numbers = [value for value in ladder.values if isinstance(value, int | float) and not isinstance(value, bool)]
        if len(numbers) < 2 or len(numbers) < len(ladder.values):
            continue
        value = point[ladder.key]
        for end, word, next_ones in ((max(numbers), "largest", "larger"), (min(numbers), "smallest", "smaller")):
            if value == end and (value != 0 or next_ones == "larger"):
                out.append(f"{ladder.key} = {toml_value(value)} is the {word} tried: try {next_ones} ones")
    return out


def rung_ends(rounds: int) -> list[int]:
    """The rounds after which settings may be compared: all of them, a third, a ninth ... the same for any ladder."""
    return sorted({max(1, rounds // KEPT**number) for number in range(_RUNGS)})


def rungs(settings: int, rounds: int, halving: bool) -> list[tuple[int, int]]:
    """(how many settings, until which round), rung by rung; without halving all settings have all rounds.

    With it the best third of a rung, and never one alone, goes on to three times as many rounds; the last rung is the
    whole run. Where there are more settings than rungs for them, fewer than a third go on from the first.
    """
    counts = [settings]
    while halving and counts[-1] > 2:
        counts.append(max(2, -(-counts[-1] // KEPT)))
    ends = rung_ends(rounds)[-len(counts) :]
    later = counts[1:][len(counts) - len(ends) :]
    return list(zip([settings, *later], ends, strict=True))
