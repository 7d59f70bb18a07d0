"""An enclave as a helper: it takes masks off, alone or beside a node, and sees no update."""

from __future__ import annotations

import os
from functools import partial

import pytest
from enclave_loop import TRUSTING, DirectSums, keys
from loopback import digits
from masked_loop import MaskedLoopback, masked_recipe, signer

from selfsame.deploy import guest
from selfsame.deploy.aggregation.enclave import keeper_of
from selfsame.deploy.aggregation.sum_terms import HelperTerms
from selfsame.deploy.device import Device
from selfsame.enclave.message import Order


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    monkeypatch.setattr(guest, "load", lambda name, **options: digits(**options))


class Inside(MaskedLoopback):
    """As `MaskedLoopback`, with the run's own enclave as the last of the helpers."""

    def reopen_device(self, node: str) -> None:
        number = next(number for number in range(self.nodes) if signer(number).name == node)
        self.devices[node] = Device(
            self.folder / f"node{number}", f"digits:{number}", simulate=True, signer=signer(number), policy=TRUSTING
        )

    def reopen_server(self) -> None:
        outside = self.terms_of_helpers
        self.terms_of_helpers = (*[one for one in outside if not one.enclosed], HelperTerms("", "", ""))
        self.options["enclave"] = partial(keeper_of, keys=keys(self.nodes), start=DirectSums)
        super().reopen_server()


@pytest.mark.parametrize("helpers", [0, 1])
def test_it_takes_masks_off(tmp_path, helpers):
    """The same network as with a node for a helper, up to rounding; only seeds reach the enclave."""
    order = masked_recipe("fedhide", run={"rounds": 3})
    outside = MaskedLoopback(tmp_path / "a", order)
    outside.run()
    inside = Inside(tmp_path / "b", order, helpers=helpers)
    inside.run()
    assert [record["taken"] for record in inside.server.records] == [4, 4, 4]
    gap = (inside.server.state.theta_P - outside.server.state.theta_P).abs().max()
    assert float(gap) < 100 * inside.server.agreement.sums.code.step
    frames = inside.server._keeper.process.seen[::2]
    assert {frame[0] for frame in frames} == {Order.REGISTER, Order.ATTEST, Order.UNMASK}
    assert all(len(frame) < 2000 for frame in frames if frame[0] == Order.UNMASK)


def test_drop_outs_are_stood_in_for(tmp_path):
    harness = Inside(tmp_path, masked_recipe("fedaws", run={"rounds": 3}), helpers=0, terms={"answer_wait": 5.0})
    harness.filter = lambda ask, reply: [] if ask.id.endswith(f"train/{signer(1).name}/1") else [reply]
    harness.run()
    assert [record["taken"] for record in harness.server.records] == [4, 3, 4]
    assert [record["stood_in"] for record in harness.server.records] == [0, 1, 0]


def test_another_enclave_knows_nothing(tmp_path):
    """It ends in mid round: the round is given up, everybody attests the next one, and nothing old stands in."""
    harness = Inside(tmp_path, masked_recipe("fedaws", run={"rounds": 3}), helpers=0, terms={"answer_wait": 5.0})
    killed = []

    def between(self):
        if self.server._round is not None and self.server.round == 1 and not killed:
            killed.append(self.server._keeper.process.kill())

    harness.between = between
    harness.run()
    assert [record["taken"] for record in harness.server.records] == [4, 0, 4]
    assert harness.server.counts["enclave ended"] == 1


def test_a_server_that_was_killed_goes_on(tmp_path):
    harness = Inside(tmp_path, masked_recipe("fedaws", run={"rounds": 3}), helpers=0)
    while harness.server.round < 1:
        harness.turn()
    harness.turn()
    harness.reopen_server()
    harness.run()
    assert len(harness.server.records) == 3 and harness.server.records[-1]["taken"] == 4
