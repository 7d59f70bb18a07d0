"""FDML's losses and their derivatives by the embeddings (Algorithm 1), in closed form.

Every loss here depends on the distances between samples alone. So it is enough to know how strongly a, as an anchor,
pushes every other sample j away, v_aj = -(d loss / d dist_aj) / dist_aj, negative where it pulls; then

    d loss / d emb_a = sum over j of (v_aj + v_ja) (emb_j - emb_a)

which is two products of matrices. For triplets, -d loss / d dist_an is how many of a's positives have the negative n
within their margin, and d loss / d dist_ap how many negatives are within that of p: how two lists of numbers lie to
each other, which sorting tells, and no loop over triplets. Work is O(n^2 (d + log n)) for n samples, done for a block
of anchors at a time, so that no n x n array is held.

Shapes: S samples sorted by label, B anchors of a block, K the most positives that any of them has, D dimensions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]  # of numbers; the suffix of a name says what shape
KINDS = ("batch-all", "semi-hard", "batch-hard", "contrastive", "multi-similarity")
AVERAGES = ("active", "all")
LARGEST = 1e100  # of an embedding's numbers: squares must not overflow
NEVER = 1e300  # the distance of a sample that is no negative: beyond every margin, and nothing times it is nothing
_BLOCK = 2**17  # distances held at a time: 1 MiB, which fits a core's cache
_FEW = 32  # positives of an anchor up to which comparing with each is faster than sorting; twice this fits a byte


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

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"loss: kind is one of {', '.join(KINDS)}")
        if self.average not in AVERAGES:
            raise ValueError(f"loss: average is one of {', '.join(AVERAGES)}")
        for name in ("squared", "normalise"):
            if type(getattr(self, name)) is not bool:
                raise ValueError(f"loss: {name} is true or false")
        for name in ("margin", "alpha", "beta"):
            if type(getattr(self, name)) not in (int, float) or not 0 < getattr(self, name) <= 1e6:
                raise ValueError(f"loss: {name} is a number above 0 and at most 1e6")
        if type(self.base) not in (int, float) or not -1 <= self.base <= 1:
            raise ValueError("loss: base is a cosine, from -1 to 1")


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
    order_S = np.argsort(label_S, kind="stable")
    x_SD, label_S = x_SD[order_S], label_S[order_S]
    similar = loss.kind == "multi-similarity"
    sphere, squared = loss.normalise or similar, loss.squared or similar
    length_S1 = np.sqrt((x_SD**2).sum(1, keepdims=True))
    if sphere:
        x_SD /= np.where(length_S1 > 0, length_S1, 1)
    value, grad_SD = 0.0, np.zeros_like(x_SD)
    for rule in _RULES[loss.kind] if len(x_SD) else ():
        space = _Space(x_SD, label_S, squared)
        few = rule is _triplets and space.positives <= _FEW
        total, active, terms, part_SD = _half_sweep(space, loss) if few else _sweep(space, rule, loss)
        count = max(1, terms if loss.average == "all" else active)
        value += total / count
        grad_SD += part_SD / count
    if sphere:  # only what is tangential moves a point of the sphere
        grad_SD -= (grad_SD * x_SD).sum(1, keepdims=True) * x_SD
        grad_SD /= np.where(length_S1 > 0, length_S1, np.inf)
    out_SD = np.empty_like(grad_SD)
    out_SD[order_S] = grad_SD
    return value, out_SD


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
        self.positives = max(1, int((self.end_S - self.begin_S).max()) - 1)

    def mates(self, first: int, last: int) -> tuple[Array, Array]:
        """The other samples of each anchor's label, the anchor itself where there are fewer, and which are others."""
        begin_B1, anchor_B1 = self.begin_S[first:last, None], np.arange(first, last)[:, None]
        mate_BK = begin_B1 + np.arange(max(1, (self.end_S - self.begin_S)[first:last].max() - 1))
        mate_BK += mate_BK >= anchor_B1
        there_BK = mate_BK < self.end_S[first:last, None]
        return np.where(there_BK, mate_BK, anchor_B1), there_BK

    def distances(self, first: int, last: int, start: int) -> tuple[Array, Array]:
        """From samples first to last to those from `start` on, and where they are zero."""
        dist_BT = self.left_SE[first:last] @ self.right_ES[:, start:]
        zero_X = np.flatnonzero(dist_BT <= self.nearest)
        dist_BT.ravel()[zero_X] = 0
        return (dist_BT if self.squared else np.sqrt(dist_BT, out=dist_BT)), zero_X

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
        dist_BS, zero_X = space.distances(first, last, 0)
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


def _half_sweep(space: _Space, loss: Loss) -> tuple[float, int, int, Array]:
    """`_sweep` with `_triplets` for anchors with few positives, every distance computed once instead of twice.

    The edges of all anchors come first. Then the distance of a and j is held against those of a and those of j, one
    after another: for so few, that is faster than sorting. T samples are in a block or after it, R after it.
    """
    x_SD, samples = space.x_SD, len(space.x_SD)
    mate_SK, there_SK = space.mates(0, samples)
    pos_SK = np.stack([((x_SD[mate_S] - x_SD) ** 2).sum(1) for mate_S in mate_SK.T], 1)
    pos_SK = pos_SK if space.squared else np.sqrt(pos_SK)
    edges = [(edge_SK, edge_SK.T.copy()) for edge_SK in _edges(pos_SK, there_SK, loss)]
    below_SK, moved_SE, pushes = np.zeros(pos_SK.shape, np.int64), np.zeros_like(space.with_one_SE), 0.0
    step = min(255, max(8, 2 * _BLOCK // samples))  # a byte holds the counts of so many rows
    for first in range(0, samples, step):
        last = min(first + step, samples)
        rows, columns = last - first, samples - first
        dist_BT, zero_X = space.distances(first, last, first)
        own_B1 = np.arange(rows)[:, None]
        mate_BK = mate_SK[first:last] - first
        np.put_along_axis(dist_BT, np.where(mate_BK < 0, own_B1, mate_BK), NEVER, 1)
        np.put_along_axis(dist_BT, own_B1, NEVER, 1)
        count_BT = np.zeros(dist_BT.shape, np.uint8)
        for change, (edge_SK, edge_KS) in zip((np.add, np.subtract), edges):
            # Against the edges of the block's own anchors; in eights, which are counted a word at a time.
            under_BKT = np.zeros((rows, space.positives, -(-columns // 8) * 8), bool)
            _less(dist_BT[:, None], edge_SK[first:last, :, None], under_BKT[:, :, :columns])
            change(count_BT, under_BKT[:, :, :columns].sum(1, dtype=np.uint8), out=count_BT)
            below_BK = np.bitwise_count(under_BKT.view(np.uint64)).sum(2, dtype=np.int64)
            change(below_SK[first:last], below_BK, out=below_SK[first:last])
            # Against the edges of the anchors after it, for which the block's samples are negatives.
            under_BKR = np.empty((rows, space.positives, columns - rows), bool)
            _less(dist_BT[:, None, rows:], edge_KS[:, last:], under_BKR)
            change(count_BT[:, rows:], under_BKR.sum(1, dtype=np.uint8), out=count_BT[:, rows:])
            change(below_SK[last:], under_BKR.sum(0, dtype=np.uint8).T, out=below_SK[last:])
        slope_BT = count_BT.astype(np.float64)
        pushes += float(np.vdot(slope_BT, dist_BT))
        slope_BT[:, :rows] += slope_BT[:, :rows].T.copy()  # of the block's pairs, only one anchor's edges were asked
        v_BT = space.strengths(slope_BT, dist_BT, zero_X)
        moved_SE[first:last] += v_BT @ space.with_one_SE[first:]
        moved_SE[last:] += v_BT[:, rows:].T @ space.with_one_SE[first:last]
    grad_SD = moved_SE[:, :-1] - moved_SE[:, -1:] * x_SD

    total = np.vdot(below_SK, pos_SK + loss.margin) - pushes
    mates_S = there_SK.sum(1)
    pull_SK = space.strengths(below_SK, pos_SK, np.flatnonzero(pos_SK == 0))
    place_S1 = np.arange(samples)[:, None] - space.begin_S[:, None]
    pull_SK += pull_SK[mate_SK, place_S1 - (np.arange(samples)[:, None] > mate_SK)]  # each pulls and is pulled
    for mate_S, pull_S in zip(mate_SK.T, pull_SK.T):
        grad_SD -= pull_S[:, None] * (x_SD[mate_S] - x_SD)
    return float(total), int(below_SK.sum()), int(mates_S @ (samples - 1 - mates_S)), grad_SD


def _less(left: Array, right: Array, out: Array) -> None:
    """out = left < right, without the copies that numpy makes of rows shorter than a third of its buffer."""
    before = np.setbufsize(1024)
    try:
        np.less(left, right, out=out)
    finally:
        np.setbufsize(before)


def _edges(pos_BK: Array, there_BK: Array, loss: Loss) -> list[Array]:
    """A triplet is active if its negative is nearer than the first of these and not nearer than the second."""
    edges = [pos_BK + loss.margin]
    if loss.kind == "semi-hard":
        edges.append(np.minimum(np.nextafter(pos_BK, np.inf), edges[0]))  # farther than the positive
    return [np.where(there_BK, edge_BK, -np.inf) for edge_BK in edges]


def _triplets(pos_BK: Array, there_BK: Array, neg_BS: Array, loss: Loss) -> _Terms:
    """(1), max(d_ap - d_an + margin, 0), over all triplets, or those with d_an > d_ap: batch-all, semi-hard."""
    above_BS, below_BK = np.zeros(neg_BS.shape, np.int64), np.zeros(pos_BK.shape, np.int64)
    for sign, edge_BK in zip((1, -1), _edges(pos_BK, there_BK, loss)):
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
}
