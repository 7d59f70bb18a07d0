"""The cohort engine: a round for M clients at once.

One local SGD step and no batch-coupled layer: averaging the clients' networks equals one weighted step on all their
samples, so the cohort is one forward pass, the clients' own loss derivatives, and one weighted vector-Jacobian product.
Several steps, or a report that needs the locally updated network: every client gets its own replica of theta, stacked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from selfsame.engine.batches import Batch, local_batches, steps_a_round
from selfsame.engine.state import Problem, State
from selfsame.methods.base import Cohort, Fields, pick, put_rows
from selfsame.wire import finite_rows

# (loss_M, working fields, last batch embedded, its mask, and what turns "whose values are finite" into the weights and
# theta minus the weighted mean of the clients' thetas)
Work = tuple[Tensor, Fields, Tensor, Tensor, Callable[[Tensor], tuple[Tensor, Tensor | None]]]


def fused(problem: Problem) -> bool:
    """Whether the whole cohort can run as a single weighted pass."""
    method = problem.method
    one_step = steps_a_round(problem.recipe.local, problem.longest) == 1
    return one_step and method.federated and not method.needs_final_embedding


def derivatives(
    problem: Problem, emb_MBD: Tensor, batch: Batch, mine: Fields, sent: Fields, head: Fields, who: Cohort
) -> tuple[Tensor, Tensor, Fields, Fields]:
    """(loss_M, d/d emb, d/d working fields, d/d head), each row from its own client's loss.

    A client whose batch is empty (it has finished its pass) contributes nothing. In the stacked path head has a row a
    client; in the fused path head is shared and its derivative is left to `head_derivative`.
    """
    learned = {name: mine[name].detach().requires_grad_() for name in problem.method.learns}
    stacked_head = {name: value.detach().requires_grad_() for name, value in head.items()}
    emb = emb_MBD.detach().requires_grad_()
    with torch.enable_grad():
        loss_M = problem.tools.loss(emb, batch.mask_MB, {**mine, **learned}, sent, stacked_head, who)
        loss_M = loss_M * batch.mask_MB.any(1)
        wanted = [emb, *learned.values(), *stacked_head.values()]
        grads = torch.autograd.grad(loss_M.sum(), wanted, allow_unused=True, materialize_grads=True)
    cut = 1 + len(learned)
    return (
        loss_M.detach(),
        grads[0],
        dict(zip(learned, grads[1:cut], strict=True)),
        dict(zip(stacked_head, grads[cut:], strict=True)),
    )


def normalised(problem: Problem, who: Cohort, good_M: Tensor) -> Tensor:
    """omega_k over the clients that answered with finite values: n_k / n, or uniform; zero for the others."""
    weight_M = who.alive_M & good_M
    weight_M = weight_M.to(problem.model.dtype)
    if problem.recipe.cohort.weights == "samples":
        weight_M = weight_M * problem.federation.count_N[who.client_M]
    total = weight_M.sum()
    return weight_M / torch.where(total > 0, total, 1)


def run_round(
    problem: Problem,
    state: State,
    client_M: Tensor,
    alive_M: Tensor,
    lr: Tensor,
    server_lr: Tensor,
    number: int | Tensor,
) -> Tensor:
    """One round on `state`, in place; returns the mean loss of the clients that answered."""
    method, model, recipe = problem.method, problem.model, problem.recipe
    who = problem.cohort(client_M, alive_M)
    own = pick(state.own, client_M)
    sent = method.send(state.server, who)
    method.wire.check_down(sent)
    batches = local_batches(
        problem.federation,
        client_M,
        problem.longest,
        recipe.local,
        recipe.augment,
        recipe.run.seed,
        number,
        model.dtype,
        problem.tools.draw,
    )
    work = _fused_steps if fused(problem) else _stacked_steps
    loss_M, mine, emb_MBD, mask_MB, finish = work(problem, state, own, sent, who, lr, batches)

    reports = problem.stream("report", client_M, number)
    stays, leaves = problem.tools.report(mine, sent, who, emb_MBD, mask_MB, reports)
    method.wire.check_up(leaves, own, mine, stays)
    good_M = finite_rows(loss_M, *stays.values(), *leaves.values())
    weight_M, delta_P = finish(good_M)
    answered = Cohort(who.client_M, who.class_M, weight_M > 0)
    state.refused += (alive_M & ~answered.alive_M).sum()
    # Nobody is left: nothing changes. On CUDA, where asking would wait for the device, momentum goes on for this round.
    if model.device.type == "cpu" and not bool(answered.alive_M.any()):
        return loss_M.new_zeros(())

    for name, rows in stays.items():
        put_rows(state.own[name], client_M, rows, answered.alive_M)
    method.absorb(state.server, leaves, answered, weight_M, lr, problem.server_stream("absorb", number))
    if delta_P is not None:
        problem.tools.server_step(recipe.server, state.optim, state.theta_P, delta_P, lr, server_lr)
    return (torch.where(answered.alive_M, loss_M, 0) * weight_M).sum()


def _moved(mine: Fields, grads: Fields, lr: Tensor, active_M: Tensor) -> Fields:
    """The working fields after a local SGD step of the clients that still have samples."""
    out = dict(mine)
    for name, grad in grads.items():
        keep = active_M.reshape(-1, *(1 for _ in grad.shape[1:]))
        out[name] = mine[name] - lr * grad * keep
    return out


def _fused_steps(
    problem: Problem, state: State, own: Fields, sent: Fields, who: Cohort, lr: Tensor, batches: Iterator[Batch]
) -> Work:
    """One pass: forward everything, differentiate each client's own loss, pull the weighted derivatives back."""
    model, method = problem.model, problem.method
    (batch,) = batches
    theta = state.theta_P.detach().requires_grad_()
    # In the common backward pass a NaN of one client would reach everybody, whatever its weight: 0 * NaN is NaN.
    sound_M = finite_rows(batch.x_MB)
    x_MB = torch.where(sound_M.reshape(-1, *(1 for _ in batch.x_MB.shape[1:])), batch.x_MB, 0)
    with torch.enable_grad():
        emb = model.embed(theta, x_MB)
    head = {name: value.detach() for name, value in model.head_views(state.theta_P).items()}
    each_head = {name: value.expand(len(who.client_M), *value.shape) for name, value in head.items()}
    mine = method.start(own, sent, who, emb.detach(), batch.mask_MB)
    loss_M, emb_grad, mine_grad, head_grad = derivatives(problem, emb, batch, mine, sent, each_head, who)
    mine = _moved(mine, mine_grad, lr, batch.mask_MB.any(1))

    def finish(good_M: Tensor) -> tuple[Tensor, Tensor | None]:
        good_M = good_M & sound_M & finite_rows(emb_grad, *head_grad.values())
        weight_M = normalised(problem, who, good_M)
        pull = torch.where((weight_M > 0)[:, None, None], emb_grad * weight_M[:, None, None], 0)
        (grad_P,) = torch.autograd.grad(emb, theta, pull)
        if head_grad:
            kept = [
                torch.where((weight_M > 0).reshape(-1, *(1 for _ in g.shape[1:])), g, 0) for g in head_grad.values()
            ]
            tail = [torch.tensordot(weight_M, g, 1).reshape(-1) for g in kept]
            width = sum(len(t) for t in tail)
            grad_P = torch.cat([grad_P[: len(grad_P) - width], *tail])
        return weight_M, lr * grad_P

    return loss_M, mine, emb.detach(), batch.mask_MB, finish


def _latest(before: tuple[Tensor, Batch], now: tuple[Tensor, Batch], active_M: Tensor) -> tuple[Tensor, Batch]:
    """Each client's last batch that held samples: one that has finished its pass keeps its own."""
    (old_emb, old), (emb, batch) = before, now
    short = old.mask_MB.shape[1] - batch.mask_MB.shape[1]
    if short:  # the last batch of a pass may be narrower

        def wide(t: Tensor) -> Tensor:
            return torch.cat([t, t.new_zeros(t.shape[0], short, *t.shape[2:])], 1)

        emb, batch = wide(emb), Batch(wide(batch.x_MB), wide(batch.mask_MB))

    def choose(new: Tensor, kept: Tensor) -> Tensor:
        return torch.where(active_M.reshape(-1, *(1 for _ in new.shape[1:])), new, kept)

    return choose(emb, old_emb), Batch(choose(batch.x_MB, old.x_MB), choose(batch.mask_MB, old.mask_MB))


def _stacked_steps(
    problem: Problem, state: State, own: Fields, sent: Fields, who: Cohort, lr: Tensor, batches: Iterator[Batch]
) -> Work:
    """Each client trains its own replica of the network for as many steps as it has batches."""
    model, method = problem.model, problem.method
    if method.federated:
        theta_MP = state.theta_P.expand(len(who.client_M), -1).clone()
    else:
        assert state.alone_NP is not None
        theta_MP = state.alone_NP[who.client_M]
    start_MP = theta_MP
    mine: Fields | None = None
    last: tuple[Tensor, Batch] | None = None
    loss_M = torch.zeros(len(theta_MP), dtype=model.dtype, device=model.device)
    steps_M = torch.zeros_like(loss_M)
    for batch in batches:
        theta = theta_MP.detach().requires_grad_()
        with torch.enable_grad():
            emb = model.embed_each(theta, batch.x_MB)
        if mine is None:
            mine = method.start(own, sent, who, emb.detach(), batch.mask_MB)
        active_M = batch.mask_MB.any(1)
        head = model.head_views(theta_MP)
        step_M, emb_grad, mine_grad, head_grad = derivatives(problem, emb, batch, mine, sent, head, who)
        (grad_MP,) = torch.autograd.grad(emb, theta, emb_grad)
        if head_grad:
            tail = torch.cat([g.flatten(1) for g in head_grad.values()], 1)
            grad_MP = torch.cat([grad_MP[:, : grad_MP.shape[1] - tail.shape[1]], tail], 1)
        theta_MP = theta_MP - lr * grad_MP
        mine = _moved(mine, mine_grad, lr, active_M)
        loss_M, steps_M = loss_M + step_M, steps_M + active_M
        last = (emb.detach(), batch) if last is None else _latest(last, (emb.detach(), batch), active_M)
    assert mine is not None and last is not None
    emb_MBD, batch = last
    if method.needs_final_embedding:
        with torch.no_grad():
            emb_MBD = model.embed_each(theta_MP, batch.x_MB)

    def finish(good_M: Tensor) -> tuple[Tensor, Tensor | None]:
        good_M = good_M & finite_rows(theta_MP)
        weight_M = normalised(problem, who, good_M)
        if state.alone_NP is not None:
            put_rows(state.alone_NP, who.client_M, theta_MP, weight_M > 0)
            return weight_M, None
        moved = torch.where((weight_M > 0)[:, None], start_MP - theta_MP, 0)
        return weight_M, weight_M @ moved

    return loss_M / steps_M.clamp(min=1), mine, emb_MBD, batch.mask_MB, finish
