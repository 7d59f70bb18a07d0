"""Flower's ServerApp: pushes what the server asks, hands it what comes back, and never waits past a deadline.

The run's folder, which the run configuration names, holds its recipe and its terms (deploy.toml); a ServerApp that is
started on a folder with rounds in it goes on after the last complete one.
"""

from __future__ import annotations

import fcntl
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from flwr.app import Context, Message
from flwr.serverapp import Grid, ServerApp

from selfsame.deploy.flower.envelope import KIND, unwrap, wrap
from selfsame.deploy.flower.keys import fingerprint
from selfsame.deploy.flower.terms import LOCK, ROUNDS, TROUBLE, open_server, read_records
from selfsame.errors import SelfsameError

_LOOK = 2.0  # seconds between looks at who is there
_PAUSE = 0.3  # and between looks at what has arrived
_NO_ANSWER = ("lost", "run", "round")  # a message has one reply: where this is it, what was asked for will not come

app = ServerApp()


class Serving(Protocol):
    """What the loop needs of a server, whatever the method."""

    counts: Counter[str]
    records: list[dict[str, Any]]

    @property
    def round(self) -> int: ...
    @property
    def done(self) -> bool: ...
    def begin(self, nodes: list[str], now: float) -> None: ...
    def step(self, now: float) -> list[Any]: ...
    def answer(self, node: str, payload: bytes, now: float) -> str | None: ...
    def lost(self, node: str, now: float) -> None: ...


def main(grid: Grid, context: Context) -> None:
    """Run the federation in the folder that the run configuration names, to its last round."""
    folder = Path(str(context.run_config.get("folder") or ""))
    if not folder.is_absolute() or not folder.is_dir():
        raise SelfsameError(f"run configuration: folder={str(folder)!r} is no folder on the server; give its full path")
    with only_one(folder):
        trouble = folder / TROUBLE
        trouble.unlink(missing_ok=True)
        try:
            with open_server(folder) as (server, patience, expected):
                fresh = expected if server.round == 0 else 0  # a run that goes on does so with those who are there
                Loop(grid, server, patience, fresh, Journal(folder / ROUNDS, server)).run()
        except Exception as error:
            trouble.write_text(f"{error}\n", encoding="utf-8")
            raise


app.main()(main)


@contextmanager
def only_one(folder: Path) -> Iterator[None]:
    """No two ServerApps on one folder; the lock goes with the process, however that ends."""
    with (folder / LOCK).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise SelfsameError(f"{folder}: another ServerApp is at work there; stop its run first") from error
        yield


class Journal:
    """A line a round in a file, for whoever watches: it follows the server's checkpoint and never runs ahead of it."""

    def __init__(self, path: Path, server: Serving) -> None:
        self.path, self.server = path, server
        self.down = self.up = 0
        self._told, self._counts = len(server.records), Counter(server.counts)
        if path.is_file() and not path.read_bytes().endswith(b"\n"):  # a line that was cut off stays alone
            path.write_bytes(path.read_bytes() + b"\n")
        last = read_records(path)
        if server.round > (last[-1]["round"] if last else 0):  # it was killed before it could write this
            self._write({"round": server.round})

    def note(self) -> None:
        """Write what has been finished since the last call."""
        for record in self.server.records[self._told :]:
            self._told += 1
            embedded, answered = (len(record.get(name, ())) for name in ("embedded", "answered"))
            counts = {name: n - self._counts[name] for name, n in sorted(self.server.counts.items())}
            told = {
                "round": self.server.round,
                "asked": record.get("asked", embedded),
                "taken": record.get("taken", answered),
                "seconds": record["seconds"],
                "down": self.down,
                "up": self.up,
                "counts": {name: n for name, n in counts.items() if n},
            }
            self.down, self.up, self._counts = 0, 0, Counter(self.server.counts)
            self._write(told)

    def _write(self, record: dict[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")


@dataclass(frozen=True)
class _Sent:
    node: str
    until: float
    number: int


class Loop:
    """Step and push, pull and answer, until the server is done. Nothing here waits for any one node."""

    def __init__(
        self,
        grid: Grid,
        server: Serving,
        patience: float,
        expected: int,
        journal: Journal,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """`patience`: how long a message may take; `expected`: no round before so many nodes are there."""
        self.grid, self.server, self.patience, self.expected = grid, server, patience, expected
        self.journal, self.clock, self.pause = journal, clock, pause
        self._ids: dict[str, int] = {}
        self._sent: dict[str, _Sent] = {}
        self._last: dict[str, int] = {}  # the newest message of each node
        self._looked = float("-inf")

    def run(self) -> None:
        while not self.server.done:
            self.look()
            if len(self._ids) >= self.expected:
                self.expected = 0
                self.push()
            self.pull()
            self.pause(_PAUSE)

    def look(self) -> None:
        """Who is there; nodes are named by their keys and stand in the order of the names they were registered with."""
        now = self.clock()
        if now < self._looked + _LOOK:
            return
        self._looked = now
        there = sorted(self.grid.get_nodes(), key=lambda node: (node.name, node.registered_at, node.node_id))
        self._ids = {fingerprint(node.public_key): node.node_id for node in there}
        self.server.begin(list(self._ids), now)

    def push(self) -> None:
        asks = self.server.step(self.clock())
        self.journal.note()
        now = self.clock()
        known = [ask for ask in asks if ask.node in self._ids]
        for ask in asks:
            if ask.node not in self._ids:
                self.server.lost(ask.node, now)
        if not known:
            return
        self.journal.down += sum(len(ask.payload) for ask in known)
        messages = [Message(wrap(ask.payload), self._ids[ask.node], KIND, ttl=self.patience) for ask in known]
        for ask, name in zip(known, self.grid.push_messages(messages), strict=True):
            if not name:  # the node has left meanwhile
                self.server.lost(ask.node, now)
                continue
            self._last[ask.node] = self._last.get(ask.node, 0) + 1
            self._sent[name] = _Sent(ask.node, now + 2 * self.patience, self._last[ask.node])

    def pull(self) -> None:
        """Take what has arrived; what nobody waits for any more is forgotten after a while."""
        for reply in self.grid.pull_messages(list(self._sent)) if self._sent else ():
            sent = self._sent.pop(reply.metadata.reply_to_message_id, None)
            if sent is None:
                continue
            reason: str | None = "lost"
            if reply.has_content():  # what is not in our envelope is counted like any other nonsense
                payload = unwrap(reply) or b""
                self.journal.up += len(payload)
                reason = self.server.answer(sent.node, payload, self.clock())
            if reason in _NO_ANSWER and self._last[sent.node] == sent.number:
                self.server.lost(sent.node, self.clock())
        now = self.clock()
        self._sent = {name: sent for name, sent in self._sent.items() if now < sent.until}
