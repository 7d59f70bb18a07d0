"""Noise on derivatives (Algorithm 2), drawn from the system's cryptographic generator.

Values are cut to a grid and the noise is rounded to the same grid, 2^-20 of its scale or finer: every sum is exact,
and which numbers can come out does not depend on the value, which is what gives a plain floating-point Laplace
mechanism away. What remains: the probabilities are those of rounded noise up to the accuracy of a logarithm in double
precision; beyond 74 scales (Laplace) some points of the grid never occur, and beyond 13.4 (Gaussian) none does. The
ideal mechanism gets there with a chance below 1e-32 a coordinate. Where a guarantee is to hold to the letter, count
that as delta.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Draw = Callable[[int], bytes]
KINDS = ("none", "laplace", "gaussian")
_PIECE = 1 << 16  # numbers that get their noise at a time


@dataclass(frozen=True)
class Mechanism:
    """Algorithm 2: drop rate r, clip T and scale b; or a Gaussian of deviation `scale` after an L2 clip."""

    kind: str
    drop: float = 0.0
    clip: float = 1.0
    scale: float = 1.0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"privacy: kind is one of {', '.join(KINDS)}")
        if not all(isinstance(number, (int, float)) for number in (self.drop, self.clip, self.scale)):
            raise ValueError("privacy: drop, clip and scale are numbers")
        if not (0 <= self.drop < 1 and 0 < self.clip < math.inf and 1e-30 < self.scale < 1e30):
            raise ValueError("privacy: drop is in [0, 1), clip and scale are positive")
        if self.clip > self.scale * 2**30:  # above, the grid would be finer than double precision
            raise ValueError("privacy: clip is at most 2^30 times the scale")


def kept(count: int, drop: float, draw: Draw = os.urandom) -> NDArray[np.bool_]:
    """Which embeddings stay in the loss: each is dropped with probability r (Algorithm 2, line 1)."""
    return _uniform(count, draw) > drop if drop else np.ones(count, bool)


def noised(grad_BD: NDArray[np.float64], how: Mechanism, draw: Draw = os.urandom) -> NDArray[np.float64]:
    """Everything that one participant is sent in a round, clipped and with noise (Algorithm 2, lines 3 and 4)."""
    if how.kind == "none":
        return grad_BD
    if how.kind == "laplace":
        clipped_BD = np.clip(grad_BD, -how.clip, how.clip)
        far = -how.scale * np.log(_uniform(grad_BD.size, draw))
        noise = np.where(_uniform(grad_BD.size, draw) > 0.5, far, -far)
    else:
        clipped_BD = grad_BD * min(1.0, how.clip / max(float(np.linalg.norm(grad_BD)), 1e-300))
        noise = _gaussian(grad_BD.size, how.scale, draw)
    return _on_grid(clipped_BD, noise.reshape(grad_BD.shape), how.scale)


def add_gaussian(sum_P: NDArray[np.float64], deviation: float, draw: Draw = os.urandom) -> None:
    """Noise on every number of a sum of clipped vectors, in place and a piece at a time."""
    for start in range(0, len(sum_P), _PIECE):
        part = sum_P[start : start + _PIECE]
        part[:] = _on_grid(part, _gaussian(len(part), deviation, draw), deviation)


def _gaussian(count: int, deviation: float, draw: Draw) -> NDArray[np.float64]:
    """Box and Muller, one of two kept."""
    radius = deviation * np.sqrt(-2.0 * np.log(_uniform(count, draw)))
    return radius * np.cos(2.0 * math.pi * _uniform(count, draw))


def _on_grid(value: NDArray[np.float64], noise: NDArray[np.float64], scale: float) -> NDArray[np.float64]:
    """Their sum on a grid that the scale gives; values towards zero, so that none grows and no clip is exceeded."""
    step = 2.0 ** (math.frexp(scale)[1] - 21)
    return (np.trunc(value / step) + np.rint(noise / step)) * step


def _uniform(count: int, draw: Draw) -> NDArray[np.float64]:
    """Numbers in (0, 1], to 128 bits where they are small: with 64, Laplace's grid has holes from 30.5 scales on."""
    high_C, low_C = np.frombuffer(draw(16 * count), "<u8").reshape(count, 2).astype(np.float64).T
    return (high_C + (low_C + 0.5) * 2.0**-64) * 2.0**-64
