"""Named randomness: every draw is a pure function of (seed, purpose, client, round, ...).

A stream is a 64-bit key for each client of a cohort. Draws hash the key with a counter (splitmix64), so they need no
generator state: a client gets the same numbers alone, inside a cohort of thousands, in any order, on CPU and CUDA, and
inside a captured CUDA graph whose round number is a tensor. For simulation only: secrets come from the
system's generator.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed 64-bit integer
SALT = 0x5851F42D
_CACHED = 2**16  # numbers drawn at a time on the CPU
MIX1 = -4658895280553007687  # 0xBF58476D1CE4E5B9
MIX2 = -7723592293110705685  # 0x94D049BB133111EB


def _mix(z: Tensor) -> Tensor:
    """The splitmix64 finaliser; torch shifts int64 arithmetically, so the copied sign bits are masked away."""
    z = (z ^ ((z >> 30) & 0x3FFFFFFFF)) * MIX1
    z = (z ^ ((z >> 27) & 0x1FFFFFFFFF)) * MIX2
    return z ^ ((z >> 31) & 0x1FFFFFFFF)


def _bits(key_M1: Tensor, first: int, end: int) -> Tensor:
    """The 64 random bits of the numbers from `first` to `end`."""
    # The xor keeps torch.compile from treating the product as an index, which may not exceed 64 bits.
    return _mix(key_M1 + (torch.arange(first, end, device=key_M1.device) ^ SALT) * GOLDEN)


def _uniform(bits: Tensor) -> Tensor:
    return ((bits >> 40) & 0xFFFFFF).to(torch.float32) * 2.0**-24


def _normal(bits: Tensor) -> Tensor:
    radius = (((bits >> 40) & 0xFFFFFF).to(torch.float32) + 1.0) * 2.0**-24
    angle = ((bits >> 16) & 0xFFFFFF).to(torch.float32) * (2.0**-24 * 2.0 * math.pi)
    return torch.sqrt(-2.0 * torch.log(radius)) * torch.cos(angle)


def _wrap(number: int) -> int:
    """A Python integer reduced to signed 64 bits, as tensors do by themselves."""
    return (number + 2**63) % 2**64 - 2**63


def _name_to_int(name: str) -> int:
    """64-bit FNV-1a: plain arithmetic, which torch.compile can fold into a constant where the name is ASCII."""
    number = 0xCBF29CE484222325
    for byte in [ord(letter) for letter in name] if name.isascii() else name.encode():
        number = (number ^ byte) * 0x100000001B3 % 2**64
    return _wrap(number)


@dataclass(frozen=True)
class Stream:
    """Independent random numbers for each of M clients."""

    key_M: Tensor

    @staticmethod
    def named(seed: int, purpose: str, client_M: Tensor, *rest: int | Tensor) -> Stream:
        """The stream of a purpose for some clients, e.g. ``Stream.named(0, "batch", ids_M, round)``."""
        start = torch.full_like(client_M, _name_to_int(f"{seed}/{purpose}"))
        stream = Stream(start).fold(client_M)
        for part in rest:
            stream = stream.fold(part)
        return stream

    @staticmethod
    def later(seed: int, purpose: str, client_M: Tensor, *rest: int | Tensor) -> Stream:
        """The same as `named`, computed when it is first drawn from: most rounds draw from none of theirs."""
        return _Later(seed, purpose, client_M, *rest)

    def fold(self, part: int | Tensor) -> Stream:
        """A stream independent of this one for every different ``part``."""
        step = _wrap(part * GOLDEN) if isinstance(part, int) else part * GOLDEN
        return Stream(_mix(self.key_M * MIX1 + step + 1))

    def bits(self, *shape: int) -> Tensor:
        """64 random bits per number: int64 of shape (M, *shape)."""
        return self._drawn(shape, torch.int64, lambda bits: bits)

    def uniform(self, *shape: int) -> Tensor:
        """Uniform in [0, 1) with 24 bits, float32 of shape (M, *shape)."""
        return self._drawn(shape, torch.float32, _uniform)

    def normal(self, *shape: int) -> Tensor:
        """Standard normal, float32 of shape (M, *shape) (Box-Muller)."""
        return self._drawn(shape, torch.float32, _normal)

    def _drawn(self, shape: tuple[int, ...], dtype: torch.dtype, made: Callable[[Tensor], Tensor]) -> Tensor:
        """What is made of 64 random bits per number; on the CPU of as many at a time as stay in its cache."""
        count, key_M1 = math.prod(shape), self.key_M[:, None]
        if key_M1.device.type != "cpu" or count <= _CACHED:
            return made(_bits(key_M1, 0, count)).reshape(len(key_M1), *shape)
        found_MS = torch.empty(len(key_M1), count, dtype=dtype)
        for key_11, found_1S in zip(key_M1.split(1), found_MS.split(1), strict=True):
            for at in range(0, count, _CACHED):
                found_1S[:, at : at + _CACHED] = made(_bits(key_11, at, min(at + _CACHED, count)))
        return found_MS.reshape(len(key_M1), *shape)

    def below(self, limit_M: Tensor, *shape: int) -> Tensor:
        """Integers in [0, limit), one limit a client: int64 of shape (M, *shape)."""
        wide = (self.bits(*shape) >> 32) & 0x7FFFFFFF
        limit = limit_M.reshape(len(self.key_M), *(1 for _ in shape))
        return (wide * limit) >> 31


class _Later(Stream):
    def __init__(self, *parts: Any) -> None:
        object.__setattr__(self, "_parts", parts)

    @property
    def key_M(self) -> Tensor:
        if "_key_M" not in self.__dict__:
            object.__setattr__(self, "_key_M", Stream.named(*self.__dict__["_parts"]).key_M)
        key_M: Tensor = self.__dict__["_key_M"]
        return key_M


def host_generator(seed: int, purpose: str, *parts: int) -> np.random.Generator:
    """NumPy's generator for the server's own choices (who takes part), keyed the same way."""
    digest = hashlib.blake2b("/".join(map(str, (seed, purpose, *parts))).encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))
