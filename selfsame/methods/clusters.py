"""Clusters of a public table's rows: who is near is looked up in a few lists instead of the whole table.

Spherical k-means, spread over the rounds so that each has the same small shapes: in `refresh` rounds every centre is
computed once from the rows of its list, and every row asks once for the list of its nearest centre. Rows that have
changed ask at once.

There are two seats a row, numbered 0 to 2N - 1; seat s belongs to list s mod C. Every row sits on exactly one of them
at all times, so none is ever lost. A row that finds no free seat in the lists of its `CHOICES` nearest centres stays
where it is: found less easily, but found, until it asks again. Clients that register later bring two seats each; if C
grows with them, the lists are cut anew and the rows find their places again within `refresh` rounds.

Shapes: N rows, C lists of up to L seats, K rows at a time, P lists looked into, D width.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from selfsame.methods.base import Fields, each_row, products, unit
from selfsame.streams import Stream

CHOICES = 4  # lists a row tries
_ON_CPU, _ON_CUDA = 2**22, 2**26  # numbers gathered at a time: what fits a cache, what fills a GPU
SEATS_TRIED = 64  # of each of them in a round; with half of the seats free, one in so many always is


def count_lists(rows: int, clusters: int) -> int:
    """C: as many as asked for, about sqrt(N) where that is 0, never more than rows."""
    return min(rows, clusters or max(1, round(math.sqrt(rows))))


def begin(rows: int, dim: int, clusters: int, stream: Stream) -> Fields:
    """Random centres and random seats; `stream` has one row."""
    row_N = torch.arange(rows, device=stream.key_M.device)
    side_N = each_row(stream, rows).bits(1)[:, 0] & 1
    at_N2 = torch.where(side_N[:, None] == row_N.new_tensor([0, 1]), row_N[:, None], -1)
    centre_CD = unit(each_row(stream.fold(1), count_lists(rows, clusters)).normal(dim))
    return {
        "cluster_centres": centre_CD,
        "cluster_rows": at_N2,  # the row on each seat, -1 where there is none
        "cluster_seats": 2 * row_N + side_N,  # the seat of each row
        "cluster_clock": row_N.new_zeros(1),
    }


def listed(tables: Fields, list_X: Tensor) -> Tensor:
    """The rows on the seats of these lists, -1 for an empty seat: shape (..., L)."""
    row_at, lists = tables["cluster_rows"].view(-1), len(tables["cluster_centres"])
    place_L = torch.arange(-(-len(row_at) // lists), device=row_at.device)
    seat_XL = place_L * lists + list_X[..., None]
    return torch.where(seat_XL < len(row_at), row_at[seat_XL.clamp(max=len(row_at) - 1)], -1)


def candidates(tables: Fields, query_MD: Tensor, probes: int) -> Tensor:
    """The rows in the lists of each query's nearest centres, -1 for empty seats: shape (M, P * L)."""
    centre_CD = tables["cluster_centres"]
    return listed(tables, products(query_MD, centre_CD).topk(min(probes, len(centre_CD)), 1).indices).flatten(1)


def nearest_listed(
    query_MD: Tensor, table_ND: Tensor, row_ML: Tensor, k: int, *, label_M: Tensor, label_N: Tensor
) -> tuple[Tensor, Tensor]:
    """As `neighbours.nearest`, but each query is compared with the rows listed for it alone; -1 lists none."""
    value, index = [], []
    step = max(k, (_ON_CUDA if table_ND.is_cuda else _ON_CPU) // query_MD.numel())
    for row_MB in row_ML.split(step, 1):
        at_MB = row_MB.clamp(min=0)
        value_MB = (select(table_ND, at_MB) @ query_MD[..., None])[..., 0]
        skip_MB = (row_MB < 0) | (select(label_N, at_MB) == label_M[:, None])
        here_MK, place_MK = value_MB.masked_fill(skip_MB, -torch.inf).topk(min(k, row_MB.shape[1]), 1)
        value.append(here_MK)
        index.append(at_MB.gather(1, place_MK))
    value_MB, index_MB = torch.cat(value, 1), torch.cat(index, 1)
    value_MK, place_MK = value_MB.topk(min(k, row_ML.shape[1]), 1)
    return value_MK, index_MB.gather(1, place_MK)


def select(table_N: Tensor, row_MS: Tensor) -> Tensor:
    """table_N[row_MS], in half the time on a CPU."""
    return table_N.index_select(0, row_MS.flatten()).unflatten(0, row_MS.shape)


@torch.no_grad()
def update(tables: Fields, table_ND: Tensor, changed_M: Tensor, alive_M: Tensor, refresh: int, stream: Stream) -> None:
    """A round's work on the clusters, in place, after the rows `changed_M` of the living were written."""
    clock, count = tables["cluster_clock"], len(table_ND)
    _move_centres(tables, table_ND, -(-len(tables["cluster_centres"]) // refresh), stream)
    _seat(tables, table_ND, changed_M, alive_M)
    turn_K = torch.arange(-(-count // refresh), device=clock.device)
    turn_K = (clock * len(turn_K) + turn_K) % count
    _seat(tables, table_ND, turn_K, torch.ones_like(turn_K, dtype=torch.bool))
    clock += 1


def displaced(tables: Fields, table_ND: Tensor) -> Tensor:
    """Which rows do not sit in the list of their nearest centre: bool (N,). Costs N * C, for figures and tests."""
    centre_CD = tables["cluster_centres"]
    nearest_N = torch.cat([products(part, centre_CD).argmax(1) for part in table_ND.split(65536)])
    return tables["cluster_seats"] % len(centre_CD) != nearest_N


def _move_centres(tables: Fields, table_ND: Tensor, count: int, stream: Stream) -> None:
    """The next `count` centres become the mean directions of their lists; one without rows begins anew near some row.

    Not exactly there: two centres in one place would leave it to rounding which of them is nearer.
    """
    centre_CD, clock = tables["cluster_centres"], tables["cluster_clock"]
    turn_Q = (clock * count + torch.arange(count, device=clock.device)) % len(centre_CD)
    row_QL = listed(tables, turn_Q)
    total_QD = (table_ND[row_QL.clamp(min=0)] * (row_QL >= 0)[..., None]).sum(1)
    some_QD = table_ND[stream.below(torch.full_like(clock, len(table_ND)), count)[0]]
    anew_QD = some_QD + 0.01 * unit(stream.fold(1).normal(count, table_ND.shape[1])[0]).to(table_ND.dtype)
    moved_QD = unit(torch.where((total_QD != 0).any(1, keepdim=True), total_QD, anew_QD))
    centre_CD.index_copy_(0, turn_Q, moved_QD)


def _seat(tables: Fields, table_ND: Tensor, row_K: Tensor, asks_K: Tensor) -> None:
    """Each row that asks moves to the list of its nearest centre, or the next nearest where that one is full."""
    centre_CD, seat_N, row_at = tables["cluster_centres"], tables["cluster_seats"], tables["cluster_rows"].view(-1)
    lists = len(centre_CD)
    length = -(-len(row_at) // lists)
    tried_W = torch.arange(min(length, SEATS_TRIED), device=row_K.device)
    tried_W = (tried_W + tables["cluster_clock"] * SEATS_TRIED) % length * lists
    choice_KJ = products(table_ND[row_K], centre_CD).topk(min(CHOICES, lists), 1).indices
    for want_K in choice_KJ.unbind(1):
        seat_K = seat_N[row_K]
        asks_K = asks_K & (seat_K % lists != want_K)
        place_K = _place_in_queue(want_K, asks_K, lists)
        at_KW = tried_W + want_K[:, None]
        free_KW = (at_KW < len(row_at)) & (row_at[at_KW.clamp(max=len(row_at) - 1)] < 0)
        before_KW = free_KW.cumsum(1)
        moves_K = asks_K & (before_KW[:, -1] > place_K)
        pick_K = (before_KW <= place_K[:, None]).sum(1).clamp(max=len(tried_W) - 1)
        new_K = torch.where(moves_K, at_KW.gather(1, pick_K[:, None])[:, 0], seat_K)
        # Added to what stands there, because those that do not move may name a seat that another row moves to.
        row_at.index_add_(0, seat_K, torch.where(moves_K, -1 - row_K, 0))
        row_at.index_add_(0, new_K, torch.where(moves_K, row_K + 1, 0))
        seat_N.index_add_(0, row_K, new_K - seat_K)
        asks_K = asks_K & ~moves_K


def _place_in_queue(want_K: Tensor, asks_K: Tensor, lists: int) -> Tensor:
    """How many rows before each one ask for the same list: int64 (K,)."""
    key_K, order_K = torch.where(asks_K, want_K, lists).sort(stable=True)
    place_K = torch.arange(len(want_K), device=want_K.device) - torch.searchsorted(key_K, key_K)
    return torch.empty_like(place_K).scatter_(0, order_K, place_K)
