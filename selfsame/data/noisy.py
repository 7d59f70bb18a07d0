"""Samples in noise of one's own making."""

from __future__ import annotations

import torch
from torch import Tensor


def in_noise(raw: Tensor, decibels: float, draw: torch.Generator) -> Tensor:
    """Samples (S, *shape) with normal noise, whose deviation lies so many decibels below the largest value of each.

    Whole numbers stay whole, within what their type holds. `draw` is a generator on the CPU.
    """
    flat = raw.flatten(1).to("cpu", torch.float32)
    loudest_S1 = flat.abs().amax(1, keepdim=True)
    noisy = flat + torch.randn(flat.shape, generator=draw) * loudest_S1 * 10 ** (-decibels / 20)
    if not raw.is_floating_point():
        held = torch.iinfo(raw.dtype)
        noisy = noisy.round().clamp(held.min, held.max)
    return noisy.to(raw.dtype).view(raw.shape).to(raw.device)
