"""Devices and a server in one process: what a transport does, with the clock in the test's hand."""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from selfsame.config.recipe import Recipe, from_mapping
from selfsame.data import Federation, load
from selfsame.deploy.device import Device
from selfsame.deploy.host import Ask
from selfsame.deploy.schedule import Terms
from selfsame.deploy.server import Server
from selfsame.engine.plan import make_plan
from selfsame.engine.rounds import Engine
from selfsame.engine.setup import prepare
from selfsame.engine.state import State, begin
from selfsame.methods import METHODS, SplitLoss

OPTIONS: dict[str, dict[str, Any]] = {
    "feduv": {"secrets": "seeded", "code_length": 31},
    "feduv-negative": {"secrets": "seeded", "code_length": 31},
    "fedmetric": {"reduction": "mean"},
    "fedmetric-pos": {"reduction": "mean"},
    "fedmetric-true": {"reduction": "mean"},
    "fedaws": {"neighbours": 2},
    "fedhide": {"neighbours": 2},
}
LOCAL = [name for name, kind in METHODS.items() if kind.federated and not issubclass(kind, SplitLoss)]
LOCAL.remove("fedcrowd")  # its polls are never in the clear: aggregation/test_poll_rounds.py
ROUNDING = 1e-12  # a server adds up as answers come, the reference engine in the order of the clients
FOUR = {"turns": 1, "held_out": 6}  # digits 0 to 3


def recipe(name: str, options: dict[str, Any] | None = None, **parts: dict[str, Any]) -> Recipe:
    """Four digits, four clients, a small network, float64 unless told otherwise."""
    lr = 0.01 if name.startswith("fedmetric") else 0.1
    return from_mapping(
        {
            "method": {"name": name, **OPTIONS.get(name, {}), **(options or {})},
            "data": {"name": "digits", **FOUR, **parts.pop("data", {})},
            "net": {"name": "lenet", "width": 8, "channels": [4, 4]},
            "run": {"rounds": 2, "device": "cpu", "precision": "float64", **parts.pop("run", {})},
            "local": {"batch": 8, "lr": lr, **parts.pop("local", {})},
            **parts,
        }
    )


def simulated(order: Recipe, federation: Federation | None = None) -> State:
    """The same run on the reference engine."""
    problem = prepare(order, federation)
    state = begin(problem)
    Engine(problem, "reference").run(state, make_plan(problem.recipe, 0, order.run.rounds, state.present))
    return state


@dataclass
class Loopback:
    """Nodes "0", "1", .. hold the clients of these numbers; `filter` sees every reply on its way and may change it.

    A filter returns the replies to deliver: none (lost), one, or several.
    """

    folder: Path
    order: Recipe
    nodes: int = 4
    terms: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    filter: Callable[[Ask, bytes], list[bytes]] = lambda ask, reply: [reply]
    between: Callable[[Loopback], None] = lambda self: None  # called after everything that happens
    now: float = 0.0
    asks: list[Ask] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.devices: dict[str, Any] = {}
        for number in range(self.nodes):
            self.reopen_device(str(number))
        self.reopen_server()

    def reopen_device(self, node: str) -> None:
        """As after kill -9 of its process: all that is left is its folder."""
        self.devices[node] = Device(self.folder / f"node{node}", f"digits:{node}", simulate=True)

    def reopen_server(self) -> None:
        terms = Terms(**{"required": self.nodes, "fewest": 0, **self.terms})
        given = {"federation": digits(**self.order.data.options), **self.options}
        self.server = Server(self.folder / "server", self.order, terms, seeded=True, **given)
        self.server.begin(list(self.devices), self.now)

    def place(self, number: int) -> str:
        """The node that holds a client."""
        return str(number)

    def turn(self) -> None:
        """Push what there is to push, deliver what comes back; time goes on where nothing does."""
        asks = self.server.step(self.now)
        self.asks += asks
        self.between(self)
        for ask in asks:
            for reply in self.filter(ask, self.devices[ask.node].reply(ask.payload)):
                reason = self.server.answer(ask.node, reply, self.now)
                self.reasons += [] if reason is None else [reason]
                self.between(self)
        if not asks and not self.server.done:
            self.now = max(self.now + 1.0, min(self.server.waiting_until, self.now + 1000.0))

    def run(self, turns: int = 1000) -> Server:
        for _ in range(turns):
            if self.server.done:
                return self.server
            self.turn()
        raise AssertionError(f"round {self.server.round} after {turns} turns: {dict(self.server.counts)}")

    def own(self) -> dict[str, torch.Tensor]:
        """The private fields of all devices, from their disks."""
        kept = [self.devices[self.place(number)].keep.read().fields for number in self.trained()]
        return {name: torch.cat([fields[name] for fields in kept]) for name in kept[0]}

    def trained(self) -> list[int]:
        """Who has answered a request."""
        return [number for number in range(self.nodes) if self.devices[self.place(number)].keep.read().turn >= 0]


@functools.cache
def digits(**options: Any) -> Federation:
    """The data set, read once."""
    return load("digits", **{**FOUR, **options})


def apart(harness: Loopback, state: State) -> float:
    """The largest difference to a simulated run, relative to each tensor's largest entry."""
    mine = harness.server.state
    assert mine is not None and mine.round == state.round
    left = {**mine.tensors(), **{f"own.{name}": value for name, value in harness.own().items()}}
    right = state.tensors()
    assert left.keys() == right.keys()
    worst = 0.0
    for name, value in left.items():
        other = right[name][harness.trained()] if name.startswith("own.") else right[name]
        assert value.shape == other.shape and value.dtype == other.dtype, name
        scale = float(other.double().abs().max()) if other.numel() else 0.0
        gap = float((value.double() - other.double()).abs().max()) if other.numel() else 0.0
        worst = max(worst, gap / scale if scale else gap)
    return worst


CALLS = ("open", "write", "fsync", "replace", "close")


def kill_at(point: int, after: bool, work) -> bool:
    """Run `work` in a child that kills itself at its n-th call of the system; whether it got that far."""
    child = os.fork()
    if child == 0:
        seen = 0

        def watched(call):
            def run(*args, **kwargs):
                nonlocal seen
                seen += 1
                if seen == point and not after:
                    os.kill(os.getpid(), signal.SIGKILL)
                found = call(*args, **kwargs)
                if seen == point and after:
                    os.kill(os.getpid(), signal.SIGKILL)
                return found

            return run

        for name in CALLS:
            setattr(os, name, watched(getattr(os, name)))
        work()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)
