"""FedUV's warm-up on codewords, promised and kept: python bench/warm_up.py RUN [RUN ...] [--draws 50].

FedUV's Algorithm 2: an owner whose codeword was trained gives n new samples, and the threshold is the i-th smallest of
their scores, i = floor(n (1 - q)) or 1; the paper then expects a TPR of q. Here owners are the clients of a run, their
vector is the codeword they drew, the n samples and those that measure the TPR are their test samples, drawn apart anew
for every warm-up; the others' test samples give the FPR. "kept" is the share of warm-ups whose TPR is q or more.

"by order" is what to expect whatever the network is: a new sample passes the i-th smallest of n with a chance of
(n + 1 - i) / (n + 1). Runs differ in their seeds; figures are means over runs with the least and the most.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table
from rules import spread

from selfsame.device.thresholds import warm_up
from selfsame.errors import SelfsameError

SAMPLES = (5, 10, 20, 50)
PROMISED = (0.8, 0.9, 0.95)
Found = dict[tuple[int, float], tuple[float, float, float]]


def scores_of(folder: Path) -> tuple[str, list[np.ndarray], list[np.ndarray]]:
    """(what ran, each client's scores of their own test samples, of the others') against the client's own vector."""
    from selfsame.measure.trials import embedded
    from selfsame.runs.run import open_run

    run = open_run(folder)
    federation, truth_ND = run.problem.federation, run.truth().detach()
    score_SN = run.problem.method.score(embedded(run.embed, federation.test.x), truth_ND).cpu().double().numpy()
    label_S, class_N = federation.test.y.cpu().numpy(), run.world.class_of_N.cpu().numpy()
    own = [score_SN[label_S == c, n] for n, c in enumerate(class_N)]
    others = [score_SN[label_S != c, n] for n, c in enumerate(class_N)]
    return f"{run.title} on {federation.name}, {len(own)} clients", own, others


def measured(own: list[np.ndarray], others: list[np.ndarray], draws: int, seed: int, rest: int) -> Found:
    """(TPR, FPR, kept) for each number of samples and each promise, over all clients with enough samples."""
    rng, out = np.random.default_rng(seed), {}
    for n in SAMPLES:
        rows: dict[float, list[tuple[float, float, float]]] = {q: [] for q in PROMISED}
        for mine, theirs in zip(own, others, strict=True):
            if len(mine) < n + rest:
                continue
            for _ in range(draws):
                order = rng.permutation(len(mine))
                for q in PROMISED:
                    limit = warm_up(mine[order[:n]].tolist(), q).value
                    tpr = float((mine[order[n:]] >= limit).mean())
                    rows[q].append((tpr, float((theirs >= limit).mean()), float(tpr >= q - 1e-12)))
        for q, found in rows.items():
            if found:
                out[n, q] = tuple(float(x) for x in np.mean(found, 0))
    return out


def by_order(n: int, q: float) -> float:
    """The mean TPR of the i-th smallest of n, whatever the scores are."""
    i = max(1, math.floor(n * (1 - q) + 1e-9))
    return (n + 1 - i) / (n + 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, help="folders of finished runs, one per seed")
    parser.add_argument("--draws", type=int, default=50, help="warm-ups of every client")
    parser.add_argument("--rest", type=int, default=10, help="samples that must be left to measure the TPR with")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    try:
        read = [scores_of(folder) for folder in options.runs]
    except SelfsameError as error:
        sys.exit(str(error))
    found = [measured(own, others, options.draws, options.seed, options.rest) for _, own, others in read]
    table = Table(title=f"{read[0][0]}; {len(read)} runs, {options.draws} warm-ups of each client", box=box.MARKDOWN)
    for name in ("n", "TPR promised", "TPR", "by order", "kept", "FPR"):
        table.add_column(name, justify="right", no_wrap=True)
    for n, q in found[0]:
        tpr, fpr, kept = (spread([one[n, q][at] for one in found], 2 if at == 1 else 1) for at in range(3))
        table.add_row(str(n), f"{100 * q:.0f}", tpr, f"{100 * by_order(n, q):.1f}", kept, fpr)
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
