"""What a server reads of single clients' updates of the network, and what is left of that in sums over groups.

Shapes: M clients, G groups of equal size, D embedding width, P parameters.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from selfsame.audit.layers import LastLayer
from selfsame.audit.split_updates import split_updates
from selfsame.engine.batches import steps_a_round
from selfsame.engine.plan import Start
from selfsame.engine.problem import Problem
from selfsame.engine.reference import client_update
from selfsame.engine.state import State
from selfsame.methods import SplitLoss
from selfsame.methods.base import pick
from selfsame.methods.update_attack import Seen


@dataclass(frozen=True)
class Watched:
    """Some clients' next updates as a server sees them, and the vectors that they were made with."""

    seen: Seen
    truth_MD: Tensor | None  # None: as they stand already, in the server's tables or by the network of now


def can_watch(problem: Problem) -> bool:
    """Whether there are updates of a last layer to read: some methods send none."""
    return problem.method.federated and not problem.federation.empty and LastLayer.of(problem) is not None


def trains_alone(problem: Problem) -> bool:
    """Whether these are updates that a device makes by itself: in split rounds they depend on everybody there."""
    return can_watch(problem) and not isinstance(problem.method, SplitLoss)


def watch(problem: Problem, state: State, client_M: Tensor, half: bool = False) -> Watched:
    """The updates that these clients would send now, seen one by one; `half`: as they travel in half precision.

    At the recipe's learning rate, whatever its schedule: at the end of one there would be nothing to see in float32.
    """
    layer, method = LastLayer.of(problem), problem.method
    assert layer is not None
    lr = torch.tensor(problem.recipe.local.lr, dtype=torch.float64, device=state.theta_P.device)
    scale = float(lr) * steps_a_round(problem.recipe.local, problem.longest)
    if isinstance(method, SplitLoss):
        change_MP = split_updates(problem, state, client_M, lr)
        return Watched(layer.seen(problem, state.theta_P, halved(change_MP) if half else change_MP, scale), None)
    seen, truth = [], []
    for client_1 in client_M.split(1):
        who = problem.cohort(client_1, torch.ones_like(client_1, dtype=torch.bool))
        own = pick(state.own, client_1)
        start = Start(who, own, method.send(state.server, who), lr, state.round)
        theta_P, stays, _, _ = client_update(problem, state.theta_P, start)
        change_1P = (theta_P - state.theta_P)[None]
        seen.append(layer.seen(problem, state.theta_P, halved(change_1P) if half else change_1P, scale))
        if method.row == "client" and stays:
            truth.append(method.truth({**own, **stays}, state.server, {}))
    moment_MDD, shift_MD = (torch.cat(parts) for parts in zip(*((one.moment_MDD, one.shift_MD) for one in seen)))
    return Watched(Seen(moment_MDD, shift_MD, layer.bias is not None), torch.cat(truth) if truth else None)


def halved(change_MP: Tensor) -> Tensor:
    """Each update in half precision, scaled by a power of two to the middle of its range, as devices send it."""
    top_M1 = change_MP.abs().amax(1, keepdim=True)
    scale_M1 = torch.exp2(torch.floor(torch.log2(torch.where(top_M1 > 0, top_M1, 1)))) / 2**14
    return (change_MP / scale_M1).to(torch.float16).to(change_MP.dtype) * scale_M1


def over_groups(seen: Seen, size: int) -> Seen:
    """The means of what is seen over groups of `size` clients, in order; clients left over are in none."""
    count = len(seen.shift_MD) // size
    moment = seen.moment_MDD[: count * size].unflatten(0, (count, size)).mean(1)
    return Seen(moment, seen.shift_MD[: count * size].unflatten(0, (count, size)).mean(1), seen.biased)
