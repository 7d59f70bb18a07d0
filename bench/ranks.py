"""One process against two of torchrun's on the CPU, in one run: python bench/ranks.py [--repeats 5] [--nccl] [--paper].

FedHide, LeNet, 64 clients per round, batch 16, one local step; digits 8x8 and random 28x28 images; one thread per
process. Blocks of rounds of one process and of two alternate, so that both see the same machine. Prints milliseconds
per round (median, half range), the ratio of the medians and its range over the pairs of blocks, the processor time of
rank 0 by itself and as one of two, and the bytes that crossed per round by field. The load is printed because on a
machine that is busy with other work the ratio says nothing: the second process then has no core of its own.

--nccl: one process with a group of its own on a GPU, to see the collectives' path run there; it measures no scaling.
--paper: no measurement, but what would cross for 8 to 1,024 GPUs, and the time that the bytes alone would take.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.common import header, random_federation
from selfsame.config.recipe import from_mapping
from selfsame.data import Federation, load
from selfsame.engine.plan import make_plan
from selfsame.engine.ranks.group import ALONE, GATHERED, SUMMED, Crossing, Ranks, join, leave
from selfsame.engine.rounds import Engine
from selfsame.engine.setup import prepare
from selfsame.engine.state import begin

SHAPES = ("digits 8x8", "random 28x28")


def tables(device: str, precision: str = "float32") -> dict:
    return {
        "method": {"name": "fedhide"},
        "data": {"name": "digits"},
        "run": {"rounds": 100000, "device": device, "precision": precision, "compile": "off"},
        "cohort": {"size": 64},
        "local": {"steps": 1, "batch": 16, "lr": 0.1},
        "server": {"optimiser": "momentum"},
    }


def federation(shape: str) -> Federation:
    if shape.startswith("digits"):
        return load("digits", clients_per_class=8)
    return random_federation(112, 100, (1, 28, 28))


class Case:
    """Rounds of one shape among these ranks."""

    def __init__(self, shape: str, ranks: Ranks, device: str, precision: str = "float32") -> None:
        self.problem = prepare(from_mapping(tables(device, precision)), federation(shape), ranks)
        self.state, self.engine = begin(self.problem), Engine(self.problem)

    def rounds(self, count: int) -> tuple[float, float]:
        """Milliseconds per round, by the clock and of this process on its processor."""
        plan = make_plan(self.problem.recipe, self.state.round, count, self.state.present)
        self.problem.ranks.wait()
        begun, spent = time.perf_counter(), time.process_time()
        self.engine.run(self.state, plan)
        return 1000 * (time.perf_counter() - begun) / count, 1000 * (time.process_time() - spent) / count


def work(count: int, repeats: int) -> None:
    """What each of two processes does: both together, then rank 0 alone while the other waits."""
    torch.set_num_threads(1)
    ranks = join()
    found = {}
    for shape in SHAPES:
        together, alone = Case(shape, ranks, "cpu"), Case(shape, ALONE, "cpu") if ranks.first else None
        together.rounds(3)
        if alone is not None:
            alone.rounds(3)
        blocks = []
        for _ in range(repeats):
            two = together.rounds(count)
            one = alone.rounds(count) if alone is not None else (0.0, 0.0)
            ranks.wait()
            blocks.append((one, two))
        apart = 0.0
        if alone is not None:
            apart = float((alone.state.theta_P - together.state.theta_P).abs().max())
        crossed = {name: (one.how, one.size) for name, one in ranks.crossed.items()}
        found[shape] = {"blocks": blocks, "words": ranks.crossing_words(), "crossed": crossed, "apart": apart}
    if ranks.first:
        print(json.dumps(found))
    leave(ranks)


def measure(count: int, repeats: int) -> dict:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "--work", "--count", str(count), "--repeats", str(repeats)]
    both = [
        subprocess.Popen(command, env={**os.environ, **place, "RANK": rank, "LOCAL_RANK": rank}, stdout=subprocess.PIPE)
        for rank in ("0", "1")
    ]
    said, _ = both[0].communicate()
    both[1].communicate()
    if any(process.returncode for process in both):
        raise SystemExit("a process failed")
    return json.loads(said)


def nccl(count: int) -> None:
    """The path of the collectives with a group of one on a GPU, against the plain path: theta, and the time.

    Sums on a GPU have no fixed order, and rounds let such differences grow: so the plain path is also held to itself.
    """
    import torch.distributed as dist

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=0, world_size=1)
    print(header(torch.device("cuda")))
    for shape, precision in itertools.product(SHAPES, ("float32", "float64")):
        group = Ranks(0, 1, 0, active=True)
        plain, again = (Case(shape, ALONE, "cuda", precision) for _ in range(2))
        one = Case(shape, group, "cuda", precision)
        for case in (plain, again, one):
            case.rounds(3)
        times = [(plain.rounds(count)[0], one.rounds(count)[0], again.rounds(count)[0]) for _ in range(3)]
        gap, noise = (float((plain.state.theta_P - c.state.theta_P).abs().max()) for c in (one, again))
        a, b = (statistics.median(block[side] for block in times) for side in (0, 1))
        print(f"{shape}, {precision}: plain {a:.2f} ms, with NCCL's group of one {b:.2f} ms per round")
        print(f"  after {3 + 3 * count} rounds theta {gap:.1e} apart; two plain runs {noise:.1e}")
        print(f"  {group.words}; {group.crossing_words()}")
    dist.destroy_process_group()


RESNET = 11_431_488  # parameters of ResNet-18 with group norm and 512 outputs, as `Model.parameters` counts them
BAGS = 71_685_120  # those of the embedding bag of 135,909 features with its layers, 512 outputs
CLASSES, WIDTH, NEIGHBOURS, COHORT, EACH = 670_091, 512, 10, 4096, 16
NEAR, FAR = 450e9, 50e9  # bytes a second out of a GPU: NVLink within a host, 400 Gb/s between hosts


def paper() -> None:
    """The bytes of a round by the same formulas as in a run, and the time they take at these bandwidths."""
    row = 4 * WIDTH
    print("GPUs, case, MB out of each per round, ms at 450 GB/s, ms at 50 GB/s, table MB on each")
    for ranks in (8, 16, 64, 256, 1024):
        clients = EACH * ranks
        fedhide = [Crossing(SUMMED, 4 * RESNET), Crossing(GATHERED, clients * (2 * row + 5))]
        common = [Crossing(SUMMED, 4 * BAGS), Crossing(GATHERED, COHORT * (row + 5))]
        blocks = [
            *(Crossing(SUMMED, COHORT * row) for _ in range(2)),
            Crossing(GATHERED, ranks * COHORT * NEIGHBOURS * (4 + 8)),
        ]
        table = CLASSES * row
        cases = {
            f"ResNet-18, FedHide, {EACH} clients a GPU": (fedhide, 0.0),
            "670k classes, FedAwS, whole tables": (common, table),
            "670k classes, FedAwS, in blocks": (common + blocks, table / ranks),
        }
        for name, (fields, held) in cases.items():
            out = sum(one.out(ranks) for one in fields)
            print(
                f"{ranks:5d}  {name:38s} {out / 1e6:9.1f} {1e3 * out / NEAR:8.2f} {1e3 * out / FAR:8.2f} "
                f"{held / 1e6:8.1f}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--count", type=int, default=10, help="rounds a block")
    parser.add_argument("--nccl", action="store_true", help="a group of one on a GPU")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--paper", action="store_true", help="what would cross on more GPUs than there are")
    options = parser.parse_args()
    if options.paper:
        return paper()
    if options.work:
        return work(options.count, options.repeats)
    if options.nccl:
        return nccl(options.count)
    before = os.getloadavg()[0]
    found = measure(options.count, options.repeats)
    torch.set_num_threads(1)
    print(f"{header(torch.device('cpu'))}; load {before:.1f} before, {os.getloadavg()[0]:.1f} after")
    titles = ("one ms", "+-", "two ms", "+-", "times", "from", "to", "one cpu", "two cpu")
    print(f"{'case':14s}" + "".join(f"{title:>9s}" for title in titles))
    for shape, result in found.items():
        one, two = ([block[side][0] for block in result["blocks"]] for side in (0, 1))
        spent = [statistics.median(block[side][1] for block in result["blocks"]) for side in (0, 1)]
        ratio = [x / y for x, y in zip(one, two, strict=True)]
        half = [(max(values) - min(values)) / 2 for values in (one, two)]
        a, b = statistics.median(one), statistics.median(two)
        values = (a, half[0], b, half[1], a / b, min(ratio), max(ratio), *spent)
        print(f"{shape:14s}" + "".join(f"{value:9.2f}" for value in values))
    for shape, result in found.items():
        print(f"{shape}: {result['words']}; theta {result['apart']:.1e} apart")


if __name__ == "__main__":
    main()
