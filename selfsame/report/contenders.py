"""Settings that were tried side by side: the table, the page with its plots, and the chosen recipe with its reasons."""

from __future__ import annotations

import math
import shlex
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from selfsame.config.experiment import FIGURES
from selfsame.config.ladders import Ladder, Point, at_an_end, point_words
from selfsame.config.recipe import Recipe, tables_to_toml, to_mapping
from selfsame.report.page import page, panels
from selfsame.report.style import THEME, clean, log_axis, panel, styled
from selfsame.report.table import Sheet
from selfsame.report.view import series
from selfsame.report.words import finite

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDE = 120  # characters of a comment line
_SPACE = 5.0  # the largest value over the smallest from which an axis is logarithmic


@dataclass(frozen=True)
class Judge:
    """A figure that settings are chosen by: who or what is set apart for it, and whether the larger is the better."""

    apart: str
    larger: bool
    words: str


JUDGES = {
    "eer": Judge("people", False, "the smallest EER of pairs of samples of people set apart"),
    "auroc": Judge("people", True, "the largest AUROC of pairs of samples of people set apart"),
    "p@1": Judge("samples", True, "the largest P@1 of samples set apart"),
    "eer_seen": Judge("samples", False, "the smallest EER of samples set apart against the vectors of the classes"),
    "auroc_seen": Judge("samples", True, "the largest AUROC of samples set apart against the vectors of the classes"),
    "one_class_auroc": Judge("samples", True, "the largest one-class AUROC of samples set apart"),
}


@dataclass(frozen=True)
class Contender:
    """A setting, and what its runs came to, one per seed; None stands for a run that diverged."""

    point: Point
    values: tuple[float | None, ...]
    round: int
    number: int  # in the order of the grid
    histories: Sequence[Sequence[dict[str, Any]]] = ()

    @property
    def mean(self) -> float | None:
        """Over the seeds; None where a run diverged."""
        known = [value for value in map(finite, self.values) if value is not None]
        return sum(known) / len(known) if known and len(known) == len(self.values) else None

    @property
    def half_range(self) -> float:
        """Over the seeds."""
        known = [value for value in map(finite, self.values) if value is not None]
        return (max(known) - min(known)) / 2 if known else 0.0

    @property
    def words(self) -> str:
        return point_words(self.point)

    def rank(self, judge: Judge) -> tuple[bool, float, int]:
        """What contenders are sorted by, the best first; of equals the first of the grid."""
        mean = self.mean
        return mean is None, 0.0 if mean is None else -mean if judge.larger else mean, self.number

    def shown(self, by: str) -> str:
        """The figure as a table has it."""
        if self.mean is None:
            return "diverged"
        spread = f" ± {FIGURES[by].factor * self.half_range:.2f}" if len(self.values) > 1 else ""
        return f"{FIGURES[by].factor * self.mean:.2f}{spread}"


@dataclass(frozen=True)
class Contest:
    """All settings that were tried, the best first, and how they were judged."""

    title: str
    ladders: tuple[Ladder, ...]
    by: str
    apart: str  # who or what was set apart, in words
    seeds: tuple[int, ...]
    rungs: tuple[tuple[int, int], ...]  # (settings, until which round) of successive halving; empty: a grid
    contenders: tuple[Contender, ...]
    changed: tuple[str, ...] = ()
    patience: int = 0  # of the recipe, which no run for choosing has
    own_rounds: int = 0  # of the recipe as its file has it
    variant: str = ""  # its title, of a recipe with several

    @property
    def command(self) -> str:
        """What chose, less its ladders."""
        return f"selfsame tune {self.title}" + (f" --only {shlex.quote(self.variant)}" if self.variant else "")

    @property
    def heading(self) -> str:
        """Of the table and the page."""
        return f"tune {self.title}" + (f": {self.variant}" if self.variant else "")

    @property
    def best(self) -> Contender | None:
        """The chosen setting; None where every one diverged."""
        first = self.contenders[0] if self.contenders else None
        return first if first is not None and first.mean is not None else None


def how(contest: Contest) -> list[str]:
    """How settings were judged, in sentences."""
    seeds = f"seed{'s' if len(contest.seeds) > 1 else ''} {', '.join(map(str, contest.seeds))}"
    out = [
        f"Judged by {JUDGES[contest.by].words} ({contest.apart}), {seeds}; nothing of the test was at hand.",
        f"Tried: {'; '.join(ladder.words for ladder in contest.ladders)}.",
    ]
    if contest.rungs:
        first, *rest = contest.rungs
        said = [f"{first[0]} settings to round {first[1]:,}"]
        said += [f"the best {count} to round {until:,}" for count, until in rest]
        out.append(f"Successive halving: {', '.join(said)}.")
    if contest.patience:
        out.append(f"No run ended early: run.patience = {contest.patience} is for the chosen recipe alone.")
    if contest.changed:
        out.append(f"Set on the command line: {', '.join(contest.changed)}.")
    return out


def remarks(contest: Contest) -> list[str]:
    """What to know before the choice is trusted."""
    best = contest.best
    if best is None:
        return ["Every setting diverged: try smaller learning rates."]
    out = [f"{said}." for said in at_an_end(contest.ladders, best.point)]
    if best.round < contest.own_rounds and all(ladder.key != "run.rounds" for ladder in contest.ladders):
        out.append(
            f"Chosen after {best.round:,} of the recipe's {contest.own_rounds:,} rounds: short runs often ask for "
            "higher learning rates than long ones, so judge the best few again without --rounds."
        )
    if lost := sum(one.mean is None for one in contest.contenders):
        out.append(f"{lost} of {len(contest.contenders)} settings diverged.")
    rest = [one for one in contest.contenders[1:] if one.mean is not None and one.round == best.round]
    judge = JUDGES[contest.by]
    early = [one for one in contest.contenders if one.round < best.round and one.rank(judge) < best.rank(judge)]
    if contest.rungs and early:
        out.append(
            f"{len(early)} of the settings that were stopped early had a better figure than the chosen one has at the "
            "end: early rounds mislead here, so try without --halving."
        )
    if len(contest.seeds) == 1 and rest:
        out.append("One seed: with --seeds 3 the table shows how much is chance.")
    near = [one for one in rest if abs((one.mean or 0.0) - (best.mean or 0.0)) <= max(best.half_range, one.half_range)]
    if len(contest.seeds) > 1 and near:
        out.append(f"Within the range of the seeds lie also: {'; '.join(one.words for one in near)}.")
    return out


def contest_sheet(contest: Contest, most: int | None = None) -> Sheet:
    """Every setting, or so many of the best."""
    label = FIGURES[contest.by].label
    rows = [
        [one.words, one.shown(contest.by), f"{one.round:,}", "chosen" if one is contest.best else ""]
        for one in contest.contenders[:most]
    ]
    return Sheet(["Setting", label, "Round", ""], rows, words=(0, 3), whole=(1, 2, 3), lose=(2,))


def contest_markdown(contest: Contest) -> str:
    """The table, how it was made, and what to know."""
    said = [*how(contest), "±: half the range over the seeds.", *remarks(contest)]
    lines = [f"- {line}" for line in said]
    return "\n".join([f"# {clean(contest.heading)}", "", contest_sheet(contest).markdown(), *lines, ""])


def chosen_text(
    contest: Contest, recipe: Recipe, seeds: Sequence[int] = (), paper: Mapping[str, Any] | None = None
) -> str:
    """The chosen recipe as TOML, with the seeds that it is measured by and the paper's figures, where it has any.

    How it was chosen stands in comments at its head.
    """
    said = [f"Chosen by `{contest.command}`.", *how(contest), "All settings, the best first:"]
    rows = [f"  {one.words}: {one.shown(contest.by)}, round {one.round:,}" for one in contest.contenders]
    label = f"({FIGURES[contest.by].label}; ±: half the range over the seeds)"
    lines = [*said[:-1], f"{said[-1]} {label}", *rows, *remarks(contest)]
    tables = {
        **({"seeds": list(seeds)} if seeds else {}),
        **to_mapping(recipe),
        **({"paper": dict(paper)} if paper else {}),
    }
    return f"{comment(lines)}\n\n{tables_to_toml(tables)}"


def comment(lines: Sequence[str]) -> str:
    """Lines as comments at the head of a recipe, wrapped."""
    return "\n".join(part for line in lines for part in _wrapped(clean(line)))


def _wrapped(line: str) -> list[str]:
    indent = "#   " if line.startswith("  ") else "# "
    return textwrap.wrap(line.strip(), _WIDE, initial_indent=indent, subsequent_indent=indent + "  ") or ["#"]


def contest_page(contest: Contest) -> str:
    """The whole page."""
    label = FIGURES[contest.by].label.replace(" %", " (%)")
    drawn = [
        (ladder_figure(contest, ladder, label), f"f-ladder-{number}", f"{ladder.key}. {_CAPTION}")
        for number, ladder in enumerate(contest.ladders)
    ]
    grown = (contest_curves(contest, label), "f-rounds", "Every setting over rounds; blue: the chosen one.")
    sections = [
        ("results", "Settings", {"sheet": contest_sheet(contest), "said": remarks(contest)}),
        ("plots", "Plots", panels(*drawn, grown)),
    ]
    return page("contest", contest.heading, how(contest), sections)


_CAPTION = (
    "A dot is a setting, hollow where it was stopped before the last round; the line joins the best of each value; "
    "blue: the chosen one."
)


@styled
def ladder_figure(contest: Contest, ladder: Ladder, label: str) -> Figure | None:
    """The figure of every setting over the values of one ladder."""
    known = [(one, one.mean) for one in contest.contenders if one.mean is not None]
    if not known or len(ladder.values) < 2:
        return None
    figure, ax = panel(4.4, 3.0)
    place, factor = _places(ax, ladder), FIGURES[contest.by].factor
    last = max(one.round for one, _ in known)
    for one, mean in known:
        at, value = place[ladder.values.index(one.point[ladder.key])], factor * mean
        colour = THEME["s0" if one is contest.best else "muted"][0]
        size, order = (7.5, 4) if one is contest.best else (4.0, 2)
        filled: dict[str, Any] = {} if one.round == last else {"mfc": "none"}
        if len(one.values) > 1:
            reach = factor * one.half_range
            ax.plot([at, at], [value - reach, value + reach], color=colour, lw=1.0, zorder=order)
        ax.plot([at], [value], "o", color=colour, ms=size, zorder=order, clip_on=False, **filled)
    whole = {one.number: mean for one, mean in known if one.round == last}
    best: dict[float, float] = {}
    for one in contest.contenders:  # the best first
        if one.number in whole:
            best.setdefault(place[ladder.values.index(one.point[ladder.key])], factor * whole[one.number])
    across = sorted(best)
    ax.plot(across, [best[at] for at in across], color=THEME["ink"][0], lw=1.2, zorder=3)
    ax.set(xlabel=clean(ladder.key), ylabel=label)
    return figure


def _places(ax: Axes, ladder: Ladder) -> list[float]:
    """Where the values of a ladder stand on the axis: numbers at their place, anything else side by side."""
    numbers = [value for value in ladder.values if isinstance(value, int | float) and not isinstance(value, bool)]
    if len(numbers) == len(ladder.values):
        if min(numbers) > 0 and max(numbers) / min(numbers) >= _SPACE:
            log_axis(ax, "x", sorted(numbers))
        else:
            ax.set_xticks(sorted(numbers), [f"{value:g}" for value in sorted(numbers)])
        return [float(value) for value in numbers]
    ax.set_xticks(range(len(ladder.values)), [clean(str(value))[:16] for value in ladder.values])
    return [float(number) for number in range(len(ladder.values))]


@styled
def contest_curves(contest: Contest, label: str) -> Figure | None:
    """The figure of every setting over rounds, the mean of its seeds; the chosen one stands out."""
    from matplotlib.ticker import MaxNLocator

    lines = [(one, *_mean_series(one, contest.by)) for one in reversed(contest.contenders)]
    lines = [line for line in lines if line[1]]
    if not lines:
        return None
    figure, ax = panel(4.4, 3.0)
    for one, rounds, values in lines:
        chosen = one is contest.best
        look: dict[str, Any] = {"color": THEME["s0" if chosen else "muted"][0], "lw": 2.0 if chosen else 0.8}
        heights = FIGURES[contest.by].factor * np.array(values)
        ax.plot(rounds, heights, marker="o", ms=3.0, zorder=3 if chosen else 2, clip_on=False, **look)
    ax.set(xlabel="Round", ylabel=label)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


def _mean_series(one: Contender, key: str) -> tuple[list[float], list[float]]:
    """(rounds, means) over the rounds that every seed was looked at."""
    found = [dict(zip(*series(history, key), strict=True)) for history in one.histories]
    common = sorted(set.intersection(*map(set, found))) if found else []
    return common, [math.fsum(seed[at] for seed in found) / len(found) for at in common]
