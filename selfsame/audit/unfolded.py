"""Convolutions as matrix products, for searches that are stacked.

A gradient inversion has a network for every search, each with few pictures. Stacked under vmap its convolutions become
one in groups. Patches times kernels is a stacked matrix product instead, and so are all of its derivatives.

Shapes: S pictures, C channels, O kernels, H and W sides of what comes out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode


class Unfolded(TorchFunctionMode):
    """While it holds, plain two-dimensional convolutions are computed as matrix products."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.conv2d and not kwargs and _plain(*args):
            return convolved(*args[:5])
        return func(*args, **kwargs)


def _plain(x: Tensor, weight: Tensor, bias: Any = None, stride: Any = 1, padding: Any = 0, *rest: Any) -> bool:
    """Whether it is neither dilated nor in groups, with paddings that are numbers."""
    dilated = bool(rest) and rest[0] not in (1, (1, 1))
    grouped = len(rest) > 1 and rest[1] != 1
    return x.dim() == 4 and not dilated and not grouped and not isinstance(padding, str)


def convolved(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | tuple[int, int] = 1,
    padding: int | tuple[int, int] = 0,
) -> Tensor:
    """`F.conv2d` of pictures (S, C, ., .) with kernels (O, C, ., .): (S, O, H, W)."""
    (down, across), (above, beside) = (one if isinstance(one, tuple) else (one, one) for one in (stride, padding))
    padded = F.pad(x, (beside, beside, above, above)) if above or beside else x
    tall, wide = weight.shape[-2:]
    patches = padded.unfold(2, tall, down).unfold(3, wide, across)  # (S, C, H, W, tall, wide), a view
    height, width = patches.shape[2:4]
    flat = patches.permute(1, 4, 5, 0, 2, 3).reshape(weight[0].numel(), -1)
    out = (weight.flatten(1) @ flat).unflatten(1, (len(x), height, width)).transpose(0, 1)
    return out if bias is None else out + bias[:, None, None]
