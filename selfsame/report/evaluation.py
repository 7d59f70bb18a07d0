"""The evaluation of a trained network as tables and as a page, from the plain figures of `evaluation.json`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from selfsame.report import figures
from selfsame.report.figures import Plain
from selfsame.report.page import page, panels
from selfsame.report.style import numbered_looks
from selfsame.report.table import Fitted, Sheet
from selfsame.report.words import percent

FORMAT = "selfsame-evaluation-1"
FEW = "too few"
WIDE = 136  # characters that the table of all figures takes
_LISTED = 10  # users in a table

USERS = ("protocol", "users", "mean TPR", "median", "worst tenth", "locked out\n(< 50 %)", "never\naccepted")
WORST = ("user", "genuine", "impostor", "TPR (%)", "FPR (%)", "AUROC (%)")
_COUNTS = ("genuine", "impostor", "people")
_TRIALS = "{genuine:,} genuine and {impostor:,} impostor trials of {people:,} people"
_LEADING = {"test samples": "people it was trained with", "unseen, enrolled": "people it has never seen"}


def protocol_sheet(result: Plain) -> Sheet:
    """One row per protocol, figures with their intervals."""
    first = result["protocols"][0] if result["protocols"] else {"tpr_at_fpr": {}, "min_dcf": {}}
    tprs = [f"TPR at {_rate(at)}" for at in first["tpr_at_fpr"]]
    costs = [f"minDCF {p}" for p in first["min_dcf"]]
    headings = ["protocol", *_COUNTS, "EER", "AUROC", *tprs, *costs, "rank-1"]
    rows = []
    for protocol in result["protocols"]:
        found = protocol["identification"]
        rows.append(
            [
                protocol["name"],
                *(f"{protocol[key]:,}" for key in _COUNTS),
                with_interval(protocol["eer"], 2),
                with_interval(protocol["auroc"], 2),
                *(with_interval(value, 1) for value in protocol["tpr_at_fpr"].values()),
                *(with_interval(value, 3, 1.0) for value in protocol["min_dcf"].values()),
                "–" if found is None else with_interval(found["rank_1"], 1),
            ]
        )
    return Sheet(headings, rows)


def protocol_tables(result: Plain, width: int) -> list[Fitted]:
    """For the terminal, in two tables where one is too wide; of the intervals only the EER's, the page has all."""
    sheet = protocol_sheet(result)
    headings = [re.sub(r"( at)? (?=[\d.]+( %)?$)", r"\1\n", heading) for heading in sheet.headings]
    rows = [[c if number == 4 else c.partition(" [")[0] for number, c in enumerate(row)] for row in sheet.rows]
    title = f"{result['title']}: verification"
    if width >= WIDE:
        return [Sheet(headings, rows, title).terminal()]
    left = Sheet(headings[:6], [row[:6] for row in rows], title)
    right = Sheet([headings[0], *headings[6:]], [[row[0], *row[6:]] for row in rows])
    return [left.terminal(), right.terminal()]


def user_sheet(result: Plain) -> Sheet:
    """What each protocol means for single users."""
    rows = []
    for protocol in result["protocols"]:
        users = protocol["users"]
        shares = [percent(users[key]) for key in ("mean", "median", "worst_tenth")]
        counts = [f"{users[key]:,}" for key in ("number", "locked_out", "never_accepted")]
        rows.append([protocol["name"], counts[0], *shares, *counts[1:]])
    return Sheet(USERS, rows, "Users, at each protocol's threshold of equal errors")


def elsewhere_sheets(result: Plain) -> list[Sheet]:
    """What was forgotten: error rates on the people of another data set before training and after, if measured."""
    found = result.get("elsewhere")
    return [] if found is None else [change_sheet(found["protocols"], f"What was forgotten: people of {found['data']}")]


def change_sheet(protocols: list[Plain], title: str) -> Sheet:
    """Error rates before and after."""
    rows = []
    for protocol in protocols:
        counts = [f"{protocol[key]:,}" for key in ("genuine", "impostor", "people")]
        rates = [with_interval(protocol[key], 2) for key in ("before", "after", "change")]
        rows.append([protocol["name"], *counts, *rates])
    headings = ("protocol", "genuine", "impostor", "people", "EER before", "EER after", "change")
    return Sheet(headings, rows, title)


def _worst_sheet(protocol: Plain) -> Sheet:
    rows = []
    for user in protocol["users"]["each"][:_LISTED]:
        counts, shares = (user["genuine"], user["impostor"]), (user["tpr"], user["fpr"], user["auroc"])
        rows.append([user["name"], *(f"{count:,}" for count in counts), *map(percent, shares)])
    return Sheet(WORST, rows, f"{protocol['name']}: the worst {len(rows)} of {protocol['users']['number']:,} users")


def evaluation_remarks(result: Plain) -> list[str]:
    """What a reader of the tables must know, a line each."""
    said = []
    for protocol in result["protocols"]:
        said += [f"{protocol['name']}: {note}" for note in protocol["notes"]]
        said += [
            f"{protocol['name']}: TPR at FPR {_rate(at)} {value['refused']}"
            for at, value in protocol["tpr_at_fpr"].items()
            if "refused" in value
        ]
        said += _ranked(protocol)
        said += _calibrated(protocol)
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


def _ranked(protocol: Plain) -> list[str]:
    """Identification: the share of samples whose own template is among the k best, and P@k where that is another."""
    ranked = protocol["identification"] or {}
    within = [
        f"rank-{key[5:]} {percent(value)} %"
        for key, value in ranked.items()
        if key.startswith("rank_") and key != "rank_1"
    ]
    precision = [f"P@{key[2:]} {percent(value)} %" for key, value in ranked.items() if key.startswith("p@")]
    if within:
        within = [f"rank-1 {percent(ranked['rank_1']['value'])} %", *within]
        return [f"{protocol['name']}: own template among the k best: {', '.join(within)}"]
    if len(precision) > 1:
        return [f"{protocol['name']}: share of the k best that are right: {', '.join(precision)}"]
    return []


def _calibrated(protocol: Plain) -> list[str]:
    """The thresholds of the figures, and what calibrated scores cost."""
    limits = [f"FPR {_rate(at)}: {value:.4f}" for at, value in protocol.get("thresholds", {}).items()]
    said = [f"{protocol['name']}: thresholds: equal errors: {protocol['eer']['threshold']:.4f}, {', '.join(limits)}"]
    found = protocol.get("cllr")
    if found is not None:
        said.append(
            f"{protocol['name']}: Cllr {found['value']:.3f} bits, at least {found['least']:.3f}; log-likelihood ratio "
            f"= {found['slope']:.3f} score {'+' if found['offset'] >= 0 else '-'} {abs(found['offset']):.3f}"
        )
    return said


def with_interval(figure: Plain, digits: int, scale: float = 100.0) -> str:
    """A figure with its interval, or that it is refused."""
    if "refused" in figure:
        return FEW
    value = f"{scale * figure['value']:.{digits}f}"
    if figure.get("low") is None:
        return value
    return f"{value} [{scale * figure['low']:.{digits}f}, {scale * figure['high']:.{digits}f}]"


def _rate(at: str | float) -> str:
    return f"{100 * float(at):g} %"


def evaluation_page(result: Plain) -> str:
    """The whole page."""
    facts = {**result["facts"], "replicates": f"{result['bootstrap']:,}", "seed of the evaluation": result["seed"]}
    sections = [
        *(_protocol_sections(result) if result["protocols"] else ()),
        ("elsewhere", "What was forgotten", elsewhere_sheets(result)),
        ("remarks", "What to know", evaluation_remarks(result)),
        ("facts", "Facts", [(name, [value]) for name, value in facts.items()]),
    ]
    found = {protocol["name"]: protocol for protocol in result["protocols"]}
    lead = [(whom, found[name]) for name, whom in _LEADING.items() if name in found]
    return page("evaluation", f"Evaluation of {result['title']}", lead, sections)


def _protocol_sections(result: Plain) -> Iterator[tuple[str, str, Any]]:
    protocols = result["protocols"]
    looks = numbered_looks(len(protocols))
    lines = list(zip(protocols, looks, strict=True))
    legend = [(protocol["name"], look) for protocol, look in lines]
    what = [(one["name"], [one["what"], _TRIALS.format_map(one)]) for one in protocols]
    yield "results", "Results", {"sheet": protocol_sheet(result).without(*_COUNTS), "looks": looks, "protocols": what}
    low = "ROC. A lock works at the left, where few others are accepted. Dashed grey: chance."
    both = "DET: both errors on normal deviate axes. Lower left is better; dashed: equal errors."
    curves = panels(
        (figures.protocol_roc(lines), "f-roc", low),
        (figures.protocol_det(lines), "f-det", both),
    )
    yield "curves", "Telling people apart", {"legend": legend, "panels": curves}
    scores = ((figures.protocol_scores(one), f"f-scores-{n}", one["name"]) for n, one in enumerate(protocols))
    yield "scores", "Scores", panels(*scores)
    each = panels(
        (
            figures.protocol_users(lines),
            "f-users",
            "How often each user is refused, the worst first. Red: the worst tenth; the thick line is its mean.",
        )
    )
    users = {"sheet": user_sheet(result), "worst": [_worst_sheet(one) for one in protocols]}
    yield "users", "Users", {**users, "looks": looks, "legend": legend, "panels": each}
