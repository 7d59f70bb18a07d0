"""The middle of a picture at another size, as a layer: what an encoder expects is part of it, and of its model file.

Resizing is a product with a table on either side: plain operations, which every exporter knows.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from selfsame.errors import SelfsameError

_SLOPE = -0.75


def resize_table(before: int, after: int, like: Tensor) -> Tensor:
    """Weights (after, before) of cubic interpolation between the centres of pixels; each row adds up to 1.

    Keys's cubic with the slope that OpenCV and PyTorch take. At the edge, pixels that are not there do not count; where
    a picture shrinks, the cubic is as wide as it takes for every pixel to count.
    """
    place_B = torch.arange(before, device=like.device).to(like.dtype)
    centre_A1 = (torch.arange(after, device=like.device).to(like.dtype)[:, None] + 0.5) * (before / after) - 0.5
    away_AB = (place_B - centre_A1).abs() / max(1.0, before / after)
    near_AB = ((_SLOPE + 2) * away_AB - (_SLOPE + 3)) * away_AB * away_AB + 1
    far_AB = _SLOPE * (((away_AB - 5) * away_AB + 8) * away_AB - 4)
    weight_AB = near_AB * (away_AB <= 1) + far_AB * ((away_AB > 1) & (away_AB < 2))
    return weight_AB / weight_AB.sum(1, keepdim=True)


class MiddleAt(nn.Module):
    """Pictures (n, C, H, W), full scale 1, to their middle of crop x crop pixels, at size x size.

    Without a `crop` (0) it is the largest square.
    """

    def __init__(self, shape: tuple[int, int, int], crop: int, size: int) -> None:
        super().__init__()
        least = min(shape[1:])
        if not 0 <= crop <= least:
            raise SelfsameError(f"crop must be from 0 (all) to {least}, the side of the pictures, got {crop}")
        self.crop, self.size = crop or least, size

    def forward(self, x: Tensor) -> Tensor:
        top, left = (x.shape[2] - self.crop) // 2, (x.shape[3] - self.crop) // 2
        x = x[:, :, top : top + self.crop, left : left + self.crop]
        if self.crop == self.size:
            return x
        with torch.autocast(x.device.type, enabled=False):  # half precision would lose what tells two pixels apart
            x = x if x.dtype == torch.float64 else x.float()
            table_AB = resize_table(self.crop, self.size, x)
            out: Tensor = table_AB @ x @ table_AB.T
            return out.clamp(0, 1)  # a cubic overshoots at edges
