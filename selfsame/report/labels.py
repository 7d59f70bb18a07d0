"""Names beside the marks of a plot: none on another, none on a mark; one that stands farther off has a leader line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Box = tuple[float, float, float, float]  # left, bottom, right, top, in points
Spot = tuple[float, float]

HEIGHT = 11.0  # of a line of words, in points
_LETTER = 5.8  # as wide as one of a wide font is at 9 points
_CLOSE = 10.0  # up to which a name needs no leader line
_ACROSS, _UP = 16.0, 12.0  # from one place that is tried to the next


@dataclass(frozen=True)
class Label:
    """A name, where it stands, and the line that leads to its mark; None where it stands beside it."""

    name: str
    box: Box
    leader: tuple[Spot, Spot] | None


def place_labels(marks: Sequence[tuple[str, Sequence[Spot]]], size: Spot, taken: Sequence[Box] = ()) -> list[Label]:
    """A label for each (name, its marks) within a plot of this size; every mark keeps its place."""
    around = [_box(x - 6, y - 6, 12, 12) for _, spots in marks for x, y in spots]
    full = [*taken, *around]
    found: list[Label] = []
    lines: list[tuple[Spot, Spot]] = []
    for name, spots in sorted(marks, key=lambda mark: -max(y for _, y in mark[1])):
        wide = _LETTER * len(name)
        tried = [(_cost(box, spot, full, lines, found), box, spot) for box, spot in _places(spots, wide, size)]
        _, box, spot = min(tried)
        end = _nearest(box, spot)
        far = _distance(end, spot) > _CLOSE
        found.append(Label(name, box, (spot, end) if far else None))
        full.append(box)
        lines += [(spot, end)] if far else []
    order = {name: number for number, (name, _) in enumerate(marks)}
    return sorted(found, key=lambda label: order[label.name])


def _places(spots: Sequence[Spot], wide: float, size: Spot) -> list[tuple[Box, Spot]]:
    """Every box that is tried: beside a mark, then all over the plot."""
    beside = [
        (_box(x + dx, y + dy, wide, HEIGHT), (x, y))
        for x, y in spots
        for dx, dy in ((9, -5.5), (-9 - wide, -5.5), (-wide / 2, 8), (-wide / 2, -19))
    ]
    columns = range(max(1, int((size[0] - wide) / _ACROSS) + 1))
    rows = range(max(1, int((size[1] - HEIGHT) / _UP) + 1))
    grid = [_box(_ACROSS * column, _UP * row, wide, HEIGHT) for column in columns for row in rows]
    within = [
        one for one in beside if one[0][0] >= 0 and one[0][1] >= 0 and one[0][2] <= size[0] and one[0][3] <= size[1]
    ]
    return within + [(box, min(spots, key=lambda spot: _distance(_nearest(box, spot), spot))) for box in grid]


def _cost(
    box: Box, spot: Spot, full: Sequence[Box], lines: Sequence[tuple[Spot, Spot]], found: Sequence[Label]
) -> float:
    """How bad a place is: on something is worst, then crossed by a leader line, then far away."""
    end = _nearest(box, spot)
    away = _distance(end, spot)
    covered = sum(_overlap(box, other) for other in full)
    if covered:
        return 1e6 + covered
    struck = sum(_strikes(line, box) for line in lines)
    if away > _CLOSE:
        struck += sum(_strikes((spot, end), label.box) for label in found)
        struck += sum(_cross((spot, end), line) for line in lines)
    return 100.0 * struck + away + (15.0 if away > _CLOSE else 0.0)


def _box(x: float, y: float, wide: float, high: float) -> Box:
    return x, y, x + wide, y + high


def _nearest(box: Box, spot: Spot) -> Spot:
    """The point of a box that is nearest to a mark."""
    return min(max(spot[0], box[0]), box[2]), min(max(spot[1], box[1]), box[3])


def _distance(a: Spot, b: Spot) -> float:
    return float(((a[0] - b[0]) ** 2 + (a[1] - b[1]) ** 2) ** 0.5)


def _overlap(a: Box, b: Box) -> float:
    return max(0.0, min(a[2], b[2]) - max(a[0], b[0])) * max(0.0, min(a[3], b[3]) - max(a[1], b[1]))


def _strikes(line: tuple[Spot, Spot], box: Box) -> bool:
    """Whether a line goes through a box, by points on it."""
    (x0, y0), (x1, y1) = line
    between = ((x0 + (x1 - x0) * k / 16, y0 + (y1 - y0) * k / 16) for k in range(1, 16))
    return any(box[0] < x < box[2] and box[1] < y < box[3] for x, y in between)


def _cross(a: tuple[Spot, Spot], b: tuple[Spot, Spot]) -> bool:
    """Whether two lines cross, other than at a common end."""

    def side(line: tuple[Spot, Spot], spot: Spot) -> float:
        (x0, y0), (x1, y1) = line
        return (x1 - x0) * (spot[1] - y0) - (y1 - y0) * (spot[0] - x0)

    return side(a, b[0]) * side(a, b[1]) < 0 and side(b, a[0]) * side(b, a[1]) < 0
