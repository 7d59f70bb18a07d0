"""Who took part: an attacker tells by the released networks, and what that proves of epsilon.

Every client is a canary: a coin decides whether it takes part at all, and the attacker, who knows what each would have
sent in every round, guesses the coins from what was released. Under epsilon-differential privacy no guess is right with
more than a chance of e^epsilon / (1 + e^epsilon), whatever the other coins show, so one run with many coins proves as
much as many runs with one coin each.

Of a method that polls, the attacker also knows what each would have answered. Who is no canary always answers.

Shapes: N canaries, P parameters, V numbers of a poll.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from selfsame.audit.attackers import ANY, Audited, Finding
from selfsame.audit.transcript import local_updates
from selfsame.audit.updates import trains_alone
from selfsame.engine import optimisers
from selfsame.engine.groups import groups_of
from selfsame.engine.plan import rate
from selfsame.engine.polls import hold_poll
from selfsame.engine.problem import Problem
from selfsame.engine.state import State, begin
from selfsame.engine.sums import noise_spent
from selfsame.methods.base import put_rows
from selfsame.privacy.fixed import shortened
from selfsame.streams import Stream, host_generator

DOUBT = 0.05  # how often a bound may be wrong
_CANARIES = 64  # in one run, at most
_FEW = 8  # whatever the size of the network
_AT_ONCE = 2**26  # numbers of updates in work at a time
_TOSSES = 56  # coins to be tossed in all: small federations train several times
_MOST = 1e6  # by which polls and updates may be weighed against one another
_RIDGE = 1e-9  # of the mean square of what canaries would have sent


def least_share(right: int, guesses: int, doubt: float) -> float:
    """The least chance of a right guess that so many right ones leave possible (Clopper and Pearson, one side)."""
    from scipy.special import betaincinv

    return float(betaincinv(right, guesses - right + 1, doubt)) if right else 0.0


def least_epsilon(right: int, guesses: int, delta: float = 0.0, doubt: float = DOUBT) -> float:
    """The epsilon at a delta that so many right guesses of coins prove, but for the doubt; 0: they prove nothing.

    Delta may have spoiled each of the guesses: that is taken off the doubt, twice for each.
    """
    doubt -= 2 * guesses * delta
    share = least_share(right, guesses, doubt) if doubt > 0 else 0.0
    return math.log(share / (1 - share)) if share > 0.5 else 0.0


@dataclass(frozen=True)
class Guessed:
    """What an attacker made of one run's coins."""

    took_part_N: Tensor  # the coins
    score_N: Tensor  # how much of each canary's updates lies in what was released: about 1 or 0

    @property
    def right(self) -> int:
        """How many coins were guessed."""
        return int(((self.score_N > 0.5) == self.took_part_N).sum())


def train_with_coins(problem: Problem, canaries: int, rounds: int, seed: int) -> Guessed:
    """A new training in which coins decide who takes part, and the attacker's guesses from its released sums.

    Least squares over the rounds: the released sum is what those who took part sent, and noise. Groups take turns as
    in the run, each less those whom the coin left out.
    """
    recipe, state = problem.recipe, begin(problem)
    device = state.theta_P.device
    heads = host_generator(seed, "audit coins").random(canaries) < 0.5
    took_part_N = torch.from_numpy(heads).to(device)
    square_NN = torch.zeros(canaries, canaries, dtype=torch.float64, device=device)
    along_N = torch.zeros(canaries, dtype=torch.float64, device=device)
    telling = _poll_weight(problem)
    for number in range(rounds):
        answer = _polled(problem, state, took_part_N)
        if answer is not None:
            known_NV, sum_V = answer
            square_NN += telling * known_NV @ known_NV.T
            along_N += telling * known_NV @ sum_V
        lr, server_lr = (
            torch.tensor(rate(part, number, recipe.run.rounds), dtype=torch.float64, device=device)
            for part in (recipe.local, recipe.server)
        )
        known_M = _turn(problem, number, canaries).to(device)
        if not len(known_M):
            state.round += 1
            continue
        change_MP, stays, leaves = local_updates(problem, state, known_M, lr)
        count_M = problem.counts(known_M)
        weight_M = torch.ones_like(known_M) if count_M is None else count_M
        in_M = took_part_N[known_M]
        total_P, weight = _released(problem, known_M[in_M], change_MP[in_M], weight_M[in_M], number)
        sent_MP = change_MP if problem.sums is None else shortened(change_MP, problem.sums.clip)
        sent_MP = sent_MP.double() * weight_M[:, None]
        square_NN[known_M[:, None], known_M] += sent_MP @ sent_MP.T
        along_N[known_M] += sent_MP @ total_P
        who = problem.cohort(known_M, in_M)
        for name, rows in stays.items():
            put_rows(state.own[name], known_M, rows, in_M)
        if bool(in_M.any()):
            share_M = (weight_M * in_M).to(change_MP.dtype) / weight
            problem.method.absorb(state.server, leaves, who, share_M, lr, problem.server_stream("absorb", number))
            mean_P = (total_P / weight).to(state.theta_P.dtype)
            optimisers.step(recipe.server, state.optim, state.theta_P, -mean_P, lr, server_lr)
        state.round += 1
    ridge = _RIDGE * square_NN.diagonal().mean().clamp(min=1e-300)
    inverse_NN = torch.linalg.pinv(square_NN + ridge * torch.eye(canaries, dtype=torch.float64, device=device))
    return Guessed(took_part_N, inverse_NN @ along_N)


def _poll_weight(problem: Problem) -> float:
    """How much a number of a poll tells, over a number of a round's sum: the inverse ratio of their noises' squares."""
    poll, sums = problem.poll, problem.recipe.sums
    if poll is None:
        return 0.0
    polled, summed = poll.noise * poll.longest, sums.noise * sums.clip
    return min(_MOST, max(1 / _MOST, (summed / polled) ** 2 if polled else _MOST if summed else 1.0))


def _polled(problem: Problem, state: State, took_part_N: Tensor) -> tuple[Tensor, Tensor] | None:
    """The poll before a round: (what each canary would have added, what is released less what others added).

    None: none is due, or too few answer. The server takes it, and those who answered know what they did.
    """
    method, canaries = problem.method, len(took_part_N)
    if problem.poll is None or not problem.poll.due(state.round):
        return None
    answers_N = torch.ones(problem.world.clients, dtype=torch.bool, device=took_part_N.device)
    answers_N[:canaries] = took_part_N
    own = {name: rows[:canaries] for name, rows in state.own.items()}
    known_NV = method.contribution(method.answer_poll(own, state.server)).double()
    sum_V = hold_poll(problem, state, answers_N)
    if sum_V is None:
        return None
    others = {name: rows[canaries:] for name, rows in state.own.items()}
    return known_NV, sum_V - method.contribution(others).sum(0, dtype=torch.float64)


def _turn(problem: Problem, number: int, canaries: int) -> Tensor:
    """The canaries of a round: its group's where only sums are released, and else all."""
    if problem.sums is None:
        return torch.arange(canaries)
    groups = groups_of(problem.recipe, number, problem.world.clients)
    return torch.tensor([client for client in groups[number % len(groups)].tolist() if client < canaries])


def _released(
    problem: Problem, client_M: Tensor, change_MP: Tensor, weight_M: Tensor, number: int
) -> tuple[Tensor, float]:
    """(the sum of these clients' updates as it is released, in double precision, their weight)."""
    weight = float(weight_M.sum().clamp(min=1))
    sums = problem.sums
    if sums is None:
        return (change_MP.double() * weight_M[:, None]).sum(0), weight

    def draw(purpose: str, who_M: Tensor) -> Stream:
        return problem.stream(f"audit {purpose}", who_M, number)

    sum_P = sums.contributions(client_M, change_MP, weight_M, draw).to(sums.nothing(change_MP.new_zeros(1)).dtype)
    return sums.mean(sum_P.sum(0), draw) * weight, weight


@dataclass(frozen=True)
class MembershipReader:
    """Guesses who took part from the networks that everybody is sent, and says what epsilon that proves."""

    name: str = "membership"

    def fits(self, case: Audited) -> bool:
        return trains_alone(case.problem)

    def run(self, case: Audited) -> Iterator[Finding]:
        large = max(_FEW, _AT_ONCE // len(case.state.theta_P))
        canaries = min(case.problem.world.clients, _CANARIES, large)
        times = -(-_TOSSES // canaries)
        right = sum(
            train_with_coins(case.problem, canaries, case.rounds, case.seed + one).right for one in range(times)
        )
        tosses, delta = times * canaries, case.problem.recipe.split.delta
        proven = least_epsilon(right, tosses, delta)
        spent = noise_spent(case.problem.recipe, case.rounds, case.problem.world.clients, case.problem.poll)
        known = spent is not None and spent.epsilon is not None and not spent.why  # of all that is released
        stated = f"{spent.epsilon:.3g} is stated" if spent is not None and known else "none is stated"
        said = (
            f"{right} of {tosses} coins guessed: epsilon is at least {proven:.2f} at delta {delta:g} for {case.rounds} "
            f"rounds ({stated}; all coins would prove {least_epsilon(tosses, tosses, delta):.2f})"
        )
        yield Finding(
            self.name, "who took part", "public", ANY, right / tosses, None, 0.5, case.rounds, said=said, vectors=False
        )  # fmt: skip
