"""What somebody sees while rounds go by: a bar, lines where there is no terminal, and how long it will take."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from selfsame.engine.plan import cohort_size
from selfsame.files import Record
from selfsame.report.words import span_words
from selfsame.runs.course import Run
from selfsame.runs.hooks import Tick

_TIMED = 2.0  # seconds of rounds, after the first, from which the rest is estimated
_WORTH = 20.0  # seconds that are worth an estimate
_LONG = 300.0  # seconds that a first run should take
_SHARE = 0.1  # of the rounds between two lines
_OFTEN, _SELDOM = 5.0, 30.0  # seconds between two lines, at least and at most
_FEW = 10  # people in a round, where there are too many for a machine


def described(record: Record) -> str:
    """The figures of a record that say how it goes."""
    parts = [f"loss {record['loss']:.3f}"]
    for key, name in (("p@1", "P@1"), ("eer", "EER")):
        if record.get(key) is not None:
            parts.append(f"{name} {100 * record[key]:.1f} %")
    return "  ".join(parts)


class Pace:
    """How long rounds take, the first left out: it also loads.

    `compiles`: what is compiled or captured is so in the first round, which then says nothing of the others.
    """

    def __init__(
        self, total: int, done: int, compiles: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.total, self.done, self.compiles, self.clock = total, done, compiles, clock
        self.begun = clock()
        self.counted, self.since = 0, 0.0

    def add(self, rounds: int) -> None:
        """So many rounds have ended now."""
        if not self.since:
            self.since = self.clock()
        else:
            self.counted += rounds
        self.done += rounds

    @property
    def each(self) -> float | None:
        """Seconds a round; None until it is known well enough, or one round has said enough."""
        now = self.clock()
        if self.counted and now - self.since >= _TIMED:
            return (now - self.since) / self.counted
        first = self.since - self.begun
        alone = self.since and not self.counted and not self.compiles
        return first if alone and first >= _TIMED else None

    @property
    def left(self) -> float | None:
        """Seconds until the last round."""
        return None if self.each is None else self.each * (self.total - self.done)


def estimate_words(run: Run, pace: Pace) -> str:
    """How long the run will take and what would make it shorter; nothing where that is little, or not known."""
    each, left = pace.each, pace.left
    if each is None or left is None or left < _WORTH:
        return ""
    said = f"about {span_words(left)} for {pace.total - pace.done:,} rounds of {span_words(each)}"
    ways = shorter(run, left) if left > _LONG else []
    return f"{said}; shorter: {', '.join(ways)}" if ways else said


def shorter(run: Run, left: float) -> list[str]:
    """What would make a run shorter, the most telling first."""
    recipe, federation = run.recipe, run.problem.federation
    ways = []
    if run.problem.model.device.type == "cpu" and torch.cuda.is_available():
        ways.append("--device cuda")
    size = cohort_size(recipe, federation.clients)
    if size > 2 * _FEW and not recipe.sums.summed:
        ways.append(f"--set cohort.size={_FEW} (of {size} people per round)")
    side = federation.shape[-1]
    if recipe.data.name == "imagefolder" and side > 32:
        ways.append(f"--set data.size=32 (now {side})")
    rounds = math.ceil(recipe.run.rounds * _LONG / left)
    ways.append(f"--rounds {_round(rounds)} (about {span_words(_LONG)})")
    return ways


def _round(number: int) -> int:
    """A number with one digit that matters."""
    unit = 10 ** (len(str(number)) - 1)
    return max(1, number // unit * unit)


@contextmanager
def watched(run: Run, quiet: bool = False, label: str = "", console: Console | None = None) -> Iterator[Tick]:
    """What hears of the rounds: a bar in a terminal or a notebook, else a line every so often; nothing if quiet."""
    place = console or Console(stderr=True)
    model = run.problem.model
    pace = Pace(run.recipe.run.rounds, run.state.round, model.compiled or model.device.type != "cpu")
    if quiet:
        yield lambda rounds, record: None
    elif place.is_terminal or place.is_jupyter:
        with _bar(run, label, place, pace) as tick:
            yield tick
    else:
        yield _lines(run, label or run.title, place, pace)


@contextmanager
def _bar(run: Run, label: str, place: Console, pace: Pace) -> Iterator[Tick]:
    columns = (
        TextColumn("{task.description:18s}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
        TextColumn("{task.fields[now]}"),
    )  # fmt: skip
    with Progress(*columns, console=place) as progress:
        task = progress.add_task(label or run.title, total=run.recipe.run.rounds, completed=run.state.round, now="")
        told = _once(run, pace, progress.console)

        def tick(rounds: int, record: dict[str, Any] | None) -> None:
            pace.add(rounds)
            progress.update(task, advance=rounds)
            if record is not None:
                progress.update(task, now=described(record))
            told()

        yield tick


def _once(run: Run, pace: Pace, place: Console) -> Callable[[], None]:
    """Tells the estimate as soon as it is known."""
    waiting = [True]

    def tell() -> None:
        if waiting[0] and pace.each is not None:
            waiting[0] = False
            words = estimate_words(run, pace)
            if words:
                place.print(words, markup=False, highlight=False)

    return tell


def _lines(run: Run, label: str, place: Console, pace: Pace) -> Tick:
    """A line every tenth of the rounds, not more often than every few seconds, every half minute, and at the end."""
    told = _once(run, pace, place)
    last = [pace.clock(), float(pace.done)]
    figures = [""]

    def tick(rounds: int, record: dict[str, Any] | None) -> None:
        pace.add(rounds)
        if record is not None:
            figures[0] = f", {described(record)}"
        told()
        since, more = pace.clock() - last[0], (pace.done - last[1]) / pace.total
        ended = pace.done >= pace.total
        due = since >= _SELDOM or (more >= _SHARE and since >= _OFTEN)
        if record is not None if ended else due:  # the last look comes after the last round
            last[:] = [pace.clock(), float(pace.done)]
            left = "" if pace.left is None or ended else f", about {span_words(pace.left)} left"
            share = f"{100 * pace.done // pace.total} %"
            line = f"{label}: round {pace.done:,} of {pace.total:,} ({share}){left}{figures[0]}"
            place.print(line, markup=False, highlight=False, soft_wrap=True)

    return tick
