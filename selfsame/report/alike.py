"""Every variant of a recipe, tuned over the same settings: the table, the page, and the recipe with every choice."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from selfsame.config.experiment import FIGURES
from selfsame.config.ladders import points
from selfsame.config.writing import Written, experiment_to_toml, oracle_rows, quoted_rows
from selfsame.report.contenders import Contender, Contest, comment, how, remarks
from selfsame.report.page import page, panels
from selfsame.report.style import THEME, clean, panel, styled
from selfsame.report.table import Sheet

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_ROW = 0.3  # inches of a figure that a variant has


def how_alike(contests: Sequence[Contest]) -> list[str]:
    """How the settings of all were judged, in sentences."""
    count = len(points(contests[0].ladders))
    each = f"{len(contests)} variants, each with the same {count} setting{'s' if count > 1 else ''}."
    return [each, *dict.fromkeys(sentence for contest in contests for sentence in how(contest))]


def remarks_alike(contests: Sequence[Contest]) -> list[str]:
    """What to know before the choices are trusted, variant by variant; what holds for all is said once."""
    every = [remarks(contest) for contest in contests]
    shared = [said for said in every[0] if all(said in others for others in every)]
    own = [
        f"{contest.variant}: {said}"
        for contest, found in zip(contests, every, strict=True)
        for said in found
        if said not in shared
    ]
    return [*shared, *own]


def alike_sheet(contests: Sequence[Contest]) -> Sheet:
    """A line for each variant: the chosen setting, its figure, and between what the others lie."""
    rows = []
    for contest in contests:
        best, by = contest.best, contest.by
        if best is None:
            rows.append([contest.variant, "none: every setting diverged", "", "", ""])
            continue
        rest = [one for one in contest.contenders if one is not best]
        rows.append([contest.variant, best.words, best.shown(by), _between(rest, by), f"{best.round:,}"])
    headings = ["Variant", "Chosen", FIGURES[contests[0].by].label, "Others", "Round"]
    return Sheet(headings, rows, words=(0, 1), whole=(2, 4), lose=(4, 3))


def _between(rest: Sequence[Contender], by: str) -> str:
    """'61.20 to 64.95; 1 diverged', of the settings that were not chosen."""
    means = sorted(one.mean for one in rest if one.mean is not None)
    known = [f"{FIGURES[by].factor * mean:.2f}" for mean in means]
    span = "" if not known else known[0] if known[0] == known[-1] else f"{known[0]} to {known[-1]}"
    lost = len(rest) - len(known)
    return "; ".join(part for part in (span, f"{lost} diverged" if lost else "") if part)


def alike_markdown(contests: Sequence[Contest], folders: Sequence[str]) -> str:
    """The table, how it was made, what to know, and where each variant's own table lies."""
    said = [*how_alike(contests), "±: half the range over the seeds.", *remarks_alike(contests)]
    lines = [f"- {line}" for line in said]
    links = [f"- {contest.variant}: `{name}/tune.md`" for contest, name in zip(contests, folders, strict=True)]
    parts = [f"# tune {clean(contests[0].title)}", "", alike_sheet(contests).markdown(), *lines]
    return "\n".join([*parts, "", "All settings of each variant:", "", *links, ""])


def alike_page(contests: Sequence[Contest]) -> str:
    """The whole page."""
    drawn = (alike_figure(contests), "f-variants", _CAPTION)
    sections = [
        ("results", "Variants", {"sheet": alike_sheet(contests), "said": remarks_alike(contests)}),
        ("plots", "Plot", panels(drawn)),
    ]
    return page("contest", f"tune {contests[0].title}", how_alike(contests), sections)


_CAPTION = (
    "A dot is a setting, hollow where it was stopped before the last round; blue: the chosen one of each variant."
)


@styled
def alike_figure(contests: Sequence[Contest]) -> Figure | None:
    """The figures of every setting, a line for each variant."""
    if all(contest.best is None for contest in contests):
        return None
    figure, ax = panel(6.4, 1.0 + _ROW * len(contests))
    for place, contest in enumerate(contests):
        last = max(one.round for one in contest.contenders)
        for one in contest.contenders:
            if one.mean is None:
                continue
            chosen, value = one is contest.best, FIGURES[contest.by].factor * one.mean
            colour = THEME["s0" if chosen else "muted"][0]
            filled: dict[str, Any] = {} if one.round == last else {"mfc": "none"}
            size, order = (7.0, 4) if chosen else (4.0, 2)
            ax.plot([value], [place], "o", color=colour, ms=size, zorder=order, clip_on=False, **filled)
    ax.set_yticks(range(len(contests)), [clean(contest.variant)[:40] for contest in contests])
    ax.set_ylim(len(contests) - 0.5, -0.5)
    ax.set_xlabel(FIGURES[contests[0].by].label.replace(" %", " (%)"))
    return figure


def chosen_alike(contests: Sequence[Contest], variants: Sequence[Written], seeds: Sequence[int], file: Path) -> str:
    """The recipe of the file with every variant's own choice; how each was chosen stands in comments at its head."""
    said = [f"Chosen by `selfsame tune {contests[0].title} --every`.", *how_alike(contests)]
    label = f"The choice of each ({FIGURES[contests[0].by].label}; ±: half the range over the seeds):"
    rows = [
        f"  {contest.variant}: {best.words}: {best.shown(contest.by)}, round {best.round:,}"
        for contest in contests
        if (best := contest.best) is not None
    ]
    recipe = experiment_to_toml(variants, seeds, quoted_rows(file), oracle_rows(file))
    return f"{comment([*said, label, *rows, *remarks_alike(contests)])}\n\n{recipe}"
