"""The server's half of a round: what devices report, and the step of the network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from selfsame.deploy.folder import Seat
from selfsame.deploy.host import rates
from selfsame.engine import optimisers
from selfsame.engine.problem import Problem
from selfsame.engine.state import State
from selfsame.methods.base import Cohort, Fields


@dataclass(frozen=True)
class Reported:
    """What of an answer is no part of the sum."""

    seat: Seat
    weight: int
    fields: Fields


def absorb(problem: Problem, state: State, reports: Sequence[Reported], update_P: Tensor | None) -> None:
    """The server's half of a round, in place: what devices report, in the order of the clients, and the network."""
    reports = sorted(reports, key=lambda report: report.seat.client)
    (lr, server_lr), device = rates(problem.recipe, state.round), state.theta_P.device
    total = sum(report.weight for report in reports)
    who = Cohort(
        torch.tensor([report.seat.client for report in reports], device=device),
        torch.tensor([report.seat.label for report in reports], device=device),
        torch.ones(len(reports), dtype=torch.bool, device=device),
    )
    together = {name: torch.cat([report.fields[name] for report in reports]) for name in reports[0].fields}
    weight_M = torch.tensor([report.weight / total for report in reports], dtype=state.theta_P.dtype, device=device)
    stream = problem.server_stream("absorb", state.round)
    problem.method.absorb(state.server, together, who, weight_M, lr, stream)
    if update_P is not None:
        step_P = -update_P.to(state.theta_P)
        optimisers.step(problem.recipe.server, state.optim, state.theta_P, step_P, lr, server_lr)
