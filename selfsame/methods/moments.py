"""The first two moments of unit vectors as one vector that can be summed, and what is left of them under noise.

A unit vector w becomes (w, the upper triangle of w w'), what lies off the diagonal times sqrt(2): its length is
sqrt(2), and distances are those of the pair (w, w w'). Two such vectors at cosine c are sqrt(4 - 2c - 2c^2) apart, at
most 3 / sqrt(2), where c = -1/2.

Where products are of a sketch y of w, of length one as well, w stands before it: (w, y, y y') has length sqrt(3), and
two of them are at most sqrt(8.5) apart, where w is opposite and y at a cosine of -1/2.

Shapes: M vectors, K the width of products, W = K, or D + K with a sketch, V = W + K (K + 1) / 2 numbers of a
contribution.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

LONGEST, APART = math.sqrt(2), 3 / math.sqrt(2)  # the length of a contribution, and how far apart two can be
LONGEST_SKETCHED, APART_SKETCHED = math.sqrt(3), math.sqrt(8.5)


def numbers_of(width: int, beside: int = 0) -> int:
    """V, of products of this width, with so many numbers of the whole vector beside the sketch."""
    return beside + width + width * (width + 1) // 2


def packed_moments(w_MW: Tensor, width: int) -> Tensor:
    """What vectors add to a sum of moments, with products of their last `width` numbers: shape (M, V)."""
    row_T, column_T = _triangle(width, w_MW.device)
    narrow_MK = w_MW[:, w_MW.shape[1] - width :]
    product_MT = narrow_MK[:, row_T] * narrow_MK[:, column_T]
    return torch.cat([w_MW, torch.where(row_T == column_T, product_MT, product_MT * math.sqrt(2))], 1)


def packed_symmetric(second_KK: Tensor) -> Tensor:
    """The upper triangle of a symmetric matrix as a vector of the same length (L2)."""
    row_T, column_T = _triangle(len(second_KK), second_KK.device)
    second_T = second_KK[row_T, column_T]
    return torch.where(row_T == column_T, second_T, second_T * math.sqrt(2))


def unpacked_moments(sum_V: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """The sums of vectors (W,) and of products (K, K)."""
    row_T, column_T = _triangle(width, sum_V.device)
    vectors = len(sum_V) - len(row_T)
    second_T = sum_V[vectors:]
    second_KK = sum_V.new_zeros(width, width)
    second_KK[row_T, column_T] = torch.where(row_T == column_T, second_T, second_T / math.sqrt(2))
    second_KK[column_T, row_T] = second_KK[row_T, column_T]
    return sum_V[:vectors], second_KK


def denoised_mean(mean_D: Tensor, deviation: float) -> Tensor:
    """A mean of unit vectors, shortened by what noise adds to its square (James and Stein), and to one at most."""
    square = mean_D.square().sum()
    kept = (1 - len(mean_D) * deviation**2 / square.clamp(min=1e-300)).clamp(min=0)
    mean_D = mean_D * kept
    return mean_D / mean_D.norm().clamp(min=1)


def denoised_second(second_KK: Tensor, deviation: float) -> Tensor:
    """The second moment with less of Gaussian noise of this deviation on every number of the packed one.

    The eigenvalues are what there is to save. Noise on it is a symmetric matrix with a spectrum of radius
    deviation sqrt(2 K): eigenvalues are drawn to that of an even crowd, 1/K, by the radius, and then to the nearest
    that are positive and add up to one, as those of every second moment of unit vectors do.
    """
    width = len(second_KK)
    value_K, vector_KK = torch.linalg.eigh(second_KK)
    away_K = value_K - 1 / width
    away_K = away_K.sign() * (away_K.abs() - deviation * math.sqrt(2 * width)).clamp(min=0)
    value_K = on_simplex(away_K + 1 / width)
    return (vector_KK * value_K) @ vector_KK.T


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
