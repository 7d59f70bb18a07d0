"""How a round grows with the federation: python bench/growth.py [--clients 1000,10000,100000].

Synthetic identities, LeNet, 64 clients a round, batch 16, on the CPU; FedHide (reads the table of all proxies) and
FedAwS with mining (8) over all classes. Each case runs in a process of its own, so that its peak memory is its own.
Prints one table: milliseconds a round (median, half range), what choosing the cohort costs, peak memory, table size.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))


def measure(method: str, clients: int, width: int, count: int, repeats: int) -> dict[str, float]:
    """One case, in this process."""
    from bench.common import Case, timed
    from selfsame.data import load
    from selfsame.engine.plan import choose

    begun = time.perf_counter()
    federation = load("synthetic", clients=clients)
    tables = {
        "method": {"name": method},
        "data": {"name": "synthetic"},
        "net": {"width": width},
        "run": {"rounds": 100000, "device": "cpu"},
        "cohort": {"size": 64},
        "local": {"batch": 16},
    }
    case = Case(tables, federation, "cohort")
    case.rounds(2)
    ready = time.perf_counter() - begun
    median, spread = timed(case.rounds, count, repeats)
    begun = time.perf_counter()
    for number in range(200):
        choose(case.problem.recipe, number, 64, clients)
    state = case.state
    held = sum(t.numel() * t.element_size() for t in (*state.own.values(), *state.server.values()))
    return {
        "ms": median,
        "spread": spread,
        "choose_us": (time.perf_counter() - begun) / 200 * 1e6,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "tables_mib": held / 2**20,
        "ready_s": ready,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", default="1000,10000,100000")
    parser.add_argument("--width", type=int, default=64, help="embedding width")
    parser.add_argument("--rounds", type=int, default=20, help="rounds in a timed block")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--case", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        method, clients = options.case.split(":")
        print(json.dumps(measure(method, int(clients), options.width, options.rounds, options.repeats)))
        return
    import torch

    from bench.common import header

    print(header(torch.device("cpu")))
    print(f"embedding width {options.width}, {options.repeats} blocks of {options.rounds} rounds")
    print(
        f"{'method':8s} {'clients':>9s} {'ms/round':>9s} {'+-':>6s} {'choose us':>10s} {'peak MiB':>9s} "
        f"{'tables MiB':>11s} {'ready s':>8s}"
    )
    for method in ("fedhide", "fedaws"):
        for clients in options.clients.split(","):
            command = [sys.executable, __file__, "--case", f"{method}:{clients}", "--width", str(options.width)]
            command += ["--rounds", str(options.rounds), "--repeats", str(options.repeats)]
            row = json.loads(
                subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1]
            )
            print(
                f"{method:8s} {int(clients):9,d} {row['ms']:9.1f} {row['spread']:6.1f} {row['choose_us']:10.1f} "
                f"{row['peak_mib']:9.0f} {row['tables_mib']:11.1f} {row['ready_s']:8.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
