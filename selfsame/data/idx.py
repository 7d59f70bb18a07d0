"""The idx format of MNIST: two zero bytes, a type, the number of dimensions, their sizes, then the values."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from selfsame.errors import SelfsameError

_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_MOST_BYTES = 1 << 30  # EMNIST, the largest set published as idx, needs 0.6 GB
_GZIP_RATIO = 1032  # deflate cannot shrink more than this


def read_idx(path: Path) -> NDArray[Any]:
    """The array in an idx file, plain or (by its name) gzipped; nothing is allocated on the header's word alone."""
    try:
        size = path.stat().st_size
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as stream:
            return _read(path, cast(BinaryIO, stream), size * _GZIP_RATIO if path.suffix == ".gz" else size)
    except (OSError, EOFError, zlib.error, MemoryError) as error:
        raise SelfsameError(f"{path}: cannot be read ({_one_line(error)}); fetch the file again") from error


def _read(path: Path, stream: BinaryIO, most: int) -> NDArray[Any]:
    magic = stream.read(4)
    if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] not in _TYPES or not 1 <= magic[3] <= 8:
        raise SelfsameError(f"{path}: not an idx file, it begins with {magic.hex() or 'nothing'}")
    dims = stream.read(4 * magic[3])
    if len(dims) < 4 * magic[3]:
        raise SelfsameError(f"{path}: truncated within the header")
    shape = tuple(int.from_bytes(dims[at : at + 4], "big") for at in range(0, len(dims), 4))
    dtype = np.dtype(_TYPES[magic[2]])
    expected = math.prod(shape) * dtype.itemsize
    if expected == 0:
        raise SelfsameError(f"{path}: empty, the header says {_sizes(shape)} values")
    if expected > min(most, _MOST_BYTES):
        raise SelfsameError(f"{path}: the header promises {_sizes(shape)} values, more than the file can hold")
    body = stream.read(expected + 1)  # one more than expected, never all of what may be a gzip bomb
    if len(body) != expected:
        fault = "truncated" if len(body) < expected else "longer than its header says"
        raise SelfsameError(f"{path}: {fault}, expected {_sizes(shape)} values")
    values = np.frombuffer(bytearray(body), dtype).reshape(shape)
    if dtype.kind == "f" and not np.isfinite(values).all():
        raise SelfsameError(f"{path}: holds values that are not finite")
    return values


def _sizes(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


def _one_line(error: BaseException) -> str:
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(text.split()) or type(error).__name__
