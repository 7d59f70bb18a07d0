"""A paper's table or figure beside ours, as one page: made from the JSON that lies beside it, and from nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from selfsame.config.experiment import FIGURES
from selfsame.report.table import UNITS, Sheet, marked_down

FORMAT = 1
_HEADINGS = ("Variant", "Figure", "Paper", "Measured", "Difference", "Rounds", "Seeds")

Plain = Mapping[str, Any]


def exhibit_markdown(plain: Plain) -> str:
    """The whole page."""
    lines = [
        f"# {marked_down(plain['title'])}",
        "",
        f"{marked_down(plain['what'])}.",
        "",
        "```",
        plain["command"],
        "```",
    ]
    for part in plain["parts"]:
        lines += ["", f"## {marked_down(part['recipe'])}: {marked_down(part['data'])}", ""]
        lines += [part_sheet(part).markdown()]
        lines += [f"- {marked_down(said)}" for said in part["remarks"]]
    if plain["parts"]:
        lines += ["", UNITS]
    if plain["missing"]:
        lines += ["", "## Not run", ""]
        lines += [f"- {_missing(one)}" for one in plain["missing"]]
    return "\n".join([*lines, ""])


def part_sheet(part: Plain) -> Sheet:
    """The table of one recipe."""
    return Sheet(_HEADINGS, _rows(part), words=(0, 1), whole=range(1, 7), lose=(5, 6, 4))


def _missing(one: Plain) -> str:
    said = f"{one['recipe']} ({one['runs']} runs on {one['data']}): {one['why']}"
    return marked_down(said + (f"; wanted: {one['wants']}" if one["wants"] not in one["why"] else ""))


def _rows(part: Plain) -> list[list[str]]:
    rows = []
    for variant in part["variants"]:
        for key, figure in variant["figures"].items():
            digits = FIGURES[key].digits
            paper = _pair(figure["paper"], figure["paper_spread"], digits)
            about = "≈ " if figure["about"] and figure["paper"] is not None else ""
            less = figure["difference"]
            rows.append(
                [
                    variant["title"],
                    FIGURES[key].label,
                    about + paper,
                    _pair(figure["measured"], figure["half_range"], digits),
                    "–" if less is None else f"{round(less, digits) + 0.0:+.{digits}f}",
                    _rounds(variant),
                    _seeds(variant),
                ]
            )
    return rows


def _pair(value: float | None, spread: float | None, digits: int) -> str:
    if value is None:
        return "–"
    return f"{value:.{digits}f}" + ("" if spread is None else f" ± {spread:.{digits}f}")


def _rounds(variant: Plain) -> str:
    paper = variant["paper_rounds"]
    return f"{variant['rounds']:,}" + (f" of {paper:,}" if paper and paper != variant["rounds"] else "")


def _seeds(variant: Plain) -> str:
    """How many have ended, of how many; those that diverged are counted."""
    ended, all_of_them = sum(variant["ended"]), len(variant["seeds"])
    lost = sum(variant["diverged"])
    said = str(ended) if ended == all_of_them else f"{ended} of {all_of_them}"
    return f"{said}, {lost} diverged" if lost else said


def only_figures(variants: Sequence[Plain], wanted: Sequence[str]) -> list[Plain]:
    """The variants with the figures that an exhibit shows, those without any left out."""
    found: list[Plain] = []
    for variant in variants:
        figures = {key: value for key, value in variant["figures"].items() if not wanted or key in wanted}
        found += [{**variant, "figures": figures}] if figures else []
    return found
