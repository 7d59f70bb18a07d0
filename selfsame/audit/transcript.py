"""What a server sees of a run whose updates reach it as sums: recorded round by round from a loop of its own.

The loop is the audit's, written apart from the engines: it computes every client's update by itself, so that rosters,
drop-outs, stand-ins, noise and silence can be laid over them in plain sight, and engines can be held to it.

Shapes: T rounds, N clients, M clients asked in a round, P parameters, D embedding width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from selfsame.audit.layers import LastLayer
from selfsame.audit.split_updates import split_updates
from selfsame.engine import optimisers
from selfsame.engine.plan import Plan, Start, rate
from selfsame.engine.polls import poll_if_due
from selfsame.engine.problem import Problem
from selfsame.engine.rounds import Engine
from selfsame.engine.settle import derivatives, moved, own_loss
from selfsame.engine.state import State
from selfsame.errors import SelfsameError
from selfsame.methods import SplitLoss
from selfsame.methods.base import Cohort, Fields, pick, put_rows
from selfsame.streams import host_generator

READABLE = ("average", "momentum", "adam")  # optimisers of the server from whose step the mean can be read back


@dataclass(frozen=True)
class Transcript:
    """Who was asked in each round, who answered anew, and the released sum."""

    asked_TN: Tensor  # bool
    fresh_TN: Tensor  # bool; of those asked, who answered this round
    sum_TD: Tensor  # of the last layer's bias updates over the learning rate, weighted alike; or of moments, (T, D * D)
    stand_ins: bool  # whether those who did not answer are stood in for by their last update


@dataclass(frozen=True)
class Release:
    """On what terms sums are released."""

    size: int  # clients asked in a round
    groups: bool = False  # the same always together, in turn; else drawn at random
    dropout: float = 0.0
    stand_ins: bool = False
    noise: float = 0.0  # deviation of the noise on a round's sum, in clips
    clip: float = 0.0  # the longest update; 0: not clipped
    quiet: float = 0.0  # the chance that a client sends zero

    def asked(self, seed: int, number: int, clients: int) -> list[int]:
        """The clients of a round; the last group takes what is left over."""
        if not self.groups:
            draw = host_generator(seed, "audit cohort", number)
            return sorted(draw.choice(clients, self.size, replace=False).tolist())
        order = host_generator(seed, "audit groups").permutation(clients).tolist()
        count = max(1, clients // self.size)
        turn = number % count
        return sorted(order[turn * self.size : clients if turn == count - 1 else (turn + 1) * self.size])


def record(problem: Problem, state: State, terms: Release, rounds: int) -> Transcript:
    """Train `state` for so many rounds on these terms, in place, and write down what the server sees."""
    recipe, clients, device = problem.recipe, state.present, state.theta_P.device
    layer = LastLayer.of(problem)
    if layer is None:
        raise SelfsameError("audit: the network does not end in a linear layer, whose updates the attacker reads")
    asked_TN = torch.zeros(rounds, clients, dtype=torch.bool)
    fresh_TN = torch.zeros_like(asked_TN)
    sums = []
    last_NP = torch.zeros(clients if terms.stand_ins else 0, len(state.theta_P), device=device)
    for t in range(rounds):
        poll_if_due(problem, state)
        number = state.round
        lr, server_lr = (
            torch.tensor(rate(part, number, recipe.run.rounds), dtype=torch.float64, device=device)
            for part in (recipe.local, recipe.server)
        )
        asked = torch.tensor(terms.asked(recipe.run.seed, number, clients))
        there = torch.from_numpy(host_generator(recipe.run.seed, "audit dropout", number).random(len(asked)))
        fresh = asked[there >= terms.dropout]
        asked_TN[t, asked], fresh_TN[t, fresh] = True, True
        sum_P, count = torch.zeros_like(state.theta_P), len(fresh)
        if len(fresh):
            client_M = fresh.to(device)
            change_MP, stays, leaves = local_updates(problem, state, client_M, lr)
            sent_MP = _sent(problem, terms, change_MP, number)
            sum_P = sent_MP.sum(0)
            if terms.stand_ins:
                silent = asked[there < terms.dropout].to(device)
                sum_P, count = sum_P + last_NP[silent].sum(0), len(asked)
                last_NP[client_M] = sent_MP
            if terms.noise:
                draw = problem.server_stream("audit noise", number)
                noise_P = draw.normal(len(sum_P))[0].to(sum_P.dtype)
                sum_P = sum_P + terms.noise * terms.clip * noise_P
            who = problem.cohort(client_M, torch.ones_like(client_M, dtype=torch.bool))
            for name, rows in stays.items():
                put_rows(state.own[name], client_M, rows, who.alive_M)
            share_M = torch.full_like(client_M, 1 / len(client_M), dtype=sum_P.dtype)
            problem.method.absorb(state.server, leaves, who, share_M, lr, problem.server_stream("absorb", number))
            optimisers.step(recipe.server, state.optim, state.theta_P, -sum_P / max(1, count), lr, server_lr)
        sums.append((layer.shift(problem, sum_P[None])[0] / lr).double().cpu())
        state.round += 1
    return Transcript(asked_TN, fresh_TN, torch.stack(sums), terms.stand_ins)


def overheard(problem: Problem, state: State, engine: Engine, plan: Plan, moments: bool = False) -> Transcript:
    """What a server sees while an engine trains `state` by this plan: the mean that it is given, times its members.

    Under `sums` those who do not answer are stood in for. The mean is read back from the server's own step, so its
    optimiser must be one of `READABLE`. Of the last layer's update, its `moments` or how it moves the bias.
    """
    part, clients = problem.recipe.server, state.present
    layer = LastLayer.of(problem)
    if layer is None or part.optimiser not in READABLE:
        raise SelfsameError(
            f"audit: needs a network that ends in a linear layer, and server.optimiser {', '.join(READABLE)}"
        )
    stand_ins = problem.recipe.sums.summed
    asked_TN = torch.zeros(len(plan), clients, dtype=torch.bool)
    fresh_TN = torch.zeros_like(asked_TN)
    member_TM = getattr(plan, "member_TM", None)
    sums = []
    for t in range(len(plan)):
        member_M = torch.ones_like(plan.alive_TM[t]) if member_TM is None else member_TM[t]
        asked_TN[t, plan.client_TM[t, member_M]] = True
        fresh_TN[t, plan.client_TM[t, plan.alive_TM[t]]] = True
        before_P = state.theta_P.clone()
        speed_P = state.optim["velocity"].clone() if "velocity" in state.optim else None
        engine.run(state, plan.part(t, t + 1))
        if speed_P is not None:
            delta_P = state.optim["velocity"] - part.momentum * speed_P
            if part.optimiser == "adam":
                delta_P = delta_P / (1 - part.momentum)
        else:
            delta_P = (before_P - state.theta_P) / plan.server_lr_T[t]
            if "plain" in state.optim:
                delta_P = torch.where(state.optim["plain"], delta_P * (part.lr / part.plain_lr), delta_P)
        if part.optimiser != "adam":  # whose decay is apart from the update
            delta_P = delta_P - plan.lr_T[t] * part.weight_decay * before_P
        count = int((asked_TN if stand_ins else fresh_TN)[t].sum())
        if moments:
            seen = layer.seen(problem, before_P, delta_P[None], float(plan.lr_T[t]))
            sums.append(-count * seen.moment_MDD.flatten().cpu())
        else:
            sums.append(-count * (layer.shift(problem, delta_P[None])[0] / plan.lr_T[t]).double().cpu())
    return Transcript(asked_TN, fresh_TN, torch.stack(sums), stand_ins)


def _sent(problem: Problem, terms: Release, change_MP: Tensor, number: int) -> Tensor:
    """What these clients contribute: clipped, and nothing at all for those whose coin says so."""
    if terms.clip:
        length_M1 = torch.linalg.vector_norm(change_MP, dim=1, keepdim=True)
        change_MP = change_MP * (terms.clip / length_M1.clamp(min=terms.clip))
    if terms.quiet:
        toss = host_generator(problem.recipe.run.seed, "audit quiet", number).random(len(change_MP))
        speaks_M1 = torch.from_numpy(toss >= terms.quiet).to(change_MP.device)[:, None]
        change_MP = change_MP * speaks_M1
    return change_MP


def local_updates(problem: Problem, state: State, client_M: Tensor, lr: Tensor) -> tuple[Tensor, Fields, Fields]:
    """(how each client's training moves the network, what stays, what it reports), all clients stacked.

    `reference.client_update` is the same for one client. Of split rounds the updates alone are here.
    """
    method, model = problem.method, problem.model
    if isinstance(method, SplitLoss):
        return split_updates(problem, state, client_M, lr), {}, {}
    who = Cohort(client_M, problem.world.class_of_N[client_M], torch.ones_like(client_M, dtype=torch.bool))
    start = Start(who, pick(state.own, client_M), method.send(state.server, who), lr, state.round)
    theta_MP = state.theta_P.expand(len(client_M), -1)
    mine: Fields | None = None
    for batch in problem.batches(client_M, state.round):
        emb, back = model.embed_each_and_back(theta_MP, batch.x_MB)
        if mine is None:
            mine = method.start(start.own, start.sent, who, emb, batch.mask_MB)
        loss = own_loss(method.loss, batch.mask_MB, mine, start.sent, who)
        learned = {name: mine[name] for name in method.learns}
        _, emb_grad, mine_grad, head_grad = derivatives(loss, emb, learned, model.head_views(theta_MP))
        grad_MP = back(emb_grad)
        if head_grad:
            grad_MP = torch.cat([grad_MP, *(grad.flatten(1) for grad in head_grad.values())], 1)
        theta_MP = theta_MP - (lr * grad_MP).to(theta_MP.dtype)
        mine = moved(mine, mine_grad, lr, batch.mask_MB.any(1))
    assert mine is not None
    emb = emb.detach()
    if method.needs_final_embedding:
        with torch.no_grad():
            emb = model.embed_each(theta_MP, batch.x_MB)
    draw = problem.stream("report", client_M, state.round)
    stays, leaves = method.report(mine, start.sent, who, emb, batch.mask_MB, draw)
    return (theta_MP - state.theta_P).detach(), stays, leaves
