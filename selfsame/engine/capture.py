"""Work on CUDA that is repeated: warmed up on a stream of its own, then captured as a graph that is replayed."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch


def aside(step: Callable[[], None], device: torch.device | None = None) -> None:
    """Run a step on a side stream, as is asked for before a capture; without a device on the present one."""
    side = torch.cuda.Stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream(device).wait_stream(side)


def captured(step: Callable[[], None], priority: int | None = None) -> torch.cuda.CUDAGraph | None:
    """The step recorded without running it; None, with a warning, if it cannot be.

    With a priority on a stream of that priority, else on the one that torch keeps for captures.
    """
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    try:
        with torch.cuda.graph(graph, stream=None if priority is None else torch.cuda.Stream(priority=priority)):
            step()
    except RuntimeError as error:
        warnings.warn(f"CUDA graph not captured, going on without: {str(error).splitlines()[0]}", stacklevel=2)
        return None
    return graph
