"""A thousand hostile messages of each kind: all refused and counted, the round completes as if they had not been."""

import math
import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from split_small import DIM, IN, NETWORK, Direct, OneNetwork, a_plan, joined, run_round, weights

from selfsame.enclave.message import Content, Denied, Order, clipped, pack, unpack
from selfsame.enclave.session import Enclave

THOUSAND = 1000


def messages(kind, controller, devices, rng):
    """A thousand messages of one kind for round 2, and the reasons for which they may be refused."""
    first, second = devices[0], devices[1]
    emb_BD = first.embed(weights())

    def sealed(text, field=Content.EMBEDDINGS, number=2, by=first):
        return by._channel.seal(field, number, text)

    if kind == "malformed":
        for i in range(THOUSAND):
            good = sealed(NETWORK + pack(emb_BD))
            cut, at = rng.randrange(len(good)), rng.randrange(len(good))
            yield (
                good[:cut],
                good[:at] + bytes([good[at] ^ (1 << rng.randrange(8))]) + good[at + 1 :],
                rng.randbytes(rng.randrange(300)),
                sealed(rng.randbytes(rng.randrange(80))),
            )[i % 4]
    elif kind == "replayed":
        old = [second.embeddings(2, second.embed(weights())) for _ in range(20)]
        assert controller.submit(old[-1]) is None
        for i in range(THOUSAND):
            yield old[i % 20]
    elif kind == "cross-round":
        for i in range(THOUSAND):
            yield sealed(NETWORK + pack(emb_BD), number=(1, 3, 0, 2**63)[i % 4])
    elif kind == "wrong key":
        stranger = joined(Direct(controller.mandate), len(devices))[0]
        for i in range(THOUSAND):
            message = sealed(NETWORK + pack(emb_BD), by=stranger)
            claims = devices[i % 3].session.to_bytes(8, "little")
            yield message[:1] + claims + message[9:17] + (10**6 + i).to_bytes(8, "little") + message[25:]
    elif kind == "NaN":
        for i in range(THOUSAND):
            bad = emb_BD.copy()
            bad.flat[rng.randrange(bad.size)] = (np.nan, np.inf, -np.inf)[i % 3]
            yield sealed(NETWORK + pack(bad))
    elif kind == "wrong shape":
        for i in range(THOUSAND):
            rows, columns = ((5, DIM), (4, DIM + 1), (1, DIM - 1), (0, DIM), (2, 1))[i % 5]
            yield sealed(NETWORK + pack(np.ones((rows, columns))))


ALLOWED = {
    "malformed": {"size", "session", "field", "round", "replayed", "seal", "dtype", "shape"},
    "replayed": {"replayed"},
    "cross-round": {"round"},
    "wrong key": {"seal"},
    "NaN": {"finite"},
    "wrong shape": {"shape"},
}


@pytest.mark.parametrize("kind", ALLOWED)
def test_a_thousand_of_each_are_refused_and_counted(kind):
    quiet = Direct(a_plan())
    calm = joined(quiet, 3)
    run_round(quiet, calm, 1, weights())
    expected, _ = run_round(quiet, calm, 2, weights())

    with OneNetwork(a_plan()) as controller:
        devices = joined(controller, 3)
        run_round(controller, devices, 1, weights())
        controller.begin(2)
        hostile = messages(kind, controller, devices, random.Random(1))
        reasons = Counter(controller.submit(message) for message in hostile)
        assert sum(reasons.values()) == THOUSAND and None not in reasons
        assert set(reasons) <= ALLOWED[kind]
        assert controller.counts()["refused"] == dict(reasons)

        for i, device in enumerate(devices):
            if kind != "replayed" or i != 1:  # whose embeddings are in: they were replayed after that
                assert controller.submit(device.embeddings(2, device.embed(weights()))) is None
        sent = controller.derive(2)
        for device in devices:
            grad_P = device.pull_back(device.derivatives(2, sent[device.session]))
            assert controller.submit(device.gradient(2, grad_P)) is None
        assert np.array_equal(controller.aggregate(2), expected)


def test_a_thousand_hostile_gradients_are_refused_and_counted():
    controller = Direct(a_plan())
    devices = joined(controller, 3)
    controller.begin(1)
    for device in devices:
        controller.submit(device.embeddings(1, device.embed(weights())))
    sent = controller.derive(1)
    grads = [device.pull_back(device.derivatives(1, sent[device.session])) for device in devices]
    rng, reasons = random.Random(2), Counter()
    for i in range(THOUSAND):
        device = devices[i % 3]
        bad = np.ones(IN * DIM)
        bad[rng.randrange(bad.size)] = (np.nan, np.inf, -np.inf, 1.0)[i % 4]
        reasons[controller.submit(device.gradient(1, bad if i % 4 < 3 else np.ones(IN * DIM + 1)))] += 1
    assert reasons == {"finite": 750, "shape": 250}
    for device, grad_P in zip(devices, grads):
        assert controller.submit(device.gradient(1, grad_P)) is None
    assert np.allclose(controller.aggregate(1), np.mean(grads, 0), rtol=1e-5, atol=1e-8)
    assert controller.counts()["refused"] == dict(reasons)


@given(st.lists(st.binary(max_size=120), max_size=8), st.integers(0, 9))
def test_any_frames_get_an_answer(frames, first):
    enclave = Enclave(a_plan())
    for frame in [*frames, *(bytes([first]) + frame for frame in frames)]:
        answer = enclave.handle(frame)
        assert answer[:1] in (b"\0", b"\1")
    assert enclave.refused["internal"] == 0


@given(st.data())
def test_hostile_frames_do_not_move_a_round(data):
    """Any bytes that are not sealed by a session leave the counts of what was taken as they were."""
    controller = Direct(a_plan())
    (device,) = joined(controller, 1)
    controller.begin(1)
    good = device.embeddings(1, device.embed(weights()))
    for _ in range(4):
        at = data.draw(st.integers(0, len(good) - 1))
        flip = data.draw(st.integers(1, 255))
        frame = bytes([Order.SEALED]) + good[:at] + bytes([good[at] ^ flip]) + good[at + 1 :]
        assert controller.enclave.handle(frame)[:1] == b"\0"
    assert controller.counts()["embeddings"] == 0
    assert controller.submit(good) is None


@given(st.binary(max_size=100), st.integers(1, 4), st.integers(1, 4))
def test_any_bytes_are_a_matrix_of_that_shape_or_refused(text, rows, columns):
    try:
        array = unpack(text, rows, columns)
    except Denied:
        return
    assert 1 <= array.shape[0] <= rows and array.shape[1] == columns
    assert np.isfinite(array).all()
    assert pack(array) == text


@given(st.integers(1, 5), st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_what_is_packed_is_unpacked(rows, columns, seed):
    array = np.random.default_rng(seed).normal(size=(rows, columns))
    assert np.array_equal(unpack(pack(array), 5, columns), array.astype(np.float32))


def test_each_rule_of_the_parser():
    good = pack(np.ones((2, 3)))
    for text, reason in (
        (b"", "size"),
        (good[:8], "size"),
        (good[:-1], "size"),
        (good + b"\0", "size"),
        (b"\2" + good[1:], "dtype"),
        (pack(np.ones((3, 3))), "shape"),
        (pack(np.ones((2, 2))), "shape"),
        (pack(np.full((2, 3), np.nan)), "finite"),
    ):
        with pytest.raises(Denied) as caught:
            unpack(text, 2, 3)
        assert caught.value.reason == reason
    assert unpack(pack(np.full((2, 3), 3e38)), 2, 3).shape == (2, 3)


@given(st.lists(st.floats(-(2.0**127), 2.0**127, width=32), min_size=3, max_size=3), st.floats(1e-3, 1e6))
def test_rows_are_clipped_by_hand(values, longest):
    """In plain Python: what is no longer than the bound stays as it is, what is longer is as long."""
    array = np.array([values, [0.0, 0.0, 0.0]], np.float32)
    got = clipped(array, longest)
    length = math.hypot(*(float(value) for value in array[0]))
    factor = longest / length if length > longest else 1.0
    for value, wanted in zip(got[0], array[0]):
        assert math.isclose(value, float(wanted) * factor, rel_tol=1e-12)
    assert not got[1].any()
    if length <= longest * (1 - 1e-12):
        assert np.array_equal(got[0], array[0].astype(np.float64))
