"""Fixed groups of clients that take turns, so that every sum of a run is over one of the same whole groups.

Sums over random cohorts give single updates away by their differences (least squares over the rounds); those over
groups that never mix give away the group's and no more.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from selfsame.config.recipe import Recipe
from selfsame.errors import SelfsameError
from selfsame.streams import host_generator

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


def initially_present(recipe: Recipe, clients: int) -> int:
    """How many of all clients are there before the late ones join."""
    if not (recipe.cohort.late and recipe.cohort.join_round):
        return clients
    return max(1, clients - round(recipe.cohort.late * clients))


def groups_of(recipe: Recipe, round: int, present: int) -> list[Ints]:
    """The groups of a round among the `present` clients: those who joined late have groups of their own."""
    joined = round >= recipe.cohort.join_round
    first = initially_present(recipe, present) if joined else present
    found = _partition(recipe, 0, first)
    return found + _partition(recipe, first, present) if first < present else found


def _partition(recipe: Recipe, begin: int, end: int) -> list[Ints]:
    """Clients begin .. end-1 in as many groups of at least `cohort.size` as there can be, evenly sized."""
    count, size = end - begin, recipe.cohort.size or end - begin
    if count < size:
        who = "clients join late" if begin else "clients are there from the beginning"
        raise SelfsameError(f"cohort.size: {count} {who}, a group has at least {size}; lower cohort.size")
    order = begin + host_generator(recipe.run.seed, "groups", begin).permutation(count)
    return [np.sort(group) for group in np.array_split(order, count // size)]


def in_turn(recipe: Recipe, rounds: range, present: int) -> tuple[Ints, Bools]:
    """(clients, who of them is of the round's group), both (T, M): one group a round, in turn.

    All rounds have as many places as the largest group. What a smaller one leaves empty is filled with clients of other
    groups, which are not asked and never answer: a row that is written must not stand there twice.
    """
    groups = groups_of(recipe, rounds.start, present)
    most = max(map(len, groups))
    filled_GM = np.stack([_filled(group, most, present) for group in groups])
    size_G1 = np.array([len(group) for group in groups])[:, None]
    turn_T = np.arange(rounds.start, rounds.stop) % len(groups)
    return filled_GM[turn_T], np.arange(most) < size_G1[turn_T]


def _filled(group: Ints, most: int, present: int) -> Ints:
    others = np.setdiff1d(np.arange(present if len(group) < most else 0), group)
    return np.concatenate([group, others[: most - len(group)]])


def most_turns(recipe: Recipe, rounds: int, clients: int) -> int:
    """The rounds among the first `rounds` of the group that had most."""
    joins = recipe.cohort.join_round if initially_present(recipe, clients) < clients else 0
    early = groups_of(recipe, 0, initially_present(recipe, clients)) if joins else []
    late = groups_of(recipe, joins, clients)  # those of before come first
    turns_G = np.zeros(len(late), dtype=np.int64)
    for t in range(rounds):
        turns_G[t % len(early) if t < joins else t % len(late)] += 1
    return int(turns_G.max())
