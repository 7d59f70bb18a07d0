"""What sums cost in time: rounds in the clear, in an enclave and masked: python bench/summed.py [--device cuda].

The same groups in all three, in one run. In the clear a round of one local step is one pass for all clients; where
updates are clipped and rounded there is one for each, so the cost grows with the network more than with the batch.
FedCrowd, batch 4, random pictures, replayed graphs on CUDA. Prints milliseconds per round (median, half range) and the
ratio to the clear.

    python bench/summed.py --device cuda --nets dlib-face --clients 64
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.common import Case, header, random_federation, timed

NETS = {
    "lenet": ({"name": "lenet", "width": 128}, (1, 28, 28), 32, 4),
    "resnet18": ({"name": "resnet18", "width": 64}, (3, 32, 32), 8, 1),
    "dlib-face": ({"name": "dlib-face", "eyes": [23, 26, 40, 26]}, (3, 64, 64), 4, 1),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nets", default=",".join(NETS), help="separated by commas")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--clients", type=int, default=0, help="of a round, in place of each network's own number")
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    print(header(torch.device(args.device)))
    print(f"{'network, clients':<20} {'updates':<8} {'ms per round':>16} {'ratio':>6}")
    for name in args.nets.split(","):
        net, shape, cohort, count = NETS[name]
        cohort = args.clients or cohort
        federation = random_federation(2 * cohort, 8, shape)
        plain = 0.0
        for mode in ("clear", "enclave", "masked"):
            tables = {
                "method": {"name": "fedcrowd"},
                "data": {"name": "lfw"},
                "net": net,
                "run": {
                    "rounds": 100000,
                    "device": args.device,
                    "compile": "graphs" if args.device.startswith("cuda") else "off",
                },
                "cohort": {"size": cohort, "sampling": "groups", "weights": "uniform"},
                "sums": {"aggregation": mode},
                "local": {"batch": 4, "lr": 1e-4},
            }
            case = Case(tables, federation, "cohort")
            case.rounds(5)  # a graph is captured after some
            middle, spread = timed(case.rounds, count, args.repeats)
            plain = plain or middle
            print(
                f"{name + f', {cohort}':<20} {mode:<8} {middle:>9.1f} ± {spread:<5.1f} {middle / plain:>5.1f}x",
                flush=True,
            )


if __name__ == "__main__":
    main()
