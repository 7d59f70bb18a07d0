"""Samples in noise of one's own making."""

from __future__ import annotations

import torch
from torch import Tensor

from selfsame.errors import SelfsameError

_LOUD = (torch.uint8, torch.int16)  # whole numbers that say how bright or loud; wider ones are names of features


def in_noise(raw: Tensor, decibels: float, draw: torch.Generator) -> Tensor:
    """Samples (S, *shape) with normal noise, whose deviation lies so many decibels below the largest value of each.

    Whole numbers stay whole, within what their type holds. `draw` is a generator on the CPU.
    """
    whole = not raw.is_floating_point()
    if whole and raw.dtype not in _LOUD:
        raise SelfsameError(f"noise: samples of {str(raw.dtype).removeprefix('torch.')} have no loudness to add it to")
    flat = raw.flatten(1).to("cpu", torch.float32)
    loudest_S1 = flat.abs().amax(1, keepdim=True)
    noisy = flat + torch.randn(flat.shape, generator=draw) * loudest_S1 * 10 ** (-decibels / 20)
    if whole:
        held = torch.iinfo(raw.dtype)
        noisy = noisy.round().clamp(held.min, held.max)
    return noisy.to(raw.dtype).view(raw.shape).to(raw.device)
