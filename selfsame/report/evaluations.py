"""The evaluations of several runs side by side: error rates, and the ROC of every protocol, one line per run."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from selfsame.errors import SelfsameError
from selfsame.files import read_json
from selfsame.report import figures
from selfsame.report.evaluation import FEW, FORMAT, with_interval
from selfsame.report.figures import Plain
from selfsame.report.page import page, panels
from selfsame.report.style import Look, numbered_looks, style
from selfsame.report.table import Sheet

_MOST = 512 * 2**20  # bytes of an evaluation; ten thousand users take some two million


def read_evaluation(place: Path) -> Plain:
    """What `selfsame evaluate` wrote: the file itself, or that of a run's folder."""
    file = place / "evaluation.json" if place.is_dir() else place
    if not file.is_file():
        raise SelfsameError(f"{place}: not evaluated yet; `selfsame evaluate {place}` does")
    if file.stat().st_size > _MOST:
        raise SelfsameError(f"{file}: too large for an evaluation")
    found = read_json(file)
    wrong = _wrong(found)
    if wrong:
        raise SelfsameError(f"{file}: not an evaluation of this version: {wrong}")
    result: Plain = found
    return result


def _wrong(found: Any) -> str:
    """What keeps this from being compared, in words."""
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        return f"format is not {FORMAT}"
    if not isinstance(found.get("title"), str) or not isinstance(found.get("protocols"), list):
        return "no title or no protocols"
    for protocol in found["protocols"]:
        try:
            name, fpr, tpr = protocol["name"], protocol["curve"]["fpr"], protocol["curve"]["tpr"]
            numbers = [*fpr, *tpr, *map(float, protocol["tpr_at_fpr"])]
            for figure in (protocol["eer"], *protocol["tpr_at_fpr"].values()):
                if "refused" not in figure:
                    ends = (figure["low"], figure["high"])  # both or neither
                    numbers += [figure["value"], *(() if ends == (None, None) else ends)]
        except (AttributeError, KeyError, TypeError, ValueError):
            return "a protocol lacks its figures"
        if not isinstance(name, str) or len(fpr) != len(tpr) or len(fpr) < 2 or not all(map(_share, numbers)):
            return f"protocol {name!r}: figures that are no rates"
    names = [protocol["name"] for protocol in found["protocols"]]
    return "" if len(set(names)) == len(names) else "a protocol stands twice"


def _share(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1


def named(results: Sequence[Plain], places: Sequence[Path]) -> list[Plain]:
    """The evaluations with titles that tell them apart: where two are the same, the folder is added."""
    titles = [result["title"] for result in results]
    return [
        result if titles.count(result["title"]) == 1 else {**result, "title": f"{result['title']} ({place.name})"}
        for result, place in zip(results, places, strict=True)
    ]


def protocol_names(results: Sequence[Plain]) -> list[str]:
    """Every protocol that one of them has, in their order."""
    return list(dict.fromkeys(protocol["name"] for result in results for protocol in result["protocols"]))


def eer_sheet(results: Sequence[Plain]) -> Sheet:
    """The EER of every run on every protocol."""
    return _sheet(results, "EER %", "eer")


def _sheet(results: Sequence[Plain], heading: str, key: str) -> Sheet:
    """One figure, the EER or the TPR at a rate, of every run on every protocol."""
    names = protocol_names(results)
    rows = [[result["title"], *(_cell(_protocol(result, name), key) for name in names)] for result in results]
    return Sheet([heading, *names], rows)


def _protocol(result: Plain, name: str) -> Plain | None:
    return next((protocol for protocol in result["protocols"] if protocol["name"] == name), None)


def _cell(protocol: Plain | None, key: str) -> str:
    figure = None if protocol is None else protocol["eer"] if key == "eer" else protocol["tpr_at_fpr"].get(key)
    return "–" if figure is None else with_interval(figure, 2 if key == "eer" else 1)


def lines_of(results: Sequence[Plain], name: str) -> list[tuple[Plain, Look]]:
    """A protocol of every run that has it, and how the run is drawn."""
    pairs = zip(results, numbered_looks(len(results)), strict=True)
    return [(protocol, look) for result, look in pairs if (protocol := _protocol(result, name)) is not None]


def drawn_roc(results: Sequence[Plain], path: Path, wanted: Sequence[str]) -> bytes:
    """The ROC of these protocols (none: of all) as a file for this path, whose ending says what kind."""
    known = protocol_names(results)
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise SelfsameError(f"no protocol {unknown[0]!r}; there are: {', '.join(known)}")
    kind = path.suffix[1:].lower()
    if kind not in ("svg", "png", "pdf"):
        raise SelfsameError(f"{path}: a figure is .svg, .png or .pdf")
    if not known:
        raise SelfsameError("there is no protocol to draw: the data of these runs fit none")
    titles = [result["title"] for result in results]
    figure = figures.roc_sheet({name: lines_of(results, name) for name in wanted or known}, titles)
    buffer = io.BytesIO()
    with style():
        dated = {} if kind == "png" else {"metadata": {"Date" if kind == "svg" else "CreationDate": None}}
        figure.savefig(buffer, format=kind, dpi=160, **dated)  # type: ignore[arg-type]
    return buffer.getvalue()


def evaluations_page(results: Sequence[Plain]) -> str:
    """The whole page."""
    names, looks = protocol_names(results), numbered_looks(len(results))
    rates = dict.fromkeys(at for result in results for one in result["protocols"] for at in one["tpr_at_fpr"])
    tprs = [_sheet(results, f"TPR at {100 * float(at):g} %", at) for at in rates]
    said = [sheet for sheet in tprs if any(cell not in ("–", FEW) for row in sheet.rows for cell in row[1:])]
    curves = ((figures.protocol_roc(lines_of(results, name)), f"f-roc-{n}", name) for n, name in enumerate(names))
    legend = [(result["title"], look) for result, look in zip(results, looks, strict=True)]
    sections = [
        ("results", "Results", {"sheets": [eer_sheet(results), *said], "looks": looks}),
        ("curves", "Telling people apart", {"legend": legend, "panels": panels(*curves)}),
    ]
    return page("evaluations", "Evaluations side by side", {"runs": len(results), "protocols": len(names)}, sections)
