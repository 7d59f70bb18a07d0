"""Attackers who read: what is reported, single updates, sums of updates, and sums over many rounds.

They are passive: everybody keeps to the protocol, and the attacker computes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from selfsame.audit import lines
from selfsame.audit.attackers import ANY, CLEAR, SUMS, Audited, Finding
from selfsame.audit.differences import identified
from selfsame.audit.heard import listen
from selfsame.audit.layers import LastLayer
from selfsame.audit.transcript import READABLE, local_updates, overheard
from selfsame.audit.unrolled import fit
from selfsame.audit.updates import Watched, can_watch, over_groups, watch
from selfsame.engine.batches import steps_a_round
from selfsame.engine.groups import initially_present
from selfsame.engine.plan import make_plan
from selfsame.engine.problem import Problem
from selfsame.engine.rounds import Engine
from selfsame.engine.state import State, begin
from selfsame.methods import SplitLoss
from selfsame.methods.base import Scene
from selfsame.methods.wire import Sight
from selfsame.streams import Stream

_SAMPLE, _WATCHED = 200, 32  # clients whose reports and whose updates are read
_REPORTS = 32  # that are averaged at a standstill
_KEPT = 2**28  # numbers of the tables of all rounds that are kept
_MOST = 1000  # clients that can be told apart by least squares
_WINDOWS = (2, 8)  # rounds whose reports are averaged: vectors move on, so that all of them can be too many
_UNROLLED = 8  # clients whose local steps are unrolled
_SUMS = (2, 4, 16)  # sums that are tried where a run does not say over how many


def some_clients(case: Audited, most: int) -> Tensor:
    """Up to so many clients, drawn by the run's seed."""
    if case.state.present <= most:
        return case.everyone
    order_N = case.problem.server_stream("audit", case.state.round).bits(case.state.present)[0].argsort()
    return order_N[:most].sort().values


def _eyes(case: Audited) -> str:
    """Who sees what stands for owners: the widest sight of what is reported or travels with the network."""
    wire = case.problem.method.wire
    widest = max((sight for sight, *_ in (*wire.up.values(), *wire.head.values())), default=Sight.DEVICE)
    return "public" if widest is Sight.PUBLIC else "server"


@dataclass(frozen=True)
class ReportReader:
    """Reads what devices report beside the network; an aggregation of updates does not hide that."""

    name: str = "proxies"

    def fits(self, case: Audited) -> bool:
        method, state = case.problem.method, case.state
        shown = method.exposed(state.server, case.problem.model.head_views(state.theta_P))
        return shown is not None or (bool(method.wire.up) and not isinstance(method, SplitLoss))

    def run(self, case: Audited) -> Iterator[Finding]:
        problem, state, method = case.problem, case.state, case.problem.method
        who, chance = _eyes(case), case.chance
        client_M = some_clients(case, _SAMPLE)
        shown_RD = method.exposed(state.server, problem.model.head_views(state.theta_P))
        if shown_RD is not None:
            got = case.judged(client_M, shown_RD[case.rows(client_M)])
            yield Finding(self.name, "as shared, (17)", who, ANY, *got, chance)
        stream_M = problem.server_stream("audit", state.round).fold(2).fold(client_M)
        scene = Scene(state.own, state.server, case.truth().float(), case.world, client_M, stream_M, _REPORTS)
        found = method.attack(scene)
        if found is not None:
            got = case.judged(client_M, found[0])
            yield Finding(self.name, "at a standstill", who, ANY, *got, chance, said=found[1])
        if method.wire.up and not problem.federation.empty:
            after = case.copy()
            table = sum(rows.numel() for rows in state.server.values())
            rounds = min(case.rounds, max(2, _KEPT // max(1, table)))
            heard = listen(case.going_on, after, rounds)
            truth_RD, best = case.truth(after), None
            for last in sorted({min(last, len(heard)) for last in (*_WINDOWS, len(heard))} - {0}):
                real = method.attack_reports(heard[-last:], case.world)
                if real is None:
                    return
                got = case.judged(client_M, real[0][client_M], truth_RD)
                said = f"{real[1]}, of the last {last} rounds (2, 8 or all, chosen with the answer at hand)"
                best = max(best or (got, said), (got, said), key=lambda one: one[0])
            if best is not None:
                yield Finding(self.name, "real reports", who, ANY, *best[0], chance, rounds, said=best[1])


def with_truth(case: Audited, watched: Watched, client_M: Tensor) -> Tensor:
    """The truth with the vectors that these updates were made with in their places."""
    truth_RD = case.truth()
    if watched.truth_MD is None:
        return truth_RD
    return truth_RD.index_copy(0, case.rows(client_M), watched.truth_MD.double())


@dataclass(frozen=True)
class UpdateReader:
    """Reads updates of the last layer, one by one or as sums."""

    name: str = "updates"

    def fits(self, case: Audited) -> bool:
        return can_watch(case.problem)

    def run(self, case: Audited) -> Iterator[Finding]:
        own = case.group
        count = min(case.state.present, max(_WATCHED, own))
        client_M = some_clients(case, count)
        # Groups are drawn, lest neighbours in number be alike.
        client_M = client_M[torch.randperm(len(client_M), generator=torch.Generator().manual_seed(case.seed))]
        watched = watch(case.problem, case.state, client_M)
        truth_RD = with_truth(case, watched, client_M)
        for size in dict.fromkeys((1, *_SUMS, own)):
            if size > len(client_M):
                continue
            guess_GD = case.problem.method.attack_updates(over_groups(watched.seen, size))
            if guess_GD is not None and size == own > 1:
                guess_GD = self._released(case, client_M[: len(guess_GD) * size], size)
            if guess_GD is None:
                return
            some_M = client_M[: len(guess_GD) * size]
            got = case.judged(some_M, guess_GD.repeat_interleave(size, 0), truth_RD)
            if size == 1:
                yield Finding(self.name, "one update", "server", CLEAR, *got, case.chance, 1)
                if case.split:
                    yield self._over_rounds(case)
                if local_steps(case) > 1 and case.problem.method.wire.own:
                    yield self._unrolled(case, client_M[:_UNROLLED], guess_GD[:_UNROLLED], truth_RD)
            else:
                yield Finding(
                    self.name, f"a sum of {size}", "server", SUMS, *got, 1 / size, 1, compared=size != own
                )  # fmt: skip

    def _over_rounds(self, case: Audited) -> Finding:
        """The single updates of some rounds of a copy: a device whose samples are apart from all others sends zeros."""
        problem, after = case.going_on, case.copy()
        plan = make_plan(problem.recipe, after.round, case.rounds, after.present).to(problem.model.device)
        engine, heard = Engine(problem), []
        for t, client_M in enumerate(plan.client_TM):
            seen = watch(problem, after, client_M).seen
            guess_MD = problem.method.attack_updates(seen)
            assert guess_MD is not None
            heard.append((client_M, guess_MD, seen.shift_MD.square().sum(1, keepdim=True)))
            engine.run(after, plan.part(t, t + 1))
        truth_ND, best = case.truth(after), (0.0, 0.0)
        for last in sorted({min(last, len(heard)) for last in (*_WINDOWS, len(heard))}):
            total_ND, weight_N1 = torch.zeros_like(truth_ND), torch.zeros_like(truth_ND[:, :1])
            for client_M, guess_MD, weight_M1 in heard[-last:]:  # the longer the shift, the less does rounding do to it
                total_ND[client_M] += weight_M1 * guess_MD
                weight_N1[client_M] += weight_M1
            some_M = torch.cat([client_M for client_M, *_ in heard[-last:]]).unique()
            guess_MD = total_ND[some_M] / weight_N1[some_M].clamp(min=1e-300)
            best = max(best, case.judged(some_M, guess_MD, truth_ND))
        said = "a mean over the last 2, 8 or all rounds, chosen with the answer at hand; those who took part in them"
        return Finding(self.name, "over rounds", "server", CLEAR, *best, case.chance, case.rounds, said=said)

    def _released(self, case: Audited, client_M: Tensor, size: int) -> Tensor:
        """What the sums of these groups point at as the run releases them: clipped, rounded, with its noise."""
        lr = torch.tensor(case.problem.recipe.local.lr, dtype=torch.float64, device=client_M.device)
        parts = [(who_M, local_updates(case.problem, case.state, who_M, lr)[0]) for who_M in client_M.split(size)]
        return torch.cat([read_sum(case, who_M, change_MP, float(lr)) for who_M, change_MP in parts])

    def _unrolled(self, case: Audited, client_M: Tensor, guess_MD: Tensor, truth_RD: Tensor) -> Finding:
        """Several local steps, unrolled from the analytic answer on."""
        problem, state, method = case.problem, case.state, case.problem.method
        layer = LastLayer.of(problem)
        assert layer is not None
        lr = torch.tensor(problem.recipe.local.lr, dtype=torch.float64, device=state.theta_P.device)
        change_MP, _, _ = local_updates(problem, state, client_M, lr)
        who = problem.cohort(client_M, client_M >= 0)
        sent = {
            name: value.double() if value.is_floating_point() else value
            for name, value in method.send(state.server, who).items()
        }
        # A vector that is compared by its direction is about as long as it was drawn.
        size = getattr(method, "first_length", 0.0) or guess_MD.shape[1] ** 0.5 if method.by_angle else 1.0
        found = fit(
            method, layer.of_network(problem, state.theta_P), layer.of_network(problem, change_MP), size * guess_MD,
            sent, who, float(lr), local_steps(case), case.steps,
        )  # fmt: skip
        got = case.judged(client_M, found.vector_MD, truth_RD)
        left = float(found.gap_M.median())
        said = f"unrolled {local_steps(case)} local steps; of an update {left:.2g} is left unexplained (median)"
        return Finding(self.name, "one, unrolled", "server", CLEAR, *got, case.chance, 1, said=said)


@dataclass(frozen=True)
class SumReader:
    """Tells the members of sums apart by who was in which, over many rounds."""

    name: str = "differences"

    def fits(self, case: Audited) -> bool:
        # Everybody sees the networks, and with them the sum, unless Adam has scaled it; the server has it anyway.
        known = READABLE if case.split else ("average", "momentum")
        readable = case.problem.recipe.server.optimiser in known
        return can_watch(case.problem) and readable and case.state.present <= _MOST

    def run(self, case: Audited) -> Iterator[Finding]:
        yield self._watched(case, case.going_on, case.copy(), case.rounds, first=False)
        recipe, clients = case.problem.recipe, case.problem.world.clients
        begun = begin(case.problem, initially_present(recipe, clients))
        rounds = min(case.rounds, recipe.run.rounds)
        if begun.present < clients:
            rounds = min(rounds, recipe.cohort.join_round)
        yield self._watched(case, case.problem, begun, rounds, first=True)

    def _watched(self, case: Audited, problem: Problem, state: State, rounds: int, first: bool) -> Finding:
        """What so many rounds give away; the first ones of a run are repeated from its recipe, as they were."""
        plan = make_plan(problem.recipe, state.round, rounds, state.present).to(problem.model.device)
        seen = overheard(problem, state, Engine(problem), plan, moments=case.split)
        client_N = torch.arange(state.present, device=state.theta_P.device)
        truth_ND = case.truth(state)[case.rows(client_N)].cpu()
        got = lines.identified(seen, truth_ND) if case.split else identified(seen, truth_ND, problem.method.by_angle)
        fixed = case.group > 1 and not case.split  # the cohorts of split rounds mix
        kind = f"groups of {case.group}" if fixed else f"cohorts of {int(seen.asked_TN.sum(1).max())}"
        chance = 1 / case.group if fixed else case.chance
        ways = f"{len(lines.WAYS)} ways of weighing, lines up to their sign" if case.split else "32 ways of weighing"
        said = f"the best of {ways}, chosen with the answer at hand"
        # The networks before and after a round are everybody's, and with them the sum.
        did, who = "its first rounds" if first else kind, "server" if case.split else "public"
        return Finding(self.name, did, who, ANY, got.share, got.cosine, chance, rounds, said=said)


def local_steps(case: Audited) -> int:
    """The local steps of a round."""
    return steps_a_round(case.problem.recipe.local, case.problem.longest)


def read_sum(case: Audited, client_M: Tensor | None, change_MP: Tensor, lr: float) -> Tensor:
    """The vector that the sum of these updates points at, as if it were one client's: (1, D).

    As the run releases it of these clients; None: the plain sum.
    """
    problem = case.problem
    total_P = change_MP.double().sum(0)
    if problem.sums is not None and client_M is not None:

        def draw(purpose: str, who_M: Tensor) -> Stream:
            return problem.stream(f"audit {purpose}", who_M, case.state.round)

        sums, ones_M = problem.sums, torch.ones_like(client_M)
        sent_MP = sums.contributions(client_M, change_MP, ones_M, draw)
        total_P = sums.mean(sent_MP.sum(0, dtype=sums.nothing(change_MP[0]).dtype), draw) * len(client_M)
    layer = LastLayer.of(problem)
    assert layer is not None
    seen = layer.seen(problem, case.state.theta_P.double(), total_P[None], lr * local_steps(case))
    guess_1D = problem.method.attack_updates(seen)
    assert guess_1D is not None
    return guess_1D
