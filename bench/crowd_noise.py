"""What noise on FedCrowd's polls costs, by the number of devices: python bench/crowd_noise.py FILE [options].

The noise is what a composed epsilon of 8 or 2 (delta 1e-5) asks for over all polls of a run: Gaussian noise composes
exactly. Updates carry none, so the epsilon is of polls alone. Beside each figure stands `reach`: the radius of the
noise's spectrum over an even crowd's eigenvalue 1/K, from which theory expects a cost where it nears one.

Omniglot: 964 characters, and with --rotations 3,856; EER on 659 unseen characters, which stay upright.
synthetic: any number of identities; EER on 200 others. Devices take part equally often, whatever their number.

Every finished run is a line of the file; one that is there already is not repeated, and several processes share a file
(`selfsame/runs/sharing.py`). --table prints what is there.

    python bench/crowd_noise.py noise.jsonl --data synthetic --sizes 1000,4000,16000,64000 --device cuda
    python bench/crowd_noise.py noise.jsonl --data omniglot --path DATA --rotations --device cuda
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from selfsame.config.recipe import Recipe, from_mapping  # noqa: E402
from selfsame.data import Federation, load  # noqa: E402
from selfsame.engine.machine import choose_machine  # noqa: E402
from selfsame.engine.plan import make_plan  # noqa: E402
from selfsame.engine.rounds import Engine  # noqa: E402
from selfsame.engine.setup import prepare  # noqa: E402
from selfsame.engine.state import begin  # noqa: E402
from selfsame.methods.fedcrowd import FedCrowd  # noqa: E402
from selfsame.methods.poll import Poll  # noqa: E402
from selfsame.privacy.accountant import gaussian_epsilon  # noqa: E402
from selfsame.runs.course import Run  # noqa: E402
from selfsame.runs.sharing import finished, share  # noqa: E402

DELTA = 1e-5
Tables = dict[str, Any]


def terms_of(width: int, dim: int) -> Poll:
    """What a poll with products of this width is made of."""
    terms = FedCrowd(sketch=width).poll(dim)
    assert terms is not None
    return terms


def noise_for(epsilon: float, polls: int, terms: Poll) -> float:
    """The least noise (in lengths of a contribution) at which so many polls have this epsilon; 0: none is asked for."""
    if not epsilon:
        return 0.0
    low, high = 1e-3, 1e4
    for _ in range(60):
        middle = math.sqrt(low * high)
        spent = gaussian_epsilon(math.sqrt(polls) * terms.apart / (middle * terms.longest), DELTA)
        low, high = (middle, high) if spent > epsilon else (low, middle)
    return float(f"{high:.4g}")


def reach(noise: float, width: int, clients: int, terms: Poll) -> float:
    """The radius of the noise on the mean of products, in units of an even crowd's eigenvalue 1/K."""
    return noise * terms.longest / clients * math.sqrt(2 * width) * width


def recipe(args: argparse.Namespace, clients: int, width: int, epsilon: float, seed: int) -> Recipe:
    """FedCrowd such that each device takes part `--parts` times, with `--polls` polls."""
    channels = {"channels": [16, 32]} if args.data == "synthetic" else {}
    size = max(64, clients // 64)
    rounds = args.parts * clients // size
    every = max(1, rounds // args.polls)
    polls = -(-rounds // every)
    noise = noise_for(epsilon, polls, terms_of(width, args.width))
    over: Tables = {"name": "omniglot", "path": args.path, "rotations": args.rotations}
    if args.data == "synthetic":
        over = {"name": "synthetic", "clients": clients, "held_out": 200, "latent": args.latent, "noise": args.spread}
    return from_mapping(
        {
            "method": {"name": "fedcrowd", "sketch": width, "every": every, "noise": noise},
            "data": over,
            "net": {"name": "lenet", "width": args.width, **channels},
            "run": {
                "rounds": rounds, "seed": seed, "device": args.device, "precision": "float32", "eval_every": 0,
                "compile": "graphs" if args.device.startswith("cuda") else "auto",
            },
            "cohort": {"size": size},
            "local": {"steps": 1, "batch": 8, "lr": args.lr, "schedule": "cosine"},
            "server": {"optimiser": "momentum", "weight_decay": 5e-4},
            "augment": {"crop": 2} if args.data == "omniglot" else {},
        }
    )  # fmt: skip


def federation_of(args: argparse.Namespace, clients: int) -> Federation:
    if args.data == "omniglot":
        return load("omniglot", args.path or None, rotations=args.rotations)
    return load("synthetic", clients=clients, held_out=200, latent=args.latent, noise=args.spread)


def measured(args: argparse.Namespace, federation: Federation, width: int, epsilon: float, seed: int) -> Tables:
    """The figures of one run."""
    order = recipe(args, federation.clients, width, epsilon, seed)
    problem = prepare(order, federation)
    state = begin(problem)
    begun = time.perf_counter()
    engine = Engine(problem, graphs=choose_machine(order.run).graphs)
    engine.run(state, make_plan(problem.recipe, 0, order.run.rounds, state.present))
    seconds = time.perf_counter() - begun
    found = Run(problem, state).evaluate().figures
    noise = order.method.options["noise"]
    return {
        "eer": found.get("eer"), "p@1": found.get("p@1"), "noise": noise, "rounds": order.run.rounds,
        "reach": reach(noise, width, federation.clients, terms_of(width, args.width)), "seconds": seconds,
    }  # fmt: skip


def table(args: argparse.Namespace) -> None:
    lines = finished(args.file)
    print("| data | devices | K | epsilon | noise | reach | EER, unseen | seeds |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    cases = sorted({tuple(line["key"][name] for name in ("data", "clients", "width", "epsilon")) for line in lines})
    for case in cases:
        some = [
            line for line in lines if tuple(line["key"][n] for n in ("data", "clients", "width", "epsilon")) == case
        ]
        eer = [100 * line["eer"] for line in some]
        spread = statistics.stdev(eer) if len(eer) > 1 else 0.0
        data, clients, width, epsilon = case
        print(
            f"| {data} | {clients:,} | {width} | {epsilon or 'none'} | {some[0]['noise']:.3g} | {some[0]['reach']:.2g} "
            f"| {statistics.mean(eer):.1f} ± {spread:.1f} | {len(eer)} |"
        )


def main() -> None:
    parser = options()
    args = parser.parse_args()
    if args.table:
        table(args)
        return
    federation = lru_cache(maxsize=1)(lambda clients: federation_of(args, clients))
    drawn = args.data == "synthetic"
    sizes = [int(size) for size in args.sizes.split(",")] if drawn else [federation(0).clients]
    cases = product(sizes, range(args.seeds), map(int, args.widths.split(",")), map(float, args.epsilons.split(",")))
    keys = [
        {
            "data": args.data, "clients": clients, "width": width, "epsilon": epsilon, "seed": seed,
            "lr": args.lr, "parts": args.parts, "polls": args.polls,
        }
        for clients, seed, width, epsilon in cases
    ]  # fmt: skip

    def one(key: Tables) -> Tables:
        there = federation(key["clients"] if drawn else 0)
        return measured(args, there, key["width"], key["epsilon"], key["seed"])

    share(args.file, keys, one)


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--data", choices=("synthetic", "omniglot"), default="synthetic")
    parser.add_argument("--path", default="")
    parser.add_argument("--rotations", action="store_true")
    parser.add_argument("--sizes", default="1000,4000,16000,64000")
    parser.add_argument("--widths", default="32", help="of the polls, K")
    parser.add_argument("--epsilons", default="0,8,2", help="0: no noise")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--width", type=int, default=128, help="of the embedding")
    parser.add_argument("--parts", type=int, default=200, help="rounds that each device takes part in")
    parser.add_argument("--polls", type=int, default=8)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--latent", type=int, default=16, help="dimensions of a synthetic identity")
    parser.add_argument("--spread", type=float, default=0.5, help="how far a synthetic sample is from its identity")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--table", action="store_true", help="print what is there and stop")
    return parser


if __name__ == "__main__":
    main()
