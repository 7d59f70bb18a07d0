"""Tensors of a file that PyTorch wrote before version 1.6, read without running anything.

Such a file is five pickles (a number that marks it, a version, facts of the machine, the objects, the names of the
storages), then the bytes of each storage. Stand-ins only take notes, and every opcode is checked before the first is
carried out.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfsame.errors import SelfsameError, one_line

Floats = NDArray[np.float32]
_MAGIC, _VERSION = 0x1950A86A20F9469CFC6C, 1001
_ALLOWED = (
    "PROTO STOP MARK NONE NEWTRUE NEWFALSE BINPUT LONG_BINPUT BINGET LONG_BINGET BININT BININT1 BININT2 LONG1 BINFLOAT "
    "BINUNICODE EMPTY_DICT SETITEM SETITEMS EMPTY_LIST APPEND APPENDS EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 GLOBAL "
    "REDUCE BUILD BINPERSID"
)
_OPCODES = frozenset(_ALLOWED.split())
_PUTS = ("BINPUT", "LONG_BINPUT")
_SIZES = {"FloatStorage": 4, "DoubleStorage": 8, "HalfStorage": 2, "LongStorage": 8, "IntStorage": 4, "ByteStorage": 1}


@dataclass(frozen=True)
class _Storage:
    kind: str
    key: str
    count: int


@dataclass(frozen=True)
class _Tensor:
    """Notes on a tensor: where in which storage it lies."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


class _Named(dict[Any, Any]):
    """A dict whose further attributes do not matter."""

    def __setstate__(self, state: Any) -> None:
        pass


class _Callable:
    """Something callable that a pickle can neither change nor look into."""

    __slots__ = ("_make", "name")

    def __init__(self, name: str, make: Callable[..., Any] | None = None) -> None:
        self.name, self._make = name, make

    def __call__(self, *args: Any) -> Any:
        if self._make is None:
            raise pickle.UnpicklingError(f"it calls {self.name}")
        return self._make(*args)

    def __setstate__(self, state: Any) -> None:
        raise pickle.UnpicklingError("a state for a function")


def _noted(storage: Any, offset: Any, shape: Any, stride: Any, *_: Any) -> _Tensor:
    sides = (shape, stride)
    whole = all(isinstance(side, tuple) and all(type(n) is int and 0 <= n < 2**40 for n in side) for side in sides)
    if not isinstance(storage, _Storage) or type(offset) is not int or offset < 0 or not whole:
        raise pickle.UnpicklingError("a tensor that is none")
    if len(shape) != len(stride) or len(shape) > 8:
        raise pickle.UnpicklingError("a tensor whose shape and strides differ")
    return _Tensor(storage, offset, shape, stride)


class _LegacyReader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _Callable(name, _noted)
        if (module, name) == ("collections", "OrderedDict"):
            return _Callable(name, lambda *pairs: _Named(*pairs))
        if module == "torch" and name in _SIZES:
            return _Callable(name)
        raise pickle.UnpicklingError(f"it asks for {module}.{name}"[:120])

    def persistent_load(self, pid: Any) -> Any:
        if not isinstance(pid, tuple) or len(pid) != 6 or pid[0] != "storage" or pid[5] is not None:
            raise pickle.UnpicklingError("it asks for an outside object")
        _, kind, key, _, count, _ = pid
        if not isinstance(kind, _Callable) or not isinstance(key, str) or type(count) is not int or count < 0:
            raise pickle.UnpicklingError("a storage that is none")
        return _Storage(kind.name, key, count)


def read_legacy(data: bytes, within: str) -> dict[str, Floats]:
    """The float32 tensors of the dict under the name `within` of the file's dict."""
    try:
        return _tensors(data, within)
    except Exception as error:  # a damaged pickle makes the reader raise anything
        raise SelfsameError(f"not weights as PyTorch wrote them: {one_line(error)}") from error


def _tensors(data: bytes, within: str) -> dict[str, Floats]:
    found, at = [], 0
    for _ in range(5):
        one, at = _pickled(data, at)
        found.append(one)
    magic, version, _, content, keys = found
    if (magic, version) != (_MAGIC, _VERSION):
        raise ValueError("the mark of such files is missing")
    if not isinstance(content, dict) or not isinstance(content.get(within), dict):
        raise ValueError(f"it has no {within!r}")
    named = {str(name): one for name, one in content[within].items() if isinstance(one, _Tensor)}
    place = _places(data, at, keys, {one.storage.key: one.storage for one in _all_tensors(content)})
    return {name: _values(data, one, place) for name, one in named.items()}


def _pickled(data: bytes, at: int) -> tuple[Any, int]:
    """The pickle that begins at this byte, and where it ends."""
    stream = io.BytesIO(data)
    stream.seek(at)
    for opcode, argument, _ in pickletools.genops(stream):
        if opcode.name not in _OPCODES:
            raise pickle.UnpicklingError(f"it uses {opcode.name}")
        if opcode.name in _PUTS and not 0 <= (argument or 0) < len(data):
            raise pickle.UnpicklingError("its memo is larger than the file")
    end = stream.tell()
    return _LegacyReader(io.BytesIO(data[at:end])).load(), end


def _all_tensors(content: Any, deep: int = 0) -> list[_Tensor]:
    """Every tensor in nested dicts and lists: the size of a storage's number stands with its tensors alone."""
    if isinstance(content, _Tensor):
        return [content]
    parts = content.values() if isinstance(content, dict) else content if isinstance(content, list | tuple) else ()
    if deep > 8:
        raise ValueError("nested too deeply")
    return [one for part in parts for one in _all_tensors(part, deep + 1)]


def _places(data: bytes, at: int, keys: Any, storages: dict[str, _Storage]) -> dict[str, int]:
    """Where the bytes of each storage begin."""
    if not isinstance(keys, list) or set(map(str, keys)) != set(storages) or len(keys) != len(storages):
        raise ValueError("its storages are not those of its tensors")
    place = {}
    for key in map(str, keys):
        storage = storages[key]
        (count,) = struct.unpack_from("<q", data, at)
        size = count * _SIZES[storage.kind]
        if count != storage.count or at + 8 + size > len(data):
            raise ValueError(f"storage {key[:20]} is cut off or of another size")
        place[key] = at + 8
        at += 8 + size
    if at != len(data):
        raise ValueError(f"{len(data) - at:,} bytes are left behind the last storage")
    return place


def _values(data: bytes, tensor: _Tensor, place: dict[str, int]) -> Floats:
    storage = tensor.storage
    if storage.kind != "FloatStorage":
        raise ValueError(f"a tensor of {storage.kind}, expected FloatStorage")
    size = math.prod(tensor.shape)
    dense = tuple(math.prod(tensor.shape[axis + 1 :]) for axis in range(len(tensor.shape)))
    if tensor.stride != dense or tensor.offset + size > storage.count:
        raise ValueError("a tensor that does not lie in one piece within its storage")
    value = np.frombuffer(data, "<f4", size, place[storage.key] + 4 * tensor.offset).reshape(tensor.shape)
    if not np.isfinite(value).all():
        raise ValueError("numbers that are not finite")
    return value.astype(np.float32)
