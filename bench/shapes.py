"""Rounds of the papers' larger experiments: python bench/shapes.py [--device cuda] [--only cifar100,voxceleb,vggface2].

FedHide (10 neighbours, one local step, batch 16) on random samples of the shapes of CIFAR-100 (ResNet-18, 10 of 100
clients), VoxCeleb1 (Fast ResNet-34 on 40 x 200 mel bands, 12 of 1,211) and VGGFace2 (MobileFaceNet on 64x64 faces, 9 of
8,631). Prints one table: milliseconds per round, rounds a second, and the hours that the paper's number of rounds
takes, beside the hours that the paper reports.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.common import Case, header, random_federation, timed

# net, clients, clients per round, sample, the paper's rounds and hours (Table 2)
SHAPES = {
    "cifar100": ("resnet18", 100, 10, (3, 32, 32), 100_000, 21.0),
    "voxceleb": ("fast-resnet34", 1211, 12, (1, 40, 200), 50_000, 24.0),
    "vggface2": ("mobilefacenet", 8631, 9, (3, 64, 64), 400_000, 80.0),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=["cpu", "cuda"])
    parser.add_argument("--only", default=",".join(SHAPES))
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--compile", default="auto", choices=["auto", "on", "off"])
    options = parser.parse_args()
    rows = []
    for name in options.only.split(","):
        net, clients, size, shape, rounds, hours = SHAPES[name]
        tables = {
            "method": {"name": "fedhide"},
            "data": {"name": "cifar100"},
            "net": {"name": net, "width": 512},
            "run": {"rounds": rounds, "device": options.device, "compile": options.compile},
            "cohort": {"size": size, "sampling": "round-robin"},
            "local": {"steps": 1, "batch": 16, "lr": 0.1},
        }
        begun = time.perf_counter()
        case = Case(tables, random_federation(clients, 20, shape), "cohort", graphs=options.device == "cuda")
        case.rounds(5)
        ready = time.perf_counter() - begun
        ms, spread = timed(case.rounds, options.rounds, options.repeats)
        rows.append((name, net, size, ms, spread, rounds, hours))
        print(f"{name}: {ms:.2f} ms, ready after {ready:.1f} s", flush=True)
        del case
    print(header(torch.device(options.device)))
    print(f"{'shape':10s} {'network':15s} {'clients':>7s} {'ms/round':>9s} {'+-':>6s} {'rounds/s':>9s} "
          f"{'paper rounds':>12s} {'hours':>7s} {'paper':>6s} {'times':>6s}")  # fmt: skip
    for name, net, size, ms, spread, rounds, hours in rows:
        mine = ms * rounds / 3.6e6
        print(f"{name:10s} {net:15s} {size:7d} {ms:9.2f} {spread:6.2f} {1000 / ms:9.1f} "
              f"{rounds:12,d} {mine:7.2f} {hours:6.0f} {hours / mine:5.0f}x")  # fmt: skip


if __name__ == "__main__":
    main()
