"""Masks: random whole numbers that a device adds to its own, and that come off the sum.

A mask is the key stream of AES-128 in counter mode, read as little-endian numbers of 16 or 32 bits. Its key comes from
a fresh secret of 32 bytes and from the context, so that no secret makes the same mask twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

NUMBERS: dict[int, np.dtype[Any]] = {16: np.dtype("<u2"), 32: np.dtype("<u4")}
_KEY = b"selfsame mask 1"
_CHUNK = 1 << 18  # bytes of each stream at a time: they stay in the core's cache
_ZEROS = bytes(_CHUNK)


def mask_key(seed: bytes, context: bytes) -> bytes:
    """The key of a mask, from a device's secret and the digest of its context."""
    return HKDF(SHA256(), 16, salt=None, info=_KEY + context).derive(seed)


def add_masks(total: NDArray[Any], keys: Sequence[bytes]) -> None:
    """Add the mask of every key to these numbers, modulo 2^bits, in place."""
    streams = [Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor() for key in keys]
    buffer = bytearray(_CHUNK)
    step = _CHUNK // total.itemsize
    for begin in range(0, len(total), step):
        part = total[begin : begin + step]
        mask = np.frombuffer(buffer, total.dtype, len(part))
        for stream in streams:
            stream.update_into(_ZEROS[: part.nbytes], buffer)
            np.add(part, mask, out=part)


def masks_of(keys: Sequence[bytes], numbers: int, bits: int) -> NDArray[Any]:
    """The sum of the masks."""
    total = np.zeros(numbers, NUMBERS[bits])
    add_masks(total, keys)
    return total
