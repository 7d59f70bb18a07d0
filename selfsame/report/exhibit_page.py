"""A paper's table or figure beside ours, as one page: made from the JSON that lies beside it, and from nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from selfsame.config.exhibits import FIXED, NO_NEGATIVES, UNTRAINED
from selfsame.errors import SelfsameError
from selfsame.files import read_json
from selfsame.report.beside import units
from selfsame.report.exhibit_figures import exhibit_svg
from selfsame.report.exhibit_join import joined
from selfsame.report.exhibit_tables import is_oracle, part_sheets, said_below, timing_sheet
from selfsame.report.picture_page import picture_lines
from selfsame.report.table import marked_down
from selfsame.report.words import duration

FORMAT = 4
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
UNTIED = "This page does not say which settings its recipe had when the runs were made."
QUOTED = "Quoted: the paper's figures of what is not run by this command."
ORACLES = (
    "Oracles are not federated: each is fitted at once, on a CPU, to all training rows with all their labels, and "
    "judged by the same test rows. They show what the data hold and are no like-for-like rivals."
)
PORTIONED = (
    "Accuracy (VII-C): the share of right verdicts on unseen people, the mean of 20 draws. Each has a template, a "
    "threshold from further samples and other users by the paper's Algorithm 4, and is tested with the rest and with "
    "samples of still others, who stay where an interval draws users again."
)
BY_PERSON = (
    "In brackets: the 95 % interval by person of the mean over seeds. The people of the trials are drawn again {} "
    "times, the same people for every seed, while networks and templates stay: it says nothing of other seeds."
)
APART = "Where the seeds are about different people, each seed has an interval of its own."
_EARLIER = (2, 3)  # formats without intervals, and without the paper's figures of what has not been run

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


def read_exhibit(file: Path) -> dict[str, Any]:
    """The JSON of a page, also of one of an earlier format."""
    found = read_json(file)
    known = isinstance(found, dict) and found.get("format") in (*_EARLIER, FORMAT)
    if not known or f"{found.get('file')}.json" != file.name:
        raise SelfsameError(f"{file}: not the JSON of a page of `selfsame paper` (formats {_EARLIER[0]} to {FORMAT})")
    try:
        return _in_this_format(found)
    except (AttributeError, KeyError, TypeError):
        raise SelfsameError(f"{file}: parts of the page are missing") from None


def tells(plain: Plain) -> bool:
    """Whether a page tells of any run, or of seconds."""
    ended = (one for part in plain.get("parts", ()) for variant in part["variants"] for one in variant["ended"])
    return bool(plain.get("timings") or plain.get("pictures", {}).get("cases")) or any(ended)


def _in_this_format(plain: Plain) -> dict[str, Any]:
    """A page in this format: what one of an earlier format does not tell is empty."""

    def variant(one: Plain) -> Plain:
        return {
            "chosen": "",
            "quoted": False,
            "oracle": False,
            "digest": "",
            "settings": {},
            **one,
            "figures": {key: {"interval": None, **figure} for key, figure in one["figures"].items()},
        }

    parts = [
        {"replicates": 0, **part, "variants": [variant(one) for one in part["variants"]]} for part in plain["parts"]
    ]
    missing = [{"variants": [], **one} for one in plain["missing"]]
    return {**plain, "format": FORMAT, "parts": parts, "missing": missing}


def files_again(file: Path) -> dict[str, bytes]:
    """All files of a page whose JSON is there, made anew."""
    plain = read_exhibit(file)
    try:
        tells(plain)
        found = exhibit_files(plain)
    except (ArithmeticError, AttributeError, IndexError, KeyError, TypeError, ValueError):
        raise SelfsameError(f"{file}: parts of the page are missing") from None
    except SelfsameError as error:
        raise SelfsameError(f"{file}: {error}") from None
    if strange := [name for name in found if Path(name).name != name]:
        raise SelfsameError(f"{file}: names a file of another folder: {strange[0]}")
    return found


def joined_files(file: Path, others: Sequence[Path]) -> dict[str, bytes]:
    """All files of a page with what those of other calls tell beyond it."""
    files_again(file)  # is whole, and so is each of the others
    found = read_exhibit(file)
    for other in others:
        files_again(other)
        try:
            found = joined(found, read_exhibit(other))
        except SelfsameError as error:
            raise SelfsameError(f"{file} and {other}: {error}") from None
    return exhibit_files(found)


def page_again(file: Path) -> dict[str, Any]:
    """The JSON of a page that can be made anew; nothing of one that is not there, or damaged, and is to be replaced."""
    try:
        return read_exhibit(file) if file.is_file() and files_again(file) else {}
    except SelfsameError:
        return {}


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
    if plain.get("pictures"):
        lines += ["", *picture_lines(plain["pictures"])]
    if told := [*plain["parts"], *(one for one in plain["missing"] if one["variants"])]:
        lines += ["", _units(told), *_by_person(plain["parts"])]
    variants = [variant for part in plain["parts"] for variant in part["variants"]]
    if kinds := {variant["control"] for variant in variants if variant["control"]}:
        lines += ["", " ".join([CONTROLS, *(words for kind, words in _CONTROLS.items() if kind in kinds)])]
    if any(is_oracle(variant) for variant in variants):
        lines += ["", ORACLES]
    if any(variant["quoted"] for one in told for variant in one["variants"]):
        lines += ["", QUOTED]
    if any("vii_c" in variant["figures"] for variant in variants):
        lines += ["", PORTIONED]
    if plain["missing"]:
        lines += ["", "## Not run"]
        for one in plain["missing"]:
            sheets = part_sheets(one) if one["variants"] else []
            lines += ["", _missing(one), *(text for sheet in sheets for text in ("", sheet.markdown().rstrip("\n")))]
    return "\n".join([*lines, "", MARK, ""])


def _units(parts: Sequence[Plain]) -> str:
    figures = [one for part in parts for variant in part["variants"] for one in variant["figures"].items()]
    return units((key for key, _ in figures), any(figure["paper"] is not None for _, figure in figures))


def _by_person(parts: Sequence[Plain]) -> list[str]:
    """What the intervals are, where there are any."""
    found = {
        (part["replicates"], figure["interval"]["mean"] is not None)
        for part in parts
        for variant in part["variants"]
        for figure in variant["figures"].values()
        if figure["interval"] is not None
    }
    if not found:
        return []
    times = " or ".join(str(number) for number in sorted({number for number, _ in found}))
    return ["", " ".join([BY_PERSON.format(times), *([APART] if any(not alike for _, alike in found) else [])])]


def _part(part: Plain) -> Iterator[str]:
    drawing = part["drawing"]
    if drawing is not None:
        yield f"![{marked_down(drawing['what'])}]({drawing['file']})"
        yield ""
    for sheet in part_sheets(part):
        if sheet.title:
            yield f"{sheet.title}\n"
        yield sheet.markdown()
    own = [variant for variant in part["variants"] if not variant["quoted"]]
    untied = [UNTIED] if own and not all(variant["digest"] for variant in own) else []
    for said in (*said_below(part), *_lengths(part), *_pictured(part), *untied):
        yield f"- {marked_down(said)}"


def _pictured(part: Plain) -> list[str]:
    """What pictures of the embedding space are of, and in what they differ from the paper's."""
    panes = [pane for pane in (part["drawing"] or {"panes": ()})["panes"] if pane["kind"] == "space"]
    if not panes:
        return []
    ways = {
        "cosine": "t-SNE by cosine, as in the paper",
        "euclidean": "t-SNE by Euclidean distance, the paper's by cosine",
    }
    drawn = dict.fromkeys(
        (
            len(pane["truth"]),
            len(pane["samples"]),
            ways[pane.get("metric", "euclidean")] if pane["how"] == "tsne" else "PCA",
        )
        for pane in panes
    )
    told = "; ".join(f"{classes} classes and {samples} test samples, {way}" for classes, samples, way in drawn)
    return [f"Pictures have {told}. The paper does not say how many samples it shows, nor how t-SNE was begun."]


def _lengths(part: Plain) -> list[str]:
    """How long the runs took."""
    trained = [variant for variant in part["variants"] if variant["rounds"]]
    spent = [value for variant in trained for value in variant["seconds"] if value is not None]
    if not spent:
        return []
    return [f"{len(spent)} runs took {duration(min(spent))} to {duration(max(spent))} s each to train."]


def _timings(timings: Plain) -> list[str]:
    return [timing_sheet(timings).markdown(), *(f"- {marked_down(said)}" for said in timings["remarks"])]


def _missing(one: Plain) -> str:
    said = f"{one['recipe']} ({one['runs']} runs on {one['data']}): {one['why']}"
    return marked_down(said + (f"; wanted: {one['wants']}" if one["wants"] not in one["why"] else ""))


def only_figures(variants: Sequence[Plain], wanted: Sequence[str]) -> list[Plain]:
    """The variants with the figures that an exhibit shows, in its order, those without any left out."""
    found: list[Plain] = []
    for variant in variants:
        figures = {key: variant["figures"][key] for key in wanted or variant["figures"] if key in variant["figures"]}
        found += [{**variant, "figures": figures}] if figures else []
    return found
