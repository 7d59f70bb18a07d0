"""The figures of a paper's page, drawn from its JSON and from nothing else: ours filled, the paper's hollow."""

from __future__ import annotations

import hashlib
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
_CROSSES = ("x", "+", "1", "2")  # of controls
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
    """All panes, up to three side by side; one legend below, or one for each where they have no line in common."""
    from matplotlib.figure import Figure

    panes = drawing["panes"]
    across = 2 if len(panes) == 4 else min(3, len(panes))
    down = math.ceil(len(panes) / across)
    apart = _separate(panes)
    groups = [[pane] for pane in panes] if apart else [panes]
    legends = [_Legend.of(group, _WIDE if apart else _WIDE * across) for group in groups]
    legend = max(one.high for one in legends)
    pane_wide = max(_WIDE, max(one.wide for one in legends) / (1 if apart else across))
    cell = _HIGH + (legend if apart else 0.0)
    wide, high = pane_wide * across, cell * down + (0.0 if apart else legend)
    figure = Figure(figsize=(wide, high))
    for number, pane in enumerate(panes):
        row, column = divmod(number, across)
        edge = 0.1 if pane["kind"] == "space" else 0.66
        bottom = high - row * cell - _HIGH + 0.5
        ax = figure.add_axes(
            ((column * pane_wide + edge) / wide, bottom / high, (pane_wide - edge - 0.14) / wide, (_HIGH - 0.8) / high)
        )
        _space(ax, pane) if pane["kind"] == "space" else _lines(ax, pane, groups[number if apart else 0])
        ax.set_title(clean(pane["title"]), fontsize=10)
        if apart:
            ax.legend(**legends[number].options, loc="upper center", bbox_to_anchor=(0.45, -0.5 / (_HIGH - 0.8)))
    if not apart:
        figure.legend(**legends[0].options, loc="lower center")
    return figure


@dataclass(frozen=True)
class _Legend:
    """The keys of some panes, in columns as wide as the widest."""

    keys: list[tuple[str, Line2D]]
    columns: int

    @classmethod
    def of(cls, panes: Sequence[Plain], wide: float) -> _Legend:
        keys = _keys(panes)
        return cls(keys, max(1, int(wide / _column(keys))))

    @property
    def wide(self) -> float:
        """Inches."""
        return self.columns * _column(self.keys)

    @property
    def high(self) -> float:
        """Inches."""
        return _KEY * math.ceil(len(self.keys) / self.columns) + 0.1

    @property
    def options(self) -> dict[str, Any]:
        """For matplotlib."""
        handles, labels = [handle for _, handle in self.keys], [clean(title) for title, _ in self.keys]
        return {"handles": handles, "labels": labels, "ncols": self.columns, "frameon": False, "fontsize": 8.5}


def _column(keys: Sequence[tuple[str, Line2D]]) -> float:
    """Inches that the widest of them takes."""
    return 0.55 + _LETTER * max((len(title) for title, _ in keys), default=1)


def _separate(panes: Sequence[Plain]) -> bool:
    """Whether each pane has lines of its own."""
    titles = [{line["title"] for line in pane.get("lines", ()) if line["from"] == "ours"} for pane in panes]
    return len(panes) > 1 and all(titles) and sum(map(len, titles)) == len(set.union(*titles))


def _looks(panes: Sequence[Plain]) -> dict[str, Look]:
    """A look for each title, the same in every pane; the paper's points have that of ours."""
    lines = [line for pane in panes for line in pane.get("lines", ())]
    titles = list(dict.fromkeys(_whose(line) for line in lines if line["from"] in ("ours", "paper")))
    return dict(zip(titles, numbered_looks(len(titles)), strict=True))


def _controls(panes: Sequence[Plain]) -> list[str]:
    lines = [line for pane in panes for line in pane.get("lines", ())]
    return list(dict.fromkeys(line["title"] for line in lines if line["from"] == "control"))


def _whose(line: Plain) -> str:
    """The title by which it is coloured: figures in training have the colour of those of the test."""
    return str(line["title"]).removesuffix(", training")


def _lines(ax: Axes, pane: Plain, group: Sequence[Plain]) -> None:
    """The lines of a pane in the looks of its group."""
    looks, controls = _looks(group), _controls(group)
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
    if line["from"] in ("paper", "said"):
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
        ax.plot(line["x"], line["y"], _CROSSES[number % len(_CROSSES)], color=grey, ms=7)
    else:
        ax.plot(line["x"], line["y"], color=grey, lw=1.1, dashes=_grey(number))


def _space(ax: Axes, pane: Plain) -> None:
    """Samples by person, prototypes as red circles, what is shared as green squares, pairs joined."""
    order = {person: number for number, person in enumerate(sorted(set(pane["person"])))}
    colours = [CLASS_COLOURS[order[person] % len(CLASS_COLOURS)] for person in pane["person"]]
    if pane["samples"]:
        across, up = zip(*pane["samples"], strict=True)
        ax.scatter(across, up, c=colours, s=9, lw=0, clip_on=False)  # a clip is said for every point
    if joined := list(zip(pane["truth"], pane["proxy"], strict=False)):
        gap = (float("nan"), float("nan"))  # one path with gaps, as a path each makes the file several times as long
        across, up = zip(*(point for one, other in joined for point in (one, other, gap)), strict=True)
        ax.plot(across, up, color=THEME["muted"][0], lw=0.7, dashes=(2, 2), zorder=2.5)
    for points, name, marker in ((pane["proxy"], "proxy", "s"), (pane["truth"], "truth", "o")):
        if points:
            across, up = zip(*points, strict=True)
            ax.scatter(across, up, c=THEME[name][0], marker=marker, s=20, lw=0, zorder=3, clip_on=False)
    ax.set(xticks=[], yticks=[])
    ax.set_aspect("equal", adjustable="datalim")
    ax.grid(False)
    ax.spines[:].set_visible(False)


def _keys(panes: Sequence[Plain]) -> list[tuple[str, Line2D]]:
    """The legend: every line once, the paper's points where they have none of ours, then what hollow marks mean."""
    looks, controls = _looks(panes), _controls(panes)
    lines = [line for pane in panes for line in pane.get("lines", ())]
    order = sorted(lines, key=lambda line: line["from"] == "paper")
    found: dict[str, Line2D] = {}
    for line in order:
        found.setdefault(_title(line), _key(line, looks.get(_whose(line)), controls))
    if any(line["from"] == "paper" for line in lines):
        found["hollow: the paper's"] = _mark("o", THEME["muted"][0], mfc="none")
    if any(pane["kind"] == "space" for pane in panes):
        found |= {
            "test samples, by class": _mark("o", CLASS_COLOURS[0], ms=3),
            "true prototype": _mark("o", THEME["truth"][0], ms=5),
            "shared proxy": _mark("s", THEME["proxy"][0], ms=5),
        }
    return list(found.items())


def _title(line: Plain) -> str:
    return f"{line['title']} (control, ours)" if line["from"] == "control" else str(line["title"])


def _key(line: Plain, look: Look | None, controls: Sequence[str]) -> Line2D:
    from matplotlib.lines import Line2D

    if line["from"] == "control":
        grey = THEME["muted"][0]
        number = controls.index(line["title"])
        return (
            _mark(_CROSSES[number % len(_CROSSES)], grey, ms=7)
            if line.get("dots")
            else Line2D([], [], color=grey, lw=1.1, dashes=_grey(number))
        )
    if look is None:
        return _mark("o", THEME["ink"][0], mfc="none")
    if line["from"] == "paper":
        return _mark(look.marker, look.colour, mfc="none")
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
