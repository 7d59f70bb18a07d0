"""The server around the enclave: it starts the process and relays bytes that it cannot read."""

from __future__ import annotations

import contextlib
import json
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfsame.enclave.mandate import Mandate
from selfsame.enclave.message import REASONS, Denied, Order, packed_size, read_frame, unpack, write_frame
from selfsame.errors import SelfsameError

_COMMAND = (sys.executable, "-m", "selfsame.enclave")
_LONGEST_FRAME = (1 << 32) - 1
_NUMBER = struct.Struct("<Q")
_LENGTH = struct.Struct("<I")


class EnclaveEnded(SelfsameError):
    """The enclave's process is gone, and with it every session: devices have to attest another."""


class Controller:
    """An enclave's process and the way to it.

    With `limit`, a process that has started and does not answer within so many seconds is ended: no round waits for it
    longer.
    """

    def __init__(self, mandate: Mandate, command: Sequence[str] = _COMMAND, limit: float | None = None) -> None:
        self.mandate = mandate
        self.limit: float | None = None
        self._lock = threading.Lock()
        self._process = subprocess.Popen(list(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            self._frame(mandate.canonical())
            self.limit = limit
        except Denied as refusal:
            self.close()
            raise SelfsameError(f"enclave: {refusal}") from refusal
        except SelfsameError as error:
            self.close()
            raise SelfsameError("enclave: it did not start; it needs: pip install 'selfsame[enclave]'") from error

    def __enter__(self) -> Controller:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the process, and with it every session's keys."""
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):  # what was not yet written to a process that is gone
                if pipe is not None:
                    pipe.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    def attest(self, nonce: bytes) -> bytes:
        """The enclave's key and its quote for one device's nonce."""
        return self._ask(Order.ATTEST, nonce)

    def hello(self, message: bytes) -> bytes:
        """Relay a device's first message; the welcome goes back to it."""
        return self._ask(Order.HELLO, message)

    def forget(self, session: int) -> None:
        """End a session whose registration has run out."""
        self._ask(Order.FORGET, _NUMBER.pack(session))

    def begin(self, round: int) -> None:
        """Open a round; one that is still open is given up (strategy AS)."""
        self._ask(Order.BEGIN, _NUMBER.pack(round))

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

    def counts(self) -> dict[str, Any]:
        """What was taken and what was refused, by reason."""
        counts: dict[str, Any] = json.loads(self._ask(Order.COUNTS, b""))
        return counts

    def _ask(self, what: Order, payload: bytes) -> bytes:
        try:
            return self._frame(bytes([what]) + payload)
        except Denied as refusal:
            raise SelfsameError(f"enclave: {what.name.lower()} refused, {refusal}") from refusal

    def _frame(self, body: bytes) -> bytes:
        """One frame to the enclave and its answer; Denied if it says no."""
        with self._lock:
            answer = self._exchange(body)
        if answer[:1] != b"\x01":
            reason = answer[1:].decode("ascii", "replace")
            raise Denied(reason if reason in REASONS else "internal")
        return answer[1:]

    def _exchange(self, body: bytes) -> bytes:
        assert self._process.stdin is not None and self._process.stdout is not None
        if len(body) > _LONGEST_FRAME:
            raise SelfsameError(f"enclave: a frame of {len(body)} bytes is too long")
        with self._within_limit():
            try:
                write_frame(self._process.stdin, body)
                answer = read_frame(self._process.stdout, _LONGEST_FRAME)
            except (OSError, ValueError) as error:
                raise EnclaveEnded(f"enclave: its process has ended ({error})") from error
        if answer is None:
            raise EnclaveEnded("enclave: its process has ended")
        return answer

    @contextlib.contextmanager
    def _within_limit(self) -> Iterator[None]:
        if self.limit is None:
            yield
            return
        watch = threading.Timer(self.limit, self._process.kill)
        watch.start()
        try:
            yield
        finally:
            watch.cancel()
