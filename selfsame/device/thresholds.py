"""At which score a device accepts: the rules that set a threshold, and what each of them can promise.

A larger score is a closer match and a sample is accepted at score >= threshold. TPR is the share of the owner's samples
that are accepted. NumPy and the standard library alone, so that a device can use it.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from selfsame.errors import SelfsameError

Floats = NDArray[np.float64]

_ROUNDING = 1e-12  # by which a computed chance may miss the one asked for
_FINEST = 10**9  # the largest denominator of a rate that a user means
_NODES = 2001
_FARTHEST = 300.0  # log of the distance from the ceiling at which a threshold stays a finite number

# The highest and the lowest score there is, by the kind of score: a cosine, or minus a distance.
CEILINGS = {"cosine": 1.0, "distance": 0.0, "squared-distance": 0.0}
FLOORS = {"cosine": -1.0, "distance": -math.inf, "squared-distance": -math.inf}


@dataclass(frozen=True)
class Threshold:
    """A threshold and what it promises; plain numbers and text, so that it can be stored as it is."""

    value: float
    rule: str
    promised_tpr: float | None  # None: the rule promises no TPR
    confidence: float | None  # the chance, over the samples that set the threshold, that the true TPR reaches it
    samples: int  # of the owner, behind the threshold
    guaranteed: bool  # the confidence asked for holds for every distribution of scores
    note: str

    def __float__(self) -> float:
        return self.value


def fixed(value: float) -> Threshold:
    """A threshold that somebody chose."""
    if not math.isfinite(value):
        raise SelfsameError(f"threshold: expected a finite number, got {value}")
    return Threshold(float(value), "fixed", None, None, 0, False, "chosen by hand, promises nothing")


def warm_up(scores: ArrayLike, q: float) -> Threshold:
    """The i-th smallest warm-up score, i = floor(n(1 - q)), and the smallest where i = 0 (FedUV, Algorithm 2)."""
    score_n = _sorted("warm-up", scores)
    n = len(score_n)
    i = max(1, math.floor(n * (1 - exact_rate("warm-up: tpr", q))))
    chance = kept_chance(i, n, q)
    note = f"aims at a TPR of {_percent(q)} and reaches it with a chance of {_percent(chance)}"
    return Threshold(float(score_n[i - 1]), "tpr", float(q), chance, n, False, note)


def bounded(scores: ArrayLike, q: float, confidence: float = 0.95, ceiling: float | None = None) -> Threshold:
    """The largest warm-up score at which the true TPR is at least q with the confidence asked for.

    That is s_(k) with the largest k of `kept_chance` >= confidence. With fewer than `needed` scores not even the
    smallest will do; then the threshold is a one-sided tolerance limit below it, from a normal distribution fitted to
    the scores or, where the `ceiling` is known that no score exceeds (`CEILINGS`), to log(ceiling - score). It lies
    where no score was seen and keeps its promise as far as the fit does: it is not guaranteed, and says so.
    """
    score_n = _sorted("bounded", scores)
    n = len(score_n)
    enough = needed(float(q), float(confidence))  # also checks the two rates
    if n >= enough:
        k = _highest_order(n, float(q), float(confidence))
        note = f"TPR at least {_percent(q)} with {_percent(confidence)} confidence, whatever the scores' distribution"
        return Threshold(float(score_n[k - 1]), "bounded", float(q), float(confidence), n, True, note)
    few = f"{n} of the {enough} warm-up scores that TPR {_percent(q)} with {_percent(confidence)} confidence needs"
    if score_n[0] == score_n[-1]:
        what = "one score has" if n == 1 else "equal scores have"
        raise SelfsameError(f"bounded: {few}, and {what} no spread to go by; give more, different samples")
    value = min(float(score_n[0]), _tolerance_limit(score_n, q, confidence, ceiling))
    fit = "scores were normal" if ceiling is None else f"log({ceiling:g} - score) were normal"
    note = f"not guaranteed: {few}; extrapolated below the smallest as if {fit}, and may accept strangers"
    return Threshold(value, "bounded", float(q), float(confidence), n, False, note)


def balanced(genuine: ArrayLike, impostor: ArrayLike) -> Threshold:
    """Where FPR and FNR of the owner's and of reference scores are nearest to each other (FDML, Algorithm 4)."""
    own, other = _sorted("balanced: genuine", genuine), _sorted("balanced: impostor", impostor)
    note = f"FPR = FNR as nearly as {len(own)} genuine and {len(other)} impostor scores allow; no TPR is promised"
    return Threshold(_even(own, other), "balanced", None, None, len(own), False, note)


def common(genuine: ArrayLike, impostor: ArrayLike, *, fpr: float | None = None, tpr: float | None = None) -> Threshold:
    """One threshold for all users from the scores of many: the lowest of at most `fpr`, the highest of at least `tpr`.

    With neither it is the one where both errors are equally frequent. The rates hold over the pool, not for each user.
    """
    own, other = _sorted("common: genuine", genuine), _sorted("common: impostor", impostor)
    if fpr is not None and tpr is not None:
        raise SelfsameError("common: fpr and tpr exclude each other, give one of them or none")
    if tpr is not None:
        missed = math.floor(len(own) * (1 - exact_rate("common: tpr", tpr)))
        value, promised = float(own[min(missed, len(own) - 1)]), float(tpr)
        note = f"TPR {_percent(tpr)} over {len(own)} pooled scores; single users may be far below"
        return Threshold(value, "common-tpr", promised, None, len(own), False, note)
    if fpr is None:
        note = f"FPR = FNR over {len(own)} genuine and {len(other)} impostor scores of all users; no TPR is promised"
        return Threshold(_even(own, other), "common-eer", None, None, len(own), False, note)
    allowed = math.floor(len(other) * exact_rate("common: fpr", fpr))
    note = f"FPR {_percent(fpr)} over {len(other)} pooled scores; no TPR is promised"
    if 0 < fpr * len(other) < 1:
        note = f"none of {len(other)} impostor scores accepted: too few to show a FPR of {_percent(fpr)}"
    value = _above(own, other, allowed)
    return Threshold(value, "common-fpr", None, None, len(own), False, note)


def check_range(value: float, score: str) -> None:
    """Refuse a threshold that every score, or none, of this kind reaches."""
    low, high = FLOORS[score], CEILINGS[score]
    if value <= low:
        raise SelfsameError(f"threshold {value:.4f}: every {score} is {low:g} or more, so everybody would be let in")
    if value > high:
        raise SelfsameError(f"threshold {value:.4f}: no {score} is above {high:g}, so nobody would be let in")


def share_interval(hits: int, number: int, confidence: float = 0.95) -> tuple[float, float]:
    """Between which two shares the true one lies, by so many hits of independent tries (Clopper and Pearson).

    The ends are the shares at which as many hits or more, and as many or fewer, have a chance of (1 - confidence) / 2.
    """
    if not 0 <= hits <= number or number < 1:
        raise SelfsameError(f"share: expected 0 to {number} hits of 1 or more tries, got {hits}")
    rest = (1 - confidence) / 2
    low = 0.0 if hits == 0 else _rising(lambda p: kept_chance(hits, number, 1 - p), rest)
    high = 1.0 if hits == number else _rising(lambda p: kept_chance(hits + 1, number, 1 - p), 1 - rest)
    return low, high


def _rising(chance: Callable[[float], float], wanted: float) -> float:
    """Where a chance that rises from 0 to 1 is the one wanted."""
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if chance(middle) < wanted else (low, middle)
    return (low + high) / 2


def kept_chance(k: int, n: int, q: float) -> float:
    """The chance that the true TPR at the k-th smallest of n scores is at least q: P(Beta(n - k + 1, k) >= q).

    For scores with continuous distribution function F the U_(k) = F(s_(k)) are ordered uniform numbers and the TPR is
    1 - U_(k), so that TPR >= q says that at least k of n uniform numbers are at most 1 - q: a binomial tail. With ties
    s = G(U) for the quantile function G, and P(S >= G(u)) >= P(U >= u) = 1 - u: the chance can only grow.
    """
    if not 1 <= k <= n:
        raise SelfsameError(f"kept chance: expected k from 1 to the {n} scores, got {k}")
    p = float(1 - exact_rate("kept chance: tpr", q))
    if p in (0.0, 1.0):
        return p
    all_n, log_p, log_q = math.lgamma(n + 1), math.log(p), math.log1p(-p)
    fewer = (
        math.exp(all_n - math.lgamma(j + 1) - math.lgamma(n - j + 1) + j * log_p + (n - j) * log_q) for j in range(k)
    )
    return min(1.0, max(0.0, 1.0 - math.fsum(fewer)))


@lru_cache(maxsize=1024)
def needed(q: float, confidence: float = 0.95) -> int:
    """How many warm-up scores a guarantee takes: the least n with 1 - q^n >= confidence."""
    if not 0 <= q < 1:
        raise SelfsameError(f"bounded: tpr must be 0 or more and below 1, which no number of samples shows; got {q}")
    if not 0 < confidence < 1:
        raise SelfsameError(f"bounded: confidence must lie between 0 and 1, got {confidence}")
    n = 1 if q == 0 else max(1, math.floor(math.log1p(-confidence) / math.log(q)))
    while kept_chance(1, n, q) < confidence - _ROUNDING:
        n += 1
    return n


@lru_cache(maxsize=1024)
def _highest_order(n: int, q: float, confidence: float) -> int:
    """The largest k whose chance to be kept is the confidence or more; the chance falls as k grows."""
    return bisect.bisect_right(range(1, n + 1), _ROUNDING - confidence, key=lambda k: -kept_chance(k, n, q))


@lru_cache(maxsize=1024)
def tolerance_factor(n: int, q: float, confidence: float) -> float:
    """The factor f at which mean - f * deviation of n normal scores has a TPR of at least q with the confidence.

    With Z normal, W^2 = chi^2 / (n - 1) and z the normal quantile of q this is P(Z / sqrt(n) + z <= f W) = confidence,
    the quantile of a non-central t over sqrt(n). The integral over W is a sum of equal steps in log W, at whose two
    ends the density vanishes.
    """
    if n < 2 or not 0 < q < 1 or not 0 < confidence < 1:
        raise SelfsameError(
            f"tolerance factor: expected 2 or more scores and rates between 0 and 1, got {n}, {q}, {confidence}"
        )
    z, freedom = NormalDist().inv_cdf(q), n - 1
    log_w = np.linspace(-40 / freedom - 4 / math.sqrt(freedom), math.log1p(12 / math.sqrt(2 * freedom)), _NODES)
    w = np.exp(log_w)
    log_density = freedom * (log_w - (w**2 - 1) / 2)
    density = np.exp(log_density)
    density /= density.sum()

    def reached(factor: float) -> float:
        at = math.sqrt(n / 2) * (factor * w - z)
        return float(density @ [0.5 * math.erfc(-x) for x in at.tolist()])

    low, high = -1.0, 1.0
    while reached(high) < confidence:
        high *= 2
    while reached(low) > confidence:
        low *= 2
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if reached(middle) < confidence else (low, middle)
    return high


def _tolerance_limit(score_n: Floats, q: float, confidence: float, ceiling: float | None) -> float:
    """The fitted score below which the true TPR is at least q with the confidence, if the fit is right."""
    factor = tolerance_factor(len(score_n), float(q), float(confidence))
    if ceiling is None:
        return float(score_n.mean() - factor * score_n.std(ddof=1))
    if score_n[-1] >= ceiling:
        raise SelfsameError(
            f"bounded: a score of {score_n[-1]:g} reaches the ceiling {ceiling:g}, as the template's own samples do; "
            "give samples that are not in the template"
        )
    log_n = np.log(ceiling - score_n)
    far = float(log_n.mean() + factor * log_n.std(ddof=1))
    return ceiling - math.exp(min(far, _FARTHEST))


def _even(own: Floats, other: Floats) -> float:
    """The middle of the gap between two neighbouring scores in which |FPR - FNR| is least, then FPR + FNR."""
    score = np.unique(np.concatenate([own, other]))
    fnr = np.searchsorted(own, score) / len(own)
    fpr = 1 - np.searchsorted(other, score) / len(other)
    # Rounded, so that of rates that are equal but for their last digit the better pair is taken.
    best = int(np.lexsort((np.round(fpr + fnr, 9), np.round(np.abs(fpr - fnr), 9)))[0])
    return float(score[0]) if best == 0 else _between(float(score[best - 1]), float(score[best]))


def _above(own: Floats, other: Floats, allowed: int) -> float:
    """The lowest threshold, up to the gap it lies in, that accepts at most `allowed` of the other scores."""
    if allowed >= len(other):
        return float(min(own[0], other[0]))
    highest = float(other[len(other) - 1 - allowed])  # of those to be rejected
    score = np.concatenate([own, other])
    over = score[score > highest]
    return _between(highest, float(over.min())) if len(over) else float(np.nextafter(highest, np.inf))


def _between(low: float, high: float) -> float:
    """The middle of two scores, above the lower one: no other threshold in the gap is better supported."""
    middle = high - (high - low) / 2
    return middle if middle > low else high


def exact_rate(name: str, value: float) -> Fraction:
    """A rate as the user means it: 0.9 is nine tenths, though 10 * (1 - 0.9) is less than 1 in floating point."""
    if not 0 <= value <= 1:
        raise SelfsameError(f"{name} must be 0 to 1, got {value}")
    return Fraction(float(value)).limit_denominator(_FINEST)


def _sorted(name: str, scores: ArrayLike) -> Floats:
    try:
        score_n = np.sort(np.asarray(scores, dtype=np.float64).reshape(-1))
    except (TypeError, ValueError):
        raise SelfsameError(f"{name}: scores must be numbers") from None
    if not len(score_n):
        raise SelfsameError(f"{name}: no scores")
    if not np.isfinite(score_n).all():
        raise SelfsameError(f"{name}: scores must be finite, {int((~np.isfinite(score_n)).sum())} are not")
    return score_n


def _percent(rate: float) -> str:
    return f"{100 * rate:.4g} %"
