"""The results as one table: for the terminal, and as Markdown; of an experiment, beside the paper's figures."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from selfsame.config.experiment import FIGURES, Variant
from selfsame.report.view import RunView, duration, percent

HEADINGS = (
    "Method",
    "P@1 %",
    "AUROC %",
    "EER %",
    "Leakage % (17)",
    "Recovered % (adaptive)",
    "Left the device",
    "Seconds",
)
_NARROW = ("Method", "P@1\n%", "AUROC\n%", "EER\n%", "Leak %\n(17)", "Recovered\n%", "Left the device", "Sec")
NOTE = (
    "P@1 on test samples of the training classes; AUROC and EER on pairs of samples of classes unseen in training. "
    "Leakage is FedHide's measure (17); recovered is the share of true prototypes that an attacker who knows the "
    "method gets back. Beside what is listed, every federated method sends its network update to the server, FDML to "
    "the enclave."
)

BESIDE = ("Variant", "Figure", "Paper", "Measured", "Difference", "Rounds", "Runs")
SHOWN = ("p@1", "eer_seen", "auroc", "eer", "leak", "recovered")  # where the paper has no figures
UNITS = (
    "Measured: the mean over the seeds that did not diverge, ± half the range where there are several. Difference: "
    "measured less paper. The paper's ± is its own, ≈ stands for figures read off a plot. Seen: test samples of the "
    "training classes against their vectors; new: pairs of samples of unseen classes. Recovered: the share of true "
    "prototypes that an attacker who knows the method gets back, which no paper reports. By the shared: P@1 where the "
    "vectors that others see stand for the classes."
)


def cells(view: RunView) -> tuple[str, ...]:
    """One row, in the order of `HEADINGS`."""
    rates = (percent(view.figure(name)) for name in ("p@1", "auroc", "eer", "leak", "recovered"))
    more = [what for what in view.left if not what.startswith("network update")]
    left = "; ".join(map(arrow, more)) or ("network update only" if view.left else "nothing")
    return (view.title, *rates, left, duration(view.seconds))


def arrow(words: str) -> str:
    return words.replace("->", "→")


def results_table(views: Sequence[RunView]) -> Table:
    """For the terminal. Titles are text, never markup."""
    table = Table(caption=NOTE, caption_justify="left", box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for heading, short in zip(HEADINGS, _NARROW, strict=True):
        words = heading in ("Method", "Left the device")
        table.add_column(short, justify="left" if words else "right", overflow="fold", no_wrap=heading != HEADINGS[6])
    for view in views:
        title, *rest = cells(view)
        name = Text(_one_line(title))
        for mark, applies in (("collapsed", view.collapsed), ("diverged", view.diverged)):
            if applies:
                name.append("\n" + mark, style="bold red")
        left = Text("\n".join(map(_one_line, rest[5].split("; "))))
        table.add_row(name, *map(Text, rest[:5]), left, rest[6])
    return table


def results_markdown(views: Sequence[RunView]) -> str:
    """The same table in Markdown, with a line feed at its end."""
    lines = ["| " + " | ".join(HEADINGS) + " |", "|---|" + "---:|" * 5 + "---|---:|"]
    for view in views:
        title, *rest = (_markdown(cell) for cell in cells(view))
        marks = "".join(
            f" **{mark}**" for mark, applies in (("collapsed", view.collapsed), ("diverged", view.diverged)) if applies
        )
        lines.append("| " + " | ".join([title + marks, *rest]) + " |")
    return "\n".join([*lines, "", NOTE, ""])


def _one_line(words: str) -> str:
    return " ".join("".join(c if c.isprintable() else " " for c in words).split())


def _markdown(words: str) -> str:
    return re.sub(r"([\\|*_`\[\]#])", r"\\\1", html.escape(_one_line(words), quote=False))


@dataclass(frozen=True)
class Row:
    """A variant and its runs, one a seed; None where a run has not ended yet."""

    variant: Variant
    views: tuple[RunView | None, ...]

    def values(self, key: str) -> list[float | None]:
        """The figure of each seed, in the paper's units; None for runs that diverged or have not ended."""
        factor = FIGURES[key].factor
        found = [None if view is None or view.diverged else view.figure(key) for view in self.views]
        return [None if value is None else factor * value for value in found]

    def measured(self, key: str) -> tuple[float | None, float | None]:
        """(mean, half range) over the seeds; the latter where there are two or more."""
        values = [value for value in self.values(key) if value is not None]
        if not values:
            return None, None
        return sum(values) / len(values), (max(values) - min(values)) / 2 if len(values) > 1 else None

    def difference(self, key: str) -> float | None:
        """Measured less paper."""
        mean = self.measured(key)[0]
        return (
            None if mean is None or key not in self.variant.paper.figures else mean - self.variant.paper.figures[key][0]
        )

    @property
    def paper_rounds(self) -> int:
        """How many the paper trains; 0 where it does not say."""
        said = self.variant.paper.rounds
        return self.variant.own_rounds if said is None else said

    @property
    def rounds(self) -> str:
        """The rounds trained, and the paper's, or the recipe's, where they are others."""
        now, own, paper = self.variant.recipe.run.rounds, self.variant.own_rounds, self.paper_rounds
        against = f" (paper: {paper:,})" if paper and paper != now else ""
        if not paper:
            against = f" (recipe: {own:,}, paper: not said)" if own != now else " (paper: not said)"
        return f"{now:,}{against}"

    @property
    def runs(self) -> str:
        """How many of the runs there are, and what became of them."""
        ended = [view for view in self.views if view is not None]
        words = [str(len(ended)) if len(ended) == len(self.views) else f"{len(ended)} of {len(self.views)}"]
        for mark in ("diverged", "collapsed"):
            if number := sum(getattr(view, mark) for view in ended):
                words.append(mark if len(self.views) == 1 else f"{number} {mark}")
        return ", ".join(words)


def figures_of(rows: Sequence[Row]) -> list[str]:
    """The figures to show: those the paper reports; beside the leakage always what else says what others learn."""
    named = {key for row in rows for key in row.variant.paper.figures}
    if "leak" in named:
        named.add("recovered")
        if any(row.measured("p@1_shared")[0] is not None for row in rows):  # runs of earlier versions lack it
            named.add("p@1_shared")
    if named:
        return [key for key in FIGURES if key in named]
    measured = [key for key in SHOWN if any(row.measured(key)[0] is not None for row in rows)]
    return measured or ["p@1"]


def beside_cells(row: Row, key: str) -> tuple[str, ...]:
    """Paper, measured and difference of one figure."""
    digits = FIGURES[key].digits

    def pair(value: float | None, spread: float | None) -> str:
        if value is None:
            return "–"
        return f"{value:.{digits}f}" + ("" if spread is None else f" ± {spread:.{digits}f}")

    paper, difference = row.variant.paper, row.difference(key)
    reported = pair(*paper.figures.get(key, (None, None)))
    less = "–" if difference is None else f"{round(difference, digits) + 0.0:+.{digits}f}"
    return "≈ " + reported if paper.about and key in paper.figures else reported, pair(*row.measured(key)), less


def remarks(rows: Sequence[Row], changed: Sequence[str] = ()) -> list[str]:
    """What a reader must know before comparing: rounds, settings, failures, machine."""
    out = []
    trained = [row for row in rows if any(view is not None for view in row.views)]
    short = [row for row in trained if row.variant.recipe.run.rounds != (row.paper_rounds or row.variant.own_rounds)]
    if short:
        out.append(
            f"In {len(short)} of {len(trained)} trained variants the rounds differ from the paper's (or the recipe's, "
            "where the paper names none): their differences also show that."
        )
    if changed:
        out.append(f"Set on the command line: {', '.join(changed)}.")
    for row in trained:
        for seed, view in zip(row.variant.seeds, row.views, strict=True):
            name = row.variant.title if len(row.views) == 1 else f"{row.variant.title}, seed {seed}"
            out += [f"{name}: {warning}" for warning in (view.warnings if view is not None else [])]
    if missing := [row.variant.title for row in rows if row not in trained]:
        out.append(f"Not run yet: {'; '.join(missing)}.")
    machines = {
        ", ".join(f"{key} {view.facts[key]}" for key in ("selfsame", "torch", "gpu", "machine") if key in view.facts)
        for row in trained
        for view in row.views
        if view is not None
    }
    return out + [f"Run with {machine}." for machine in sorted(machines) if machine]


def beside_table(rows: Sequence[Row]) -> Table:
    """The experiment's table for the terminal: a line a figure."""
    table = Table(caption=UNITS, caption_justify="left", box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for heading in BESIDE:
        left = heading in ("Variant", "Figure", "Rounds", "Runs")
        short = "Diff." if heading == "Difference" else heading
        table.add_column(short, justify="left" if left else "right", overflow="fold", no_wrap=heading in BESIDE[1:5])
    keys = figures_of(rows)
    for row in rows:
        for key in keys:
            title, rounds, runs = (_one_line(row.variant.title), row.rounds, row.runs) if key == keys[0] else ("",) * 3
            words = (title, FIGURES[key].label, *beside_cells(row, key), rounds, runs)
            table.add_row(*map(Text, words), end_section=key == keys[-1])
    return table


def beside_markdown(rows: Sequence[Row], title: str, changed: Sequence[str] = ()) -> str:
    """The same in Markdown, with where the paper reports each figure, and the remarks below."""
    lines = [f"# {_markdown(title)}", "", "| " + " | ".join([*BESIDE, "Reported in"]) + " |"]
    lines.append("|---|---|---:|---:|---:|---:|---|---|")
    for row in rows:
        for key in figures_of(rows):
            where = row.variant.paper.where if key in row.variant.paper.figures else ""
            words = (row.variant.title, FIGURES[key].label, *beside_cells(row, key), row.rounds, row.runs, where)
            lines.append("| " + " | ".join(map(_markdown, words)) + " |")
    said = [f"- {_markdown(remark)}" for remark in remarks(rows, changed)]
    return "\n".join([*lines, "", UNITS, "", *said, *([""] if said else [])])


def beside_plain(rows: Sequence[Row], title: str, changed: Sequence[str] = ()) -> dict[str, Any]:
    """The same as plain types, ready for JSON, with the figure of every seed."""
    return {
        "recipe": title,
        "changed": list(changed),
        "remarks": remarks(rows, changed),
        "variants": [
            {
                "title": row.variant.title,
                "method": row.variant.recipe.method.name,
                "reported_in": row.variant.paper.where,
                "rounds": row.variant.recipe.run.rounds,
                "recipe_rounds": row.variant.own_rounds,
                "paper_rounds": row.paper_rounds or None,
                "seeds": list(row.variant.seeds),
                "ended": [view is not None for view in row.views],
                "diverged": [view is not None and view.diverged for view in row.views],
                "collapsed": [view is not None and view.collapsed for view in row.views],
                "figures": {key: _figure(row, key) for key in figures_of(rows)},
            }
            for row in rows
        ],
    }


def _figure(row: Row, key: str) -> dict[str, Any]:
    value, spread = row.variant.paper.figures.get(key, (None, None))
    mean, half_range = row.measured(key)
    return {
        "paper": value,
        "paper_spread": spread,
        "about": row.variant.paper.about,
        "measured": mean,
        "half_range": half_range,
        "values": row.values(key),
        "difference": row.difference(key),
    }
