"""The differencing attacker: who gave what, from nothing but sums and the rosters of who was in them.

An update points at the owner's vector round after round, so a released sum is nearly x_1 + .. + x_m over its members,
each of them times how large updates were when it was made. With enough different rosters, least squares over the rounds
tells the members apart. Where a whole group is always in the sum together and answers as a whole, all that there is to
find is the group's. A stand-in is an update of another time, when updates were larger or smaller: that sets it apart.

Shapes: T rounds, N clients, D width, E equations.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from selfsame.audit.leakage import closest
from selfsame.audit.transcript import Transcript
from selfsame.methods.base import unit

_SMOOTH = 5  # sums on either side by which the size of updates at a time is judged
_POWERS = (0.0, 1.0, 1.5, 2.0)
_DIFFERENCES = (False, True)
_RIDGES = (1e-3, 1e-2, 0.1, 1.0)


@dataclass(frozen=True)
class Way:
    """How the attacker weighs what was released."""

    power: float  # of the size of updates by which a round is divided; 0: updates are taken to be of one size
    differences: bool  # whether to look also at how the sums of the same clients differ from one time to the next
    ridge: float  # of the mean square of the equations


WAYS = tuple(Way(*parts) for parts in product(_POWERS, _DIFFERENCES, _RIDGES))


@dataclass(frozen=True)
class Identified:
    """What the attacker got, and the way that did best."""

    share: float  # of clients whose guess lies closest to their own vector
    cosine: float  # of guesses and true vectors, on average
    way: Way


def contributions(seen: Transcript, drift: bool) -> Tensor:
    """How much of each client's vector lies in each sum, as far as rosters and the sums' lengths tell: (T, N)."""
    size_T = _sizes(seen) if drift else torch.ones(len(seen.sum_TD), dtype=torch.float64)
    if not seen.stand_ins:
        return size_T[:, None] * seen.fresh_TN
    out_TN = torch.zeros(seen.fresh_TN.shape, dtype=torch.float64)
    last_N = torch.zeros(seen.fresh_TN.shape[1], dtype=torch.float64)
    for t, (asked_N, fresh_N) in enumerate(zip(seen.asked_TN, seen.fresh_TN, strict=True)):
        last_N = torch.where(fresh_N, size_T[t], last_N)
        out_TN[t] = last_N * asked_N
    return out_TN


def _sizes(seen: Transcript) -> Tensor:
    """The length of a sum over its number of members, smoothed over the rounds around it: (T,)."""
    members_T = (seen.asked_TN if seen.stand_ins else seen.fresh_TN).sum(1).clamp(min=1)
    size_T = seen.sum_TD.norm(dim=1) / members_T
    window = 2 * _SMOOTH + 1
    padded = torch.nn.functional.pad(size_T[None, None], (_SMOOTH, _SMOOTH), mode="replicate")
    return torch.nn.functional.avg_pool1d(padded, window, 1)[0, 0].clamp(min=1e-12)


def guesses(seen: Transcript, way: Way) -> Tensor:
    """The attacker's vector for every client: ridge regression of the sums on who is in them, (N, D)."""
    part_TN = contributions(seen, way.power > 0)
    weight_T1 = _sizes(seen)[:, None] ** -way.power
    row_EN, value_ED = part_TN * weight_T1, seen.sum_TD * weight_T1
    if way.differences:
        now_E, then_E = _same_clients(seen.asked_TN)
        row_EN = torch.cat([row_EN, row_EN[now_E] - row_EN[then_E]])
        value_ED = torch.cat([value_ED, value_ED[now_E] - value_ED[then_E]])
    square_NN = row_EN.T @ row_EN
    weight = way.ridge * square_NN.diagonal().mean().clamp(min=1e-12)
    return torch.linalg.solve(square_NN + weight * torch.eye(len(square_NN), dtype=torch.float64), row_EN.T @ value_ED)


def _same_clients(asked_TN: Tensor) -> tuple[Tensor, Tensor]:
    """The rounds whose clients were asked together before, and when last."""
    last: dict[bytes, int] = {}
    now, then = [], []
    for t, key in enumerate(row.numpy().tobytes() for row in asked_TN):
        if key in last:
            now.append(t)
            then.append(last[key])
        last[key] = t
    return torch.tensor(now, dtype=torch.int64), torch.tensor(then, dtype=torch.int64)


def identified(seen: Transcript, truth_ND: Tensor, by_angle: bool = True) -> Identified:
    """The best of all `WAYS`, chosen with the answer at hand: no attacker does better with these."""
    found = [judged(guesses(seen, way), truth_ND, way, by_angle) for way in WAYS]
    return max(found, key=lambda one: (one.share, one.cosine))


def judged(guess_ND: Tensor, truth_ND: Tensor, way: Way, by_angle: bool = True) -> Identified:
    """How many guesses lie closest to their own client's vector; one that is zero finds nobody."""
    truth_ND = truth_ND.double().to(guess_ND.device)
    near_N = closest(truth_ND, guess_ND, by_angle)
    own_N = (near_N == torch.arange(len(near_N))) & (guess_ND != 0).any(1)
    cosine = (unit(guess_ND) * unit(truth_ND)).sum(1).mean()
    return Identified(float(own_N.double().mean()), float(cosine), way)
