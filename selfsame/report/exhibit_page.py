"""A paper's table or figure beside ours, as one page: made from the JSON that lies beside it, and from nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from selfsame.config.exhibits import FIXED, NO_NEGATIVES, UNTRAINED
from selfsame.config.experiment import FIGURES
from selfsame.report.exhibit_figures import exhibit_svg
from selfsame.report.table import UNITS, Sheet, marked_down
from selfsame.report.words import duration

FORMAT = 2
MARK = "<!-- Made by `selfsame paper` from the JSON file of this name; do not edit. -->"
CONTROLS = (
    "Controls are ours and not the paper's: the same data, network, seeds and, where they are trained, rounds and "
    "optimisers."
)
_CONTROLS = {
    UNTRAINED: "Untrained network: as it starts, with templates that the clients enrol with some of their own samples.",
    FIXED: "Fixed vectors: FedAwS's Baseline-2, random vectors that stay.",
    NO_NEGATIVES: "No negative term: its weight is 0.",
}
PORTIONED = (
    "Accuracy (VII-C): the share of right verdicts on unseen people, the mean of 20 draws. Each has a template, a "
    "threshold from further samples and other users by the paper's Algorithm 4, and is tested with the rest and with "
    "samples of still others."
)
_HEADINGS = ("Variant", "Figure", "Paper", "Measured", "Difference", "Rounds", "Seeds")

Plain = Mapping[str, Any]


def exhibit_files(plain: Plain) -> dict[str, bytes]:
    """All files of an exhibit by name, from its JSON alone: the page, its figures, and the JSON itself."""
    drawings = [part["drawing"] for part in plain["parts"] if part["drawing"] is not None]
    page = {
        f"{plain['file']}.json": json.dumps(plain, allow_nan=False) + "\n",
        f"{plain['file']}.md": exhibit_markdown(plain),
    }
    found = {name: text.encode() for name, text in page.items()}
    return found | {drawing["file"]: exhibit_svg(drawing) for drawing in drawings}


def exhibit_markdown(plain: Plain) -> str:
    """The whole page."""
    lines = [
        f"# {marked_down(plain['title'])}",
        "",
        f"{marked_down(plain['what'][:1].upper() + plain['what'][1:])}.",
        "",
        "```",
        plain["command"],
        "```",
    ]
    for part in plain["parts"]:
        lines += ["", f"## {marked_down(part['recipe'])}: {marked_down(part['data'])}", "", *_part(part)]
    if plain["timings"]:
        lines += ["", *_timings(plain["timings"])]
    if plain["parts"]:
        lines += ["", UNITS]
    variants = [variant for part in plain["parts"] for variant in part["variants"]]
    if kinds := {variant["control"] for variant in variants if variant["control"]}:
        lines += ["", " ".join([CONTROLS, *(words for kind, words in _CONTROLS.items() if kind in kinds)])]
    if any("vii_c" in variant["figures"] for variant in variants):
        lines += ["", PORTIONED]
    if plain["missing"]:
        lines += ["", "## Not run", ""]
        lines += [f"- {_missing(one)}" for one in plain["missing"]]
    return "\n".join([*lines, "", MARK, ""])


def _part(part: Plain) -> Iterator[str]:
    drawing = part["drawing"]
    if drawing is not None:
        yield f"![{marked_down(drawing['what'])}]({drawing['file']})"
        yield ""
    yield part_sheet(part).markdown()
    for said in (*part["remarks"], *_lengths(part)):
        yield f"- {marked_down(said)}"


def _lengths(part: Plain) -> list[str]:
    """How long the runs took."""
    trained = [variant for variant in part["variants"] if variant["rounds"]]
    spent = [value for variant in trained for value in variant["seconds"] if value is not None]
    if not spent:
        return []
    return [f"{len(spent)} runs took {duration(min(spent))} to {duration(max(spent))} s each to train."]


def part_sheet(part: Plain) -> Sheet:
    """The table of one recipe."""
    return Sheet(_HEADINGS, _rows(part), words=(0, 1, 6), whole=range(1, 7), lose=(5, 6, 4))


def timing_sheet(timings: Plain) -> Sheet:
    """The seconds of the enclave, a row for each number of participants."""
    rows = [
        [f"{one['participants']:,}", f"{one['paper']:g}", _seconds(one), f"{one['paper'] / one['seconds']:,.0f}"]
        for one in timings["rows"]
    ]
    return Sheet(("Participants", "Paper, s", "Measured, s", "Times faster"), rows, words=())


def _timings(timings: Plain) -> list[str]:
    return [timing_sheet(timings).markdown(), *(f"- {marked_down(said)}" for said in timings["remarks"])]


def _seconds(one: Plain) -> str:
    return f"{one['seconds']:.2g} ± {one['half_range']:.1g}"


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
                    variant["title"] + (" (control)" if variant["control"] else ""),
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
    """Those that have ended; then those that diverged, and those that have not been run."""
    told = list(zip(variant["seeds"], variant["ended"], variant["diverged"], strict=True))
    sound = [seed for seed, ended, diverged in told if ended and not diverged]
    lost = [seed for seed, _, diverged in told if diverged]
    left = [seed for seed, ended, _ in told if not ended]
    said = [_listed(sound)] if sound else []
    said += [f"diverged: {_listed(lost)}"] if lost else []
    said += [f"not run: {_listed(left)}"] if left else []
    return "; ".join(said)


def _listed(seeds: Sequence[int]) -> str:
    return ", ".join(map(str, seeds))


def only_figures(variants: Sequence[Plain], wanted: Sequence[str]) -> list[Plain]:
    """The variants with the figures that an exhibit shows, in its order, those without any left out."""
    found: list[Plain] = []
    for variant in variants:
        figures = {key: variant["figures"][key] for key in wanted or variant["figures"] if key in variant["figures"]}
        found += [{**variant, "figures": figures}] if figures else []
    return found
