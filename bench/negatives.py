"""FedUV with more and less of its negative term: python bench/negatives.py measure|table FILE [--path DATA].

What decides how much harm the term does is how many users there are. FedUV(127) on 50 and on 250 characters of
Omniglot, 400 rounds of 32 clients, and FedUV(63) on the embedded digits with 14 users, three seeds each; everything
else is the data's own preset. Every finished run is a line of the file, and a run that is there is not repeated
(`bench/sharing.py`).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from sharing import Key, Line, finished, share

import selfsame
from selfsame.engine.machine import facts

OMNIGLOT = {"rounds": 400, "settings": {"cohort": {"size": 32, "sampling": "uniform"}}, "code_length": 127}
CASES = {
    "50 characters": {"data": "omniglot", "people": 50, **OMNIGLOT},
    "250 characters": {"data": "omniglot", "people": 250, **OMNIGLOT},
    "14 digits": {"data": "digits"},
}
WEIGHTS = (0.0, 0.01, 0.1, 1.0)
SEEDS = 3


def run(key: Key, path: str | None) -> Line:
    """P@1 after a training."""
    case = dict(CASES[key["users"]])
    place = {"path": path} if case["data"] == "omniglot" else {}
    done = selfsame.train(
        "feduv-negative", **case, **place, seed=key["seed"], negative_weight=key["weight"], secrets="seeded",
        device="cpu",
    )  # fmt: skip
    return {"p@1": done.final["p@1"], "machine": facts(done.problem.model.device)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("measure", "table"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--path", help="folder with omniglot as it is published")
    options = parser.parse_args()
    if options.what == "measure":
        keys = [{"users": users, "weight": w, "seed": s} for users in CASES for s in range(SEEDS) for w in WEIGHTS]
        share(options.file, keys, lambda key: run(key, options.path))
    table(options.file)


def table(file: Path) -> None:
    lines = finished(file)
    print("| users |", " | ".join(f"lambda {weight:g}" for weight in WEIGHTS), "|")
    print("|---|" + "---:|" * len(WEIGHTS))
    for users in CASES:
        cells = []
        for weight in WEIGHTS:
            wanted = {"users": users, "weight": weight}
            found = [100 * line["p@1"] for line in lines if wanted.items() <= line["key"].items()]
            spread = (max(found) - min(found)) / 2 if found else 0.0
            cells.append(f"{sum(found) / len(found):.1f} ± {spread:.1f}" if len(found) == SEEDS else "")
        print(f"| {users} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
