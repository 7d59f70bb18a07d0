"""A device's side of the split protocol: attest, then seal everything to the enclave."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfsame.deploy.split.attest import Attested, Policy, check
from selfsame.enclave import quote
from selfsame.enclave.mandate import Mandate
from selfsame.enclave.message import Content, Denied, pack, unpack
from selfsame.errors import SelfsameError

try:
    from selfsame.enclave import seal
except ImportError as error:
    raise SelfsameError("sealing needs cryptography 47 or newer: pip install 'selfsame[enclave]'") from error


class Participant:
    """One device and one session; nothing but a nonce leaves it before the quote is proved."""

    def __init__(
        self, mandate: Mandate, policy: Policy, collateral: str | None = None, name: bytes | None = None
    ) -> None:
        self.mandate, self.policy = mandate, policy
        self.name = name or os.urandom(seal.SIZE)  # by which enclaves, and they alone, know this device again
        self.nonce = os.urandom(seal.SIZE)
        self.used = 0  # rounds in which the enclave has used embeddings of this device
        self.attested: Attested | None = None
        self._collateral = collateral
        self._digest = mandate.digest()
        self._said: tuple[bytes, bytes, bytes] | None = None  # the enclave's key, our hello, the secret in it
        self._welcome: bytes | None = None
        self._channel: seal.Channel | None = None

    def memory(self) -> dict[str, Any]:
        """Everything of the session as JSON, the keys' secret included: for the device's own disk, 0600."""
        channel = self._channel
        return {
            "name": self.name.hex(),
            "nonce": self.nonce.hex(),
            "said": [part.hex() for part in self._said or ()],
            "welcome": (self._welcome or b"").hex(),
            "counts": [channel.sent, channel.seen] if channel else [],
            "attested": asdict(self.attested) if self.attested else {},
        }

    @staticmethod
    def remembered(
        mandate: Mandate, policy: Policy, memory: Mapping[str, Any], collateral: str | None = None
    ) -> Participant:
        """The session that `memory` wrote: its keys are derived again, its sequence numbers go on.

        What was proved then must be accepted by the policy of today.
        """
        one = Participant(mandate, policy, collateral, bytes.fromhex(memory["name"]))
        one.nonce = bytes.fromhex(memory["nonce"])
        if memory["attested"]:
            one.attested = Attested.remembered(memory["attested"])
            if not policy.accepts(one.attested):
                raise SelfsameError(f"session: {one.attested}; the policy accepts it no longer")
        if memory["said"]:
            key, message, secret = (bytes.fromhex(part) for part in memory["said"])
            one._said = key, message, secret
        if memory["welcome"]:
            one.welcome(bytes.fromhex(memory["welcome"]))
            assert one._channel is not None
            one._channel.sent, one._channel.seen = memory["counts"]
        return one

    def hello(self, reply: bytes) -> bytes:
        """Check the enclave's key and quote; the message that opens the session."""
        key, raw = reply[: seal.SIZE], reply[seal.SIZE :]
        if len(key) != seal.SIZE:
            raise SelfsameError("quote: the enclave's key is missing")
        expected = quote.report_data(key, self.nonce, self._digest)
        self.attested = check(raw, expected, self.policy, self._collateral)
        message, secret = seal.hello(key, self.nonce, self._digest, self.name)
        self._said = key, message, secret
        return message

    def welcome(self, reply: bytes) -> int:
        """Take the enclave's welcome; the session's number."""
        if self._said is None or self._channel is not None:
            raise SelfsameError("welcome: it comes once, after a hello")
        key, message, secret = self._said
        try:
            self._channel, self.used = seal.welcomed(key, self._digest, message, secret, reply)
        except Denied as refusal:
            raise SelfsameError(f"welcome: {refusal}") from refusal
        self._welcome = reply
        return self._channel.session

    @property
    def number(self) -> int:
        """The session's number; 0 before it is open."""
        return self._channel.session if self._channel else 0

    def embeddings(self, round: int, emb_BD: NDArray[np.floating], network: bytes) -> bytes:
        """Step 4: a batch's embeddings, sealed with the digest of the network that they were made with."""
        return self._open().seal(Content.EMBEDDINGS, round, network + pack(emb_BD))

    def derivatives(self, round: int, message: bytes) -> NDArray[np.float32]:
        """Step 6: the loss's derivatives by this device's embeddings."""
        try:
            text = self._open().open(Content.DERIVATIVES, round, message)
            return unpack(text, self.mandate.samples, self.mandate.dim)
        except Denied as refusal:
            raise SelfsameError(f"derivatives: {refusal}") from refusal

    def gradient(self, round: int, grad_P: NDArray[np.floating]) -> bytes:
        """Step 8: the gradient of this device's parameters, sealed."""
        return self._open().seal(Content.GRADIENT, round, pack(grad_P[None]))

    def _open(self) -> seal.Channel:
        if self._channel is None:
            raise SelfsameError("session: it is not open; the enclave is to be attested first")
        return self._channel
