"""Masked and enclosed sums against clear ones over Flower, with TLS and keys: python bench/flower_sums.py [METHOD ...].

Four nodes with the digits of one client each (and a helper), three rounds, private draws from the seed, so that runs
differ in how updates are added up and in nothing else. Shown is the largest difference between the networks, beside
their largest number and the deviation that rounding gives a number of one round's mean. A method with polls is refused
in the clear: its masked network is compared with the enclave's.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from common import header
from safetensors.torch import load_file

from selfsame.deploy.flower.terms import open_server
from selfsame.methods import METHODS, SplitLoss

LOCAL = [name for name, kind in METHODS.items() if kind.federated and not issubclass(kind, SplitLoss)]
SETTINGS = {
    "feduv": ["secrets=seeded", "code_length=31"],
    "feduv-negative": ["secrets=seeded", "code_length=31"],
    "fedmetric": ["reduction=mean", "local.lr=0.01"],
    "fedmetric-pos": ["reduction=mean", "local.lr=0.01"],
    "fedmetric-true": ["reduction=mean", "local.lr=0.01"],
}
COMMON = ["sums.clip=20", "net.width=16"]


def network(folder: Path, method: str, mode: str) -> tuple[torch.Tensor, float]:
    """(the network after three rounds as one vector, seconds)"""
    begun = time.perf_counter()
    words = [sys.executable, "-m", "selfsame", "cluster", "up", "--method", method, "--nodes", "4", "--rounds", "3"]
    words += ["--seeded", "--quiet", "--aggregation", mode, "--wait", "120", "--out", str(folder)]
    for setting in [*COMMON, *SETTINGS.get(method, [])]:
        words += ["--set", setting]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{method}, {mode}: {done.stderr.strip() or done.stdout.strip()}")
    tensors = load_file(folder / "server" / "run" / "model.safetensors")
    vector = torch.cat([tensors[name].double().flatten() for name in sorted(tensors)])
    return vector, time.perf_counter() - begun


def rounding(folder: Path) -> float:
    """The deviation that rounding gives a number of one round's mean, where everybody answers."""
    with open_server(folder / "server") as (server, _, _):
        sums = server.agreement.sums
        weight = sum(min(seat.samples, sums.cap) if sums.cap > 1 else 1 for seat in server.seats.values())
        return sums.code.step / 2 * len(server.seats) ** 0.5 * sums.cap / weight


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("methods", nargs="*", default=LOCAL)
    given = parser.parse_args()
    print(header(torch.device("cpu")))
    print("| method | largest number | rounding | masked | enclave | seconds: clear, masked, enclave |")
    print("|---|---:|---:|---:|---:|---:|")
    for method in given.methods:
        with tempfile.TemporaryDirectory() as place:
            modes = ("enclave", "masked") if METHODS[method].wire.polled else ("clear", "masked", "enclave")
            found = {mode: network(Path(place) / mode, method, mode) for mode in modes}
            error = rounding(Path(place) / "masked")
        right_P = found[modes[0]][0]
        gaps = {mode: f"{float((found[mode][0] - right_P).abs().max()):.1e}" for mode in modes[1:]}
        took = ", ".join(f"{found[mode][1]:.0f}" if mode in found else "–" for mode in ("clear", "masked", "enclave"))
        cells = [method, f"{float(right_P.abs().max()):.2g}", f"{error:.1e}", gaps["masked"], gaps.get("enclave", "–")]
        print(f"| {' | '.join(cells)} | {took} |", flush=True)


if __name__ == "__main__":
    main()
