"""What devices return in split rounds, one by one: seen by nobody but the enclave, and by an audit.

A gradient depends on who else is in the round. So clients are put into cohorts of the run's own size; the last one is
filled up with others.

Shapes: M clients, B samples a batch, D embedding width, P parameters.
"""

from __future__ import annotations

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
    size = min(cohort_size(problem.recipe, state.present), state.present)
    parts = [_of_cohort(problem, state, part_M, size, lr) for part_M in client_M.split(size)]
    return torch.cat(parts)


def _of_cohort(problem: Problem, state: State, client_M: Tensor, size: int, lr: Tensor) -> Tensor:
    """The same of one cohort, of which these clients are the first."""
    all_M = torch.cat([client_M, _others(problem, state, client_M)[: size - len(client_M)]])
    who = problem.cohort(all_M, torch.ones_like(all_M, dtype=torch.bool))
    (batch,) = problem.batches(all_M, state.round)
    with torch.no_grad():
        emb_MBD = torch.stack([problem.model.embed_eager(state.theta_P, x_B) for x_B in batch.x_MB])
    there_MB = batch.mask_MB * batch.sound_M[:, None]
    _, grad_MBD, _ = derive(problem, state.enclave, emb_MBD, there_MB, who, state.round)
    moves = []
    for x_B, grad_BD in zip(batch.x_MB[: len(client_M)], grad_MBD, strict=False):
        theta = state.theta_P.detach().requires_grad_()
        (gradient_P,) = torch.autograd.grad(problem.model.embed_eager(theta, x_B), theta, grad_BD)
        moves.append(-lr.to(gradient_P.dtype) * gradient_P)
    return torch.stack(moves)


def _others(problem: Problem, state: State, client_M: Tensor) -> Tensor:
    """Everybody else, in an order drawn by the run's seed."""
    order_N = problem.server_stream("audit cohort", state.round).bits(state.present)[0].argsort()
    return order_N[~torch.isin(order_N, client_M)]


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
