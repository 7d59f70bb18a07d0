"""The figures of a report. Each function returns a matplotlib Figure, or None where there is nothing to draw.

Figures are made with the object interface and a style that is restored afterwards, so that importing or calling this
module changes nothing for a user of pyplot. `svg` turns one into markup whose colours follow the page's theme.
"""

from __future__ import annotations

import io
import math
import re
import warnings
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import numpy as np

from selfsame.errors import SelfsameError
from selfsame.report.view import Picture, Point, RunView, series

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

P = ParamSpec("P")
T = TypeVar("T")

# CSS name -> (on white, on black). The eight series were searched for the largest smallest distance in OKLab under
# normal, deuteran, protan and tritan sight, at a contrast of 3:1 or more; dashes and markers tell them apart as well.
THEME: dict[str, tuple[str, str]] = {
    "ink": ("#1b2430", "#e6e9ee"),
    "muted": ("#5b6675", "#a0a9b6"),
    "grid": ("#e3e7ec", "#2c333d"),
    "page": ("#fefefe", "#14181d"),
    "s0": ("#3190fd", "#2777f8"),
    "s1": ("#f0502d", "#ee9300"),
    "s2": ("#6f937d", "#23d699"),
    "s3": ("#6e0a5d", "#c67dc1"),
    "s4": ("#473715", "#f0e012"),
    "s5": ("#541fbd", "#b7c7f9"),
    "s6": ("#036885", "#4e7c79"),
    "s7": ("#9b423d", "#da3b13"),
    # truth and proxy: the red circles and green squares of FedHide's supplement
    "truth": ("#d62f1f", "#ff6a55"),
    "proxy": ("#009e73", "#2fd6a3"),
}
SERIES = 8
SLOT = {"fedhide": 0, "fedaws": 1, "feduv": 2, "fedmetric": 3, "fdml": 4, "fedgn": 5, "fedcs": 6}
DASHES = ((), (5, 2), (1.5, 1.5), (7, 2, 1.5, 2))
MARKERS = ("o", "s", "D", "^", "v", "P", "X", "p")
CLASS_COLOURS = (
    "#6b9bd1",
    "#d9a05b",
    "#9b87c9",
    "#7fb08c",
    "#c98aa4",
    "#b3a45a",
    "#68b0b8",
    "#a88672",
    "#8d98d8",
    "#94b55e",
)
UNSEEN = "#8e97a3"
LEAKAGE_SIZE = (4.6, 3.7)  # inches

STYLE = {
    "font.size": 9,
    "axes.edgecolor": THEME["muted"][0],
    "axes.labelcolor": THEME["ink"][0],
    "axes.titlecolor": THEME["ink"][0],
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": THEME["grid"][0],
    "grid.linewidth": 0.8,
    "text.color": THEME["ink"][0],
    "xtick.color": THEME["muted"][0],
    "ytick.color": THEME["muted"][0],
    "text.parse_math": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "selfsame",
    "axes.formatter.use_mathtext": False,
}


@dataclass(frozen=True)
class Look:
    """How one run is drawn in every figure."""

    slot: int
    dashes: tuple[float, ...]
    marker: str

    @property
    def colour(self) -> str:
        return THEME[f"s{self.slot}"][0]


def looks(views: Sequence[RunView]) -> list[Look]:
    """A look for each run: the colour and marker say the method, the dashes which of its runs."""
    free = [slot for slot in range(SERIES - 1, -1, -1) if slot not in {SLOT.get(view.method.lower()) for view in views}]
    slots: dict[str, int] = {}
    runs: dict[str, int] = {}
    found = []
    for view in views:
        name = view.method.lower()
        if name not in slots:
            slots[name] = SLOT[name] if name in SLOT else free.pop(0) if free else len(slots) % SERIES
        turn = runs[name] = runs.get(name, -1) + 1
        found.append(
            Look(slots[name], DASHES[turn % len(DASHES)], MARKERS[(slots[name] + turn // len(DASHES)) % SERIES])
        )
    return found


@contextmanager
def _style() -> Iterator[None]:
    import matplotlib.style

    with matplotlib.style.context(STYLE, after_reset=True):
        yield


def _styled(draw: Callable[P, T]) -> Callable[P, T]:
    @wraps(draw)
    def inside(*args: P.args, **kwargs: P.kwargs) -> T:
        with _style():
            return draw(*args, **kwargs)

    return inside


def _panel(width: float, height: float) -> tuple[Figure, Axes]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    # Room for labels of up to seven digits: to let matplotlib measure them would take as long as to draw the figure.
    figure.subplots_adjust(0.72 / width, 0.46 / height, 1 - 0.2 / width, 1 - 0.14 / height)
    return figure, figure.add_subplot()


@_styled
def curves(views: Sequence[RunView], key: str, label: str, scale: float = 1.0) -> Figure | None:
    """One recorded quantity over rounds, every run."""
    from matplotlib.ticker import MaxNLocator

    lines = [(*series(view.history, key), look) for view, look in zip(views, looks(views))]
    lines = [line for line in lines if line[0]]
    if not lines:
        return None
    figure, ax = _panel(4.7, 3.0)
    for rounds, values, look in lines:
        dot = look.marker if len(rounds) <= 12 else None
        ax.plot(rounds, scale * np.array(values), color=look.colour, dashes=look.dashes, marker=dot, ms=3.5, lw=1.7)
    every = [value for _, values, _ in lines for value in values]
    if min(every) > 0 and max(every) > 100 * min(every):
        ax.set_yscale("log")
    elif scale == 100:
        ax.set_ylim(top=min(102, ax.get_ylim()[1]))
    ax.set_xlabel("Round")
    ax.set_ylabel(label)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


@_styled
def roc(views: Sequence[RunView], which: str = "unseen", log: bool = False) -> Figure | None:
    """True accept rate against false accept rate; ``log`` shows the left end, where a device operates."""
    lines = []
    for view, look in zip(views, looks(views)):
        fpr, tpr = (np.asarray(values, float) for values in view.roc.get(which, ((), ())))
        if len(fpr) == len(tpr) and len(fpr) > 1 and np.isfinite(fpr).all() and np.isfinite(tpr).all():
            lines.append((fpr, tpr, look))
    smallest = min((float(fpr[fpr > 0].min()) for fpr, _, _ in lines if (fpr > 0).any()), default=1.0)
    if not lines or (log and smallest >= 0.5):
        return None
    figure, ax = _panel(3.9, 3.0)
    left = 10.0 ** max(-4, math.floor(math.log10(smallest))) if log else 0.0
    chance = np.geomspace(left, 1, 50) if log else np.array([0.0, 1.0])
    ax.plot(100 * chance, 100 * chance, color=THEME["muted"][0], lw=0.8, dashes=(2, 2))
    for fpr, tpr, look in lines:
        across = np.log10(np.maximum(fpr, left)) / -math.log10(left) if log else fpr
        spots = np.round(600 * np.stack([across, tpr]))  # what an eye can tell apart; keep the first point on each spot
        kept = np.r_[True, np.diff(spots).any(0)]
        fpr, tpr = np.append(fpr[kept], fpr[-1]), np.append(tpr[kept], tpr[-1])
        ax.plot(100 * fpr, 100 * tpr, color=look.colour, dashes=look.dashes, lw=1.7)
    if log:
        ax.set_xscale("log")
        ax.set_xticks(ticks := [100 * 10.0**k for k in range(round(math.log10(left)), 1)], [f"{t:g}" for t in ticks])
    ax.set_xlim(100 * left, 100)
    ax.set_ylim(0, 102)
    ax.set_xlabel("False accept rate (%)" + (", log scale" if log else ""))
    ax.set_ylabel("True accept rate (%)")
    return figure


@_styled
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
    figure, ax = _panel(*LEAKAGE_SIZE)
    for y, hollow, filled, look, _ in spots:
        if hollow is not None and filled is not None and abs(filled - hollow) > 3:
            ax.annotate(
                "",
                xy=(filled, y),
                xytext=(hollow, y),
                arrowprops={"arrowstyle": "-|>", "color": look.colour, "lw": 1.2, "shrinkA": 5, "shrinkB": 5},
            )
        if filled is not None:
            ax.plot(filled, y, look.marker, color=look.colour, ms=8, mec=THEME["page"][0], mew=0.8, clip_on=False)
        if hollow is not None:
            ax.plot(hollow, y, look.marker, ms=10, mfc="none", mec=look.colour, mew=1.5, clip_on=False)
    low, high = min(spot[0] for spot in spots), max(spot[0] for spot in spots)
    room = max(10.0, 0.25 * (high - low)) / 2
    ax.set_xlim(-4, 104)
    ax.set_ylim(max(-3.0, low - room), min(103.0, high + room))
    ax.set_xlabel("Class vectors an attacker identifies or recovers (%)")
    ax.set_ylabel("P@1 (%), training classes")
    _label(ax, [(y, [x for x in (hollow, filled) if x is not None], title) for y, hollow, filled, _, title in spots])
    return figure


def _label(ax: Axes, spots: list[tuple[float, list[float], str]]) -> None:
    """Write each name beside its markers, where it covers the least of what is already there."""
    width, height = 0.86 * 72 * LEAKAGE_SIZE[0], 0.84 * 72 * LEAKAGE_SIZE[1]  # points inside the axes, nearly
    (x0, x1), (y0, y1) = ax.get_xlim(), ax.get_ylim()

    def place(x: float, y: float) -> Point:
        return (x - x0) / (x1 - x0) * width, (y - y0) / (y1 - y0) * height

    taken = [(px - 6, py - 6, px + 6, py + 6) for y, xs, _ in spots for px, py in (place(x, y) for x in xs)]
    for y, xs, _ in spots:
        (left, at), (right, _) = place(min(xs), y), place(max(xs), y)
        taken.append((left, at - 1, right, at + 1))
    for y, xs, title in spots:
        name = title if len(title) <= 26 else title[:25] + "…"
        long = 5.0 * len(name)
        beside = [(9, -3), (-9 - long, -3), (-long / 2, 9), (-long / 2, -16)]
        beside += [(side, up) for up in (9, -16, 20, -27, 31, -38) for side in (4, -long - 4)]
        options = []
        for x in reversed(xs):
            px, py = place(x, y)
            for rank, (dx, dy) in enumerate(beside):
                box = (px + dx, py + dy, px + dx + long, py + dy + 9)
                outside = max(0, -box[0]) + max(0, box[2] - width - 8) + max(0, -box[1]) + max(0, box[3] - height)
                cost = rank + (10 if rank > 3 else 0) + sum(_overlap(box, other) for other in taken) + 40 * outside
                options.append((cost, x, (dx, dy), box))
        _, x, offset, box = min(options)
        taken.append(box)
        ax.annotate(clean(name), (x, y), offset, textcoords="offset points", fontsize=8.5, annotation_clip=False)


def _overlap(a: tuple[float, ...], b: tuple[float, ...]) -> float:
    return max(0.0, min(a[2], b[2]) - max(a[0], b[0])) * max(0.0, min(a[3], b[3]) - max(a[1], b[1]))


@_styled
def space(picture: Picture) -> Figure | None:
    """The embedding space: samples by class, unseen ones hollow; prototypes red circles, proxies green squares."""
    emb = np.asarray(picture.emb, float).reshape(-1, 2)
    truth = np.asarray(picture.truth, float).reshape(-1, 2)
    if not len(emb) and not len(truth):
        return None
    figure, ax = _panel(3.7, 3.5)
    label, unseen = np.asarray(picture.label, int), np.asarray(picture.unseen, bool)
    tint = np.array(CLASS_COLOURS)[np.unique(label, return_inverse=True)[1] % len(CLASS_COLOURS)]
    seen = emb[~unseen]
    ax.scatter(seen[:, 0], seen[:, 1], s=9, c=tint[~unseen], lw=0, alpha=0.75, rasterized=True, zorder=2)
    rest = emb[unseen]
    ax.scatter(rest[:, 0], rest[:, 1], s=9, facecolors="none", edgecolors=UNSEEN, lw=0.7, rasterized=True, zorder=1.9)
    edge: dict[str, Any] = {"mec": THEME["page"][0], "mew": 0.8, "ls": "none", "zorder": 4}
    if picture.proxy is not None:  # squares larger than circles: a proxy that is the truth still shows its rim
        proxy = np.asarray(picture.proxy, float).reshape(-1, 2)
        for a, b in zip(truth, proxy):
            ax.plot([a[0], b[0]], [a[1], b[1]], color=THEME["muted"][0], lw=0.9, dashes=(3, 2), zorder=3)
        ax.plot(proxy[:, 0], proxy[:, 1], "s", color=THEME["proxy"][0], ms=8, **edge)
    ax.plot(truth[:, 0], truth[:, 1], "o", color=THEME["truth"][0], ms=5.5, **edge)
    ax.set_xticks([])
    ax.set_yticks([])
    ax.grid(False)
    axis = "Principal component" if picture.how == "pca" else "t-SNE axis"
    ax.set_xlabel(f"{axis} 1 (no unit)")
    ax.set_ylabel(f"{axis} 2 (no unit)")
    return figure


def project(
    emb: np.ndarray,
    truth: np.ndarray,
    proxy: np.ndarray | None = None,
    how: str = "pca",
    *,
    label: Sequence[int] | np.ndarray | None = None,
    unseen: Sequence[bool] | np.ndarray | None = None,
    most: int = 1500,
    seed: int = 0,
) -> Picture:
    """Samples (S, D), prototypes (R, D) and proxies (R, D) in two dimensions.

    PCA is fitted to the samples; t-SNE compares all of them by cosine. At most ``most`` samples are kept, the same ones
    for the same seed, and rows that are not finite are left out.
    """
    if how not in ("pca", "tsne"):
        raise SelfsameError(f"picture: how is 'pca' or 'tsne', got {how!r}")
    emb, truth = np.asarray(emb, float), np.asarray(truth, float)
    proxy = None if proxy is None else np.asarray(proxy, float)
    label = np.zeros(len(emb), int) if label is None else np.asarray(label)
    unseen = np.zeros(len(emb), bool) if unseen is None else np.asarray(unseen)
    shapes = [emb.shape, truth.shape, truth.shape if proxy is None else proxy.shape]
    if any(len(s) != 2 for s in shapes) or shapes[0][1] != shapes[1][1] or shapes[1] != shapes[2]:
        raise SelfsameError(f"picture: expected samples (S, D), prototypes (R, D), proxies (R, D), got {shapes}")
    if len(label) != len(emb) or len(unseen) != len(emb):
        raise SelfsameError(f"picture: {len(emb)} samples, but {len(label)} labels and {len(unseen)} unseen flags")

    kept = np.flatnonzero(np.isfinite(emb).all(1))
    if len(kept) > most:
        kept = np.sort(np.random.default_rng(seed).choice(kept, most, replace=False))
    whole = np.isfinite(truth).all(1) & (True if proxy is None else np.isfinite(proxy).all(1))
    parts = [emb[kept], truth[whole], *([] if proxy is None else [proxy[whole]])]
    if how == "tsne" and sum(map(len, parts)) < 5:
        how = "pca"
    flat = _pca(parts) if how == "pca" else _tsne(parts, seed)
    return Picture(
        emb=_points(flat[0]),
        label=[int(c) for c in label[kept]],
        unseen=[bool(u) for u in unseen[kept]],
        truth=_points(flat[1]),
        proxy=None if proxy is None else _points(flat[2]),
        how=how,
    )


def _pca(parts: list[np.ndarray]) -> list[np.ndarray]:
    base = parts[0] if len(parts[0]) else parts[1]
    if not len(base):
        return [np.zeros((0, 2)) for _ in parts]
    mean = base.mean(0)
    axes = np.linalg.svd(base - mean, full_matrices=False)[2][:2]
    axes = axes * np.sign(axes[np.arange(len(axes)), np.abs(axes).argmax(1)])[:, None]  # the SVD leaves the sign open
    axes = np.vstack([axes, np.zeros((2 - len(axes), base.shape[1]))])
    return [(part - mean) @ axes.T for part in parts]


def _tsne(parts: list[np.ndarray], seed: int) -> list[np.ndarray]:
    from sklearn.manifold import TSNE

    rows = np.vstack(parts)
    flat = TSNE(
        metric="cosine", perplexity=min(30.0, (len(rows) - 1) / 3), init="pca", random_state=seed
    ).fit_transform(rows)
    return np.split(flat, np.cumsum([len(part) for part in parts])[:-1])


def _points(rows: np.ndarray) -> list[Point]:
    return [(round(float(x), 5), round(float(y), 5)) for x, y in rows]


def clean(words: str) -> str:
    """Without the characters that XML and UTF-8 refuse."""
    return "".join(
        c if c.isprintable() and not 0xD800 <= ord(c) <= 0xDFFF and ord(c) not in (0xFFFE, 0xFFFF) else " "
        for c in words
    )


def svg(figure: Figure, name: str, what: str) -> str:
    """Inline SVG markup: theme colours as CSS variables, ids prefixed with ``name``, ``what`` for a screen reader."""
    buffer = io.BytesIO()
    with _style(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # the browser has the letters that matplotlib's font lacks
        figure.savefig(buffer, format="svg", transparent=True, dpi=140, metadata={"Date": None})
    root = ET.fromstring(buffer.getvalue())
    for child in [child for child in root if child.tag.endswith("metadata")]:
        root.remove(child)
    theme = {light: f"var(--{css}, {light})" for css, (light, _) in THEME.items()}
    colour = re.compile("|".join(theme))
    linked = set(re.findall(rb"#([A-Za-z][\w.-]*)[\")]", buffer.getvalue()))
    for element in root.iter():
        _retouch(element, name, linked, lambda value: colour.sub(lambda hit: theme[hit[0]], value))
    del root.attrib["width"], root.attrib["height"]
    root.set("xmlns", "http://www.w3.org/2000/svg")
    root.set("role", "img")
    root.set("aria-label", clean(what))
    return ET.tostring(root, encoding="unicode")


def _retouch(element: ET.Element, name: str, linked: set[bytes], themed: Callable[[str], str]) -> None:
    element.tag = element.tag.rpartition("}")[2]
    for key, value in list(element.attrib.items()):
        if "}" in key:
            del element.attrib[key]
            key = key.rpartition("}")[2]
            element.set(key, value)
        if key == "id":
            if value.encode() in linked:
                element.set(key, f"{name}-{value}")
            else:
                del element.attrib[key]
        elif key == "href" and value.startswith("#"):
            element.set(key, f"#{name}-{value[1:]}")
        elif value.startswith("url(#"):
            element.set(key, f"url(#{name}-{value[5:]}")
        elif key in ("style", "fill", "stroke"):
            element.set(key, themed(value))


def swatch(look: Look) -> str:
    """A small SVG key for the legend: the run's line and marker."""
    r = 4.2
    shapes: dict[str, str] = {
        "o": f'<circle cx="17" cy="7" r="{r}"/>',
        "s": '<rect x="13" y="3" width="8" height="8"/>',
        "D": '<path d="M17 1.8 22.2 7 17 12.2 11.8 7Z"/>',
        "^": '<path d="M17 2 22 11.2H12Z"/>',
        "v": '<path d="M17 12 12 2.8H22Z"/>',
        "P": '<path d="M15.3 2h3.4v3.3H22v3.4h-3.3V12h-3.4V8.7H12V5.3h3.3Z"/>',
        "X": '<path d="M13 2l4 3 4-3 1.5 1.5-3 3.5 3 3.5L21 12l-4-3-4 3-1.5-1.5 3-3.5-3-3.5Z"/>',
        "p": '<path d="M17 2l5 3.7-1.9 5.8h-6.2L12 5.7Z"/>',
    }
    dash = f' stroke-dasharray="{" ".join(f"{1.4 * d:g}" for d in look.dashes)}"' if look.dashes else ""
    ink = f"var(--s{look.slot}, {look.colour})"
    return (
        f'<svg class="key" viewBox="0 0 34 14" aria-hidden="true" style="color:{ink}" fill="currentColor">'
        f'<path d="M0 7H34" stroke="currentColor" stroke-width="2"{dash}/>{shapes[look.marker]}</svg>'
    )
