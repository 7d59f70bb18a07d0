"""Finished cases of FedHide's Table 2, as lines of a file have them: which are sound, and what they come to.

A case is a plain table: what it is of, and for each figure a list for every measure, with the value of each picture.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from selfsame.config.picture_attacks import ANY, COMMON, NETWORKS, OTHERS, TABLE, TAKEN, PictureSettings, cases
from selfsame.errors import SelfsameError
from selfsame.fields import read_fields

FIGURES = ("found", "unrelated", "chance", "blank")
PSNR, SIDE = "psnr", "lpips "  # the latter with the side that pictures are brought to
FOUND = 0.1  # LPIPS of pictures as they are below which one counts as found
_WHO = ("network", "method", "attacker", "size", "seed")
_FACTS = ("selfsame", "torch", "gpu", "machine")
Case = dict[str, Any]
Plain = Mapping[str, Any]


def sound(line: Plain, settings: PictureSettings) -> Case | None:
    """The case of a line, if it is one of these settings; SelfsameError where it is, and says what it cannot."""
    key = line.get("key")
    if not isinstance(key, dict) or not _of(key, settings):
        return None
    found = line.get("found")
    where = ", ".join(str(key[name]) for name in _WHO)
    if not isinstance(found, dict):
        raise SelfsameError(f"{where}: nothing was found")
    kept = {"mismatch": found.get("mismatch"), "p@1": found.get("p@1"), "seconds": found.get("seconds")}
    kept |= {name: found.get(name) for name in ("parameters", *_FACTS) if name in found}
    out = {name: key[name] for name in _WHO} | {name: _measures(where, found.get(name), settings) for name in FIGURES}
    if len({tuple(out[name]) for name in FIGURES}) > 1:
        raise SelfsameError(f"{where}: its figures have other measures each")
    right = kept["p@1"]
    if not (right is None or (_number(right) and 0 <= right <= 1)) or not _number(kept["seconds"]):
        raise SelfsameError(f"{where}: no P@1 or seconds that can be")
    if any(not isinstance(kept.get(name, ""), str) for name in _FACTS) or type(kept.get("parameters", 0)) is not int:
        raise SelfsameError(f"{where}: the machine or the network is not said in words and numbers")
    rest = kept["mismatch"]
    if not isinstance(rest, list) or not all(one is None or _number(one) for one in rest):
        raise SelfsameError(f"{where}: no mismatch that can be")
    return out | kept


def _of(key: Plain, settings: PictureSettings) -> bool:
    """Whether a key is of a case of these settings, also of one that is not asked for."""
    if key.get("seed") not in settings.seeds or key.get("method") not in (*TABLE, *OTHERS, ANY):
        return False
    trained = key.get("network") == NETWORKS[1]
    length = {"rounds": settings.rounds, "cohort": settings.cohort} if trained else {"rounds": 0, "cohort": 0}
    if trained and not settings.rounds:
        return False
    known = {"network", "method", "attacker", "size", "rounds", "cohort", *COMMON}
    wanted = {**length, **settings.common(key["seed"])}
    sizes = (1,) if key.get("attacker") == TAKEN or key["method"] in OTHERS else settings.sizes
    there = key.get("network") in NETWORKS and key.get("attacker") in (TAKEN, "read") and key.get("size") in sizes
    return there and set(key) == known and all(key[name] == value for name, value in wanted.items())


def _measures(where: str, found: Any, settings: PictureSettings) -> dict[str, list[float]]:
    """The values of each measure, one for each picture; measures of other sides are left out."""
    names = [*(f"{SIDE}{side}" for side in settings.sides), PSNR]
    if not isinstance(found, dict) or PSNR not in found:
        raise SelfsameError(f"{where}: without PSNR")
    for values in found.values():
        if not isinstance(values, list) or len(values) != settings.targets or not all(map(_number, values)):
            raise SelfsameError(f"{where}: expected {settings.targets} numbers for each measure")
    return {name: found[name] for name in names if name in found}


def _number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def sound_cases(lines: Iterable[Plain], settings: PictureSettings) -> tuple[list[Case], list[str], int]:
    """(the cases of these settings, what is wrong with others, how many lines are of other settings).

    Of several lines of a case the one with the most measures counts, and of those the first.
    """
    found: dict[tuple[Any, ...], Case] = {}
    wrong, others = [], 0
    for line in lines:
        try:
            case = sound(line, settings)
        except SelfsameError as error:
            wrong.append(str(error))
            continue
        others += case is None
        if case is not None:
            before = found.get(known_by(case))
            if before is None or len(case["found"]) > len(before["found"]):
                found[known_by(case)] = case
    return list(found.values()), wrong, others


def known_by(case: Plain) -> tuple[Any, ...]:
    """What tells a case from others of the same settings."""
    return tuple(case[name] for name in _WHO)


def settings_of(pictures: Plain) -> PictureSettings:
    """The settings of a page."""
    return read_fields("settings", pictures["settings"], PictureSettings)


def attacks_left(pictures: Plain) -> list[Plain]:
    """The cases of a page that are not there."""
    known = {known_by(case) for case in pictures["cases"]}
    return [key for key in cases(settings_of(pictures)) if known_by(key) not in known]


def some(pictures: Plain, **wanted: Any) -> list[Case]:
    """The cases that are of this, in the order of their seeds."""
    found = [case for case in pictures["cases"] if all(case[name] == value for name, value in wanted.items())]
    return sorted(found, key=lambda case: case["seed"])


def measures(pictures: Plain) -> list[str]:
    """Those that any case has: LPIPS by its side, then PSNR."""
    named = {name for case in pictures["cases"] for name in case["found"]} - {PSNR}
    sides = sorted(int(name.removeprefix(SIDE)) for name in named)
    return [*(f"{SIDE}{side}" for side in sides), PSNR]


def mean_of(
    group: Sequence[Plain], name: str, measure: str, several: bool = False
) -> tuple[float, float | None] | None:
    """(the mean over pictures and seeds, ±) of a figure of some cases, one a seed.

    ± is the deviation over the pictures of one seed; on a page of several seeds half the range of these.
    """
    values = [case[name][measure] for case in group if measure in case[name]]
    if not values:
        return None
    means = [statistics.fmean(one) for one in values]
    if several:
        return statistics.fmean(means), (max(means) - min(means)) / 2 if len(means) > 1 else None
    return means[0], statistics.pstdev(values[0])


def found_of(group: Sequence[Plain]) -> tuple[int, int] | None:
    """(how many pictures were found, of how many), by LPIPS of the pictures as they are."""
    values = [one for case in group for one in case["found"].get(f"{SIDE}0", ())]
    return (sum(one < FOUND for one in values), len(values)) if values else None


def right_of(group: Sequence[Plain]) -> float | None:
    """The mean P@1 of the networks of some cases."""
    values = [case["p@1"] for case in group if case["p@1"] is not None]
    return statistics.fmean(values) if values else None


def told_by(pictures: Plain, of: Callable[[Plain], str]) -> list[str]:
    """What the cases say, each thing once."""
    return sorted({words for case in pictures["cases"] if (words := of(case))})


def machine_of(case: Plain) -> str:
    """What a case was run with."""
    return ", ".join(f"{name} {case[name]}" for name in _FACTS if case.get(name))
