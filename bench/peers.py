"""selfsame against other simulators on 2 cores, the same work in one run: python bench/peers.py [--reuse].

Federated averaging where each of 100 clients pulls its samples to its class vector (positive-only): LeNet, 32-d, batch
16, plain SGD. Every simulator starts from the same parameters, is handed the same batches, runs in a process of its
own, in its own environment under build/peers/, and must end with the same parameters. Each is run in several settings
of the 2 cores; the fastest counts. Prints one table and what each was given.
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import dataclass
from itertools import product
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent / "peers"))

import torch
from case import CHECK, CLIENTS, METHODS, Shape, write
from environment import install, python_of
from process import Outcome, Setting, run
from table import best, head, row

from bench.common import header
from selfsame.errors import SelfsameError

ROOT = Path(__file__).resolve().parents[1]
PARTS = ROOT / "bench" / "peers"
BUILD = ROOT / "build" / "peers"
CORES = 2
LIMIT = 900.0  # seconds for one driver
ONE_PROCESS = (Setting(1), Setting(CORES))
TORCHRUN = ("selfsame", "module", "pfl")  # have a mode of one process per core that it starts


@dataclass(frozen=True)
class Peer:
    """A simulator: what to install, the settings to try, and what the reader should know of them."""

    package: str  # empty: it runs in the project's own environment
    settings: tuple[Setting, ...]
    given: str
    methods: tuple[str, ...] = ("positive-only",)


PEERS = {
    "selfsame": Peer(
        "",
        (*ONE_PROCESS, Setting(1, CORES)),
        "the cohort engine; draws and standardises its batches in the timed rounds, the others get theirs ready-made; "
        "2x1 is under torchrun",
        METHODS,
    ),
    "module": Peer(
        "",
        (*ONE_PROCESS, Setting(1, CORES)),
        "selfsame with run.compile = off, as it is where there is no C compiler",
        METHODS,
    ),
    "plain": Peer("", ONE_PROCESS, "our own PyTorch loop, one client after another"),
    "pfl": Peer(
        "pfl==0.6.0",
        (*ONE_PROCESS, Setting(1, CORES)),
        "FederatedAveraging on SimulatedBackend, tensors in memory; 2x1 is its own distributed mode under torchrun",
    ),
    "flower": Peer(
        "flwr[simulation]==1.41.0",
        (Setting(1, CORES), Setting(CORES)),
        "run_simulation on ray, actors kept, 1 core a client (2x1) or both (1x2); looks for answers every 1 ms "
        "in place of 100; its runtime hands out messages every 100 ms, which cannot be set",
    ),
    "fluke": Peer(
        "fluke-fl==0.8.1",
        ONE_PROCESS,
        "FedAVG in one process, models in memory, no evaluation; its FedAwS averages the class vectors of the whole "
        "cohort where the paper's Step 13 takes each from its own client, so that it cannot agree",
        METHODS,
    ),
}


def numbers(option: str, text: str, least: int, most: int) -> list[int]:
    """'10,64' as [10, 64], each within its range."""
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        raise SelfsameError(f"{option}: expected whole numbers with commas between them, got {text!r}") from None
    for number in found:
        if not least <= number <= most:
            raise SelfsameError(f"{option}: must be {least} to {most}, got {number}")
    return found


def chosen(text: str) -> list[str]:
    """The peers asked for, in the order of the table."""
    asked = text.split(",")
    for name in asked:
        if name not in PEERS:
            raise SelfsameError(f"--only: unknown peer {name!r}; the peers are: {', '.join(PEERS)}")
    return [name for name in PEERS if name in asked]


def environment(setting: Setting) -> dict[str, str]:
    """Threads as set, the project importable, and nobody reports home."""
    threads = str(setting.threads)
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_HOME": str(BUILD / "flwr"),
        "RAY_USAGE_STATS_ENABLED": "0",
    }


def command(name: str, folder: Path, out: Path, setting: Setting) -> list[str]:
    """How a driver is started; torchrun starts the workers of those that have such a mode, Flower starts its own."""
    python = str(python_of(BUILD / name)) if PEERS[name].package else sys.executable
    several = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(setting.workers)]
    launch = several if name in TORCHRUN and setting.workers > 1 else []
    driver = str(PARTS / f"drive_{name}.py")
    told = [str(folder), str(out), "--threads", str(setting.threads), "--workers", str(setting.workers)]
    return [python, *launch, driver, *told]


def measure(name: str, shape: Shape, folder: Path, broken: str) -> Outcome:
    """The fastest setting of a peer in one case."""
    peer = PEERS[name]
    if broken or shape.method not in peer.methods:
        return Outcome(peer.settings[0], failed=broken or f"has no {shape.method}")
    outcomes = []
    for setting in peer.settings:
        out = folder / f"{name}-{setting}.json"
        outcomes.append(run(command(name, folder, out, setting), out, setting, environment(setting), LIMIT))
    return best(outcomes, shape.rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(PEERS), help="peers, with commas between them")
    parser.add_argument("--method", default=METHODS[0], choices=METHODS)
    parser.add_argument("--clients-per-round", default="10,64")
    parser.add_argument("--steps", default="1,5", help="local steps")
    parser.add_argument("--image", default="8,28", help="height and width")
    parser.add_argument("--colour", action="store_true", help="images of three channels")
    parser.add_argument("--rounds", type=int, default=10, help="rounds in a timed block")
    parser.add_argument("--repeats", type=int, default=5, help="timed blocks")
    parser.add_argument("--reuse", action="store_true", help="keep environments that are already installed")
    options = parser.parse_args()
    try:
        names = chosen(options.only)
        cohorts = numbers("--clients-per-round", options.clients_per_round, 1, CLIENTS)
        steps = numbers("--steps", options.steps, 1, 1000)
        images = numbers("--image", options.image, 4, 256)
        (rounds,) = numbers("--rounds", str(options.rounds), 1, 10**6)
        (repeats,) = numbers("--repeats", str(options.repeats), 1, 10**6)
    except SelfsameError as error:
        parser.error(str(error))

    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    broken = {
        name: install(BUILD / name, PEERS[name].package, options.reuse) if PEERS[name].package else "" for name in names
    }
    print(header(torch.device("cpu")))
    print(
        f"{options.method}, {repeats} blocks of {rounds} rounds after {CHECK} of warm-up: median and half range; "
        f"load average {os.getloadavg()[0]:.1f} before"
    )
    print(head(), flush=True)
    for image, cohort, step in product(images, cohorts, steps):
        shape = Shape(options.method, cohort, step, image, rounds, repeats, 3 if options.colour else 1)
        folder = BUILD / "cases" / shape.name
        write(shape, folder)
        ours = None
        for name in names:
            outcome = measure(name, shape, folder, broken[name])
            ours = outcome if name == "selfsame" else ours
            print(row(name, shape, outcome, ours), flush=True)
    print(f"\ncores: processes x threads, the fastest of those tried. max diff: parameters after {CHECK} rounds.")
    print("peak MiB: of all processes of a peer; what they share is counted once.")
    for name in names:
        tried = ", ".join(map(str, PEERS[name].settings))
        print(f"{name}: {PEERS[name].given}. Tried {tried}.")


if __name__ == "__main__":
    main()
