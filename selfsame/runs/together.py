"""What the processes of torchrun do between blocks of rounds: all go on from one state, and rank 0 alone looks at it.

In a run of one process nothing of this happens.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from selfsame.engine.problem import Problem
from selfsame.engine.ranks import shards
from selfsame.engine.state import State, join


def as_first(problem: Problem, state: State) -> None:
    """Every rank's state becomes that of rank 0, whose secrets and checkpoint count; then tables are cut."""
    ranks = problem.ranks
    if not ranks.active:
        return
    told = json.loads(ranks.hear(json.dumps([state.round, state.present, state.losses])))
    if told[1] != state.present:
        join(problem, state)
    state.round, state.losses = told[0], told[2]
    _level(problem, state)
    shards.cut(problem, state)


def let_others_in(problem: Problem, state: State) -> None:
    """Register the clients that are not there yet, on every rank the same."""
    shards.collect(problem, state, everywhere=True)
    join(problem, state)
    as_first(problem, state)


def decided(problem: Problem, judge: Callable[[], bool]) -> bool:
    """What rank 0 finds, on every rank."""
    return problem.ranks.agree(problem.ranks.first and judge())


@contextmanager
def looked_at(problem: Problem, state: State) -> Iterator[None]:
    """Rank 0 has the whole state for as long as it looks at it; then all go on from the same bits."""
    with shards.whole(problem, state):
        yield
    problem.ranks.wait()
    _level(problem, state)


def _level(problem: Problem, state: State) -> None:
    """What every rank computed by itself is made equal to the last bit, which another machine may round differently."""
    problem.ranks.broadcast(shards.common(problem, state))
