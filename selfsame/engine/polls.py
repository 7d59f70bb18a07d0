"""Polls: now and then everybody adds a private vector to one sum, and the server sees nothing else of it.

A device that does not answer is stood in for by what it contributed last, and counts for nothing where it never did;
so sums are over the same devices each time. With too few answers nothing is released, and the last sum stays.
"""

from __future__ import annotations

import torch
from torch import Tensor

from selfsame.config.recipe import Recipe
from selfsame.engine.problem import Problem
from selfsame.engine.state import State
from selfsame.errors import SelfsameError
from selfsame.methods import LocalLoss
from selfsame.methods.base import World, put_rows
from selfsame.streams import host_generator

_AT_ONCE = 2**23  # numbers of contributions in work at a time


def check_polls(recipe: Recipe, method: LocalLoss, world: World) -> None:
    """Refuse polls so close to one another that their differences would be sums over a few."""
    terms, clients = method.poll(world.dim), world.clients
    if terms is None:
        return
    size = recipe.cohort.size or clients
    trained = min(clients, terms.every * size)
    if trained < min(terms.least, clients):
        raise SelfsameError(
            f"{method.name}: {trained} devices train between two polls, and the difference of their sums would be over "
            f"so few; set every to at least {-(-min(terms.least, clients) // size)}"
        )


def least_answers(problem: Problem) -> int:
    """Without so many answers a poll releases nothing."""
    assert problem.poll is not None
    return max(problem.poll.least, 0 if problem.sums is None else problem.sums.least)


def answering(problem: Problem, present: int, round: int) -> Tensor:
    """Who of the registered clients answers the poll before a round, (N,)."""
    recipe = problem.recipe
    if not recipe.cohort.dropout:
        return torch.ones(present, dtype=torch.bool)
    draw = host_generator(recipe.run.seed, "poll dropout", round).random(present)
    return torch.from_numpy(draw >= recipe.cohort.dropout)


def poll_if_due(problem: Problem, state: State) -> None:
    """The poll that comes before the state's next round, if one does, in place."""
    if problem.poll is not None and problem.poll.due(state.round):
        hold_poll(problem, state, answering(problem, state.present, state.round))


def hold_poll(problem: Problem, state: State, alive_N: Tensor) -> Tensor | None:
    """A poll that these clients answer, in place: the sum that is released; None: they are too few."""
    terms = problem.poll
    assert terms is not None
    if int(alive_N.sum()) < least_answers(problem):
        return None
    method, device = problem.method, problem.model.device
    alive_N = alive_N.to(device)
    client_N = torch.arange(state.present, device=device)
    sum_V = torch.zeros(terms.numbers, dtype=torch.float64, device=device)
    count = 0
    for part in client_N.split(max(1, _AT_ONCE // terms.numbers)):
        own = {name: table[part] for name, table in state.own.items()}
        for name, rows in method.answer_poll(own, state.server).items():
            put_rows(state.own[name], part, rows, alive_N[part])
        sent_MV = method.contribution({name: table[part] for name, table in state.own.items()})
        sum_V += sent_MV.sum(0, dtype=torch.float64)
        count += int((sent_MV != 0).any(1).sum())
    if terms.noise:
        draw = problem.server_stream("poll noise", state.round)
        sum_V += terms.noise * terms.longest * draw.normal(terms.numbers)[0].double()
    method.take_poll(state.server, sum_V, count)
    return sum_V
