"""What a server reads of single clients' updates of the network, and what is left of that in sums over groups.

Shapes: M clients, G groups of equal size, D embedding width, P parameters.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from selfsame.audit.layers import LastLayer
from selfsame.audit.transcript import local_updates
from selfsame.engine.batches import steps_a_round
from selfsame.engine.problem import Problem
from selfsame.engine.state import State
from selfsame.methods import SplitLoss
from selfsame.methods.base import pick
from selfsame.methods.update_attack import Seen

_AT_ONCE = 2**26  # numbers of stacked networks in work at a time


@dataclass(frozen=True)
class Watched:
    """Some clients' next updates as a server sees them, and the vectors that they were made with."""

    seen: Seen
    truth_MD: Tensor | None  # None: as they stand in the server's tables


def can_watch(problem: Problem) -> bool:
    """Whether there are updates to read: some methods send none, and some seal them."""
    method = problem.method
    sends = method.federated and not isinstance(method, SplitLoss) and not problem.federation.empty
    return sends and LastLayer.of(problem) is not None


def watch(problem: Problem, state: State, client_M: Tensor, half: bool = False) -> Watched:
    """The updates that these clients would send now, seen one by one; `half`: as they travel in half precision.

    At the recipe's learning rate, whatever its schedule: at the end of one there would be nothing to see in float32.
    """
    layer, method = LastLayer.of(problem), problem.method
    assert layer is not None
    lr = torch.tensor(problem.recipe.local.lr, dtype=torch.float64, device=state.theta_P.device)
    scale = float(lr) * steps_a_round(problem.recipe.local, problem.longest)
    seen, truth = [], []
    for part_M in client_M.split(max(1, _AT_ONCE // len(state.theta_P))):
        change_MP, stays, _ = local_updates(problem, state, part_M, lr)
        change_MP = halved(change_MP) if half else change_MP
        seen.append(layer.seen(problem, state.theta_P, change_MP, scale))
        if method.row == "client" and stays:
            truth.append(method.truth({**pick(state.own, part_M), **stays}, state.server, {}))
    whole = Seen(
        torch.cat([one.moment_MDD for one in seen]), torch.cat([one.shift_MD for one in seen]), seen[0].biased
    )
    return Watched(whole, torch.cat(truth) if truth else None)


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
