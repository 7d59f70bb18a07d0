"""The nearest rows of a table that may be too long to compare with all at once."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from selfsame.methods.base import products, unit

_LARGE = 2**24  # products, from which on a kernel of its own pays, and that a block may hold


def nearest(
    query_MD: Tensor,
    table_ND: Tensor,
    k: int,
    *,
    label_M: Tensor | None = None,
    label_N: Tensor | None = None,
    subset_S: Tensor | None = None,
    view: Callable[[Tensor], Tensor] | None = None,
    block: int = 0,
) -> tuple[Tensor, Tensor]:
    """The k largest inner products with the table's rows, largest first: (value_MK, index_MK).

    Rows whose label is the query's are skipped; without ``label_N`` a row's label is its index. ``subset_S`` lists the
    rows that may be chosen, each once. ``view`` is applied to each block of rows (``unit`` gives cosines), so that no
    changed copy of the whole table is made. The table is walked in blocks (0: about 2^24 products each): memory is
    M * (block + k), whatever N is.

    K is k or the number of rows there are to choose from, whichever is less. Where skipping leaves fewer than K, the
    missing values are -inf and their indices point at some row of the table: callers give those weight 0.
    """
    count = len(table_ND) if subset_S is None else len(subset_S)
    if query_MD.is_cuda and len(query_MD) * count >= _LARGE and view in (None, unit):
        found = _by_kernel(query_MD, table_ND, k, label_M, label_N, subset_S, view is unit)
        if found is not None:
            return found
    k = min(k, count)
    block = block or min(65536, max(4096, _LARGE // max(1, len(query_MD))))
    value_MK = query_MD.new_empty(len(query_MD), 0)
    index_MK = torch.empty(len(query_MD), 0, dtype=torch.long, device=query_MD.device)
    for first in range(0, count, block):
        last = min(first + block, count)
        if subset_S is None:
            row_B, rows_BD = torch.arange(first, last, device=table_ND.device), table_ND[first:last]
        else:
            row_B = subset_S[first:last]
            rows_BD = table_ND[row_B]
        value_MB = products(query_MD, rows_BD if view is None else view(rows_BD))
        if label_M is not None:
            label_B = row_B if label_N is None else label_N[row_B]
            value_MB = value_MB.masked_fill(label_M[:, None] == label_B, -torch.inf)
        here_MK, at_MK = value_MB.topk(min(k, last - first), dim=1)
        value_MK, index_MK = torch.cat([value_MK, here_MK], 1), torch.cat([index_MK, row_B[at_MK]], 1)
        if first > 0:
            value_MK, at_MK = value_MK.topk(min(k, last), dim=1)
            index_MK = index_MK.gather(1, at_MK)
    return value_MK, index_MK


def _by_kernel(
    query_MD: Tensor,
    table_ND: Tensor,
    k: int,
    label_M: Tensor | None,
    label_N: Tensor | None,
    subset_S: Tensor | None,
    cosine: bool,
) -> tuple[Tensor, Tensor] | None:
    """The same on CUDA by kernels of our own, or None where they do not fit or Triton is not there."""
    try:
        from selfsame.methods import neighbours_cuda
    except ImportError:
        return None
    query_MD = query_MD.contiguous()
    if not neighbours_cuda.supported(query_MD, table_ND):
        return None
    if subset_S is None:
        return neighbours_cuda.nearest(query_MD, table_ND, k, label_M=label_M, label_N=label_N, cosine=cosine)
    label_S = subset_S if label_N is None else label_N[subset_S]
    value_MK, at_MK = neighbours_cuda.nearest(
        query_MD, table_ND[subset_S], k, label_M=label_M, label_N=label_S, cosine=cosine
    )
    return value_MK, subset_S[at_MK]
