"""Precision at k where a sample has several true labels and there may be a million classes.

Shapes: S samples, C classes, R and T those of one block, K best classes. Scores are compared in float32; of equal ones
the lower class comes first, so that a ranking does not depend on blocks, device or sorting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from selfsame.data.sets.xc import Ragged
from selfsame.errors import SelfsameError

# The first sample and the first class of a block of scores, and the block: row after row, each from left to right.
Blocks = Iterable[tuple[int, int, Tensor]]

_ROWS = 256
_MOST_SCORES = 1 << 22  # in one block: 16 MB of float32
_GROUP = 64
_LOW = 0x7FFFFFFF
_LOWEST = -(2**63)
_INFINITY = 0x7F800000  # its bits; those of NaN are above


def score_blocks(
    score: Callable[[Tensor, Tensor], Tensor], emb_SD: Tensor, template_CD: Tensor, most: int = _MOST_SCORES
) -> Iterator[tuple[int, int, Tensor]]:
    """The scores of all samples against all classes, at most `most` at a time."""
    rows = min(_ROWS, most)
    columns = most // rows
    for row in range(0, len(emb_SD), rows):
        for column in range(0, len(template_CD), columns):
            yield row, column, score(emb_SD[row : row + rows], template_CD[column : column + columns])


def best_classes(score: Tensor | Blocks, k: int) -> Tensor:
    """The k classes of highest score of each sample (S, K), best first, from scores (S, C) whole or in blocks."""
    best: dict[int, Tensor] = {}
    classes = 0
    for row, column, part_RT in [(0, 0, score)] if isinstance(score, Tensor) else score:
        key_RK = _best_keys(part_RT, column, k)
        both_RK = torch.cat([best[row], key_RK], 1) if row in best else key_RK
        best[row] = both_RK.topk(min(k, both_RK.shape[1]), 1).values
        classes = max(classes, column + part_RT.shape[1])
    if k > classes:
        raise SelfsameError(f"ranking: the {k} best classes asked for, there are {classes}")
    key_SK = torch.cat(list(best.values()))
    if bool((key_SK >> 32 > _INFINITY).any()):
        raise SelfsameError("ranking: scores must be numbers, some are NaN")
    return _LOW - (key_SK & _LOW)


def _best_keys(score_RT: Tensor, first: int, k: int) -> Tensor:
    """The k highest keys of a block: they lie in the k groups of columns with the highest ones, found in one pass."""
    end = first + score_RT.shape[1]
    score_RT = F.pad(score_RT.float(), (0, -score_RT.shape[1] % _GROUP), value=-torch.inf)
    score_RGL = score_RT.unflatten(1, (-1, _GROUP))
    groups = score_RGL.shape[1]
    top_RG = _keys(score_RGL.amax(2), torch.arange(groups, device=score_RT.device)).topk(min(k, groups), 1).values
    group_RG = _LOW - (top_RG & _LOW)
    found_RGL = score_RGL.gather(1, group_RG[:, :, None].expand(-1, -1, _GROUP))
    column_RGL = first + group_RG[:, :, None] * _GROUP + torch.arange(_GROUP, device=score_RT.device)
    key_RK = torch.where(column_RGL < end, _keys(found_RGL, column_RGL), _LOWEST).flatten(1)
    return key_RK.topk(min(k, key_RK.shape[1]), 1).values


def _keys(score: Tensor, column: Tensor) -> Tensor:
    """Distinct integers in the order of (score, lower column first): the float's bits above the column counted down."""
    # No negative zero, and no negative NaN: either sign of NaN must come out on top to be found.
    bits = torch.where(score.isnan(), torch.nan, score + 0.0).view(torch.int32).long()
    ordered = bits ^ ((bits >> 63) & _LOW)  # the bits of negative floats grow the wrong way
    return (ordered << 32) | (_LOW - column)


def precision_at_k(
    score: Tensor | Blocks, labels: Ragged, ks: Sequence[int] = (1, 3, 5), missed: int = 0
) -> dict[int, float]:
    """P@k: the share of true labels among the k best classes, averaged over samples (FedAwS, Table 3).

    The divisor is k also where a sample has fewer labels. `missed` more samples, that are not scored, have no hit.
    """
    if not ks or min(ks) < 1:
        raise SelfsameError(f"ranking: k must be 1 or more, got {list(ks)}")
    best_SK = best_classes(score, max(ks))
    if len(best_SK) != len(labels):
        raise SelfsameError(f"ranking: scores of {len(best_SK)} samples, labels of {len(labels)}")
    hit_SK = _hits(best_SK, labels)
    return {k: float(hit_SK[:, :k].sum()) / (k * (len(hit_SK) + missed)) for k in ks}


def _hits(best_SK: Tensor, labels: Ragged) -> Tensor:
    """Which of the classes are true labels of their sample."""
    offset, value = labels.offset.to(best_SK.device), labels.value.to(best_SK.device, torch.int64)
    classes = int(max(best_SK.max(), value.max() if len(value) else best_SK.max())) + 1
    sample = torch.arange(len(labels), device=best_SK.device)
    true = sample.repeat_interleave(offset.diff()) * classes + value
    return torch.isin(sample[:, None] * classes + best_SK, true)
