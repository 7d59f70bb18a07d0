"""The noise on what FDML's participants are sent: Algorithm 2, and the L2-clipped Gaussian mechanism.

For the simulator: the randomness is the run's. The enclave has the same formulas in numpy over the system's generator,
`selfsame/enclave/noise.py`; `tests/privacy/test_mechanisms.py` holds the two together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from selfsame.errors import SelfsameError
from selfsame.streams import Stream

_DROP, _NOISE = 0, 1  # two independent streams of the one that is passed in


@dataclass(frozen=True)
class Laplace:
    """Algorithm 2: embeddings dropped before the loss, coordinates clipped to [-T, T], Laplace noise of scale b."""

    clip: float  # T, for each coordinate
    scale: float  # b
    drop: float = 0.0  # r, the chance of each embedding to be left out of the round

    def __post_init__(self) -> None:
        _check("laplace", self.drop, clip=self.clip, scale=self.scale)


@dataclass(frozen=True)
class Gaussian:
    """Embeddings dropped alike, all that one is sent clipped to length C, Gaussian noise of deviation sigma."""

    clip: float  # C, for the L2 norm over all of a participant's coordinates
    sigma: float
    drop: float = 0.0

    def __post_init__(self) -> None:
        _check("gaussian", self.drop, clip=self.clip, sigma=self.sigma)


Mechanism = Laplace | Gaussian


def _check(name: str, drop: float, **positive: float) -> None:
    for option, value in positive.items():
        if not (math.isfinite(value) and value > 0):
            raise SelfsameError(f"{name}: {option} must be a number above 0, got {value}")
    if not 0 <= drop < 1:
        raise SelfsameError(f"{name}: drop must be at least 0 and below 1, got {drop}")


def keep(mask_MB: Tensor, mechanism: Mechanism, stream: Stream) -> Tensor:
    """The embeddings that enter the loss: each is left out with probability r, Algorithm 2 line 1."""
    if mechanism.drop == 0:
        return mask_MB
    return mask_MB & (stream.fold(_DROP).uniform(mask_MB.shape[1]) >= mechanism.drop)


def clipped(grad_MBD: Tensor, mask_MB: Tensor, mechanism: Mechanism) -> Tensor:
    """Derivatives within their bound, 0 for samples that are not there: Algorithm 2 line 3, or the L2 ball."""
    grad_MBD = torch.where(mask_MB[..., None], grad_MBD, 0)
    if isinstance(mechanism, Laplace):
        return grad_MBD.clamp(-mechanism.clip, mechanism.clip)
    norm_M = torch.linalg.vector_norm(grad_MBD, dim=(1, 2))
    return grad_MBD * (mechanism.clip / norm_M.clamp(min=mechanism.clip))[:, None, None]


def perturb(grad_MBD: Tensor, mask_MB: Tensor, mechanism: Mechanism, stream: Stream) -> Tensor:
    """What each participant is sent: its derivatives clipped, and noise on those that are there (Algorithm 2 line 4).

    Rows outside the mask are 0. With the mask of `keep`, that is what stands for an embedding that was dropped.
    """
    draw = stream.fold(_NOISE)
    shape = grad_MBD.shape[1:]
    if isinstance(mechanism, Laplace):
        noise_MBD = mechanism.scale * standard_laplace(draw, *shape)
    else:
        noise_MBD = mechanism.sigma * draw.normal(*shape)
    noise_MBD = torch.where(mask_MB[..., None], noise_MBD.to(grad_MBD.dtype), 0)
    return clipped(grad_MBD, mask_MB, mechanism) + noise_MBD


def standard_laplace(stream: Stream, *shape: int) -> Tensor:
    """Laplace noise of scale 1, float32 of shape (M, *shape): an exponential number with a random sign."""
    bits = stream.bits(*shape)
    size = -torch.log((((bits >> 40) & 0xFFFFFF).to(torch.float32) + 1.0) * 2.0**-24)
    return size * (1.0 - 2.0 * ((bits >> 16) & 1).to(torch.float32))
