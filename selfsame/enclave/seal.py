"""Sealing: HPKE to the enclave's key, then a key of its own for each direction of each session.

A sealed message is a header in the clear (field, session, round, sequence number), a salt and a text under AES-256-GCM.
The header is authenticated with the text, so that a message counts once, in its order, in its round and in its
direction. The salt is random and makes a key for this one message: a device whose disk was put back to an earlier state
writes the same numbers again, and under other keys.
"""

from __future__ import annotations

import hashlib
import os
import struct
from dataclasses import dataclass

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from selfsame.enclave.message import Content, Denied

SIZE = 32  # bytes of a key, a nonce, a plan's digest
_HELLO = b"selfsame hello 2"
_KEYS = b"selfsame keys 2"
_MESSAGE = b"selfsame message 1"
_HEAD = struct.Struct("<BQQQ")  # field, session, round, sequence number
_SESSION = struct.Struct("<Q")
_USED = struct.Struct("<Q")
_NONCE = bytes(12)  # each key seals one message
_TAG = 16
_SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.AES_256_GCM)
OVERHEAD = _HEAD.size + SIZE + _TAG


@dataclass
class Channel:
    """One end of a session: seals what it sends, opens what the other end sent."""

    session: int
    sending: bytes
    receiving: bytes
    sent: int = 0
    seen: int = 0

    def seal(self, field: Content, round: int, text: bytes) -> bytes:
        """The next message of this direction."""
        self.sent += 1
        head, salt = _HEAD.pack(field, self.session, round, self.sent), os.urandom(SIZE)
        return head + salt + _once(self.sending, salt).encrypt(_NONCE, text, head)

    def open(self, field: Content, round: int, message: bytes) -> bytes:
        """The text of a message of this field and round that is newer than all before; a refusal changes nothing."""
        got, session, of_round, number = _head(message)
        if session != self.session:
            raise Denied("session")
        if got != field:
            raise Denied("field")
        if of_round != round:
            raise Denied("round")
        if number <= self.seen:
            raise Denied("replayed")
        head, salt, sealed = message[: _HEAD.size], message[_HEAD.size :][:SIZE], message[_HEAD.size + SIZE :]
        try:
            text = _once(self.receiving, salt).decrypt(_NONCE, sealed, head)
        except InvalidTag:
            raise Denied("seal") from None
        self.seen = number
        return text


def _head(message: bytes) -> tuple[int, int, int, int]:
    if len(message) < OVERHEAD:
        raise Denied("size")
    return _HEAD.unpack_from(message)


def addressed(message: bytes) -> tuple[int, int]:
    """The field and the session that a sealed message claims."""
    field, session, _, _ = _head(message)
    return field, session


def _once(key: bytes, salt: bytes) -> AESGCM:
    """The cipher of one message."""
    return AESGCM(HKDF(SHA256(), SIZE, salt=salt, info=_MESSAGE).derive(key))


def hello(enclave_key: bytes, nonce: bytes, plan: bytes, device: bytes) -> tuple[bytes, bytes]:
    """A device's first message, and the secret in it, which only the enclave can open; `device` goes with it."""
    secret = os.urandom(SIZE)
    key = X25519PublicKey.from_public_bytes(enclave_key)
    return nonce + _SUITE.encrypt(secret + device, key, info=_HELLO + nonce + plan), secret


def heard(private: X25519PrivateKey, plan: bytes, message: bytes) -> tuple[bytes, bytes]:
    """(the secret, the name by which the device is known to enclaves alone) of a hello."""
    nonce, sealed = message[:SIZE], message[SIZE:]
    try:
        both = _SUITE.decrypt(sealed, private, info=_HELLO + nonce + plan)
    except (InvalidTag, ValueError):
        raise Denied("seal") from None
    if len(both) != 2 * SIZE:
        raise Denied("size")
    return both[:SIZE], both[SIZE:]


def answer(
    private: X25519PrivateKey, plan: bytes, session: int, message: bytes, secret: bytes, used: int
) -> tuple[Channel, bytes]:
    """The enclave's end of a new session, and the welcome that goes back, with the rounds this device has used.

    The enclave adds 32 bytes of its own: the same hello never makes the same keys again.
    """
    fresh = os.urandom(SIZE)
    own = private.public_key().public_bytes_raw()
    up, down = _keys(secret, fresh, own, plan, session, message)
    channel = Channel(session, sending=down, receiving=up)
    return channel, _SESSION.pack(session) + fresh + channel.seal(Content.WELCOME, 0, _USED.pack(used))


def welcomed(enclave_key: bytes, plan: bytes, message: bytes, secret: bytes, reply: bytes) -> tuple[Channel, int]:
    """The device's end of the session, once the welcome proves that the enclave has the same keys; the rounds used."""
    if len(reply) != _SESSION.size + SIZE + OVERHEAD + _USED.size:
        raise Denied("size")
    (session,) = _SESSION.unpack_from(reply)
    fresh = reply[_SESSION.size : _SESSION.size + SIZE]
    up, down = _keys(secret, fresh, enclave_key, plan, session, message)
    channel = Channel(session, sending=up, receiving=down)
    (used,) = _USED.unpack(channel.open(Content.WELCOME, 0, reply[_SESSION.size + SIZE :]))
    return channel, used


def _keys(secret: bytes, fresh: bytes, key: bytes, plan: bytes, session: int, message: bytes) -> tuple[bytes, bytes]:
    """The keys up and down, bound to everything that was said so far."""
    said = hashlib.sha256(key + plan + _SESSION.pack(session) + message).digest()
    both = HKDF(SHA256(), 2 * SIZE, salt=fresh, info=_KEYS + said).derive(secret)
    return both[:SIZE], both[SIZE:]
