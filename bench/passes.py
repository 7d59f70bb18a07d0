"""Forward and derivatives of the thin residual networks: python bench/passes.py [--net resnet32] [--images 160]
[--standardise].

The passes that are written out against the module in bfloat16 under autograd, each captured as one CUDA graph, on
32x32 images with 64 outputs. Prints microseconds a step, and the ratio. Needs a GPU and Triton.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.common import header, timed
from selfsame.engine.model import Layout
from selfsame.nets import build
from selfsame.nets.fast.resnet_cuda import FusedResNet

THIN = ("resnet8", "resnet20", "resnet32", "resnet56")
WIDTH = 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--net", default="resnet32", choices=THIN)
    parser.add_argument("--images", type=int, default=160)
    parser.add_argument("--standardise", action="store_true", help="kernels brought to mean 0 and variance 1")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("bench/passes.py: needs a GPU")
    torch.backends.cudnn.benchmark = True
    net = build(options.net, (3, 32, 32), WIDTH, standardise=options.standardise)
    x = torch.randn(options.images, 3, 32, 32, device="cuda")
    pull = torch.randn(options.images, WIDTH, device="cuda")
    print(header(torch.device("cuda")))
    took = {}
    for name, step in (("written out", written_out(net, x, pull)), ("module", module(net, x, pull))):
        took[name], spread = timed(captured(step), options.steps, options.repeats)
        print(f"{options.net}, {options.images} images, {name}: {1000 * took[name]:.0f} +- {1000 * spread:.0f} us")
    print(f"{took['module'] / took['written out']:.2f} times")


def written_out(net: torch.nn.Module, x: torch.Tensor, pull: torch.Tensor) -> Callable[[], object]:
    named = sorted(net.named_parameters(), key=lambda pair: pair[1].dim() < 2)  # matrices first, as in theta
    layout = Layout.of({name: p.detach() for name, p in named})
    theta = layout.flatten(dict(named)).detach().cuda()
    fused = FusedResNet(net, dict(zip(layout.names, layout.shapes, strict=True)))

    def step() -> object:
        _, done = fused.forward(theta[None], x[None])
        return fused.backward(done, pull[None])

    return step


def module(net: torch.nn.Module, x: torch.Tensor, pull: torch.Tensor) -> Callable[[], object]:
    net = net.cuda().to(memory_format=torch.channels_last)
    x = x.to(memory_format=torch.channels_last)
    parameters = list(net.parameters())

    def step() -> object:
        with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
            out = net(x)
        return torch.autograd.grad(out.float(), parameters, pull)

    return step


def captured(step: Callable[[], object]) -> Callable[[int], float]:
    """Seconds for `count` replays of the step's graph."""
    with torch.cuda.stream(torch.cuda.Stream()):
        for _ in range(3):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()

    def run(count: int) -> float:
        torch.cuda.synchronize()
        begun = time.perf_counter()
        for _ in range(count):
            graph.replay()
        torch.cuda.synchronize()
        return time.perf_counter() - begun

    run(20)
    return run


if __name__ == "__main__":
    main()
