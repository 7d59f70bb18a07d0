"""Real clusters for tests: a run is started, something is done to it, and what devices keep is watched throughout."""

from __future__ import annotations

import hashlib
import os
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from selfsame.config.recipe import Recipe, from_mapping, to_toml
from selfsame.deploy.flower import terms
from selfsame.deploy.flower.cluster import Cluster, Node
from selfsame.deploy.flower.watch import Watch
from selfsame.deploy.memory import Keep, Memory
from selfsame.engine.plan import make_plan
from selfsame.engine.rounds import Engine
from selfsame.engine.setup import prepare
from selfsame.engine.state import State, begin

Script = Callable[["Drill"], Iterator[None]]

# What a node has that answers as it likes: its own device, put in place of ours wherever that is imported.
HOSTILE = """
import importlib.abc, importlib.machinery, os, sys

class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != "selfsame.deploy.device":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        load = spec.loader.exec_module
        spec.loader.exec_module = lambda module: (load(module), spoil(module))
        return spec

def spoil(module):
    import torch
    from selfsame.deploy.codec import decode, encode, glance
    honest, way, old = module.Device.reply, os.environ["HOSTILE"], os.environ["HOSTILE_KEPT"]

    def reply(self, payload):
        kind, turn, said = glance(payload, len(payload))
        answer = honest(self, payload)
        if kind != "train":
            return answer
        if way == "zeros":
            return bytes(100_000_000)
        if way == "replay":
            if not os.path.exists(old):
                open(old, "wb").write(answer)
            return open(old, "rb").read()
        kind, turn, meta = glance(answer, len(answer))
        from safetensors.torch import load
        fields = load(answer)
        name = "network"
        if way == "nan":
            fields[name] = torch.full_like(fields[name], float("nan"))
        elif way == "shape":
            fields[name] = fields[name][:-1].contiguous()
        elif way == "fields":
            fields = {"network": fields["network"], "centre": torch.zeros(1, 8), "radius": torch.zeros(1)}
        return encode(kind, turn, meta, fields)

    module.Device.reply = reply

sys.meta_path.insert(0, Finder())
"""


def order(method: str, nodes: int, rounds: int, **options: Any) -> Recipe:
    """The first digits, one per node, and a small network."""
    return from_mapping(
        {
            "method": {"name": method, **options},
            "data": {"name": "digits", "turns": 1, "held_out": 10 - nodes},
            "net": {"name": "lenet", "width": 8, "channels": [4, 4]},
            "run": {"rounds": rounds, "device": "cpu", "precision": "float32"},
            "local": {"batch": 8, "lr": 0.1},
            "cohort": {"size": nodes},
        }
    )


def simulated(recipe: Recipe, missing: dict[int, list[int]] | None = None) -> State:
    """The same run on the reference engine; `missing` says which clients did not answer in which round."""
    problem = prepare(recipe)
    state = begin(problem)
    plan = make_plan(problem.recipe, 0, recipe.run.rounds, state.present)
    for number, clients in (missing or {}).items():
        plan.alive_TM[number, clients] = False
    Engine(problem, "reference").run(state, plan)
    return state


class Drill:
    """A cluster in a folder and the run in it."""

    def __init__(self, folder: Path, recipe: Recipe, nodes: int, wait: float = 40.0, **serving: Any) -> None:
        self.recipe, self.wait, self.folder = recipe, wait, folder
        server = folder / "server"
        server.mkdir(parents=True)
        (server / "recipe.toml").write_text(to_toml(recipe), encoding="utf-8")
        chosen = {"fewest": 0, "seeded": True, **serving}
        terms.Serving(nodes=nodes, answer_wait=wait, embedding_wait=wait, **chosen).write(server / terms.FILE)
        extra: dict[str, str | bool] = {"simulate": True, "simulated-enclave": True}
        self.cluster = Cluster(folder, [f"digits:{number}" for number in range(nodes)], extra)
        self.watch = Watch(self.cluster, server)
        self.seen: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
        self.turns: dict[str, list[int]] = defaultdict(list)
        self.begun = 0.0

    def hostile(self, number: int, way: str) -> None:
        """Let a node answer as it likes."""
        place = self.folder / "hostile"
        place.mkdir(exist_ok=True)
        (place / "sitecustomize.py").write_text(HOSTILE, encoding="utf-8")
        kept = str(self.folder / f"kept-{number}")
        self.cluster.nodes[number].environment = {"PYTHONPATH": str(place), "HOSTILE": way, "HOSTILE_KEPT": kept}

    def run(self, script: Script | None = None, limit: float = 400.0) -> list[dict[str, Any]]:
        """Run to the last round, advancing the script on the way; the records of the rounds."""
        self.begun = time.monotonic()
        steps = script(self) if script is not None else iter(())
        try:
            with self.cluster:
                for _ in self.watch.run():
                    self.sample()
                    next(steps, None)
                    assert time.monotonic() < self.begun + limit, f"round {self.watch.round} after {limit} s"
                self.sample()
        finally:
            self.seconds = time.monotonic() - self.begun
        assert next(steps, "over") == "over", "the script was not finished"
        assert self.cluster.processes() == [], "processes are left"
        self.intact()
        return self.watch.records()

    # What a script does

    def node(self, number: int) -> Node:
        return self.cluster.nodes[number]

    def kill(self, number: int) -> None:
        """As if the device lost power: SIGKILL of the SuperNode and of everything that it started."""
        node = self.node(number)
        node.wanted = False
        pids = self.cluster.processes(node=node.name)
        self.cluster.kill(node.process)
        for pid in pids:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)

    def kill_server_app(self) -> int:
        """SIGKILL of the ServerApp alone; how many there were."""
        found = self.cluster.processes("flwr-serverapp")
        for pid in found:
            os.kill(pid, signal.SIGKILL)
        return len(found)

    def working(self, number: int) -> bool:
        """Whether a ClientApp of this node runs."""
        return bool(self.cluster.processes("flwr-clientapp", node=self.node(number).name))

    def spin(self, until: Callable[[], bool], limit: float = 60.0) -> None:
        """Look again and again, without a pause in which something could be missed."""
        end = time.monotonic() + limit
        while not until():
            assert time.monotonic() < end, "it did not happen"
            time.sleep(0.005)

    # What is private

    def kept(self, number: int) -> Memory:
        place = Path(str(self.node(number).config["state"]))
        folders = [one for one in place.iterdir() if one.is_dir()] if place.is_dir() else []
        return Keep(folders[0]).read() if folders else Memory()

    def sample(self) -> None:
        """Note what every device keeps now."""
        for number, node in enumerate(self.cluster.nodes):
            kept = self.kept(number)
            self.turns[node.name].append(kept.turn)
            text = b"".join(name.encode() + kept.fields[name].numpy().tobytes() for name in sorted(kept.fields))
            self.seen[node.name][kept.turn].add(hashlib.sha256(text).hexdigest())

    def intact(self) -> None:
        """No device ever went back, and none had two states in one turn: nothing was lost, nothing done twice."""
        for name, turns in self.turns.items():
            assert turns == sorted(turns), f"{name} went back: {turns}"
        for name, states in self.seen.items():
            assert all(len(digests) == 1 for digests in states.values()), f"{name} repeated a turn"

    def own(self, numbers: list[int]) -> dict[str, torch.Tensor]:
        kept = [self.kept(number).fields for number in numbers]
        return {name: torch.cat([fields[name] for fields in kept]) for name in kept[0]}

    # Against the simulator

    def apart(self, missing: dict[int, list[int]] | None = None, numbers: list[int] | None = None) -> float:
        """The largest relative difference to the simulator: the server's tensors and these nodes' private ones."""
        state = simulated(self.recipe, missing)
        saved = load_file(self.folder / "server" / terms.RUN / "checkpoint" / "state.safetensors")
        mine = {name: value for name, value in saved.items() if not name.startswith("own.")}
        theirs = {name: value for name, value in state.tensors().items() if not name.startswith("own.")}
        rows = list(range(len(self.cluster.nodes))) if numbers is None else numbers
        if state.own:
            mine |= {f"own.{name}": value for name, value in self.own(rows).items()}
            theirs |= {f"own.{name}": value[rows] for name, value in state.own.items()}
        assert mine.keys() == theirs.keys()
        worst = 0.0
        for name, value in mine.items():
            other = theirs[name].double()
            assert value.shape == other.shape, name
            if other.numel():
                worst = max(worst, float((value.double() - other).abs().max() / other.abs().max().clamp(min=1e-30)))
        return worst
