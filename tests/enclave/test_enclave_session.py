"""Rounds in the enclave: what goes in, what comes out, and when it does not."""

import numpy as np
import pytest
from split_small import DIM, IN, Device, Direct, a_plan, joined, run_round, weights

from selfsame.enclave import losses
from selfsame.enclave.losses import Loss
from selfsame.errors import SelfsameError


def refused(reason, call, *args):
    with pytest.raises(SelfsameError, match=f"{reason}:"):
        call(*args)


def test_a_round_by_hand():
    """Derivatives of the joint loss, each device its own rows; then (2) with plain loops."""
    plan = a_plan(samples=5)
    controller, sizes, weight_ID = Direct(plan), [4, 2, 5], weights()
    devices = joined(controller, 3, sizes)
    aggregate_P, known = run_round(controller, devices, 1, weight_ID)
    emb_SD = np.concatenate([np.float32(mine["emb"]) for mine in known]).astype(np.float64)
    label_S = np.array([0] * 4 + [1] * 2 + [2] * 5)
    _, grad_SD = losses.value_and_derivatives(emb_SD, label_S, Loss(**plan.loss))
    assert (np.abs(grad_SD).max(1) > 0.01).all()
    at = 0
    for mine, size in zip(known, sizes):
        assert np.allclose(mine["grad_emb"], grad_SD[at : at + size], rtol=1e-6, atol=1e-9)
        at += size
    expected = [0.0] * (IN * DIM)
    for mine, size in zip(known, sizes):
        for j in range(IN * DIM):
            expected[j] += size / 11 * float(mine["grad"][j])
    assert np.allclose(aggregate_P, expected, rtol=1e-5, atol=1e-8)


def test_embeddings_of_another_network_are_not_taken():
    """Others who were sent layers of zeros would add nothing to the mean, which would be one device's gradient."""
    controller, other = Direct(a_plan()), bytes(32)
    devices = joined(controller, 4)
    controller.begin(1)
    for device in devices[:3]:
        assert controller.submit(device.embeddings(1, device.embed(weights()))) is None
    late = devices[3]
    assert controller.submit(late.embeddings(1, late.embed(weights()), other)) == "network"
    assert controller.submit(late.embeddings(1, late.embed(weights()))) is None  # nothing of the refusal is left
    controller.begin(2, other)
    assert [controller.submit(d.embeddings(2, d.embed(weights()))) for d in devices] == ["network"] * 4
    refused("few", controller.derive, 2)


@pytest.mark.parametrize("network", [b"", bytes(31), bytes(33)])
def test_a_round_without_a_network_is_not_opened(network):
    controller = Direct(a_plan())
    refused("size", controller.begin, 1, network)
    refused("round", controller.derive, 1)


def test_the_devices_labels_are_their_sessions(monkeypatch):
    seen = {}

    def stub(emb_SD, label_S, loss):
        seen.update(emb=emb_SD, label=label_S.tolist(), loss=loss)
        return 0.0, np.arange(emb_SD.size, dtype=float).reshape(emb_SD.shape)

    monkeypatch.setattr(losses, "value_and_derivatives", stub)
    controller = Direct(a_plan())
    devices = joined(controller, 3, [1, 3, 2])
    controller.begin(1)
    for device in reversed(devices):  # the order in which they come does not matter
        controller.submit(device.embeddings(1, device.embed(weights())))
    sent = controller.derive(1)
    assert seen["label"] == [0, 1, 1, 1, 2, 2]
    assert seen["emb"].dtype == np.float64
    assert seen["loss"] == Loss("batch-all", 5.0)
    assert devices[1].derivatives(1, sent[devices[1].session]).tolist() == [[3, 4, 5], [6, 7, 8], [9, 10, 11]]


def vector_steps(plan, table, rows):
    """(derivatives of each device's rows, the class vectors afterwards): softmax, the mean, a step, by plain loops."""
    scale, margin, rate = (plan.loss[name] for name in ("logit_scale", "margin", "class_lr"))

    def direction(vector):
        return np.array(vector) / np.sqrt(sum(x * x for x in vector))

    table = dict(table)
    for name, emb_BD in rows.items():
        table.setdefault(name, direction(sum(direction(row) for row in emb_BD)))
    total, grads, moves = sum(map(len, rows.values())), {}, {name: np.zeros(DIM) for name in table}
    for name, emb_BD in rows.items():
        grads[name] = []
        for row in emb_BD:
            e = direction(row)
            power = {other: np.exp(scale * (e @ v - margin * (other == name))) for other, v in table.items()}
            slope = {other: scale * (p / sum(power.values()) - (other == name)) / total for other, p in power.items()}
            towards = sum(slope[other] * v for other, v in table.items())
            grads[name].append((towards - (towards @ e) * e) / np.sqrt(row @ row))
            for other, v in table.items():
                moves[other] += slope[other] * (e - (e @ v) * v)
    return grads, {name: direction(v - rate * moves[name]) for name, v in table.items()}


def test_class_vectors_are_kept_from_round_to_round():
    """The second round has another device, and the absent one for a negative; a session anew is the same class."""
    loss = {"kind": "margin-softmax", "logit_scale": 4.0, "margin": 0.3, "class_lr": 2.0}
    controller, weight_ID = Direct(a_plan(loss=loss)), weights()
    devices = joined(controller, 4, [4, 2, 3, 4])
    table = {}
    for number, there in ((1, devices[:3]), (2, devices[1:]), (3, devices[:3])):
        wanted, table = vector_steps(
            controller.mandate, table, {one.name: np.float32(one.embed(weight_ID)).astype(float) for one in there}
        )
        _, known = run_round(controller, there, number, weight_ID)
        for one, mine in zip(there, known):
            np.testing.assert_allclose(mine["grad_emb"], wanted[one.name], rtol=1e-5, atol=1e-8)
        kept = controller.enclave._vectors
        assert kept.keys() == table.keys() and len(kept) == min(4, number + 2)
        for name, vector_D in kept.items():
            np.testing.assert_allclose(vector_D, table[name], rtol=1e-5, atol=1e-8)
    run_round(controller, [again(controller, devices[0]), *devices[1:3]], 4, weight_ID)
    assert controller.enclave._vectors.keys() == table.keys()


def test_a_round_without_an_aggregate_moves_no_class_vector():
    controller, weight_ID = Direct(a_plan(loss={"kind": "margin-softmax"})), weights()
    devices = joined(controller, 3)
    run_round(controller, devices, 1, weight_ID)
    before = {name: vector_D.copy() for name, vector_D in controller.enclave._vectors.items()}
    controller.begin(2)
    for device in devices:
        controller.submit(device.embeddings(2, device.embed(weight_ID)))
    controller.derive(2)
    controller.begin(3)
    after = controller.enclave._vectors
    assert before.keys() == after.keys() and all((before[name] == after[name]).all() for name in before)
    run_round(controller, devices, 4, weight_ID)
    assert any((before[name] != controller.enclave._vectors[name]).any() for name in before)


def test_class_vectors_under_noise_are_no_plan():
    plan = a_plan(loss={"kind": "margin-softmax"}, privacy={"kind": "gaussian", "clip": 0.5, "scale": 0.5})
    with pytest.raises(ValueError, match="no privacy budget counts"):
        Direct(plan)


def test_no_derivatives_before_enough_embeddings_and_only_once():
    controller = Direct(a_plan())
    devices = joined(controller, 4)
    controller.begin(1)
    for device in devices[:2]:
        controller.submit(device.embeddings(1, device.embed(weights())))
    refused("few", controller.derive, 1)
    controller.submit(devices[2].embeddings(1, devices[2].embed(weights())))
    assert len(controller.derive(1)) == 3
    refused("state", controller.derive, 1)
    assert controller.submit(devices[3].embeddings(1, devices[3].embed(weights()))) == "state"  # too late


def test_no_aggregate_before_enough_gradients_and_only_once():
    controller = Direct(a_plan())
    devices = joined(controller, 3)
    controller.begin(1)
    refused("state", controller.aggregate, 1)
    for device in devices:
        controller.submit(device.embeddings(1, device.embed(weights())))
    controller.derive(1)
    one, two, three = (device.gradient(1, np.full(IN * DIM, i + 1.0)) for i, device in enumerate(devices))
    refused("few", controller.aggregate, 1)
    assert controller.submit(one) is None
    refused("few", controller.aggregate, 1)
    assert controller.submit(two) is None
    assert controller.aggregate(1).tolist() == [1.5] * (IN * DIM)
    assert controller.submit(three) == "state"  # a second aggregate would give this one away
    refused("state", controller.aggregate, 1)


def test_one_gradient_each_and_only_after_derivatives():
    controller = Direct(a_plan())
    devices = joined(controller, 4)
    controller.begin(1)
    for device in devices[:3]:
        assert controller.submit(device.embeddings(1, device.embed(weights()))) is None
        assert controller.submit(device.embeddings(1, device.embed(weights()))) == "state"
    grad_P = np.ones(IN * DIM)
    assert controller.submit(devices[0].gradient(1, grad_P)) == "state"
    controller.derive(1)
    assert controller.submit(devices[0].gradient(1, grad_P)) is None
    assert controller.submit(devices[0].gradient(1, grad_P)) == "state"
    assert controller.submit(devices[3].gradient(1, grad_P)) == "state"  # was not in the round


def test_dropouts_before_and_after_embeddings():
    """Over-selection: four of five embed, three of those return gradients."""
    controller, weight_ID = Direct(a_plan()), weights()
    devices = joined(controller, 5)
    controller.begin(1)
    for device in devices[:4]:
        controller.submit(device.embeddings(1, device.embed(weight_ID)))
    sent = controller.derive(1)
    grads = []
    for device in devices[:3]:
        grads.append(device.pull_back(device.derivatives(1, sent[device.session])))
        controller.submit(device.gradient(1, grads[-1]))
    assert np.allclose(controller.aggregate(1), np.mean(grads, 0), rtol=1e-5, atol=1e-8)
    run_round(controller, devices, 2, weight_ID)  # all are back


def test_a_new_round_gives_the_old_one_up():
    controller = Direct(a_plan())
    devices = joined(controller, 3)
    controller.begin(1)
    for device in devices:
        controller.submit(device.embeddings(1, device.embed(weights())))
    controller.begin(2)
    refused("round", controller.derive, 1)
    refused("few", controller.derive, 2)
    refused("round", controller.begin, 2)
    refused("round", controller.begin, 1)


def test_no_more_rounds_than_the_plan_has():
    controller = Direct(a_plan(rounds=2))
    controller.begin(1)
    controller.begin(7)
    refused("round", controller.begin, 8)


def test_a_session_that_is_forgotten_is_gone():
    controller = Direct(a_plan())
    devices = joined(controller, 4)
    controller.begin(1)
    for device in devices:
        controller.submit(device.embeddings(1, device.embed(weights())))
    controller.forget(devices[0].session)
    refused("session", controller.forget, devices[0].session)
    assert controller.submit(devices[0].embeddings(1, devices[0].embed(weights()))) == "session"
    assert set(controller.derive(1)) == {device.session for device in devices[1:]}


def test_each_device_opens_its_own_derivatives_alone():
    controller = Direct(a_plan())
    devices = joined(controller, 3)
    controller.begin(1)
    for device in devices:
        controller.submit(device.embeddings(1, device.embed(weights())))
    sent = controller.derive(1)
    first, second = devices[:2]
    with pytest.raises(SelfsameError, match="session"):
        first.derivatives(1, sent[second.session])
    with pytest.raises(SelfsameError, match="round"):
        first.derivatives(2, sent[first.session])
    first.derivatives(1, sent[first.session])
    with pytest.raises(SelfsameError, match="replayed"):
        first.derivatives(1, sent[first.session])


def test_noise_is_on_every_row_that_is_in_the_loss():
    """With every uniform number alike, the noise is known: Algorithm 2 by hand."""
    half = b"\x00" * 7 + b"\x80"

    def draw(count):
        return half * (count // 8)

    plan = a_plan(privacy={"kind": "laplace", "drop": 0.25, "clip": 0.01, "scale": 0.5})
    controller, weight_ID = Direct(plan, draw=draw), weights()
    _, known = run_round(controller, joined(controller, 3), 1, weight_ID)
    clean_controller = Direct(a_plan())
    _, clean = run_round(clean_controller, joined(clean_controller, 3), 1, weight_ID)
    noise = 0.5 * np.log(0.5)  # one half is not above one half: to the left
    for mine, other in zip(known, clean):
        assert np.allclose(mine["grad_emb"], np.clip(other["grad_emb"], -0.01, 0.01) + noise, atol=1e-6)

    every_one_dropped = Direct(a_plan(privacy={"kind": "laplace", "drop": 0.75, "clip": 0.01, "scale": 0.5}), draw=draw)
    _, known = run_round(every_one_dropped, joined(every_one_dropped, 3), 1, weight_ID)
    assert not any(mine["grad_emb"].any() for mine in known)


def test_dropped_embeddings_are_not_in_the_loss(monkeypatch):
    """As many rows are sent noise as embeddings are in the loss."""
    lengths = []
    whole = losses.value_and_derivatives

    def counting(emb_SD, label_S, loss):
        lengths.append((len(emb_SD), len(label_S)))
        return whole(emb_SD, label_S, loss)

    monkeypatch.setattr(losses, "value_and_derivatives", counting)
    rng = np.random.default_rng(0)
    controller = Direct(a_plan(privacy={"kind": "gaussian", "drop": 0.5, "clip": 1.0, "scale": 0.1}), draw=rng.bytes)
    _, known = run_round(controller, joined(controller, 3), 1, weights())
    sent = sum(int((np.abs(mine["grad_emb"]).max(1) > 0).sum()) for mine in known)
    assert lengths == [(sent, sent)]
    assert 0 < sent < 12


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda emb: np.where(np.arange(emb.size).reshape(emb.shape) == 5, np.nan, emb), "finite"),
        (lambda emb: emb * np.inf, "finite"),
        (lambda emb: np.concatenate([emb, emb]), "shape"),
        (lambda emb: emb[:, :2], "shape"),
        (lambda emb: emb[:0], "shape"),
    ],
)
def test_bad_embeddings_are_refused_and_good_ones_are_still_taken(change, reason):
    controller = Direct(a_plan())
    (device,) = joined(controller, 1)
    controller.begin(1)
    emb_BD = device.embed(weights())
    with np.errstate(invalid="ignore"):
        assert controller.submit(device.embeddings(1, change(emb_BD))) == reason
    assert controller.submit(device.embeddings(1, emb_BD)) is None
    assert controller.counts()["refused"] == {reason: 1}


def test_before_a_round_nothing_is_taken():
    controller = Direct(a_plan())
    (device,) = joined(controller, 1)
    assert controller.submit(device.embeddings(1, device.embed(weights()))) == "state"
    refused("round", controller.derive, 1)


def test_a_hello_counts_once_and_needs_its_quote():
    controller = Direct(a_plan())
    device = Device(controller.mandate, 0)
    reply = controller.attest(device.nonce)
    message = device.hello(reply)
    device.welcome(controller.hello(message))
    refused("nonce", controller.hello, message)
    stranger = Device(controller.mandate, 1)
    stranger.nonce = device.nonce
    refused("nonce", controller.hello, stranger.hello(reply))
    refused("size", controller.attest, b"short")


def test_a_second_quote_with_a_nonce_opens_no_second_session():
    controller = Direct(a_plan())
    device = Device(controller.mandate, 0)
    assert controller.attest(device.nonce)[:32] == controller.attest(device.nonce)[:32]  # its reply was lost
    message = device.hello(controller.attest(device.nonce))
    device.welcome(controller.hello(message))
    refused("nonce", controller.attest, device.nonce)
    refused("nonce", controller.hello, message)
    assert controller.counts()["sessions"] == 1


# Bounds


def test_one_gradient_moves_the_sum_no_further_than_the_clip():
    """Of 0.99e6, sealed as it should be; everybody else's are as they were."""
    controller = Direct(a_plan(gradient_clip=1.5))
    devices = joined(controller, 3)
    controller.begin(1)
    for device in devices:
        controller.submit(device.embeddings(1, device.embed(weights())))
    controller.derive(1)
    one_P = np.zeros(IN * DIM)
    one_P[3] = 1.0
    for device, length in zip(devices, (0.27, 0.99e6, 1.25)):
        assert controller.submit(device.gradient(1, length * one_P)) is None
    expected = [0.0] * (IN * DIM)
    for length in (0.27, 0.99e6, 1.25):
        for j in range(IN * DIM):
            expected[j] += min(length, 1.5) * float(one_P[j]) / 3
    assert np.allclose(controller.aggregate(1), expected, rtol=1e-6, atol=0)


def test_a_long_embedding_is_as_long_as_the_plan_allows(monkeypatch):
    seen = {}
    monkeypatch.setattr(losses, "value_and_derivatives", lambda emb_SD, *_: (0.0, seen.setdefault("emb", emb_SD) * 0))
    controller = Direct(a_plan(embedding_clip=10.0, participants=2))
    devices = joined(controller, 2)
    controller.begin(1)
    sent = np.array([[3.0, 4.0, 0.0], [3e5, 4e5, 0.0], [0.0, 0.0, 3e38], [0.0, 6.0, 8.0]])
    for device, emb_BD in zip(devices, (sent, np.ones((4, DIM)))):
        assert controller.submit(device.embeddings(1, emb_BD)) is None
    controller.derive(1)
    wanted = [[3.0, 4.0, 0.0], [6.0, 8.0, 0.0], [0.0, 0.0, 10.0], [0.0, 6.0, 8.0]]
    assert np.allclose(seen["emb"][:4], wanted, rtol=1e-12, atol=0)


# Budgets


def again(controller, device):
    """A new session of a device whose disk was put back: it is called what it was called."""
    other = Device(controller.mandate, 0)
    other.name = device.name
    other.session = other.welcome(controller.hello(other.hello(controller.attest(other.nonce))))
    return other


def test_the_enclave_counts_a_devices_rounds_whatever_session_it_comes_in():
    controller = Direct(a_plan(most=2))
    devices = joined(controller, 3)
    run_round(controller, devices, 1, weights())
    first = again(controller, devices[0])
    assert (first.used, devices[0].used, again(controller, Device(controller.mandate, 5)).used) == (1, 0, 0)
    run_round(controller, [first, *devices[1:]], 2, weights())
    controller.begin(3)
    back = again(controller, devices[0])
    assert back.used == 2
    for device in (back, first, *devices):
        assert controller.submit(device.embeddings(3, device.embed(weights()))) == "spent"
    fresh = joined(controller, 3)
    run_round(controller, fresh, 4, weights())


def test_what_was_not_used_is_not_counted():
    controller = Direct(a_plan(most=1))
    devices = joined(controller, 3)
    controller.begin(1)
    controller.submit(devices[0].embeddings(1, devices[0].embed(weights())))
    controller.begin(2)  # the round was given up before derivatives
    assert again(controller, devices[0]).used == 0
    run_round(controller, devices, 3, weights())


def test_a_copy_of_a_device_is_no_second_participant():
    controller = Direct(a_plan())
    devices = joined(controller, 3)
    copy = again(controller, devices[0])
    controller.begin(1)
    assert controller.submit(devices[0].embeddings(1, devices[0].embed(weights()))) is None
    assert controller.submit(copy.embeddings(1, copy.embed(weights()))) == "state"
    controller.forget(devices[0].session)  # what it had sent went with its session
    assert controller.submit(copy.embeddings(1, copy.embed(weights()))) is None


def test_a_device_with_another_plan_does_not_join():
    controller = Direct(a_plan())
    device = Device(a_plan(gradients=3), 0)
    with pytest.raises(SelfsameError, match="training plan"):
        device.hello(controller.attest(device.nonce))


def test_a_device_is_silent_before_its_session():
    device = Device(a_plan(), 0)
    with pytest.raises(SelfsameError, match="attested first"):
        device.embeddings(1, device.embed(weights()))
    with pytest.raises(SelfsameError, match="after a hello"):
        device.welcome(b"")
    with pytest.raises(SelfsameError, match="key"):
        device.hello(b"short")


def test_loss_and_counts_say_nothing_of_the_values():
    """Of a round, counts leave; no loss, no norms."""
    controller = Direct(a_plan())
    run_round(controller, joined(controller, 3), 1, weights())
    assert controller.counts() == {
        "accepted": {"embeddings": 3, "gradient": 3, "hello": 3},
        "refused": {},
        "sessions": 3,
        "round": 1,
        "embeddings": 3,
        "gradients": 3,
    }


def test_an_error_in_the_loss_is_a_refusal_without_words(monkeypatch):
    def fails(*_):
        raise RuntimeError("embedding 0.25 is at fault")

    controller = Direct(a_plan())
    devices = joined(controller, 3)
    controller.begin(1)
    for device in devices:
        controller.submit(device.embeddings(1, device.embed(weights())))
    monkeypatch.setattr(losses, "value_and_derivatives", fails)
    with pytest.raises(SelfsameError, match="internal: an error of the enclave's own"):
        controller.derive(1)
    assert controller.seen[-1] == b"\0internal"
