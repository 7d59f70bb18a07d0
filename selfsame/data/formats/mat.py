"""Matlab files of version 5, as far as data sets use them: numbers, and structures of one element, in any depth.

SciPy's reader crashes the process on some damaged files; this one checks every length before it uses it.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from selfsame.errors import SelfsameError, one_line

_MOST_BYTES = 1 << 30  # of a variable; EMNIST's largest has 0.65 GB
_DEEPEST = 8
_TYPES = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
_MATRIX, _COMPRESSED = 14, 15
_STRUCT, _NUMBERS = 2, range(6, 16)
_COMPLEX = 0x0800


def read_matlab(path: Path, name: str) -> Any:
    """The variable of that name: an array, or a dict of a structure's fields."""
    try:
        raw = path.read_bytes()
    except (OSError, MemoryError) as error:
        raise SelfsameError(f"{path}: cannot be read ({type(error).__name__})") from error
    try:
        if len(raw) < 128 or raw[126:128] not in (b"IM", b"MI"):
            raise ValueError("it is not a Matlab file of version 5")
        order = "<" if raw[126:128] == b"IM" else ">"
        for kind, body in _elements(memoryview(raw)[128:], order):
            if kind == _COMPRESSED:
                inner = zlib.decompressobj()
                whole = inner.decompress(bytes(body), _MOST_BYTES)
                if not inner.eof:
                    raise ValueError("a variable is truncated or too large")
                kind, body = next(_elements(memoryview(whole), order), (0, body))
            if kind == _MATRIX:
                found, value = _matrix(body, order, name)
                if found == name:
                    return value
        raise ValueError(f"it has no variable {name}")
    except (ValueError, zlib.error, MemoryError, struct.error) as error:
        raise SelfsameError(f"{path}: cannot be used: {one_line(error)}") from error


def _elements(body: memoryview, order: str) -> Iterator[tuple[int, memoryview]]:
    """Type and content of one element after another."""
    at = 0
    while at < len(body):
        if at + 8 > len(body):
            raise ValueError("truncated")
        kind, size = struct.unpack_from(f"{order}II", body, at)
        if kind >> 16:  # four bytes at most, beside their tag
            kind, size, begin, step = kind & 0xFFFF, kind >> 16, at + 4, 8
            if size > 4:
                raise ValueError("a short element is too long")
        else:
            begin = at + 8
            step = 8 + (size if kind == _COMPRESSED else -(-size // 8) * 8)
        if begin + size > len(body):
            raise ValueError("truncated")
        yield kind, body[begin : begin + size]
        at += step


def _matrix(body: memoryview, order: str, wanted: str | None, depth: int = 0) -> tuple[str, Any]:
    """The name and the value of a matrix; no value for a name other than `wanted`."""
    if depth > _DEEPEST:
        raise ValueError("structures within structures, too deep")
    parts = _elements(body, order)
    flags, dims, label = (_values(*_next(parts), order) for _ in range(3))
    name = label.tobytes().decode("latin1")
    if wanted is not None and name != wanted:
        return name, None
    kind = int(flags[0]) & 0xFF if len(flags) else 0
    shape = tuple(int(n) for n in dims)
    if len(shape) < 2 or min(shape) < 0:
        raise ValueError(f"{name or 'a field'} has no shape")
    if kind in _NUMBERS and not int(flags[0]) & _COMPLEX:
        values = _values(*_next(parts), order)
        if len(values) != math.prod(shape):
            raise ValueError(f"{name or 'a field'} has {len(values)} values, its shape is {shape}")
        return name, values.reshape(shape, order="F")
    if kind == _STRUCT and math.prod(shape) == 1:
        width, labels = _values(*_next(parts), order), _values(*_next(parts), order).tobytes()
        if len(width) != 1 or not 1 <= int(width[0]) <= 1024 or len(labels) % int(width[0]):
            raise ValueError(f"{name or 'a field'} has no field names")
        out = {}
        for begin in range(0, len(labels), int(width[0])):
            field = labels[begin : begin + int(width[0])].split(b"\0")[0].decode("latin1")
            matrix, inner = _next(parts)
            if matrix != _MATRIX:
                raise ValueError(f"field {field} is no matrix")
            out[field] = _matrix(inner, order, None, depth + 1)[1]
        return name, out
    raise ValueError(f"{name or 'a field'} is neither numbers nor one structure")


def _next(parts: Iterator[tuple[int, memoryview]]) -> tuple[int, memoryview]:
    found = next(parts, None)
    if found is None:
        raise ValueError("truncated")
    return found


def _values(kind: int, body: memoryview, order: str) -> np.ndarray[Any, Any]:
    """The numbers of an element, as they are stored: Matlab stores whole numbers in the smallest type that fits."""
    if kind not in _TYPES:
        raise ValueError(f"an element of type {kind}")
    return np.frombuffer(body, np.dtype(order + _TYPES[kind]))
