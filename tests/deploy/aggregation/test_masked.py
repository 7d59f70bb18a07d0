"""Masked sums over devices and helpers: clear up to rounding, whoever drops out, dies, or lies."""

from __future__ import annotations

import json
import os
import random

import numpy as np
import pytest
import torch
from loopback import LOCAL, Loopback, digits, recipe
from masked_loop import MaskedLoopback, masked_recipe, signer
from safetensors.torch import load

from selfsame.deploy import guest
from selfsame.deploy.codec import encode
from selfsame.engine.plan import Start
from selfsame.engine.reference import client_update
from selfsame.engine.setup import prepare
from selfsame.engine.state import begin


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    monkeypatch.setattr(guest, "load", lambda name, **options: digits(**options))


def off(harness: MaskedLoopback, other: Loopback) -> float:
    """How far two runs' networks are apart, in deviations of one round's rounding of the mean."""
    sums = harness.server.agreement.sums
    error = sums.code.error / 4 * (sums.cap / 60 if sums.cap > 1 else 1)
    gap = (harness.server.state.theta_P - other.server.state.theta_P).abs().max()
    return float(gap) / error


@pytest.mark.parametrize("name", LOCAL)
def test_equal_to_clear_up_to_rounding(tmp_path, name):
    """Every method, three rounds: what masks cost is the rounding to whole steps, carried on by training."""
    clear = Loopback(tmp_path / "clear", recipe(name, run={"rounds": 3}))
    clear.run()
    masked = MaskedLoopback(tmp_path / "masked", masked_recipe(name, run={"rounds": 3}), helpers=2)
    masked.run()
    assert [record["taken"] for record in masked.server.records] == [4, 4, 4]
    assert masked.server.counts["unmasked"] == 6
    assert off(masked, clear) < 60 and 0 < masked.server.agreement.sums.code.step < 1e-6


def test_what_leaves_says_nothing(tmp_path):
    """Two runs that differ in nothing but chance send numbers that have nothing in common; none is small."""
    sent = []
    for run in "ab":
        harness = MaskedLoopback(tmp_path / run, masked_recipe("fedhide", run={"rounds": 1}))
        harness.filter = lambda ask, reply: sent.append(load(reply)) or [reply]
        harness.run()
    masked = [fields["masked"].numpy().view(np.uint32) for fields in sent if "masked" in fields]
    assert len(masked) == 8 and all("network" not in fields for fields in sent)
    for numbers in masked:
        assert abs(numbers.astype(np.float64).mean() / 2**32 - 0.5) < 6 * 0.29 / np.sqrt(len(numbers))
        assert np.count_nonzero(numbers < 2**20) < 20
    assert sum(int((one == two).sum()) for one in masked[:4] for two in masked[4:]) < 20


def load_meta(message: bytes) -> str:
    """The text beside the tensors."""
    header = json.loads(message[8 : 8 + int.from_bytes(message[:8], "little")])
    return header["__metadata__"]["selfsame"]


def silent(harness: MaskedLoopback, lost: dict[int, set[int]]) -> None:
    """Let the answers of these clients to a round go missing."""

    def filter(ask, reply):
        kind, node, number = ask.id.split("/")[1:]
        gone = kind == "train" and node in {signer(client).name for client in lost.get(int(number), ())}
        return [] if gone else [reply]

    harness.filter = filter


def by_hand(order, rounds: int, lost: dict[int, set[int]], least: int) -> torch.Tensor:
    """FedMetric's positive half: each client's clipped change, the last one where it is silent; plain averages."""
    problem = prepare(order)
    theta, counts = begin(problem).theta_P.clone(), problem.federation.count_N.tolist()
    last: dict[int, torch.Tensor] = {}
    for number in range(rounds):
        fresh = {}
        for client in set(range(4)) - lost.get(number, set()):
            who = problem.cohort(torch.tensor([client]), torch.ones(1, dtype=torch.bool))
            own = {"centre": torch.zeros(1, 8, dtype=torch.float64)}
            lr = torch.tensor(order.local.lr, dtype=torch.float64)
            change = client_update(problem, theta, Start(who, own, {}, lr, number))[0] - theta
            fresh[client] = change * min(1.0, order.sums.clip / float(change.norm()))
        if len(fresh) < least:
            continue
        last |= fresh
        total = sum(counts[client] for client in last)
        theta = theta + sum(counts[client] / total * change for client, change in last.items())
    return theta


def test_the_last_contribution_stands_in(tmp_path):
    """By hand: who is silent counts with what it sent last, who never answered counts nothing."""
    lost = {0: {3}, 1: {1}, 2: {1, 2}, 3: {0, 1, 2}, 4: {0}}
    order = masked_recipe("fedmetric-pos", run={"rounds": 5})
    harness = MaskedLoopback(tmp_path, order, terms={"answer_wait": 5.0})
    silent(harness, lost)
    harness.run()
    expected = by_hand(order, 5, lost, harness.server.agreement.sums.least)
    assert [record["taken"] for record in harness.server.records] == [3, 3, 2, 0, 3]
    assert [record["stood_in"] for record in harness.server.records] == [0, 1, 2, 0, 1]
    assert float((harness.server.state.theta_P - expected).abs().max()) < 60 * harness.server.agreement.sums.code.step


def test_exceptions_are_counted_and_end(tmp_path):
    """A device that is gone is stood in for twice; from then on it counts nothing, and the rounds go on."""
    order = masked_recipe("fedaws", run={"rounds": 5}, sums={"stand_ins": 2})
    harness = MaskedLoopback(tmp_path, order, terms={"answer_wait": 5.0})
    silent(harness, {number: {1} for number in (1, 2, 3, 4)})
    harness.run()
    assert [record["stood_in"] for record in harness.server.records] == [0, 1, 1, 0, 0]
    assert [record["taken"] for record in harness.server.records] == [4, 3, 3, 3, 3]
    kept = json.loads(next((tmp_path / "helper0").glob("*.json")).read_text())["ledger"]
    assert kept["devices"][signer(1).name]["exceptions"] == 2


@pytest.mark.parametrize("name", ["fedhide", "softmax", "fedaws"])
def test_killed_between_any_two_things(tmp_path, name):
    """Server, devices and helpers are dropped at random and opened from their folders: all rounds, all answers."""
    draw = random.Random(name)

    def between(self: MaskedLoopback) -> None:
        if draw.random() < 0.15:
            self.reopen_server()
        if draw.random() < 0.3:
            self.reopen_device(signer(draw.randrange(4)).name)
            self.reopen_helper(draw.randrange(2))

    order = masked_recipe(name, run={"rounds": 3})
    harness = MaskedLoopback(tmp_path / "a", order, between=between, helpers=2)
    harness.run()
    assert [record["taken"] for record in harness.server.records] == [4, 4, 4]
    calm = MaskedLoopback(tmp_path / "b", order, helpers=2)
    calm.run()
    gap = (harness.server.state.theta_P - calm.server.state.theta_P).abs().max()
    assert float(gap) < 100 * harness.server.agreement.sums.code.step


def test_a_server_that_dies_with_the_helpers_answer_asks_for_the_same(tmp_path):
    order = masked_recipe("fedaws", run={"rounds": 2})
    harness = MaskedLoopback(tmp_path, order)
    unmask = []

    def lose_once(ask, reply):
        if "unmask" in ask.id:
            unmask.append(ask.payload)
            if len(unmask) == 1:
                return []
        return [reply]

    harness.filter = lose_once
    while not unmask:
        harness.turn()
    harness.reopen_server()
    harness.run()
    assert unmask[0] == unmask[1] and len(unmask) == 3
    assert [record["taken"] for record in harness.server.records] == [4, 4]


def test_no_round_begins_without_a_helper(tmp_path):
    harness = MaskedLoopback(tmp_path, masked_recipe("fedaws", run={"rounds": 1}))
    helper = harness.terms_of_helpers[0].name
    harness.server.begin([node for node in harness.devices if node != helper], 0.0)
    for _ in range(30):
        harness.turn()
    assert harness.server.round == 0 and not [ask for ask in harness.asks if "train" in ask.id]
    harness.server.begin(list(harness.devices), harness.now)
    harness.run()
    assert harness.server.records[0]["taken"] == 4


def test_a_helper_that_is_gone_is_waited_for(tmp_path):
    harness = MaskedLoopback(tmp_path, masked_recipe("fedaws", run={"rounds": 2}), terms={"answer_wait": 5.0})
    helper, dead = harness.terms_of_helpers[0].name, [True]
    harness.filter = lambda ask, reply: [] if "unmask" in ask.id and dead[0] else [reply]
    for _ in range(40):
        harness.turn()
    asked = [ask for ask in harness.asks if ask.node == helper]
    assert harness.server.round == 0 and len(asked) > 2 and len({ask.payload for ask in asked}) == 1
    dead[0] = False
    harness.run()
    assert [record["taken"] for record in harness.server.records] == [4, 4]


def test_a_device_with_a_bad_record_is_left_out(tmp_path):
    """Its masks could not come off; the others' sum is released without it, and it is stood in for later on."""
    harness = MaskedLoopback(tmp_path, masked_recipe("fedaws", run={"rounds": 3}))

    def spoiled(ask, reply):
        if ask.id.split("/")[1:] != ["train", signer(2).name, "1"]:
            return [reply]
        said = json.loads(load_meta(reply))
        fields = load(reply)
        fields["records"][0, -1] ^= 1
        return [encode("trained", 1, said["meta"], fields)]

    harness.filter = spoiled
    harness.run()
    assert [record["taken"] for record in harness.server.records] == [4, 3, 4]
    assert [record["stood_in"] for record in harness.server.records] == [0, 1, 0]
    assert harness.server.counts["helper: signature"] == 1
