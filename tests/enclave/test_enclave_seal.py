"""Sealing: what was sealed opens once, in its order, round, direction and session, and nothing else opens."""

import os

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from selfsame.enclave import seal
from selfsame.enclave.message import Content, Denied

PLAN, DEVICE, USED = bytes(range(32)), bytes(range(32, 64)), 7


def pair(session=5, private=None, plan=PLAN):
    """Both ends of a session: the device's and the enclave's."""
    private = private or X25519PrivateKey.generate()
    key, nonce = private.public_key().public_bytes_raw(), os.urandom(32)
    message, secret = seal.hello(key, nonce, plan, DEVICE)
    theirs, welcome = answer(private, plan, session, message)
    return seal.welcomed(key, plan, message, secret, welcome)[0], theirs


def answer(private, plan, session, message):
    """The enclave's part of an opening."""
    secret, device = seal.heard(private, plan, message)
    assert device == DEVICE
    return seal.answer(private, plan, session, message, secret, USED)


def refusal(reason, call, *args):
    with pytest.raises(Denied) as caught:
        call(*args)
    assert caught.value.reason == reason


@given(st.binary(max_size=200), st.integers(0, 2**64 - 1))
def test_what_is_sealed_opens(text, number):
    device, enclave = pair()
    assert enclave.open(Content.EMBEDDINGS, number, device.seal(Content.EMBEDDINGS, number, text)) == text
    assert device.open(Content.DERIVATIVES, number, enclave.seal(Content.DERIVATIVES, number, text)) == text


def test_the_text_is_not_in_the_message():
    device, _ = pair()
    text = os.urandom(64)
    message = device.seal(Content.GRADIENT, 1, text)
    assert text not in message and text[:8] not in message
    assert len(message) == len(text) + seal.OVERHEAD


def test_replayed_and_reordered():
    device, enclave = pair()
    first, second, third = (device.seal(Content.EMBEDDINGS, 1, b"x") for _ in range(3))
    enclave.open(Content.EMBEDDINGS, 1, first)
    refusal("replayed", enclave.open, Content.EMBEDDINGS, 1, first)
    enclave.open(Content.EMBEDDINGS, 1, third)  # the second was lost on its way: allowed
    refusal("replayed", enclave.open, Content.EMBEDDINGS, 1, second)


def test_a_later_number_on_an_old_message_does_not_open():
    device, enclave = pair()
    message = device.seal(Content.EMBEDDINGS, 1, b"x")
    enclave.open(Content.EMBEDDINGS, 1, message)
    refusal("seal", enclave.open, Content.EMBEDDINGS, 1, message[:17] + (9).to_bytes(8, "little") + message[25:])


def test_another_round():
    device, enclave = pair()
    message = device.seal(Content.EMBEDDINGS, 1, b"x")
    refusal("round", enclave.open, Content.EMBEDDINGS, 2, message)
    moved = message[:9] + (2).to_bytes(8, "little") + message[17:]
    refusal("seal", enclave.open, Content.EMBEDDINGS, 2, moved)


def test_another_field():
    device, enclave = pair()
    message = device.seal(Content.EMBEDDINGS, 1, b"x")
    refusal("field", enclave.open, Content.GRADIENT, 1, message)
    refusal("seal", enclave.open, Content.GRADIENT, 1, bytes([Content.GRADIENT]) + message[1:])


def test_another_session_and_direction():
    private = X25519PrivateKey.generate()
    device, enclave = pair(5, private)
    other, _ = pair(6, private)
    message = other.seal(Content.EMBEDDINGS, 1, b"x")
    refusal("session", enclave.open, Content.EMBEDDINGS, 1, message)
    refusal("seal", enclave.open, Content.EMBEDDINGS, 1, message[:1] + (5).to_bytes(8, "little") + message[9:])
    device.seal(Content.EMBEDDINGS, 1, b"the welcome had number one")
    refusal("seal", device.open, Content.EMBEDDINGS, 1, device.seal(Content.EMBEDDINGS, 1, b"back to its sender"))


def test_every_changed_byte_and_every_cut_is_refused():
    device, enclave = pair()
    message = device.seal(Content.EMBEDDINGS, 1, b"sixteen bytes ok")
    for i in range(len(message)):
        with pytest.raises(Denied):
            enclave.open(Content.EMBEDDINGS, 1, message[:i] + bytes([message[i] ^ 1]) + message[i + 1 :])
        with pytest.raises(Denied):
            enclave.open(Content.EMBEDDINGS, 1, message[:i])
    refusal("seal", enclave.open, Content.EMBEDDINGS, 1, message + b"\0")
    assert enclave.open(Content.EMBEDDINGS, 1, message) == b"sixteen bytes ok"  # none of that moved the channel


def test_a_hello_for_another_key_plan_or_nonce():
    private, other = X25519PrivateKey.generate(), X25519PrivateKey.generate()
    key, nonce = private.public_key().public_bytes_raw(), os.urandom(32)
    message, _ = seal.hello(key, nonce, PLAN, DEVICE)
    refusal("seal", seal.heard, other, PLAN, message)
    refusal("seal", seal.heard, private, bytes(32), message)
    refusal("seal", seal.heard, private, PLAN, bytes(32) + message[32:])
    for i in range(32, len(message)):
        with pytest.raises(Denied):
            seal.heard(private, PLAN, message[:i] + bytes([message[i] ^ 1]) + message[i + 1 :])
        with pytest.raises(Denied):
            seal.heard(private, PLAN, message[:i])
    refusal("seal", seal.heard, private, PLAN, nonce + bytes(112))  # a point of low order
    refusal("size", seal.heard, private, PLAN, seal.hello(key, nonce, PLAN, b"a short name")[0])


def test_the_same_hello_never_makes_the_same_keys():
    private = X25519PrivateKey.generate()
    key, nonce = private.public_key().public_bytes_raw(), os.urandom(32)
    message, secret = seal.hello(key, nonce, PLAN, DEVICE)
    first, welcome = answer(private, PLAN, 1, message)
    second, _ = answer(private, PLAN, 1, message)
    assert first.sending != second.sending and first.receiving != second.receiving
    device, used = seal.welcomed(key, PLAN, message, secret, welcome)
    assert used == USED
    refusal("seal", second.open, Content.EMBEDDINGS, 1, device.seal(Content.EMBEDDINGS, 1, b"x"))


def test_a_changed_welcome_is_refused():
    private = X25519PrivateKey.generate()
    key = private.public_key().public_bytes_raw()
    message, secret = seal.hello(key, os.urandom(32), PLAN, DEVICE)
    _, welcome = answer(private, PLAN, 1, message)
    for i in range(len(welcome)):
        with pytest.raises(Denied):
            seal.welcomed(key, PLAN, message, secret, welcome[:i] + bytes([welcome[i] ^ 1]) + welcome[i + 1 :])
    refusal("size", seal.welcomed, key, PLAN, message, secret, welcome[:-1])
    refusal("seal", seal.welcomed, key, bytes(32), message, secret, welcome)
    assert seal.welcomed(key, PLAN, message, secret, welcome)[0].session == 1


def test_keys_by_hand():
    """HKDF-SHA256 as RFC 5869 writes it, over everything that was said."""
    import hashlib
    import hmac

    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    private = X25519PrivateKey.generate()
    key = private.public_key().public_bytes_raw()
    message, secret = seal.hello(key, os.urandom(32), PLAN, DEVICE)
    _, welcome = answer(private, PLAN, 9, message)
    device, _ = seal.welcomed(key, PLAN, message, secret, welcome)
    said = hashlib.sha256(key + PLAN + (9).to_bytes(8, "little") + message).digest()
    prk = hmac.new(welcome[8:40], secret, hashlib.sha256).digest()
    info = b"selfsame keys 2" + said
    up = hmac.new(prk, info + b"\1", hashlib.sha256).digest()
    down = hmac.new(prk, up + info + b"\2", hashlib.sha256).digest()
    sent = device.seal(Content.EMBEDDINGS, 3, b"up")

    def opened(key, message):
        prk = hmac.new(message[25:57], key, hashlib.sha256).digest()
        once = hmac.new(prk, b"selfsame message 1" + b"\1", hashlib.sha256).digest()
        return AESGCM(once).decrypt(bytes(12), message[57:], message[:25])

    assert opened(up, sent) == b"up"
    assert opened(down, welcome[40:]) == USED.to_bytes(8, "little")


@given(st.binary(min_size=16, max_size=64), st.integers(0, 20))
def test_a_channel_that_was_put_back_repeats_no_keystream(text, before):
    """As a device whose disk was restored: the same keys and numbers, and still another keystream for every message."""
    device, _ = pair()
    device.sent = before
    first = device.seal(Content.EMBEDDINGS, 1, text)
    device.sent = before
    second = device.seal(Content.EMBEDDINGS, 1, bytes(len(text)))
    assert first[:25] == second[:25]  # the same number in the header
    end = -len(text) - 16
    assert bytes(a ^ b for a, b in zip(first[end:-16], second[end:-16])) != text
