"""Operating curves and every rate that is read off them; a larger score always means a closer match.

NumPy alone, so that a report draws without PyTorch. A curve need not hold every threshold: corners suffice, since all
rates are those of the straight lines between them or lie on a corner.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from selfsame.errors import SelfsameError

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

FALSE_ACCEPTS = 10  # that a rate must rest on: with fewer, the threshold hangs on single trials
_NORMAL = NormalDist()


@dataclass(frozen=True)
class Roc:
    """How many trials are accepted at score >= threshold, from none of them (threshold inf) to all."""

    genuine: Ints | Floats  # whole numbers
    impostor: Ints | Floats
    threshold: Floats | None = None  # falling; None where nobody asks for it

    @cached_property
    def fpr(self) -> Floats:
        return self.impostor / self.impostor[-1]

    @cached_property
    def tpr(self) -> Floats:
        return self.genuine / self.genuine[-1]

    @property
    def eer(self) -> float:
        """The rate at which false accepts and false rejects are equally frequent, on the straight lines."""
        right, part = self._crossing
        left, fpr = (float(self.impostor[k] / self.impostor[-1]) for k in (right - 1, right))
        return left + part * (fpr - left)

    @property
    def eer_threshold(self) -> float:
        """The threshold of the EER: between two scores in the part in which the rate lies between their points."""
        assert self.threshold is not None, "this curve has no thresholds"
        right, part = self._crossing
        high, low = (float(self.threshold[k]) for k in (right - 1, right))
        return low if np.isinf(high) or part == 1 else high + part * (low - high)

    @cached_property
    def _crossing(self) -> tuple[int, float]:
        """The first point at which FPR >= FNR, and in which part of the line that leads there they are equal."""

        def gap(k: int) -> float:
            """FPR - FNR, which rises from -1 to 1."""
            return float(self.impostor[k] / self.impostor[-1] + self.genuine[k] / self.genuine[-1] - 1)

        right = bisect.bisect_left(range(len(self.genuine)), 0.0, key=gap)
        short, over = gap(right - 1), gap(right)
        return right, -short / (over - short)

    @property
    def area(self) -> float:
        """The AUROC: the chance that a genuine score exceeds an impostor's, where equal scores count half."""
        genuine, impostor = self.genuine[-1], self.impostor[-1]
        rejected = impostor - self.impostor
        # Whole numbers throughout: each genuine trial counts the impostors below it and those not above it.
        return float(np.dot(np.diff(self.genuine), rejected[1:] + rejected[:-1]) / 2 / genuine / impostor)

    def tpr_at(self, fpr: float) -> float:
        """The highest TPR of a threshold whose FPR is at most this."""
        return float(self.tpr[np.searchsorted(self.fpr, fpr, "right") - 1])

    def min_dcf(self, p_target: float) -> float:
        """The least detection cost over all thresholds, in units of the better of accepting nobody and everybody.

        The cost is p_target * FNR + (1 - p_target) * FPR; VoxCeleb takes p_target 0.01 or 0.05.
        """
        cost = p_target * (1 - self.tpr) + (1 - p_target) * self.fpr
        return float(np.min(cost) / min(p_target, 1 - p_target))

    def thin(self, points: int = 400) -> Roc:
        """At most `points` of the curve for plotting, its ends among them.

        Half of them lie at equal steps of FPR + TPR, so that straight lines miss no rate by more than a step; the
        others lie dense at both ends, where a logarithmic scale looks.
        """
        if len(self.genuine) <= points:
            return self
        steps = np.geomspace(1e-6, 1, points // 4)
        fnr = 1 - self.tpr
        places = [
            np.searchsorted(self.fpr, steps, "right") - 1,
            len(fnr) - np.searchsorted(fnr[::-1], steps, "right"),
            np.searchsorted(self.fpr + self.tpr, np.linspace(0, 2, points // 2)),
        ]
        keep = np.unique(np.clip(np.concatenate(places), 0, len(fnr) - 1))
        threshold = None if self.threshold is None else self.threshold[keep]
        return Roc(self.genuine[keep], self.impostor[keep], threshold)


def roc(genuine: npt.ArrayLike, impostor: npt.ArrayLike) -> Roc:
    """One point for every distinct score."""
    own, other = _side("genuine", genuine), _side("impostor", impostor)
    score = np.concatenate([own, other])
    order = np.argsort(score)[::-1]
    score = score[order]
    last = np.append(np.flatnonzero(score[1:] != score[:-1]), len(score) - 1)  # of each run of equal scores
    accepted = np.cumsum(order < len(own), dtype=np.int64)[last]
    return Roc(
        genuine=np.append(0, accepted),
        impostor=np.append(0, last + 1 - accepted),
        threshold=np.append(np.inf, score[last].astype(np.float64)),
    )


def corners(genuine: npt.ArrayLike, impostor: npt.ArrayLike) -> Roc:
    """The same curve by its corners and the two points around equal errors, which have all its rates.

    Between two genuine scores only the number of impostors matters: far fewer points where impostors are many.
    """
    own, other = np.sort(_side("genuine", genuine)), np.sort(_side("impostor", impostor))
    first = np.append(0, np.flatnonzero(own[1:] != own[:-1]) + 1)[::-1]  # of each run of equals
    level, until = own[first], len(own) - first
    # From each level to the next: impostors in between, then all trials of that score at once.
    own_k = np.concatenate([[0, 0], np.repeat(until, 2)])
    sides = [len(other) - np.searchsorted(other, level, side) for side in ("right", "left")]
    other_k = np.concatenate([[0], np.stack(sides, 1).ravel(), [len(other)]])
    right, _ = Roc(own_k, other_k)._crossing
    if own_k[right - 1] == own_k[right]:  # among impostors: the scores on both sides of the crossing are points too
        tpr, between = own_k[right] / len(own), range(other_k[right - 1], other_k[right])
        crossed = between[0] + bisect.bisect_left(between, 0.0, key=lambda k: k / len(other) + tpr - 1)
        around = [len(other) - np.searchsorted(other, other[-crossed], side) for side in ("right", "left")]
        own_k, other_k = np.insert(own_k, right, [own_k[right]] * 2), np.insert(other_k, right, around)
    return Roc(own_k, other_k)


def auroc(genuine: npt.ArrayLike, impostor: npt.ArrayLike) -> float:
    """The area under the ROC of these scores."""
    return corners(genuine, impostor).area


def supported(at: float, impostors: int) -> bool:
    """Whether so many impostor trials give the false accepts that a figure at this FPR must rest on."""
    return at * impostors >= FALSE_ACCEPTS * (1 - 1e-9)


def det(fpr: Floats, tpr: Floats) -> tuple[Floats, Floats]:
    """Normal deviates of (FPR, FNR), a straight line where scores are normal; what lies at infinity is left out."""
    inside = (fpr > 0) & (fpr < 1) & (tpr > 0) & (tpr < 1)
    return deviate(fpr[inside]), deviate(1 - tpr[inside])


def deviate(rate: Floats | Sequence[float]) -> Floats:
    """The normal deviate of each rate between 0 and 1."""
    return np.array([_NORMAL.inv_cdf(float(value)) for value in rate])


def histogram(score: Floats, same: Bools, bins: int = 60) -> tuple[Floats, Ints, Ints]:
    """(edges, genuine, impostor): how many trials of each kind lie in each of the equal steps over all scores."""
    edges = np.histogram_bin_edges(score, bins)
    return edges, np.histogram(score[same], edges)[0], np.histogram(score[~same], edges)[0]


def _side(name: str, score: npt.ArrayLike) -> npt.NDArray[np.generic]:
    flat = np.asarray(score).reshape(-1)
    if not len(flat):
        raise SelfsameError(f"scores: no {name} scores")
    if not np.isfinite(flat).all():
        raise SelfsameError(f"scores: {name} scores must be finite, {int((~np.isfinite(flat)).sum())} are not")
    return flat
