"""The enclave that adds up: what goes into a sum, which sums come out, and what hostile frames do to it."""

import functools
import hashlib
import json
import math
import random
import struct
import threading
from collections import Counter

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from selfsame.deploy.aggregation.enclave import SumController
from selfsame.enclave.adder import Adder, record_size, register_bytes, register_digest, update_bytes
from selfsame.enclave.mandate import Mandate, SumPlan, read_plan
from selfsame.enclave.message import Denied, Order, pack
from selfsame.enclave.records import Context, Record, group_digest, node_name, seal_record
from selfsame.errors import SelfsameError

PARAMETERS, NETWORK, TERMS = 6, b"n" * 32, "ab" * 32
THOUSAND = 1000


@functools.cache
def private(number):
    return ec.derive_private_key(7000 + number, ec.SECP384R1())


@functools.cache
def public(number):
    return private(number).public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def name(number):
    return node_name(public(number))


def a_plan(devices=4, **changes):
    whole = {
        "run": "a run",
        "terms": TERMS,
        "register": register_digest(public(number) for number in range(devices)),
        "parameters": PARAMETERS,
        "clip": 2.0,
        "cap": 10,
        "noise": 0.0,
        "group": 3,
        "least": 2,
        "stand_ins": 0,
        "rounds": 50,
    }
    return SumPlan(**(whole | changes))


class Direct(SumController):
    """A controller whose enclave is an object, and a group of its devices."""

    def __init__(self, plan=None, devices=4, **options):
        self.plan, self._lock = plan or a_plan(devices), threading.Lock()
        self.enclave = Adder(self.plan, **options)
        self._ask(Order.REGISTER, register_bytes(public(number) for number in range(devices)))
        self.key = self.attest(bytes(32))[:32]

    def _exchange(self, body):
        return self.enclave.handle(body)

    def begin(self, round, members=(0, 1, 2), network=NETWORK):
        self.open(round, network, [name(number) for number in members])

    def sealed(self, number, round, update, weight=1, members=(0, 1, 2), network=NETWORK, text=None, **changes):
        """The record of a device's update; `changes` are of its context, or another key to seal to or to sign with."""
        to, by = changes.pop("to", self.key), changes.pop("by", number)
        whole = {"run": "a run", "plan": bytes.fromhex(TERMS), "round": round, "network": network}
        context = Context(**(whole | {"group": group_digest([name(one) for one in members])} | changes))
        text = update_bytes(np.asarray(update, float), weight) if text is None else text
        return seal_record(text, to, context, private(by), name(number)).pack()


def refused(reason, call, *args):
    with pytest.raises(SelfsameError, match=f"{reason}:"):
        call(*args)


def vectors(seed, count=3):
    return np.random.default_rng(seed).normal(size=(count, PARAMETERS)).astype(np.float32)


def test_a_sum_by_hand():
    """Each update clipped in L2, weighed with at most the cap, added up in plain loops."""
    one, update_MP, weight_M = Direct(), vectors(0), (3, 12, 1)
    update_MP[0] *= 100
    one.begin(0)
    for number in range(3):
        assert one.add(one.sealed(number, 0, update_MP[number], weight_M[number])) is None
    sum_P, weight = one.release(0)
    expected = [0.0] * PARAMETERS
    for number in range(3):
        length = math.sqrt(sum(float(value) ** 2 for value in update_MP[number]))
        for p in range(PARAMETERS):
            factor = min(1.0, 2.0 / length) * min(weight_M[number], 10)
            expected[p] += float(update_MP[number][p]) * factor
    assert weight == 3 + 10 + 1 and np.allclose(sum_P, expected, rtol=1e-12, atol=0)


def test_a_weight_of_nothing_is_nothing():
    one = Direct()
    one.begin(0)
    for number in range(3):
        one.add(one.sealed(number, 0, vectors(1)[number], weight=0))
    sum_P, weight = one.release(0)
    assert weight == 0 and not sum_P.any()


def test_noise_is_added_once_for_all():
    """Every uniform number one half: sqrt(2 ln 2) cos(pi) deviations on every number of the sum."""
    half = b"\x00" * 7 + b"\x80" + b"\x00" * 8
    one = Direct(a_plan(noise=0.25, cap=1), draw=lambda count: half * (count // 16))
    update_MP = vectors(2) / 10
    one.begin(0)
    for number in range(3):
        one.add(one.sealed(number, 0, update_MP[number]))
    shift = -0.25 * 2.0 * math.sqrt(2 * math.log(2))
    sum_P, _ = one.release(0)
    assert np.allclose(sum_P, update_MP.astype(float).sum(0) + shift, rtol=0, atol=1e-6)
    one.begin(0)  # the very same again, under other noise
    for number in range(3):
        one.add(one.sealed(number, 0, update_MP[number]))
    refused("twice", one.release, 0)


def test_one_set_a_round_and_enough_of_it():
    one = Direct()
    one.begin(4)
    refused("few", one.release, 4)
    assert one.add(one.sealed(0, 4, vectors(3)[0])) is None
    refused("few", one.release, 4)
    assert one.add(one.sealed(0, 4, vectors(3)[1])) == "twice"
    assert one.add(one.sealed(1, 4, vectors(3)[1])) is None
    assert one.release(4)[1] == 2  # the third never answered: zero
    refused("round", one.release, 4)
    for again in (4, 3):
        one.begin(again)
        for number in range(3):
            assert one.add(one.sealed(number, again, vectors(4)[number])) is None
        refused("twice", one.release, again)
    one.begin(50)
    for number in range(3):
        one.add(one.sealed(number, 50, vectors(4)[number]))
    refused("round", one.release, 50)  # the plan has rounds 0 to 49


def a_round(one, round, answering, members=(0, 1, 2), seed=0):
    """One round with what the server has of those who do not answer; what it keeps."""
    one.begin(round, members)
    kept = {number: one.sealed(number, round, vectors(seed, 9)[number], members=members) for number in answering}
    assert [one.add(record) for record in kept.values()] == [None] * len(kept)
    return kept


def test_what_stands_in_is_what_was_released_last():
    one = Direct()
    first = a_round(one, 0, (0, 1, 2), seed=5)
    one.release(0)
    a_round(one, 1, (0, 1), seed=6)
    refused("stand-in", one.release, 1)  # device 2 is missing
    assert one.add(one.sealed(2, 0, vectors(7)[2])) == "stand-in"  # its, of that round, but not what was released
    assert one.add(first[2]) is None
    assert one.add(first[2]) == "twice"
    sum_P, weight = one.release(1)
    expected = sum(np.clip(2 / np.linalg.norm(v), None, 1) * v for v in (*vectors(6, 9)[:2], vectors(5, 9)[2]))
    assert weight == 3 and np.allclose(sum_P, expected, rtol=1e-6)
    a_round(one, 2, (1, 2), seed=8)
    assert one.add(first[0]) == "stand-in"  # there is a later one
    a_round(one, 3, (0, 1))
    assert one.add(first[2]) is None  # what was not released in round 2 stands in for nobody
    one.release(3)


def test_stand_ins_are_counted_and_end():
    one = Direct(a_plan(stand_ins=1))
    first = a_round(one, 0, (0, 1, 2))
    one.release(0)
    a_round(one, 1, (0, 1))
    assert one.add(first[2]) is None
    one.release(1)
    a_round(one, 2, (0, 1))
    assert one.add(first[2]) == "stand-in"
    assert one.release(2)[1] == 2  # from now on it counts as nothing, until it answers
    a_round(one, 3, (0, 1, 2))
    assert one.release(3)[1] == 3


def test_groups_are_whole():
    one = Direct(devices=8)
    refused("size", one._ask, Order.OPEN, b"short")
    refused("group", one.begin, 0, (0, 1, 1))
    refused("device", one.begin, 0, (0, 1, 9))
    a_round(one, 0, (0, 1), (0, 1))
    refused("few", one.release, 0)  # smaller than the plan's groups
    a_round(one, 0, (0, 1, 2))
    one.release(0)
    a_round(one, 1, (0, 1, 3), (0, 1, 3))
    refused("group", one.release, 1)  # another group with some of the same devices
    a_round(one, 1, (3, 4, 5), (3, 4, 5))
    one.release(1)
    a_round(one, 2, range(6), range(6))  # two whole groups as one
    one.release(2)
    a_round(one, 3, (0, 1, 2))
    refused("group", one.release, 3)  # and never apart again


def test_whose_record_it_is_and_for_what():
    one, update_P = Direct(), vectors(9)[0]
    assert one.add(one.sealed(0, 0, update_P)) == "state"
    one.begin(5)
    assert one.add(one.sealed(0, 4, update_P)) == "stand-in"
    assert one.add(one.sealed(3, 5, update_P)) == "device"  # registered, but of another group
    assert one.add(one.sealed(0, 5, update_P, members=(0, 1, 3))) == "group"
    assert one.add(one.sealed(0, 5, update_P, network=bytes(32))) == "network"
    assert one.add(one.sealed(0, 5, update_P, by=1)) == "signature"
    assert one.add(one.sealed(0, 5, update_P, run="another")) == "signature"
    assert one.add(one.sealed(0, 5, update_P, plan=bytes(32))) == "signature"
    assert one.add(one.sealed(0, 5, update_P, to=Direct().key)) == "signature"
    good = Record.unpack(one.sealed(0, 5, update_P))
    other = Record.unpack(one.sealed(0, 5, update_P))
    moved = Record(good.node, 5, good.group, good.network, other.sealed, good.signature)
    assert one.add(moved.pack()) == "signature"
    assert one.add(good.pack()) is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "size"),
        (b"\1\0\0", "size"),
        (struct.pack("<I", 1) + pack(np.full((1, PARAMETERS), np.nan)), "finite"),
        (struct.pack("<I", 1) + pack(np.full((1, PARAMETERS), -np.inf)), "finite"),
        (struct.pack("<I", 1) + pack(np.ones((1, PARAMETERS + 1))), "shape"),
        (struct.pack("<I", 1) + pack(np.ones((2, PARAMETERS))), "shape"),
        (struct.pack("<I", 1) + pack(np.ones((1, PARAMETERS))) + b"\0", "size"),
        (struct.pack("<I", 1) + b"\2" + pack(np.ones((1, PARAMETERS)))[1:], "dtype"),
    ],
)
def test_bad_updates_are_refused_and_a_good_one_is_still_taken(text, reason):
    one = Direct()
    one.begin(0)
    assert one.add(one.sealed(0, 0, (), text=text)) == reason
    assert one.add(one.sealed(0, 0, vectors(1)[0])) is None
    assert one.counts()["refused"] == {reason: 1}


def test_an_absurd_update_is_as_long_as_the_clip():
    one = Direct(a_plan(cap=1))
    one.begin(0)
    for number, scale in enumerate((0.0, 3e38, 0.0)):
        one.add(one.sealed(number, 0, np.eye(PARAMETERS)[number] * scale, weight=2**32 - 1))
    sum_P, weight = one.release(0)
    assert weight == 3 and np.allclose(sum_P, 2.0 * np.eye(PARAMETERS)[1], rtol=1e-12)


def test_the_enclave_holds_one_sum_and_no_update():
    """What it has at the end of a round of many devices is as large as with one."""
    one = Direct(devices=9)
    one.begin(0, range(9))
    for number in range(9):
        one.add(one.sealed(number, 0, vectors(1, 9)[number], members=range(9)))
        held = [value for value in vars(one.enclave._open).values() if isinstance(value, np.ndarray)]
        assert len(held) == 1 and held[0].nbytes == 8 * PARAMETERS
    one.release(0)
    assert one.enclave._open is None


def test_another_process_opens_nothing_old():
    one, two = Direct(), Direct()
    assert one.key != two.key
    kept = a_round(one, 0, (0, 1, 2))
    one.release(0)
    two.begin(1)
    assert two.add(kept[2]) == "stand-in"
    two.begin(0)
    assert two.add(kept[2]) == "signature"  # it was signed for the other's key


def test_the_register_is_the_plans():
    one = Direct()
    refused("device", one._ask, Order.REGISTER, register_bytes([public(0), public(1)]))
    refused("device", one._ask, Order.REGISTER, b"")
    keys = [public(number) for number in (3, 1, 0, 2)]
    one._ask(Order.REGISTER, register_bytes(keys))
    assert one.plan.register == hashlib.sha256(b"selfsame register 1\n" + b"\0".join(sorted(keys))).hexdigest()


# The plan


def test_a_plan_of_sums_is_written_in_one_way():
    plan = a_plan()
    assert SumPlan.read(plan.canonical()) == read_plan(plan.canonical()) == plan
    assert plan.canonical() == json.dumps(json.loads(plan.canonical()), sort_keys=True, separators=(",", ":")).encode()
    with pytest.raises(ValueError, match="plan"):
        Mandate.read(plan.canonical())
    digests = {a_plan(**{name: value}).digest() for name, value in CHANGED.items()}
    assert len(digests | {plan.digest()}) == len(CHANGED) + 1


CHANGED = {
    "run": "b", "terms": "0" * 64, "register": "1" * 64, "parameters": 7, "clip": 2.5, "cap": 11, "group": 4,
    "least": 3, "stand_ins": 1, "rounds": 51,
}  # fmt: skip


@pytest.mark.parametrize(
    "bad",
    [
        {"run": ""}, {"run": 3}, {"terms": "ab"}, {"terms": "AB" * 32}, {"register": 7}, {"parameters": 0},
        {"clip": 0.0}, {"clip": 1}, {"clip": math.nan}, {"cap": 0}, {"noise": -1.0}, {"noise": 1.0}, {"noise": 0},
        {"group": 1}, {"least": 1}, {"least": 4}, {"stand_ins": -1}, {"rounds": True},
    ],
)  # fmt: skip
def test_bad_plans(bad):
    with pytest.raises(ValueError, match="plan"):
        a_plan(**bad)


# Hostile frames


def hostile(kind, one, rng):
    """A thousand records of one kind, for round 2 of an enclave that has released two; device 1 has answered."""
    good, update_P = one.sealed(0, 2, vectors(0)[0]), vectors(0)[0]
    for i in range(THOUSAND):
        at = rng.randrange(len(good))
        if kind == "malformed":
            yield (
                good[:at],
                good[:at] + bytes([good[at] ^ (1 << rng.randrange(8))]) + good[at + 1 :],
                rng.randbytes(rng.randrange(600)),
            )[i % 3]
        elif kind == "wrong signature":
            record = Record.unpack(good)
            yield Record(record.node, 2, record.group, record.network, record.sealed, rng.randbytes(96)).pack()
        elif kind == "wrong context":
            what, value = CONTEXTS[i % 4]
            yield one.sealed(0, 2, update_P, **{what: value}) if i < 20 else good[:16] + bytes([3 + i % 9]) + good[17:]
        elif kind == "replayed":
            yield one.kept[(0, 2)[i % 2]]


CONTEXTS = [("run", "x"), ("plan", bytes(32)), ("network", bytes(32)), ("members", (0, 1, 3))]
ALLOWED = {
    "malformed": {"size", "device", "twice", "signature", "group", "network", "stand-in"},
    "wrong signature": {"signature"},
    "wrong context": {"signature", "network", "group", "stand-in"},
    "replayed": {"stand-in"},
}


@pytest.mark.parametrize("kind", ALLOWED)
def test_a_thousand_of_each_are_refused_and_change_nothing(kind):
    calm, one = Direct(), Direct()
    for each in (calm, one):
        each.kept = a_round(each, 0, (0, 1, 2))
        each.release(0)
        a_round(each, 1, (0, 1, 2), seed=1)
        each.release(1)
    one.begin(2)
    assert one.add(one.sealed(1, 2, vectors(3)[1])) is None
    one.enclave.refused.clear()
    reasons = Counter(one.add(record) for record in hostile(kind, one, random.Random(1)))
    assert None not in reasons and set(reasons) <= ALLOWED[kind]
    assert sum(reasons.values()) == THOUSAND and one.counts()["refused"] == dict(reasons)
    calm.begin(2)
    calm.add(calm.sealed(1, 2, vectors(3)[1]))
    for each in (calm, one):
        for number in (0, 2):
            assert each.add(each.sealed(number, 2, vectors(3)[number])) is None
    assert np.array_equal(calm.release(2)[0], one.release(2)[0])


@given(st.lists(st.binary(max_size=120), max_size=8), st.integers(0, 13))
def test_any_frames_get_an_answer(frames, first):
    adder = Adder(a_plan())
    for frame in [*frames, *(bytes([first]) + frame for frame in frames)]:
        assert adder.handle(frame)[:1] in (b"\0", b"\1")
    assert adder.refused["internal"] == 0


def test_a_process_adds_up():
    """As the server starts it; a plan of sums makes an enclave that knows no split rounds."""
    plan = a_plan()
    with SumController(plan, [public(number) for number in range(4)], limit=60.0) as one:
        double = Direct(plan)
        double.key = one.attest(bytes(32))[:32]
        one.open(0, NETWORK, [name(number) for number in range(3)])
        for number in range(3):
            assert one.add(double.sealed(number, 0, vectors(1)[number])) is None
        assert one.release(0)[1] == 3
        assert one.counts()["accepted"] == {"update": 3, "release": 1}
        with pytest.raises(Denied, match="frame"):
            one._frame(bytes([Order.HELLO]) + bytes(112))
        with pytest.raises(Denied, match="size"):
            one._frame(bytes((1 << 24) + 300))
    with pytest.raises(SelfsameError, match="device"):
        SumController(plan, [public(0)], limit=60.0)


def test_a_record_is_as_long_as_it_is_said_to_be():
    assert len(Direct().sealed(0, 0, vectors(0)[0])) == record_size(PARAMETERS)
