"""The few things that pickled image batches hold (dicts, lists, texts, byte arrays), read without running anything.

NumPy's part is played by stand-ins that only take notes, every opcode is checked before the first is carried out, and
arrays are made from the notes at the end.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from selfsame.errors import SelfsameError, one_line

_MOST_BYTES = 1 << 30
_ALLOWED = (  # of protocol 2, which the published files have, and what protocols 3 and 4 write in their place
    "PROTO FRAME STOP MARK NONE NEWTRUE NEWFALSE MEMOIZE BINPUT LONG_BINPUT BINGET LONG_BINGET BININT BININT1 BININT2 "
    "LONG1 BINSTRING SHORT_BINSTRING BINUNICODE SHORT_BINUNICODE BINBYTES SHORT_BINBYTES BINBYTES8 EMPTY_DICT SETITEM "
    "SETITEMS EMPTY_LIST APPEND APPENDS EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 GLOBAL STACK_GLOBAL REDUCE BUILD"
)
_OPCODES = frozenset(_ALLOWED.split())
_PUTS = ("BINPUT", "LONG_BINPUT")


class _Dtype:
    """Notes on a dtype."""

    def __init__(self, *args: Any) -> None:
        self.code = args[0] if args else None

    def __setstate__(self, state: Any) -> None:
        """Byte order and the like: nothing that matters for bytes."""


class _Array:
    """Notes on an array: the state that NumPy would restore."""

    def __init__(self) -> None:
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def bytes(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """The array, if it is one of bytes and holds as many as its shape says."""
        if not isinstance(self.state, tuple) or len(self.state) != 5:
            raise ValueError("an array without a state")
        _, shape, dtype, fortran, raw = self.state
        sizes = isinstance(shape, tuple) and all(type(n) is int and 0 <= n < 2**40 for n in shape)
        if not sizes or not isinstance(dtype, _Dtype) or dtype.code not in ("u1", b"u1") or not isinstance(raw, bytes):
            raise ValueError("an array that is not of bytes")
        if math.prod(shape) != len(raw):
            raise ValueError("an array that is not as long as its shape")
        return np.frombuffer(raw, np.uint8).reshape(shape, order="F" if fortran else "C")


class _Standin:
    """Something callable that a pickle can neither change nor look into."""

    __slots__ = ("_make",)

    def __init__(self, make: Callable[..., Any]) -> None:
        self._make = make

    def __call__(self, *args: Any) -> Any:
        return self._make(*args)

    def __setstate__(self, state: Any) -> None:
        raise pickle.UnpicklingError("a state for a function")


def _encode(text: Any, coding: Any) -> bytes:
    if not isinstance(text, str) or coding not in ("latin1", "latin-1", b"latin1"):
        raise pickle.UnpicklingError("an unknown text coding")
    return text.encode("latin1")


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if name == "_reconstruct" and module in ("numpy.core.multiarray", "numpy._core.multiarray"):
            return _Standin(lambda *args: _Array())
        if module == "numpy" and name in ("ndarray", "dtype"):
            return _Standin(_Dtype)  # `ndarray` is only ever passed on
        if (module, name) == ("_codecs", "encode"):  # how Python 3 writes bytes for Python 2
            return _Standin(_encode)
        raise pickle.UnpicklingError(f"it asks for {module}.{name}"[:120])

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("it asks for an outside object")


def read_pickle(path: Path) -> dict[str, Any]:
    """The dict in a pickle: keys as text, byte arrays as NumPy arrays, other values as they are."""
    try:
        with path.open("rb") as stream:
            raw = stream.read(_MOST_BYTES + 1)
    except (OSError, MemoryError) as error:
        raise SelfsameError(f"{path}: cannot be read ({type(error).__name__})") from error
    if not raw:
        raise SelfsameError(f"{path}: empty, expected a pickle")
    if len(raw) > _MOST_BYTES:
        raise SelfsameError(f"{path}: larger than {_MOST_BYTES} bytes, not a batch of small images")
    try:
        _check_opcodes(raw)
        found = _Reader(io.BytesIO(raw), encoding="bytes").load()
        if not isinstance(found, dict):
            raise ValueError(f"it holds a {type(found).__name__}, not a dict")
        return {as_text(key): value.bytes() if isinstance(value, _Array) else value for key, value in found.items()}
    except Exception as error:  # a damaged pickle makes the reader raise anything
        raise SelfsameError(f"{path}: not a pickled batch of images: {one_line(error)}") from error


def as_text(key: Any) -> str:
    """Bytes, as Python 2 wrote its texts, as text."""
    return key.decode("utf-8") if isinstance(key, bytes) else str(key)


def _check_opcodes(raw: bytes) -> None:
    """Only opcodes that such files need, each argument within the file, and a memo no larger than the file."""
    for opcode, argument, _ in pickletools.genops(raw):
        if opcode.name not in _OPCODES:
            raise pickle.UnpicklingError(f"it uses {opcode.name}")
        if opcode.name in _PUTS and not 0 <= (argument or 0) < len(raw):
            raise pickle.UnpicklingError("its memo is larger than the file")
