"""Masked sums over devices and helpers: clear up to rounding, whoever drops out, dies, or lies."""

from __future__ import annotations

import os

import numpy as np
import pytest
from loopback import LOCAL, Loopback, digits, recipe
from masked_loop import MaskedLoopback, masked_recipe
from safetensors.torch import load

from selfsame.deploy import guest


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
