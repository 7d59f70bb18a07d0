"""What the figures of a paper show, as plain numbers: the lines, points and levels of a page's JSON."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from selfsame.config.exhibits import Pane
from selfsame.config.experiment import FIGURES
from selfsame.config.recipe import to_mapping
from selfsame.report.beside import Row
from selfsame.report.view import Picture, RunView, series

Plain = dict[str, Any]
Points = Sequence[tuple[float, Sequence[float]]]  # places, each with the values of the seeds

OURS, PAPER, CONTROL, SAID = "ours", "paper", "control", "said"  # where a line comes from; said: in the paper's text


def drawing(panes: Sequence[Pane], rows: Sequence[Row], file: str, what: str) -> Plain | None:
    """A figure with its panes, ready for JSON; none where nothing has been measured."""
    found = [one for pane in panes for one in _KINDS[pane.kind](pane, rows)]
    return {"file": file, "what": what, "panes": found} if found else None


def _pane(pane: Pane, lines: Iterable[Plain], measured: Sequence[str] = (OURS,), **more: Any) -> list[Plain]:
    lines = list(lines)
    if not any(line["from"] in measured for line in lines):
        return []
    said = [_line(words, [(x, [y])], SAID) for x, y, words in pane.said]
    return [{"kind": "lines", "title": pane.title, "x": pane.x, "y": pane.y, **more, "lines": [*lines, *said]}]


def _line(title: str, points: Points, origin: str, **more: Any) -> Plain:
    """The mean over seeds at each place, with the least and the most where there are several."""
    several = max((len(values) for _, values in points), default=0) > 1
    return {
        "title": title,
        "from": origin,
        "x": [_few(x) for x, _ in points],
        "y": [_few(sum(values) / len(values)) for _, values in points],
        "low": [_few(min(values)) for _, values in points] if several else [],
        "high": [_few(max(values)) for _, values in points] if several else [],
        **more,
    }


def _level(row: Row, key: str) -> list[Plain]:
    """A control's figure, which holds wherever one looks."""
    values = _known(row.values(key))
    return [_line(row.variant.title, [(0.0, values)], CONTROL, level=True)] if values else []


def _chosen(pane: Pane, rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if not row.variant.control and re.search(pane.variants, row.variant.title)]


def _controls(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row.variant.control]


def _origin(row: Row) -> str:
    return CONTROL if row.variant.control else OURS


def _ended(row: Row) -> list[RunView]:
    return [view for view in row.views if view is not None and not view.diverged]


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


# Figures over rounds


def _over_rounds(pane: Pane, rows: Sequence[Row]) -> list[Plain]:
    lines: list[Plain] = []
    for row in [*_chosen(pane, rows), *_controls(rows)]:
        if row.variant.untrained:
            lines += _level(row, pane.figures[0])
            continue
        for key in pane.figures[:1] if row.variant.control else pane.figures:
            title = row.variant.title + (", training" if key.startswith("train") else "")
            if points := _shared([series(view.history, key) for view in _ended(row)], 100.0):
                lines.append(_line(title, points, _origin(row), thin=key.startswith("train")))
            if key in row.variant.paper.figures:
                at = float(row.paper_rounds or row.variant.own_rounds)
                lines.append(_line(title, [(at, [row.variant.paper.figures[key][0]])], PAPER))
    ours = [x for line in lines if line["from"] != PAPER and not line.get("level") for x in line["x"]]
    paper = [x for line in lines if line["from"] == PAPER for x in line["x"]]
    short = bool(ours and paper) and min(ours) > 0 and max(paper) > 10 * max(ours)  # a line against the left edge
    return _pane(pane, lines, log=short)


def _shared(runs: Sequence[tuple[Sequence[float], Sequence[float]]], factor: float) -> list[tuple[float, list[float]]]:
    """The values of all runs at the places that they share."""
    tables = [dict(zip(x, y, strict=True)) for x, y in runs]
    places = [x for x in tables[0] if all(x in one for one in tables)] if tables else []
    return [(x, [factor * one[x] for one in tables]) for x in places]


# Figures over a value of the recipe


def _over_values(pane: Pane, rows: Sequence[Row]) -> list[Plain]:
    at = {row.variant.number: place for row in _chosen(pane, rows) if (place := _place(pane, row)) is not None}
    names = sorted(set(at.values()), key=lambda place: (isinstance(place, str), place))
    ticks = [] if all(isinstance(place, float) for place in names) else [_tick(place) for place in names]
    spot = {place: float(number) if ticks else float(place) for number, place in enumerate(names)}
    groups: dict[str, list[tuple[float, Row, str]]] = {}
    for row in _chosen(pane, rows):
        for key in pane.figures if row.variant.number in at else ():
            name = _label(key) if len(pane.figures) > 1 else _series(pane, row)
            groups.setdefault(name, []).append((spot[at[row.variant.number]], row, key))
    lines: list[Plain] = []
    for name, members in groups.items():
        members.sort(key=lambda member: member[0])
        ours = [(x, values) for x, row, key in members if (values := _known(row.values(key)))]
        paper = [
            (x, [row.variant.paper.figures[key][0]]) for x, row, key in members if key in row.variant.paper.figures
        ]
        lines += [_line(name, ours, OURS)] if ours else []
        lines += [_line(name, paper, PAPER)] if paper else []
    for row in _controls(rows):
        lines += _level(row, pane.figures[0])
    places = [x for line in lines if not line.get("level") for x in line["x"]]
    log = not ticks and bool(places) and min(places) > 0 and max(places) > 20 * min(places)
    return _pane(pane, lines, (OURS, CONTROL), ticks=ticks, log=log)


def _place(pane: Pane, row: Row) -> float | str | None:
    """Where a variant stands: the number that its recipe has, or what stands for those without one."""
    part, option = pane.key.split(".")
    value = to_mapping(row.variant.recipe)[part].get(option, pane.absent or None)
    try:
        return None if value is None else float(value)
    except ValueError:
        return str(value)


def _tick(place: float | str) -> str:
    return place if isinstance(place, str) else f"{place:g}"


def _series(pane: Pane, row: Row) -> str:
    """The title without the point of the grid."""
    return re.sub(rf", {re.escape(pane.key.split('.')[1])} \S+$", "", row.variant.title)


def _label(key: str) -> str:
    return FIGURES[key].label.removesuffix(" %")


# Curves of a protocol


def _roc(pane: Pane, rows: Sequence[Row]) -> list[Plain]:
    lines = []
    for row in [*_chosen(pane, rows), *_controls(rows)]:
        curves = [view.roc[pane.key] for view in _ended(row) if pane.key in view.roc]
        if points := _shared(curves, 100.0):
            lines.append(_line(row.variant.title, [(100 * x, y) for x, y in points], _origin(row)))
    return _pane(pane, lines, log=True)


# One figure against another


def _plane(pane: Pane, rows: Sequence[Row]) -> list[Plain]:
    across, up = pane.figures
    lines: dict[tuple[str, str], list[tuple[float, list[float]]]] = {}
    for row in [*_chosen(pane, rows), *_controls(rows)]:
        name = row.variant.title.partition("(")[0]
        x, y, paper = row.measured(across)[0], _known(row.values(up)), row.variant.paper.figures
        if x is not None and y:
            lines.setdefault((name, _origin(row)), []).append((x, y))
        if across in paper and up in paper:
            lines.setdefault((name, PAPER), []).append((paper[across][0], [paper[up][0]]))
    return _pane(pane, [_line(name, points, origin, dots=True) for (name, origin), points in lines.items()])


# The embedding space


def _space(pane: Pane, rows: Sequence[Row]) -> list[Plain]:
    """One pane for each seed of a variant that has a picture."""
    return [
        _picture(f"{row.variant.title}, seed {seed}", view.picture)
        for row in _chosen(pane, rows)
        for seed, view in zip(row.variant.seeds, row.views, strict=True)
        if view is not None and view.picture is not None and not view.diverged
    ]


def _picture(title: str, picture: Picture) -> Plain:
    seen = [number for number, new in enumerate(picture.unseen) if not new]
    return {
        "kind": "space",
        "title": title,
        "how": picture.how,
        "metric": picture.metric,
        "samples": [_spot(picture.emb[number]) for number in seen],
        "person": [picture.label[number] for number in seen],
        "truth": [_spot(point) for point in picture.truth],
        "proxy": [_spot(point) for point in picture.proxy or ()],
    }


def _spot(point: tuple[float, float]) -> list[float]:
    return [float(f"{value:.4g}") for value in point]


def _few(value: float) -> float:
    return float(f"{value:.6g}")


_KINDS = {"rounds": _over_rounds, "over": _over_values, "roc": _roc, "plane": _plane, "space": _space}
