"""A server's table in blocks of rows, one block per rank, for tables that one machine should not hold twice.

Every rank gets the rows of the round's classes; what the server does on these few, and with the rows in the blocks, is
the method's (`absorb_blocks`). Only methods whose clients see their own class alone can be cut so: where the loss reads
the whole table (softmax, FedHide and its kin, FedMetric, FedUV's negative term) every rank needs every row in every
round.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from selfsame.engine.problem import Problem
from selfsame.engine.ranks.group import Ranks
from selfsame.engine.state import State
from selfsame.errors import SelfsameError
from selfsame.methods import METHODS
from selfsame.methods.base import Cohort, Fields, LocalLoss


def check_shards(method: LocalLoss, wanted: bool) -> None:
    """Refuse `run.shard_tables` where a method needs the whole table in every round."""
    if not wanted:
        return
    if method.table is None:
        able = ", ".join(name for name, kind in METHODS.items() if kind.table is not None)
        raise SelfsameError(
            f"run.shard_tables: {method.name} has no table of class embeddings that its clients need not see whole; "
            f"these have: {able}"
        )
    if method.needs_whole():
        raise SelfsameError(f"run.shard_tables: {method.needs_whole()}")


def sharded(problem: Problem) -> str | None:
    """The name of the table that lies in blocks, if one does."""
    return problem.method.table if problem.ranks.active and problem.recipe.run.shard_tables else None


def _block(ranks: Ranks, rows: int) -> int:
    """RoundRows of a block; the last ranks may have fewer, or none."""
    return -(-rows // ranks.size)


def cut(problem: Problem, state: State) -> None:
    """Keep this rank's block of the table."""
    name, ranks = sharded(problem), problem.ranks
    if name is None:
        return
    state.rows = len(state.server[name])
    size = _block(ranks, state.rows)
    state.server[name] = state.server[name][ranks.rank * size : (ranks.rank + 1) * size].clone()


def collect(problem: Problem, state: State, everywhere: bool = False) -> None:
    """The whole table again, on rank 0 or on every rank."""
    name = sharded(problem)
    if name is None or not state.rows:
        return
    ranks, size = problem.ranks, _block(problem.ranks, state.rows)
    sizes = [min(size, max(0, state.rows - rank * size)) for rank in range(ranks.size)]
    found = ranks.collect(state.server[name], sizes, everywhere)
    if found is not None:
        state.server[name] = found
        state.rows = 0


@contextmanager
def whole(problem: Problem, state: State) -> Iterator[None]:
    """Rank 0 has the whole table for as long as it looks at it."""
    name, rows = sharded(problem), state.rows
    mine = state.server.get(name) if name is not None else None
    collect(problem, state)
    yield
    if rows and name is not None and mine is not None:
        state.server[name], state.rows = mine, rows


def common(problem: Problem, state: State) -> Fields:
    """The state without the block that only this rank has."""
    alone = f"server.{sharded(problem)}" if state.rows else ""
    return {name: value for name, value in state.tensors().items() if name != alone}


@dataclass(eq=False)
class RoundRows:
    """The rows of a round's classes and the block that this rank has of all: what `absorb_blocks` is given."""

    ranks: Ranks
    rows: int
    begin: int
    block_BD: Tensor
    few: Fields
    class_M: Tensor  # by number
    place_M: Tensor  # by row of `few`

    def send(self, method: LocalLoss, who: Cohort) -> Fields:
        """What the server sends to some of the round's clients."""
        place_M = torch.searchsorted(self.class_M.sort().values, who.class_M)
        return method.send(self.few, Cohort(who.client_M, place_M, who.alive_M))

    def owned(self, row_X: Tensor) -> tuple[Tensor, Tensor]:
        return _owned(self.ranks, self.rows, row_X)

    def fetch(self, row_M: Tensor) -> Tensor:
        return _fetch(self.ranks, self.block_BD, self.rows, row_M)

    def put(self) -> None:
        (few_MD,) = self.few.values()
        mine_M, at_M = self.owned(self.class_M)
        self.block_BD[at_M[mine_M]] = few_MD[self.place_M[mine_M]]

    def add(self, name: str, value: Tensor) -> Tensor:
        return self.ranks.add(name, value)()

    def stack(self, name: str, value: Tensor) -> Tensor:
        return self.ranks.stack(name, value)


def fetch(problem: Problem, state: State, everyone: Cohort) -> RoundRows | None:
    """The rows of the round's classes from whoever owns them; None where the table is whole."""
    name, ranks = sharded(problem), problem.ranks
    if name is None:
        return None
    block_BD, class_M = state.server[name], everyone.class_M
    rows_MD = _fetch(ranks, block_BD, state.rows, class_M)
    place_M = torch.searchsorted(class_M.sort().values, class_M)
    few = {name: torch.zeros_like(rows_MD).index_copy_(0, place_M, rows_MD)}
    return RoundRows(ranks, state.rows, ranks.rank * _block(ranks, state.rows), block_BD, few, class_M, place_M)


def _owned(ranks: Ranks, rows: int, row_X: Tensor) -> tuple[Tensor, Tensor]:
    size = _block(ranks, rows)
    at_X = row_X - ranks.rank * size
    return (at_X >= 0) & (at_X < size), at_X


def _fetch(ranks: Ranks, block_BD: Tensor, rows: int, row_M: Tensor) -> Tensor:
    """Each row comes from one rank and is added to the zeros of the others, so exactly."""
    mine_M, at_M = _owned(ranks, rows, row_M)
    found_MD = block_BD.new_zeros(len(row_M), block_BD.shape[1])
    found_MD[mine_M] = block_BD[at_M[mine_M]]
    return ranks.add("rows of classes", found_MD)()
