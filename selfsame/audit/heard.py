"""What everybody hears of a real run: the reports of its next rounds, as they are sent."""

from __future__ import annotations

import torch

from selfsame.audit.transcript import local_updates
from selfsame.engine.batches import steps_a_round
from selfsame.engine.plan import make_plan
from selfsame.engine.problem import Problem
from selfsame.engine.rounds import Engine
from selfsame.engine.state import State
from selfsame.methods.base import Heard

_AT_ONCE = 2**26  # numbers of updates in work at a time


def listen(problem: Problem, state: State, rounds: int) -> list[Heard]:
    """Train `state` for so many rounds by the run's own recipe, in place, and write down what is reported.

    Reports are computed apart from the engine, from the same state and the same streams, so they are the same.
    """
    engine, found = Engine(problem), []
    plan = make_plan(problem.recipe, state.round, rounds, state.present).to(problem.model.device)
    steps = steps_a_round(problem.recipe.local, problem.longest)
    for t in range(rounds):
        client_M = plan.client_TM[t, plan.alive_TM[t]]
        if len(client_M):
            before = {name: table.clone() for name, table in state.server.items()}
            few = max(1, _AT_ONCE // len(state.theta_P))
            parts = [local_updates(problem, state, part_M, plan.lr_T[t])[2] for part_M in client_M.split(few)]
            leaves = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
            who = problem.cohort(client_M, client_M >= 0)
            found.append(Heard(before, who, leaves, float(plan.lr_T[t]) * steps))
        engine.run(state, plan.part(t, t + 1))
    return found
