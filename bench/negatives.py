"""FedUV with more and less of its negative term: python bench/negatives.py choose|measure|table FILE [--path DATA].

FedUV(127) on 50 and on 250 characters of Omniglot, 400 rounds of 32 clients, and FedUV(63) on the embedded digits with
14 users; everything else is the data's own preset.

choose   five learning rates of every weight, by P@1 on samples that are set apart, a fifth of each client's; one seed.
measure  the best of each, three seeds: P@1 on test samples.
table    what is in the file.

Every finished run is a line of the file, and a run that is there is not repeated (`selfsame/runs/sharing.py`).
"""

from __future__ import annotations

import argparse
import sys
from itertools import product
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import selfsame
from selfsame.engine.machine import facts
from selfsame.runs.sharing import Key, Line, finished, share

OMNIGLOT = {"rounds": 400, "settings": {"cohort": {"size": 32, "sampling": "uniform"}}, "code_length": 127}
CASES = {
    "50 characters": {"data": "omniglot", "people": 50, **OMNIGLOT},
    "250 characters": {"data": "omniglot", "people": 250, **OMNIGLOT},
    "14 digits": {"data": "digits"},
}
WEIGHTS = (0.0, 0.1, 1.0)
RATES = (0.1, 0.3, 1.0, 3.0, 10.0)
SEEDS = 3
APART = {"apart": "samples", "apart_share": 0.2}


def run(key: Key, rate: float, path: str | None) -> Line:
    """P@1 after a training, of samples set apart or of the test."""
    case = dict(CASES[key["users"]])
    settings = {**case.pop("settings", {}), "local": {"lr": rate}}
    if key["phase"] == "choose":
        settings["data"] = APART
    place = {"path": path} if case["data"] == "omniglot" else {}
    done = selfsame.train(
        "feduv-negative", **case, **place, seed=key["seed"], negative_weight=key["weight"], secrets="seeded",
        device="cpu", settings=settings,
    )  # fmt: skip
    return {"lr": rate, "p@1": done.final["p@1"], "machine": facts(done.problem.model.device)}


def best(file: Path, users: str, weight: float) -> Line | None:
    """The line of the rate that samples set apart have chosen."""
    wanted = {"phase": "choose", "users": users, "weight": weight}
    tried = [line for line in finished(file) if wanted.items() <= line["key"].items()]
    return max(tried, key=lambda line: line["p@1"] or 0.0, default=None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("choose", "measure", "table"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--path", help="folder with omniglot as it is published")
    options = parser.parse_args()
    file, path = options.file, options.path
    if options.what == "choose":
        cases = product(CASES, WEIGHTS, RATES)
        keys = [{"phase": "choose", "users": u, "weight": w, "lr": lr, "seed": 0} for u, w, lr in cases]
        share(file, keys, lambda key: run(key, key["lr"], path))
    elif options.what == "measure":
        chosen = {(u, w): found["lr"] for u, w in product(CASES, WEIGHTS) if (found := best(file, u, w))}
        keys = [{"phase": "measure", "users": u, "weight": w, "seed": s} for s in range(SEEDS) for u, w in chosen]
        share(file, keys, lambda key: run(key, chosen[key["users"], key["weight"]], path))
    table(file)


def table(file: Path) -> None:
    lines = finished(file)
    heads = " | ".join(f"lambda {weight:g}" for weight in WEIGHTS)
    print(f"| users | {heads} | rates |\n|---|{'---:|' * len(WEIGHTS)}---|")
    for users in CASES:
        cells, rates = [], []
        for weight in WEIGHTS:
            wanted = {"phase": "measure", "users": users, "weight": weight}
            found = [100 * line["p@1"] for line in lines if wanted.items() <= line["key"].items()]
            spread = (max(found) - min(found)) / 2 if found else 0.0
            cells.append(f"{sum(found) / len(found):.1f} ± {spread:.1f}" if len(found) == SEEDS else "")
            chosen = best(file, users, weight)
            rates.append(f"{chosen['lr']:g}" if chosen else "-")
        print(f"| {users} | {' | '.join(cells)} | {', '.join(rates)} |")


if __name__ == "__main__":
    main()
