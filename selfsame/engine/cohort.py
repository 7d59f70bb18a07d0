"""The cohort engine: a round for M clients at once.

One local SGD step and no batch-coupled layer: averaging the clients' networks equals one weighted step on all their
samples, so the cohort is one forward pass, the clients' own loss derivatives, and one weighted vector-Jacobian product.
Several steps, a report that needs the locally updated network, or sums of what each client clips and rounds: the first
step shares theta and gives every client its own derivatives, and from then on each has its own replica, stacked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import torch
from torch import Tensor

from selfsame.engine.batches import Batch, steps_a_round
from selfsame.engine.optimisers import Update
from selfsame.engine.plan import Start, Turn
from selfsame.engine.problem import Problem
from selfsame.engine.ranks import shards
from selfsame.engine.settle import LocalWork, derivatives, moved, normalised, over, own_loss
from selfsame.engine.state import State
from selfsame.engine.sums import Sums
from selfsame.methods.base import Cohort, Fields, pick, put_rows
from selfsame.methods.wire import finite_rows


def fused(problem: Problem) -> bool:
    """Whether the whole cohort can run as a single weighted pass."""
    method = problem.method
    one_step = steps_a_round(problem.recipe.local, problem.longest) == 1
    alike = method.federated and problem.sums is None  # what is clipped or rounded is every client's own update
    return one_step and alike and not method.needs_final_embedding


def run_round(problem: Problem, state: State, turn: Turn) -> Tensor:
    """One round on `state`, in place; returns the mean loss of the clients that answered."""
    method, model, ranks, client_M = problem.method, problem.model, problem.ranks, turn.client_M
    everyone = problem.cohort(client_M, turn.alive_M)
    who = ranks.share(everyone)
    ranks.begin_round()
    own = pick(state.own, who.client_M)
    rows = shards.fetch(problem, state, everyone)
    sent = method.send(state.server, who) if rows is None else rows.send(method, who)
    method.wire.check_down(sent)
    start = Start(who, own, sent, turn.lr, turn.number, problem.counts(who.client_M))
    batches = problem.batches(who.client_M, turn.number) if turn.batches is None else turn.batches
    work = (_fused_steps if fused(problem) else _stacked_steps)(problem, state, start, batches)
    method.wire.check_up(work.leaves, own, work.mine, work.stays)
    summed: Callable[[], Update] | None = None
    if ranks.active:
        work, summed = _of_all_ranks(problem, work, who, everyone)
    state.refused += (turn.alive_M & (work.weight_M == 0)).sum()
    if problem.sums is not None:
        work = _released(problem, problem.sums, state, turn, work)
    answered = Cohort(client_M, everyone.class_M, work.weight_M > 0)
    # Nobody is left: nothing changes. On CUDA, where asking would wait for the device, momentum goes on for this round.
    if model.device.type == "cpu" and not bool(answered.alive_M.any()):
        if summed is not None:
            summed()
        return work.loss_M.new_zeros(())

    for name, kept in work.stays.items():
        put_rows(state.own[name], client_M, kept, answered.alive_M)
    if work.alone_MP is not None:
        assert state.alone_NP is not None
        put_rows(state.alone_NP, client_M, work.alone_MP, answered.alive_M)
    stream = problem.server_stream("absorb", turn.number)
    if rows is None:
        method.absorb(state.server, work.leaves, answered, work.weight_M, turn.lr, stream)
    else:
        method.absorb_blocks(rows, work.leaves, answered, work.weight_M, turn.lr, stream)
    if work.update is not None:
        update = work.update if summed is None else summed()
        part = problem.recipe.server
        problem.tools.server_step(part, state.optim, state.theta_P, update, turn.lr, turn.server_lr)
    return (torch.where(answered.alive_M, work.loss_M, 0) * work.weight_M).sum()


def _released(problem: Problem, sums: Sums, state: State, turn: Turn, work: LocalWork) -> LocalWork:
    """The work with the whole group's update, stand-ins included; that of nobody where too few have answered."""
    assert work.change_MP is not None
    fresh_M = work.weight_M > 0
    enough = fresh_M.sum() >= sums.least
    member_M = torch.ones_like(fresh_M) if turn.member_M is None else turn.member_M
    count_M = problem.counts(turn.client_M)
    weight_M = torch.ones_like(turn.client_M) if count_M is None else count_M
    mean_P = sums.add_up(
        state.last, turn.client_M, member_M & enough, fresh_M & enough, work.change_MP, weight_M,
        lambda purpose, client_M: problem.stream(purpose, client_M, turn.number),
    )  # fmt: skip
    return replace(work, weight_M=work.weight_M * enough, update=Update([mean_P * -enough.to(mean_P.dtype)], 1.0))


def _of_all_ranks(
    problem: Problem, work: LocalWork, who: Cohort, everyone: Cohort
) -> tuple[LocalWork, Callable[[], Update] | None]:
    """The whole cohort's work from this rank's, and what waits for the sum of the updates.

    A rank's update is weighted within its share. Times the share's weight it can be summed, and divided by the weight
    of all it is the update of all; so the sum need not wait for word of who answered elsewhere.
    """
    ranks, dtype = problem.ranks, problem.model.dtype
    answered_M = work.weight_M > 0
    summed: Callable[[], Tensor] | None = None
    if work.update is not None:
        update_P = torch.cat([piece.to(dtype).reshape(-1) for piece in work.update.pieces])
        summed = ranks.add("network update", update_P.mul_(_heard(problem, who, answered_M)))
    rows = {"answered": answered_M, "loss": work.loss_M}
    rows |= {f"stays.{name}": value for name, value in work.stays.items()}
    rows |= {f"leaves.{name}": value for name, value in work.leaves.items()}
    if work.alone_MP is not None:
        rows["network"] = work.alone_MP
    found = ranks.gather(rows, len(everyone.client_M))()
    good_M = found["answered"]
    whole = replace(
        work,
        loss_M=found["loss"],
        stays={name: found[f"stays.{name}"] for name in work.stays},
        leaves={name: found[f"leaves.{name}"] for name in work.leaves},
        weight_M=normalised(everyone, good_M, problem.counts(everyone.client_M), dtype),
        alone_MP=found.get("network"),
    )
    if work.update is None or summed is None:
        return whole, None
    scale = work.update.scale / _heard(problem, everyone, good_M).clamp(min=1)
    return whole, lambda: Update([summed()], scale)


def _heard(problem: Problem, who: Cohort, answered_M: Tensor) -> Tensor:
    """What the clients that answered weigh together, before it is divided by."""
    count_M = problem.counts(who.client_M)
    return (answered_M if count_M is None else answered_M * count_M).sum().to(problem.model.dtype)


def _fused_steps(problem: Problem, state: State, start: Start, batches: Iterable[Batch]) -> LocalWork:
    """One pass: forward everything, differentiate each client's own loss, pull the weighted derivatives back."""
    model = problem.model
    (batch,) = batches
    emb_MBD, back = model.embed_and_back(state.theta_P, batch.x_MB)
    work, pull_MBD, tail = problem.tools.settle(
        problem.method, problem.recipe.run.seed, start, batch, emb_MBD, model.head_views(state.theta_P),
        problem.kept(batch.x_MB),
    )  # fmt: skip
    return replace(work, update=Update([*back(pull_MBD), *tail], start.lr))


def _latest(before: tuple[Tensor, Batch], now: tuple[Tensor, Batch], active_M: Tensor) -> tuple[Tensor, Batch]:
    """Each client's last batch that held samples: one that has finished its pass keeps its own."""
    (old_emb, old), (emb, batch) = before, now
    short = old.mask_MB.shape[1] - batch.mask_MB.shape[1]
    if short:  # the last batch of a pass may be narrower

        def wide(t: Tensor) -> Tensor:
            return torch.cat([t, t.new_zeros(t.shape[0], short, *t.shape[2:])], 1)

        emb, batch = wide(emb), Batch(wide(batch.x_MB), wide(batch.mask_MB), batch.sound_M)

    def choose(new: Tensor, kept: Tensor) -> Tensor:
        return torch.where(over(active_M, new), new, kept)

    chosen = Batch(choose(batch.x_MB, old.x_MB), choose(batch.mask_MB, old.mask_MB), old.sound_M & batch.sound_M)
    return choose(emb, old_emb), chosen


def _stacked_steps(problem: Problem, state: State, start: Start, batches: Iterable[Batch]) -> LocalWork:
    """Each client trains its own replica of the network for as many steps as it has batches."""
    model, method, who, sent = problem.model, problem.method, start.who, start.sent
    if method.federated:
        theta_MP = state.theta_P.expand(len(who.client_M), -1)
    else:
        assert state.alone_NP is not None
        theta_MP = state.alone_NP[who.client_M]
    start_MP, alike = theta_MP, method.federated
    mine: Fields | None = None
    last: tuple[Tensor, Batch] | None = None
    loss_M = torch.zeros(len(theta_MP), dtype=model.dtype, device=model.device)
    steps_M = torch.zeros_like(loss_M)
    for batch in batches:
        if alike:  # in their first step
            emb, back = model.embed_same_and_back(state.theta_P, batch.x_MB)
        else:
            emb, back = model.embed_each_and_back(theta_MP, batch.x_MB)
        alike = False
        if mine is None:
            mine = method.start(start.own, sent, who, emb, batch.mask_MB)
        active_M = batch.mask_MB.any(1)
        loss = own_loss(problem.tools.loss, batch.mask_MB, mine, sent, who, problem.kept(batch.x_MB))
        learned = {name: mine[name] for name in method.learns}
        step_M, emb_grad, mine_grad, head_grad = derivatives(loss, emb, learned, model.head_views(theta_MP))
        grad_MP = back(emb_grad)
        if head_grad:
            grad_MP = torch.cat([grad_MP, *(g.flatten(1) for g in head_grad.values())], 1)
        theta_MP = theta_MP - grad_MP.mul_(start.lr)
        mine = moved(mine, mine_grad, start.lr, active_M)
        loss_M, steps_M = loss_M + step_M, steps_M + active_M
        last = (emb, batch) if last is None else _latest(last, (emb, batch), active_M)
    assert mine is not None and last is not None
    emb_MBD, batch = last
    if method.needs_final_embedding:
        with torch.no_grad():
            emb_MBD = model.embed_each(theta_MP, batch.x_MB)
    reports = problem.stream("report", who.client_M, start.number)
    stays, leaves = problem.tools.report(mine, sent, who, emb_MBD, batch.mask_MB, reports)
    good_M = batch.sound_M & finite_rows(loss_M, theta_MP, *stays.values(), *leaves.values())
    weight_M = normalised(who, good_M, start.count_M, model.dtype)
    work = LocalWork(loss_M / steps_M.clamp(min=1), mine, stays, leaves, weight_M)
    if state.alone_NP is not None:
        return replace(work, alone_MP=theta_MP)
    change_MP = torch.where((weight_M > 0)[:, None], theta_MP - start_MP, 0)
    if problem.sums is not None:
        return replace(work, change_MP=change_MP)
    return replace(work, update=Update([weight_M @ change_MP], -1.0))
