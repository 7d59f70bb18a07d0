"""P@k: which classes fit a sample best, also where it has several true labels and there are a million classes.

Shapes: S samples, C classes, R and T those of one block, K best classes, H true labels that were found. Of equal scores
the lower class comes first, so that a ranking does not depend on blocks, device or sorting.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from selfsame.data.sets.xc import MultiLabelled, Ragged
from selfsame.errors import SelfsameError
from selfsame.measure.curves import Ints
from selfsame.methods.base import LocalLoss

# The first sample and the first class of a block of scores, and the block: row after row, each from left to right.
Blocks = Iterable[tuple[int, int, Tensor]]

KS = (1, 3, 5)

_ROWS = 256
_MOST_SCORES = 1 << 22  # in one block: 16 MB of float32
_GROUP = 64
_LOW = 0x7FFFFFFF
_LOWEST = -(2**63)
_INFINITY = 0x7F800000  # its bits; those of NaN are above


def precision(place_H: Tensor | Ints, samples: int, ks: Sequence[int]) -> dict[int, float]:
    """P@k: the share of true labels among the k best classes, averaged over samples (FedAwS, Table 3).

    From the places that true labels take among all classes, 0 for the best; those far behind may be missing. The
    divisor is k also where a sample has fewer labels.
    """
    return {k: int((place_H < k).sum()) / (k * samples) for k in ks}


def places(score_RC: Tensor, class_R: Tensor) -> Tensor:
    """The place of each sample's own class among all; a score that is not a number is taken to be better."""
    own_R1 = score_RC.gather(1, class_R[:, None])
    tied_RC = (score_RC == own_R1) & (torch.arange(score_RC.shape[1], device=score_RC.device) < class_R[:, None])
    return (tied_RC | ~(score_RC <= own_R1)).sum(1)


def places_in(blocks: Iterable[Tensor], class_S: Tensor) -> Tensor:
    """The same from scores that come in blocks of rows."""
    found, at = [], 0
    for score_RC in blocks:
        found.append(places(score_RC, class_S[at : at + len(score_RC)]))
        at += len(score_RC)
    return torch.cat(found)


def label_precision(
    method: LocalLoss, emb_SD: Tensor, template_CD: Tensor, samples: MultiLabelled, ks: Sequence[int] = KS
) -> dict[int, float]:
    """P@k against all true labels, for each k that there are classes for; samples that were missed have no hit."""
    ks = [k for k in ks if k <= len(template_CD)]
    best_SK = best_classes(score_blocks(method, emb_SD, template_CD), max(ks))
    return precision(label_places(best_SK, samples.labels), len(emb_SD) + samples.missed, ks)


def matrix_precision(score_SC: NDArray[np.floating[Any]], true_SC: Any, ks: Sequence[int] = KS) -> dict[int, float]:
    """P@k of scores against true labels, which are the entries of a sparse matrix of SciPy in CSR form."""
    ks = [k for k in ks if k <= score_SC.shape[1]]
    best_SK = best_classes([(0, 0, torch.from_numpy(score_SC))], max(ks))
    offset, value = (torch.from_numpy(part.astype(np.int64)) for part in (true_SC.indptr, true_SC.indices))
    return precision(label_places(best_SK, Ragged(offset, value)), true_SC.shape[0], ks)


def score_blocks(
    method: LocalLoss, emb_SD: Tensor, template_CD: Tensor, most: int = _MOST_SCORES
) -> Iterator[tuple[int, int, Tensor]]:
    """The scores of all samples against all classes, at most `most` at a time."""
    rows = min(_ROWS, most)
    columns = most // rows
    for row in range(0, len(emb_SD), rows):
        for column in range(0, len(template_CD), columns):
            yield row, column, method.score(emb_SD[row : row + rows], template_CD[column : column + columns])


def best_classes(score: Blocks, k: int) -> Tensor:
    """The k classes of highest score, in float32, of each sample (S, K), best first, from scores in blocks."""
    best: dict[int, Tensor] = {}
    for row, column, part_RT in score:
        key_RK = _best_keys(part_RT, column, k)
        both_RK = torch.cat([best[row], key_RK], 1) if row in best else key_RK
        best[row] = both_RK.topk(min(k, both_RK.shape[1]), 1).values
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


def label_places(best_SK: Tensor, labels: Ragged) -> Tensor:
    """The places (H,) of the true labels that are among their samples' best classes."""
    offset, value = labels.offset.to(best_SK.device), labels.value.to(best_SK.device, torch.int64)
    classes = int(max(best_SK.max(), value.max() if len(value) else best_SK.max())) + 1
    sample = torch.arange(len(labels), device=best_SK.device)
    true = sample.repeat_interleave(offset.diff()) * classes + value
    return torch.isin(sample[:, None] * classes + best_SK, true).nonzero()[:, 1]
