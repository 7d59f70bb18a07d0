"""Masks and records: what comes off is what was put on, and a record is good for one thing alone."""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import os

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from selfsame.enclave.ledger import Ledger, Rules
from selfsame.enclave.masks import NUMBERS, add_masks, mask_key, masks_of
from selfsame.enclave.message import Denied
from selfsame.enclave.records import (
    Context,
    Record,
    check_signature,
    group_digest,
    node_name,
    open_record,
    seal_record,
)
from selfsame.enclave.release import Asked, mask_keys

KEYS = [ec.derive_private_key(7 + number, ec.SECP384R1()) for number in range(4)]
PEM = [key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo) for key in KEYS]
NAMES = [node_name(pem) for pem in PEM]
REGISTER = dict(zip(NAMES, PEM, strict=True))
HELPER = X25519PrivateKey.from_private_bytes(bytes(range(32)))
RECIPIENT = HELPER.public_key().public_bytes_raw()
PLAN, NETWORK = b"p" * 32, b"n" * 32


def context(**other) -> Context:
    return Context(**{"run": "r", "plan": PLAN, "round": 0, "group": group_digest(NAMES), "network": NETWORK, **other})


def records(where: Context | None = None) -> list[Record]:
    return [
        seal_record(bytes([number]) * 32, RECIPIENT, where or context(), key, name)
        for number, (key, name) in enumerate(zip(KEYS, NAMES, strict=True))
    ]


def asked(found, **other) -> Asked:
    whole = {"run": "r", "plan": PLAN, "round": 0, "members": tuple(NAMES), "network": NETWORK, **other}
    return Asked(records=tuple(found), **whole)


@pytest.mark.parametrize("bits", [16, 32])
def test_a_mask_is_the_stream_of_aes(bits):
    """By hand: HKDF (RFC 5869) with HMAC, then AES-128 in counter mode on zeros, then numbers, little end first."""
    seed, digest = bytes(range(32)), context().digest()
    pseudo = hmac.digest(bytes(32), seed, "sha256")
    key = hmac.digest(pseudo, b"selfsame mask 1" + digest + b"\x01", "sha256")[:16]
    assert mask_key(seed, digest) == key
    stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor().update(bytes(4 * 150_000))
    size = bits // 8
    expected = [int.from_bytes(stream[size * n : size * (n + 1)], "little") for n in (0, 1, 777, 149_999)]
    found = masks_of([key], 150_000, bits)
    assert [int(found[n]) for n in (0, 1, 777, 149_999)] == expected


@given(st.integers(1, 70_000), st.integers(0, 5), st.sampled_from([16, 32]), st.integers(0, 2**32))
def test_what_is_put_on_comes_off(numbers, count, bits, seed):
    draw = np.random.default_rng(seed)
    before = draw.integers(0, 2**bits, numbers).astype(NUMBERS[bits])
    keys = [draw.bytes(16) for _ in range(count)]
    value = before.copy()
    add_masks(value, keys)
    assert np.array_equal(value - masks_of(keys, numbers, bits), before)


def test_the_context_holds_everything():
    """By hand, and no two of them alike."""
    parts = [b"r", PLAN, (0).to_bytes(8, "little"), group_digest(NAMES), NETWORK]
    text = b"selfsame context 1\n" + b"".join(len(part).to_bytes(8, "little") + part for part in parts)
    assert context().digest() == hashlib.sha256(text).digest()
    others = [context(run="s"), context(plan=NETWORK), context(round=1), context(group=PLAN), context(network=PLAN)]
    assert len({one.digest() for one in (context(), *others)}) == 6
    assert group_digest(NAMES) == group_digest(NAMES[::-1]) != group_digest(NAMES[:3])


@pytest.mark.parametrize(
    "other",
    [{"run": "s"}, {"plan": NETWORK}, {"round": 1}, {"group": PLAN}, {"network": PLAN}],
    ids=lambda o: next(iter(o)),
)
def test_a_record_is_good_for_its_context_alone(other):
    record = records()[0]
    assert open_record(record, HELPER, context()) == bytes(32)
    check_signature(record, RECIPIENT, context(), PEM[0])
    with pytest.raises(Denied):
        open_record(record, HELPER, context(**other))
    with pytest.raises(Denied):
        check_signature(record, RECIPIENT, context(**other), PEM[0])


def test_a_record_is_by_one_device_for_one_helper():
    record, another = records()[0], X25519PrivateKey.generate()
    with pytest.raises(Denied):
        check_signature(record, RECIPIENT, context(), PEM[1])
    with pytest.raises(Denied):
        check_signature(record, another.public_key().public_bytes_raw(), context(), PEM[0])
    with pytest.raises(Denied):
        open_record(record, another, context())
    assert Record.unpack(record.pack()) == record


@given(st.integers(0, 263), st.integers(1, 255))
def test_a_changed_record_is_never_taken(place, change):
    """Any byte of one of four records: nothing is released, and the ledger is as it was."""
    found = records_once()
    data = bytearray(found[1].pack())
    data[place] ^= change
    ledger = Ledger(Rules(4, 2, 0, 10))
    with pytest.raises(Denied) as refusal:
        mask_keys(asked([found[0], Record.unpack(bytes(data)), *found[2:]]), REGISTER, HELPER, ledger)
    assert refusal.value.reason in ("device", "group", "network", "signature", "seal", "twice", "stand-in")
    assert not ledger.groups


_made: list[Record] = []


def records_once() -> list[Record]:
    if not _made:
        _made.extend(records())
    return _made


def test_a_release_and_what_breaks_it():
    found, ledger = records_once(), Ledger(Rules(4, 3, 0, 10))
    keys = [mask_key(bytes([number]) * 32, context().digest()) for number in range(4)]

    def refused(these, register=REGISTER, **other) -> tuple[str, tuple[str, ...]]:
        with pytest.raises(Denied) as refusal:
            mask_keys(asked(these, **other), register, HELPER, ledger)
        assert not ledger.groups
        return refusal.value.reason, refusal.value.nodes

    less = {name: pem for name, pem in REGISTER.items() if name != NAMES[2]}
    assert refused(found, less) == ("device", (NAMES[2],))  # nobody whom the server made up
    assert refused(found[:2])[0] == "few"
    assert refused([*found, found[0]])[0] == "twice"
    elsewhere = records(context(network=os.urandom(32)))
    assert refused([*found[:3], elsewhere[3]]) == ("network", (NAMES[3],))  # it was sent another network
    assert refused(elsewhere, network=elsewhere[0].network[::-1])[0] == "network"
    assert refused(records(context(run="s")))[0] == "signature"
    assert refused(records(context(plan=b"q" * 32)))[0] == "signature"
    assert refused(records(context(group=group_digest(NAMES[:3]))))[0] == "group"
    short = seal_record(b"short", RECIPIENT, context(), KEYS[0], NAMES[0])
    assert refused([short, *found[1:]]) == ("seal", (NAMES[0],))
    mine = [dataclasses.replace(found[0], node=bytes.fromhex(NAMES[1])), *found[2:]]
    assert refused(mine) == ("signature", (NAMES[1],))
    assert mask_keys(asked(found), REGISTER, HELPER, ledger) == keys
    assert mask_keys(asked(found), REGISTER, HELPER, ledger) == keys  # the same again
    with pytest.raises(Denied, match="twice"):
        mask_keys(asked(found[:3]), REGISTER, HELPER, ledger)
