"""A part of a picture at another size, as a layer: what an encoder expects is part of it, and of its model file.

Resizing is a product with a table on either side, turning reads four pixels for each: plain operations, which every
exporter knows.
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


def straight_table(at_A: Tensor, pixels: int) -> Tensor:
    """Weights (A, pixels) of straight lines between the centres of pixels; beyond the edge the nearest counts."""
    place_B = torch.arange(pixels, device=at_A.device).to(at_A.dtype)
    return (1 - (place_B - at_A.clamp(0, pixels - 1)[:, None]).abs()).clamp(min=0)


def as_given(out: Tensor, x: Tensor) -> Tensor:
    """With the channels innermost where `x` has them so: convolutions are faster then, and products forget it."""
    if torch._C._functorch.maybe_current_level() is not None or x.stride(1) != 1:  # vmap knows one memory format only
        return out
    return out.contiguous(memory_format=torch.channels_last)


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
            return as_given(out.clamp(0, 1), x)  # a cubic overshoots at edges


class EyesAt(nn.Module):
    """Pictures (n, C, H, W) turned, scaled and moved so that the eyes come to lie where an encoder expects them.

    `eyes`: where they are in every picture, (x, y, x, y) in pixels, the left one in the picture first, as a camera or a
    publisher aligns faces. `wanted`: where they come to lie, in shares of the side of `size` pixels. Between the
    centres of pixels it is straight lines; beyond the edge the nearest pixel.
    """

    def __init__(
        self, shape: tuple[int, int, int], eyes: tuple[int, ...], wanted: tuple[float, ...], size: int
    ) -> None:
        super().__init__()
        height, width = shape[1:]
        inside = len(eyes) == 4 and all(0 <= eyes[n] < (width, height)[n % 2] for n in range(4))
        if not inside or eyes[:2] == eyes[2:]:
            raise SelfsameError(f"eyes must be two places (x, y, x, y) in pictures of {width}x{height}, got {eyes}")
        if max(eyes) <= 1:
            raise SelfsameError(f"eyes are in pixels of pictures of {width}x{height}, not in shares of it, got {eyes}")
        if eyes[0] >= eyes[2]:
            raise SelfsameError(f"eyes: the left one in the picture comes first (x, y, x, y), got {eyes}")
        self.size = size
        # In complex numbers a turn, a scale and a move is z -> a z + b.
        here = complex(*eyes[:2]), complex(*eyes[2:])
        there = complex(*wanted[:2]) * size - complex(0.5, 0.5), complex(*wanted[2:]) * size - complex(0.5, 0.5)
        self.turn = (here[1] - here[0]) / (there[1] - there[0])
        self.move = here[0] - self.turn * there[0]

    def forward(self, x: Tensor) -> Tensor:
        height, width = x.shape[2:]
        with torch.autocast(x.device.type, enabled=False):
            x = x if x.dtype == torch.float64 else x.float()
            side = torch.arange(self.size, device=x.device).to(x.dtype)
            if not self.turn.imag:  # nothing is turned: rows and columns each have a table
                across_AW = straight_table(self.turn.real * side + self.move.real, width)
                down_AH = straight_table(self.turn.real * side + self.move.imag, height)
                return as_given(down_AH @ x @ across_AW.T, x)
            right_AA, down_AA = side[None].expand(self.size, -1), side[:, None].expand(-1, self.size)
            at_x = (self.turn.real * right_AA - self.turn.imag * down_AA + self.move.real).clamp(0, width - 1)
            at_y = (self.turn.imag * right_AA + self.turn.real * down_AA + self.move.imag).clamp(0, height - 1)
            left, top = at_x.floor().clamp(max=max(width - 2, 0)), at_y.floor().clamp(max=max(height - 2, 0))
            rest_x, rest_y = at_x - left, at_y - top
            first = (top * width + left).long().flatten()
            next_x, next_y = min(1, width - 1), min(1, height - 1) * width
            flat = x.flatten(2)
            upper, lower = (
                flat[..., first + down] * (1 - rest_x).flatten() + flat[..., first + down + next_x] * rest_x.flatten()
                for down in (0, next_y)
            )
            out = upper * (1 - rest_y).flatten() + lower * rest_y.flatten()
            return as_given(out.unflatten(-1, (self.size, self.size)), x)
