"""Masked sums when things go wrong: python bench/drills.py [--rounds 30].

Twelve devices with the digits of one person each, one group, FedAwS, one helper. Server, devices and helper are the
real ones, in one process, on their folders. What is killed is dropped without a word and opened again from its folder.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from common import header
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from selfsame.config.presets import make_recipe
from selfsame.data import load
from selfsame.deploy.aggregation.helper import BLAMED, Helper, to_unmask
from selfsame.deploy.aggregation.signing import Signer
from selfsame.deploy.aggregation.sum_terms import HelperTerms
from selfsame.deploy.codec import decode, encode
from selfsame.deploy.device import Device
from selfsame.deploy.host import Ask
from selfsame.deploy.schedule import Terms
from selfsame.deploy.server import Server
from selfsame.runs.run import open_run

COUNT = 12
SIGNERS = [Signer.of(ec.derive_private_key(1000 + number, ec.SECP384R1())) for number in range(COUNT + 1)]
SEALING = X25519PrivateKey.from_private_bytes(bytes(range(32)))
HELPER = HelperTerms.signed(SIGNERS[-1].key, SEALING.public_key().public_bytes_raw())


@dataclass
class Drill:
    """A run in a folder; `lost` says which replies never arrive, `trouble` is called between any two messages."""

    folder: Path
    rounds: int
    least: int = 0
    lost: Callable[[Drill, Ask], bool] = lambda drill, ask: False
    trouble: Callable[[Drill], None] = lambda drill: None
    draw: random.Random = field(default_factory=lambda: random.Random(1))
    now: float = 0.0
    noticed: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        tables = {
            "data": {"name": "digits"},
            "cohort": {"size": COUNT},
            "run": {"rounds": self.rounds, "device": "cpu"},
        }
        sums = {"aggregation": "masked", "clip": 5.0, "least": self.least}
        self.recipe = make_recipe("fedaws", None, {**tables, "sums": sums}, [])
        self.data = load("digits")
        self.names = [signer.name for signer in SIGNERS[:COUNT]]
        register = self.folder / "register"
        register.mkdir(parents=True)
        for signer in SIGNERS[:COUNT]:
            public = signer.key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
            (register / f"{signer.name}.pub").write_bytes(public)
        self.nodes: dict[str, Any] = {}
        for number in range(COUNT):
            self.open_device(number)
        self.open_helper()
        self.open_server()

    def open_device(self, number: int) -> None:
        folder = self.folder / f"device{number}"
        device = Device(folder, f"digits:{number}", simulate=True, signer=SIGNERS[number])
        self.nodes[self.names[number]] = device

    def open_helper(self) -> None:
        self.nodes[HELPER.name] = Helper(self.folder / "helper", SEALING, self.folder / "register")

    def open_server(self) -> None:
        terms = Terms(COUNT, answer_wait=10.0, fewest=1)
        options: dict[str, Any] = {"federation": self.data, "seeded": True, "helpers": [HELPER]}
        self.server = Server(self.folder / "server", self.recipe, terms, **options)
        self.server.begin(list(self.nodes), self.now)

    def run(self) -> list[str]:
        """The row of the table."""
        turns = 0
        while not self.server.done and turns < 60 * self.rounds:
            turns += 1
            asks = self.server.step(self.now)
            for ask in asks:
                self.trouble(self)
                reply = self.nodes[ask.node].reply(ask.payload)
                if not self.lost(self, ask):
                    self.server.answer(ask.node, reply, self.now)
            if not asks and not self.server.done:
                self.now = max(self.now + 1.0, min(self.server.waiting_until, self.now + 100.0))
        records = self.server.records
        released = [record for record in records if record["taken"]]
        right = open_run(self.folder / "server").evaluate().figures["p@1"] if self.server.done else float("nan")
        counts = {name: count for name, count in self.server.counts.items() if name not in ("taken", "registered")}
        told = ", ".join(self.noticed) or ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
        taken = sum(record["taken"] for record in records) / max(len(released), 1)
        stood = sum(record["stood_in"] for record in records) / max(len(released), 1)
        rounds = f"{len(released)} of {len(records)}"
        return [rounds, f"{taken:.1f}", f"{stood:.1f}", f"{100 * right:.1f}", told]


def dropping(share: float) -> Callable[[Drill, Ask], bool]:
    return lambda drill, ask: "/train/" in ask.id and drill.draw.random() < share


def helper_gone(drill: Drill, ask: Ask) -> bool:
    """The helper does not answer for 45 seconds from the fifth round on."""
    return (
        "/unmask/" in ask.id
        and drill.server.round == 5
        and drill.now < drill.__dict__.setdefault("back", drill.now + 45)
    )


def asked_twice(drill: Drill, ask: Ask) -> bool:
    """A server asks again, for a set without one device: the difference would be that device's mask."""
    if "/unmask/" in ask.id and drill.server.round == 3 and not drill.noticed:
        message = decode(ask.payload, expected=to_unmask())
        other = {**message.fields, "records": message.fields["records"][1:]}
        drill.open_helper()  # a restart does not help
        reply = drill.nodes[HELPER.name].reply(
            encode("unmask", message.round, {"run": message.run, **message.meta}, other)
        )
        drill.noticed.append(f"the second set: refused ({decode(reply, expected=BLAMED).meta['reason']})")
    return False


def killing(what: str) -> Callable[[Drill], None]:
    def trouble(drill: Drill) -> None:
        if what in ("device", "all") and drill.draw.random() < 0.2:
            drill.open_device(drill.draw.randrange(COUNT))
        if what in ("helper", "all") and drill.draw.random() < 0.2:
            drill.open_helper()
        if what in ("server", "all") and drill.draw.random() < 0.02:
            drill.open_server()

    return trouble


DRILLS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "30 % drop out": {"lost": dropping(0.3)},
    "60 % drop out": {"lost": dropping(0.6)},
    "60 % drop out, two answers are enough": {"lost": dropping(0.6), "least": 2},
    "the helper is gone for 45 s, and returns": {"lost": helper_gone},
    "the helper is asked twice": {"lost": asked_twice},
    "the helper is killed at any time": {"trouble": killing("helper")},
    "devices are killed at any time": {"trouble": killing("device")},
    "the server is killed at any time": {"trouble": killing("server")},
    "all of them, and 30 % drop out": {"trouble": killing("all"), "lost": dropping(0.3)},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    given = parser.parse_args()
    print(header(torch.device("cpu")))
    print("| what happens | rounds released | answers per round | stood in for | P@1 % | counted |")
    print("|---|---:|---:|---:|---:|---|")
    for name, options in DRILLS.items():
        with tempfile.TemporaryDirectory() as folder:
            print(f"| {name} |", " | ".join(Drill(Path(folder), given.rounds, **options).run()), "|", flush=True)


if __name__ == "__main__":
    main()
