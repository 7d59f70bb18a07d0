"""The first two moments of unit vectors as one vector that can be summed, and what is left of them under noise.

A unit vector w becomes (w, the upper triangle of w w'), what lies off the diagonal times sqrt(2): its length is
sqrt(2), and distances are those of the pair (w, w w'). Two such vectors at cosine c are sqrt(4 - 2c - 2c^2) apart, at
most 3 / sqrt(2), where c = -1/2.

Shapes: M vectors, K their width, V = K + K (K + 1) / 2 numbers of a contribution.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

LONGEST = math.sqrt(2)
APART = 3 / math.sqrt(2)


def numbers_of(width: int) -> int:
    """V, of vectors of this width."""
    return width + width * (width + 1) // 2


def packed_moments(w_MK: Tensor) -> Tensor:
    """What vectors of length one or zero add to a sum of moments: shape (M, V)."""
    row_T, column_T = _triangle(w_MK.shape[1], w_MK.device)
    product_MT = w_MK[:, row_T] * w_MK[:, column_T]
    return torch.cat([w_MK, torch.where(row_T == column_T, product_MT, product_MT * math.sqrt(2))], 1)


def unpacked_moments(sum_V: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """The sums of w (K,) and of w w' (K, K)."""
    row_T, column_T = _triangle(width, sum_V.device)
    second_T = sum_V[width:]
    second_KK = sum_V.new_zeros(width, width)
    second_KK[row_T, column_T] = torch.where(row_T == column_T, second_T, second_T / math.sqrt(2))
    second_KK[column_T, row_T] = second_KK[row_T, column_T]
    return sum_V[:width], second_KK


def denoised(mean_K: Tensor, second_KK: Tensor, deviation: float) -> tuple[Tensor, Tensor]:
    """The moments with less of Gaussian noise of this deviation on every number of the packed mean.

    The mean is shortened by what noise adds to its square (James and Stein), and to length one at most. Of the second
    moment the eigenvalues are what there is to save. Noise on it is a symmetric matrix with a spectrum of radius
    deviation sqrt(2 K): eigenvalues are drawn to that of an even crowd, 1/K, by the radius, and then to the nearest
    that are positive and add up to one, as those of every second moment of unit vectors do.
    """
    width = len(mean_K)
    square = mean_K.square().sum()
    kept = (1 - width * deviation**2 / square.clamp(min=1e-300)).clamp(min=0)
    mean_K = mean_K * kept
    mean_K = mean_K / mean_K.norm().clamp(min=1)
    value_K, vector_KK = torch.linalg.eigh(second_KK)
    away_K = value_K - 1 / width
    away_K = away_K.sign() * (away_K.abs() - deviation * math.sqrt(2 * width)).clamp(min=0)
    value_K = on_simplex(away_K + 1 / width)
    return mean_K, (vector_KK * value_K) @ vector_KK.T


def on_simplex(value_K: Tensor) -> Tensor:
    """The nearest numbers that are not negative and add up to one."""
    down_K = value_K.sort(descending=True).values
    count_K = torch.arange(1, len(down_K) + 1, device=value_K.device, dtype=value_K.dtype)
    excess_K = (down_K.cumsum(0) - 1) / count_K
    last = int((down_K > excess_K).nonzero().max())
    return (value_K - excess_K[last]).clamp(min=0)


def _triangle(width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    row_T, column_T = torch.triu_indices(width, width, device=device)
    return row_T, column_T
