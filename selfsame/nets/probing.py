"""Two samples that any network takes, and the order in which one pass over them uses its parameters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode


def probe(net: nn.Module, shape: tuple[int, ...]) -> Tensor:
    """Two samples (2, *shape) from 0 to 1, which fits pixels, and indices too."""
    ramp = torch.linspace(0, 1, max(torch.Size(shape).numel(), 1)).reshape(shape)
    return torch.stack([ramp, 1 - ramp]).to(next(net.parameters()).dtype)


def last_used(net: nn.Module, shape: tuple[int, ...]) -> dict[Tensor, int]:
    """When each parameter is used for the last time, counted in operations; those that no pass uses are left out."""
    with torch.no_grad(), _Uses() as uses:
        net(probe(net, shape))
    return uses.when


class _Uses(TorchFunctionMode):
    """Notes which operation has which parameter; one that only asks for a shape or a type does not count."""

    def __init__(self) -> None:
        super().__init__()
        self.when: dict[Tensor, int] = {}
        self.count = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if any(True for _ in _tensors([out])):
            self.count += 1
            self.when |= {
                value: self.count for value in _tensors([args, kwargs or {}]) if isinstance(value, nn.Parameter)
            }
        return out


def _tensors(held: Iterable[Any]) -> Iterator[Tensor]:
    for one in held:
        if isinstance(one, Tensor):
            yield one
        elif isinstance(one, list | tuple):
            yield from _tensors(one)
        elif isinstance(one, dict):
            yield from _tensors(one.values())
