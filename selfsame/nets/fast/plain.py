"""What the kernels in kernels.py compute, in plain PyTorch: group norm, the sum with a shortcut and the activation; and
standardised rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Norm:
    """Group norm with its parameters, one of each per channel."""

    weight: Tensor
    bias: Tensor
    groups: int
    eps: float = 1e-5


@dataclass(frozen=True)
class Normed:
    """A norm's output, and what its backward pass needs."""

    norm: Norm
    x: Tensor
    out: Tensor
    mean: Tensor  # (N, C), the same within a group
    scale: Tensor  # 1 / sqrt(variance + eps)
    relu: bool
    added: bool


def norm_forward(x: Tensor, norm: Norm, add: Tensor | None = None, relu: bool = True, thin: int = 0) -> Normed:
    """relu(group_norm(x) * weight + bias + add).

    With `thin` > 0, `add` is the image of which every `thin`-th pixel is added, to the first channels.
    """
    high = norm.weight.dtype
    each = x.unflatten(1, (norm.groups, -1)).to(high)
    mean = each.mean((2, 3, 4), keepdim=True)
    scale = (each.var((2, 3, 4), correction=0, keepdim=True) + norm.eps).rsqrt()
    mean, scale = (part.expand(-1, -1, each.shape[2], 1, 1).flatten(1) for part in (mean, scale))
    out = F.group_norm(x.to(high), norm.groups, norm.weight, norm.bias, norm.eps)
    if add is not None and thin:
        add = F.pad(add[:, :, ::thin, ::thin], (0, 0, 0, 0, 0, x.shape[1] - add.shape[1]))
    if add is not None:
        out = out + add
    return Normed(norm, x, (out.relu() if relu else out).to(x.dtype), mean, scale, relu, add is not None)


def norm_backward(
    saved: Normed, grad: Tensor, more: Tensor | None, part: Tensor, thin: int = 0
) -> tuple[Tensor, Tensor | None]:
    """The derivatives in x and in `add`, given that in the output as one tensor or as the sum of two.

    Each image's derivatives in weight and bias are written to `part` (N, 2C), a slice of a wider buffer.
    With `thin` > 0, the first channels of `more` count for every `thin`-th pixel; the derivative in `add` is that in
    its thin image.
    """
    weight, groups = saved.norm.weight, saved.norm.groups
    if more is not None and thin:
        small, more = more, torch.zeros_like(grad)
        more[:, :, ::thin, ::thin] = small[:, : grad.shape[1]]
    grad = grad.to(weight.dtype) if more is None else grad.to(weight.dtype) + more
    if saved.relu:
        grad = grad * (saved.out > 0)
    wide = (slice(None), slice(None), None, None)
    hat = (saved.x.to(weight.dtype) - saved.mean[wide]) * saved.scale[wide]
    part.copy_(torch.cat([(grad * hat).sum((2, 3)), grad.sum((2, 3))], 1))
    scaled = (grad * weight[:, None, None]).unflatten(1, (groups, -1))
    each = hat.unflatten(1, (groups, -1))
    slope = (scaled * each).mean((2, 3, 4), keepdim=True)
    inner = (scaled - scaled.mean((2, 3, 4), keepdim=True) - each * slope).flatten(1, 2)
    return (inner * saved.scale[wide]).to(saved.x.dtype), grad.to(saved.x.dtype) if saved.added else None


def standard_forward(rows: Tensor, eps: float, out: Tensor) -> tuple[Tensor, Tensor]:
    """Each row less its mean and over its deviation, written to `out`; returns its mean and 1 / deviation."""
    found, mean, scale = torch.native_layer_norm(rows, [rows.shape[1]], None, None, eps)
    out.copy_(found)
    return mean, scale


def standard_backward(grad: Tensor, rows: Tensor, mean: Tensor, scale: Tensor, out: Tensor) -> None:
    """The derivative in the rows from that in the standardised ones, written to `out`."""
    out.copy_(
        torch.ops.aten.native_layer_norm_backward(
            grad.to(rows.dtype), rows, [rows.shape[1]], mean, scale, None, None, [True, False, False]
        )[0]
    )
