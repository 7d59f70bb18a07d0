"""Who sends what to whom: the wire of a run as arrows between device, helper, enclave, server and everybody.

Time runs down, as in a sequence diagram. Everything is measured in units of the drawing, which is as wide as a phone.
"""

from __future__ import annotations

import textwrap
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from selfsame.report.view import RunView
from selfsame.report.words import AGGREGATIONS, SIGHTS

PARTIES = ("device", "helper", "enclave", "server", "everybody")
WIDTH = 350
_STEP = 70  # from one party to the next
_TOP, _LINE, _GAP = 52, 15, 24  # where the first step begins, a line of words, below an arrow
_LETTER = 7.2  # as wide as one is in a wide font

Row = tuple[str, str, str, str]  # field, way, sight, what it is


@dataclass(frozen=True)
class Step:
    """One message: from whom, to whom, which fields, how they are protected; to nobody else: it stays."""

    kind: str  # a sight, or "down": which says the colour
    begin: str
    ends: tuple[str, ...]
    names: str
    how: str

    @property
    def words(self) -> str:
        """For who cannot see the arrow."""
        if not self.ends:
            return f"{self.names} stay on the {self.begin}."
        return f"From the {self.begin} to {' and to '.join(map(_called, self.ends))}: {self.names} ({self.how})."


@dataclass(frozen=True)
class Arrow:
    """A step with its place: where the line begins and ends, and the lines of words above it."""

    step: Step
    y: float
    x: float
    ends: tuple[float, ...]
    text_x: float
    lines: tuple[tuple[str, float, str], ...]  # (class, y, words)


@dataclass(frozen=True)
class Flow:
    """The whole drawing."""

    arrows: tuple[Arrow, ...]
    height: float
    active: frozenset[str]
    words: str

    @property
    def parties(self) -> list[tuple[str, float, bool]]:
        """(name, place, whether it takes part)."""
        return [(name, _place(name), name in self.active) for name in PARTIES]


def flow(view: RunView) -> Flow | None:
    """The drawing of a run's wire; None where nothing of it is known."""
    found = list(steps(view.wire, aggregation_of(view)))
    if not found:
        return None
    arrows, y = [], float(_TOP)
    for step in found:
        arrow = _placed(step, y)
        arrows.append(arrow)
        y = arrow.y + _GAP
    active = frozenset(name for step in found for name in (step.begin, *step.ends))
    return Flow(tuple(arrows), y, active, " ".join(step.words for step in found))


def aggregation_of(view: RunView) -> str:
    """How updates are added up, by the run's recipe."""
    try:
        said = tomllib.loads(view.recipe).get("sums", {}).get("aggregation", "clear")
    except (tomllib.TOMLDecodeError, AttributeError):
        return "clear"
    return said if said in AGGREGATIONS else "clear"


def steps(wire: Sequence[Row], aggregation: str) -> Iterator[Step]:
    """What happens in a round, in order: what comes down, what stays, what goes up."""

    def named(way: str, sight: str) -> str:
        return ", ".join(name for name, its_way, its_sight, _ in wire if (its_way, its_sight) == (way, sight))

    if names := named("down", "public"):
        yield Step("down", "server", ("device", "everybody"), names, "everyone sees it")
    if names := named("down", "server"):
        yield Step("down", "server", ("device",), names, "to this device")
    if names := named("down", "enclave"):
        yield Step("enclave", "enclave", ("device",), names, "sealed to this device alone")
    if names := named("stays", "device"):
        yield Step("device", "device", (), names, "never leaves")
    if names := named("up", "enclave"):
        yield Step("enclave", "device", ("enclave",), names, "sealed to attested code")
        if any(row[:3] == ("network update", "up", "enclave") for row in wire):
            yield Step("sum", "enclave", ("server",), "sum of the network updates", "over everybody in the round")
    if names := named("up", "sum"):
        yield from _summed(names, aggregation)
    if names := named("up", "server"):
        yield Step("server", "device", ("server",), names, "the server reads each one")
    if names := named("up", "public"):
        yield Step("public", "device", ("server", "everybody"), names, "everyone sees it")
    strange = sorted({(way, sight) for _, way, sight, _ in wire if way in ("up", "down") and sight not in SIGHTS})
    for way, sight in strange:
        yield Step("public", *_ways(way), named(way, sight), sight)


def _ways(way: str) -> tuple[str, tuple[str, ...]]:
    return ("device", ("server",)) if way == "up" else ("server", ("device",))


def _summed(names: str, aggregation: str) -> Iterator[Step]:
    """How a sum comes about; polls are summed by helpers also where updates are clear."""
    if aggregation == "enclave":
        yield Step("enclave", "device", ("enclave",), names, "sealed to attested code")
        yield Step("sum", "enclave", ("server",), "their sum", "clipped, over a whole group")
        return
    yield Step("sum", "device", ("server",), names, "under masks: noise to the server")
    yield Step("enclave", "device", ("helper",), "seeds of the masks", "sealed to the helper")
    yield Step("sum", "helper", ("server",), "sum of the masks", "what is left is the sum over a group")


def _placed(step: Step, top: float) -> Arrow:
    """A step below this height: words first, the arrow under them."""
    places = [_place(name) for name in (step.begin, *step.ends)]
    left = min(places) if step.ends else places[0] + 12
    left = min(left + 5, WIDTH - 25 * _LETTER)
    wide = max(12, int((WIDTH - left - 4) / _LETTER))
    lines, y = [], top
    for kind, words in (("what", step.names), ("how", step.how)):
        for line in textwrap.wrap(words, wide, max_lines=4, placeholder=" …") or [""]:
            lines.append((kind, y, line))
            y += _LINE
    at = y - 4 if step.ends else (top + y - _LINE) / 2 - 4
    bottom = at if step.ends else y - _LINE + 4
    return Arrow(step, bottom, places[0], tuple(places[1:]), left, tuple(lines))


def _place(name: str) -> float:
    return _STEP * (PARTIES.index(name) + 0.5)


def _called(name: str) -> str:
    return name if name == "everybody" else f"the {name}"
