"""The evaluation of a trained network as tables and as a page, from the plain figures of `evaluation.json`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from selfsame.measure.curves import det, deviate
from selfsame.report import figures, html
from selfsame.report.figures import DASHES, MARKERS, SERIES, THEME, Look
from selfsame.report.view import percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from rich.table import Table

Plain = dict[str, Any]

FORMAT = "selfsame-evaluation-1"
FEW = "too few"
WIDE = 136  # characters that the table of all figures takes
_LISTED = 10  # users in a table
_RATES = (0.001, 0.01, 0.05, 0.2, 0.4, 0.6, 0.8, 0.95)  # marked on the axes of a DET curve
_LEAST = 1e-4  # false accept rate at the left end of a logarithmic axis

NOTE = (
    "EER, AUROC, rank-1 and TPR at a false accept rate in per cent; too few: the impostor trials do not support that "
    "rate. In brackets: where 95 % of the figures lie when the people are drawn again. minDCF: the least detection "
    "cost at this chance of a genuine trial, both costs 1; at 1 it is no better than refusing everybody. Rank-1: "
    "samples whose own template comes first."
)
LOCKED = (
    "At each protocol's threshold of equal errors. Locked out: a user whose genuine trials are accepted less than half "
    "of the time."
)


def protocol_tables(result: Plain, width: int) -> list[Table]:
    """One row a protocol, in two tables where one is too wide; of the intervals only the EER's, the page has all."""
    headings = [re.sub(r"( at)? (?=[\d.]+( %)?$)", r"\1\n", heading) for heading in _headings(result)]
    rows = []
    for row in _rows(result, " "):
        rows.append([cell if number == 4 else cell.partition(" [")[0] for number, cell in enumerate(row)])
    title = f"{result['title']}: verification"
    if width >= WIDE:
        return [terminal_table(title, headings, rows)]
    left, right = ([(row[0], *row[part]) for row in (headings, *rows)] for part in (slice(1, 6), slice(6, None)))
    return [terminal_table(title, left[0], left[1:]), terminal_table("", right[0], right[1:])]


def user_table(result: Plain) -> Table:
    """What each protocol means for single users."""
    return terminal_table("Users, at each protocol's threshold of equal errors", USER_HEADINGS, _user_rows(result))


def terminal_table(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(title) if title else None, title_justify="left", box=SIMPLE_HEAD, collapse_padding=True)
    for number, heading in enumerate(headings):
        table.add_column(Text(heading), justify="left" if number == 0 else "right")
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def remarks(result: Plain) -> list[str]:
    """What a reader of the tables must know, a line each."""
    said = []
    for protocol in result["protocols"]:
        said += [f"{protocol['name']}: {note}" for note in protocol["notes"]]
        said += [
            f"{protocol['name']}: TPR at FPR {_rate(at)} {value['refused']}"
            for at, value in protocol["tpr_at_fpr"].items()
            if "refused" in value
        ]
        ranked = protocol["identification"] or {}
        precision = [f"P@{key[2:]} {percent(value)} %" for key, value in ranked.items() if key.startswith("p@")]
        if len(precision) > 1:
            said.append(f"{protocol['name']}: {', '.join(precision)}")
        if protocol["folds"] is not None:
            folds = protocol["folds"]
            said.append(
                f"{protocol['name']}: accuracy {percent(folds['accuracy'], 2)} +- "
                f"{percent(folds['standard_error'], 2)} % over {len(folds['each'])} folds, "
                "each at the threshold that is best on the others"
            )
    if result["one_class_auroc"] is not None:
        said.append(f"one-class AUROC (FedMetric), mean over seen people: {percent(result['one_class_auroc'])} %")
    fdml = result["fdml"]
    if "refused" in fdml:
        said.append(f"FDML accuracy: not measured, {fdml['refused']}")
    else:
        said.append(
            f"FDML accuracy: {percent(fdml['value'])} % over {fdml['users']:,} unseen people "
            f"(worst tenth {percent(fdml['worst_tenth'])} %); {fdml['what']}"
        )
    said += [f"{skipped['name']}: not measured, {skipped['why']}" for skipped in result["skipped"]]
    return [*said, *(f"note: {note}" for note in result["notes"])]


def _headings(result: Plain) -> list[str]:
    first = result["protocols"][0] if result["protocols"] else {"tpr_at_fpr": {}, "min_dcf": {}}
    tprs = [f"TPR at {_rate(at)}" for at in first["tpr_at_fpr"]]
    costs = [f"minDCF {p}" for p in first["min_dcf"]]
    return ["protocol", "genuine", "impostor", "people", "EER", "AUROC", *tprs, *costs, "rank-1"]


def _rows(result: Plain, between: str) -> list[list[str]]:
    rows = []
    for protocol in result["protocols"]:
        found = protocol["identification"]
        rows.append(
            [
                protocol["name"],
                *(f"{protocol[key]:,}" for key in ("genuine", "impostor", "people")),
                interval(protocol["eer"], between, 2),
                interval(protocol["auroc"], between, 2),
                *(interval(value, between, 1) for value in protocol["tpr_at_fpr"].values()),
                *(interval(value, between, 3, 1.0) for value in protocol["min_dcf"].values()),
                "–" if found is None else interval(found["rank_1"], between, 1),
            ]
        )
    return rows


USER_HEADINGS = (
    "protocol", "users", "mean TPR", "median", "worst tenth", "locked out\n(< 50 %)", "never\naccepted"
)  # fmt: skip


def _user_rows(result: Plain) -> list[list[str]]:
    rows = []
    for protocol in result["protocols"]:
        users = protocol["users"]
        rows.append(
            [
                protocol["name"],
                f"{users['number']:,}",
                *(percent(users[key]) for key in ("mean", "median", "worst_tenth")),
                *(f"{users[key]:,}" for key in ("locked_out", "never_accepted")),
            ]
        )
    return rows


def interval(figure: Plain, between: str, digits: int, scale: float = 100.0) -> str:
    """A figure with its interval, or that it is refused."""
    if "refused" in figure:
        return FEW
    value = f"{scale * figure['value']:.{digits}f}"
    if figure.get("low") is None:
        return value
    return f"{value}{between}[{scale * figure['low']:.{digits}f}, {scale * figure['high']:.{digits}f}]"


def _rate(at: str | float) -> str:
    return f"{100 * float(at):g} %"


def render(result: Plain) -> str:
    """The whole page."""
    sections = [
        ("results", "Results", _results(result)),
        ("curves", "Telling people apart", _curves(result)),
        ("scores", "Scores", _scores(result)),
        ("users", "Users", _users(result)),
        ("remarks", "What to know", _list(remarks(result))),
        ("facts", "Facts", _facts(result)),
    ]
    return page(f"Evaluation of {result['title']}", _lead(result), sections)


def page(title: str, lead: str, sections: Sequence[tuple[str, str, str]]) -> str:
    """A page with everything inside: `sections` are (name, heading, HTML), those without HTML are left out."""
    shown = [section for section in sections if section[2]]
    nav = "".join(f'<a href="#{name}">{heading}</a>' for name, heading, _ in shown)
    body = "".join(f'<section id="{name}"><h2>{heading}</h2>{inner}</section>' for name, heading, inner in shown)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
        'img-src data:">\n<meta name="color-scheme" content="light dark">\n'
        f"<title>{html.text(title)}</title>\n<style>{html._css()}{CSS}</style>\n</head>\n<body>\n"
        f'<header><div class="brand">selfsame</div><h1>{html.text(title)}</h1>'
        f'<div class="lead">{lead}</div></header>\n<nav>{nav}</nav>\n<main>\n{body}\n</main>\n'
        "<footer>Written by selfsame. This file holds everything it shows.</footer>\n</body>\n</html>\n"
    )


CSS = """
.wide{overflow-x:auto}
.wide table{font-size:.86rem}
.wide tbody :is(td,th){white-space:nowrap}
.wide .n{padding-right:8px}
.wide small{display:block;font-size:.74rem;color:var(--muted)}
"""


def _lead(result: Plain) -> str:
    said = []
    for name, whom in (
        ("test samples", "people it was trained with"),
        ("unseen, enrolled", "people it has never seen"),
    ):
        for protocol in result["protocols"]:
            if protocol["name"] == name:
                users = protocol["users"]
                said.append(
                    f"For {whom} the equal error rate is <b>{percent(protocol['eer']['value'])}\u00a0%</b>, and "
                    f"{users['locked_out']:,} of {users['number']:,} would be locked out."
                )
    return "".join(f"<p>{sentence}</p>" for sentence in said) or "<p>No protocol fits these data.</p>"


def _looks(result: Plain) -> list[Look]:
    numbers = range(len(result["protocols"]))
    return [Look(number % SERIES, DASHES[number % len(DASHES)], MARKERS[number % SERIES]) for number in numbers]


def _results(result: Plain) -> str:
    rows = _rows(result, "\n")
    if not rows:
        return ""
    body = [(figures.swatch(look), row) for look, row in zip(_looks(result), rows)]
    named = "".join(
        f"<dt>{html.text(protocol['name'])}</dt><dd>{html.text(protocol['what'])}</dd>"
        for protocol in result["protocols"]
    )
    return f'{page_table(_headings(result), body)}<p class="note">{html.text(NOTE)}</p><dl>{named}</dl>'


def page_table(headings: Sequence[str], rows: Sequence[tuple[str, Sequence[str]]]) -> str:
    head = "".join(
        f'<th scope="col"{"" if number == 0 else " class=n"}>{html.text(heading)}</th>'
        for number, heading in enumerate(headings)
    )
    body = ""
    for key, (first, *rest) in rows:
        cells = ""
        for cell in rest:
            value, _, span = cell.partition("\n")
            cells += f'<td class="n">{html.text(value)}{f"<small>{html.text(span)}</small>" if span else ""}</td>'
        body += f'<tr><th scope="row">{key} {html.text(first)}</th>{cells}</tr>'
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _legend(result: Plain) -> str:
    keys = "".join(
        f"<li>{figures.swatch(look)}{html.text(protocol['name'])}</li>"
        for look, protocol in zip(_looks(result), result["protocols"])
    )
    return f'<ul class="legend">{keys}</ul>'


def _curves(result: Plain) -> str:
    panels = html._figure(
        roc_figure(result),
        "f-roc",
        "ROC. A lock works at the left, where few others are accepted. Dashed grey: chance.",
    ) + html._figure(
        det_figure(result),
        "f-det",
        "DET: both errors on normal deviate axes. Lower left is better; dashed: equal errors.",
    )
    return f'{_legend(result)}<div class="grid">{panels}</div>' if panels else ""


def _scores(result: Plain) -> str:
    panels = "".join(
        html._figure(histogram_figure(protocol), f"f-scores-{number}", protocol["name"])
        for number, protocol in enumerate(result["protocols"])
    )
    key = (
        '<ul class="legend"><li><i class="dot" style="color:var(--s0)"></i>genuine</li>'
        '<li><i class="dot" style="color:var(--s1)"></i>impostor</li>'
        '<li><i class="dash"></i>threshold of equal errors</li></ul>'
    )
    return f'{key}<div class="grid three">{panels}</div>' if panels else ""


def _users(result: Plain) -> str:
    if not result["protocols"]:
        return ""
    rows = [(figures.swatch(look), row) for look, row in zip(_looks(result), _user_rows(result))]
    plot = html._figure(users_figure(result), "f-users", "Every user's TPR, from the worst to the best.")
    worst = "".join(
        f"<details><summary>{html.text(protocol['name'])}: the worst {min(_LISTED, len(protocol['users']['each']))} of "
        f"{protocol['users']['number']:,} users</summary>{_worst(protocol)}</details>"
        for protocol in result["protocols"]
    )
    note = f'<p class="note">{html.text(LOCKED)}</p>'
    return f"{page_table(USER_HEADINGS, rows)}{note}{_legend(result)}{plot}{worst}"


def _worst(protocol: Plain) -> str:
    rows = [
        (
            "",
            [
                user["name"],
                f"{user['genuine']:,}",
                f"{user['impostor']:,}",
                *(percent(user[key]) for key in ("tpr", "fpr", "auroc")),
            ],
        )
        for user in protocol["users"]["each"][:_LISTED]
    ]
    return page_table(("user", "genuine", "impostor", "TPR (%)", "FPR (%)", "AUROC (%)"), rows)


def _list(lines: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{html.text(line)}</li>' for line in lines)}</ul>" if lines else ""


def _facts(result: Plain) -> str:
    facts = {**result["facts"], "replicates": f"{result['bootstrap']:,}", "seed of the evaluation": result["seed"]}
    return (
        f"<dl>{''.join(f'<dt>{html.text(key)}</dt><dd>{html.text(value)}</dd>' for key, value in facts.items())}</dl>"
    )


def points(protocol: Plain) -> tuple[np.ndarray, np.ndarray]:
    """(FPR, TPR) of a protocol's curve."""
    return np.array(protocol["curve"]["fpr"]), np.array(protocol["curve"]["tpr"])


@figures._styled
def roc_figure(result: Plain) -> Figure | None:
    """True against false accept rate, the latter on a logarithmic axis down to what the trials support."""
    lines = [(*points(protocol), look) for protocol, look in zip(result["protocols"], _looks(result))]
    if not lines:
        return None
    figure, ax = figures._panel(4.7, 3.4)
    draw_roc(ax, lines)
    return figure


def draw_roc(ax: Axes, lines: Sequence[tuple[np.ndarray, np.ndarray, Look]]) -> None:
    """Curves of (FPR, TPR) with a logarithmic axis, chance beside them."""
    smallest = min((float(fpr[fpr > 0].min()) for fpr, _, _ in lines if (fpr > 0).any()), default=1.0)
    left = max(_LEAST, min(0.1, smallest))
    chance = np.geomspace(left, 1, 50)
    ax.plot(100 * chance, 100 * chance, color=THEME["muted"][0], lw=0.8, dashes=(2, 2))
    for fpr, tpr, look in lines:
        inside = fpr >= left
        start = np.interp(left, fpr, tpr)
        across, up = np.append(left, fpr[inside]), np.append(start, tpr[inside])
        ax.plot(100 * across, 100 * up, color=look.colour, dashes=look.dashes, lw=1.7)
    ax.set_xscale("log")
    ticks = [100 * 10.0**k for k in range(-4, 1) if 10.0**k >= left * 0.999]
    ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    ax.set_xlim(100 * left, 100)
    ax.set_ylim(0, 102)
    ax.set_xlabel("False accept rate (%), log scale")
    ax.set_ylabel("True accept rate (%)")


@figures._styled
def det_figure(result: Plain) -> Figure | None:
    """False rejects against false accepts on normal deviate axes."""
    lines = [(*det(*points(protocol)), look) for protocol, look in zip(result["protocols"], _looks(result))]
    lines = [line for line in lines if len(line[0]) > 1]
    if not lines:
        return None
    figure, ax = figures._panel(4.7, 3.4)
    ticks = deviate(_RATES)
    low, high = float(deviate([5e-4])[0]), float(deviate([0.97])[0])
    ax.plot([low, high], [low, high], color=THEME["muted"][0], lw=0.8, dashes=(2, 2))
    for across, up, look in lines:
        ax.plot(across, up, color=look.colour, dashes=look.dashes, lw=1.7)
    names = [f"{100 * rate:g}" for rate in _RATES]
    ax.set_xticks(ticks, names)
    ax.set_yticks(ticks, names)
    ax.set_xlim(low, high)
    ax.set_ylim(low, high)
    ax.set_xlabel("False accept rate (%)")
    ax.set_ylabel("False reject rate (%)")
    return figure


@figures._styled
def histogram_figure(protocol: Plain) -> Figure:
    """How the scores of genuine and of impostor trials are spread, each adding up to 100 %."""
    figure, ax = figures._panel(3.7, 2.7)
    edges = protocol["histogram"]["edges"]
    for key, slot in (("impostor", 1), ("genuine", 0)):
        count = np.array(protocol["histogram"][key], float)
        colour = THEME[f"s{slot}"][0]
        ax.stairs(100 * count / max(1.0, count.sum()), edges, fill=True, color=colour, alpha=0.35, lw=0)
        ax.stairs(100 * count / max(1.0, count.sum()), edges, color=colour, lw=1.3)
    ax.axvline(protocol["eer"]["threshold"], color=THEME["muted"][0], lw=1.0, dashes=(3, 2))
    ax.set_xlabel("Score (larger is closer)")
    ax.set_ylabel("Trials (%)")
    return figure


@figures._styled
def users_figure(result: Plain) -> Figure | None:
    """The TPR of every listed user in ascending order, on a common axis from the worst to the best."""
    if not result["protocols"]:
        return None
    figure, ax = figures._panel(6.0, 3.0)
    ax.axhline(50, color=THEME["muted"][0], lw=0.8, dashes=(2, 2))
    for protocol, look in zip(result["protocols"], _looks(result)):
        tpr = 100 * np.array([user["tpr"] for user in protocol["users"]["each"]])
        share = 100 * (np.arange(len(tpr)) + 0.5) / max(1, protocol["users"]["number"])
        dot = look.marker if len(tpr) <= 30 else None
        ax.plot(share, tpr, color=look.colour, dashes=look.dashes, marker=dot, ms=3.5, lw=1.5)
    ax.set_xlim(0, 100)
    ax.set_ylim(-2, 102)
    ax.set_xlabel("Users, worst first (%)")
    ax.set_ylabel("TPR (%)")
    return figure
