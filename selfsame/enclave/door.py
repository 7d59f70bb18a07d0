"""What every enclave does with frames: it answers each one, proves itself, and counts what it took and refused."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from typing import Any

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from selfsame.enclave import quote
from selfsame.enclave.message import Denied, Order

YES, NO = b"\x01", b"\x00"
NONCE = 32  # bytes
Attest = Callable[[bytes], bytes]


class Door(ABC):
    """It alone holds the private key, which is made when the process starts and ends with it."""

    def __init__(self, plan: bytes, attest: Attest) -> None:
        self._digest, self._attest = plan, attest
        self._private = X25519PrivateKey.generate()
        self._key = self._private.public_key().public_bytes_raw()
        self.accepted: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self._answers: dict[int, Callable[[bytes], bytes]] = {Order.ATTEST: self._quote, Order.COUNTS: self._counts}

    @abstractmethod
    def largest_frame(self) -> int:
        """No frame under this plan is longer."""

    def handle(self, frame: bytes) -> bytes:
        """The answer to one frame. Whatever the frame holds, there is one, and a refused frame changes nothing."""
        try:
            if not frame or frame[0] not in self._answers:
                raise Denied("frame")
            return YES + self._answers[frame[0]](frame[1:])
        except Denied as refusal:
            return self.refuse(refusal.reason)
        except Exception:
            return self.refuse("internal")  # what went wrong could name a value: only the count leaves

    def refuse(self, reason: str) -> bytes:
        """Count a refusal; the answer that says why."""
        self.refused[reason] += 1
        return NO + reason.encode("ascii")

    def _quote(self, nonce: bytes) -> bytes:
        if len(nonce) != NONCE:
            raise Denied("size")
        return self._key + self._attest(quote.report_data(self._key, nonce, self._digest))

    def _counts(self, payload: bytes) -> bytes:
        told = {"accepted": dict(self.accepted), "refused": dict(self.refused), **self._now()}
        return json.dumps(told, sort_keys=True).encode("ascii")

    @abstractmethod
    def _now(self) -> dict[str, Any]:
        """What else everybody may know of the round that is open."""
