"""Norms that never mix samples, so that a client alone equals a client in a cohort: of groups, and of kernels."""

from __future__ import annotations

import torch
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
