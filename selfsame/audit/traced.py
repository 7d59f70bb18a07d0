"""A function that takes derivatives of derivatives, as one list of operations, compiled.

`torch.compile` does not differentiate twice. So the function is run once and what it does to tensors is written down,
derivatives included; that list needs no derivatives any more, and is compiled.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, fx

Tensors = tuple[Tensor, ...]
Traced = Callable[..., Tensors]
_compiled: dict[tuple[str, str], Traced] = {}  # by what is done, so that it is compiled once a process


def traced(function: Callable[..., Tensors], given: Tensors, backend: str = "inductor") -> Traced:
    """The function for tensors of these shapes; whatever it reads beside its arguments stays as it is now."""
    from torch.fx.experimental.proxy_tensor import make_fx  # brings symbolic algebra: slow to import

    graph: fx.GraphModule = make_fx(function)(*(one.detach().clone() for one in given))
    graph.graph.eliminate_dead_code()
    graph.recompile()
    if any(graph.named_buffers()):  # numbers of its own, which another function of the same operations has not
        return _with(graph, backend)
    shapes = ", ".join(f"{one.dtype} {tuple(one.shape)} {one.device}" for one in given)
    return _compiled.setdefault((f"{backend} {shapes}", graph.code), _with(graph, backend))


def _with(graph: fx.GraphModule, backend: str) -> Traced:
    fast = torch.compile(graph, backend=backend, dynamic=False)

    def run(*given: Tensor) -> Tensors:
        with torch.no_grad():
            out: Tensors = fast(*given)
        return out

    return run
