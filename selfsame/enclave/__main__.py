"""`python -m selfsame.enclave`: the enclave as a process of its own, frames in on stdin and out on stdout.

The first frame is the training plan. Nobody need trust whoever sends it: its hash is in every quote.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import IO

from selfsame.enclave.adder import Adder
from selfsame.enclave.door import NO, YES, Door
from selfsame.enclave.mandate import LONGEST, Mandate, read_plan
from selfsame.enclave.message import Denied, read_frame, write_frame
from selfsame.enclave.session import Enclave


def serve(source: IO[bytes], sink: IO[bytes]) -> None:
    """Answer every frame until the stream ends."""
    enclave: Door | None = None
    while True:
        try:
            frame = read_frame(source, enclave.largest_frame() if enclave else LONGEST)
        except Denied as refusal:
            write_frame(sink, enclave.refuse(refusal.reason) if enclave else NO + b"size")
            continue
        if frame is None:
            return
        if enclave:
            write_frame(sink, enclave.handle(frame))
            continue
        try:
            plan = read_plan(frame)
            enclave = Enclave(plan) if isinstance(plan, Mandate) else Adder(plan)
            write_frame(sink, YES)
        except (ValueError, TypeError):
            write_frame(sink, NO + b"plan")


def main() -> None:
    """Keep stdout for frames alone, and memory out of core files."""
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with os.fdopen(os.dup(1), "wb") as sink, contextlib.suppress(BrokenPipeError, KeyboardInterrupt):
        os.dup2(2, 1)
        serve(sys.stdin.buffer, sink)


if __name__ == "__main__":
    main()
