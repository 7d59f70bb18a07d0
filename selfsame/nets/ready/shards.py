"""Weights as TensorFlow.js publishes them: a manifest (JSON) that names tensors, and shards with their bytes.

Tensors lie one after another in the joined shards of a group, as float32 or as small whole numbers with a scale.
Everything in a manifest is a claim until the bytes bear it out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfsame.errors import SelfsameError
from selfsame.files import parse_json

Floats = NDArray[np.float32]
_WHOLE: dict[str, np.dtype[Any]] = {"uint8": np.dtype("<u1"), "uint16": np.dtype("<u2")}
_MOST_SIDE = 2**31
_MOST_AXES = 8


def read_shards(manifest: bytes, shard: Callable[[str], bytes]) -> dict[str, Floats]:
    """The tensors by name; `shard` gives the bytes of a file beside the manifest."""
    try:
        groups = parse_json(manifest)
    except (ValueError, UnicodeDecodeError) as error:
        raise SelfsameError(f"the manifest is not JSON ({error})") from None
    out: dict[str, Floats] = {}
    for group in _list(groups, "the manifest"):
        paths = _list(_field(group, "paths", "a group"), "paths")
        data = memoryview(b"".join(shard(_plain(path)) for path in paths))
        for entry in _list(_field(group, "weights", "a group"), "weights"):
            name = _field(entry, "name", "a tensor")
            if not isinstance(name, str) or not name or name in out:
                raise SelfsameError(f"a tensor's name must be a text that no other has, got {str(name)[:60]!r}")
            out[name], data = _tensor(name, entry, data)
        if len(data):
            raise SelfsameError(f"{len(data):,} bytes are left behind the last tensor")
    return out


def _tensor(name: str, entry: Any, data: memoryview) -> tuple[Floats, memoryview]:
    """The tensor at the beginning of the bytes, and the bytes behind it."""
    short = name[:60]
    shape = _list(_field(entry, "shape", short), f"{short}: shape")
    if len(shape) > _MOST_AXES or not all(type(side) is int and 0 <= side < _MOST_SIDE for side in shape):
        raise SelfsameError(f"{short}: not a shape: {str(shape)[:60]}")
    if _field(entry, "dtype", short) != "float32":
        raise SelfsameError(f"{short}: expected float32, got {str(entry['dtype'])[:40]!r}")
    packed = entry.get("quantization")
    kind, scale, least = (np.dtype("<f4"), 1.0, 0.0) if packed is None else _packing(short, packed)
    size = math.prod(shape) * kind.itemsize
    if size > len(data):
        raise SelfsameError(f"{short}: needs {size:,} bytes, {len(data):,} are left")
    value = np.frombuffer(data[:size], kind).astype(np.float64).reshape(shape)
    with np.errstate(over="ignore", invalid="ignore"):
        out = (value * scale + least).astype(np.float32)
    if not np.isfinite(out).all():
        raise SelfsameError(f"{short}: holds numbers that are not finite")
    return out, data[size:]


def _packing(name: str, packed: Any) -> tuple[np.dtype[Any], float, float]:
    """What small whole numbers are, their scale, and what zero stands for."""
    kind = _field(packed, "dtype", name)
    if not isinstance(kind, str) or kind not in _WHOLE:
        raise SelfsameError(f"{name}: expected uint8 or uint16, got {str(kind)[:40]!r}")
    return _WHOLE[kind], _number(packed, "scale", name), _number(packed, "min", name)


def _number(part: Any, key: str, where: str) -> float:
    value = _field(part, key, where)
    try:
        number = float(value) if type(value) in (int, float) else math.nan
    except OverflowError:
        number = math.nan
    if not math.isfinite(number):
        raise SelfsameError(f"{where}: {key} must be a number, got {str(value)[:40]!r}")
    return number


def _field(part: Any, key: str, where: str) -> Any:
    if not isinstance(part, dict) or key not in part:
        raise SelfsameError(f"{where}: {key!r} is missing from the manifest")
    return part[key]


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise SelfsameError(f"{where}: expected a list, got a {type(value).__name__}")
    return value


def _plain(path: Any) -> str:
    """A name of a file in the manifest's own folder."""
    odd = not isinstance(path, str) or path in ("", ".", "..") or any(mark in path for mark in "/\\:\0")
    if odd:
        raise SelfsameError(f"a shard must lie beside the manifest, got {str(path)[:60]!r}")
    return str(path)
