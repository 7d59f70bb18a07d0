"""Sums in an enclave over devices: those in the clear, whoever drops out or dies."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from enclave_loop import EnclosedLoopback, enclave_recipe
from loopback import Loopback, digits, recipe
from masked_loop import MaskedLoopback, masked_recipe
from safetensors.torch import load

from selfsame.deploy import guest
from selfsame.deploy.aggregation.enclave import SumController, keeper_of
from selfsame.deploy.aggregation.sealing import ENCLAVES, attest
from selfsame.deploy.codec import Refused, glance
from selfsame.deploy.split.attest import Policy
from selfsame.errors import SelfsameError


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    monkeypatch.setattr(guest, "load", lambda name, **options: digits(**options))


def apart(one: Loopback, two: Loopback) -> float:
    """How far two runs' networks are apart, relative to how far training has moved them."""
    start = one.server.problem.model.first_theta
    moved = float((two.server.state.theta_P - start).abs().max())
    return float((one.server.state.theta_P - two.server.state.theta_P).abs().max()) / moved


@pytest.mark.parametrize(
    ("name", "weights"), [("fedhide", "samples"), ("feduv", "uniform"), ("fl-traditional", "uniform")]
)
def test_clear_masked_and_enclosed_come_to_one_network(tmp_path, name, weights):
    """Up to single precision in the enclave, and to the rounding under masks."""
    found = []
    for loop, order in ((Loopback, recipe), (MaskedLoopback, masked_recipe), (EnclosedLoopback, enclave_recipe)):
        cohort = {"weights": weights, "cap": 50 if weights == "samples" else 0}
        found.append(loop(tmp_path / order.__name__, order(name, run={"rounds": 2}, cohort=cohort)))
        found[-1].run()
        assert [record["taken"] for record in found[-1].server.records] == [4, 4]
    clear, masked, enclosed = found
    assert apart(enclosed, clear) < 1e-5 and apart(masked, clear) < 1e-3
    assert enclosed.enclave.counts()["accepted"] == {"update": 8, "release": 2}


def test_the_server_sees_no_update(tmp_path):
    """With the enclave as a process of its own, whose quote says that nothing shields it."""
    harness = EnclosedLoopback(tmp_path, enclave_recipe("fedhide", run={"rounds": 2}), apart=True)
    sent = []
    harness.filter = lambda ask, reply: sent.append(reply) or [reply]
    harness.run()
    assert [record["taken"] for record in harness.server.records] == [4, 4]
    fields = [load(reply) for reply in sent]
    assert sum("record" in one for one in fields) == 8 and not any("network" in one for one in fields)
    noted = harness.devices[harness.place(0)].keep.read().notes["enclave"]
    assert noted["attested"]["kind"] == "simulated" and noted["count"] == 1
    harness.server.close()
    assert harness.enclave is None


def test_who_is_silent_is_stood_in_for(tmp_path):
    """One device is lost from the second round on: its update of the first stays in the sum, and the ledger says so."""
    harness = EnclosedLoopback(tmp_path, enclave_recipe("fedhide", run={"rounds": 4}), terms={"answer_wait": 5.0})
    gone = harness.place(1)
    harness.filter = lambda ask, reply: [] if ask.node == gone and harness.server.round >= 1 else [reply]
    harness.run()
    assert [(record["taken"], record["stood_in"]) for record in harness.server.records] == [(4, 0)] + [(3, 1)] * 3
    assert harness.enclave.counts()["accepted"] == {"update": 13, "release": 4, "stand-in": 3}


def test_a_stand_in_is_the_very_same_update(tmp_path):
    """By hand: the second round's step is the mean of three new updates and one old."""
    updates = {}

    class Spied(EnclosedLoopback):
        def reopen_device(self, node):
            super().reopen_device(node)
            device, real = self.devices[node], self.devices[node]._sent

            def sent(kept, agreement, update_P, turn, *rest):
                updates[turn, node] = update_P.double()
                return real(kept, agreement, update_P, turn, *rest)

            device._sent = sent

    harness = Spied(tmp_path, enclave_recipe("fedhide", run={"rounds": 2}), terms={"answer_wait": 5.0})
    gone, states = harness.place(1), []
    harness.filter = lambda ask, reply: [] if ask.node == gone and harness.server.round >= 1 else [reply]
    harness.between = lambda loop: (
        states.append((loop.server.round, loop.server.state.theta_P.clone()))
        if (loop.server.state is not None)
        else None
    )
    harness.run()
    first = next(theta_P for number, theta_P in states if number == 1)
    names = [harness.place(number) for number in range(4)]
    samples = {
        node: min(seat.samples, harness.server.agreement.sums.cap) for node, seat in harness.server.seats.items()
    }
    weight = samples if harness.server.agreement.sums.cap > 1 else dict.fromkeys(names, 1)
    total = sum(weight.values())
    expected = first.clone()
    for node in names:
        expected += weight[node] / total * updates[0 if node == gone else 1, node]
    torch.testing.assert_close(harness.server.state.theta_P, expected, rtol=0, atol=1e-6)


def test_exceptions_are_limited(tmp_path):
    """After two a silent device counts as nothing."""
    order = enclave_recipe("fedhide", run={"rounds": 5}, sums={"stand_ins": 2})
    harness = EnclosedLoopback(tmp_path, order, terms={"answer_wait": 5.0})
    gone = harness.place(2)
    harness.filter = lambda ask, reply: [] if ask.node == gone and harness.server.round >= 1 else [reply]
    harness.run()
    assert [record["stood_in"] for record in harness.server.records] == [0, 1, 1, 0, 0]


@pytest.mark.parametrize("process", [False, True])
def test_an_enclave_that_is_killed_costs_its_round(tmp_path, process):
    """In the middle of the second round: the next one is attested by everybody, and the run ends."""
    harness = EnclosedLoopback(tmp_path, enclave_recipe("fedhide", run={"rounds": 3}), apart=process)
    killed = []

    def between(loop):
        if loop.server.round == 1 and len(loop.server._reports) == 2 and not killed:
            killed.append(loop.enclave)
            loop.enclave._process.kill() if process else loop.enclave.kill()
            if process:
                loop.enclave._process.wait()

    harness.between = between
    harness.run()
    assert [record["taken"] for record in harness.server.records] == [4, 0, 4]
    assert harness.server.counts["enclave ended"] == 1 and harness.enclave is not killed[0]
    assert harness.devices[harness.place(3)].keep.read().notes["enclave"]["count"] == 2
    harness.server.close()


def test_after_a_restart_nothing_old_stands_in(tmp_path):
    harness = EnclosedLoopback(tmp_path, enclave_recipe("fedhide", run={"rounds": 3}), terms={"answer_wait": 5.0})
    gone, killed = harness.place(0), []

    def between(loop):
        if loop.server.round == 1 and not killed:
            killed.append(loop.enclave.kill())

    harness.between = between
    harness.filter = lambda ask, reply: [] if ask.node == gone and killed else [reply]
    harness.run()
    assert [record["stood_in"] for record in harness.server.records][1:] == [0] * 2
    assert "stand-in" not in harness.enclave.counts()["accepted"]


def test_a_server_that_stops_in_a_round_goes_on_with_the_next(tmp_path):
    """Its enclave went with it, and nobody trains a round twice: what was sealed to the old one is of no use."""
    harness = EnclosedLoopback(tmp_path, enclave_recipe("fedhide", run={"rounds": 3}))
    stopped = []

    def between(loop):
        if loop.server.round == 1 and len(loop.server._reports) == 2 and not stopped:
            stopped.append(loop.server)
            loop.server.close()
            loop.reopen_server()

    harness.between = between
    harness.run()
    assert [record["taken"] for record in harness.server.records][::2] == [4, 4]
    assert len(harness.server.records) == 3


def test_a_device_trusts_no_enclave_unless_told(tmp_path):
    harness = EnclosedLoopback(tmp_path, enclave_recipe("fedhide"), policy=Policy(), terms={"answer_wait": 1.0})
    with pytest.raises(AssertionError, match="after 40 turns"):
        harness.run(40)
    assert harness.server.counts["device: quote"] >= 4 and harness.server.round == 0


def test_a_trust_that_ends_ends_the_part(tmp_path):
    harness = EnclosedLoopback(tmp_path, enclave_recipe("fedhide", run={"rounds": 3}), terms={"answer_wait": 1.0})

    def between(loop):
        if loop.server.round == 1 and loop.policy.allow_simulated:
            loop.policy = Policy()
            loop.reopen_device(loop.place(0))

    harness.between = between
    harness.run()
    assert harness.server.counts["device: quote"] >= 1
    assert [record["taken"] for record in harness.server.records] == [4, 3, 3]


def test_a_device_attests_so_many_enclaves_and_no_more(tmp_path):
    """Each one knows nothing of what was released before it."""
    harness = EnclosedLoopback(tmp_path, enclave_recipe("fedhide"))
    agreement, noted = harness.server.agreement, {}
    for count in range(1, ENCLAVES + 1):
        told = harness.server._keeper.told()
        for _ in range(2):  # the same one again is no other
            noted = attest(agreement, told, noted, harness.policy, None)
        assert noted["count"] == count and noted["key"] == told[64:128]
        harness.enclave.kill()
        assert harness.server._keeper.ended()
    with pytest.raises(Refused, match="quote"):
        attest(agreement, harness.server._keeper.told(), noted, harness.policy, None)


def test_a_quote_of_another_plan_key_or_run_is_refused(tmp_path):
    harness = EnclosedLoopback(tmp_path, enclave_recipe("fedhide"))
    agreement, told = harness.server.agreement, bytes.fromhex(harness.server._keeper.told())
    assert attest(agreement, told.hex(), {}, harness.policy, None)["count"] == 1
    for at in (0, 31, 32, 63, 64, len(told) - 1):
        changed = told[:at] + bytes([told[at] ^ 1]) + told[at + 1 :]
        with pytest.raises(Refused, match="quote"):
            attest(agreement, changed.hex(), {}, harness.policy, None)
    for other in (replace(agreement, run="f00"), replace(agreement, sums=replace(agreement.sums, clip=21.0))):
        with pytest.raises(Refused, match="quote"):
            attest(other, told.hex(), {}, harness.policy, None)
    for text in ("", "zz", told.hex()[:100]):
        with pytest.raises(Refused, match="quote"):
            attest(agreement, text, {}, harness.policy, None)


def test_an_enclave_needs_the_devices_keys(tmp_path):
    harness = EnclosedLoopback(tmp_path, enclave_recipe("fedhide"))
    harness.options.pop("enclave")
    with pytest.raises(SelfsameError, match="no enclave"):
        Loopback.reopen_server(harness)
    harness.options["enclave"] = partial(keeper_of, keys=(), start=SumController)
    with pytest.raises(SelfsameError, match="public keys"):
        Loopback.reopen_server(harness)


def test_a_device_that_is_not_registered_is_left_out(tmp_path):
    order = enclave_recipe("fedhide", run={"rounds": 2}, cohort={"size": 3})
    harness = EnclosedLoopback(tmp_path, order, registered=3, terms={"required": 3, "answer_wait": 1.0})
    harness.run()
    assert [record["taken"] for record in harness.server.records] == [3, 3]
    assert harness.server.counts["device"] >= 1 and harness.place(3) not in harness.server.seats


def test_hostile_answers_are_counted_and_the_others_go_on(tmp_path):
    """One node sends what it should not, before anything good: it is stood in for, and nothing else happens."""
    rng = np.random.default_rng(0)
    harness = EnclosedLoopback(tmp_path, enclave_recipe("fedhide", run={"rounds": 3}), terms={"answer_wait": 1.0})
    bad, sent = harness.place(2), []

    def mutated(reply, kind):
        at = int(rng.integers(len(reply)))
        kinds = (reply[:at], reply[:at] + bytes([reply[at] ^ 1]) + reply[at + 1 :], rng.bytes(300), bytes(1 << 20))
        return kinds[kind % 4]

    def between(ask, reply):
        if ask.node != bad or harness.server.round == 0 or "/train/" not in ask.id:
            return [reply]
        sent.extend(mutated(reply, kind) for kind in range(52))
        return sent[-52:]

    harness.filter = between
    harness.run()
    assert [(record["taken"], record["stood_in"]) for record in harness.server.records] == [(4, 0), (3, 1), (3, 1)]
    assert len(harness.reasons) >= 100 and harness.enclave.counts()["refused"].get("internal", 0) == 0


def test_a_device_is_added_up_with_few_groups(tmp_path):
    """An enclave that is started anew knows no groups; a device knows its own."""
    harness = EnclosedLoopback(tmp_path, enclave_recipe("fedhide", run={"rounds": 12}))
    node, asked = harness.place(0), []
    harness.filter = lambda ask, reply: [] if "/train/" in ask.id and not asked.append(ask) else [reply]
    while not asked:
        harness.turn()
    payload = next(ask.payload for ask in asked if ask.node == node)
    group, said = glance(payload, 1 << 24)[2]["group"].encode(), []
    for number in range(1, 10):  # the first one was its own
        changed = payload.replace(group, f"{number:064x}".encode())
        changed = changed.replace(b'\\"round\\":0', b'\\"round\\":%d' % number)
        said.append(glance(harness.devices[node].reply(changed), 1 << 24)[0])
    assert said == ["trained"] * 7 + ["refused"] * 2
    assert len(harness.devices[node].keep.read().notes["groups"]) == 8
