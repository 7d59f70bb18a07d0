"""How well scores tell the owner from everybody else; a larger score always means a closer match.

Shapes: S samples, T templates, G labels a sample.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from selfsame.errors import SelfsameError
from selfsame.streams import host_generator

Array = npt.NDArray[np.generic]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Roc:
    """The operating points of accepting at score >= threshold, from accepting nobody (threshold inf) to everybody."""

    fpr: Floats
    tpr: Floats
    threshold: Floats


def roc(genuine: Array | Tensor, impostor: Array | Tensor) -> Roc:
    """One point for every distinct score."""
    genuine, impostor = _side("genuine", genuine), _side("impostor", impostor)
    score = np.concatenate([genuine, impostor])
    order = np.argsort(score)[::-1]
    score = score[order]
    last = np.append(np.flatnonzero(score[1:] != score[:-1]), len(score) - 1)  # of each run of equal scores
    accepted = np.cumsum(order < len(genuine), dtype=np.int64)[last]
    return Roc(
        fpr=np.append(0.0, (last + 1 - accepted) / len(impostor)),
        tpr=np.append(0.0, accepted / len(genuine)),
        threshold=np.append(np.inf, score[last].astype(np.float64)),
    )


def auroc(genuine: Array | Tensor, impostor: Array | Tensor) -> float:
    """The chance that a genuine score exceeds an impostor's, where equal scores count half."""
    genuine, impostor = np.sort(_side("genuine", genuine)), np.sort(_side("impostor", impostor))
    below = np.searchsorted(impostor, genuine, "left").sum(dtype=np.int64)
    not_above = np.searchsorted(impostor, genuine, "right").sum(dtype=np.int64)
    return float((below + not_above) / 2 / len(genuine) / len(impostor))


def eer(genuine: Array | Tensor, impostor: Array | Tensor) -> tuple[float, float]:
    """(rate, threshold) where false accepts and false rejects are equally frequent, on straight lines of the ROC."""
    sides = [np.sort(_side("genuine", genuine)), np.sort(_side("impostor", impostor))]

    def point(threshold: float) -> tuple[float, float]:
        """FPR, and FPR - FNR, which falls from 1 to -1 as the threshold rises."""
        tpr, fpr = (float(len(side) - np.searchsorted(side, threshold)) / len(side) for side in sides)
        return fpr, fpr + tpr - 1

    # Of the curve only the points around the crossing are needed: the largest score at which FPR >= FNR, found on
    # either side by halving, and the next score above it.
    reached = [bisect.bisect_right(side, 0.0, key=lambda score: -point(score)[1]) for side in sides]
    low = max(float(side[end - 1]) for side, end in zip(sides, reached) if end)
    above = [np.searchsorted(side, low, "right") for side in sides]
    high = min((float(side[end]) for side, end in zip(sides, above) if end < len(side)), default=np.inf)
    (left, short), (right, over) = point(high), point(low)
    part = -short / (over - short)
    threshold = low if np.isinf(high) or part == 1 else high + part * (low - high)
    return float(left + part * (right - left)), float(threshold)


def thin(curve: Roc, points: int = 200) -> Roc:
    """At most `points` of the curve, its ends among them, for plotting.

    Straight lines between them miss no rate by more than 2 / (points // 2 - 1): the curve is cut into pieces of equal
    FPR + TPR, and the points on both sides of every cut stay, so that a jump stays a jump.
    """
    if points < 4:
        raise SelfsameError(f"thin: expected at least 4 points, got {points}")
    if len(curve.fpr) <= points:
        return curve
    along = curve.fpr + curve.tpr
    cut = np.linspace(0.0, along[-1], points // 2)
    after = np.searchsorted(along, cut, "left")
    before = np.searchsorted(along, cut, "right") - 1
    keep = np.unique(np.concatenate([after, before, [0, len(along) - 1]]))
    return Roc(curve.fpr[keep], curve.tpr[keep], curve.threshold[keep])


def precision_at_k(score_ST: Array | Tensor, label_S: Array | Tensor, label_T: Array | Tensor, k: int) -> float:
    """Share of the k best templates that carry the sample's label, averaged over samples.

    For samples with several labels `label_S` has shape (S, G), padded with a label that no template has.
    """
    score, of_sample, of_template = _table(score_ST, label_S, label_T)
    if not 1 <= k <= score.shape[1]:
        raise SelfsameError(f"precision at k: expected k from 1 to the {score.shape[1]} templates, got {k}")
    found_SK = of_template[score.topk(k, dim=1).indices]
    hit_SK = (found_SK[:, :, None] == of_sample.reshape(len(score), 1, -1)).any(2)
    return float(hit_SK.double().mean())


def precision_at_1(score_ST: Array | Tensor, label_S: Array | Tensor, label_T: Array | Tensor) -> float:
    """Share of samples whose best template carries their label: classification accuracy."""
    return precision_at_k(score_ST, label_S, label_T, 1)


def one_class_auroc(score_ST: Array | Tensor, label_S: Array | Tensor, label_T: Array | Tensor) -> float:
    """Mean over templates of the AUROC of their own class against all other samples (FedMetric, Table 2).

    Templates without samples on both sides are left out.
    """
    score, of_sample, of_template = (x.numpy() for x in _table(score_ST, label_S, label_T))
    rates = []
    for column, label in zip(score.T, of_template):
        own = of_sample == label
        if own.any() and not own.all():
            rates.append(auroc(column[own], column[~own]))
    if not rates:
        raise SelfsameError("one-class AUROC: no template has both samples of its class and others")
    return float(np.mean(rates))


def trials(label_S: Array | Tensor, count: int, seed: int) -> tuple[Ints, Ints, npt.NDArray[np.bool_]]:
    """(left, right, same): half genuine and half impostor pairs of different samples, none twice.

    Each kind is drawn evenly from all its pairs, or is all of them where there are no more than `count // 2`.
    """
    label = _numpy(label_S)
    if label.ndim != 1 or count < 2:
        raise SelfsameError(
            f"trials: expected one label a sample and a count of at least 2, got {label.shape} and {count}"
        )
    order = np.argsort(label, kind="stable")
    _, start, size = np.unique(label[order], return_index=True, return_counts=True)
    start, size = start.astype(np.int64), size.astype(np.int64)
    end = np.repeat(start + size, size)  # of each sorted sample's class
    place = np.arange(len(order), dtype=np.int64)
    # Sorted sample i has a genuine pair with every later one of its class and an impostor pair with all after that:
    # either kind of pair is numbered by running through i and then through its partners.
    pairs = []
    for kind, first, partners in (("genuine", place + 1, end - place - 1), ("impostor", end, len(order) - end)):
        until = np.cumsum(partners)
        total = int(until[-1]) if len(until) else 0
        if total == 0:
            raise SelfsameError(f"trials: no {kind} pair among {len(order)} samples of {len(size)} classes")
        if total <= count // 2:
            number = np.arange(total, dtype=np.int64)
        else:
            number = host_generator(seed, f"trials/{kind}").choice(total, count // 2, replace=False, shuffle=False)
            number.sort()
        i = np.searchsorted(until, number, "right")
        pairs.append((order[i], order[first[i] + number - (until[i] - partners[i])]))
    (left_g, right_g), (left_i, right_i) = pairs
    same = np.arange(len(left_g) + len(left_i)) < len(left_g)
    return np.concatenate([left_g, left_i]), np.concatenate([right_g, right_i]), same


def _numpy(x: Array | Tensor) -> Array:
    if isinstance(x, Tensor):
        x = x.detach().cpu()
        return x.float().numpy() if x.dtype == torch.bfloat16 else x.numpy()
    return np.asarray(x)


def _side(name: str, score: Array | Tensor) -> Array:
    flat = _numpy(score).reshape(-1)
    if not len(flat):
        raise SelfsameError(f"scores: no {name} scores")
    if not np.isfinite(flat).all():
        raise SelfsameError(f"scores: {name} scores must be finite, {int((~np.isfinite(flat)).sum())} are not")
    return flat


def _table(score_ST: Array | Tensor, label_S: Array | Tensor, label_T: Array | Tensor) -> tuple[Tensor, Tensor, Tensor]:
    score, of_sample, of_template = (torch.as_tensor(_numpy(x)) for x in (score_ST, label_S, label_T))
    if score.dim() != 2 or not score.numel() or score.shape != (len(of_sample), len(of_template)):
        raise SelfsameError(
            f"scores: expected a score for each of {len(of_sample)} samples and {len(of_template)} templates, "
            f"got shape {tuple(score.shape)}"
        )
    if not torch.isfinite(score).all():
        raise SelfsameError(f"scores: must be finite, {int((~torch.isfinite(score)).sum())} are not")
    return score, of_sample, of_template
