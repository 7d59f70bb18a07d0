"""Polls on devices: the simulator's crowd up to rounding, whoever is silent, killed, or asks for too much."""

from __future__ import annotations

import os

import pytest
import torch
from enclave_loop import EnclosedLoopback, enclave_recipe
from loopback import digits, recipe, simulated
from masked_loop import MaskedLoopback, masked_recipe, signer
from safetensors.torch import load

from selfsame.deploy import guest
from selfsame.deploy.agreement import Agreement
from selfsame.deploy.codec import REFUSED, decode, encode
from selfsame.deploy.device import ASSIGNED
from selfsame.engine.setup import prepare
from selfsame.errors import SelfsameError

MODES = {"masked": (MaskedLoopback, masked_recipe), "enclave": (EnclosedLoopback, enclave_recipe)}
NET = {"name": "lenet", "width": 8, "channels": [4, 4]}
CROWD = ("crowd_mean", "crowd_second")


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    monkeypatch.setattr(guest, "load", lambda name, **options: digits(**options))


def build(folder, mode="masked", rounds=4, sums=None, **options):
    harness, order = MODES[mode]
    parts = {"run": {"rounds": rounds}, "sums": sums or {}}
    return harness(folder, order("fedcrowd", {"every": 2, "sketch": 2, **options}, **parts))


def gap(harness, state) -> float:
    """How far the network and the crowd are from a simulated run's."""
    mine = harness.server.state
    assert mine.server["crowd_count"].tolist() == state.server["crowd_count"].tolist()
    apart = [(mine.server[name] - state.server[name]).abs().max() for name in CROWD]
    return float(max([(mine.theta_P - state.theta_P).abs().max(), *apart]))


@pytest.mark.parametrize("mode", MODES)
def test_the_crowd_of_the_simulator_up_to_rounding(tmp_path, mode):
    harness = build(tmp_path / mode, mode)
    harness.run()
    assert harness.server.counts["polled"] == 2
    # Rounding to whole steps, and single precision on the way to the enclave.
    assert gap(harness, simulated(harness.order)) < 1e-5
    own = harness.own()
    whole, narrow = own["polled"][:, :-2], own["polled"][:, -2:]
    assert whole.shape == own["prototype"].shape
    assert all(torch.allclose(part.norm(dim=1), torch.ones(4).double()) for part in (whole, narrow))


def test_enrolled_vectors_are_in_the_first_poll(tmp_path):
    """Each device writes its own from the network it was given; the first crowd is of them, as in the simulator."""
    order = masked_recipe("fedcrowd", {"every": 2, "sketch": 2}, run={"rounds": 2}, net={**NET, "vectors": "enrolled"})
    harness = MaskedLoopback(tmp_path / "run", order)
    harness.run()
    assert gap(harness, simulated(order)) < 1e-5
    drawn = build(tmp_path / "drawn", rounds=2)
    drawn.run()
    assert gap(drawn, harness.server.state) > 0.1


def test_the_same_with_a_helper_and_an_enclave_together(tmp_path):
    """What is sealed is not seen by anybody, and no message holds a prototype or its products."""
    harness = build(tmp_path / "run", rounds=2)
    sent = []
    harness.filter = lambda ask, reply: sent.append((ask.id.split("/")[1], load(reply))) or [reply]
    harness.run()
    kinds = [kind for kind, _ in sent]
    assert kinds.count("poll") == 4 and kinds.count("train") == 8 and kinds.count("unmask poll") == 1
    for kind, fields in sent:
        if kind == "poll":
            assert set(fields) == {"masked", "records"} and fields["masked"].shape == (8 + 2 + 3 + 1,)


def lose(harness, lost):
    """Let the answers of these clients to polls before these rounds go missing."""

    def filter(ask, reply):
        kind, node, number = ask.id.split("/")[1:]
        gone = kind == "poll" and node in {signer(client).name for client in lost.get(int(number), ())}
        return [] if gone else [reply]

    harness.filter = filter


@pytest.mark.parametrize("mode", MODES)
def test_whoever_is_silent_is_stood_in_for_and_too_few_release_nothing(tmp_path, mode):
    """Of four devices two must answer a poll of width 1."""
    harness = build(tmp_path / mode, mode, rounds=6, sketch=1, sums={"least": 2})
    lose(harness, {2: {0, 3}, 4: {0, 1, 2}})
    seen = []

    def between(loop):
        state = loop.server.state
        if state is not None and (not seen or seen[-1][0] != loop.server._polled):
            vector = [loop.devices[loop.place(n)].keep.read().fields.get("polled") for n in range(4)]
            seen.append((loop.server._polled, state.server["crowd_mean"].clone(), vector))

    harness.between = between
    harness.run()
    polls = {number: (mean, vector) for number, mean, vector in seen if number >= 0}
    assert sorted(polls) == [0, 2, 4]
    first, second = (torch.cat(polls[number][1]) for number in (0, 2))
    assert torch.allclose(polls[0][0], first.mean(0), atol=1e-6)
    released = second.clone()
    released[[0, 3]] = first[[0, 3]]  # as they were counted last, whatever they have drawn up since
    assert torch.allclose(polls[2][0], released.mean(0), atol=1e-6)
    assert torch.equal(polls[4][0], polls[2][0])
    assert harness.server.counts["poll failed"] == 1 and harness.server.round == 6


@pytest.mark.parametrize("moment", ["asked", "answered", "unmasked"])
def test_a_server_that_is_killed_in_a_poll_goes_on_with_it(tmp_path, moment):
    """Before answers, after them, and before the helper has answered: the run ends as one that was not killed."""
    harness = build(tmp_path / "killed")
    whole = simulated(harness.order)
    count = {"asked": 0, "answered": 0, "unmasked": 0}

    def filter(ask, reply):
        kind, number = ask.id.split("/")[1], ask.id.split("/")[-1]
        if number == "2" and kind in ("poll", "unmask poll"):
            at = "unmasked" if kind == "unmask poll" else "asked" if count["asked"] == 0 else "answered"
            count[at] += 1
            if at == moment and count[at] == 1:
                raise InterruptedError
        return [reply]

    harness.filter = filter
    with pytest.raises(InterruptedError):
        harness.run()
    harness.reopen_server()
    harness.run()
    assert gap(harness, whole) < 1e-5 and harness.server.round == 4


def to_poll(harness, number: int, group: str, node: str, fields=None) -> bytes:
    """A device's reply to a poll of somebody's making."""
    agreement = harness.server.agreement
    meta = {"run": agreement.run, "plan": agreement.digest, "client": 0, "class": 0, "present": 4, "group": group}
    assert set(meta) == {"run", *ASSIGNED}
    given = {"sketch": harness.server.state.server["sketch"]} if fields is None else fields
    return harness.devices[node].reply(encode("poll", number, meta, given))


def reason_of(reply: bytes) -> str:
    return decode(reply, expected=REFUSED).meta["reason"]


def test_a_device_answers_polls_that_are_due_and_no_others(tmp_path):
    harness = build(tmp_path / "run", rounds=40)
    for _ in range(6):
        harness.turn()
    node = harness.place(0)
    before = harness.devices[node].keep.read()
    sketch = harness.server.state.server["sketch"]
    assert reason_of(to_poll(harness, 11, "00" * 32, node)) == "kind"
    assert reason_of(to_poll(harness, 40, "00" * 32, node)) == "round"
    assert reason_of(to_poll(harness, 0, "00" * 32, node)) == "stale"
    assert reason_of(to_poll(harness, 10, "00", node)) == "group"
    assert reason_of(to_poll(harness, 10, "00" * 32, node, {})) == "fields"
    assert reason_of(to_poll(harness, 10, "00" * 32, node, {"sketch": 5 * sketch})) == "norm"
    assert reason_of(to_poll(harness, 10, "00" * 32, node, {"sketch": sketch * float("nan")})) == "finite"
    after = harness.devices[node].keep.read()
    assert (after.turn, after.request, after.notes) == (before.turn, before.request, before.notes)
    assert all(torch.equal(after.fields[name], value) for name, value in before.fields.items())


def test_a_poll_in_a_group_of_the_servers_making_counts(tmp_path):
    """A device takes part in few groups: a server that changes them would learn from how sums differ."""
    harness = build(tmp_path / "run", rounds=40)
    for _ in range(6):
        harness.turn()
    node = harness.place(0)
    reasons = [b"polled" in to_poll(harness, number, f"{number:064x}", node) for number in range(10, 38, 2)]
    assert sum(reasons) == 7 and reasons == sorted(reasons, reverse=True)  # eight, of which one was the real one


def test_polls_need_sums_and_enough_devices():
    problem = prepare(recipe("fedcrowd"), digits())
    with pytest.raises(SelfsameError, match=r"a server may see sums alone; set sums\.aggregation to masked or enclave"):
        Agreement.of(problem, "a", "exact", True)


def test_terms_of_polls_are_in_the_agreement_and_checked(tmp_path):
    agreement = build(tmp_path / "run", noise=0.5).server.agreement
    (polls,) = agreement.polls
    assert (polls.group, polls.least, polls.bits, polls.noise, polls.cap) == (4, 4, 32, 0.5, 1)
    again = Agreement.from_json(agreement.to_json())
    assert again == agreement and again.digest == agreement.digest
    forged = agreement.to_json()
    forged["polls"][0]["least"] = 2
    with pytest.raises(SelfsameError, match="polled on other terms"):
        Agreement.from_json(forged)
    forged["polls"] = []
    with pytest.raises(SelfsameError, match="polled on other terms"):
        Agreement.from_json(forged)


def test_noise_is_on_what_is_released(tmp_path):
    """Shares of the devices, or the enclave's; either is about as large as agreed."""
    for mode in MODES:
        harness = build(tmp_path / mode, mode, rounds=1, noise=100.0)
        harness.run()
        own, server = harness.own(), harness.server.state.server
        truth = own["polled"].mean(0)
        assert float((server["crowd_mean"][0] - truth).norm()) > 1e-3
        assert float(torch.trace(server["crowd_second"])) == pytest.approx(1)
