"""Sound at another rate, as a layer: a network then takes recordings as the device makes them."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from selfsame.errors import SelfsameError

_CROSSINGS = 12  # of the sinc on either side
_KEPT = 0.95  # of the band that both rates have


def sinc_table(up: int, down: int, reach: int, like: Tensor) -> Tensor:
    """Weights (up, 1, 2 reach + down) of the input samples around each of `up` output samples in a row.

    A sinc under Hann's window, cut off below half of the lower rate; what it lets through keeps its size.
    """
    band = _KEPT * min(1.0, up / down)  # in units of half the input's rate
    place_W = torch.arange(2 * reach + down, device=like.device).to(like.dtype) - reach
    time_UW = band * (place_W - torch.arange(up, device=like.device).to(like.dtype)[:, None] * (down / up))
    window_UW = (time_UW * (math.pi / 2 / _CROSSINGS)).cos().square() * (time_UW.abs() < _CROSSINGS)
    weight_UW = torch.sinc(time_UW) * window_UW
    return (weight_UW / weight_UW.sum(1, keepdim=True))[:, None]


class Resampled(nn.Module):
    """Sound (n, samples) at one rate to (n, more or fewer samples) at another; beyond its ends it is silent."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        if before < 1 or after < 1:
            raise SelfsameError(f"rate must be at least 1, got {min(before, after)}")
        common = math.gcd(before, after)
        self.up, self.down = after // common, before // common
        self.reach = math.ceil(_CROSSINGS / (_KEPT * min(1.0, self.up / self.down)))

    def samples(self, before: int) -> int:
        """How many samples so many become."""
        return -(-before * self.up // self.down)

    def forward(self, x: Tensor) -> Tensor:
        if self.up == self.down:
            return x
        wanted = self.samples(x.shape[-1])
        blocks = -(-wanted // self.up)
        behind = blocks * self.down + self.reach - x.shape[-1]
        wave = F.pad(x[:, None], (self.reach, max(behind, 0)))
        out_UK = F.conv1d(wave, sinc_table(self.up, self.down, self.reach, x), stride=self.down)[..., :blocks]
        return out_UK.mT.flatten(1)[:, :wanted]
