"""What hostile devices and restored folders can do to split rounds: no more than the plan allows."""

from dataclasses import replace

import numpy as np
import pytest
from split_loop import NOISE, Direct, Loop, a_recipe, kind_of, reasons

from selfsame.deploy.codec import decode, encode
from selfsame.deploy.memory import Keep
from selfsame.deploy.schedule import Terms
from selfsame.deploy.split.agreement import embedded
from selfsame.deploy.split.participant import Participant
from selfsame.enclave.message import pack


def a_loop(folder, recipe, required=4):
    return Loop(folder, recipe, Terms(required, embedding_wait=10.0, answer_wait=10.0), enclave=Direct)


def on_disk(one, node="node0"):
    return (one.folder / node / "state.safetensors").read_bytes()


def restored(one, node, copy):
    """The device's folder, put back to what it was when `copy` was made."""
    (one.folder / node / "state.safetensors").write_bytes(copy)
    one.device[node] = one.open_device(node)


def test_a_folder_that_was_put_back_repeats_no_keystream(tmp_path):
    """A server that asks twice for one round, with two networks: of what it gets, no XOR gives embeddings away."""
    one = a_loop(tmp_path, a_recipe(rounds=3))
    known = []
    one.run(until=lambda: one.server.round == 1)
    before, real = on_disk(one), Participant.embeddings
    one.fresh = False
    one.device["node0"] = one.open_device("node0")

    def spy(self, number, emb_BD, network):
        known.append(network + pack(emb_BD))
        return real(self, number, emb_BD, network)

    asked = next(ask for ask in one.server.step(one.now) if ask.node == "node0")
    assert kind_of(asked) == "embed"
    fields = {"network": one.server.state.theta_P * 1.5}
    meta = {"run": one.server.run, "plan": one.server.agreement.digest, "client": 0}
    meta |= {"session": one.server._sessions["node0"].number, "welcome": ""}
    sealed = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Participant, "embeddings", spy)
        for payload in (asked.payload, encode("embed", 1, meta, fields)):
            restored(one, "node0", before)
            answer = one.device["node0"].reply(payload)
            assert reasons(answer) is None
            form = embedded(one.server.mandate)
            form = replace(form, run=one.server.run, round=1)
            sealed.append(bytes(decode(answer, expected=form).fields["sealed"].numpy()))
    one_text, two_text = (np.frombuffer(text, np.uint8) for text in known)
    length = len(one_text)
    one_sealed, two_sealed = (np.frombuffer(text, np.uint8)[-16 - length : -16] for text in sealed)
    assert sealed[0][:25] == sealed[1][:25] and (one_text != two_text).any()
    assert np.count_nonzero((one_sealed ^ two_sealed) == (one_text ^ two_text)) < length / 8


def test_a_folder_that_was_put_back_spends_no_budget_twice(tmp_path):
    """The enclave knows better, and the device believes the larger figure."""
    one = a_loop(tmp_path, a_recipe(rounds=5, method=NOISE, split={"most": 5}))
    one.run(until=lambda: one.server.round == 1)
    early = on_disk(one)
    one.run(until=lambda: one.server.round == 3)
    assert one.device["node0"].taken == 3
    restored(one, "node0", early)
    assert one.device["node0"].taken == 1
    one.run()
    assert one.server.counts["session"] == 1  # its numbers were old: it has attested anew, and been told
    assert (one.server.counts["complete"], one.server.counts["given up"]) == (4, 1)
    assert one.device["node0"].taken == 4 == one.server.state.server["taken"][0]


def test_the_enclave_refuses_a_device_whose_budget_it_has_used(tmp_path):
    """Its own count and the server's went back."""
    one = a_loop(tmp_path, a_recipe(rounds=4, method=NOISE, split={"most": 2}, cohort={"size": 2}), 2)
    one.run(until=lambda: one.server.round == 1)
    node = f"node{one.server.records[0]['embedded'][0]}"
    name = bytes.fromhex(Keep(one.folder / node).read().notes["name"])
    one.server._enclave.enclave._used[name] = 2
    one.run(until=lambda: one.server.round == 3, most=60)
    assert all(int(node[4:]) not in record["embedded"] for record in one.server.records[1:])
    assert one.server.counts["spent"] + one.server.counts["device: spent"] <= 1


def test_one_sealed_gradient_moves_the_network_no_further_than_the_clip(tmp_path, monkeypatch):
    """Of length 0.99e6, where honest ones have 0.3."""
    real = Participant.gradient
    one = a_loop(tmp_path, a_recipe(rounds=1, server={"optimiser": "average", "lr": 1.0}))

    def spy(self, number, grad_P):
        lying = len(kinds) == 1
        kinds.append(float(np.linalg.norm(grad_P.astype(np.float64))))
        return real(self, number, grad_P * np.float32(0.99e6 / kinds[-1]) if lying else grad_P)

    kinds: list[float] = []
    monkeypatch.setattr(Participant, "gradient", spy)
    start = one.server.state.theta_P.double().clone()
    one.run()
    assert one.server.counts == {"complete": 1} and max(kinds) < 1
    clip, moved = one.server.mandate.gradient_clip, float((one.server.state.theta_P.double() - start).norm())
    assert clip == pytest.approx(10 * float(start.norm()), rel=0.01)
    assert 0.2 * clip < moved <= clip / 4 + 1
