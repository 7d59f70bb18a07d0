"""The evaluations of several runs side by side: error rates, and the ROC of every protocol, one line a run."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from selfsame.errors import SelfsameError
from selfsame.files import read_json
from selfsame.report import figures, html
from selfsame.report.evaluation import (
    FEW,
    FORMAT,
    Plain,
    draw_roc,
    interval,
    page,
    page_table,
    points,
    terminal_table,
)
from selfsame.report.figures import DASHES, MARKERS, SERIES, Look

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table

_MOST = 512 * 2**20  # bytes of an evaluation; ten thousand users take some two million
NOTE = (
    "EER, and TPR at a false accept rate, in per cent. In brackets: where 95 % of the figures lie when the people are "
    "drawn again; the intervals say nothing of another training run. too few: the impostor trials do not support that "
    "rate. –: not measured."
)


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


def protocols(results: Sequence[Plain]) -> list[str]:
    """Every protocol that one of them has, in their order."""
    return list(dict.fromkeys(protocol["name"] for result in results for protocol in result["protocols"]))


def rows(results: Sequence[Plain], between: str = " ") -> list[list[str]]:
    """A row a run: its title, then the EER of each protocol."""
    return [
        [result["title"], *(_cell(result, name, "eer", between) for name in protocols(results))] for result in results
    ]


def _of(result: Plain, name: str) -> Plain | None:
    return next((protocol for protocol in result["protocols"] if protocol["name"] == name), None)


def _cell(result: Plain, name: str, key: str, between: str) -> str:
    protocol = _of(result, name)
    if protocol is None:
        return "–"
    figure = protocol["eer"] if key == "eer" else protocol["tpr_at_fpr"].get(key)
    return "–" if figure is None else interval(figure, between, 2 if key == "eer" else 1)


def table(results: Sequence[Plain]) -> Table:
    """The EER of every run on every protocol."""
    return terminal_table("EER (%)", ["run", *protocols(results)], rows(results))


def markdown(results: Sequence[Plain]) -> str:
    """The same as Markdown."""
    head = ["EER %", *protocols(results)]
    lines = [head, ["---", *("---:" for _ in head[1:])], *rows(results)]
    return "".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |\n" for line in lines)


def looks(results: Sequence[Plain]) -> list[Look]:
    """Colours first, then dashes."""
    return [
        Look(number % SERIES, DASHES[number // SERIES % len(DASHES)], MARKERS[number % SERIES])
        for number in range(len(results))
    ]


def _lines(results: Sequence[Plain], name: str) -> list[tuple[Any, Any, Look]]:
    pairs = zip(results, looks(results), strict=True)
    return [(*points(protocol), look) for result, look in pairs if (protocol := _of(result, name)) is not None]


@figures._styled
def protocol_figure(results: Sequence[Plain], name: str) -> Figure:
    """The ROC of every run on one protocol."""
    figure, ax = figures._panel(4.7, 3.4)
    draw_roc(ax, _lines(results, name))
    return figure


@figures._styled
def roc_figure(results: Sequence[Plain], wanted: Sequence[str]) -> Figure:
    """A panel a protocol, with a common legend below: for a file of its own."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    across = min(3, len(wanted))
    down = math.ceil(len(wanted) / across)
    keys = math.ceil(len(results) / 3)
    height = 3.2 * down + 0.25 * keys + 0.2
    figure = Figure(figsize=(4.2 * across, height))
    FigureCanvasAgg(figure)
    panels = figure.subplots(down, across, squeeze=False).flat
    for name, ax in zip(wanted, panels):
        draw_roc(ax, _lines(results, name))
        ax.set_title(name, fontsize=10)
    for ax in panels:
        ax.set_visible(False)
    handles = [Line2D([], [], color=look.colour, dashes=look.dashes, lw=1.7) for look in looks(results)]
    figure.legend(handles, [result["title"] for result in results], loc="lower center", ncols=3, frameon=False)
    figure.subplots_adjust(0.18 / across, (0.25 * keys + 0.65) / height, 0.99, 1 - 0.3 / height, 0.28, 0.38)
    return figure


def drawn(results: Sequence[Plain], path: Path, wanted: Sequence[str]) -> bytes:
    """The ROC of these protocols (none: of all) as a file for this path, whose ending says what kind."""
    known = protocols(results)
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise SelfsameError(f"no protocol {unknown[0]!r}; there are: {', '.join(known)}")
    kind = path.suffix[1:].lower()
    if kind not in ("svg", "png", "pdf"):
        raise SelfsameError(f"{path}: a figure is .svg, .png or .pdf")
    buffer = io.BytesIO()
    with figures._style():
        dated = {} if kind == "png" else {"metadata": {"Date" if kind == "svg" else "CreationDate": None}}
        roc_figure(results, wanted or known).savefig(buffer, format=kind, dpi=160, **dated)  # type: ignore[arg-type]
    return buffer.getvalue()


def render(results: Sequence[Plain]) -> str:
    """The whole page."""
    keys = [figures.swatch(look) for look in looks(results)]
    names = protocols(results)
    legend = "".join(f"<li>{key}{html.text(result['title'])}</li>" for key, result in zip(keys, results, strict=True))
    panels = "".join(
        html._figure(protocol_figure(results, name), f"f-roc-{number}", name) for number, name in enumerate(names)
    )
    tables = page_table(["EER", *names], list(zip(keys, rows(results, "\n"), strict=True)))
    for at in dict.fromkeys(at for result in results for p in result["protocols"] for at in p["tpr_at_fpr"]):
        cells = [[r["title"], *(_cell(r, name, at, "\n") for name in names)] for r in results]
        if any(cell not in ("–", FEW) for row in cells for cell in row[1:]):
            heading = [f"TPR at {100 * float(at):g} %", *names]
            tables += page_table(heading, list(zip(keys, cells, strict=True)))
    sections = [
        ("results", "Results", f'{tables}<p class="note">{html.text(NOTE)}</p>'),
        ("curves", "Telling people apart", f'<ul class="legend">{legend}</ul><div class="grid">{panels}</div>'),
    ]
    lead = f"<p>{len(results):,} runs on {len(names):,} protocols.</p>"
    return page("Evaluations side by side", lead, sections)
