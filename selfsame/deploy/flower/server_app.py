"""Flower's ServerApp: pushes what the server asks, hands it what comes back, and never waits past a deadline.

The run's folder, which the run configuration names, holds its recipe and its terms (deploy.toml); a ServerApp that is
started on a folder with rounds in it goes on after the last complete one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.serverapp import Grid, ServerApp

from selfsame.deploy.flower.envelope import KIND, unwrap, wrap
from selfsame.deploy.flower.keys import fingerprint
from selfsame.deploy.flower.terms import LOCK, TROUBLE, open_server
from selfsame.deploy.host import Host
from selfsame.errors import SelfsameError
from selfsame.files import locked

_LOOK = 2.0  # seconds between looks at who is there
_PAUSE = 0.3  # and between looks at what has arrived
_NO_ANSWER = ("lost", "run", "round")  # a message has one reply: where this is it, what was asked for will not come

app = ServerApp()


def main(grid: Grid, context: Context) -> None:
    """Run the federation in the folder that the run configuration names, to its last round."""
    folder = Path(str(context.run_config.get("folder") or ""))
    if not folder.is_absolute() or not folder.is_dir():
        raise SelfsameError(f"run configuration: folder={str(folder)!r} is no folder on the server; give its full path")
    with locked(folder / LOCK, wait=False) as alone:  # the lock goes with the process, however that ends
        if not alone:
            raise SelfsameError(f"{folder}: another ServerApp is at work there; stop its run first")
        trouble = folder / TROUBLE
        trouble.unlink(missing_ok=True)
        try:
            with open_server(folder) as (server, patience, expected):
                fresh = expected if server.round == 0 else 0  # a run that goes on does so with those who are there
                Loop(grid, server, patience, fresh).run()
        except Exception as error:
            trouble.write_text(f"{error}\n", encoding="utf-8")
            raise


app.main()(main)


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
        server: Host[Any],
        patience: float,
        expected: int,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """`patience`: how long a message may take; `expected`: no round before so many nodes are there."""
        self.grid, self.server, self.patience, self.expected = grid, server, patience, expected
        self.clock, self.pause = clock, pause
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
        now = self.clock()
        known = [ask for ask in asks if ask.node in self._ids]
        for ask in asks:
            if ask.node not in self._ids:
                self.server.lost(ask.node, now)
        if not known:
            return
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
                reason = self.server.answer(sent.node, unwrap(reply) or b"", self.clock())
            if reason in _NO_ANSWER and self._last[sent.node] == sent.number:
                self.server.lost(sent.node, self.clock())
        now = self.clock()
        self._sent = {name: sent for name, sent in self._sent.items() if now < sent.until}
