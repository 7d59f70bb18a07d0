"""The reference engine: one client after another, as devices would. Slow and obvious; the others answer to it."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from selfsame.engine import server
from selfsame.engine.batches import local_batches
from selfsame.engine.state import Problem, State
from selfsame.methods.base import Cohort, Fields, pick, put_rows
from selfsame.wire import finite_rows


def client_update(
    problem: Problem, theta_P: Tensor, own: Fields, sent: Fields, who: Cohort, lr: Tensor, number: int
) -> tuple[Tensor, Fields, Fields, float]:
    """What one device does: (its network, what stays, what leaves, its mean loss). `who` is a cohort of one."""
    method, model, recipe = problem.method, problem.model, problem.recipe
    longest = int(problem.federation.count_N[who.client_M])
    mine: Fields | None = None
    losses = []
    for batch in local_batches(
        problem.federation, who.client_M, longest, recipe.local, recipe.augment, recipe.run.seed, number, model.dtype
    ):
        if mine is None:
            with torch.no_grad():
                first = model.embed_eager(theta_P, batch.x_MB[0])[None]
            mine = method.start(own, sent, who, first, batch.mask_MB)
        theta = theta_P.detach().requires_grad_()
        learned = {name: mine[name].detach().requires_grad_() for name in method.learns}
        emb = model.embed_eager(theta, batch.x_MB[0])[None]
        head = model.head_views(theta)
        loss = method.loss(emb, batch.mask_MB, {**mine, **learned}, sent, head, who).sum()
        grads = torch.autograd.grad(loss, [theta, *learned.values()], allow_unused=True, materialize_grads=True)
        theta_P = theta_P - lr * grads[0]
        mine = {**mine, **{k: mine[k] - lr * g for k, g in zip(learned, grads[1:], strict=True)}}
        losses.append(float(loss.detach()) if bool(batch.sound_M) else math.nan)
    assert mine is not None
    final = emb.detach()
    if method.needs_final_embedding:
        with torch.no_grad():
            final = model.embed_eager(theta_P, batch.x_MB[0])[None]
    stream = problem.stream("report", who.client_M, number)
    stays, leaves = method.report(mine, sent, who, final, batch.mask_MB, stream)
    method.wire.check_up(leaves, own, mine, stays)
    return theta_P, stays, leaves, sum(losses) / len(losses)


def run_round(
    problem: Problem, state: State, client_M: Tensor, alive_M: Tensor, lr: Tensor, server_lr: Tensor, number: int
) -> Tensor:
    """One round on `state`, in place; returns the weighted mean loss."""
    method, recipe = problem.method, problem.recipe
    answers = []
    for client in client_M[alive_M].tolist():
        who = problem.cohort(torch.tensor([client], device=client_M.device), alive_M.new_ones(1))
        own = pick(state.own, who.client_M)
        sent = method.send(state.server, who)
        method.wire.check_down(sent)
        start = state.theta_P if state.alone_NP is None else state.alone_NP[client]
        theta, stays, leaves, loss = client_update(problem, start, own, sent, who, lr, number)
        if not bool(finite_rows(theta[None], theta.new_tensor([loss]), *stays.values(), *leaves.values())):
            state.refused += 1
            continue
        weight = float(problem.federation.count_N[client]) if recipe.cohort.weights == "samples" else 1.0
        answers.append((who, theta, stays, leaves, weight, loss))
    if not answers:
        return state.theta_P.new_zeros(())

    total = sum(answer[4] for answer in answers)
    mean_P = torch.zeros_like(state.theta_P)
    for who, theta, stays, _, weight, _ in answers:
        mean_P += weight / total * theta
        for name, rows in stays.items():
            put_rows(state.own[name], who.client_M, rows, who.alive_M)
        if state.alone_NP is not None:
            state.alone_NP[who.client_M] = theta

    everyone = Cohort(
        torch.cat([a[0].client_M for a in answers]),
        torch.cat([a[0].class_M for a in answers]),
        torch.cat([a[0].alive_M for a in answers]),
    )
    together = {name: torch.cat([a[3][name] for a in answers]) for name in answers[0][3]}
    weight_M = torch.tensor([a[4] / total for a in answers], dtype=state.theta_P.dtype, device=state.theta_P.device)
    method.absorb(state.server, together, everyone, weight_M, lr, problem.server_stream("absorb", number))
    if state.alone_NP is None:
        server.step(recipe.server, state.optim, state.theta_P, state.theta_P - mean_P, lr, server_lr)
    return torch.tensor(sum(a[4] / total * a[5] for a in answers), dtype=state.theta_P.dtype)
