"""How often a threshold keeps the TPR it promises: on a user's own scores, by exact chances, and by simulation.

Shapes: U users, n warm-up scores, m scores that are left to measure the TPR with.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from selfsame.device.thresholds import Threshold, bounded, exact_rate, warm_up
from selfsame.errors import SelfsameError

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Known:
    """A distribution that genuine scores may have: draws of it, its true TPR at a threshold, and its upper end."""

    draw: Callable[[np.random.Generator, int], Floats]
    tpr: Callable[[float], float]
    ceiling: float | None = None


@dataclass(frozen=True)
class Kept:
    """What one rule promised and kept over many draws of its warm-up scores."""

    rule: str  # as `thresholds` names it; "bounded" is guaranteed
    samples: int
    promised_tpr: float
    mean_tpr: float
    share: float  # of draws whose TPR reached the promise
    mean_fpr: float | None  # None where there are no impostors
    draws: int


def thresholds(warm_n: Floats, q: float, confidence: float, ceiling: float | None) -> dict[str, Threshold]:
    """What the rules say that promise a TPR from warm-up scores alone.

    The bounded one is either guaranteed, "bounded", or a "normal fit" and, below a ceiling, also a "log fit".
    """
    plain = bounded(warm_n, q, confidence)
    found = {"warm-up": warm_up(warm_n, q), "bounded" if plain.guaranteed else "normal fit": plain}
    if not plain.guaranteed and ceiling is not None:
        found["log fit"] = bounded(warm_n, q, confidence, ceiling)
    return found


def measured(
    genuine_U: Sequence[Floats],
    impostor_U: Sequence[Floats],
    samples: int,
    q: float,
    confidence: float,
    ceiling: float | None,
    draws: int,
    seed: int,
) -> list[Kept]:
    """Every rule over `draws` warm-ups of each user: n scores without replacement set it, the user's others judge it.

    The TPR of a draw is a share of m scores, so it scatters around the true one: see `share_with_rest`.
    """
    if len(genuine_U) != len(impostor_U) or not genuine_U or draws < 1:
        raise SelfsameError(
            "promise: expected genuine and impostor scores of the same users and 1 or more draws, "
            f"got {len(genuine_U)}, {len(impostor_U)} and {draws}"
        )
    least = min(map(len, genuine_U))
    if not 1 <= samples < least:
        raise SelfsameError(f"promise: {samples} warm-up scores leave none of a user's {least} to measure the TPR with")
    rng = np.random.default_rng(seed)
    out = _Tally(samples, q)
    for genuine, impostor in zip(genuine_U, impostor_U):
        ordered = np.sort(impostor)
        for _ in range(draws):
            mixed = rng.permutation(genuine)
            warm, rest = mixed[:samples], mixed[samples:]
            for rule, threshold in thresholds(warm, q, confidence, ceiling).items():
                fpr = 1 - np.searchsorted(ordered, threshold.value) / len(ordered)
                out.add(rule, float((rest >= threshold.value).mean()), float(fpr))
    return out.kept()


def simulated(known: Known, samples: int, q: float, confidence: float, draws: int, seed: int) -> list[Kept]:
    """Every rule over `draws` warm-ups from a known distribution, judged by its true TPR: no noise of a finite rest."""
    rng = np.random.default_rng(seed)
    out = _Tally(samples, q)
    for _ in range(draws):
        for rule, threshold in thresholds(known.draw(rng, samples), q, confidence, known.ceiling).items():
            out.add(rule, known.tpr(threshold.value), None)
    return out.kept()


def share_with_rest(k: int, n: int, m: int, q: float) -> float:
    """The chance that at least q of m further scores reach the k-th smallest of n, for any continuous distribution.

    All orders of the n + m scores are equally likely. j of the m fall below s_(k) in C(j + k - 1, j) C(m - j + n - k,
    m - j) of the C(n + m, m) ways to mix the two kinds: the binomial scatter of m scores around a Beta-distributed TPR.
    """
    if not 1 <= k <= n or m < 1:
        raise SelfsameError(f"promise: expected k from 1 to n and m of 1 or more, got {k}, {n} and {m}")
    most = math.floor(m * (1 - exact_rate("promise: tpr", q)))
    ways = sum(math.comb(j + k - 1, j) * math.comb(m - j + n - k, m - j) for j in range(most + 1))
    return float(Fraction(ways, math.comb(n + m, m)))


_NORMAL = NormalDist()
DISTRIBUTIONS: dict[str, Known] = {
    "normal": Known(lambda rng, n: rng.normal(size=n), lambda t: 1 - _NORMAL.cdf(t)),
    "uniform": Known(lambda rng, n: rng.random(n), lambda t: 1 - min(1.0, max(0.0, t)), 1.0),
    # As cosines near 1: a sharp upper end and a long lower tail.
    "minus exponential": Known(
        lambda rng, n: -rng.exponential(size=n), lambda t: -math.expm1(t) if t < 0 else 0.0, 0.0
    ),
    "minus log-normal": Known(
        lambda rng, n: -np.exp(rng.normal(size=n)), lambda t: _NORMAL.cdf(math.log(-t)) if t < 0 else 0.0, 0.0
    ),
    # One sample in ten is of another kind: without glasses, in a noisy room.
    "two kinds": Known(
        lambda rng, n: rng.normal(size=n) - 8 * (rng.random(n) < 0.1),
        lambda t: 0.9 * (1 - _NORMAL.cdf(t)) + 0.1 * (1 - _NORMAL.cdf(t + 8)),
    ),
}


class _Tally:
    """Sums over draws, a rule and a kind of promise at a time."""

    def __init__(self, samples: int, q: float) -> None:
        self.samples, self.q = samples, q
        self.rows: dict[str, list[tuple[float, float | None]]] = {}

    def add(self, rule: str, tpr: float, fpr: float | None) -> None:
        self.rows.setdefault(rule, []).append((tpr, fpr))

    def kept(self) -> list[Kept]:
        out = []
        for rule, row in self.rows.items():
            tpr = np.array([value for value, _ in row])
            fpr = [value for _, value in row if value is not None]
            # A share of m scores may miss q in its last digit.
            share = float((tpr >= self.q - 1e-12).mean())
            mean_fpr = float(np.mean(fpr)) if fpr else None
            out.append(Kept(rule, self.samples, self.q, float(tpr.mean()), share, mean_fpr, len(row)))
        return out
