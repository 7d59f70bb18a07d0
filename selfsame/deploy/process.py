"""An enclave's process, from outside: whoever starts it relays bytes that it cannot read."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, Self

from selfsame.enclave.message import REASONS, Denied, Order, read_frame, write_frame
from selfsame.errors import SelfsameError

COMMAND = (sys.executable, "-m", "selfsame.enclave")
_LONGEST_FRAME = (1 << 32) - 1


class EnclaveEnded(SelfsameError):
    """The enclave's process is gone, and with it every key: devices have to attest another."""


class EnclaveProcess:
    """An enclave's process and the way to it; `plan` is its plan as it is written.

    With `limit`, a process that has started and does not answer within so many seconds is ended: no round waits for it
    longer.
    """

    def __init__(self, plan: bytes, command: Sequence[str] = COMMAND, limit: float | None = None) -> None:
        self.limit: float | None = None
        self._lock = threading.Lock()
        self._process = subprocess.Popen(list(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            self._frame(plan)
            self.limit = limit
        except Denied as refusal:
            self.close()
            raise SelfsameError(f"enclave: {refusal}") from refusal
        except SelfsameError as error:
            self.close()
            raise SelfsameError("enclave: it did not start; it needs: pip install 'selfsame[enclave]'") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the process, and with it every key."""
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
        """The enclave's key and its quote for a nonce."""
        return self._ask(Order.ATTEST, nonce)

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
