"""The report of runs: who wins, who gave what away, curves, pictures, who sees what, recipes and facts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from selfsame.files import write
from selfsame.report import figures
from selfsame.report.findings import attacked, audit_remarks, audit_sheet, strongest_share, strongest_words
from selfsame.report.flows import aggregation_of, flow
from selfsame.report.page import page, panels
from selfsame.report.style import looks
from selfsame.report.table import Sheet, results_sheet
from selfsame.report.view import RunView, series
from selfsame.report.words import REMEDIES, finding_words, number_words, percent

LEVEL = 0.005  # two rates closer than half a point are called level: one run cannot tell them apart
_NAMED = 10  # people of the worst tenth
GAP = 0.2  # between the adaptive attacker's share and measure (17), above which the latter misleads


def write_report(views: Sequence[RunView], path: str | os.PathLike[str], title: str) -> Path:
    """Write the report of these runs."""
    write(Path(path), training_page(views, title))
    return Path(path)


def training_page(views: Sequence[RunView], title: str) -> str:
    """The whole page."""
    sections = [
        ("audit", "What the strongest attacker got", _audits(views)),
        ("results", "Results", _results(views)),
        ("warnings", "Warnings", _warnings(views)),
        ("leakage", "Accuracy against leakage", _leakage(views)),
        ("training", "Training", _training(views)),
        ("roc", "Telling people apart", _roc(views)),
        ("people", "Who is refused", _people(views)),
        ("space", "The embedding space", _space(views)),
        ("wire", "Who sees what", _wires(views)),
        ("recipes", "Recipes", [view for view in views if view.recipe]),
        ("facts", "Facts", _facts(views)),
    ]
    return page("training", title, headline(views), sections)


def headline(views: Sequence[RunView]) -> dict[str, Any]:
    """What was compared on what, who wins, who gave what away."""
    data = {view.facts.get("data", "") for view in views}
    ends = {view.history[-1].get("round") for view in views if view.history}
    sound = [(rate, view) for view in views if (rate := view.figure("p@1")) is not None and not view.collapsed]
    rate = max((rate for rate, _ in sound), default=None)
    best = [view for one, view in sound if rate is not None and rate - one < LEVEL]
    silent = [view for view in views if view.exposed() == (0.0, 0.0) and not view.shares_class_vector]
    worst = [view for view in views if view not in silent and max(share or 0.0 for share in view.exposed()) >= 0.5]
    return {
        "views": views,
        "alone": len(views) == 1,
        "count": number_words(len(views)),
        "data": data.pop() if len(data) == 1 else "",
        "rounds": ends.pop() if len(ends) == 1 else None,
        "best": best,
        "rate": rate,
        "eer": best[0].figure("eer") if len(best) == 1 else None,
        "lost": [view for view in views if view.collapsed or view.diverged],
        "silent": silent,
        "open": [view for view in worst if not _understated(view)],
        "hidden": [view for view in worst if _understated(view)],
        "unaudited": [view for view in views if not view.audit],
    }


def _understated(view: RunView) -> bool:
    """Whether the paper's measure hides what an adaptive attacker gets."""
    leak, recovered = view.exposed()
    return leak is not None and recovered is not None and recovered - leak > GAP


def _results(views: Sequence[RunView]) -> dict[str, Any] | None:
    """The table; in bold the best of several, and thin bars behind accuracy and the recovered share, for the eye."""
    if not views:
        return None
    best = {}
    for column, name, pick in ((1, "p@1", max), (2, "auroc", max), (3, "eer", min)):
        rates = [rate for view in views if not view.collapsed and (rate := view.figure(name)) is not None]
        best[column] = percent(pick(rates)) if len(rates) > 1 else None
    sheet = results_sheet(views)
    rows = []
    for view, look, row in zip(views, looks(views), sheet.rows):
        bars = {column: view.figure(name) for column, name in ((1, "p@1"), (5, "recovered"))}
        run = {
            "view": view,
            "look": look,
            "best": [] if view.collapsed else [column for column, value in best.items() if row[column] == value],
            "bars": {column: min(1.0, max(0.0, rate)) for column, rate in bars.items() if rate is not None},
        }
        rows.append((row, run))
    return {"sheet": sheet, "rows": rows}


def _warnings(views: Sequence[RunView]) -> list[tuple[str, str, str]]:
    """(title, what is wrong, what to do about it)."""
    found = []
    for view in views:
        found += [(view.title, finding_words(one), REMEDIES.get(one["kind"], "")) for one in view.warnings]
        if view.diverged and not view.warned("diverged"):
            found.append((view.title, "diverged", REMEDIES["diverged"]))
        if _understated(view):
            leak, recovered = view.exposed()
            words = f"recovered {percent(recovered, 0)} %, while measure (17) says {percent(leak, 0)} %"
            found.append((view.title, words, REMEDIES["gap"]))
    return found


def _leakage(views: Sequence[RunView]) -> dict[str, Any]:
    caption = "Top left is best: accurate, and nothing given away."
    return {
        "panels": panels((figures.leakage(views), "f-leakage", caption)),
        "shared": [view for view in views if view.figure("p@1_shared") not in (None, view.figure("p@1"))],
        "unknown": [view for view in views if view.figure("p@1") is None or view.exposed() == (None, None)],
    }


def _audits(views: Sequence[RunView]) -> list[dict[str, Any]]:
    """The strongest attacker and the table of every run that was audited."""
    return [
        {"view": view, "look": look, "got": strongest_share(view.audit), "words": strongest_words(view.audit),
         "attacked": attacked(view.audit), "sheet": audit_sheet(view.audit), "remarks": audit_remarks(view.audit)}
        for view, look in zip(views, looks(views)) if view.audit
    ]  # fmt: skip


def _training(views: Sequence[RunView]) -> dict[str, Any]:
    own = "Loss over rounds. Each method has a loss of its own: compare shapes, not heights."
    checked = any(series(view.history, "valid_eer")[0] for view in views)
    thin = " Thin: validation samples." if checked else ""
    right, equal = f"P@1 over rounds.{thin}", f"Equal error rate of the people in training, over rounds.{thin}"
    drawn = panels(
        (figures.curves(views, "p@1", "P@1 (%)", 100, "valid_p@1"), "f-accuracy", right),
        (figures.curves(views, "eer_seen", "EER (%)", 100, "valid_eer"), "f-eer", equal),
        (figures.curves(views, "loss", "Loss (no unit)"), "f-loss", own),
    )
    return {"panels": drawn, "legend": _legend(views), "missing": "No round was recorded."}


def _people(views: Sequence[RunView]) -> dict[str, Any] | None:
    """How often each person is refused, in figures, and the worst tenth by name."""
    known = [(view, look) for view, look in zip(views, looks(views)) if view.people]
    if not known:
        return None
    drawn, rows, worst = [], [], []
    for unseen, name in ((False, "seen"), (True, "unseen")):
        lines = []
        for view, look in known:
            people = [(who, share) for who, new, share in view.people if new == unseen]
            if people:
                shares = [share for _, share in people]
                tenth = people[: -(-len(people) // 10)]
                mean, bad = sum(shares) / len(shares), sum(share for _, share in tenth) / len(tenth)
                locked = sum(share > 0.5 for share in shares)
                rows.append([view.title, f"{name} in training", f"{len(people):,}", percent(mean), percent(bad),
                             f"{locked:,}"])  # fmt: skip
                said = ", ".join(f"{who} ({percent(share, 0)} %)" for who, share in tenth[:_NAMED])
                worst.append((f"{view.title}, {name}", [said + (" …" if len(tenth) > _NAMED else "")]))
                lines.append((shares, len(shares), look))
        caption = f"People {name} in training. Red: the worst tenth; the thick line is its mean."
        drawn.append((figures.refused(lines), f"f-people-{name}", caption))
    sheet = Sheet(("Run", "People", "Number", "Refused %", "Worst tenth %", "Mostly refused"), rows, words=(0, 1))
    return {"sheet": sheet, "panels": panels(*drawn), "legend": _legend(views), "worst": worst}


def _roc(views: Sequence[RunView]) -> dict[str, Any]:
    low = "The same at low false accept rates, where a lock works."
    drawn = panels(
        (figures.run_roc(views, "unseen"), "f-unseen", "Classes never seen in training. Dashed grey: chance."),
        (figures.run_roc(views, "unseen", log=True), "f-unseen-log", low),
        (figures.run_roc(views, "seen"), "f-seen", "Classes seen in training."),
    )
    return {"panels": drawn, "legend": _legend(views), "missing": "No ROC curve was recorded."}


def _legend(views: Sequence[RunView]) -> list[tuple[str, Any]]:
    return [(view.title, look) for view, look in zip(views, looks(views))]


def _space(views: Sequence[RunView]) -> list[tuple[str, str, Any]]:
    """(title, how it was made, the drawing) of every run that has one."""
    known = [(view.title, view.picture) for view in views if view.picture is not None]
    return [(title, picture.how, drawn) for title, picture in known if (drawn := figures.space(picture)) is not None]


def _wires(views: Sequence[RunView]) -> list[dict[str, Any]]:
    """The wire of every run, drawn and as a table."""
    return [
        {"view": view, "look": look, "flow": flow(view), "aggregation": aggregation_of(view) if view.recipe else ""}
        for view, look in zip(views, looks(views))
        if view.wire
    ]


def _facts(views: Sequence[RunView]) -> list[tuple[str, list[str]]]:
    """(fact, what it is), one line where all runs share it, else one per run."""
    found = []
    for key in dict.fromkeys(key for view in views for key in view.facts):
        values = [view.facts.get(key, "–") for view in views]
        each = [f"{view.title}: {value}" for view, value in zip(views, values)]
        found.append((key, values[:1] if len(set(values)) == 1 else each))
    return found
