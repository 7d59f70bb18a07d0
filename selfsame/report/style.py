"""How figures look: the theme, a look for each line, axes, and inline SVG whose colours follow the page's theme.

Figures are made with the object interface and a style that is restored afterwards, so that importing or calling this
module changes nothing for a user of pyplot.
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
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar

from selfsame.report.view import RunView

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
SLOT = {"fedhide": 0, "fedaws": 1, "feduv": 2, "fedmetric": 3, "fdml": 4, "fedgn": 5, "fedcs": 6, "fedcrowd": 7}
DASHES = ((), (5, 2), (1.5, 1.5), (7, 2, 1.5, 2))
_RAISED = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")
MARKERS = ("o", "s", "D", "^", "v", "P", "X", "p")
STYLE = {
    "font.size": 9.5,  # in a figure of 4.4 inches 10 pixels on a phone
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
    "axes.formatter.use_mathtext": False,
    "text.parse_math": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "selfsame",
}


@dataclass(frozen=True)
class Look:
    """How one run, or one protocol, is drawn in every figure."""

    slot: int
    dashes: tuple[float, ...]
    marker: str

    @property
    def colour(self) -> str:
        return THEME[f"s{self.slot}"][0]

    @property
    def line(self) -> dict[str, Any]:
        """For matplotlib."""
        return {"color": self.colour, "dashes": self.dashes}


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
            alike = list(slots.values()).count(slots[name]) - 1
            runs[name] = alike * (len(DASHES) + 1) - 1  # methods that share a colour have other dashes and marks
        turn = runs[name] = runs[name] + 1
        found.append(
            Look(slots[name], DASHES[turn % len(DASHES)], MARKERS[(slots[name] + turn // len(DASHES)) % SERIES])
        )
    return found


def numbered_looks(count: int) -> list[Look]:
    """Looks for lines that are no methods: each has a colour and dashes of its own."""
    return [
        Look(number % SERIES, DASHES[(number + number // SERIES) % len(DASHES)], MARKERS[number % SERIES])
        for number in range(count)
    ]


@contextmanager
def style() -> Iterator[None]:
    """The style, and afterwards what was set before."""
    import matplotlib.style

    with matplotlib.style.context(STYLE, after_reset=True):
        yield


def styled(draw: Callable[P, T]) -> Callable[P, T]:
    """A function that draws in this style."""

    @wraps(draw)
    def inside(*args: P.args, **kwargs: P.kwargs) -> T:
        with style():
            return draw(*args, **kwargs)

    return inside


def panel(width: float, height: float) -> tuple[Figure, Axes]:
    """A figure of so many inches with one pair of axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height))
    # Room for labels of up to seven digits: to let matplotlib measure them would take as long as to draw the figure.
    figure.subplots_adjust(0.72 / width, 0.46 / height, 1 - 0.2 / width, 1 - 0.14 / height)
    return figure, figure.add_subplot()


def log_axis(ax: Axes, which: Literal["x", "y"], ticks: Sequence[float] = ()) -> None:
    """Make an axis logarithmic with plain labels: matplotlib's own are markup, which the page would show as text."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    ax.set(**{f"{which}scale": "log"})
    axis = ax.xaxis if which == "x" else ax.yaxis
    if ticks:
        axis.set_ticks(list(ticks))
    axis.set_major_formatter(FuncFormatter(lambda value, _: _tick(value)))
    axis.set_minor_formatter(NullFormatter())


def _tick(value: float) -> str:
    """A short number as it is, a long power of ten as one."""
    exponent = round(math.log10(value))
    if -4 <= exponent < 6 or not math.isclose(value, 10.0**exponent):
        return f"{value:g}"
    return "10" + str(exponent).translate(_RAISED)


def clean(words: str) -> str:
    """Without the characters that XML and UTF-8 refuse."""
    return "".join(
        c if c.isprintable() and not 0xD800 <= ord(c) <= 0xDFFF and ord(c) not in (0xFFFE, 0xFFFF) else " "
        for c in words
    )


def svg(figure: Figure, name: str, what: str) -> str:
    """Inline SVG markup: theme colours as CSS variables, ids prefixed with ``name``, ``what`` for a screen reader."""
    buffer = io.BytesIO()
    with style(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # the browser has the letters that matplotlib's font lacks
        figure.savefig(buffer, format="svg", transparent=True, dpi=140, metadata={"Date": None})
    root = ET.fromstring(buffer.getvalue())
    for child in [child for child in root if child.tag.endswith("metadata")]:
        root.remove(child)
    theme = {light: f"var(--{css}, {light})" for css, (light, _) in THEME.items()}
    colour = re.compile("|".join(theme))
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        for key in list(element.attrib):
            value, short = element.attrib.pop(key), key.rpartition("}")[2]
            if short == "id":
                value = f"{name}-{value}"
            elif short == "href" or value.startswith("url(#"):
                value = value.replace("#", f"#{name}-", 1)
            elif short in ("style", "fill", "stroke"):
                value = colour.sub(lambda hit: theme[hit[0]], value)
            element.set(short, value)
    del root.attrib["width"], root.attrib["height"]
    root.set("xmlns", "http://www.w3.org/2000/svg")
    root.set("role", "img")
    root.set("aria-label", clean(what))
    return ET.tostring(root, encoding="unicode")
