"""The figures of a paper's page, drawn from its JSON and from nothing else: ours filled, the paper's hollow."""

from __future__ import annotations

import hashlib
import io
import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from selfsame.report.figures import CLASS_COLOURS
from selfsame.report.style import DASHES, THEME, Look, clean, log_axis, numbered_looks, style, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

Plain = Mapping[str, Any]

_WIDE, _HIGH = 4.0, 3.1  # inches of a pane
_KEY = 0.21  # inches of a line of the legend
_LETTER = 0.075  # inches of a letter of it
_MARKED = 12  # points of a line up to which each has its mark


def exhibit_svg(drawing: Plain) -> bytes:
    """The drawing as an SVG file, which names the numbers it was made from."""
    buffer = io.BytesIO()
    figure = draw_exhibit(drawing)
    with style():
        about = {"Date": None, "Creator": None, "Description": digest(drawing)}
        figure.savefig(buffer, format="svg", metadata=about)
    return buffer.getvalue()


def digest(drawing: Plain) -> str:
    """Which numbers a drawing shows."""
    return "SHA-256 " + hashlib.sha256(json.dumps(drawing, sort_keys=True).encode()).hexdigest()


@styled
def draw_exhibit(drawing: Plain) -> Figure:
    """All panes, up to three side by side, with one legend below."""
    from matplotlib.figure import Figure

    panes = drawing["panes"]
    across = 2 if len(panes) == 4 else min(3, len(panes))
    down = math.ceil(len(panes) / across)
    keys = _keys(panes)
    columns = max(1, int(_WIDE * across / (0.55 + _LETTER * max((len(title) for title, _ in keys), default=1))))
    legend = _KEY * math.ceil(len(keys) / columns) + 0.1
    wide, high = _WIDE * across, _HIGH * down + legend
    figure = Figure(figsize=(wide, high))
    places = list(figure.subplots(down, across, squeeze=False).flat)
    looks, controls = _looks(panes), _controls(panes)
    for pane, ax in zip(panes, places, strict=False):
        _space(ax, pane) if pane["kind"] == "space" else _lines(ax, pane, looks, controls)
        ax.set_title(clean(pane["title"]), fontsize=10)
    for ax in places[len(panes) :]:
        ax.set_visible(False)
    figure.legend([handle for _, handle in keys], [clean(title) for title, _ in keys], loc="lower center",
                  ncols=columns, frameon=False, fontsize=8.5)  # fmt: skip
    edge = 0.66 if any(pane["kind"] != "space" for pane in panes) else 0.1
    figure.subplots_adjust(edge / wide, (legend + 0.5) / high, 1 - 0.12 / wide, 1 - 0.3 / high, 0.24, 0.4)
    return figure


def _looks(panes: Sequence[Plain]) -> dict[str, Look]:
    """A look for each title, the same in every pane; what has none is a remark of the paper."""
    lines = [line for pane in panes for line in pane.get("lines", ())]
    titles = list(dict.fromkeys(_whose(line) for line in lines if line["from"] == "ours"))
    return dict(zip(titles, numbered_looks(len(titles)), strict=True))


def _controls(panes: Sequence[Plain]) -> list[str]:
    lines = [line for pane in panes for line in pane.get("lines", ())]
    return list(dict.fromkeys(line["title"] for line in lines if line["from"] == "control"))


def _whose(line: Plain) -> str:
    """The title by which it is coloured: figures in training have the colour of those of the test."""
    return str(line["title"]).removesuffix(", training")


def _lines(ax: Axes, pane: Plain, looks: Mapping[str, Look], controls: Sequence[str]) -> None:
    for line in pane["lines"]:
        if line["from"] == "control":
            _control(ax, line, controls.index(line["title"]))
        else:
            _drawn(ax, line, looks.get(_whose(line)))
    if pane.get("ticks"):
        ax.set_xticks(range(len(pane["ticks"])), pane["ticks"])
        ax.set_xlim(-0.4, len(pane["ticks"]) - 0.6)
    elif pane.get("log"):
        log_axis(ax, "x")
    ax.set(xlabel=pane["x"], ylabel=pane["y"])


def _drawn(ax: Axes, line: Plain, look: Look | None) -> None:
    colour = THEME["ink"][0] if look is None else look.colour
    marker = "o" if look is None else look.marker
    x, y = line["x"], line["y"]
    if line["from"] == "paper":
        kind: dict[str, Any] = {"ls": "none"} if _alone(line) else {"ls": (0, (1, 2)), "lw": 1.0}
        ax.plot(x, y, color=colour, marker=marker, mfc="none", ms=7.5, mew=1.3, clip_on=False, **kind)
        return
    assert look is not None
    kind = {"ls": "none"} if _alone(line) else {"dashes": _dashes(line, look), "lw": 1.0 if line.get("thin") else 1.7}
    dot = marker if _alone(line) or len(x) <= _MARKED else None
    ax.plot(x, y, color=colour, marker=dot, ms=4.5, clip_on=False, **kind)
    if line["low"] and _alone(line):
        ax.vlines(x, line["low"], line["high"], color=colour, lw=1.0)
    elif line["low"]:
        ax.fill_between(x, line["low"], line["high"], color=colour, alpha=0.15, lw=0)


def _control(ax: Axes, line: Plain, number: int) -> None:
    """In grey; a level goes from side to side."""
    grey = THEME["muted"][0]
    if line.get("level"):
        ax.axhline(line["y"][0], color=grey, lw=1.1, dashes=_grey(number))
    elif line.get("dots"):
        ax.plot(line["x"], line["y"], "x", color=grey, ms=6)
    else:
        ax.plot(line["x"], line["y"], color=grey, lw=1.1, dashes=_grey(number))


def _space(ax: Axes, pane: Plain) -> None:
    """Samples by person, prototypes as red circles, what is shared as green squares, pairs joined."""
    order = {person: number for number, person in enumerate(sorted(set(pane["person"])))}
    colours = [CLASS_COLOURS[order[person] % len(CLASS_COLOURS)] for person in pane["person"]]
    if pane["samples"]:
        across, up = zip(*pane["samples"], strict=True)
        ax.scatter(across, up, c=colours, s=9, lw=0)
    for one, other in zip(pane["truth"], pane["proxy"], strict=False):
        ax.plot(*zip(one, other, strict=True), color=THEME["muted"][0], lw=0.7, dashes=(2, 2), zorder=2.5)
    for points, name, marker in ((pane["proxy"], "proxy", "s"), (pane["truth"], "truth", "o")):
        if points:
            across, up = zip(*points, strict=True)
            ax.scatter(across, up, c=THEME[name][0], marker=marker, s=20, lw=0, zorder=3)
    ax.set(xticks=[], yticks=[], aspect="equal")
    ax.grid(False)


def _keys(panes: Sequence[Plain]) -> list[tuple[str, Line2D]]:
    """The legend: every line once, then what hollow marks mean."""
    looks = _looks(panes)
    lines = [line for pane in panes for line in pane.get("lines", ())]
    controls = _controls(panes)
    found = {_title(line): _key(line, looks.get(_whose(line)), controls) for line in lines if _named(line, looks)}
    if any(line["from"] == "paper" and _whose(line) in looks for line in lines):
        found["hollow: the paper's"] = _mark("o", THEME["muted"][0], mfc="none")
    if any(pane["kind"] == "space" for pane in panes):
        found |= {
            "test samples, by class": _mark("o", CLASS_COLOURS[0], ms=3),
            "true prototype": _mark("o", THEME["truth"][0], ms=5),
            "shared proxy": _mark("s", THEME["proxy"][0], ms=5),
        }
    return list(found.items())


def _named(line: Plain, looks: Mapping[str, Look]) -> bool:
    """Whether it has a place of its own in the legend: not so the paper's points beside ours."""
    return line["from"] != "paper" or _whose(line) not in looks


def _title(line: Plain) -> str:
    return f"{line['title']} (control, ours)" if line["from"] == "control" else str(line["title"])


def _key(line: Plain, look: Look | None, controls: Sequence[str]) -> Line2D:
    from matplotlib.lines import Line2D

    if line["from"] == "control":
        grey = THEME["muted"][0]
        number = controls.index(line["title"])
        return _mark("x", grey) if line.get("dots") else Line2D([], [], color=grey, lw=1.1, dashes=_grey(number))
    if look is None:
        return _mark("o", THEME["ink"][0], mfc="none")
    if _alone(line):
        return _mark(look.marker, look.colour, ms=4.5)
    marker = look.marker if len(line["x"]) <= _MARKED else ""
    return Line2D([], [], color=look.colour, marker=marker, ms=4.5, lw=1.5, dashes=_dashes(line, look))


def _mark(marker: str, colour: str, **more: Any) -> Line2D:
    from matplotlib.lines import Line2D

    return Line2D([], [], ls="none", marker=marker, color=colour, **more)


def _alone(line: Plain) -> bool:
    return len(line["x"]) == 1 or bool(line.get("dots"))


def _dashes(line: Plain, look: Look) -> tuple[float, ...]:
    return DASHES[2] if line.get("thin") else look.dashes


def _grey(number: int) -> tuple[float, ...]:
    """The dashes of a control."""
    return DASHES[(number + 1) % len(DASHES)]
