"""Norms that never mix samples, so that a client alone equals a client in a cohort: of groups, and of kernels."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from selfsame.errors import SelfsameError


def group_norm(channels: int, groups: int, affine: bool = True) -> nn.GroupNorm:
    """Group norm with the largest number of groups that divides the channels and is at most `groups`."""
    if groups < 1:
        raise SelfsameError(f"groups must be at least 1, got {groups}")
    fitting = max(number for number in range(1, min(groups, channels) + 1) if channels % number == 0)
    return nn.GroupNorm(fitting, channels, affine=affine)


TINY = 1e-10  # added to the variance of a kernel, which training makes small: only one of zeros should notice


class StandardConv2d(nn.Conv2d):
    """A convolution whose kernels are brought to mean 0 and variance 1 before use (Qiao et al., 2019).

    What a batch norm does by way of the samples, centring what each channel sees, this does by way of the weights.
    """

    @property
    def standard_weight(self) -> Tensor:
        variance, mean = torch.var_mean(self.weight, (1, 2, 3), correction=0, keepdim=True)
        return (self.weight - mean) * (variance + TINY).rsqrt()

    def forward(self, x: Tensor) -> Tensor:
        return self._conv_forward(x, self.standard_weight, self.bias)


@dataclass(frozen=True)
class Normed:
    """A norm's output, and what its backward pass needs."""

    x: Tensor
    out: Tensor
    mean: Tensor  # (N, C), the same within a group
    scale: Tensor  # 1 / sqrt(variance + eps)
    relu: bool
    added: bool


def norm_forward(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    groups: int,
    eps: float,
    add: Tensor | None = None,
    relu: bool = True,
    thin: int = 0,
) -> Normed:
    """relu(group_norm(x) * weight + bias + add); the plain version of the kernels.

    With `thin` > 0, `add` is the image of which every `thin`-th pixel is added, to the first channels.
    """
    each = x.unflatten(1, (groups, -1)).to(weight.dtype)
    mean = each.mean((2, 3, 4), keepdim=True)
    scale = (each.var((2, 3, 4), correction=0, keepdim=True) + eps).rsqrt()
    mean, scale = (part.expand(-1, -1, each.shape[2], 1, 1).flatten(1) for part in (mean, scale))
    out = F.group_norm(x.to(weight.dtype), groups, weight, bias, eps)
    if add is not None and thin:
        add = F.pad(add[:, :, ::thin, ::thin], (0, 0, 0, 0, 0, x.shape[1] - add.shape[1]))
    if add is not None:
        out = out + add
    return Normed(x, (out.relu() if relu else out).to(x.dtype), mean, scale, relu, add is not None)


def norm_backward(
    saved: Normed,
    grad: Tensor,
    more: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    groups: int,
    part: Tensor,
    thin: int = 0,
) -> tuple[Tensor, Tensor | None]:
    """The derivatives in x and in `add`, given that in the output as one tensor or as the sum of two.

    Each image's derivatives in weight and bias are written to `part` (N, 2C), a slice of a wider buffer.
    With `thin` > 0, the first channels of `more` count for every `thin`-th pixel; the derivative in `add` is that in
    its thin image.
    """
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
