"""What a server that sees network updates one by one reads of a client: how its step moves the last bias."""

from __future__ import annotations

import torch
from torch import Tensor

from selfsame.engine.problem import Problem
from selfsame.engine.settle import derivatives, own_loss
from selfsame.engine.state import State
from selfsame.methods.base import pick


def bias_updates(problem: Problem, state: State, client_M: Tensor) -> Tensor:
    """How one local step of each client moves the bias of the network's last layer, over the learning rate: (M, D).

    The last layer adds its bias to the embedding, so this is minus the derivative of the client's loss, summed over its
    samples.
    """
    method, model = problem.method, problem.model
    who = problem.cohort(client_M, torch.ones_like(client_M, dtype=torch.bool))
    batch = next(problem.batches(client_M, state.round))
    with torch.no_grad():
        emb = model.embed_eager(state.theta_P, batch.x_MB.flatten(0, 1)).unflatten(0, batch.x_MB.shape[:2])
    own, sent = pick(state.own, client_M), method.send(state.server, who)
    mine = method.start(own, sent, who, emb, batch.mask_MB)
    head = {name: value.expand(len(client_M), *value.shape) for name, value in model.head_views(state.theta_P).items()}
    loss = own_loss(method.loss, batch.mask_MB, mine, sent, who)
    _, emb_grad_MBD, _, _ = derivatives(loss, emb, {name: mine[name] for name in method.learns}, head)
    return -emb_grad_MBD.sum(1)
