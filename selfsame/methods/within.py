"""Whitening by sums: what embeddings of one person differ in, added up over devices, and the matrix that shortens it.

A device brings its S embeddings to length one, u, and sends their mean m and covariance C, the mean of
(u - m)(u - m)', as the upper triangle with what lies off the diagonal times sqrt(2). C has the trace 1 - |m|^2 at most,
so what is sent is at most sqrt(|m|^2 + (1 - |m|^2)^2) <= 1 long. Everybody counts the same. From the sums over all,
mu is the mean of m and W that of C, and the layer is u -> L'(u - mu) with L L' the inverse of W / w + share I, where w
is the mean eigenvalue of W (Hatch and others: within-class covariance normalisation).

Shapes: S samples, N devices, D dimensions, V = D + D (D + 1) / 2 numbers of a summand.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from selfsame.errors import SelfsameError
from selfsame.methods.base import unit
from selfsame.methods.moments import packed_symmetric, unpacked_moments

LONGEST = 1.0  # the length of a summand, at most
_DIRECTIONS = 16  # that a device is counted for at most: what somebody's embeddings differ in is of few dimensions
_TIMES = 2  # so many times D directions must be in a sum


def summand(emb_SD: Tensor) -> Tensor:
    """What a device adds to the sum, (V,) in double precision."""
    unit_SD = unit(emb_SD.double())
    mean_D = unit_SD.mean(0)
    away_SD = unit_SD - mean_D
    return torch.cat([mean_D, packed_symmetric(away_SD.T @ away_SD / len(away_SD))])


def whitening(sum_V: Tensor, width: int, devices: int, share: float) -> tuple[Tensor, Tensor]:
    """(mu, L) from the sum over so many devices, in double precision."""
    if not (math.isfinite(share) and share > 0):
        raise SelfsameError(f"--share: must be above 0, got {share:g}")
    mean_D, within_DD = (part / devices for part in unpacked_moments(sum_V.double(), width))
    even = float(within_DD.trace()) / width
    if not (math.isfinite(even) and even > 1e-12):
        raise SelfsameError("whitening: nobody's embeddings differ from each other; there is nothing to make short")
    whole_DD = within_DD / even + share * torch.eye(width, dtype=sum_V.dtype, device=sum_V.device)
    return mean_D, torch.linalg.cholesky(torch.linalg.inv(whole_DD))


def least_devices(width: int, count_N: Tensor) -> int:
    """The fewest devices whose sum is released, whoever of these they are, by their numbers of samples.

    A sum over few covariances has a span that tells who is in it. So 2D directions must be in it, even without those
    of one device, which knows its own. Somebody with S samples brings S - 1 of them, and counts for 16 at most. Where
    there are too few, it says how many like these would do.
    """
    wanted = _TIMES * width
    brought_N = (count_N.cpu() - 1).clamp(0, _DIRECTIONS).sort().values
    enough = (brought_N.cumsum(0) >= wanted).nonzero()
    if len(enough):
        return max(2, int(enough[0]) + 2)
    return math.ceil(wanted / max(float(brought_N.double().mean()), 1e-9)) + 1 if int(brought_N.sum()) else 0
