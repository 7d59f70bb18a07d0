"""Sees a cluster's run through: starts it, says how far it is, and starts again what has died."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from selfsame.deploy.flower.cluster import Cluster
from selfsame.deploy.flower.terms import LOCK, RUN, TROUBLE
from selfsame.deploy.folder import MODEL, ROUNDS
from selfsame.errors import SelfsameError
from selfsame.files import locked, read_records, read_text

_PAUSE = 0.3
_BEGIN = 180.0  # seconds in which a submitted run must begin
_AGAIN = 3  # starts without a round between them before the run is given up


class Watch:
    """One run of a cluster, in the server's folder."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder.resolve()

    def run(self) -> Iterator[tuple[int, str]]:
        """Start everything and yield (complete rounds, what is at work) now and then until the last round."""
        yield (self.round, "starting SuperLink and SuperNodes")
        if not self.done:
            self.cluster.start()
        tries, reached = 0, self.round
        while not self.done:
            if self.round > reached:
                tries, reached = 0, self.round
            if tries == _AGAIN:
                raise SelfsameError(f"the run stopped {tries} times in round {self.round + 1}: {self.trouble()}")
            tries += 1
            if not self.cluster.linked:
                yield (self.round, "starting the SuperLink again")
                self.cluster.start_superlink()
            yield (self.round, "submitting the run")
            try:
                self.cluster.submit(folder=str(self.folder))
            except SelfsameError:
                if self.cluster.healthy():
                    raise
                continue
            yield from self._follow()

    def _follow(self) -> Iterator[tuple[int, str]]:
        """Until the ServerApp has ended, one way or the other."""
        until, begun = time.monotonic() + _BEGIN, False
        while True:
            self.cluster.tend()
            at_work = self.at_work()
            begun |= at_work
            yield (self.round, self._describe() if begun else "starting the ServerApp")
            if not at_work and (begun or time.monotonic() > until or self.done):
                return
            if not self.cluster.linked:
                return
            time.sleep(_PAUSE)

    def at_work(self) -> bool:
        """Whether a ServerApp holds the folder's lock."""
        with locked(self.folder / LOCK, wait=False) as free:
            return not free

    @property
    def done(self) -> bool:
        """Whether the network of the last round is written, which is the last thing that a server does."""
        return (self.folder / RUN / MODEL).is_file()

    @property
    def round(self) -> int:
        """Complete rounds."""
        return max((record["round"] for record in self.records()), default=0)

    def records(self) -> list[dict[str, Any]]:
        """What the server has written of each round."""
        return read_records(self.folder / RUN / ROUNDS)

    def trouble(self) -> str:
        """What the last ServerApp said when it stopped."""
        path = self.folder / TROUBLE
        text = read_text(path).strip() if path.is_file() else ""
        return text.splitlines()[0] if text else f"see {self.cluster.log('superlink')}"

    def _describe(self) -> str:
        found = self.records()
        return "{taken} of {asked} in {seconds:.1f} s".format(**found[-1]) if found else "registering"
