"""What a device hands to whoever takes masks off or adds up: a sealed secret, and whose it is, signed.

A record says which round of which run it belongs to, which group of devices it is to be added up with and which network
was trained from, or that it answers a poll. All of that is hashed into a context. The seal opens under this context
alone and the signature covers it, so that nobody can use a record for anything else.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from cryptography.exceptions import InvalidSignature, InvalidTag, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from selfsame.enclave.message import Denied

SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.AES_256_GCM)
HASH = 32  # bytes of every digest here, and of an X25519 key
NODE = 16  # bytes of a node's name: the first half of the SHA-256 of its public key
SEED = 32
SIGNATURE = 96  # two numbers of P-384
SEAL = 48  # bytes that sealing adds
_HEAD = struct.Struct("<16sQ32s32s")  # node, round, group, network
OVERHEAD = _HEAD.size + SIGNATURE + SEAL
_CONTEXT, _GROUP, _SIGNED = b"selfsame context 1\n", b"selfsame group 1\n", b"selfsame record 1\n"
_ROUND = struct.Struct("<Q")
POLL = hashlib.sha256(b"selfsame poll 1\n").digest()  # in place of a network, in records of polls


@dataclass(frozen=True)
class Context:
    """Where a record belongs."""

    run: str
    plan: bytes  # digest of the terms
    round: int
    group: bytes  # digest of the group's members
    network: bytes  # digest of the network that was trained from

    def digest(self) -> bytes:
        """The one value that stands for all of it."""
        parts = (self.run.encode(), self.plan, _ROUND.pack(self.round), self.group, self.network)
        return hashlib.sha256(_CONTEXT + b"".join(_ROUND.pack(len(part)) + part for part in parts)).digest()


@dataclass(frozen=True)
class Record:
    """A device's secret for one recipient."""

    node: bytes
    round: int
    group: bytes
    network: bytes
    sealed: bytes
    signature: bytes

    def pack(self) -> bytes:
        return _HEAD.pack(self.node, self.round, self.group, self.network) + self.signature + self.sealed

    @staticmethod
    def unpack(data: bytes) -> Record:
        if len(data) < OVERHEAD:
            raise Denied("size")
        node, round, group, network = _HEAD.unpack_from(data)
        rest = data[_HEAD.size :]
        return Record(node, round, group, network, rest[SIGNATURE:], rest[:SIGNATURE])

    @property
    def name(self) -> str:
        """The node's name as people write it."""
        return self.node.hex()

    def digest(self) -> str:
        """What tells this record from every other."""
        return hashlib.sha256(self.pack()).hexdigest()

    def context(self, run: str, plan: bytes) -> Context:
        return Context(run, plan, self.round, self.group, self.network)


def group_digest(members: Sequence[str]) -> bytes:
    """A group is called by the names of its members, in their order."""
    return hashlib.sha256(_GROUP + b"".join(bytes.fromhex(name) for name in sorted(members))).digest()


def node_name(public: bytes) -> str:
    """A node's name: a hash of its public key in PEM."""
    return hashlib.sha256(public).hexdigest()[: 2 * NODE]


def seal_record(
    secret: bytes, recipient: bytes, context: Context, key: ec.EllipticCurvePrivateKey, name: str
) -> Record:
    """A secret that the recipient alone can open, and for this context alone."""
    sealed = SUITE.encrypt(secret, X25519PublicKey.from_public_bytes(recipient), info=context.digest())
    r, s = decode_dss_signature(key.sign(_signed(recipient, context, sealed), ec.ECDSA(SHA384())))
    signature = r.to_bytes(SIGNATURE // 2, "big") + s.to_bytes(SIGNATURE // 2, "big")
    return Record(bytes.fromhex(name), context.round, context.group, context.network, sealed, signature)


def check_signature(record: Record, recipient: bytes, context: Context, public: bytes) -> None:
    """Denied unless the key with this PEM has signed the record for this recipient and context."""
    half = SIGNATURE // 2
    r, s = (int.from_bytes(part, "big") for part in (record.signature[:half], record.signature[half:]))
    try:
        _public(public).verify(
            encode_dss_signature(r, s), _signed(recipient, context, record.sealed), ec.ECDSA(SHA384())
        )
    except (InvalidSignature, ValueError):
        raise Denied("signature") from None


def open_record(record: Record, private: X25519PrivateKey, context: Context) -> bytes:
    """The secret in a record; Denied if it was not sealed for this context."""
    try:
        return SUITE.decrypt(record.sealed, private, info=context.digest())
    except (InvalidTag, ValueError):
        raise Denied("seal") from None


@lru_cache(maxsize=65536)
def _public(pem: bytes) -> ec.EllipticCurvePublicKey:
    try:
        key = load_pem_public_key(pem)
    except (ValueError, UnsupportedAlgorithm):
        raise Denied("device") from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP384R1):
        raise Denied("device")
    return key


def _signed(recipient: bytes, context: Context, sealed: bytes) -> bytes:
    return _SIGNED + recipient + context.digest() + hashlib.sha256(sealed).digest()
