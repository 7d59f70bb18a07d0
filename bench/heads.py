"""A head that all clients share, with and without a replica for each: python bench/heads.py [--threads 1].

Softmax over all classes, one local step. With replicas every client's derivatives in the class matrix are numbers of
their own; without, one weighted sum of losses has them at once (`engine/settle.py`). The same rounds in turns,
milliseconds a round, the median of --repeats.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.common import Case, header, random_federation
from selfsame.engine.settle import settle

CASES = (  # images, clients, of a round, samples of each, width
    ((1, 8, 8), 100, 10, 16, 32),
    ((1, 28, 28), 248, 31, 8, 128),
    ((3, 32, 32), 547, 64, 4, 128),
    ((1, 8, 8), 949, 256, 16, 512),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print(header(torch.device("cpu")))
    print(
        "| images | classes | clients | width | with replicas | without | times |\n|---|---:|---:|---:|---:|---:|---:|"
    )
    for shape, clients, some, batch, width in CASES:
        case = Case(tables(some, batch, width), random_federation(clients, batch, shape), "cohort")
        with_, without = measured(case, args.repeats)
        cells = f"{clients} | {some} | {width} | {told(with_)} | {told(without)} | "
        times = statistics.median(with_) / statistics.median(without)
        print(f"| {'x'.join(map(str, shape[1:]))}{', colour' * (shape[0] == 3)} | {cells}{times:.1f} |", flush=True)


def tables(clients: int, batch: int, width: int) -> dict[str, Any]:
    return {
        "method": {"name": "softmax"},
        "data": {"name": "synthetic"},
        "net": {"name": "lenet", "width": width},
        "run": {"rounds": 10**6, "device": "cpu", "compile": "on"},
        "cohort": {"size": clients},
        "local": {"steps": 1, "batch": batch},
    }


def measured(case: Case, repeats: int, rounds: int = 3) -> tuple[list[float], list[float]]:
    """Milliseconds a round with replicas and without, in turns."""
    found: tuple[list[float], list[float]] = ([], [])
    tools = case.problem.tools
    ways = (partial(settle, replicas=True), tools.settle)
    for turn in range(-1, repeats):
        for way, times in zip(ways, found, strict=True):
            object.__setattr__(tools, "settle", way)
            seconds = case.rounds(rounds)
            if turn >= 0:
                times.append(1000 * seconds / rounds)
    return found


def told(times: list[float]) -> str:
    return f"{statistics.median(times):.1f} ± {(max(times) - min(times)) / 2:.1f}"


if __name__ == "__main__":
    main()
