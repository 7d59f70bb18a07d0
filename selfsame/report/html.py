"""The report: one HTML file that asks nothing of the network, runs no script, and reads well in light and dark."""

from __future__ import annotations

import html
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from selfsame.report import figures
from selfsame.report.table import HEADINGS, NOTE, arrow, cells
from selfsame.report.view import RunView, percent

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEVEL = 0.005  # two rates closer than half a point are called level: one run cannot tell them apart
NUMBERS = ("No", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine", "Ten", "Eleven", "Twelve")

REMEDIES = {
    "collapsed": "Every class ended at nearly the same place, so its other figures mean nothing. Give the term that "
    "pushes classes apart more weight, lower the learning rate, or start from a pretrained network.",
    "diverged": "The loss is no longer a finite number. Lower the learning rate, clip gradients, or turn off reduced "
    "precision, then start again from the last good checkpoint.",
    "gap": "Measure (17) understates what this method gives away. Judge it by the recovered share, and do not call its "
    "proxies anonymous.",
}

TWO_FIGURES = (
    "The hollow marker is FedHide's measure (17): the share of shared vectors whose nearest true prototype is their "
    "own, for an attacker who only looks. The filled marker is the share of true prototypes that an attacker who knows "
    "the method and undoes it recovers: the arrow leads to the figure to rely on."
)
ZERO = (
    "Runs with both markers at 0 share no class vector in the clear. Zero speaks of class vectors only: network "
    "updates can be attacked by other means."
)


def write_report(views: Sequence[RunView], path: str | os.PathLike[str], title: str) -> Path:
    """Write the report of these runs; a reader of ``path`` sees the old file or the new one, never half of it."""
    path = Path(path)
    page = render(views, title)
    handle, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(page)
        os.chmod(draft, 0o644)
        os.replace(draft, path)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise
    return path


def render(views: Sequence[RunView], title: str) -> str:
    """The whole page."""
    sections = [
        ("results", "Results", _results(views)),
        ("warnings", "Warnings", _warnings(views)),
        ("leakage", "Accuracy against leakage", _leakage(views)),
        ("training", "Training", _training(views)),
        ("roc", "Telling people apart", _roc(views)),
        ("space", "The embedding space", _space(views)),
        ("wire", "Who sees what", _wire(views)),
        ("recipes", "Recipes", _recipes(views)),
        ("facts", "Facts", _facts(views)),
    ]
    shown = [section for section in sections if section[2]]
    nav = "".join(f'<a href="#{name}">{text(heading)}</a>' for name, heading, _ in shown)
    body = "".join(f'<section id="{name}"><h2>{text(heading)}</h2>{inner}</section>' for name, heading, inner in shown)
    lead = "".join(f"<p>{sentence}</p>" for sentence in headline(views))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
        'img-src data:">\n<meta name="color-scheme" content="light dark">\n'
        f"<title>{text(title)}</title>\n<style>{_css()}</style>\n</head>\n<body>\n"
        f'<header><div class="brand">selfsame</div><h1>{text(title)}</h1><div class="lead">{lead}</div></header>\n'
        f"<nav>{nav}</nav>\n<main>\n{body}\n</main>\n"
        "<footer>Written by selfsame. This file holds everything it shows.</footer>\n</body>\n</html>\n"
    )


def text(words: object) -> str:
    """Words made safe for element content and quoted attributes."""
    lines = str(words).replace("\r\n", "\n").replace("\t", "    ").split("\n")
    return html.escape("\n".join(figures.clean(line) for line in lines), quote=True)


def headline(views: Sequence[RunView]) -> list[str]:
    """What was compared on what, who wins, who gave what away: escaped sentences."""
    if not views:
        return ["There is no run to report."]
    said = [_compared(views)]
    sound = [(rate, view) for view in views if (rate := view.figure("p@1")) is not None and not view.collapsed]
    if sound:
        said.append(_winner(sound, alone=len(views) == 1))
    lost = [view for view in views if view.collapsed or view.diverged]
    if lost:
        said.append(f"{_names(lost)} did not train: see the warnings before reading {_its(lost)} figures.")
    said += _exposure(views)
    return [sentence.replace(" %", "\u00a0%") for sentence in said]


def _compared(views: Sequence[RunView]) -> str:
    count = NUMBERS[len(views)] if len(views) < len(NUMBERS) else str(len(views))
    data = {view.facts.get("data", "") for view in views}
    on = f" on <b>{text(data.pop())}</b>" if len(data) == 1 and "" not in data else ""
    ends = {view.history[-1].get("round") for view in views if view.history}
    after = f", after {text(ends.pop())} rounds" if len(ends) == 1 and None not in ends else ""
    what = f"{_names(views)} was trained" if len(views) == 1 else f"{count} runs were compared"
    return f"{what}{on}{after}."


def _winner(sound: list[tuple[float, RunView]], alone: bool) -> str:
    best = max(rate for rate, _ in sound)
    level = [view for rate, view in sound if best - rate < LEVEL]
    eer = level[0].figure("eer")
    extra = f" (equal error rate on unseen people {percent(eer)} %)" if eer is not None and len(level) == 1 else ""
    if alone:
        return f"It finds the right person first for {percent(best)} % of new samples{extra}."
    if len(level) == 1:
        return (
            f"{_names(level)} tells the people it was trained with apart best: "
            f"the right one comes first for {percent(best)} % of new samples{extra}."
        )
    return f"{_names(level)} tell the people they were trained with apart best, level at {percent(best)} % P@1."


def _exposure(views: Sequence[RunView]) -> list[str]:
    said = []
    silent = [view for view in views if view.exposed() == (0.0, 0.0) and not view.shares_class_vector]
    if silent:
        verb = "shares" if len(silent) == 1 else "share"
        said.append(f"{_names(silent)} {verb} no class vector in the clear.")
    rates = [(view, *view.exposed()) for view in views if view not in silent]
    worst = [view for view, leak, recovered in rates if max(leak or 0.0, recovered or 0.0) >= 0.5]
    hidden = [view for view in worst if _understated(view)]
    open_ = [view for view in worst if view not in hidden]
    if open_:
        said.append(f"{_names(open_)} gave away the class vectors of at least half of the clients.")
    for view in hidden:
        leak, recovered = view.exposed()
        said.append(
            f"{_names([view])} looks private by the paper's measure ({percent(leak, 0)} %), "
            f"but an adaptive attacker recovers {percent(recovered, 0)} % of the true prototypes."
        )
    return said


def _understated(view: RunView) -> bool:
    leak, recovered = view.exposed()
    return leak is not None and recovered is not None and recovered - leak > 0.2


def _names(views: Sequence[RunView]) -> str:
    names = [f"<b>{text(view.title)}</b>" for view in views]
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]


def _its(views: Sequence[RunView]) -> str:
    return "its" if len(views) == 1 else "their"


def _results(views: Sequence[RunView]) -> str:
    if not views:
        return ""
    sound = [view for view in views if not view.collapsed]
    best = {}
    for column, name, pick in ((1, "p@1", max), (2, "auroc", max), (3, "eer", min)):
        rates = [rate for view in sound if (rate := view.figure(name)) is not None]
        best[column] = percent(pick(rates)) if len(rates) > 1 else None
    rows = []
    for view, look in zip(views, figures.looks(views)):
        row = cells(view)
        marks = "".join(
            f' <span class="bad">{mark}</span>'
            for mark, applies in (("collapsed", view.collapsed), ("diverged", view.diverged))
            if applies
        )
        out = [f'<th scope="row">{figures.swatch(look)}<span>{text(row[0])}{marks}</span></th>']
        for column in range(1, 6):
            strong = ' class="n best"' if row[column] == best.get(column) and not view.collapsed else ' class="n"'
            out.append(
                f'<td{strong} data-label="{text(HEADINGS[column])}"><span>{row[column]}{_bar(view, column)}</span></td>'
            )
        left = "".join(f"<span>{text(arrow(what))}</span>" for what in view.left) or "<span>nothing</span>"
        out.append(f'<td class="left" data-label="{HEADINGS[6]}"><div>{left}</div></td>')
        out.append(f'<td class="n" data-label="{HEADINGS[7]}">{row[7]}</td>')
        rows.append(f"<tr>{''.join(out)}</tr>")
    head = "".join(
        f'<th scope="col"{"" if heading in ("Method", "Left the device") else " class=n"}>{text(heading)}</th>'
        for heading in HEADINGS
    )
    return (
        f'<table class="results"><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table>'
        f'<p class="note">{text(NOTE)}</p>'
    )


def _bar(view: RunView, column: int) -> str:
    """A thin bar behind accuracy and the recovered share, for the eye."""
    name = {1: "p@1", 5: "recovered"}.get(column)
    rate = None if name is None else view.figure(name)
    if rate is None:
        return ""
    return f'<i class="bar {"risk" if column == 5 else ""}" style="--v:{min(1.0, max(0.0, rate)):.3f}"></i>'


def _warnings(views: Sequence[RunView]) -> str:
    items = []
    for view in views:
        found = [(warning, REMEDIES["collapsed"] if "collaps" in warning.lower() else "") for warning in view.warnings]
        if view.collapsed and not any(remedy for _, remedy in found):
            found.append((f"collapsed: mean cosine between classes {view.figure('spread'):.2f}", REMEDIES["collapsed"]))
        if view.diverged:
            found.append(("diverged", REMEDIES["diverged"]))
        if _understated(view):
            leak, recovered = view.exposed()
            words = f"recovered {percent(recovered, 0)} %, while measure (17) says {percent(leak, 0)} %"
            found.append((words, REMEDIES["gap"]))
        items += [
            f"<li><b>{text(view.title)}</b>: {text(words)}{f'<br><span>{text(remedy)}</span>' if remedy else ''}</li>"
            for words, remedy in found
        ]
    return f'<ul class="warnings">{"".join(items)}</ul>' if items else ""


def _legend(views: Sequence[RunView]) -> str:
    keys = "".join(
        f"<li>{figures.swatch(look)}{text(view.title)}</li>" for view, look in zip(views, figures.looks(views))
    )
    return f'<ul class="legend">{keys}</ul>'


def _figure(figure: Figure | None, name: str, caption: str) -> str:
    if figure is None:
        return ""
    return f"<figure>{figures.svg(figure, name, caption)}<figcaption>{text(caption)}</figcaption></figure>"


def _grid(views: Sequence[RunView], panels: Sequence[str], missing: str) -> str:
    shown = "".join(panels)
    three = " three" if sum(map(bool, panels)) == 3 else ""
    return (
        f'{_legend(views)}<div class="grid{three}">{shown}</div>' if shown else f'<p class="note">{text(missing)}</p>'
    )


def _training(views: Sequence[RunView]) -> str:
    accuracy = figures.curves(views, "p@1", "P@1 (%)", scale=100)
    loss = figures.curves(views, "loss", "Loss (no unit)")
    panels = [
        _figure(accuracy, "f-accuracy", "P@1 over rounds."),
        _figure(loss, "f-loss", "Loss over rounds. Each method has a loss of its own: compare shapes, not heights."),
    ]
    return _grid(views, panels, "No round was recorded.")


def _roc(views: Sequence[RunView]) -> str:
    panels = [
        _figure(figures.roc(views, "unseen"), "f-unseen", "Classes never seen in training. Dashed grey: chance."),
        _figure(
            figures.roc(views, "unseen", log=True),
            "f-unseen-log",
            "The same at low false accept rates, where a lock works.",
        ),
        _figure(figures.roc(views, "seen"), "f-seen", "Classes seen in training."),
    ]
    return _grid(views, panels, "No ROC curve was recorded.")


def _leakage(views: Sequence[RunView]) -> str:
    figure = figures.leakage(views)
    if figure is None:
        return '<p class="note">Accuracy and leakage were not both measured.</p>'
    unknown = [view for view in views if view.figure("p@1") is None or view.exposed() == (None, None)]
    not_drawn = f'<p class="note">Not measured, hence not drawn: {_names(unknown)}.</p>' if unknown else ""
    shared = [(v.title, v.figure("p@1"), v.figure("p@1_shared")) for v in views]
    rates = [
        f"{title} {percent(by)} in place of {percent(own)} %" for title, own, by in shared if by not in (None, own)
    ]
    by_others = (
        f'<p class="note">{text("P@1 by what others see of a class: " + "; ".join(rates))}.</p>' if rates else ""
    )
    key = (
        '<ul class="legend"><li><i class="dot hollow"></i>measure (17)</li>'
        '<li><i class="dot"></i>adaptive attacker</li></ul>'
    )
    caption = "Top left is best: accurate, and nothing given away."
    return (
        f'<div class="aside">{_figure(figure, "f-leakage", caption)}'
        f"<div>{key}<p>{text(TWO_FIGURES)}</p>"
        f'<p class="note">{text(ZERO)}</p>{by_others}{not_drawn}</div></div>'
    )


def _space(views: Sequence[RunView]) -> str:
    panels = [
        _figure(figures.space(view.picture), f"f-space-{number}", view.title)
        for number, view in enumerate(views)
        if view.picture is not None
    ]
    if not any(panels):
        return ""
    hows = {view.picture.how for view in views if view.picture is not None}
    how = "t-SNE by cosine" if hows == {"tsne"} else "PCA" if hows == {"pca"} else "PCA or t-SNE"
    key = (
        '<ul class="legend"><li><i class="dot truth"></i>true prototype</li>'
        '<li><i class="dot proxy"></i>shared proxy</li>'
        '<li><i class="dash"></i>belong together</li><li><i class="dot sample"></i>sample, coloured by class</li>'
        '<li><i class="dot unseen"></i>sample of an unseen class</li></ul>'
    )
    note = f"{how}. Distances in two dimensions are a hint, not a measure."
    return f'{key}<div class="grid three">{"".join(panels)}</div><p class="note">{note}</p>'


def _wire(views: Sequence[RunView]) -> str:
    shown = []
    for view, look in zip(views, figures.looks(views)):
        rows = "".join(
            f'<tr><th scope="row">{text(name)}</th><td>{text(way)}</td>'
            f"<td>{_sight(who, way)}</td><td>{text(what)}</td></tr>"
            for name, way, who, what in view.wire
        )
        if rows:
            columns = ("Field", "Way", "Seen by", "What it is")
            head = "".join(f'<th scope="col">{column}</th>' for column in columns)
            shown.append(
                f'<div class="card"><h3>{figures.swatch(look)}{text(view.title)}</h3>'
                f'<table class="wire"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
            )
    return f'<div class="grid">{"".join(shown)}</div>' if shown else ""


def _sight(who: str, way: str) -> str:
    name = {"everyone": "public", "clients": "public"}.get(who.lower(), who.lower())
    known = name if name in ("device", "enclave", "server", "public") else "other"
    return f'<span class="sight {known}{" leaves" if way == "up" else ""}">{text(who.lower())}</span>'


def _recipes(views: Sequence[RunView]) -> str:
    return "".join(
        f"<details><summary>{text(view.title)}</summary><pre>{text(view.recipe)}</pre></details>"
        for view in views
        if view.recipe
    )


def _facts(views: Sequence[RunView]) -> str:
    keys = list(dict.fromkeys(key for view in views for key in view.facts))
    rows = []
    for key in keys:
        values = [view.facts.get(key, "–") for view in views]
        if len(set(values)) == 1:
            said = text(values[0])
        else:
            said = "<br>".join(f"{text(view.title)}: {text(value)}" for view, value in zip(views, values))
        rows.append(f"<dt>{text(key)}</dt><dd>{said}</dd>")
    return f"<dl>{''.join(rows)}</dl>" if rows else ""


def _css() -> str:
    light = ";".join(f"--{name}:{pair[0]}" for name, pair in figures.THEME.items())
    dark = ";".join(f"--{name}:{pair[1]}" for name, pair in figures.THEME.items())
    return (
        f":root{{color-scheme:light dark;{light};--card:#f6f7f9;--line:#dfe3e8;--bad:#b3261e;--tint:#fdecea}}"
        f"@media(prefers-color-scheme:dark){{:root{{{dark};--card:#1b2027;--line:#2f3742;--bad:#ff8a80;--tint:#3a1f1f}}}}"
        + CSS
    )


CSS = """
*{box-sizing:border-box}
html{scroll-behavior:smooth;-webkit-text-size-adjust:100%}
body{margin:0;background:var(--page);color:var(--ink);
  font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
header,nav,main,footer{max-width:1080px;margin:0 auto;padding:0 20px}
header{padding-top:44px}
.brand{font-weight:600;letter-spacing:.02em;color:var(--muted)}
h1{font-size:clamp(1.7rem,4.5vw,2.5rem);line-height:1.15;letter-spacing:-.02em;margin:.15em 0 .5em;
  overflow-wrap:anywhere}
.lead{font-size:1.08rem;max-width:46em}
.lead p{margin:.35em 0;overflow-wrap:anywhere}
nav{display:flex;flex-wrap:wrap;gap:4px 18px;padding-top:18px;padding-bottom:14px;font-size:.9rem}
nav a{color:var(--muted);text-decoration:none;border-bottom:1px solid transparent;padding:3px 0}
nav a:hover,nav a:focus{color:var(--ink);border-color:currentColor}
section{border-top:1px solid var(--line);padding:26px 0 30px}
h2{font-size:1.25rem;letter-spacing:-.01em;margin:0 0 14px}
h3{font-size:1rem;margin:0 0 8px;display:flex;align-items:center;gap:9px;overflow-wrap:anywhere}
.note{color:var(--muted);font-size:.88rem;max-width:60em}
table{border-collapse:collapse;width:100%;font-size:.92rem}
th,td{text-align:left;vertical-align:top;padding:9px 12px 9px 0;border-bottom:1px solid var(--line)}
thead th{font-size:.8rem;font-weight:600;color:var(--muted);vertical-align:bottom;line-height:1.25}
tbody tr:last-child>*{border-bottom:0}
.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap;padding-right:18px}
thead .n{white-space:normal;max-width:7em}
.results tbody th{font-weight:600;overflow-wrap:anywhere}
.results tbody th .key{margin:0 9px 1px 0;vertical-align:middle}
.results .best{font-weight:700}
.bar{display:block;width:52px;margin:3px 0 0 auto;height:3px;border-radius:2px;
  background:linear-gradient(90deg,var(--muted) calc(100%*var(--v)),var(--line) 0)}
.bar.risk{background:linear-gradient(90deg,var(--bad) calc(100%*var(--v)),var(--line) 0)}
.results .left{width:27%}
.left span{display:block;font-size:.85rem;color:var(--muted);line-height:1.4}
.bad{display:inline-block;color:var(--bad);background:var(--tint);border-radius:4px;padding:0 7px;font-size:.8rem;
  font-weight:700}
.key{width:34px;height:14px;flex:none}
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:5px 20px;margin:0 0 14px;padding:0;font-size:.88rem}
.legend li{display:flex;align-items:center;gap:8px;overflow-wrap:anywhere}
.grid{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,400px),1fr));gap:24px 28px}
.grid.three{grid-template-columns:repeat(auto-fill,minmax(min(100%,300px),1fr))}
.aside{display:grid;grid-template-columns:minmax(0,1.5fr) minmax(0,1fr);gap:24px 32px;align-items:center}
figure{margin:0;min-width:0;max-width:620px}
figure svg{display:block;width:100%;height:auto;overflow:visible}
figure svg text{font-family:inherit!important}
figcaption{font-size:.88rem;color:var(--muted);margin-top:6px;overflow-wrap:anywhere}
.dot,.dash{display:inline-block;flex:none;width:11px;height:11px;border-radius:50%;background:currentColor}
.dot.hollow{background:none;border:2px solid currentColor}
.dot.truth{background:var(--truth)}
.dot.proxy{background:var(--proxy);border-radius:1px}
.dot.sample{background:#6b9bd1;width:8px;height:8px}
.dot.unseen{background:none;border:1.5px solid #8e97a3;width:8px;height:8px}
.dash{width:22px;height:0;border-radius:0;background:none;border-top:2px dashed var(--muted)}
.card{background:var(--card);border-radius:10px;padding:16px 18px 8px;min-width:0;overflow-x:auto}
.wire{font-size:.86rem}
.wire th,.wire td{padding:6px 12px 6px 0;overflow-wrap:break-word}
.wire tbody th{font-weight:600}
.sight{border-radius:4px;padding:1px 7px;border:1px solid var(--line);white-space:nowrap}
.sight.server.leaves{border-color:currentColor}
.sight.public.leaves{color:var(--bad);border-color:currentColor;font-weight:600}
.sight.device,.sight.enclave{color:var(--muted)}
.warnings{list-style:none;margin:0;padding:0}
.warnings li{border-left:3px solid var(--bad);background:var(--tint);border-radius:0 6px 6px 0;padding:9px 14px;
  margin:0 0 10px;overflow-wrap:anywhere}
.warnings span{font-size:.92rem}
details{border-bottom:1px solid var(--line)}
summary{cursor:pointer;padding:9px 0;font-weight:600;overflow-wrap:anywhere}
pre{background:var(--card);border-radius:8px;padding:14px 16px;margin:0 0 14px;overflow-x:auto;
  font:.84rem/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
dl{display:grid;grid-template-columns:minmax(7em,auto) 1fr;gap:5px 22px;margin:0;font-size:.92rem}
dt{color:var(--muted)}
dd{margin:0;overflow-wrap:anywhere}
footer{color:var(--muted);font-size:.85rem;padding-bottom:40px}
@media(max-width:760px){
header{padding-top:26px}
.aside{grid-template-columns:minmax(0,1fr)}
.results thead{display:none}
.results,.results tbody,.results tr,.results th,.results td{display:block;width:auto}
.results tr{background:var(--card);border-radius:10px;padding:12px 16px;margin:0 0 12px}
.results tbody tr>*{border:0;padding:4px 0}
.results tbody td{display:flex;justify-content:space-between;gap:20px;padding:4px 0}
.results tbody td::before{content:attr(data-label);color:var(--muted);font-weight:400}
.results .left{text-align:right;width:auto}
.bar{display:none}
}
@media print{nav{display:none}section{break-inside:avoid}}
"""
