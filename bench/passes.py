"""Forward and derivatives of small networks: python bench/passes.py [--net resnet32] [--images 160] [--standardise]
or python bench/passes.py --cpu [--threads 2].

The passes that are written out against the module in bfloat16 under autograd, each captured as one CUDA graph, on
32x32 images with 64 outputs. Prints microseconds a step, and the ratio. Needs a GPU and Triton.

With --cpu the passes that are compiled against the module in float32, for several networks, in turns; milliseconds,
the median of --repeats. Needs a C compiler.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.common import header, timed
from selfsame.engine.machine import keep_freed_memory
from selfsame.engine.model import Layout, Model
from selfsame.nets import build
from selfsame.nets.fast import Load
from selfsame.nets.fast.resnet_cuda import FusedResNet

THIN = ("resnet8", "resnet20", "resnet32", "resnet56")
WIDTH = 64
LENET = {"channels": (16, 32)}
ON_CPU = (  # network, samples, networks, images of each, options
    ("lenet", (1, 28, 28), 1, 160, LENET),
    ("lenet", (1, 28, 28), 10, 16, LENET),
    ("lenet", (1, 8, 8), 10, 16, LENET),
    ("lenet", (3, 32, 32), 1, 256, {"channels": (32, 64)}),
    ("lenet", (3, 64, 64), 1, 160, LENET),
    ("resnet8", (3, 32, 32), 1, 64, {}),
    ("resnet32", (3, 32, 32), 1, 64, {"standardise": True, "groups": 2}),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--net", default="resnet32", choices=THIN)
    parser.add_argument("--images", type=int, default=160)
    parser.add_argument("--standardise", action="store_true", help="kernels brought to mean 0 and variance 1")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--threads", type=int, default=1, help="with --cpu")
    options = parser.parse_args()
    if options.cpu:
        on_cpu(options.threads, options.repeats)
        return
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


def on_cpu(threads: int, repeats: int) -> None:
    torch.set_num_threads(threads)
    keep_freed_memory()
    print(header(torch.device("cpu")))
    print("| network | networks x images | module, ms | compiled, ms | times |\n|---|---|---:|---:|---:|")
    for name, shape, networks, count, options in ON_CPU:
        models = {
            what: Model(build(name, shape, WIDTH, **options), {}, load=load)
            for what, load in (("module", None), ("compiled", Load(shape)))
        }
        if models["compiled"].passes is None:
            sys.exit("bench/passes.py: needs a C compiler")
        x, pull = torch.randn(networks, count, *shape), torch.randn(networks, count, WIDTH)
        took: dict[str, list[float]] = {what: [] for what in models}
        for _ in range(repeats + 2):  # the first two are warm-up
            for what, model in models.items():
                theta = model.first_theta
                begun = time.perf_counter()
                if networks == 1:
                    model.embed_and_back(theta, x)[1](pull)
                else:
                    model.embed_each_and_back(theta.repeat(networks, 1), x)[1](pull)
                took[what].append(1000 * (time.perf_counter() - begun))
        module, compiled = (statistics.median(took[what][2:]) for what in ("module", "compiled"))
        said = f"{name}, {'x'.join(map(str, shape))} | {networks} x {count}"
        print(f"| {said} | {module:.1f} | {compiled:.1f} | {module / compiled:.1f} |", flush=True)


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
