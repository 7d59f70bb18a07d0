"""The table of an experiment: each variant's figures beside the paper's, and what a reader must know to compare."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from selfsame.config.experiment import FIGURES, Variant
from selfsame.report.table import Fitted, Sheet, marked_down
from selfsame.report.view import RunView
from selfsame.report.words import FACTS, duration, finding_words, finite

LEFT = "Not run yet: "
RUN_WITH = "Run with "
CHOSEN = "--chosen "  # the option after which a command line tells how what it sets was chosen
_RUNS_ON, _FITS_ON = ("selfsame", "torch", "gpu", "machine"), ("selfsame", "numpy", "scipy", "machine")
BESIDE = ("Variant", "Figure", "Paper", "Measured", "Difference", "Rounds", "Runs")
SHOWN = ("p@1", "eer_seen", "auroc", "eer", "leak", "recovered")  # where the paper has no figures
_MEASURED = "Measured: the mean over the seeds that did not diverge, ± half the range where there are several."
_PAPERS = "Difference: measured less paper. The paper's ± is its own, ≈ stands for figures read off a plot."
_MEANINGS = {
    ("eer_seen", "auroc_seen", "eer", "auroc"): "Seen: test samples of the training classes against their vectors; "
    "new: pairs of samples of unseen classes.",
    ("recovered",): "Recovered: the share of true prototypes that an attacker who knows the method gets back, which no "
    "paper reports.",
    ("p@1_shared",): "By the shared: P@1 where the vectors that others see stand for the classes.",
}


def units(keys: Iterable[str], beside: bool = True) -> str:
    """What figures are; `beside`: the paper's stand beside them."""
    shown = set(keys)
    meant = [words for some, words in _MEANINGS.items() if shown & set(some)]
    return " ".join([_MEASURED, *([_PAPERS] if beside else []), *meant])


UNITS = units(FIGURES)


@dataclass(frozen=True)
class Row:
    """A variant and its runs, one per seed; None where a run has not ended yet."""

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
        if self.variant.oracle:
            return "–"
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


def figures_of(rows: Sequence[Row], more: Sequence[str] = ()) -> list[str]:
    """The figures to show: those the paper reports; beside the leakage always what else says what others learn.

    Of `more` those that have been measured are shown as well.
    """
    named = {key for row in rows for key in row.variant.paper.figures}
    named |= {key for key in more if any(row.measured(key)[0] is not None for row in rows)}
    if "leak" in named:
        named.add("recovered")
        if any(row.measured("p@1_shared")[0] is not None for row in rows):  # runs of earlier versions lack it
            named.add("p@1_shared")
    if named:
        return [key for key in FIGURES if key in named]
    measured = [key for key in SHOWN if any(row.measured(key)[0] is not None for row in rows)]
    return measured or ["p@1"]


def as_printed(value: float | None, spread: float | None, digits: int) -> str:
    """A paper's figure and its spread, each with the digits that the recipe has, and at least so many."""
    if value is None:
        return "–"
    return " ± ".join(f"{one:.{max(digits, _decimals(one))}f}" for one in (value, spread) if one is not None)


def _decimals(value: float) -> int:
    """Digits after the point of the shortest number that reads the same; a recipe keeps no zeros at the end."""
    return max(0, -int(Decimal(repr(value)).normalize().as_tuple().exponent))


def beside_cells(row: Row, key: str) -> tuple[str, ...]:
    """Paper, measured and difference of one figure."""
    digits = FIGURES[key].digits

    def pair(value: float | None, spread: float | None) -> str:
        if value is None:
            return "–"
        return f"{value:.{digits}f}" + ("" if spread is None else f" ± {spread:.{digits}f}")

    paper, difference = row.variant.paper, row.difference(key)
    value, spread = paper.figures.get(key, (None, None))
    reported = as_printed(value, spread, digits)
    less = "–" if difference is None else f"{round(difference, digits) + 0.0:+.{digits}f}"
    return "≈ " + reported if paper.about and key in paper.figures else reported, pair(*row.measured(key)), less


def beside_remarks(rows: Sequence[Row], changed: Sequence[str] = ()) -> list[str]:
    """What a reader must know before comparing: how settings were chosen, rounds, settings, failures, machine."""
    rows = [row for row in rows if not row.variant.quoted]
    out = _choices(rows, "the recipe's own settings" if _because(changed) else "settings")
    trained = [row for row in rows if any(view is not None for view in row.views)]
    long = [row for row in trained if row.variant.trained]
    short = [row for row in long if row.variant.recipe.run.rounds != (row.paper_rounds or row.variant.own_rounds)]
    if short:
        out.append(lengths_words(len(short), len(long)))
    out += _set_here(changed)
    for row in trained:
        for seed, view in zip(row.variant.seeds, row.views, strict=True):
            name = row.variant.title if len(row.views) == 1 else f"{row.variant.title}, seed {seed}"
            out += [f"{name}: {finding_words(warning)}" for warning in (view.warnings if view is not None else [])]
    if missing := [row.variant.title for row in rows if row not in trained]:
        out.append(f"{LEFT}{'; '.join(missing)}.")
    out += _method_facts(trained)
    out += [_fit_words(row) for row in trained if row.variant.oracle]
    machines = {_machine(view, _RUNS_ON) for row in trained for view in _ended(row) if not row.variant.oracle}
    return out + [f"{RUN_WITH}{machine}." for machine in sorted(machines) if machine]


def _ended(row: Row) -> list[RunView]:
    return [view for view in row.views if view is not None]


def _machine(view: RunView, keys: Sequence[str]) -> str:
    return ", ".join(f"{key} {view.facts[key]}" for key in keys if key in view.facts)


def _fit_words(row: Row) -> str:
    """How long an oracle took, and on what."""
    spent = [view.seconds for view in _ended(row)]
    length = " to ".join(dict.fromkeys((duration(min(spent)), duration(max(spent)))))
    machines = dict.fromkeys(_machine(view, _FITS_ON) for view in _ended(row))
    return f"{row.variant.title}: fitted in {length} s of processor time a seed, {'; '.join(machines)}."


def lengths_words(short: int, trained: int) -> str:
    """Of how many trained variants the rounds are not the paper's."""
    return (
        f"In {short} of {trained} trained variants the rounds differ from the paper's (or the recipe's, "
        "where the paper names none): their differences also show that."
    )


def _set_here(changed: Sequence[str]) -> list[str]:
    """What the command line set, and how it was chosen; the recipe's words on its choice do not hold for that."""
    plain = [one for one in changed if not one.startswith(CHOSEN)]
    because = _because(changed)
    how = f" How these were chosen: {because}." if because else ""
    return [f"Set on the command line: {', '.join(plain)}.{how}"] if plain else []


def _because(changed: Sequence[str]) -> str:
    """How what the command line set was chosen, where it says so."""
    return next((one.removeprefix(CHOSEN) for one in changed if one.startswith(CHOSEN)), "")


def _choices(rows: Sequence[Row], what: str) -> list[str]:
    """How settings were chosen: what holds for most variants first, then the others by name."""
    named: dict[str, list[str]] = {}
    for row in rows:
        if row.variant.paper.chosen:
            named.setdefault(row.variant.paper.chosen, []).append(row.variant.title)
    most = max(named, key=lambda words: len(named[words]), default="")
    others = [f"How settings of {', '.join(named[words])} were chosen: {words}." for words in named if words != most]
    return [f"How {what} were chosen: {most}.", *others] if most else []


def _method_facts(rows: Sequence[Row]) -> list[str]:
    """What methods say of themselves beside their figures, a line a fact: each value, and the variants that have it."""
    out = []
    for title, _ in FACTS.values():
        named: dict[str, list[str]] = {}
        for row in rows:
            for said in dict.fromkeys(view.facts[title] for view in row.views if view and title in view.facts):
                named.setdefault(said, []).append(row.variant.title)
        if named:
            told = "; ".join(f"{said} ({', '.join(titles)})" for said, titles in named.items())
            out.append(f"{title[:1].upper()}{title[1:]}: {told}.")
    return out


def _beside_rows(rows: Sequence[Row]) -> list[list[str]]:
    """One row per variant and figure, in the order of `BESIDE`."""
    return [
        [row.variant.title, FIGURES[key].label, *beside_cells(row, key), row.rounds, row.runs]
        for row in rows
        for key in figures_of(rows)
    ]


def beside_table(rows: Sequence[Row]) -> Fitted:
    """The experiment's table for the terminal; title, rounds and runs stand beside the first figure of a variant."""
    each = len(figures_of(rows))
    lines = [
        line if number % each == 0 else ["", *line[1:-2], "", ""] for number, line in enumerate(_beside_rows(rows))
    ]
    headings = ["Diff." if heading == "Difference" else heading for heading in BESIDE]
    ends = range(each - 1, len(lines), each)
    lose = (6, 5, 4)
    return Sheet(headings, lines, note=UNITS, words=(0, 1, 5, 6), whole=range(1, 5), ends=ends, lose=lose).terminal()


def beside_markdown(rows: Sequence[Row], title: str, changed: Sequence[str] = ()) -> str:
    """The same in Markdown, with where the paper reports each figure, and the remarks below."""
    papers = [(row.variant.paper, key) for row in rows for key in figures_of(rows)]
    where = [paper.where if key in paper.figures else "" for paper, key in papers]
    lines = [[*line, place] for line, place in zip(_beside_rows(rows), where, strict=True)]
    table = Sheet([*BESIDE, "Reported in"], lines, note=UNITS, words=(0, 1, 5, 6, 7)).markdown()
    said = [f"- {marked_down(remark)}" for remark in beside_remarks(rows, changed)]
    return "\n".join([f"# {marked_down(title)}", "", table, *said, *([""] if said else [])])


def beside_plain(
    rows: Sequence[Row], title: str, changed: Sequence[str] = (), more: Sequence[str] = ()
) -> dict[str, Any]:
    """The same as plain types, ready for JSON, with the figure of every seed; `more`: figures beside the paper's."""
    return {
        "recipe": title,
        "changed": list(changed),
        "remarks": beside_remarks(rows, changed),
        "variants": [
            {
                "title": row.variant.title,
                "method": row.variant.recipe.method.name,
                "reported_in": row.variant.paper.where,
                "chosen": row.variant.paper.chosen,
                "control": row.variant.control,
                "quoted": row.variant.quoted,
                "oracle": row.variant.oracle,
                "digest": row.variant.digest,
                "rounds": row.variant.recipe.run.rounds if row.variant.trained else 0,
                "recipe_rounds": row.variant.own_rounds,
                "paper_rounds": None if row.variant.control or row.variant.oracle else row.paper_rounds or None,
                "seeds": list(row.variant.seeds),
                "ended": [view is not None for view in row.views],
                "diverged": [view is not None and view.diverged for view in row.views],
                "collapsed": [view is not None and view.collapsed for view in row.views],
                "seconds": [None if view is None else finite(round(view.seconds, 1)) for view in row.views],
                "figures": {key: _figure(row, key) for key in figures_of(rows, more)},
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
