"""How a round grows: python bench/growth.py [--what clients,cohort,width,classes,samples] [--methods fedhide,fedaws].

Synthetic identities of 8x8 pixels, LeNet, on the CPU: 4,096 clients of as many classes, 64 of them per round,
embeddings of width 64, 20 samples per client, batch 16; then one of these is grown while the others stay. FedHide reads
the table of all proxies, FedAwS mines (8) among all classes. Each case runs in a process of its own, so that its peak
memory is its own. Prints one table: milliseconds per round (median, half range), what choosing the cohort costs, peak
memory and how much of it came with the case, the size of the tables, seconds until the third round.

The two last columns say how time and memory grow with n: the slope of a line through the logarithms of all sizes, then
of the three largest, and by the latter, where fixed costs hide least, a word; nothing may be WORSE than linear.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

USUAL = {"clients": 4096, "cohort": 64, "width": 64, "classes": 4096, "samples": 20}
GROWN = {
    "clients": (1_000, 10_000, 100_000, 1_000_000),
    "cohort": (16, 64, 256, 1_024),
    "width": (32, 128, 512),
    "classes": (64, 256, 1_024, 4_096),
    "samples": (16, 256, 4_096, 16_384),
}
BLOCK = 0.4  # seconds that a timed block takes at most, unless a single round takes longer
WORSE = 1.15  # the slope above which growth is not put down to noise and to caches that overflow


def peak() -> float:
    """The most memory this process has had, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 1024)


def measure(method: str, sizes: dict[str, int], most: int, repeats: int) -> dict[str, float]:
    """One case, in this process."""
    from bench.common import Case, timed
    from selfsame.data import load
    from selfsame.engine.plan import choose

    def case(clients: int, cohort: int, width: int, classes: int, samples: int) -> Case:
        tables = {
            "method": {"name": method},
            "data": {"name": "synthetic"},
            "net": {"width": width},
            "run": {"rounds": 100000, "device": "cpu"},
            "cohort": {"size": cohort},
            "local": {"batch": 16},
        }
        federation = load("synthetic", clients=clients, clients_per_class=clients // classes, samples=samples)
        return Case(tables, federation, "cohort")

    case(clients=4, cohort=2, width=2, classes=4, samples=2).rounds(2)  # what any first round loads is not the case's
    before = peak()
    begun = time.perf_counter()
    now = case(**sizes)
    now.rounds(2)
    ready = time.perf_counter() - begun
    count = max(1, min(most, int(BLOCK / now.rounds(1))))
    median, spread = timed(now.rounds, count, repeats)
    begun = time.perf_counter()
    for number in range(200):
        choose(now.problem.recipe, number, sizes["cohort"], sizes["clients"])
    held = sum(t.numel() * t.element_size() for t in (*now.state.own.values(), *now.state.server.values()))
    return {
        "ms": median,
        "spread": spread,
        "choose_us": (time.perf_counter() - begun) / 200 * 1e6,
        "peak_mib": peak(),
        "added_mib": peak() - before,
        "tables_mib": held / 2**20,
        "ready_s": ready,
    }


def slope(size: list[int], value: list[float]) -> float:
    """b of value = a * size^b, by least squares on logarithms; below a MiB or a microsecond nothing is to be seen."""
    if len(size) < 2:
        return math.nan
    logs = [math.log(max(v, 1.0)) for v in value]
    return statistics.linear_regression([math.log(s) for s in size], logs).slope


def growth(size: list[int], value: list[float]) -> str:
    """Both slopes and the word."""
    whole, end = slope(size, value), slope(size[-3:], value[-3:])
    words = ((0.1, "constant"), (0.9, "sublinear"), (WORSE, "linear"), (math.inf, "WORSE"))
    return f"n^{whole:.2f}, n^{end:.2f} {next((word for top, word in words if end <= top), '')}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--what", default=",".join(GROWN))
    parser.add_argument("--sizes", help="in place of the usual ones, e.g. 1000,10000")
    parser.add_argument("--methods", default="fedhide,fedaws")
    parser.add_argument("--rounds", type=int, default=20, help="rounds in a timed block, at most")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--case", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        method, sizes = json.loads(options.case)
        print(json.dumps(measure(method, sizes, options.rounds, options.repeats)))
        return
    import torch

    from bench.common import header

    if odd := [what for what in options.what.split(",") if what not in GROWN]:
        parser.error(f"--what {','.join(odd)}: not among {', '.join(GROWN)}")
    print(header(torch.device("cpu")))
    print(f"otherwise {USUAL}; {options.repeats} blocks of up to {options.rounds} rounds")
    print(
        f"{'grown':8s} {'method':8s} {'n':>9s} {'ms/round':>9s} {'+-':>6s} {'choose us':>9s} {'peak MiB':>8s} "
        f"{'added':>6s} {'tables':>6s} {'ready s':>7s}  {'time':26s} {'added memory'}"
    )
    for what in options.what.split(","):
        grown = [int(n) for n in options.sizes.split(",")] if options.sizes else list(GROWN[what])
        for method in options.methods.split(","):
            rows: list[dict[str, float]] = []
            for n in grown:
                sizes = {**USUAL, what: n}
                if what == "clients":
                    sizes["classes"] = n
                command = [sys.executable, __file__, "--case", json.dumps([method, sizes])]
                command += ["--rounds", str(options.rounds), "--repeats", str(options.repeats)]
                done = subprocess.run(command, check=True, capture_output=True, text=True)
                row = json.loads(done.stdout.splitlines()[-1])
                rows.append(row)
                print(
                    f"{what:8s} {method:8s} {n:9,d} {row['ms']:9.1f} {row['spread']:6.1f} {row['choose_us']:9.1f} "
                    f"{row['peak_mib']:8.0f} {row['added_mib']:6.0f} {row['tables_mib']:6.1f} {row['ready_s']:7.1f}",
                    end="" if n == grown[-1] else "\n",
                    flush=True,
                )
            time_grows = growth(grown, [1000 * row["ms"] for row in rows])
            print(f"  {time_grows:26s} {growth(grown, [row['added_mib'] for row in rows])}", flush=True)


if __name__ == "__main__":
    main()
