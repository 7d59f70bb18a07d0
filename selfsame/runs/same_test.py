"""Values of the data's keys are tried only where every setting is judged, and the chosen one tested, on the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from selfsame.config.ladders import Point, laid, point_words
from selfsame.config.recipe import DataPart, Recipe
from selfsame.data.choosing import OPTIONS
from selfsame.data.tested import LOOKS, Yardstick
from selfsame.errors import SelfsameError
from selfsame.runs.experiments import load_data

Pair = tuple[Yardstick, Yardstick]  # what settings are judged on, what the chosen one is tested on


def check_same_test(recipe: Recipe, points: Iterable[Point], for_choosing: Callable[[Recipe], Recipe]) -> None:
    """Refuse a point by which others are set apart than by the recipe, or others are the test.

    The test is read for its digest, and nothing of it is kept. Nothing is read where no key of the data is tried.
    """
    known: dict[str, Pair] = {}
    for point in points:
        tried = {key: value for key, value in point.items() if key.startswith("data.")}
        if not tried:
            continue
        looks = {key: value for key, value in tried.items() if key.removeprefix("data.") in LOOKS}
        others = {key: value for key, value in tried.items() if key not in looks}
        plain = _yardsticks(recipe, {}, for_choosing, known)
        scaled = _yardsticks(recipe, looks, for_choosing, known)
        _compare(plain, scaled, looks, True)
        _compare(scaled, _yardsticks(recipe, tried, for_choosing, known), others, False)


def _yardsticks(
    recipe: Recipe,
    point: Point,
    for_choosing: Callable[[Recipe], Recipe],
    known: dict[str, Pair],
) -> Pair:
    """Those of the recipe with the values of a point."""
    own = laid(recipe, point) if point else recipe
    if (key := repr(own.data)) not in known:
        options = {name: value for name, value in own.data.options.items() if name not in OPTIONS}
        try:
            apart, whole = (_by(part) for part in (for_choosing(own).data, replace(own.data, options=options)))
        except SelfsameError as error:
            raise SelfsameError(f"--over {point_words(point)}: {error}" if point else str(error)) from None
        known[key] = apart, whole
    return known[key]


def _by(part: DataPart) -> Yardstick:
    return Yardstick.by(load_data(part))


def _compare(before: Pair, after: Pair, tried: Point, by_looks: bool) -> None:
    (apart, whole), (other_apart, other_whole) = before, after
    if not whole.same(other_whole, by_looks):
        raise SelfsameError(
            f"--over {point_words(tried)}: the test would be other people or samples than the recipe's; say it with "
            "--set, for all settings"
        )
    if not apart.same(other_apart, by_looks):
        raise SelfsameError(
            f"--over {point_words(tried)}: this setting would be judged by other people or samples than the recipe's; "
            "say it with --set, for all settings"
        )
