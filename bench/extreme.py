"""Very many classes: python bench/extreme.py [--device cuda] [--classes 670091] [--width 512] [--cohort 4096].

FedAwS on sparse bags of features (the shape of Amazon-670K) with mining (8) over a subset and over all classes. Prints
one table: milliseconds per round (median, half range), what the search for neighbours takes of it, peak memory, the
size of the tables, and the share of the true neighbours that the search finds.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.common import Case, header, timed
from selfsame.data import Federation, Samples
from selfsame.methods.base import unit
from selfsame.methods.neighbours import nearest
from selfsame.streams import Stream


@dataclass(frozen=True)
class Drawn:
    """Bags of random features, computed where they are used: no table of samples in the way of the measurement."""

    features: int
    length: int
    on_host: ClassVar[bool] = False

    def rows(self, client_M: Tensor, index_MB: Tensor) -> Tensor:
        stream = Stream.named(0, "bag", client_M)
        size = (*index_MB.shape, self.length)
        index = stream.below(torch.full_like(client_M, self.features), *size[1:]).to(torch.float32)
        value = stream.fold(1).uniform(*size[1:])
        return torch.stack([index, value], 2)

    def to(self, device: torch.device | str) -> Drawn:
        return self


def federation(classes: int, features: int, length: int) -> Federation:
    none = Samples(torch.zeros(0, 2, length), torch.zeros(0, dtype=torch.int64))
    source = Drawn(features, length)
    every = torch.arange(classes)
    return Federation("bags", (2, length), every, torch.full((classes,), 8), source, none, none)


def peak(device: torch.device) -> float:
    """MiB: of the GPU's allocator, or of the process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def recall(table_CD: Tensor, queries: int, k: int) -> float:
    """How many of the k nearest in float64 the search finds, for a few queries."""
    own = torch.arange(0, len(table_CD), max(1, len(table_CD) // queries), device=table_CD.device)[:queries]
    _, found = nearest(unit(table_CD[own]), table_CD, k, label_M=own, view=unit)
    right = []
    for part in own.split(4):
        score = unit(table_CD[part].double()) @ unit(table_CD.double()).T
        score[torch.arange(len(part), device=score.device), part] = -torch.inf
        right.append(score.topk(k).indices)
    same = found[:, :, None] == torch.cat(right)[:, None, :]
    return float(same.any(2).double().mean())


def measure(options: argparse.Namespace, name: str, method: dict) -> list:
    """[name, ms per round, half range, peak MiB, MiB of the state, recall] of one case."""
    device = torch.device(options.device)
    tables = {
        "method": method,
        "data": {"name": "synthetic"},
        "net": {"name": "embedding-bag", "width": options.width, "features": options.features},
        "run": {"rounds": 100000, "device": options.device, "compile": "off"},
        "cohort": {"size": options.cohort},
        "local": {"steps": 1, "batch": options.batch, "lr": 0.1},
    }
    data = federation(options.classes, options.features, options.length)
    case = Case(tables, data, "cohort", graphs=device.type == "cuda")
    held = sum(t.numel() * t.element_size() for t in case.state.tensors().values()) / 2**20
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    case.rounds(6)
    ms, spread = timed(case.rounds, options.rounds, options.repeats)
    most = peak(device)
    found = recall(case.state.server["class_embedding"], 64, 10) if "all" in name else None
    return [name, ms, spread, most, held, found]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    gpu = torch.cuda.is_available()
    parser.add_argument("--device", default="cuda" if gpu else "cpu", choices=["cpu", "cuda"])
    parser.add_argument("--classes", type=int, default=670091 if gpu else 20000)
    parser.add_argument("--width", type=int, default=512 if gpu else 64)
    parser.add_argument("--cohort", type=int, default=4096 if gpu else 256)
    parser.add_argument("--features", type=int, default=135909 if gpu else 5000)
    parser.add_argument("--length", type=int, default=76, help="features of a sample")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--subset", type=int, default=10000)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", type=int, choices=[0, 1, 2], help="one case, its figures as JSON")
    options = parser.parse_args()
    cases = (
        ("no spreading (positive-only)", {"name": "positive-only"}),
        (f"mining over {options.subset:,} of the classes", {"name": "fedaws", "subset": options.subset}),
        ("mining over all classes", {"name": "fedaws"}),
    )
    if options.only is not None:
        print(json.dumps(measure(options, *cases[options.only])))
        return
    rows = []
    for number in range(len(cases)):  # in a process of its own, so that its peak of memory is its own
        command = [sys.executable, *sys.argv, "--only", str(number)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            sys.exit(done.stderr)
        rows.append(json.loads(done.stdout.splitlines()[-1]))
        print(f"{rows[-1][0]}: {rows[-1][1]:.1f} ms", flush=True)
    print(header(torch.device(options.device)))
    print(f"{options.classes:,} classes x {options.width}, {options.cohort:,} clients per round, batch {options.batch}")
    print(
        f"{'case':40s} {'ms/round':>9s} {'+-':>6s} {'peak MiB':>9s} {'state MiB':>9s} {'times':>6s} {'recall@10':>9s}"
    )
    for name, ms, spread, most, held, found in rows:
        share = "" if found is None else f"{found:.4f}"
        print(f"{name:40s} {ms:9.2f} {spread:6.2f} {most:9.0f} {held:9.0f} {most / held:6.2f} {share:>9s}")


if __name__ == "__main__":
    main()
