"""What devices return in split rounds, one by one: seen by nobody but the enclave, and by an audit.

A gradient depends on who else is in the round. So clients are put into cohorts of the run's own size; the last one is
filled up with others.

Shapes: M clients, B samples a batch, D embedding width, P parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from selfsame.config.recipe import AugmentPart
from selfsame.engine.batches import local_batches
from selfsame.engine.joint import derive
from selfsame.engine.plan import cohort_size
from selfsame.engine.problem import Problem
from selfsame.engine.state import State
from selfsame.methods.base import mean_embedding

_AT_ONCE = 64  # clients whose samples are embedded at a time


def split_updates(problem: Problem, state: State, client_M: Tensor, lr: Tensor) -> Tensor:
    """How each of these clients would move the network in the next round, (M, P)."""
    moves = []
    for part_M in client_M.split(cohort_size(problem.recipe, state.present)):
        moves += gradients(problem, state, filled_up(problem, state, part_M))[: len(part_M)]
    return -lr.to(state.theta_P.dtype) * torch.stack(moves)


def filled_up(problem: Problem, state: State, client_M: Tensor) -> Tensor:
    """A whole cohort that begins with these clients; the others in an order drawn by the run's seed."""
    order_N = problem.server_stream("audit cohort", state.round).bits(state.present)[0].argsort()
    more = cohort_size(problem.recipe, state.present) - len(client_M)
    return torch.cat([client_M, order_N[~torch.isin(order_N, client_M)][:more]])


def gradients(
    problem: Problem, state: State, client_M: Tensor, theta_MP: Sequence[Tensor] | None = None
) -> list[Tensor]:
    """What each device of this cohort returns to the enclave; `theta_MP`: where they were not sent the same network."""
    model, theta_MP = problem.model, [state.theta_P] * len(client_M) if theta_MP is None else theta_MP
    who = problem.cohort(client_M, torch.ones_like(client_M, dtype=torch.bool))
    (batch,) = problem.batches(client_M, state.round)
    with torch.no_grad():
        emb_MBD = torch.stack([model.embed_eager(*pair) for pair in zip(theta_MP, batch.x_MB, strict=True)])
    there_MB = batch.mask_MB * batch.sound_M[:, None]
    _, grad_MBD, _ = derive(problem, state.enclave, emb_MBD, there_MB, who, state.round)
    found: list[Tensor] = []
    for theta_P, x_B, grad_BD in zip(theta_MP, batch.x_MB, grad_MBD, strict=True):
        theta = theta_P.detach().requires_grad_()
        found += torch.autograd.grad(model.embed_eager(theta, x_B), theta, grad_BD)
    return found


@torch.no_grad()
def enrolled(problem: Problem, state: State) -> Tensor:
    """The mean embedding of all training samples of every client, under the network as it is now: (N, D)."""
    one_pass = replace(problem.recipe.local, epochs=1)
    sampler = replace(problem.sampler, local=one_pass, change=AugmentPart())
    found = []
    for client_M in torch.arange(state.present, device=state.theta_P.device).split(_AT_ONCE):
        batches = list(local_batches(sampler, client_M, state.round))
        emb = [problem.model.embed_eager(state.theta_P, one.x_MB.flatten(0, 1)) for one in batches]
        emb_MSD = torch.cat([part.unflatten(0, one.mask_MB.shape) for part, one in zip(emb, batches, strict=True)], 1)
        mask_MS = torch.cat([one.mask_MB for one in batches], 1)
        found.append(mean_embedding(problem.method.place(emb_MSD), mask_MS))
    return torch.cat(found)
