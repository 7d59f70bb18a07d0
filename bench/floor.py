"""A round on the CPU against its matrix products: python bench/floor.py [--image 28] [--colour] [--repeats 5].

The network of bench/peers.py. Convolutions and linear layers are matrix products: one forward, one for the derivative
in the weights, and one for that in the input, which the first layer does not need. Here PyTorch multiplies matrices of
a round's sizes that are there already, without norms, pooling and all the rest. Rounds and products take turns in one
process. Where the last column is below 1, convolutions are faster than these products, which are tall and narrow.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from itertools import product
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent / "peers"))

import torch
from case import BATCH, Shape, start
from torch import Tensor, nn

from bench.common import Case, header
from selfsame import nets


def layers(case: Case) -> list[tuple[int, int, int]]:
    """(rows of one image, inputs of a row, outputs) of each layer, in order."""
    found: list[tuple[int, int, int]] = []

    def note(layer: nn.Module, _: object, out: Tensor) -> None:
        weight = layer.weight
        assert isinstance(weight, Tensor)
        found.append((out[0, 0].numel() if out.dim() > 2 else 1, weight[0].numel(), len(weight)))

    part, shape = case.problem.recipe.net, case.problem.federation.shape
    net = nets.build(part.name, shape, case.problem.world.dim, **part.options)
    for layer in net.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            layer.register_forward_hook(note)
    net(torch.zeros(1, *shape))
    return found


def products(sizes: list[tuple[int, int, int]], images: int) -> tuple[list[tuple[Tensor, Tensor]], float]:
    """The pairs of matrices of one pass, forward and back, and how many operations their products are."""
    pairs, operations = [], 0.0
    for number, (rows, inside, out) in enumerate(sizes):
        x, weight, pull = torch.randn(images * rows, inside), torch.randn(out, inside), torch.randn(images * rows, out)
        pairs += [(x, weight.T), (pull.T, x), *([(pull, weight)] if number else [])]
        operations += 2.0 * images * rows * inside * out * (3 if number else 2)
    return pairs, operations


def multiplied(pairs: list[tuple[Tensor, Tensor]], times: int) -> float:
    begun = time.perf_counter()
    for _ in range(times):
        for a, b in pairs:
            a @ b
    return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--image", type=int, default=28, help="height and width")
    parser.add_argument("--colour", action="store_true", help="images of three channels")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    print(header(torch.device("cpu")))
    print("clients x steps   GFLOP   ms per round   products alone   GFLOP/s   round / products")
    for clients, steps in product((10, 64), (1, 5)):
        case = start(Shape("positive-only", clients, steps, options.image, 1, 1, 3 if options.colour else 1))
        images, passes = (clients * BATCH, 1) if steps == 1 else (BATCH, clients * steps)
        pairs, operations = products(layers(case), images)
        case.rounds(1)
        multiplied(pairs, 1)
        times: dict[str, list[float]] = {"round": [], "products": []}
        for _ in range(options.repeats):
            times["round"].append(case.rounds(2) / 2)
            times["products"].append(multiplied(pairs, passes))
        ms = {name: 1000 * statistics.median(found) for name, found in times.items()}
        ratio = statistics.median(a / b for a, b in zip(times["round"], times["products"], strict=True))
        work = operations * passes / 1e9
        print(
            f"{clients:7} x {steps:<5} {work:7.1f} {ms['round']:14.1f} {ms['products']:16.1f} "
            f"{1000 * work / ms['products']:9.0f} {ratio:18.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
