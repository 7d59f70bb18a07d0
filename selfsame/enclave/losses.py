"""FDML's losses and their derivatives by the embeddings (Algorithm 1), in closed form.

Every loss but one depends on the distances between samples alone. So it is enough to know how strongly a, as an anchor,
pushes every other sample j away, v_aj = -(d loss / d dist_aj) / dist_aj, negative where it pulls; then

    d loss / d emb_a = sum over j of (v_aj + v_ja) (emb_j - emb_a)

which is two products of matrices. For triplets, -d loss / d dist_an is how many of a's positives have the negative n
within their margin, and d loss / d dist_ap how many negatives are within that of p: how two lists of numbers lie to
each other, which sorting tells, and no loop over triplets. Work is O(n^2 (d + log n)) for n samples, done for a block
of anchors at a time, so that no n x n array is held.

The margin softmax compares samples with a vector of each class, which the enclave keeps from round to round.

Shapes: S samples sorted by label, B anchors of a block, K the most positives that any of them has, D dimensions, C
classes that have a vector.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]  # of numbers; the suffix of a name says what shape
ON_SPHERE = ("multi-similarity", "supervised-contrastive", "margin-softmax")  # whatever `normalise` says
KINDS = ("batch-all", "semi-hard", "batch-hard", "contrastive", *ON_SPHERE)
AVERAGES = ("active", "all")
LARGEST = 1e100  # of an embedding's numbers: squares must not overflow
NEVER = 1e300  # the distance of a sample that is no negative: beyond every margin, and nothing times it is nothing
_BLOCK = 2**17  # distances held at a time: 1 MiB, which fits a core's cache
_FEW = 32  # positives of an anchor up to which comparing with each is faster than sorting; their number fits a byte


@dataclass(frozen=True)
class Loss:
    """Which loss the participants agreed to."""

    kind: str = "semi-hard"
    margin: float = 0.2
    squared: bool = False  # squared Euclidean distances, not the plain ones of (1)
    average: str = "active"  # over the terms above zero, or over all terms
    normalise: bool = False  # embeddings are divided by their lengths first
    alpha: float = 2.0  # multi-similarity: sharpness for positives,
    beta: float = 50.0  # for negatives,
    base: float = 0.5  # and the cosine that divides them
    temperature: float = 0.1  # supervised-contrastive: cosines are divided by it
    logit_scale: float = 16.0  # margin-softmax: cosines are multiplied by it,
    class_lr: float = 1.0  # and how fast the class vectors learn

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"loss: kind is one of {', '.join(KINDS)}")
        if self.average not in AVERAGES:
            raise ValueError(f"loss: average is one of {', '.join(AVERAGES)}")
        for name in ("squared", "normalise"):
            if type(getattr(self, name)) is not bool:
                raise ValueError(f"loss: {name} is true or false")
        for name in ("margin", "alpha", "beta"):
            if not self._within(name, 0, 1e6) or getattr(self, name) == 0:
                raise ValueError(f"loss: {name} is a number above 0 and at most 1e6")
        if not self._within("base", -1, 1):
            raise ValueError("loss: base is a cosine, from -1 to 1")
        if not self._within("temperature", 0.001, 1000):
            raise ValueError("loss: temperature is a number from 0.001 to 1000")
        if not self._within("logit_scale", 0, 1000) or self.logit_scale == 0:
            raise ValueError("loss: logit_scale is a number above 0 and at most 1000")
        if not self._within("class_lr", 0, 1e6):
            raise ValueError("loss: class_lr is a number from 0 to 1e6")

    def _within(self, name: str, least: float, most: float) -> bool:
        value = getattr(self, name)
        return type(value) in (int, float) and least <= value <= most

    @property
    def keeps(self) -> bool:
        """Whether it compares samples with vectors of classes, which are kept from round to round."""
        return self.kind == "margin-softmax"


@dataclass(frozen=True)
class _Terms:
    """A block's part of a loss: its sum, how many terms there are, and its derivatives by distance."""

    total: float
    active: int
    all: int
    pull_BK: Array  # d total / d distance to a positive
    push_BS: Array  # -d total / d distance to a negative


_Rule = Callable[[Array, Array, Array, Loss], _Terms]  # distances to positives, which of them exist, to negatives


def value_and_derivatives(emb_SD: Array, label_S: Array, loss: Loss) -> tuple[float, Array]:
    """The loss of these samples and its derivative by each embedding, in double precision (Algorithm 1)."""
    x_SD = _checked(emb_SD, label_S)
    if loss.keeps:
        _, place_S = np.unique(label_S, return_inverse=True)
        return margin_softmax(x_SD, place_S, first_vectors(x_SD, place_S), loss)[:2]
    order_S = np.argsort(label_S, kind="stable")
    x_SD, label_S = x_SD[order_S], label_S[order_S]
    similar = loss.kind in ON_SPHERE
    sphere, squared = loss.normalise or similar, loss.squared or similar
    length_S1 = _lengths(x_SD)
    if sphere:
        x_SD /= np.where(length_S1 > 0, length_S1, 1)
    value, grad_SD = 0.0, np.zeros_like(x_SD)
    for rule in _RULES[loss.kind] if len(x_SD) else ():
        total, active, terms, part_SD = _sweep(_Space(x_SD, label_S, squared), rule, loss)
        count = max(1, terms if loss.average == "all" else active)
        value += total / count
        grad_SD += part_SD / count
    if sphere:
        grad_SD = _tangential(grad_SD, x_SD, length_S1)
    out_SD = np.empty_like(grad_SD)
    out_SD[order_S] = grad_SD
    return value, out_SD


# The margin softmax: labels are the rows of a table of class vectors; a row of zeros is a class without one


def first_vectors(emb_SD: Array, label_S: Array, table_CD: Array | None = None) -> Array:
    """The table in which a class without a vector has the mean of its embeddings on the sphere, at unit length."""
    x_SD = _checked(emb_SD, label_S)
    if table_CD is None:
        table_CD = np.zeros((int(label_S.max(initial=-1)) + 1, x_SD.shape[1]))
    sum_CD = np.zeros_like(table_CD)
    np.add.at(sum_CD, label_S, _unit(x_SD))
    return np.where((table_CD != 0).any(1, keepdims=True), table_CD, _unit(sum_CD))


def margin_softmax(emb_SD: Array, label_S: Array, table_CD: Array, loss: Loss) -> tuple[float, Array, Array]:
    """(loss, its derivative by each embedding, and by each class vector).

    The mean cross-entropy of logit_scale (cosine - margin at the own class) over all classes that have a vector.
    """
    x_SD = _checked(emb_SD, label_S)
    length_S1, length_C1 = _lengths(x_SD), _lengths(table_CD)
    known_C = length_C1[:, 0] > 0
    x_SD, w_CD = _unit(x_SD), _unit(table_CD)
    counts_S = known_C[label_S]
    row_S = np.arange(len(x_SD))
    power_SC = loss.logit_scale * (x_SD @ w_CD.T)
    power_SC[row_S, label_S] -= loss.logit_scale * loss.margin
    power_SC[:, ~known_C] = -np.inf
    power_SC[~counts_S] = 0
    power_SC -= power_SC.max(1, keepdims=True, initial=-NEVER)
    own_S = power_SC[row_S, label_S]
    share_SC = np.exp(power_SC)
    all_S1 = share_SC.sum(1, keepdims=True)
    count = max(1, int(counts_S.sum()))
    value = float((np.log(all_S1[:, 0]) - own_S)[counts_S].sum()) / count
    share_SC /= all_S1
    share_SC[row_S, label_S] -= 1
    share_SC *= loss.logit_scale / count * counts_S[:, None]
    grad_SD = _tangential(share_SC @ w_CD, x_SD, length_S1)
    return value, grad_SD, _tangential(share_SC.T @ x_SD, w_CD, length_C1)


def moved_vectors(table_CD: Array, grad_CD: Array, loss: Loss) -> Array:
    """The class vectors after a step of gradient descent, at unit length."""
    return _unit(table_CD - loss.class_lr * grad_CD)


def _lengths(x_SD: Array) -> Array:
    return np.sqrt((x_SD**2).sum(1, keepdims=True))


def _unit(x_SD: Array) -> Array:
    """A zero vector stays zero."""
    length_S1 = _lengths(x_SD)
    return x_SD / np.where(length_S1 > 0, length_S1, 1)


def _tangential(grad_SD: Array, unit_SD: Array, length_S1: Array) -> Array:
    """The derivative by a vector from that by its direction: only what is tangential moves a point of the sphere."""
    grad_SD = grad_SD - (grad_SD * unit_SD).sum(1, keepdims=True) * unit_SD
    return grad_SD / np.where(length_S1 > 0, length_S1, np.inf)


def _checked(emb_SD: Array, label_S: Array) -> Array:
    if not isinstance(emb_SD, np.ndarray) or emb_SD.ndim != 2 or emb_SD.dtype not in (np.float32, np.float64):
        raise ValueError("embeddings must be a float32 or float64 array of samples x dimensions")
    if not isinstance(label_S, np.ndarray) or label_S.shape != emb_SD.shape[:1] or label_S.dtype.kind not in "iu":
        raise ValueError("labels must be one integer for each sample")
    x_SD = emb_SD.astype(np.float64)
    if not (np.abs(x_SD) <= LARGEST).all():  # false for NaN too
        raise ValueError(f"embeddings must be finite numbers of at most {LARGEST:g}")
    return x_SD


class _Space:
    """The samples' places, and the distances between any two of them."""

    def __init__(self, x_SD: Array, label_S: Array, squared: bool) -> None:
        # Distances do not depend on the origin, and are computed best from the middle: |a|^2 - 2 a.j + |j|^2.
        self.x_SD = x_SD - x_SD.mean(0)
        square_S1, one_S1 = (self.x_SD**2).sum(1, keepdims=True), np.ones((len(x_SD), 1))
        self.left_SE = np.hstack([-2 * self.x_SD, square_S1, one_S1])
        self.right_ES = np.hstack([self.x_SD, one_S1, square_S1]).T.copy()
        self.with_one_SE = np.hstack([self.x_SD, one_S1])
        # What rounding leaves of a distance of zero. So near, no direction is left and the derivative is none.
        self.nearest = (x_SD.shape[1] + 8) * np.finfo(np.float64).eps * square_S1.max()
        self.squared = squared
        self.begin_S = np.searchsorted(label_S, label_S, "left")
        self.end_S = np.searchsorted(label_S, label_S, "right")

    def mates(self, first: int, last: int) -> tuple[Array, Array]:
        """The other samples of each anchor's label, the anchor itself where there are fewer, and which are others."""
        begin_B1, anchor_B1 = self.begin_S[first:last, None], np.arange(first, last)[:, None]
        mate_BK = begin_B1 + np.arange(max(1, (self.end_S - self.begin_S)[first:last].max() - 1))
        mate_BK += mate_BK >= anchor_B1
        there_BK = mate_BK < self.end_S[first:last, None]
        return np.where(there_BK, mate_BK, anchor_B1), there_BK

    def distances(self, first: int, last: int) -> tuple[Array, Array]:
        """From samples first to last to all, and where they are zero."""
        dist_BS = self.left_SE[first:last] @ self.right_ES
        zero_X = np.flatnonzero(dist_BS <= self.nearest)
        dist_BS.ravel()[zero_X] = 0
        return (dist_BS if self.squared else np.sqrt(dist_BS, out=dist_BS)), zero_X

    def strengths(self, slope_X: Array, dist_X: Array, zero_X: Array) -> Array:
        """v from derivatives by distance; overwrites the distances."""
        if self.squared:
            return 2.0 * slope_X
        dist_X.ravel()[zero_X] = NEVER
        return np.divide(slope_X, dist_X, out=dist_X)


def _sweep(space: _Space, rule: _Rule, loss: Loss) -> tuple[float, int, int, Array]:
    """Sums over all anchors: (the loss's, active terms, all terms, the derivatives' by embedding)."""
    samples = len(space.x_SD)
    total, active, terms = 0.0, 0, 0
    moved_SE = np.zeros_like(space.with_one_SE)
    step = max(8, _BLOCK // samples)
    for first in range(0, samples, step):
        last = min(first + step, samples)
        mate_BK, there_BK = space.mates(first, last)
        dist_BS, zero_X = space.distances(first, last)
        pos_BK = np.take_along_axis(dist_BS, mate_BK, 1)
        np.put_along_axis(dist_BS, mate_BK, NEVER, 1)
        np.put_along_axis(dist_BS, np.arange(first, last)[:, None], NEVER, 1)
        part = rule(pos_BK, there_BK, dist_BS, loss)
        total, active, terms = total + part.total, active + part.active, terms + part.all
        v_BS = space.strengths(part.push_BS, dist_BS, zero_X)
        pull_BK = space.strengths(part.pull_BK, pos_BK, np.flatnonzero(pos_BK == 0))
        np.put_along_axis(v_BS, mate_BK, -pull_BK, 1)
        moved_SE[first:last] += v_BS @ space.with_one_SE
        moved_SE += v_BS.T @ space.with_one_SE[first:last]
    return total, active, terms, moved_SE[:, :-1] - moved_SE[:, -1:] * space.x_SD


def _edges(pos_BK: Array, there_BK: Array, loss: Loss) -> list[Array]:
    """A triplet is active if its negative is nearer than the first of these and not nearer than the second."""
    edges = [pos_BK + loss.margin]
    if loss.kind == "semi-hard":
        edges.append(np.minimum(np.nextafter(pos_BK, np.inf), edges[0]))  # farther than the positive
    return [np.where(there_BK, edge_BK, -np.inf) for edge_BK in edges]


def _triplets(pos_BK: Array, there_BK: Array, neg_BS: Array, loss: Loss) -> _Terms:
    """(1), max(d_ap - d_an + margin, 0), over all triplets, or those with d_an > d_ap: batch-all, semi-hard."""
    above_BS, below_BK = np.zeros(neg_BS.shape), np.zeros(pos_BK.shape, np.int64)
    for sign, edge_BK in zip((1, -1), _edges(pos_BK, there_BK, loss)):
        if edge_BK.shape[1] <= _FEW:
            count_BS = np.zeros(neg_BS.shape, np.uint8)
            for place, edge_B in enumerate(edge_BK.T):
                under_BS = neg_BS < edge_B[:, None]
                count_BS += under_BS
                below_BK[:, place] += sign * under_BS.sum(1, dtype=np.uint32).astype(np.int64)
            above_BS += sign * count_BS.astype(np.float64)
            continue
        for row, (neg_S, edge_K) in enumerate(zip(neg_BS, edge_BK)):
            above_BS[row] += sign * (len(edge_K) - np.searchsorted(np.sort(edge_K), neg_S, "right"))
            below_BK[row] += sign * np.searchsorted(np.sort(neg_S), edge_K, "left")
    total = np.vdot(below_BK, pos_BK + loss.margin) - np.vdot(above_BS, neg_BS)
    mates_B = there_BK.sum(1)
    terms = int(mates_B @ (neg_BS.shape[1] - 1 - mates_B))
    return _Terms(float(total), int(below_BK.sum()), terms, below_BK, above_BS)


def _batch_hard(pos_BK: Array, there_BK: Array, neg_BS: Array, loss: Loss) -> _Terms:
    """(1) over the triplet of each anchor's farthest positive and nearest negative; equals share the derivative."""
    pos_BK = np.where(there_BK, pos_BK, -np.inf)
    far_B1, near_B1 = pos_BK.max(1, keepdims=True), neg_BS.min(1, keepdims=True)
    whole_B1 = there_BK.any(1, keepdims=True) & (near_B1 < NEVER)
    gap_B1 = np.where(whole_B1, far_B1 - near_B1 + loss.margin, 0)
    active_B1 = gap_B1 > 0
    far_BK, near_BS = (pos_BK == far_B1) & active_B1, (neg_BS == near_B1) & active_B1
    pull_BK, push_BS = (is_it / np.maximum(is_it.sum(1, keepdims=True), 1) for is_it in (far_BK, near_BS))
    return _Terms(float(gap_B1[active_B1].sum()), int(active_B1.sum()), int(whole_B1.sum()), pull_BK, push_BS)


def _together(pos_BK: Array, there_BK: Array, neg_BS: Array, loss: Loss) -> _Terms:
    """The contrastive loss's positive half: the distance of each pair of one label."""
    active = int((there_BK & (pos_BK > 0)).sum())
    total = float(pos_BK[there_BK].sum())
    return _Terms(total, active, int(there_BK.sum()), there_BK, np.zeros(neg_BS.shape))


def _apart(pos_BK: Array, there_BK: Array, neg_BS: Array, loss: Loss) -> _Terms:
    """The contrastive loss's negative half: max(margin - d, 0) of each pair of two labels."""
    push_BS = neg_BS < loss.margin
    active, pairs = int(push_BS.sum()), neg_BS.size - int(there_BK.sum()) - len(neg_BS)
    total = float(active * loss.margin - neg_BS[push_BS].sum())
    return _Terms(total, active, pairs, np.zeros(pos_BK.shape), push_BS)


def _multi_similarity(pos_BK: Array, there_BK: Array, neg_BS: Array, loss: Loss) -> _Terms:
    """log(1 + sum exp(alpha (base - s))) / alpha over positives, and with beta (s - base) over negatives.

    s = 1 - d^2 / 2 is the cosine, so that the derivative by a squared distance is -1/2 of that by s.
    """
    near_B, pull_BK = _soft(np.where(there_BK, loss.base - 1 + pos_BK / 2, -NEVER), loss.alpha)
    far_B, push_BS = _soft(1 - neg_BS / 2 - loss.base, loss.beta)
    return _Terms(float((near_B + far_B).sum()), len(pos_BK), len(pos_BK), pull_BK / 2, push_BS / 2)


def _supervised_contrastive(pos_BK: Array, there_BK: Array, neg_BS: Array, loss: Loss) -> _Terms:
    """-log(exp(s_p / t) / sum exp(s / t)), the sum over all other samples, the mean over an anchor's positives.

    The cosine s is 1 - d^2 / 2 again; that 1 changes nothing.
    """
    near_BK, far_BS = (np.where(there_BK, pos_BK, NEVER) / (-2 * loss.temperature), neg_BS / (-2 * loss.temperature))
    mates_B1 = there_BK.sum(1, keepdims=True)
    whole_B1 = mates_B1 > 0
    top_B1 = np.where(whole_B1, np.maximum(near_BK.max(1, keepdims=True), far_BS.max(1, keepdims=True)), 0)
    near_power_BK, far_power_BS = np.exp(near_BK - top_B1), np.exp(far_BS - top_B1)
    sum_B1 = np.where(whole_B1, near_power_BK.sum(1, keepdims=True) + far_power_BS.sum(1, keepdims=True), 1)
    mean_B1 = np.where(there_BK, near_BK, 0).sum(1, keepdims=True) / np.maximum(mates_B1, 1)
    total = float((np.where(whole_B1, top_B1 + np.log(sum_B1), 0) - mean_B1).sum())
    pull_BK = (there_BK / np.maximum(mates_B1, 1) - near_power_BK / sum_B1) / (2 * loss.temperature)
    push_BS = far_power_BS / sum_B1 * whole_B1 / (2 * loss.temperature)
    anchors = int(whole_B1.sum())
    return _Terms(total, anchors, anchors, pull_BK, push_BS)


def _soft(s_BX: Array, sharpness: float) -> tuple[Array, Array]:
    """log(1 + sum exp(sharpness s)) / sharpness for each row, and its derivative by each s."""
    s_BX = sharpness * s_BX
    top_B1 = np.maximum(s_BX.max(1, keepdims=True), 0)
    power_BX = np.exp(s_BX - top_B1)
    sum_B1 = np.exp(-top_B1) + power_BX.sum(1, keepdims=True)
    return (top_B1 + np.log(sum_B1))[:, 0] / sharpness, power_BX / sum_B1


_RULES: dict[str, tuple[_Rule, ...]] = {
    "batch-all": (_triplets,),
    "semi-hard": (_triplets,),
    "batch-hard": (_batch_hard,),
    "contrastive": (_together, _apart),
    "multi-similarity": (_multi_similarity,),
    "supervised-contrastive": (_supervised_contrastive,),
}
