"""A round whose loss lives in the enclave (FDML, Fig. 2): for the whole cohort at once, and device after device.

Between the two passes of a device stands one function of the embeddings of all. So the cohort is one forward pass,
the enclave's derivatives, and one vector-Jacobian product of these, each weighted by its client's share of (2).
"""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from selfsame.config.recipe import Recipe, SplitPart
from selfsame.engine import optimisers
from selfsame.engine.optimisers import Update
from selfsame.engine.plan import Turn
from selfsame.engine.problem import Problem
from selfsame.engine.settle import normalised, over
from selfsame.engine.state import State
from selfsame.engine.turnout import asked
from selfsame.errors import SelfsameError
from selfsame.methods import LocalLoss, SplitLoss
from selfsame.methods.base import Cohort, Fields, pick, put_rows
from selfsame.methods.split import enclave_step
from selfsame.methods.wire import finite_rows
from selfsame.privacy.accountant import Exchange, PrivacySpent, composed_epsilon, paper_epsilon, rounds_within
from selfsame.privacy.mechanisms import Laplace


def check_split(recipe: Recipe, method: LocalLoss, size: int, clients: int) -> None:
    """Refuse settings that split rounds of `size` among all clients cannot have, and such settings for other rounds."""
    if not isinstance(method, SplitLoss):
        if recipe.split != SplitPart():
            raise SelfsameError(f"[split]: {recipe.method.name} computes its loss on the device; leave the part out")
        return
    if recipe.local.steps != 1 or recipe.local.epochs:
        raise SelfsameError(
            f"local.steps: {recipe.method.name} exchanges embeddings and derivatives once a round; leave it 1, "
            "and local.epochs 0"
        )
    if recipe.cohort.sampling == "groups":
        raise SelfsameError(
            f"cohort.sampling: {recipe.method.name} uses the first embeddings that arrive, whose they may be, and the "
            "enclave alone sees them; choose uniform, round-robin or all"
        )
    if recipe.cohort.cap:
        raise SelfsameError(f"cohort.cap: {recipe.method.name} weighs devices by one batch; lower local.batch instead")
    if asked(recipe, size) > clients:
        raise SelfsameError(f"split.over: {asked(recipe, size)} clients asked for, the federation has {clients}")
    if recipe.split.most and size * recipe.run.rounds > clients * recipe.split.most:
        raise SelfsameError(
            f"split.most: {recipe.run.rounds} rounds of {size} devices need {size * recipe.run.rounds / clients:.1f} "
            f"rounds of each, its privacy budget allows {recipe.split.most}; lower run.rounds or cohort.size"
        )


def within_budget(recipe: Recipe, method: LocalLoss, dim: int) -> Recipe:
    """The recipe with the rounds that each device's privacy budget allows (`split.most`), where it names one."""
    split = recipe.split
    if not split.epsilon or not isinstance(method, SplitLoss):
        return recipe
    mechanism = method.mechanism
    if mechanism is None:
        raise SelfsameError("split.epsilon: a budget needs noise; set method.noise to laplace or gaussian")
    most = rounds_within(mechanism, Exchange(recipe.local.batch, dim), split.epsilon, split.delta)
    if not most:
        once = composed_epsilon(mechanism, Exchange(recipe.local.batch, dim), 1, split.delta)
        raise SelfsameError(
            f"split.epsilon: {split.epsilon:g} does not suffice for one round, which takes {once:.4g}; more noise "
            "(method.scale), a smaller clip, or a larger budget"
        )
    return replace(recipe, split=replace(split, most=min(most, split.most or most)))


def privacy_spent(problem: Problem, state: State) -> PrivacySpent | None:
    """Both epsilons of the device that took part most often; None where no noise was added."""
    method, delta = problem.method, problem.recipe.split.delta
    if not isinstance(method, SplitLoss) or method.mechanism is None:
        return None
    mechanism, rounds = method.mechanism, int(method.rounds_used(state.server).max())
    paper = None
    if isinstance(mechanism, Laplace):
        paper = paper_epsilon(mechanism.drop, mechanism.clip, mechanism.scale)
    try:
        exchange = Exchange(problem.recipe.local.batch, problem.world.dim)
        epsilon = composed_epsilon(mechanism, exchange, rounds, delta)
    except SelfsameError as error:  # a run that has been trained is not lost for want of its accountant
        return PrivacySpent(rounds, delta, None, str(error), paper)
    return PrivacySpent(rounds, delta, epsilon, "", paper)


def count_rounds(method: SplitLoss, state: State, client_TM: Tensor) -> None:
    """Count the rounds in which embeddings were used. Where a round is abandoned, derivatives have left already."""
    taken_N = method.rounds_used(state.server)
    client_S = client_TM.flatten().to(taken_N.device)
    taken_N.index_add_(0, client_S, torch.ones_like(client_S))


def derive(
    problem: Problem, inside: Fields, emb_MBD: Tensor, mask_MB: Tensor, who: Cohort, number: int | Tensor
) -> tuple[Tensor, Tensor, Fields]:
    """(loss, what each device is sent, what the enclave then keeps), Steps 5 and 6.

    The enclave's work: it alone has the embeddings of all.
    """
    method = problem.method
    assert isinstance(method, SplitLoss)
    stream = problem.stream("privacy", who.client_M, number)
    used_MB = method.used(mask_MB, stream)
    value, grad_MBD, after = enclave_step(method, inside, emb_MBD, used_MB, who.class_M)
    return value, method.released(grad_MBD, used_MB, stream), after


def _keep(state: State, after: Fields, goes_on: bool | Tensor) -> None:
    """The enclave's tables once its round has ended with a sum; a tensor where the host does not know whether it did.

    A table in which something is not finite stays as it was.
    """
    for name, table in after.items():
        kept = state.enclave[name]
        kept.copy_(torch.where(torch.isfinite(table).all() & goes_on, table.to(kept.dtype), kept))


def run_round(problem: Problem, state: State, turn: Turn) -> Tensor:
    """One round on `state`, in place; returns the loss. All clients embed, those alive return a gradient."""
    method, model, recipe, ranks = problem.method, problem.model, problem.recipe, problem.ranks
    client_M, alive_M = turn.client_M, turn.alive_M
    who = problem.cohort(client_M, alive_M)
    mine = ranks.share(who)
    ranks.begin_round()
    (batch,) = problem.batches(mine.client_M, turn.number) if turn.batches is None else turn.batches
    emb_MBD, back = model.embed_and_back(state.theta_P, batch.x_MB)
    reports = problem.stream("report", mine.client_M, turn.number)
    stays, leaves = method.report({}, {}, mine, emb_MBD, batch.mask_MB, reports)
    method.wire.check_up(leaves, pick(state.own, mine.client_M), stays)
    # What is not finite is refused at the door: one loss sees everybody's embeddings.
    sound_M = batch.sound_M & finite_rows(leaves["embedding"])
    there_MB = batch.mask_MB * sound_M[:, None]
    sent_MBD = torch.where(over(sound_M, emb_MBD), leaves["embedding"], 0)
    if ranks.active:
        told = {"sound": sound_M, "mask": there_MB, "leaves.embedding": sent_MBD}
        found = ranks.gather(told | {f"stays.{name}": value for name, value in stays.items()}, len(client_M))()
        sound_M, there_MB, sent_MBD = found["sound"], found["mask"], found["leaves.embedding"]
        stays = {name: found[f"stays.{name}"] for name in stays}
    loss, grad_MBD, after = derive(problem, state.enclave, sent_MBD, there_MB, who, turn.number)
    method.wire.check_down({"derivative": grad_MBD})

    good_M = sound_M & finite_rows(grad_MBD)
    count_M = there_MB.sum(1) if recipe.cohort.weights == "samples" else None
    weight_M = normalised(who, good_M, count_M, model.dtype)
    answered_M = weight_M > 0
    state.refused += (alive_M & ~answered_M).sum()
    # Nobody is left: nothing changes. On CUDA, where asking would wait for the device, momentum goes on for this round.
    if model.device.type == "cpu" and not bool(answered_M.any()):
        return loss.new_zeros(())
    _keep(state, after, answered_M.any())
    for name, rows in stays.items():
        put_rows(state.own[name], client_M, rows, answered_M)
    pull_MBD = torch.where(over(answered_M, grad_MBD), grad_MBD * over(weight_M, grad_MBD), 0)
    pieces = back(ranks.rows(pull_MBD))
    if ranks.active:
        pieces = [ranks.add("network update", torch.cat([piece.to(model.dtype).reshape(-1) for piece in pieces]))()]
    update = Update(pieces, turn.lr)
    problem.tools.server_step(recipe.server, state.optim, state.theta_P, update, turn.lr, turn.server_lr)
    return loss


def run_alone(problem: Problem, state: State, turn: Turn) -> Tensor:
    """The same, as devices and enclave would: every device embeds, the enclave differentiates, each pulls back its own.

    Slow and obvious; the other answers to it.
    """
    assert isinstance(turn.number, int)
    method, model, recipe = problem.method, problem.model, problem.recipe
    gathered = []
    for client, alive in zip(turn.client_M.tolist(), turn.alive_M.tolist(), strict=True):
        who = problem.cohort(torch.tensor([client], device=model.device), turn.alive_M.new_ones(1))
        (batch,) = problem.batches_alone(who.client_M, turn.number)
        theta = state.theta_P.detach().requires_grad_()
        emb_BD = model.embed_eager(theta, batch.x_MB[0])
        reports = problem.stream("report", who.client_M, turn.number)
        stays, leaves = method.report({}, {}, who, emb_BD.detach()[None], batch.mask_MB, reports)
        method.wire.check_up(leaves, pick(state.own, who.client_M), stays)
        if bool(batch.sound_M) and bool(finite_rows(leaves["embedding"])):
            gathered.append((who, batch, theta, emb_BD, stays, leaves["embedding"][0], alive))
        else:
            state.refused += int(alive)
    if not gathered:
        return state.theta_P.new_zeros(())

    width = max(len(one[5]) for one in gathered)
    sent_MBD = torch.stack([F.pad(one[5], (0, 0, 0, width - len(one[5]))) for one in gathered])
    mask_MB = torch.stack([F.pad(one[1].mask_MB[0], (0, width - len(one[5]))) for one in gathered])
    together = Cohort(
        torch.cat([one[0].client_M for one in gathered]),
        torch.cat([one[0].class_M for one in gathered]),
        torch.cat([one[0].alive_M for one in gathered]),
    )
    loss, grad_MBD, after = derive(problem, state.enclave, sent_MBD, mask_MB, together, turn.number)

    answers = []
    for (who, batch, theta, emb_BD, stays, _, alive), grad_BD in zip(gathered, grad_MBD, strict=True):
        if not alive:
            continue
        derivative_BD = grad_BD[: len(emb_BD)]
        method.wire.check_down({"derivative": derivative_BD})
        (gradient_P,) = torch.autograd.grad(emb_BD, theta, derivative_BD)
        if not bool(torch.isfinite(gradient_P).all()):
            state.refused += 1
            continue
        count = float(batch.mask_MB.sum()) if recipe.cohort.weights == "samples" else 1.0
        answers.append((who, stays, gradient_P, count))
    if not answers:
        return state.theta_P.new_zeros(())
    _keep(state, after, True)
    whole = sum(count for *_, count in answers)
    sum_P = torch.zeros_like(state.theta_P)
    for who, stays, gradient_P, count in answers:
        sum_P += count / whole * gradient_P  # (2)
        for name, rows in stays.items():
            put_rows(state.own[name], who.client_M, rows, who.alive_M)
    optimisers.step(recipe.server, state.optim, state.theta_P, turn.lr * sum_P, turn.lr, turn.server_lr)
    return loss
