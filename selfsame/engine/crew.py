"""The processor's cores: clients whose networks differ are computed side by side, one core each."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from threading import Barrier
from typing import TypeVar

import torch

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # names of glibc's options
_FREE = 2**28  # bytes at the end of the heap that a process keeps for the next round
_LARGEST = 2**25  # bytes of a tensor that comes from the heap; glibc allows no more


class Crew:
    """As many threads as PyTorch may use. In them an operation takes one thread, so that its sums round as on one core.

    A client's small operations gain little from two cores; two clients at a time gain almost all there is. Where
    PyTorch has one thread, or there is one item, the caller does the work itself.
    """

    def __init__(self, size: int | None = None) -> None:
        self.size = torch.get_num_threads() if size is None else size
        self._pool: ThreadPoolExecutor | None = None
        self._owner = 0

    def map(self, work: Callable[[_Item], _Result], items: Iterable[_Item]) -> list[_Result]:
        """The results in the items' order. Derivatives are recorded where they are in the caller's thread."""
        todo = list(items)
        if self.size == 1 or len(todo) < 2:
            return [work(item) for item in todo]
        recorded = torch.is_grad_enabled()

        def there(item: _Item) -> _Result:
            with torch.set_grad_enabled(recorded):
                return work(item)

        return list(self._threads().map(there, todo))

    def _threads(self) -> ThreadPoolExecutor:
        """Those of this process: of a forked one, threads are left behind."""
        if self._pool is None or self._owner != os.getpid():
            self._pool, self._owner = ThreadPoolExecutor(self.size, "selfsame"), os.getpid()
            all_here, before = Barrier(self.size), torch.get_num_threads()

            def begin(_: int) -> None:
                torch.get_num_threads()  # a thread takes the process's number when it is first asked,
                torch.set_num_threads(1)  # and from then on has its own
                all_here.wait()

            list(self._pool.map(begin, range(self.size)))
            torch.set_num_threads(before)
        return self._pool


@cache
def keep_freed_memory() -> None:
    """Let glibc keep what a round frees: given back, its pages must be cleared again in the next, a fifth of its time.

    Elsewhere nothing happens. A process then holds at most 256 MiB that it does not use.
    """
    if sys.platform != "linux":
        return
    try:
        option = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return
    option(_MMAP_THRESHOLD, _LARGEST)
    option(_TRIM_THRESHOLD, _FREE)
