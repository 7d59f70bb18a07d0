"""The face encoder of dlib (King, 2017): 29 convolutions, pictures of 150x150, 128 dimensions, compared by distance.

Its norms were over the batch; at inference each is a gain and a shift for every channel, which is what this network
has, so no sample sees another. A shortcut that changes its shape has no weights: it is averaged over 2x2, and what is
missing at the right, at the bottom and in further channels is zero.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from selfsame.errors import SelfsameError
from selfsame.nets.crop import EyesAt, MiddleAt

SIZE = 150
_LEAST = 103  # pixels a side from which every convolution has an input
_MEAN = (122.782, 117.001, 104.298)  # of red, green and blue, which the encoder takes off; 255 is full scale
_EYES = (0.318, 0.314, 0.669, 0.314)  # where the middles of the eyes are in the pictures that it was trained on
# Channels and whether the block halves the sides, from the input on.
BLOCKS = (
    *((32, False),) * 3,
    *((64, True), *((64, False),) * 3),
    *((128, True), *((128, False),) * 2),
    *((256, True), *((256, False),) * 2, (256, True)),
)


class ScaledConv(nn.Module):
    """A convolution, then a gain and a shift for every channel; without padding where it has a stride.

    The gain is taken with the kernels and the shift as their bias, so that no picture is gone over again for them.
    """

    frozen_norm: ClassVar[tuple[str, ...]] = ("gain", "shift")  # what its norm is at inference

    def __init__(self, before: int, after: int, kernel: int, stride: int = 1) -> None:
        super().__init__()
        padding = kernel // 2 if stride == 1 else 0
        self.conv = nn.Conv2d(before, after, kernel, stride=stride, padding=padding, bias=False)
        nn.init.kaiming_normal_(self.conv.weight, mode="fan_out", nonlinearity="relu")
        self.gain = nn.Parameter(torch.ones(after))
        self.shift = nn.Parameter(torch.zeros(after))

    def forward(self, x: Tensor) -> Tensor:
        kernels = self.conv.weight * self.gain[:, None, None, None]
        return F.conv2d(x, kernels, self.shift, self.conv.stride, self.conv.padding)


class DlibBlock(nn.Module):
    """Two convolutions beside a shortcut without weights."""

    def __init__(self, before: int, after: int, halves: bool) -> None:
        super().__init__()
        self.halves = halves
        self.conv1 = ScaledConv(before, after, 3, 2 if halves else 1)
        self.conv2 = ScaledConv(after, after, 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.conv2(self.conv1(x).relu())
        if self.halves:
            x = F.avg_pool2d(x, 2)
            channels, height, width = (max(a, b) for a, b in zip(x.shape[1:], y.shape[1:], strict=True))
            x, y = (_grown(one, channels, height, width) for one in (x, y))
        return (x + y).relu()


def _grown(x: Tensor, channels: int, height: int, width: int) -> Tensor:
    """With zeros in the channels, at the bottom and at the right that it lacks."""
    lacks = (0, width - x.shape[3], 0, height - x.shape[2], 0, channels - x.shape[1])
    return F.pad(x, lacks) if any(lacks) else x


class DlibFace(nn.Module):
    """Pictures (n, 3, H, W) or (n, 1, H, W), full scale 1, to embeddings (n, D).

    `crop`: the side in pixels of the middle that is kept, 0 for all; `size`: what that is brought to. Or `eyes`: where
    they are in every picture, by which it is turned, scaled and moved. With `mirror` an embedding is the mean of those
    of the picture and of its mirror image, at twice the cost: what is not of the person, such as light from one side,
    is averaged out.
    """

    full_scale: ClassVar[bool] = True
    own_width: ClassVar[int] = 128
    own_distance: ClassVar[str] = "euclidean"

    def __init__(
        self,
        shape: tuple[int, int, int],
        width: int,
        *,
        crop: int = 0,
        size: int = SIZE,
        eyes: tuple[int, ...] = (),
        mirror: bool = False,
    ) -> None:
        super().__init__()
        if shape[0] not in (1, 3):
            raise SelfsameError(f"pictures have 1 or 3 channels, got {shape[0]}")
        if size < _LEAST:
            raise SelfsameError(f"size must be at least {_LEAST}, got {size}")
        if crop and eyes:
            raise SelfsameError("crop and eyes both say which part of a picture is kept; give one of them")
        self.front = EyesAt(shape, tuple(eyes), _EYES, size) if eyes else MiddleAt(shape, crop, size)
        self.mirrored = _mirrored(self.front, shape, tuple(eyes), size) if mirror else None
        self.stem = ScaledConv(3, 32, 7, 2)
        before = (32, *(after for after, _ in BLOCKS))
        self.blocks = nn.Sequential(*(DlibBlock(one, *block) for one, block in zip(before, BLOCKS, strict=False)))
        self.head = nn.Linear(256, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Embeddings (n, D)."""
        x = self.front(x) if self.mirrored is None else torch.cat([self.front(x), self.mirrored(x.flip(3))])
        # One number per channel, made where the pictures are: a CUDA graph cannot capture a copy from the CPU.
        mean_311 = torch.cat([x.new_full((1,), value / 255) for value in _MEAN])[:, None, None]
        x = F.max_pool2d(self.stem(x - mean_311).relu(), 3, 2)
        features = self.blocks(x).mean((2, 3))
        if self.mirrored is not None:
            features = features.unflatten(0, (2, -1)).mean(0)
        out: Tensor = self.head(features)
        return out


def _mirrored(front: nn.Module, shape: tuple[int, int, int], eyes: tuple[int, ...], size: int) -> nn.Module:
    """The front of mirror images: the eyes have changed places there, and come to lie where the others do."""
    if not eyes:
        return front
    left, right = (shape[2] - 1 - eyes[2], eyes[3]), (shape[2] - 1 - eyes[0], eyes[1])
    return EyesAt(shape, (*left, *right), _EYES, size)
