"""How alike two pictures look: LPIPS v0.1 with AlexNet (Zhang et al., 2018), and PSNR.

The weights are not part of the package. They come from an .npz file with conv0_weight, conv0_bias and lin0_weight to
conv4_weight, conv4_bias and lin4_weight, as the authors published them.

Shapes: S and T pictures, C channels, H and W sides, F features of a layer.
"""

from __future__ import annotations

import math
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from selfsame.errors import SelfsameError

# Of pixels in -1 .. 1, as the authors have them.
_SHIFT, _SCALE = (-0.030, -0.088, -0.188), (0.458, 0.448, 0.450)
_SIDES = (11, 5, 3, 3, 3)  # of the kernels
_STRIDES, _PADS, _POOLED = (4, 1, 1, 1, 1), (2, 2, 1, 1, 1), (1, 2)  # pooled: before which convolutions
_LEAST = 31  # the least side of which anything is left behind two poolings
_TINY = 1e-10


@dataclass(frozen=True)
class Lpips:
    """The distance of pictures by AlexNet's features; 0: the same."""

    conv: tuple[tuple[Tensor, Tensor], ...]  # kernels and bias of the five convolutions
    lin: tuple[Tensor, ...]  # how much each feature counts
    side: int = 0  # that pictures are brought to first, bilinearly; 0: as they are

    @staticmethod
    def read(path: Path, side: int = 0) -> Lpips:
        """The weights from an .npz file. The distance grows with the side, so that it goes with every figure."""
        if side and side < _LEAST:
            raise SelfsameError(f"LPIPS: needs pictures of side {_LEAST} or more, got {side}")
        names = [f"{kind}{place}_{part}" for place in range(5) for kind, part in _PARTS]
        try:
            with np.load(path, allow_pickle=False) as file:
                found = {name: torch.from_numpy(file[name].astype(np.float32)) for name in names}
        except FileNotFoundError:
            raise SelfsameError(f"{path}: no such file") from None
        except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError, zipfile.BadZipFile) as error:
            raise SelfsameError(f"{path}: no weights of LPIPS, an .npz file of {names[0]} to {names[-1]}") from error
        depth = 3
        for place, kernel in enumerate(_SIDES):
            weight, bias, lin = (found[f"{kind}{place}_{part}"] for kind, part in _PARTS)
            shapes = (weight.shape, bias.shape, lin.shape)
            width = len(bias)
            if shapes != ((width, depth, kernel, kernel), (width,), (width,)):
                raise SelfsameError(f"{path}: layer {place} has the shapes {', '.join(str(tuple(s)) for s in shapes)}")
            if not all(bool(torch.isfinite(part).all()) for part in (weight, bias, lin)):
                raise SelfsameError(f"{path}: layer {place} holds numbers that are not finite")
            depth = width
        conv = tuple((found[f"conv{place}_weight"], found[f"conv{place}_bias"]) for place in range(5))
        return Lpips(conv, tuple(found[f"lin{place}_weight"] for place in range(5)), side)

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> Lpips:
        conv = tuple((weight.to(device, dtype), bias.to(device, dtype)) for weight, bias in self.conv)
        return replace(self, conv=conv, lin=tuple(part.to(device, dtype) for part in self.lin))

    def features(self, x_S: Tensor) -> list[Tensor]:
        """What each of the five layers sees in pictures (S, C, H, W) of pixels in 0 .. 1, of unit length: (S, F, H, W).

        Grey pictures are taken for coloured ones. Where no side is given, each pixel of a small one becomes a square.
        """
        first = self.conv[0][0]
        x_S = x_S.to(first).expand(-1, 3, -1, -1)
        if self.side:
            x_S = F.interpolate(x_S, (self.side, self.side), mode="bilinear")
        times = math.ceil(_LEAST / min(x_S.shape[2:]))
        x_S = x_S.repeat_interleave(times, 2).repeat_interleave(times, 3)
        shift, scale = (first.new_tensor(values)[:, None, None] for values in (_SHIFT, _SCALE))
        x_S = (2 * x_S - 1 - shift) / scale
        found = []
        for place, (weight, bias) in enumerate(self.conv):
            if place in _POOLED:
                x_S = F.max_pool2d(x_S, 3, 2)
            x_S = F.conv2d(x_S, weight, bias, _STRIDES[place], _PADS[place]).relu()
            found.append(x_S / (torch.linalg.vector_norm(x_S, dim=1, keepdim=True) + _TINY))
        return found

    @torch.no_grad()
    def distances(self, a_S: Tensor, b_T: Tensor) -> Tensor:
        """Of each picture to each: the features' squared differences, weighed, meant over places: shape (S, T)."""
        total_ST = torch.zeros(len(a_S), len(b_T), dtype=torch.float64, device=self.lin[0].device)
        for a, b, lin_F in zip(self.features(a_S), self.features(b_T), self.lin, strict=True):
            a, b, lin_F11 = a.double(), b.double(), lin_F.double()[:, None, None]
            places = a.shape[2] * a.shape[3]
            square_S, square_T = ((lin_F11 * x**2).sum((1, 2, 3)) for x in (a, b))
            product_ST = (lin_F11 * a).flatten(1) @ b.flatten(1).T
            total_ST += (square_S[:, None] + square_T - 2 * product_ST) / places
        return total_ST


_PARTS = (("conv", "weight"), ("conv", "bias"), ("lin", "weight"))


def psnr(a_S: Tensor, b_T: Tensor) -> Tensor:
    """Of each picture to each, pixels in 0 .. 1, in dB: -10 log10 of the mean squared difference: shape (S, T)."""
    a_SP, b_TP = a_S.flatten(1).double(), b_T.flatten(1).double()
    gap_ST = torch.cdist(a_SP, b_TP, compute_mode="donot_use_mm_for_euclid_dist").square() / a_SP.shape[1]
    return -10 * torch.log10(gap_ST.clamp(min=_TINY))


def best_of(value_ST: Tensor, count: int) -> Tensor:
    """The mean of the least of `count` values drawn from each row without repetition: shape (S,).

    The i-th smallest of T is the least of the drawn in as many ways as the others can be drawn from those behind it.
    """
    total = value_ST.shape[1]
    if not 1 <= count <= total:
        raise SelfsameError(f"best of {count}: there are {total} values to draw from")
    ways = [math.comb(total - place, count - 1) / math.comb(total, count) for place in range(1, total + 1)]
    return value_ST.double().sort(1).values @ value_ST.new_tensor(ways, dtype=torch.float64)
