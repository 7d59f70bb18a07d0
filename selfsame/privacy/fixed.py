"""Updates as whole numbers modulo a power of two, as masks need them: clipped, weighted, rounded at random.

A contribution has one number for each parameter and, last, the device's weight. Sums of whole numbers are exact, so
what a sum is off by is the rounding of its parts and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from selfsame.errors import SelfsameError
from selfsame.streams import Stream

_CACHED = 2**16  # numbers in work at a time on the CPU
_TAIL = 8.0  # deviations of a device's own noise beyond which it is cut


@dataclass(frozen=True)
class FixedPoint:
    """The code of contributions whose sum over at most `group` devices fits into `bits` bits with its sign."""

    clip: float  # the longest update, L2
    reach: float  # the largest number of an update
    bits: int
    group: int
    cap: int = 1  # the largest weight: samples, or 1 where all weigh the same
    noise: float = 0.0  # deviation of each device's own noise

    def __post_init__(self) -> None:
        if not (0 < self.reach <= self.clip and self.noise >= 0):
            raise SelfsameError(f"sums.reach: must be above 0 and at most the clip of {self.clip:g}, got {self.reach}")
        if self.group * max(self.cap, 2) > self.half:
            raise SelfsameError(
                f"sums.bits: {self.bits} bits do not hold the sum of {self.group} devices that weigh up to {self.cap}; "
                "use 32 bits, smaller groups or a lower cohort.cap"
            )

    @property
    def half(self) -> int:
        """The largest sum."""
        return 2 ** (self.bits - 1) - 1

    @property
    def step(self) -> float:
        """What a whole number stands for. Rounding up adds less than one step to each of `group` numbers."""
        return (self.reach + _TAIL * self.noise) * self.group / (self.half - self.group)

    @property
    def error(self) -> float:
        """The deviation that rounding gives the sum of `group` contributions, each number of it, at most."""
        return self.step / 2 * self.group**0.5

    def contribution(
        self, update_MP: Tensor, weight_M: Tensor, uniform_MP: Tensor, normal_MP: Tensor | None = None
    ) -> Tensor:
        """What devices of these weights (whole numbers up to the cap) send: int64 of shape (M, P + 1).

        No update is longer than the clip, no number of it larger than the reach. `uniform_MP` decides the rounding, x
        to floor(x + u), which is right on average. A weight of 0 sends zero.
        """
        size, device = update_MP.shape[1], update_MP.device
        shorter_M1 = shortening(update_MP, self.clip)
        share_M1 = (weight_M.double() / self.cap)[:, None]
        sent = torch.empty(len(update_MP), size + 1, dtype=torch.int64, device=device)
        sent[:, -1] = weight_M
        at_once = size if device.type != "cpu" else _CACHED  # numbers that stay in the cache
        for at in range(0, size, max(1, at_once)):
            some = slice(at, min(at + at_once, size))  # the weight comes behind
            value = (update_MP[:, some] * shorter_M1).clamp_(-self.reach, self.reach).double().mul_(share_M1)
            if normal_MP is not None and self.noise:
                value.add_(normal_MP[:, some].double().clamp_(-_TAIL, _TAIL), alpha=self.noise)
            sent[:, some] = value.div_(self.step).add_(uniform_MP[:, some]).floor_().to(torch.int64)
        return sent

    def summed(self, update_MP: Tensor, weight_M: Tensor, rounding: Stream) -> Tensor | None:
        """The sum of contributions without noise, (P + 1,), by one kernel on CUDA; None where that does not fit."""
        if self.noise or update_MP.device.type != "cuda":
            return None
        try:
            from selfsame.privacy import fixed_cuda
        except ImportError:
            return None
        if not fixed_cuda.supported(update_MP):
            return None
        shorter_M = shortening(update_MP, self.clip)[:, 0]
        share_M = weight_M.double() / self.cap
        sum_P = fixed_cuda.add_up(update_MP, shorter_M, share_M, rounding.key_M, self.reach, self.step)
        return torch.cat([sum_P, weight_M.sum(dtype=torch.int64)[None]])

    def mean(self, sum_P: Tensor) -> tuple[Tensor, int]:
        """(the weighted mean of the updates, their weight) of a sum modulo 2^bits, in double precision."""
        total_P, weight = self.total(sum_P)
        return total_P / max(int(weight), 1), int(weight)

    def total(self, sum_P: Tensor) -> tuple[Tensor, Tensor]:
        """(the sum of weight times update in double precision, the sum of the weights) of a sum modulo 2^bits."""
        signed_P = torch.remainder(sum_P.to(torch.int64) + self.half, 2**self.bits) - self.half
        return signed_P[:-1].double() * (self.step * self.cap), signed_P[-1]


def shortened(update_MP: Tensor, clip: float) -> Tensor:
    """No update longer than the clip, L2."""
    return update_MP * shortening(update_MP, clip)


def shortening(update_MP: Tensor, clip: float) -> Tensor:
    """What updates are multiplied by so that none is longer than the clip, (M, 1)."""
    norm_M1 = torch.linalg.vector_norm(update_MP, dim=1, keepdim=True, dtype=torch.float64)
    return (clip / norm_M1.clamp(min=clip)).to(update_MP.dtype)
