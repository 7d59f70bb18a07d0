"""Who takes part in a split round, and whose gradients are in it (FDML, Algorithm 3), as the server's plan.

Devices that drop out, answer late or are not ready are drawn from named generators, so that the plan of a round is a
function of the recipe, the round and the rounds that each client has spent before.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from selfsame.config.recipe import Recipe
from selfsame.errors import SelfsameError
from selfsame.streams import Stream, host_generator

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_TRIES = 1000  # selections in one round before the settings are called hopeless
_FEWEST = 2  # a round goes on without the others where more than so many gradients are there


@dataclass(frozen=True)
class Turnout:
    """One round: the devices whose embeddings are used, and those whose gradients are."""

    client_M: Ints
    alive_M: Bools  # nobody, where the round was abandoned
    selections: int  # how often devices were selected before enough embeddings were there


def asked(recipe: Recipe, size: int) -> int:
    """num_required * k, line 2."""
    return math.ceil(size * recipe.split.over - 1e-9)


def needed(recipe: Recipe, size: int) -> int:
    """The gradients that end a round, num_required * rate_p of line 9."""
    return math.ceil(size * recipe.split.response - 1e-9)


def least_gradients(strategy: str, wanted: int, fewest: int = _FEWEST) -> int:
    """Without so many no sum leaves a round: UC goes on with more than `fewest` when time is up, AS with all wanted."""
    return wanted if strategy == "as" else min(wanted, fewest + 1)


def turnout(recipe: Recipe, round: int, size: int, present: int, taken_N: Ints | None = None) -> Turnout:
    """Algorithm 3 for one round among the first `present` clients; `taken_N` counts the rounds each has spent."""
    for attempt in range(_TRIES):
        registered, ready_N = registered_clients(recipe, round, attempt, present)
        if recipe.split.most and taken_N is not None:
            registered = registered[taken_N[registered] < recipe.split.most]
            _enough(recipe, round, size, present, taken_N)
        client = _select(recipe, round, attempt, size, registered)
        client = client[_on_time(recipe, round, attempt, client, ready_N)]
        if len(client) >= size:
            client_M = np.sort(client[:size])
            return Turnout(client_M, _gradients(recipe, round, size), attempt + 1)
    raise SelfsameError(
        f"split.over: in round {round} {_TRIES} selections of {asked(recipe, size)} devices never brought {size} "
        "embeddings in time; raise split.over, split.ready or split.embedding_wait, or lower split.lost"
    )


def registered_clients(recipe: Recipe, round: int, attempt: int, present: int) -> tuple[Ints, Bools]:
    """(whose registration is valid, who is ready now). A device registers whenever it is ready (Step 1)."""
    everybody = np.arange(present)
    if recipe.split.ready == 1:
        return everybody, np.ones(present, dtype=bool)
    now_N = _ready(recipe, round, attempt, present)
    valid_N = now_N.copy()
    for before in range(max(0, round - recipe.split.registration + 1), round):
        valid_N |= _ready(recipe, before, 0, present)
    return everybody[valid_N], now_N


def _ready(recipe: Recipe, round: int, attempt: int, present: int) -> Bools:
    stream = Stream.named(recipe.run.seed, "ready", torch.arange(present), round, attempt)
    chance: Bools = stream.uniform(1)[:, 0].numpy() < recipe.split.ready
    return chance


def _enough(recipe: Recipe, round: int, size: int, present: int, taken_N: Ints) -> None:
    left = int((taken_N[:present] < recipe.split.most).sum())
    if left < size:
        raise SelfsameError(
            f"split.most: in round {round} {left} of {present} devices have privacy budget left, {size} are needed; "
            "lower run.rounds or cohort.size, or raise split.most"
        )


def _select(recipe: Recipe, round: int, attempt: int, size: int, registered: Ints) -> Ints:
    """The devices that are sent the network, Step 2: all that are registered, where they are too few to choose."""
    count = asked(recipe, size)
    if count >= len(registered):
        return registered
    if recipe.cohort.sampling == "round-robin":
        return registered[(round * size + np.arange(count)) % len(registered)]
    again = (attempt,) if attempt else ()
    draw = host_generator(recipe.run.seed, "cohort", round, *again)
    return registered[draw.choice(len(registered), count, replace=False, shuffle=False)]


def _on_time(recipe: Recipe, round: int, attempt: int, client: Ints, ready_N: Bools) -> Ints:
    """The places of those whose embeddings arrive before time is up, in the order in which they do (lines 3 to 6)."""
    part = recipe.split
    answers = ready_N[client]
    if part.lost:
        draw = host_generator(recipe.run.seed, "lost", round, attempt)
        answers &= draw.random(len(client)) >= part.lost
    return _arrived(recipe, "embedding answer", (round, attempt), answers, part.embedding_wait)


def _gradients(recipe: Recipe, round: int, size: int) -> Bools:
    """Which of the devices are in the sum (2), lines 9 to 13; nobody, where the round is abandoned."""
    answers = np.ones(size, dtype=bool)
    if recipe.cohort.dropout:
        answers = host_generator(recipe.run.seed, "dropout", round).random(size) >= recipe.cohort.dropout
    wanted = needed(recipe, size)
    place = _arrived(recipe, "gradient answer", (round,), answers, recipe.split.gradient_wait)[:wanted]
    alive_M = np.zeros(size, dtype=bool)
    if len(place) >= least_gradients(recipe.split.strategy, wanted):
        alive_M[place] = True
    return alive_M


def _arrived(recipe: Recipe, purpose: str, key: tuple[int, ...], answers: Bools, wait: float) -> Ints:
    """The places of those that answer, by the time that it takes them: exponential, with mean 1."""
    time = host_generator(recipe.run.seed, purpose, *key).exponential(size=len(answers))
    time[~answers] = np.inf
    order = np.argsort(time, kind="stable")
    return order[time[order] <= (wait or np.finfo(float).max)]
