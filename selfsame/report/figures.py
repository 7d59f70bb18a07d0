"""The figures of the pages. Each function returns a matplotlib Figure, or None where there is nothing to draw."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from selfsame.measure.curves import det, deviate
from selfsame.report.labels import place_labels
from selfsame.report.style import THEME, Look, clean, log_axis, looks, numbered_looks, panel, styled
from selfsame.report.view import Picture, Point, RunView, series

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Plain = dict[str, Any]  # a protocol, or a whole evaluation, as `evaluation.json` has it
Line = tuple[np.ndarray, np.ndarray, Look]

CLASS_COLOURS = (
    "#6b9bd1", "#d9a05b", "#9b87c9", "#7fb08c", "#c98aa4", "#b3a45a", "#68b0b8", "#a88672", "#8d98d8", "#94b55e",
)  # fmt: skip
SIDE = 340  # of the picture of the embedding space, in units of its drawing
_FEWEST = 12  # points that t-SNE is worth
_PERPLEXITY = 20.0  # neighbours that t-SNE keeps near each point, about
LEAKAGE_SIZE = (4.4, 3.7)  # inches
_RATES = (0.001, 0.01, 0.05, 0.2, 0.4, 0.6, 0.8, 0.95)  # marked on the axes of a DET curve
_LEAST = 1e-4  # false accept rate at the left end of a logarithmic axis


@styled
def curves(
    views: Sequence[RunView], key: str, label: str, scale: float = 1.0, validation: str | None = None
) -> Figure | None:
    """One recorded quantity over rounds, every run; thin and hollow the same of validation samples, where there are."""
    from matplotlib.ticker import MaxNLocator

    keys = [(key, False), *([(validation, True)] if validation else [])]
    lines = [(*series(view.history, k), look, thin) for k, thin in keys for view, look in zip(views, looks(views))]
    lines = [line for line in lines if line[0]]
    if not lines:
        return None
    figure, ax = panel(4.4, 3.0)
    for rounds, values, look, thin in lines:
        dot = look.marker if len(rounds) <= 12 else None
        kind: dict[str, Any] = {"lw": 0.9, "mfc": "none", "ms": 5.0} if thin else {"lw": 1.7, "ms": 3.5}
        ax.plot(rounds, scale * np.array(values), marker=dot, clip_on=False, **kind, **look.line)
    every = [value for _, values, _, _ in lines for value in values]
    if min(every) > 0 and max(every) > 100 * min(every):
        log_axis(ax, "y")
    if scale == 100:  # a rate
        ax.set_ylim(top=min(100, ax.get_ylim()[1]))
    ax.set(xlabel="Round", ylabel=label)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


@styled
def run_roc(views: Sequence[RunView], which: str = "unseen", log: bool = False) -> Figure | None:
    """True accept rate against false accept rate; ``log`` shows the left end, where a device operates."""
    lines = []
    for view, look in zip(views, looks(views)):
        fpr, tpr = (np.asarray(values, float) for values in view.roc.get(which, ((), ())))
        if len(fpr) == len(tpr) and len(fpr) > 1 and np.isfinite(fpr).all() and np.isfinite(tpr).all():
            lines.append((fpr, tpr, look))
    if not lines or (log and _smallest(lines) >= 0.5):
        return None
    figure, ax = panel(3.9, 3.0)
    draw_roc(ax, lines, log)
    return figure


def draw_roc(ax: Axes, lines: Sequence[Line], log: bool = True) -> None:
    """Curves of (FPR, TPR) with chance beside them; a logarithmic axis goes down to what the trials support."""
    left = max(_LEAST, min(0.1, _smallest(lines))) if log else 0.0
    chance = np.geomspace(left, 1, 50) if log else np.array([0.0, 1.0])
    ax.plot(100 * chance, 100 * chance, color=THEME["muted"][0], lw=0.8, dashes=(2, 2))
    for fpr, tpr, look in lines:
        inside = fpr >= left
        across, up = np.append(left, fpr[inside]), np.append(np.interp(left, fpr, tpr), tpr[inside])
        place = np.log10(across) / -math.log10(left) if log else across
        spots = np.round(600 * np.stack([place, up]))  # what an eye can tell apart; keep the first point on each spot
        kept = np.r_[True, np.diff(spots).any(0)]
        across, up = np.append(across[kept], across[-1]), np.append(up[kept], up[-1])
        ax.plot(100 * across, 100 * up, lw=1.7, **look.line)
    if log:
        log_axis(ax, "x", [100 * 10.0**k for k in range(-4, 1) if 10.0**k >= left * 0.999])
    across_label = "False accept rate (%)" + (", log scale" if log else "")
    ax.set(xlim=(100 * left, 100), ylim=(0, 102), xlabel=across_label, ylabel="True accept rate (%)")


def _smallest(lines: Sequence[Line]) -> float:
    """The smallest false accept rate above zero."""
    return min((float(fpr[fpr > 0].min()) for fpr, _, _ in lines if (fpr > 0).any()), default=1.0)


@styled
def protocol_roc(protocols: Sequence[tuple[Plain, Look]]) -> Figure:
    """The ROC of evaluated protocols."""
    figure, ax = panel(4.4, 3.3)
    draw_roc(ax, [(*points(protocol), look) for protocol, look in protocols])
    return figure


@styled
def roc_sheet(protocols: Mapping[str, Sequence[tuple[Plain, Look]]], titles: Sequence[str]) -> Figure:
    """One panel per protocol, with a common legend of all runs below: for a file of its own."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    across = min(3, len(protocols))
    down = math.ceil(len(protocols) / across)
    keys = math.ceil(len(titles) / 3)
    height = 3.2 * down + 0.25 * keys + 0.2
    figure = Figure(figsize=(4.2 * across, height))
    places = figure.subplots(down, across, squeeze=False).flat
    for (name, lines), ax in zip(protocols.items(), places):
        draw_roc(ax, [(*points(protocol), look) for protocol, look in lines])
        ax.set_title(name, fontsize=10)
    for ax in places:
        ax.set_visible(False)
    handles = [Line2D([], [], lw=1.7, **look.line) for look in numbered_looks(len(titles))]
    figure.legend(handles, titles, loc="lower center", ncols=3, frameon=False)
    figure.subplots_adjust(0.18 / across, (0.25 * keys + 0.65) / height, 0.99, 1 - 0.3 / height, 0.28, 0.38)
    return figure


def points(protocol: Plain) -> tuple[np.ndarray, np.ndarray]:
    """(FPR, TPR) of a protocol's curve."""
    return np.array(protocol["curve"]["fpr"]), np.array(protocol["curve"]["tpr"])


@styled
def leakage(views: Sequence[RunView]) -> Figure | None:
    """Accuracy against what an attacker gets: measure (17) hollow, the adaptive attacker filled, an arrow between."""
    spots = []
    for view, look in zip(views, looks(views)):
        accuracy, (leak, recovered) = view.figure("p@1"), view.exposed()
        if accuracy is not None and not (leak is None and recovered is None):
            ends = [None if x is None else 100 * x for x in (leak, recovered)]
            spots.append((100 * accuracy, ends[0], ends[1], look, view.title))
    if not spots:
        return None
    inches = LEAKAGE_SIZE[0], LEAKAGE_SIZE[1] + 0.16 * max(0, len(spots) - 12)
    figure, ax = panel(*inches)
    for y, hollow, filled, look, _ in spots:
        if hollow is not None and filled is not None and abs(filled - hollow) > 3:
            ax.annotate(
                "",
                xy=(filled, y),
                xytext=(hollow, y),
                annotation_clip=False,
                arrowprops={"arrowstyle": "-|>", "color": look.colour, "lw": 1.2, "shrinkA": 5, "shrinkB": 5},
            )
        if filled is not None:
            ax.plot(filled, y, look.marker, color=look.colour, ms=8, mec=THEME["page"][0], mew=0.8, clip_on=False)
        if hollow is not None:
            ax.plot(hollow, y, look.marker, ms=10, mfc="none", mec=look.colour, mew=1.5, clip_on=False)
    low, high = min(spot[0] for spot in spots), max(spot[0] for spot in spots)
    room = max(10.0, 0.25 * (high - low)) / 2
    ax.set(xlim=(-4, 104), ylim=(max(-3.0, low - room), min(100.0, high + room)))
    ax.set(xlabel="Class vectors an attacker identifies or recovers (%)", ylabel="P@1 (%), training classes")
    named = [(y, [x for x in (hollow, filled) if x is not None], title) for y, hollow, filled, _, title in spots]
    _label(ax, named, inches)
    return figure


def _label(ax: Axes, spots: list[tuple[float, list[float], str]], inches: Point) -> None:
    """Write each name beside its markers, or farther off at the end of a line."""
    from matplotlib.collections import LineCollection

    size = 72 * (inches[0] - 0.92), 72 * (inches[1] - 0.6)  # points inside the axes
    (x0, x1), (y0, y1) = ax.get_xlim(), ax.get_ylim()

    def place(x: float, y: float) -> Point:
        return (x - x0) / (x1 - x0) * size[0], (y - y0) / (y1 - y0) * size[1]

    marks = [(_short(title, spots), [place(x, y) for x in xs]) for y, xs, title in spots]
    arrows = [(min(p[0] for p in at), at[0][1] - 2, max(p[0] for p in at), at[0][1] + 2) for _, at in marks]
    found = place_labels(marks, size, arrows)
    lines = [[(x / size[0], y / size[1]) for x, y in label.leader] for label in found if label.leader]
    ax.add_collection(LineCollection(lines, colors=THEME["muted"][0], lw=0.7, transform=ax.transAxes, clip_on=False))
    for label in found:
        at = label.box[0] / size[0], (label.box[1] + 2.5) / size[1]
        ax.annotate(clean(label.name), at, xycoords="axes fraction", fontsize=9, annotation_clip=False)


def _short(title: str, spots: list[tuple[float, list[float], str]]) -> str:
    """A title of at most 26 characters; of those that begin alike, the end is kept."""
    if len(title) <= 26:
        return title
    alike = sum(other[:25] == title[:25] for _, _, other in spots) > 1
    return f"{title[:12]}…{title[-13:]}" if alike else title[:25] + "…"


def space(picture: Picture) -> dict[str, Any] | None:
    """The embedding space, for its template: samples by person, unseen ones hollow; prototypes and proxies."""
    parts = [picture.emb, picture.truth, picture.proxy or []]
    everything = np.array([point for part in parts for point in part], float).reshape(-1, 2)
    if not len(everything):
        return None
    low, wide = everything.min(0), max(float(np.ptp(everything, axis=0).max()), 1e-12)
    middle = (1 - np.ptp(everything, axis=0) / wide) / 2

    def placed(points: Sequence[Point]) -> list[Point]:
        flat = (np.array(points, float).reshape(-1, 2) - low) / wide + middle
        return [(12 + (SIDE - 24) * x, 18 + 12 + (SIDE - 24) * (1 - y)) for x, y in flat.tolist()]

    emb, truth, proxy = map(placed, parts)
    groups = _people(picture, emb)
    for kind, said, points in (("proxy", "shared proxy", proxy), ("truth", "true prototype", truth)):
        for number, point in enumerate(points):
            whose = f" of {picture.owner[number]}" if number < len(picture.owner) else ""
            groups.append({"kind": kind, "who": said + whose, "points": [point], "size": 3.4, "colour": ""})
    pairs = [(_spot(a), _spot(b)) for a, b in zip(truth, proxy) if picture.proxy is not None]
    words = "Samples of the test by the network, in two dimensions"
    return {"side": SIDE, "groups": groups, "pairs": pairs, "words": words}


def _people(picture: Picture, emb: Sequence[Point]) -> list[dict[str, Any]]:
    """One group per person: those unseen in training first, under the others."""
    order = {label: number for number, label in enumerate(sorted(set(picture.label)))}
    groups: dict[tuple[bool, int], dict[str, Any]] = {}
    for number, (label, new, point) in enumerate(zip(picture.label, picture.unseen, emb)):
        name = picture.who[number] if number < len(picture.who) else f"class {label}"
        colour = "" if new else CLASS_COLOURS[order[label] % len(CLASS_COLOURS)]
        who = f"{name} ({'never seen' if new else 'seen'} in training)"
        fresh: dict[str, Any] = {
            "kind": "unseen" if new else "seen",
            "who": who,
            "points": [],
            "size": 2.6,
            "colour": colour,
        }
        groups.setdefault((not new, label), fresh)["points"].append(point)
    return [groups[key] for key in sorted(groups)]


def _spot(point: Point) -> str:
    return f"{point[0]:.1f} {point[1]:.1f}"


@styled
def protocol_det(protocols: Sequence[tuple[Plain, Look]]) -> Figure | None:
    """False rejects against false accepts on normal deviate axes."""
    lines = [(*det(*points(protocol)), look) for protocol, look in protocols]
    lines = [line for line in lines if len(line[0]) > 1]
    if not lines:
        return None
    figure, ax = panel(4.4, 3.3)
    ticks = deviate(_RATES)
    low, high = float(deviate([5e-4])[0]), float(deviate([0.97])[0])
    ax.plot([low, high], [low, high], color=THEME["muted"][0], lw=0.8, dashes=(2, 2))
    for across, up, look in lines:
        ax.plot(across, up, lw=1.7, **look.line)
    names = [f"{100 * rate:g}" for rate in _RATES]
    ax.set_xticks(ticks, names)
    ax.set_yticks(ticks, names)
    ax.set(xlim=(low, high), ylim=(low, high), xlabel="False accept rate (%)", ylabel="False reject rate (%)")
    return figure


@styled
def protocol_scores(protocol: Plain) -> Figure:
    """How the scores of genuine and of impostor trials are spread, each adding up to 100 %."""
    figure, ax = panel(3.7, 2.7)
    edges = protocol["histogram"]["edges"]
    for key, slot in (("impostor", 1), ("genuine", 0)):
        count = np.array(protocol["histogram"][key], float)
        colour = THEME[f"s{slot}"][0]
        ax.stairs(100 * count / max(1.0, count.sum()), edges, fill=True, color=colour, alpha=0.35, lw=0)
        ax.stairs(100 * count / max(1.0, count.sum()), edges, color=colour, lw=1.3)
    ax.axvline(protocol["eer"]["threshold"], color=THEME["muted"][0], lw=1.0, dashes=(3, 2))
    ax.set(xlabel="Score (larger is closer)", ylabel="Trials (%)")
    return figure


@styled
def refused(lines: Sequence[tuple[Sequence[float], int, Look]]) -> Figure | None:
    """How often each person is refused, worst first, the worst tenth marked; a line: (shares, people in all, look)."""
    lines = [line for line in lines if len(line[0])]
    if not lines:
        return None
    figure, ax = panel(4.4, 3.0)
    ax.axvspan(0, 10, color=THEME["truth"][0], alpha=0.12, lw=0)
    ax.axhline(50, color=THEME["muted"][0], lw=0.8, dashes=(2, 2))
    for shares, number, look in lines:
        place = 100 * (np.arange(len(shares)) + 0.5) / max(1, number)
        dot = look.marker if len(shares) <= 30 else None
        ax.plot(place, 100 * np.asarray(shares, float), marker=dot, ms=3.5, lw=1.5, clip_on=False, **look.line)
        worst = float(np.mean(shares[: max(1, -(-number // 10))]))
        ax.plot([0, 10], [100 * worst] * 2, lw=3.2, alpha=0.55, color=look.colour, solid_capstyle="butt")
    ax.set(xlim=(0, 100), ylim=(-2, 102), xlabel="People, the worst first (%)", ylabel="Refused (%)")
    return figure


def protocol_users(protocols: Sequence[tuple[Plain, Look]]) -> Figure | None:
    """The same of every listed user of evaluated protocols."""
    return refused(
        [
            ([1 - user["tpr"] for user in protocol["users"]["each"]], protocol["users"]["number"], look)
            for protocol, look in protocols
        ]
    )


def project(
    emb: np.ndarray,
    truth: np.ndarray,
    proxy: np.ndarray | None,
    label: np.ndarray,
    unseen: np.ndarray,
    who: Sequence[str] = (),
    owner: Sequence[str] = (),
    how: str = "pca",
    metric: str = "euclidean",
) -> Picture:
    """Samples (S, D), prototypes (R, D) and proxies (R, D) by the principal components of the samples, or by t-SNE.

    `metric`: by what t-SNE tells who is near, euclidean or cosine. Rows that are not finite are left out. `who` names
    the person of each sample, `owner` of each prototype.
    """
    kept = np.isfinite(emb).all(1)
    whole = np.isfinite(truth).all(1) & (True if proxy is None else np.isfinite(proxy).all(1))
    parts = [emb[kept], truth[whole], *([] if proxy is None else [proxy[whole]])]
    flat = _pca(parts)
    if how == "tsne" and sum(map(len, parts)) >= _FEWEST and np.ptp(np.concatenate(parts), axis=0).any():
        ends = np.cumsum([len(part) for part in parts])[:-1]
        flat = np.split(_tsne(np.concatenate(parts), np.concatenate(flat), metric), ends)
    else:
        how, metric = "pca", "euclidean"
    return Picture(
        emb=_rounded(flat[0]),
        label=label[kept].tolist(),
        unseen=unseen[kept].tolist(),
        truth=_rounded(flat[1]),
        proxy=None if proxy is None else _rounded(flat[2]),
        who=[who[number] for number in np.flatnonzero(kept).tolist()] if len(who) else [],
        owner=[owner[number] for number in np.flatnonzero(whole).tolist()] if len(owner) else [],
        how=how,
        metric=metric,
    )


def _tsne(x_SD: np.ndarray, begin_S2: np.ndarray, metric: str) -> np.ndarray:
    """The points in two dimensions; they begin at these places, so the picture is the same every time."""
    from sklearn.manifold import TSNE

    begin = 1e-4 * begin_S2 / max(float(begin_S2[:, 0].std()), 1e-12)
    perplexity = min(_PERPLEXITY, (len(x_SD) - 1) / 3)
    drawn = TSNE(perplexity=perplexity, init=begin, max_iter=500, random_state=0, metric=metric)
    return np.asarray(drawn.fit_transform(x_SD))


def _pca(parts: list[np.ndarray]) -> list[np.ndarray]:
    base = parts[0] if len(parts[0]) else parts[1]
    if not len(base):
        return [np.zeros((0, 2)) for _ in parts]
    mean = base.mean(0)
    axes = np.linalg.svd(base - mean, full_matrices=False)[2][:2]
    axes = axes * np.sign(axes[np.arange(len(axes)), np.abs(axes).argmax(1)])[:, None]  # the SVD leaves the sign open
    axes = np.vstack([axes, np.zeros((2 - len(axes), base.shape[1]))])
    return [(part - mean) @ axes.T for part in parts]


def _rounded(rows: np.ndarray) -> list[Point]:
    return [(round(float(x), 5), round(float(y), 5)) for x, y in rows]
