"""Error rates read off an operating curve: FPR and TPR, arrays that rise from accepting nobody to accepting everybody.

The curve need not hold every threshold: corners suffice, all figures here are those of the straight lines between them
or lie on a corner.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

FALSE_ACCEPTS = 10  # that a rate must rest on: with fewer, the threshold hangs on single trials
_NORMAL = NormalDist()


def equal_error(fpr: Floats, tpr: Floats) -> float:
    """The rate at which false accepts and false rejects are equally frequent, on the straight lines of the curve."""
    gap = fpr + tpr - 1  # FPR - FNR, from -1 to 1
    right = int(np.argmax(gap >= 0))
    if right == 0:
        return float(fpr[0])
    part = -gap[right - 1] / (gap[right] - gap[right - 1])
    return float(fpr[right - 1] + part * (fpr[right] - fpr[right - 1]))


def area(fpr: Floats, tpr: Floats) -> float:
    """The area under the straight lines of the curve, which is the AUROC."""
    return float(np.dot(np.diff(fpr), tpr[1:] + tpr[:-1]) / 2)


def tpr_at_fpr(fpr: Floats, tpr: Floats, at: float) -> float:
    """The highest TPR of a threshold whose FPR is at most `at`."""
    return float(tpr[np.searchsorted(fpr, at, "right") - 1])


def supported(at: float, impostors: int) -> bool:
    """Whether so many impostor trials give the false accepts that a figure at this FPR must rest on."""
    return at * impostors >= FALSE_ACCEPTS * (1 - 1e-9)


def min_dcf(fpr: Floats, tpr: Floats, p_target: float, c_miss: float = 1.0, c_fa: float = 1.0) -> float:
    """The least detection cost over all thresholds, in units of the better of accepting nobody and everybody.

    The cost is c_miss * p_target * FNR + c_fa * (1 - p_target) * FPR; VoxCeleb takes p_target 0.01 or 0.05, costs 1.
    """
    miss, false_accept = c_miss * p_target, c_fa * (1 - p_target)
    return float(np.min(miss * (1 - tpr) + false_accept * fpr) / min(miss, false_accept))


def det(fpr: Floats, tpr: Floats) -> tuple[Floats, Floats]:
    """Normal deviates of (FPR, FNR), a straight line where scores are normal; what lies at infinity is left out."""
    inside = (fpr > 0) & (fpr < 1) & (tpr > 0) & (tpr < 1)
    return deviate(fpr[inside]), deviate(1 - tpr[inside])


def deviate(rate: Floats | Sequence[float]) -> Floats:
    """The normal deviate of each rate between 0 and 1."""
    return np.array([_NORMAL.inv_cdf(float(value)) for value in rate])


def outline(fpr: Floats, tpr: Floats, points: int = 400) -> Ints:
    """Places of at most about `points` of the curve for plotting, dense at both ends, where a log scale looks."""
    if len(fpr) <= points:
        return np.arange(len(fpr))
    steps = np.geomspace(1e-6, 1, points // 4)
    fnr = 1 - tpr
    places = [
        np.searchsorted(fpr, steps, "right") - 1,
        len(fnr) - np.searchsorted(fnr[::-1], steps, "right"),
        np.searchsorted(fpr + tpr, np.linspace(0, 2, points // 2)),
        np.array([0, len(fpr) - 1]),
    ]
    return np.unique(np.clip(np.concatenate(places), 0, len(fpr) - 1))


def histogram(score: Floats, same: Bools, bins: int = 60) -> tuple[Floats, Ints, Ints]:
    """(edges, genuine, impostor): how many trials of each kind lie in each of the equal steps over all scores."""
    edges = np.histogram_bin_edges(score, bins)
    return edges, np.histogram(score[same], edges)[0], np.histogram(score[~same], edges)[0]
