"""FDML's Table V: the enclave's time for the derivatives of batch-all triplets: python bench/derivatives.py.

64, 128, 256 and 512 participants with 8 samples each in 64 dimensions, on one thread. Embeddings are standard normal:
more than half of the triplets are active, as before training. Prints one table: processor seconds (median, half range
and least: the machine may be shared), wall seconds (median), and the seconds that the paper gives for its laptop.
Then, at 64 participants, the time of a direct loop over triplets, Algorithm 1 as it is written, and of a loop over
pairs of anchor and positive with all their negatives at once; their derivatives are compared with the enclave's.
"""

from __future__ import annotations

import argparse
import math
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from selfsame.enclave.losses import KINDS, Array, Loss, value_and_derivatives

SAMPLES, DIM = 8, 64
PAPER_S = {64: 0.48, 128: 2.19, 256: 11.07, 512: 63.65}


def embeddings(participants: int) -> tuple[Array, Array]:
    draw = np.random.default_rng(participants)
    return draw.normal(size=(participants * SAMPLES, DIM)), np.repeat(np.arange(participants), SAMPLES)


def measured(work: Callable[[], Any], repeats: int) -> tuple[float, float, float, float]:
    """(median, half range, least) of processor seconds, and median wall seconds."""
    spent, wall = [], []
    for _ in range(repeats):
        begun = time.process_time(), time.perf_counter()
        work()
        spent.append(time.process_time() - begun[0])
        wall.append(time.perf_counter() - begun[1])
    return statistics.median(spent), (max(spent) - min(spent)) / 2, min(spent), statistics.median(wall)


def triplet_loop(emb_SD: Array, label_S: Array, margin: float) -> Array:
    """Algorithm 1, with the activation test that (1) asks for."""
    points, labels = list(emb_SD), label_S.tolist()
    count, active = len(points), 0
    dist = [[math.dist(a, b) for b in emb_SD.tolist()] for a in emb_SD.tolist()]
    grad_SD = np.zeros_like(emb_SD)
    for a in range(count):
        for p in range(count):
            if p == a or labels[p] != labels[a]:
                continue
            to_p_D = (points[a] - points[p]) / dist[a][p]
            for n in range(count):
                if labels[n] == labels[a] or dist[a][p] - dist[a][n] + margin <= 0:
                    continue
                to_n_D = (points[a] - points[n]) / dist[a][n]
                grad_SD[a] += to_p_D - to_n_D
                grad_SD[p] -= to_p_D
                grad_SD[n] += to_n_D
                active += 1
    return grad_SD / max(1, active)


def pair_loop(emb_SD: Array, label_S: Array, margin: float) -> Array:
    """The same, with all negatives of an anchor and a positive at once."""
    grad_SD, active = np.zeros_like(emb_SD), 0
    for a in range(len(emb_SD)):
        to_SD = emb_SD[a] - emb_SD
        dist_S = np.sqrt((to_SD**2).sum(1))
        unit_SD = to_SD / np.where(dist_S > 0, dist_S, 1)[:, None]
        negative_S = label_S != label_S[a]
        for p in np.flatnonzero(~negative_S):
            if p == a:
                continue
            active_N = np.flatnonzero(negative_S & (dist_S[p] - dist_S + margin > 0))
            grad_SD[a] += len(active_N) * unit_SD[p] - unit_SD[active_N].sum(0)
            grad_SD[p] -= len(active_N) * unit_SD[p]
            grad_SD[active_N] += unit_SD[active_N]
            active += len(active_N)
    return grad_SD / max(1, active)


def row(cells: list[str]) -> None:
    print(" | ".join(cell.rjust(width) for cell, width in zip(cells, (12, 7, 12, 9, 9, 9, 9, 9, 12))), flush=True)


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--kind", choices=KINDS[:3], default="batch-all")
    options.add_argument("--repeats", type=int, default=15)
    options.add_argument("--no-loop", action="store_true", help="leave out the loop over triplets, which takes longest")
    chosen = options.parse_args()
    loss = Loss(chosen.kind)
    print(f"{loss.kind}, margin {loss.margin}, {SAMPLES} samples a participant, {DIM} dimensions, one thread, float64;")
    print(f"numpy {np.__version__}, {platform.machine()} {processor()}, load {os.getloadavg()[0]:.1f}")
    row(["participants", "samples", "triplets", "median s", "+- s", "least s", "wall s", "paper s", "paper / here"])
    here = {}
    for participants, paper in PAPER_S.items():
        emb_SD, label_S = embeddings(participants)
        value_and_derivatives(emb_SD, label_S, loss)
        here[participants], spread, least, wall = measured(
            lambda e=emb_SD, l=label_S: value_and_derivatives(e, l, loss), chosen.repeats
        )
        count = len(emb_SD)
        times = [f"{here[participants]:.4f}", f"{spread:.4f}", f"{least:.4f}", f"{wall:.4f}", f"{paper:.2f}"]
        triplets = f"{count * (SAMPLES - 1) * (count - SAMPLES):,}"
        row([str(participants), str(count), triplets, *times, f"{paper / here[participants]:.0f}"])
    if chosen.kind != "batch-all" or chosen.no_loop:
        return
    emb_SD, label_S = embeddings(64)
    _, wanted_SD = value_and_derivatives(emb_SD, label_S, loss)
    for name, direct in (("pairs of anchor and positive", pair_loop), ("triplets", triplet_loop)):
        found = []
        spent = measured(lambda d=direct, f=found: f.append(d(emb_SD, label_S, loss.margin)), 1)[0]
        error = np.abs(found[0] - wanted_SD).max() / np.abs(wanted_SD).max()
        print(f"a loop over {name}, 64 participants: {spent:.2f} s, {spent / here[64]:,.0f} times as long;", end=" ")
        print(f"derivatives differ by {error:.0e} of the largest")


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())


if __name__ == "__main__":
    with threadpool_limits(1):
        main()
