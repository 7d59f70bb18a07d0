"""The server around the enclave of split rounds."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfsame.deploy.process import EnclaveProcess
from selfsame.enclave.mandate import Mandate
from selfsame.enclave.message import Denied, Order, packed_size, unpack
from selfsame.errors import SelfsameError

_NUMBER = struct.Struct("<Q")
_LENGTH = struct.Struct("<I")


class Controller(EnclaveProcess):
    """The enclave of a mandate; `rest` as `EnclaveProcess`."""

    def __init__(self, mandate: Mandate, **rest: Any) -> None:
        self.mandate = mandate
        super().__init__(mandate.canonical(), **rest)

    def hello(self, message: bytes) -> bytes:
        """Relay a device's first message; the welcome goes back to it."""
        return self._ask(Order.HELLO, message)

    def forget(self, session: int) -> None:
        """End a session whose registration has run out."""
        self._ask(Order.FORGET, _NUMBER.pack(session))

    def begin(self, round: int, network: bytes) -> None:
        """Open a round of one network, named by its digest; a round that is still open is given up (strategy AS)."""
        self._ask(Order.BEGIN, _NUMBER.pack(round) + network)

    def submit(self, message: bytes) -> str | None:
        """Relay embeddings or a gradient; None if they were taken, else why not."""
        try:
            self._frame(bytes([Order.SEALED]) + message)
        except Denied as refusal:
            return refusal.reason
        return None

    def derive(self, round: int) -> dict[int, bytes]:
        """Derivatives for everybody whose embeddings are in: a sealed message a session."""
        answer = self._ask(Order.DERIVE, _NUMBER.pack(round))
        (count,), at, messages = _LENGTH.unpack_from(answer), _LENGTH.size, {}
        for _ in range(count):
            (length,) = _LENGTH.unpack_from(answer, at)
            message = answer[at + _LENGTH.size : at + _LENGTH.size + length]
            (session,) = _NUMBER.unpack_from(message, 1)
            messages[session] = message
            at += _LENGTH.size + length
        return messages

    def aggregate(self, round: int) -> NDArray[np.float32]:
        """The weighted mean of the gradients, equation (2), once enough are in; the round ends with it."""
        answer = self._ask(Order.AGGREGATE, _NUMBER.pack(round))
        if len(answer) != packed_size(1, self.mandate.parameters):
            raise SelfsameError("enclave: the aggregate is not of the plan's size")
        return unpack(answer, 1, self.mandate.parameters)[0]
