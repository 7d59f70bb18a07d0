"""The server's class embeddings in blocks of rows, one block a rank, for tables that one machine should not hold twice.

Every rank gets the rows of the round's classes, and Step 13 is computed on these few. Step 14 moves their neighbours
too: each rank searches its own block, the candidates are gathered, and who owns a row computes what moves it. Only
methods whose clients see their own class alone can be cut so: where the loss reads the whole table (softmax, FedHide
and its kin, FedMetric, FedUV's negative term) every rank needs every row in every round.

Shapes as in `methods.fedaws`; P counts pairs of a class and one of its neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from selfsame.engine.ranks.group import Ranks
from selfsame.engine.state import Problem, State
from selfsame.errors import SelfsameError
from selfsame.methods.base import Cohort, Fields, LocalLoss, sum_by_class, unit
from selfsame.methods.fedaws import GATHERED, ClassEmbedding, FedAwS, draw_subset, mining_gradient, with_square
from selfsame.methods.neighbours import nearest
from selfsame.streams import Stream

TABLE = "class_embedding"


def check_shards(method: LocalLoss, wanted: bool) -> None:
    """Refuse `run.shard_tables` where a method needs the whole table in every round."""
    if not wanted:
        return
    if not isinstance(method, ClassEmbedding):
        raise SelfsameError(
            f"run.shard_tables: {method.name} has no table of class embeddings that its clients need not see whole; "
            "fedaws, positive-only and fixed have"
        )
    if isinstance(method, FedAwS) and method.spread == "full":
        raise SelfsameError("run.shard_tables: spread = 'full' compares all classes with all; use spread = 'mining'")


def sharded(problem: Problem) -> bool:
    return problem.ranks.active and problem.recipe.run.shard_tables


def block(ranks: Ranks, rows: int) -> int:
    """Rows of a block; the last ranks may have fewer, or none."""
    return -(-rows // ranks.size)


def cut(problem: Problem, state: State) -> None:
    """Keep this rank's block of the table."""
    if not sharded(problem):
        return
    table_CD, ranks = state.server[TABLE], problem.ranks
    state.rows = len(table_CD)
    size = block(ranks, state.rows)
    state.server[TABLE] = table_CD[ranks.rank * size : (ranks.rank + 1) * size].clone()


def collect(problem: Problem, state: State, everywhere: bool = False) -> None:
    """The whole table again, on rank 0 or on every rank."""
    if not sharded(problem) or not state.rows:
        return
    ranks, size = problem.ranks, block(problem.ranks, state.rows)
    sizes = [min(size, max(0, state.rows - rank * size)) for rank in range(ranks.size)]
    whole = ranks.collect(state.server[TABLE], sizes, everywhere)
    if whole is not None:
        state.server[TABLE] = whole
        state.rows = 0


@contextmanager
def whole(problem: Problem, state: State) -> Iterator[None]:
    """Rank 0 has the whole table for as long as it looks at it."""
    mine, rows = state.server.get(TABLE), state.rows
    collect(problem, state)
    yield
    if rows and mine is not None:
        state.server[TABLE], state.rows = mine, rows


@dataclass(frozen=True)
class Rows:
    """The embeddings of a round's classes, one row a class, and what they were cut from."""

    ranks: Ranks
    small: Fields
    class_M: Tensor  # by number
    place_M: Tensor  # by row of `small`

    def send(self, method: LocalLoss, who: Cohort) -> Fields:
        """What the server sends to some of the round's clients."""
        return method.send(self.small, Cohort(who.client_M, self._places(who), who.alive_M))

    def _places(self, who: Cohort) -> Tensor:
        return torch.searchsorted(self.class_M.sort().values, who.class_M)

    def absorb(
        self,
        problem: Problem,
        state: State,
        leaves: Fields,
        who: Cohort,
        weight_M: Tensor,
        lr: Tensor | float,
        stream: Stream,
    ) -> None:
        """The method's own step on the round's rows, then Step 14 over all blocks."""
        method, table_BD = problem.method, state.server[TABLE]
        assert isinstance(method, ClassEmbedding)
        few = Cohort(who.client_M, self.place_M, who.alive_M)
        ClassEmbedding.absorb(method, self.small, leaves, few, weight_M, lr, stream)
        mine_M, at_M = _owned(self.ranks, state.rows, self.class_M)
        table_BD[at_M[mine_M]] = self.small[TABLE][self.place_M[mine_M]]
        if not isinstance(method, FedAwS):
            return
        w_MD = self.small[TABLE][self.place_M]
        for step in range(method.server_steps):
            if step:
                w_MD = _fetch(self.ranks, table_BD, state.rows, self.class_M)
            subset_S = draw_subset(state.rows, method.subset, stream.fold(step))
            rate = method.spread_weight * lr
            _mining_step(
                self.ranks, table_BD, state.rows, w_MD, who, method.neighbours, subset_S, rate, method.distance
            )


def fetch(problem: Problem, state: State, everyone: Cohort) -> Rows | None:
    """The rows of the round's classes from whoever owns them; None where the table is whole."""
    if not sharded(problem):
        return None
    rows_MD = _fetch(problem.ranks, state.server[TABLE], state.rows, everyone.class_M)
    place_M = torch.searchsorted(everyone.class_M.sort().values, everyone.class_M)
    small_MD = torch.zeros_like(rows_MD).index_copy_(0, place_M, rows_MD)
    return Rows(problem.ranks, {TABLE: small_MD}, everyone.class_M, place_M)


def _owned(ranks: Ranks, rows: int, class_X: Tensor) -> tuple[Tensor, Tensor]:
    """Which of these classes this rank owns, and their rows in its block (those of others point anywhere)."""
    at_X = class_X - ranks.rank * block(ranks, rows)
    return (at_X >= 0) & (at_X < block(ranks, rows)), at_X


def _fetch(ranks: Ranks, table_BD: Tensor, rows: int, class_M: Tensor) -> Tensor:
    """The rows of these classes: each comes from one rank and is added to the zeros of the others, so exactly."""
    mine_M, at_M = _owned(ranks, rows, class_M)
    rows_MD = table_BD.new_zeros(len(class_M), table_BD.shape[1])
    rows_MD[mine_M] = table_BD[at_M[mine_M]]
    return ranks.add("rows of classes", rows_MD)()


@torch.no_grad()
def _mining_step(
    ranks: Ranks,
    table_BD: Tensor,
    rows: int,
    w_MD: Tensor,
    who: Cohort,
    k: int,
    subset_S: Tensor | None,
    rate: Tensor | float,
    distance: str,
) -> None:
    """`fedaws.mining_step` over blocks: the nearest of all blocks, and each pair where the neighbour lies."""
    start = ranks.rank * block(ranks, rows)
    share_M = who.alive_M.to(w_MD.dtype) / sum_by_class(who.alive_M.long(), who).clamp(min=1)
    query_MD = unit(w_MD)
    view: Callable[[Tensor], Tensor] = unit
    if distance == "euclidean":
        query_MD, view = F.pad(w_MD, (0, 1), value=1.0), with_square
    here_S = None
    if subset_S is not None:
        here_S = (subset_S - start)[(subset_S >= start) & (subset_S < start + len(table_BD))]
    value_MK, index_MK = nearest(query_MD, table_BD, k, label_M=who.class_M - start, subset_S=here_S, view=view)
    short = k - value_MK.shape[1]
    value_RMK = ranks.stack("neighbours' products", F.pad(value_MK, (0, short), value=-torch.inf))
    index_RMK = ranks.stack("neighbours", F.pad(index_MK + start, (0, short)))
    value_MK, at_MK = value_RMK.movedim(0, 1).flatten(1).topk(k, 1)
    index_MK = index_RMK.movedim(0, 1).flatten(1).gather(1, at_MK)

    mine_MK, row_MK = _owned(ranks, rows, index_MK)
    mine_MK = mine_MK & torch.isfinite(value_MK)
    client_P, row_P = mine_MK.nonzero()[:, 0], row_MK[mine_MK]
    in_w_MD = torch.zeros_like(w_MD)
    change_BD = table_BD if len(row_P) <= GATHERED else torch.zeros_like(table_BD)
    for client_Q, row_Q in zip(client_P.split(GATHERED), row_P.split(GATHERED), strict=True):
        w_QD, y_Q1D = w_MD[client_Q], table_BD[row_Q][:, None]
        pull_QD, push_Q1D = mining_gradient(w_QD, y_Q1D, share_M[client_Q][:, None], distance)
        in_w_MD.index_add_(0, client_Q, pull_QD)
        change_BD.index_add_(0, row_Q, -rate * push_Q1D[:, 0])
    if change_BD is not table_BD:
        table_BD.add_(change_BD)
    in_w_MD = ranks.add("what moves the classes", in_w_MD)()
    mine_M, at_M = _owned(ranks, rows, who.class_M)
    table_BD.index_add_(0, at_M[mine_M], -rate * in_w_MD[mine_M])
