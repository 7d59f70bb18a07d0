"""The cohort engine against the reference engine, in one run: python bench/engines.py [--device cuda] [--profile].

CPU case: digits, LeNet, 64 clients per round, batch 16. CUDA case: CIFAR-100 shapes, ResNet-18 with group norm, 512-d,
10 of 100 clients, batch 16, random crop and flip, FedHide. Prints one table: milliseconds per round (median, half
range), and the ratio.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.common import Case, header, random_federation, timed
from selfsame.data import load
from selfsame.nets.fast.resnet_cuda import FusedResNet

LOCAL = {"steps": 1, "batch": 16, "lr": 0.1}


def cpu(repeats: int) -> list[tuple[str, float, float, int]]:
    rows = []
    tables = {
        "method": {"name": "fedhide"},
        "data": {"name": "digits"},
        "run": {"rounds": 100000, "device": "cpu"},
        "cohort": {"size": 64},
        "local": LOCAL,
        "server": {"optimiser": "momentum"},
    }
    small = load("digits", clients_per_class=8)
    large = random_federation(112, 100, (1, 28, 28))
    for name, federation in (("digits 8x8", small), ("random 28x28", large)):
        for engine, count in (("cohort", 40), ("reference", 4)):
            case = Case(tables, federation, engine)
            case.rounds(2)
            rows.append((f"{name}, {engine}", *timed(case.rounds, count, repeats), repeats * count))
    return rows


def cuda(repeats: int, profile: bool) -> list[tuple[str, float, float, int]]:
    federation = random_federation(100, 500, (3, 32, 32))
    base = {
        "method": {"name": "fedhide"},
        "data": {"name": "cifar100"},
        "cohort": {"size": 10, "sampling": "round-robin"},
        "local": LOCAL,
        "server": {"optimiser": "momentum", "weight_decay": 5e-4},
    }
    crop = {"crop": 4, "flip": True}
    fast = {"precision": "bfloat16", "compile": "on"}
    plain = {"precision": "float32", "compile": "off"}
    low = {"precision": "bfloat16", "compile": "off"}
    cases = [
        ("cohort: bf16, written out, graph, augmented", "cohort", fast, crop, 1, True, 500),
        ("cohort: bf16, written out, graph", "cohort", fast, {}, 1, True, 500),
        ("cohort: bf16, compiled, graph, augmented", "cohort", fast, crop, 1, False, 300),
        ("cohort: fp32, eager, augmented", "cohort", plain, crop, 1, False, 20),
        ("5 steps, cohort: bf16, written out, graph", "cohort", fast, crop, 5, True, 40),
        ("5 steps, reference: fp32", "reference", plain, crop, 5, False, 1),
        ("5 steps, reference: bf16", "reference", low, crop, 5, False, 1),
        ("reference: fp32, augmented", "reference", plain, crop, 1, False, 3),
    ]
    rows = []
    fits = FusedResNet.fits
    for name, engine, run, augment, steps, written_out, count in cases:
        FusedResNet.fits = staticmethod(fits if written_out else lambda net: False)  # type: ignore[method-assign]
        local = {**LOCAL, "steps": steps}
        tables = {**base, "local": local, "run": {"rounds": 100000, "device": "cuda", **run}, "augment": augment}
        begun = time.perf_counter()
        case = Case(tables, federation, engine)
        case.rounds(5 if engine == "cohort" else 1)
        print(f"{name}: ready after {time.perf_counter() - begun:.1f} s", flush=True)
        rows.append((name, *timed(case.rounds, count, repeats), repeats * count))
        if profile and run is fast and augment:
            _profile(case, name)
        del case
        torch.cuda.empty_cache()
    return rows


KINDS = (  # the first that occurs in a kernel's name is its kind
    ("convolutions, forward", ("fprop", "convolve_sgemm")),
    ("convolutions, derivative in the input", ("dgrad",)),
    ("convolutions, derivative in the weights", ("wgrad", "Kernel", "init_device_workspace")),
    ("norms", ("_forward", "_backward", "group_norm")),
    ("layout", ("nhwcToNchw", "nchwToNhwc", "Padding")),
    ("matrix products", ("gemm", "cublas", "splitK")),
    ("memory set", ("Memset", "Memcpy")),
)


def _profile(case: Case, name: str, rounds: int = 32) -> None:
    """Where the time of a round goes: by kind of kernel, then the slowest of the others."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as prof:
        case.rounds(rounds)
    spent: dict[str, list[float]] = {}
    others = []
    for event in prof.key_averages():
        kind = next((kind for kind, marks in KINDS if any(mark in event.key for mark in marks)), "other kernels")
        if kind == "other kernels":
            others.append((event.self_device_time_total / rounds, event.count / rounds, event.key))
        total = spent.setdefault(kind, [0.0, 0.0])
        total[0] += event.self_device_time_total / rounds
        total[1] += event.count / rounds
    print(f"\n{name}: microseconds of kernels a round")
    for kind, (micro, count) in sorted(spent.items(), key=lambda item: -item[1][0]):
        print(f"  {kind:42s} {micro:8.1f} {count:7.1f} kernels")
    for micro, count, key in sorted(others, reverse=True)[:16]:
        print(f"    {micro:8.1f} {count:6.1f} {key[:100]}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=["cpu", "cuda"])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--profile", action="store_true", help="also print the slowest CUDA kernels of a round")
    options = parser.parse_args()
    rows = cpu(options.repeats) if options.device == "cpu" else cuda(options.repeats, options.profile)
    print(header(torch.device(options.device)))
    print(f"{'case':45s} {'ms/round':>10s} {'+-':>8s} {'rounds':>7s} {'times':>7s}")
    slow = {name.split(",")[0]: ms for name, ms, _, _ in reversed(rows) if "reference" in name}
    for name, ms, spread, count in rows:
        against = slow.get(name.split(",")[0]) or rows[-1][1]
        print(f"{name:45s} {ms:10.2f} {spread:8.2f} {count:7d} {against / ms:6.1f}x")


if __name__ == "__main__":
    main()
