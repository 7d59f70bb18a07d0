"""Every method over Flower, four nodes with TLS and authentication, against the reference engine after two rounds.

    python bench/flower.py [--methods fedhide,fdml] [--rounds 2] [--nodes 4] [--keep FOLDER]

Every node is a SuperNode of its own and starts a new process for each message; private draws come from the recipe's
seed, so that both can draw the same. Differences are relative to the largest entry of each tensor, float32.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from selfsame.config.recipe import Recipe, from_mapping, to_toml
from selfsame.deploy.flower import terms
from selfsame.deploy.flower.cluster import Cluster
from selfsame.deploy.flower.watch import Watch
from selfsame.deploy.memory import Keep
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


def order(name: str, nodes: int, rounds: int) -> Recipe:
    """The first digits, one per node, and the network that suits them."""
    lr = 0.01 if name.startswith("fedmetric") else 0.1
    return from_mapping(
        {
            "method": {"name": name, **OPTIONS.get(name, {})},
            "data": {"name": "digits", "turns": 1, "held_out": 10 - nodes},
            "run": {"rounds": rounds, "device": "cpu", "precision": "float32"},
            "local": {"batch": 8, "lr": lr},
            "cohort": {"size": nodes},
        }
    )


def simulated(recipe: Recipe) -> State:
    problem = prepare(recipe)
    state = begin(problem)
    Engine(problem, "reference").run(state, make_plan(problem.recipe, 0, recipe.run.rounds, state.present))
    return state


def gap(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> float:
    """The largest difference, relative to each tensor's largest entry; of one set of tensors in both."""
    assert left.keys() == right.keys(), sorted(left.keys() ^ right.keys())
    worst = 0.0
    for name, value in left.items():
        other = right[name].double()
        assert value.shape == other.shape, name
        if other.numel():
            worst = max(worst, float((value.double() - other).abs().max() / other.abs().max().clamp(min=1e-30)))
    return worst


def own_fields(cluster: Cluster) -> dict[str, torch.Tensor]:
    """What the devices keep, from their disks, in the order of the nodes."""
    kept = []
    for node in cluster.nodes:
        (folder,) = [place for place in Path(str(node.config["state"])).iterdir() if place.is_dir()]
        kept.append(Keep(folder).read().fields)
    return {name: torch.cat([fields[name] for fields in kept]) for name in kept[0]}


def compare(name: str, nodes: int, rounds: int, folder: Path) -> tuple[float, float | None, list[dict[str, Any]]]:
    """(difference of the server's state, of what devices keep where they keep something, records)."""
    recipe = order(name, nodes, rounds)
    split = issubclass(METHODS[name], SplitLoss)
    server = folder / "server"
    server.mkdir(parents=True)
    (server / "recipe.toml").write_text(to_toml(recipe), encoding="utf-8")
    terms.Serving(nodes=nodes, fewest=nodes - 1, seeded=True, answer_wait=120, embedding_wait=120).write(
        server / terms.FILE
    )
    extra = {"simulate": True, "simulated-enclave": True}
    with Cluster(folder, [f"digits:{number}" for number in range(nodes)], extra) as cluster:
        watch = Watch(cluster, server)
        for _ in watch.run():
            pass
        records = watch.records()
    assert cluster.processes() == [], "processes are left"
    state = simulated(recipe)
    found = load_file(server / terms.RUN / "checkpoint" / "state.safetensors")
    theirs = {key: value for key, value in state.tensors().items() if not key.startswith("own.")}
    apart = gap({key: value for key, value in found.items() if not key.startswith("own.")}, theirs)
    private = None if split or not state.own else gap(own_fields(cluster), dict(state.own))
    return apart, private, records


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    federated = [name for name, kind in METHODS.items() if kind.federated]
    parser.add_argument("--methods", default=",".join(federated))
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--keep", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    print("| method | network and tables | private fields | seconds per round | bytes down | bytes up |")
    print("|---|--:|--:|--:|--:|--:|")
    with tempfile.TemporaryDirectory() as scratch:
        for name in args.methods.split(","):
            place = (args.keep or Path(scratch)) / name
            apart, private, records = compare(name, args.nodes, args.rounds, place)
            last = records[-1]
            mean = sum(record["seconds"] for record in records) / len(records)
            down, up = (last[key] / args.nodes for key in ("down", "up"))
            kept = "-" if private is None else f"{private:.1e}"
            print(f"| {name} | {apart:.1e} | {kept} | {mean:.1f} | {down:,.0f} | {up:,.0f} |", flush=True)


if __name__ == "__main__":
    main()
