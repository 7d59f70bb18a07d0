"""The nearest rows of a very long table on CUDA, without the matrix of all products.

Rows are taken in groups of 128. A first kernel computes all products on tensor cores and keeps the largest of each
group; the k nearest rows lie in the k groups with the largest of these. A second kernel computes the products with the
rows of those groups again, in full float32, and the k largest are chosen among them.

The first pass rounds its inputs to 10 bits (TF32). A few groups more than k are looked into, so that rounding can drop
a neighbour only where more groups than that are tied to within a thousandth.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_GROUP = 128
_MORE = 6  # groups looked into beyond k


@triton.jit
def _kept(score, row_N, own_M, label_ptr, rows, LABELS: tl.constexpr, OWN: tl.constexpr):
    """The scores without rows that do not exist and rows of the query's own label."""
    keep = (row_N < rows)[None, :]
    if OWN:
        label_N = tl.load(label_ptr + row_N, mask=row_N < rows, other=-1) if LABELS else row_N.to(tl.int64)
        keep = keep & (own_M[:, None] != label_N[None, :])
    return tl.where(keep, score, float("-inf"))


@triton.jit
def _best_of_groups(
    query_ptr, table_ptr, over_ptr, own_ptr, label_ptr, best_ptr, queries, rows, groups,
    WIDE: tl.constexpr, TALL: tl.constexpr, GROUP: tl.constexpr, STEP: tl.constexpr,
    LABELS: tl.constexpr, OWN: tl.constexpr, SCALED: tl.constexpr,
):  # fmt: skip
    query_M = tl.program_id(0) * TALL + tl.arange(0, TALL)
    group = tl.program_id(1)
    row_N = group * GROUP + tl.arange(0, GROUP)
    score = tl.zeros((TALL, GROUP), tl.float32)
    for first in range(0, WIDE, STEP):
        at = first + tl.arange(0, STEP)
        a = tl.load(query_ptr + query_M[:, None] * WIDE + at[None, :], mask=(query_M < queries)[:, None], other=0.0)
        place = row_N.to(tl.int64)[:, None] * WIDE + at[None, :]
        b = tl.load(table_ptr + place, mask=(row_N < rows)[:, None], other=0.0)
        score = tl.dot(a, tl.trans(b), score, input_precision="tf32")
    if SCALED:
        score = score * tl.load(over_ptr + row_N, mask=row_N < rows, other=0.0)[None, :]
    own_M = tl.load(own_ptr + query_M, mask=query_M < queries, other=-1)
    score = _kept(score, row_N, own_M, label_ptr, rows, LABELS, OWN)
    tl.store(best_ptr + query_M.to(tl.int64) * groups + group, tl.max(score, axis=1), mask=query_M < queries)


@triton.jit
def _look_again(
    query_ptr, table_ptr, over_ptr, own_ptr, label_ptr, group_ptr, score_ptr, rows, looked,
    WIDE: tl.constexpr, GROUP: tl.constexpr, STEP: tl.constexpr,
    LABELS: tl.constexpr, OWN: tl.constexpr, SCALED: tl.constexpr,
):  # fmt: skip
    query = tl.program_id(0).to(tl.int64)
    number = tl.program_id(1)
    row_N = tl.load(group_ptr + query * looked + number) * GROUP + tl.arange(0, GROUP)
    score_N = tl.zeros((GROUP,), tl.float32)
    for first in range(0, WIDE, STEP):
        at = first + tl.arange(0, STEP)
        a = tl.load(query_ptr + query * WIDE + at)
        b = tl.load(table_ptr + row_N[:, None] * WIDE + at[None, :], mask=(row_N < rows)[:, None], other=0.0)
        score_N += tl.sum(a[None, :] * b, axis=1)
    if SCALED:
        score_N = score_N * tl.load(over_ptr + row_N, mask=row_N < rows, other=0.0)
    own_M = tl.load(own_ptr + query + tl.arange(0, 1))
    score_N = tl.reshape(_kept(score_N[None, :], row_N, own_M, label_ptr, rows, LABELS, OWN), (GROUP,))
    tl.store(score_ptr + (query * looked + number) * GROUP + tl.arange(0, GROUP), score_N)


def supported(query_MD: Tensor, table_ND: Tensor) -> bool:
    """Whether the kernels take these tensors."""
    plain = query_MD.dtype == table_ND.dtype == torch.float32
    return plain and query_MD.shape[1] % 32 == 0 and query_MD.is_contiguous() and table_ND.is_contiguous()


def nearest(
    query_MD: Tensor,
    table_ND: Tensor,
    k: int,
    *,
    label_M: Tensor | None = None,
    label_N: Tensor | None = None,
    cosine: bool = False,
) -> tuple[Tensor, Tensor]:
    """As `neighbours.nearest`; `cosine` divides by the lengths of the table's rows."""
    queries, rows, wide = len(query_MD), len(table_ND), query_MD.shape[1]
    k = min(k, rows)
    groups = -(-rows // _GROUP)
    looked = min(k + _MORE, groups)
    # A row of zeros stays one.
    over_N = 1 / torch.linalg.vector_norm(table_ND, dim=1).clamp(min=1e-12) if cosine else query_MD
    own_M = query_MD.new_full((queries,), -1, dtype=torch.int64) if label_M is None else label_M.contiguous()
    flags = {"LABELS": label_N is not None, "OWN": label_M is not None, "SCALED": cosine}
    labels = own_M if label_N is None else label_N.contiguous()
    best_MG = query_MD.new_empty(queries, groups)
    tall = 128 if queries > 64 else 64
    _best_of_groups[(-(-queries // tall), groups)](
        query_MD, table_ND, over_N, own_M, labels, best_MG, queries, rows, groups,
        WIDE=wide, TALL=tall, GROUP=_GROUP, STEP=32, **flags, num_warps=8, num_stages=3,
    )  # fmt: skip
    group_ML = best_MG.topk(looked, dim=1, sorted=False).indices
    score_MLG = query_MD.new_empty(queries, looked * _GROUP)
    _look_again[(queries, looked)](
        query_MD, table_ND, over_N, own_M, labels, group_ML.contiguous(), score_MLG, rows, looked,
        WIDE=wide, GROUP=_GROUP, STEP=32, **flags, num_warps=4,
    )  # fmt: skip
    value_MK, at_MK = score_MLG.topk(k, dim=1)
    index_MK = group_ML.gather(1, at_MK // _GROUP) * _GROUP + at_MK % _GROUP
    return value_MK, index_MK.clamp(max=rows - 1)
