"""The active server: it breaks the protocol where a device cannot see it, and reads what comes of that.

inconsistent networks   one device of a group gets the network, the others one that keeps their last layer still, so
                        that the group's sum is one device's update.
a chosen table          a device of FedHide hides among proxies that the server made up: its report is then as good as
                        the prototype.
sybils                  all members of a group but h are the server's own, and what they send is taken off the sum.
silence                 all members of a group but the fewest allowed never answered, it says: they count as zero.

Updates are those of the real devices' code, and sums those of the run's own terms. The last word is what stops it.

Shapes: M clients attacked, H honest members, P parameters, D embedding width.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from selfsame.audit.attackers import ANY, CLEAR, SUMS, Audited, Finding
from selfsame.audit.layers import LastLayer
from selfsame.audit.readers import read_sum, some_clients
from selfsame.audit.split_server import (
    ALL_IN,
    LEFT_OUT,
    PAIRS,
    STOPPED,
    has_strangers,
    may_leave_out,
    one_network_twice,
    two_networks,
)
from selfsame.audit.transcript import local_updates
from selfsame.audit.updates import can_watch
from selfsame.engine.problem import Problem
from selfsame.methods.base import Scene, each_row, normal_rows, unit
from selfsame.methods.fedhide import FedHide
from selfsame.methods.fedhide_attack import told_apart
from selfsame.methods.update_attack import Seen

_TARGETS = 16
_GROUP = 7  # of sums that a run does not release
_LOUD = 1e6  # a last layer so many times as large hardly moves by a loss of the angle
_FAR = 2.0**20  # from everybody else's hyperspheres; a power of two, of which means are exact
_DIGEST = "a device signs the digest of the network that it was sent, and"
STOPS = {
    CLEAR: "not needed: the server reads each update anyway",
    "masked": f"stopped: {_DIGEST} a helper takes the masks off records of one network alone",
    "enclave": f"stopped: {_DIGEST} the enclave adds up records of one network alone",
}
REGISTER = {
    "masked": "a helper takes masks off for the devices in its own register alone; real devices that the server has "
    "bought are in it, and nothing stops those",
    "enclave": "nothing stops it: the register is the server's word, its hash in the plan for an auditor to compare",
}
REGISTER[CLEAR] = f"masked: {REGISTER['masked']}; enclave: {REGISTER['enclave']}"
SESSIONS = "nothing stops it: the enclave of split rounds counts sessions, not people"
TABLE = "nothing stops it: a device cannot know what others reported, and no digest covers the table"


@dataclass(frozen=True)
class ActiveServer:
    """A server that sends what it likes and has devices of its own."""

    name: str = "active"

    def fits(self, case: Audited) -> bool:
        return can_watch(case.problem)

    def run(self, case: Audited) -> Iterator[Finding]:
        if case.problem.method.attack_updates(_nothing_seen(case)) is not None:
            if not case.split:
                yield from self._networks(case)
            else:
                yield from self._split_networks(case)
                yield self._left_out(case)
            yield from self._sybils(case)
        if isinstance(case.problem.method, FedHide):
            yield self._table(case)

    def _networks(self, case: Audited) -> Iterator[Finding]:
        group = _group(case)
        client_M = some_clients(case, max(_TARGETS, group))
        lr = torch.tensor(case.problem.recipe.local.lr, dtype=torch.float64, device=client_M.device)
        loud_MP, truth_RD = _updates(case, client_M, lr)
        still = replace(case.state, theta_P=stilled(case.problem, case.state.theta_P))
        still_MP, _, _ = local_updates(case.problem, still, client_M, lr)
        guess = []
        for place in range(len(client_M)):
            other_H = torch.arange(1, group, device=client_M.device).add(place).remainder(len(client_M))
            both_MP = torch.cat([loud_MP[place : place + 1], still_MP[other_H]])
            both_M = torch.cat([client_M[place : place + 1], client_M[other_H]])
            guess.append(read_sum(case, both_M, both_MP, float(lr)))
        got = case.judged(client_M, torch.cat(guess), truth_RD)
        did, chance = "2 networks", 1 / group
        alone = torch.cat([read_sum(case, None, one_1P, float(lr)) for one_1P in loud_MP.split(1)])
        for under, words in STOPS.items():
            if under == CLEAR:
                single = case.judged(client_M, alone, truth_RD)
                yield Finding(self.name, did, "server", under, *single, case.chance, 1, said=words)
            else:
                yield Finding(self.name, did, "server", under, 0.0, None, chance, 1, said=words)
        words = f"what it would get of sums over {group} if nobody checked digests"
        yield Finding(self.name, f"{did}, unseen", "server", SUMS, *got, chance, 1, said=words, compared=True)

    def _split_networks(self, case: Audited) -> Iterator[Finding]:
        """The same in split rounds."""
        did, words = "2 networks", "what it would get of a cohort's sum if nobody checked digests"
        yield Finding(self.name, did, "server", "enclave", 0.0, None, case.chance, 1, said=STOPPED)
        if not has_strangers(case):
            return
        client_M = some_clients(case, _TARGETS)
        got = case.judged(client_M, two_networks(case, client_M))
        yield Finding(
            self.name, f"{did}, unseen", "server", "enclave", *got, case.chance, 1, said=words, compared=True
        )  # fmt: skip

    def _left_out(self, case: Audited) -> Finding:
        """One network in several rounds, with and without one device's gradient."""
        did, rounds = "1 network twice", 2 * PAIRS
        if not may_leave_out(case):
            return Finding(self.name, did, "server", "enclave", 0.0, None, case.chance, rounds, said=ALL_IN)
        client_M = some_clients(case, _TARGETS)
        got = case.judged(client_M, one_network_twice(case, client_M))
        return Finding(self.name, did, "server", "enclave", *got, case.chance, rounds, said=LEFT_OUT)

    def _sybils(self, case: Audited) -> Iterator[Finding]:
        """What is left of a sum once the server has taken off what its own members sent, and of one that it thinned."""
        group, register = _group(case), SESSIONS if case.split else REGISTER[case.aggregation]
        client_M = some_clients(case, _TARGETS)
        lr = torch.tensor(case.problem.recipe.local.lr, dtype=torch.float64, device=client_M.device)
        change_MP, truth_RD = _updates(case, client_M, lr)
        of_one = f"with {group - 1} sybils of {group} what is left of the sum is one update: everybody is identified"
        least = case.problem.recipe.sums.least
        ways = {f"sybils, {honest} honest": honest for honest in (1, 2, group // 2)}
        ways |= {f"silence, {least} answer": least} if least else {}
        for did, honest in ways.items():
            if not 1 <= honest <= len(client_M):
                continue
            count = len(client_M) // honest * honest
            parts = zip(client_M[:count].split(honest), change_MP[:count].split(honest), strict=True)
            guess_GD = torch.cat([read_sum(case, who_H, change_HP, float(lr)) for who_H, change_HP in parts])
            got = case.judged(client_M[:count], guess_GD.repeat_interleave(honest, 0), truth_RD)
            most = f"with {honest} honest members of {group} one in {honest} is identified at most"
            said = f"{of_one} (without noise); {register}" if honest == 1 else f"{most} (without noise)"
            if case.split and honest == 1:
                said = f"what is left of the sum is one update; {register}"
            if did.startswith("silence"):
                said = f"sums.least: nothing is released of fewer than {least} answers, so one in {least} at most"
            chance = case.chance if honest == 1 else 1 / honest
            yield Finding(
                self.name, did, "server", SUMS, *got, chance, 1, said=said, compared=case.aggregation == CLEAR
            )  # fmt: skip

    def _table(self, case: Audited) -> Finding:
        client_M = some_clients(case, 200)
        guess_MD, rounds = chosen_table(case, client_M)
        got = case.judged(client_M, guess_MD)
        return Finding(self.name, "a chosen table", "server", ANY, *got, case.chance, rounds, said=TABLE)


def _group(case: Audited) -> int:
    """Over how many devices sums are, or would be in a run that releases none."""
    return case.group if case.group > 1 else min(case.state.present, _GROUP)


def _nothing_seen(case: Audited) -> Seen:
    """An update of zeros, to ask a method whether it knows an attack at all."""
    layer = LastLayer.of(case.problem)
    assert layer is not None
    theta_P = case.state.theta_P
    return layer.seen(case.problem, theta_P, torch.zeros_like(theta_P)[None], 1.0)


def _updates(case: Audited, client_M: Tensor, lr: Tensor) -> tuple[Tensor, Tensor]:
    """(what these clients would send now, the truth with the vectors that they made it with)."""
    change_MP, stays, _ = local_updates(case.problem, case.state, client_M, lr)
    method, truth_RD = case.problem.method, case.truth()
    if method.row == "client" and stays:
        made_MD = method.truth(stays, case.state.server, {})
        truth_RD = truth_RD.index_copy(0, client_M, made_MD.double())
    return change_MP, truth_RD


def stilled(problem: Problem, theta_P: Tensor) -> Tensor:
    """A network whose last layer hardly moves: far too large or, for distances, all samples in one place."""
    layer, out_P = LastLayer.of(problem), theta_P.clone()
    assert layer is not None
    views = problem.model.net_views(out_P)
    if problem.method.by_angle:
        for name in (layer.weight, layer.bias):
            if name is not None:
                views[name].mul_(_LOUD)
    else:
        views[layer.weight].zero_()
        if layer.bias is not None:
            views[layer.bias].fill_(_FAR)
    return out_P


def chosen_table(case: Audited, client_M: Tensor) -> tuple[Tensor, int]:
    """(prototypes by tables of the server's own making, (M, D); the rounds that it takes).

    A table of one vector over and over leaves nothing to search for: two of them give the prototype exactly. With
    alpha 0 the report carries none of it, but says which rows are nearest: over tables drawn at random their sum points
    at the prototype.
    """
    problem, state, method = case.problem, case.state, case.problem.method
    assert isinstance(method, FedHide)
    stream = problem.server_stream("audit table", state.round)
    proxies_ND = state.server["proxies"]

    def reported(table_ND: Tensor) -> Tensor:
        server = {**state.server, "proxies": table_ND.to(proxies_ND.dtype)}
        stream_M = stream.fold(1).fold(client_M)
        scene = Scene(state.own, server, case.truth().to(proxies_ND.dtype), case.world, client_M, stream_M, 1)
        return scene.report(method, 0)["proxy"]

    if method.alpha in (0, 1):
        rounds = case.rounds
        total_MD = torch.zeros(len(client_M), proxies_ND.shape[1], dtype=torch.float64, device=client_M.device)
        for number in range(rounds):
            drawn_ND = normal_rows(each_row(stream.fold(2 + number), len(proxies_ND)), proxies_ND.shape[1])
            total_MD += reported(unit(drawn_ND)).double()
        return unit(total_MD), rounds
    roots = []
    for number in range(2):
        one_1D = unit(normal_rows(each_row(stream.fold(2 + number), 1), proxies_ND.shape[1]))
        table_ND = one_1D.to(proxies_ND).expand_as(proxies_ND)
        roots.append(method.roots(reported(table_ND), table_ND, client_M, case.world.class_of_N))
    return told_apart(roots[0], roots[1], None, method.alpha), 2
