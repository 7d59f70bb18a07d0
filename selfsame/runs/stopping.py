"""Ctrl-C and SIGTERM: the first ends a run after its round, with a checkpoint; a second one ends it at once."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

Stop = Callable[[], bool]  # whether somebody has asked a run to end

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_SAME = 0.3  # seconds in which a signal that comes again is the same: `timeout` sends each twice
_GRACE = 0.5  # seconds in which a process may end by itself after the second
_SHOW_CURSOR = "\x1b[?25h"  # a progress bar hides it


def never() -> bool:
    """Nobody asks."""
    return False


class Interrupted(KeyboardInterrupt):
    """Somebody has stopped what has no rounds; the process ends with this code."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class Stopping:
    """Whether the run shall end, and by which signal; `parent`: the process whose end is one too, 0: none."""

    def __init__(self, parent: int = 0) -> None:
        self.signal, self.when, self.parent = 0, 0.0, parent

    def asked(self) -> bool:
        """Whether the first signal has come, or the parent has gone without one."""
        if not self.signal and self.parent and os.getppid() != self.parent:
            self.signal, self.when = signal.SIGTERM, time.monotonic()
        return self.signal != 0

    @property
    def code(self) -> int:
        """The exit code of a process that a signal ended."""
        return 128 + self.signal


@contextmanager
def stoppable(
    words: str = "stopping after this round; once more ends at once", parent: int = 0, raises: bool = False
) -> Iterator[Stopping]:
    """The first signal is told of at once, in these words, also while a long operation runs.

    With `raises` it raises `Interrupted` once that operation has ended. Elsewhere than in the main thread nothing is
    listened for. `parent`: a process without which there is nobody to wait for the run.
    """
    stop = Stopping(parent)
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    read, write = os.pipe()
    os.set_blocking(write, False)
    watcher = threading.Thread(target=_watch, args=(read, words), name="selfsame-stopping", daemon=True)

    def heard(number: int, _frame: FrameType | None) -> None:
        if not stop.asked():
            stop.signal, stop.when = number, time.monotonic()
            if raises:
                raise Interrupted(stop.code)
        elif time.monotonic() - stop.when > _SAME:
            raise KeyboardInterrupt

    before = {number: signal.signal(number, heard) for number in _SIGNALS}
    wakeup = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    watcher.start()
    try:
        yield stop
    finally:
        signal.set_wakeup_fd(wakeup)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(write)  # the watcher reads the end
        watcher.join()
        os.close(read)


def _watch(read: int, words: str) -> None:
    """The main thread hears of a signal only between two operations; this one at once."""
    first = 0.0
    while found := os.read(read, 64):
        now = time.monotonic()
        for number in found:
            if number not in _SIGNALS:
                continue
            if not first:
                first = now
                print(f"\nselfsame: {words}", file=sys.stderr, flush=True)
            elif now - first > _SAME:
                time.sleep(_GRACE)
                if sys.stderr.isatty():
                    print(_SHOW_CURSOR, end="", file=sys.stderr, flush=True)
                os._exit(128 + number)
