"""The reference engine: one client after another, as devices would. Slow and obvious; the others answer to it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from selfsame.engine import optimisers
from selfsame.engine.plan import Start, Turn
from selfsame.engine.problem import Problem
from selfsame.engine.state import State
from selfsame.engine.sums import Sums
from selfsame.errors import SelfsameError
from selfsame.methods.base import Cohort, Fields, pick, put_rows
from selfsame.methods.wire import finite_rows, too_long
from selfsame.streams import Stream


def client_update(problem: Problem, theta_P: Tensor, start: Start) -> tuple[Tensor, Fields, Fields, float]:
    """What one device does: (its network, what stays, what leaves, its mean loss). It starts as a cohort of one."""
    assert isinstance(start.number, int)
    method, model, who, sent, lr = problem.method, problem.model, start.who, start.sent, start.lr
    mine: Fields | None = None
    losses = []
    for batch in problem.batches_alone(who.client_M, start.number):
        if mine is None:
            with torch.no_grad():
                first = model.embed_eager(theta_P, batch.x_MB[0])[None]
            mine = method.start(start.own, sent, who, first, batch.mask_MB)
        theta = theta_P.detach().requires_grad_()
        learned = {name: mine[name].detach().requires_grad_() for name in method.learns}
        emb = model.embed_eager(theta, batch.x_MB[0])[None]
        head = model.head_views(theta)
        loss = method.loss(emb, batch.mask_MB, {**mine, **learned}, sent, head, who).sum()
        kept = problem.kept(batch.x_MB)
        if kept is not None:
            loss = loss + kept.loss(emb, batch.mask_MB).sum()
        grads = torch.autograd.grad(loss, [theta, *learned.values()], allow_unused=True, materialize_grads=True)
        theta_P = theta_P - lr * grads[0]
        mine = {**mine, **{k: mine[k] - lr * g for k, g in zip(learned, grads[1:], strict=True)}}
        losses.append(float(loss.detach()) if bool(batch.sound_M) else math.nan)
    assert mine is not None
    final = emb.detach()
    if method.needs_final_embedding:
        with torch.no_grad():
            final = model.embed_eager(theta_P, batch.x_MB[0])[None]
    stream = problem.stream("report", who.client_M, start.number)
    stays, leaves = method.report(mine, sent, who, final, batch.mask_MB, stream)
    method.wire.check_up(leaves, start.own, mine, stays)
    world = problem.world
    for name, longest in method.longest("up", world.dim, world.classes, world.clients).items():
        if bool(torch.isfinite(leaves[name]).all()) and too_long(leaves[name], longest):  # else it is refused below
            raise SelfsameError(f"wire: field {name!r} is longer than the {longest:g} that {method.name} declares")
    return theta_P, stays, leaves, sum(losses) / len(losses)


@dataclass(frozen=True)
class Reported:
    """What reaches the server from one device beside its network."""

    client: int
    label: int  # its class
    weight: float
    leaves: Fields


@dataclass(frozen=True)
class Answer(Reported):
    """What reaches a server that sees every network."""

    theta_P: Tensor


def take_answers(
    problem: Problem, state: State, answers: Sequence[Answer], lr: Tensor, server_lr: Tensor, number: int
) -> None:
    """The server's half of a round, in place: the weighted mean of the networks, the reports, the optimiser's step."""
    total = sum(answer.weight for answer in answers)
    mean_P = torch.zeros_like(state.theta_P)
    for answer in answers:
        mean_P += answer.weight / total * answer.theta_P
    take_mean(problem, state, answers, mean_P, lr, server_lr, number)


def take_mean(
    problem: Problem,
    state: State,
    answers: Sequence[Reported],
    mean_P: Tensor,
    lr: Tensor,
    server_lr: Tensor,
    number: int,
) -> None:
    """The same where the mean of the networks is given, from a sum in which nobody's network can be seen."""
    total = sum(answer.weight for answer in answers)
    device = state.theta_P.device
    everyone = Cohort(
        torch.tensor([answer.client for answer in answers], device=device),
        torch.tensor([answer.label for answer in answers], device=device),
        torch.ones(len(answers), dtype=torch.bool, device=device),
    )
    together = {name: torch.cat([answer.leaves[name] for answer in answers]) for name in answers[0].leaves}
    weight_M = torch.tensor([answer.weight / total for answer in answers], dtype=state.theta_P.dtype, device=device)
    problem.method.absorb(state.server, together, everyone, weight_M, lr, problem.server_stream("absorb", number))
    if state.alone_NP is None:
        optimisers.step(problem.recipe.server, state.optim, state.theta_P, state.theta_P - mean_P, lr, server_lr)


def run_round(problem: Problem, state: State, turn: Turn) -> Tensor:
    """One round on `state`, in place; returns the weighted mean loss."""
    assert isinstance(turn.number, int)
    method, client_M, alive_M = problem.method, turn.client_M, turn.alive_M
    answers = []
    for client in client_M[alive_M].tolist():
        who = problem.cohort(torch.tensor([client], device=client_M.device), alive_M.new_ones(1))
        own = pick(state.own, who.client_M)
        sent = method.send(state.server, who)
        method.wire.check_down(sent)
        before = state.theta_P if state.alone_NP is None else state.alone_NP[client]
        theta, stays, leaves, loss = client_update(problem, before, Start(who, own, sent, turn.lr, turn.number))
        if not bool(finite_rows(theta[None], theta.new_tensor([loss]), *stays.values(), *leaves.values())):
            state.refused += 1
            continue
        count_1 = problem.counts(who.client_M)
        weight = 1.0 if count_1 is None else float(count_1)
        answers.append((Answer(client, int(who.class_M), weight, leaves, theta), stays, loss))
    if len(answers) < (1 if problem.sums is None else problem.sums.least):
        return state.theta_P.new_zeros(())
    for answer, stays, _ in answers:
        client_1 = torch.tensor([answer.client], device=client_M.device)
        for name, rows in stays.items():
            put_rows(state.own[name], client_1, rows, alive_M.new_ones(1))
        if state.alone_NP is not None:
            state.alone_NP[client_1] = answer.theta_P
    told = [answer for answer, *_ in answers]
    if problem.sums is None:
        take_answers(problem, state, told, turn.lr, turn.server_lr, turn.number)
    else:
        mean_P = state.theta_P + _add_up(problem, problem.sums, state, turn, told)
        take_mean(problem, state, told, mean_P, turn.lr, turn.server_lr, turn.number)
    total = sum(answer.weight for answer, *_ in answers)
    return torch.tensor(sum(a.weight / total * loss for a, _, loss in answers), dtype=state.theta_P.dtype)


def _add_up(problem: Problem, sums: Sums, state: State, turn: Turn, answers: Sequence[Answer]) -> Tensor:
    """The mean update of the whole group: what each member sent, or else sent last, added up one by one."""
    fresh = {answer.client: answer for answer in answers}
    member_M = torch.ones_like(turn.alive_M) if turn.member_M is None else turn.member_M

    def draw(purpose: str, client_M: Tensor) -> Stream:
        return problem.stream(purpose, client_M, turn.number)

    sum_P = sums.nothing(state.theta_P)
    for client in turn.client_M[member_M].tolist():
        if client in fresh:
            client_1 = torch.tensor([client], device=turn.client_M.device)
            weight_1 = torch.full_like(client_1, int(fresh[client].weight))
            update_P = fresh[client].theta_P - state.theta_P
            sent_P = sums.contributions(client_1, update_P[None], weight_1, draw)[0]
            sum_P += sent_P
            if state.last:
                state.last["contribution"][client] = sent_P
                state.last["stood"][client].clamp_(min=0)
        elif state.last and bool(sums.may_stand(state.last["stood"][client])):
            sum_P += state.last["contribution"][client]
            state.last["stood"][client] += 1
    return sums.mean(sum_P, draw).to(state.theta_P.dtype)
