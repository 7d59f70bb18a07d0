"""A server that does not keep to split rounds: two networks in one round, or one network in two.

**Two networks**, if the enclave took both. All others get a network of zeros but for its last bias, so that their
samples lie in one place, u, and have no features before the last layer: their gradients leave its weights as they are.
One device gets the network with a last layer so small that its samples lie close around u, W h times a small number off
it, where every loss pushes them away. So the cohort's sum moves the weights by this device's dW = sum d h' alone, and
dW W' gives the direction of the mean of its W h = z - b. How long that is on average, the server knows from pictures of
strangers.

**One network twice**: all gradients go into the means of some rounds, and all but one device's into those of as many
others. Times how many there were, the means differ by this device's gradients, and by what other samples make of the
others' gradients.

Shapes: M devices attacked, H members of a cohort, P parameters, D embedding width.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from selfsame.audit.attackers import Audited
from selfsame.audit.layers import LastLayer
from selfsame.audit.split_updates import filled_up, gradients
from selfsame.engine.plan import cohort_size
from selfsame.engine.turnout import least_gradients, needed
from selfsame.methods.base import unit
from selfsame.methods.update_attack import by_mean, seen_of

STOPPED = "stopped: embeddings are sealed with the digest of their network, and a round's enclave takes one network's"
_NEAR = 0.25  # of the margin: how far from u the device's samples lie
_STRANGERS = 256
LEFT_OUT = "nothing stops it: a round may end without some gradients, and the server passes them on"
ALL_IN = "stopped: a round that lacks a gradient is abandoned"
PAIRS = 4  # rounds with everybody, and as many with one device left out


def has_strangers(case: Audited) -> bool:
    """Whether there are pictures of people who take no part."""
    return len(case.problem.federation.unseen.y) > 0


def two_networks(case: Audited, client_M: Tensor) -> Tensor:
    """What the server takes for the mean embedding of each of these clients, each the one of a round: (M, D)."""
    problem, theta_P = case.problem, case.state.theta_P
    layer = LastLayer.of(problem)
    assert layer is not None
    before, length = layer.of_network(problem, theta_P), _length(case, layer)
    near = _NEAR * getattr(problem.method, "margin", 0.2) / length
    alone_P, other_P = _lured(case, layer, near)
    found = []
    for client_1 in client_M.split(1):
        cohort_H = filled_up(problem, case.state, client_1)
        networks = [alone_P] + [other_P] * (len(cohort_H) - 1)
        total_P = torch.stack(gradients(problem, case.state, cohort_H, networks)).sum(0)
        moved = layer.of_network(problem, -total_P[None])
        seen = seen_of(moved.weight, None, before.weight, None)
        offset = 0 if before.bias is None else before.bias
        found.append(offset + length * unit(by_mean(seen)))
    return torch.cat(found)


def may_leave_out(case: Audited) -> bool:
    """Whether a round's mean may lack somebody."""
    recipe = case.problem.recipe
    size = cohort_size(recipe, case.state.present)
    return least_gradients(recipe.split.strategy, needed(recipe, size)) < size


def one_network_twice(case: Audited, client_M: Tensor) -> Tensor:
    """What the server takes for the mean embedding of each of these clients, each left out once: (M, D)."""
    problem, state = case.problem, case.state
    layer = LastLayer.of(problem)
    assert layer is not None
    found = []
    for part_M in client_M.split(cohort_size(problem.recipe, state.present)):
        cohort_H = filled_up(problem, state, part_M)
        whole_HP, lacking_HP = (_over_rounds(case, cohort_H, later) for later in (0, PAIRS))
        left_MP = whole_HP.sum(0) - (lacking_HP.sum(0) - lacking_HP[: len(part_M)])
        guess_MD = problem.method.attack_updates(layer.seen(problem, state.theta_P, -left_MP, 1.0))
        assert guess_MD is not None
        found.append(guess_MD)
    return torch.cat(found)


def _over_rounds(case: Audited, cohort_H: Tensor, later: int) -> Tensor:
    """Each member's gradients of the network of now, added up over some rounds from so many on: (H, P)."""
    total_HP = torch.zeros(len(cohort_H), len(case.state.theta_P)).to(case.state.theta_P)
    for number in range(case.state.round + later, case.state.round + later + PAIRS):
        total_HP += torch.stack(gradients(case.problem, replace(case.state, round=number), cohort_H))
    return total_HP


def _lured(case: Audited, layer: LastLayer, near: float) -> tuple[Tensor, Tensor]:
    """(the network of the device that is attacked, that of all others)."""
    model, theta_P = case.problem.model, case.state.theta_P
    alone_P, other_P = theta_P.clone(), torch.zeros_like(theta_P)
    model.net_views(alone_P)[layer.weight].mul_(near)
    for one_P in (alone_P, other_P):
        if layer.bias is not None:
            bias_D = model.net_views(one_P)[layer.bias]
            bias_D.fill_(len(bias_D) ** -0.5)
    return alone_P, other_P


@torch.no_grad()
def _length(case: Audited, layer: LastLayer) -> float:
    """How far strangers' embeddings lie from the last layer's bias, on average."""
    problem, theta_P = case.problem, case.state.theta_P
    raw = problem.federation.unseen.x[:_STRANGERS].to(theta_P.device)
    few = raw.flatten(0, raw.dim() - len(problem.federation.shape) - 1)
    emb_SD = problem.model.embed_eager(theta_P, problem.federation.scale(few).to(problem.model.dtype))
    bias = layer.of_network(problem, theta_P).bias
    return float((emb_SD - (0 if bias is None else bias)).norm(dim=1).mean())
