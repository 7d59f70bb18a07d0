"""From what the drivers left behind to the lines of one table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from case import Shape
from process import Outcome

from bench.common import timed

SAME = 1e-5  # float32, five rounds: sums in another order stay well below, another algorithm does not

_HEAD = (
    "peer",
    "version",
    "cohort",
    "steps",
    "image",
    "cores",
    "rounds/s",
    "+-",
    "peak MiB",
    "max diff",
    "selfsame is",
)
_WIDTH = (9, 8, 6, 5, 8, 5, 8, 6, 8, 9, 15)


def rate(outcome: Outcome, rounds: int) -> tuple[float, float]:
    """(rounds a second at the median block, half the range of the blocks' rates)."""
    blocks = iter(outcome.seconds)
    median_ms, _ = timed(lambda _: next(blocks), rounds, len(outcome.seconds))
    rates = [rounds / seconds for seconds in outcome.seconds]
    return 1000 / median_ms, (max(rates) - min(rates)) / 2


def best(outcomes: Sequence[Outcome], rounds: int) -> Outcome:
    """The setting with most rounds a second; a failure only where nothing else is left."""
    ran = [outcome for outcome in outcomes if not outcome.failed]
    return max(ran, key=lambda outcome: rate(outcome, rounds)[0]) if ran else outcomes[0]


def difference(a: Mapping[str, np.ndarray], b: Mapping[str, np.ndarray]) -> float:
    """The largest difference between two networks' parameters; infinite where they are not the same network."""
    if a.keys() != b.keys() or any(a[name].shape != b[name].shape for name in a):
        return float("inf")
    return max(float(np.abs(a[name].astype(np.float64) - b[name]).max()) for name in a)


def head() -> str:
    return _line(_HEAD)


def row(peer: str, shape: Shape, outcome: Outcome, ours: Outcome | None) -> str:
    """One peer in one case, against selfsame's own outcome where there is one."""
    where = (
        str(shape.cohort),
        str(shape.steps),
        f"{shape.image}x{shape.image}" + (f"x{shape.depth}" if shape.depth > 1 else ""),
    )
    if outcome.failed:
        return f"{_line((peer, '-', *where))} {outcome.failed}"
    speed, spread = rate(outcome, shape.rounds)
    same = times = "-"
    if ours is not None and not ours.failed and ours is not outcome:
        gap = difference(ours.parameters, outcome.parameters)
        same = f"{gap:.0e}" if gap <= SAME else f"NO {gap:.0e}"
        times = against(rate(ours, shape.rounds)[0] / speed)
    figures = (f"{speed:.2f}", f"{spread:.2f}", f"{outcome.peak_mib:.0f}", same, times)
    return _line((peer, outcome.version, *where, str(outcome.setting), *figures))


def against(times: float) -> str:
    return f"{times:.1f}x faster" if times >= 1 else f"{1 / times:.1f}x slower"


def _line(cells: Sequence[str]) -> str:
    return " ".join(
        cell.ljust(width) if place < 2 else cell.rjust(width) for place, (cell, width) in enumerate(zip(cells, _WIDTH))
    ).rstrip()
