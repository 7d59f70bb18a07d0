"""Messages between server and devices: safetensors bytes in which nothing is believed until it is checked.

A message is one safetensors file. Its tensors are the declared fields; its metadata is one JSON text with the kind, the
round and everything else. Equal messages are equal bytes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from selfsame.errors import SelfsameError
from selfsame.files import parse_json
from selfsame.methods.wire import too_long

REASONS = (
    "size",  # longer than any message of its kind, seen before anything is parsed
    "form",  # not a whole safetensors file with our metadata
    "kind",  # another kind of message than the one expected
    "run",  # of another run
    "round",  # of another round
    "meta",  # a value beside the tensors is missing, unknown, of another type or out of range
    "fields",  # not exactly the declared tensors
    "dtype",  # a tensor of another type
    "shape",  # a tensor of another shape
    "finite",  # NaN or infinity
    "norm",  # a vector longer than its bound
    "plan",  # not the plan that was agreed to at registration
    "stale",  # a round that was answered already, or an older one
    "not asked",  # nobody waits for an answer of this node
    "not needed",  # enough answers were there, or it had answered before
    "late",  # after the deadline
    "full",  # no place is left for another device
    "not ready",  # the device is not charging, or on a metered network, or in use
    "start",  # the device does not have the network that the run begins with
    "samples",  # the device cannot read its samples
    "failed",  # the device could not compute an answer
    "quote",  # the enclave is not proved to be what the device's policy asks for
    "session",  # no such session with the enclave
    "spent",  # the device's privacy budget
    "policy",  # terms that the device's own policy does not allow
    "seal",  # what is sealed in the message does not open, or is not what it should be
    "network",  # made with another network than that of the round
    "group",  # not a group that sums may be taken over
    "helper",  # no key is named to which the masks are to be sealed, or not one that is trusted
    "device",  # not one of those whose keys are registered with the enclave
)
_FORMAT = "selfsame-message-1"
_KEY = "selfsame"  # the one name in the file's metadata: several would stand in another order each time
_HALF_TOP = 2.0**15  # half precision ends at 65504
_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
MOST_META = 1 << 18  # bytes of the header, with the JSON text in it

Json = Any


class Refused(Exception):
    """A message that is not taken; the reason is one of `REASONS`, so that refusals can be counted."""

    def __init__(self, reason: str) -> None:
        assert reason in REASONS, reason
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True)
class Field:
    """What a tensor must be. A size of -1 in the shape is any up to `most`."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    norm: float = math.inf  # of every row (along the last axis), measured from `about`
    about: Tensor | None = None
    half: bool = False  # travels in half precision, scaled
    most: int = 0  # what -1 stands for at most
    longest: float = math.inf  # of every row, as `methods.wire` declares it

    @property
    def bytes(self) -> int:
        """What it takes on the wire, at most."""
        numbers = math.prod(self.most if size < 0 else size for size in self.shape)
        return numbers * (2 if self.half else self.dtype.itemsize)

    @property
    def wire_dtype(self) -> torch.dtype:
        return torch.float16 if self.half else self.dtype


@dataclass(frozen=True)
class Spec:
    """What a message must be to be taken."""

    kind: str
    run: str | None = None  # None: any
    round: int | None = None  # None: any from 0 on
    meta: Mapping[str, type] = field(default_factory=dict)  # the values beside the tensors, by name and type
    fields: Mapping[str, Field] = field(default_factory=dict)

    @property
    def most_bytes(self) -> int:
        return 8 + MOST_META + sum(part.bytes for part in self.fields.values())


REFUSED = Spec("refused", meta={"reason": str})  # a device's answer to what it does not take


@dataclass(frozen=True)
class Message:
    """A message that was taken."""

    kind: str
    run: str
    round: int
    meta: dict[str, Json]
    fields: dict[str, Tensor]


def encode(
    kind: str, round: int, meta: Mapping[str, Json], fields: Mapping[str, Tensor], half: frozenset[str] = frozenset()
) -> bytes:
    """The message as bytes; `meta` holds the run's name under "run". Fields named in `half` travel in half precision.

    These are scaled by a power of two to just below the largest number of that precision: an update of a network is far
    smaller than one, where half precision has few digits or none.
    """
    tensors, scales = {}, {}
    for name, value in fields.items():
        if name in half:
            value, scales[name] = _halved(value)
        tensors[name] = value
    text = json.dumps(
        {"format": _FORMAT, "kind": kind, "round": round, "scales": scales, "meta": dict(meta)},
        sort_keys=True,
        separators=(",", ":"),
        allow_nan=False,
    )
    if len(json.dumps(text)) + 160 * (len(tensors) + 1) > MOST_META:
        raise SelfsameError(f"message {kind!r}: more than {MOST_META >> 10} KiB beside its tensors")
    return save(unshared(tensors), metadata={_KEY: text})


def as_tensor(data: bytes) -> Tensor:
    """Bytes as a field of a message."""
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)


def unshared(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors on the CPU, each with memory of its own: the file format knows no views."""
    copied = {name: value.detach().to("cpu", copy=True) for name, value in tensors.items()}
    return {name: value.contiguous() for name, value in copied.items()}


def through_half(value: Tensor) -> Tensor:
    """What a reader has of a tensor that travelled in half precision."""
    return _whole(*_halved(value), value.dtype)


def _halved(value: Tensor) -> tuple[Tensor, float]:
    scale = _scale(value)
    return (value / scale).to(torch.float32).to(torch.float16), scale  # rounded alike by every processor


def _whole(value: Tensor, scale: float, dtype: torch.dtype) -> Tensor:
    return value.to(dtype) * scale


def _scale(value: Tensor) -> float:
    """The power of two that brings the largest entry to between half of `_HALF_TOP` and all of it."""
    top = float(value.abs().max()) if value.numel() else 0.0
    if not 0 < top < math.inf:
        return 1.0
    info = torch.finfo(value.dtype)  # whose smallest number is the least scale: a smaller one would be zero
    return max(math.ldexp(1.0, math.frexp(top)[1]) / _HALF_TOP, info.tiny * info.eps)


def decode(payload: bytes, *, expected: Spec) -> Message:
    """The message, every part of it checked, cheap checks first; else `Refused`."""
    if len(payload) > expected.most_bytes:
        raise Refused("size")
    said, header = _header(payload)
    kind, round, scales, meta = _parts(said)
    if kind != expected.kind:
        raise Refused("kind")
    run = meta.get("run")
    if type(run) is not str or (expected.run is not None and run != expected.run):
        raise Refused("run")
    if round < 0 or (expected.round is not None and round != expected.round):
        raise Refused("round")
    _check_meta(meta, expected.meta)
    _check_header(header, scales, expected.fields)
    try:
        tensors = load(payload)
    except (SafetensorError, ValueError, TypeError, RuntimeError, OverflowError):
        raise Refused("form") from None
    if tensors.keys() != expected.fields.keys():  # the library read what we have read
        raise Refused("form")
    fields = {name: _checked(tensors[name], part, scales.get(name)) for name, part in expected.fields.items()}
    return Message(kind, run, round, meta, fields)


def glance(payload: bytes, most_bytes: int) -> tuple[str, int, dict[str, Json]]:
    """(kind, round, values) as a message claims them, to know what to expect of it; `decode` checks them."""
    if len(payload) > most_bytes:
        raise Refused("size")
    kind, round, _, meta = _parts(_header(payload)[0])
    return kind, round, meta


def _header(payload: bytes) -> tuple[Json, dict[str, Json]]:
    """(our JSON, the tensors' descriptions) of a file whose tensors are not read yet."""
    length = int.from_bytes(payload[:8], "little")
    if len(payload) < 8 or length > min(MOST_META, len(payload) - 8):
        raise Refused("form")
    try:
        header = parse_json(payload[8 : 8 + length])
        metadata = header.pop("__metadata__")
        if list(metadata) != [_KEY]:
            raise Refused("form")
        said = parse_json(metadata[_KEY])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise Refused("form") from None
    return said, header


def _parts(said: Json) -> tuple[str, int, dict[str, float], dict[str, Json]]:
    if type(said) is not dict or sorted(said) != ["format", "kind", "meta", "round", "scales"]:
        raise Refused("form")
    kind, round, scales, meta = said["kind"], said["round"], said["scales"], said["meta"]
    if said["format"] != _FORMAT or type(kind) is not str or type(meta) is not dict or type(scales) is not dict:
        raise Refused("form")
    if type(round) is not int or abs(round) >= 2**53:
        raise Refused("round")
    return kind, round, scales, meta


def _check_meta(meta: dict[str, Json], expected: Mapping[str, type]) -> None:
    if meta.keys() - {"run"} != expected.keys():
        raise Refused("meta")
    for name, kind in expected.items():
        if type(meta[name]) is not kind or (kind is int and abs(meta[name]) >= 2**53):
            raise Refused("meta")


def _check_header(header: dict[str, Json], scales: dict[str, float], fields: Mapping[str, Field]) -> None:
    """Names, types and shapes as the file's header gives them, before any tensor is made."""
    if header.keys() != fields.keys():
        raise Refused("fields")
    if scales.keys() != {name for name, part in fields.items() if part.half}:
        raise Refused("dtype")
    for name, part in fields.items():
        if type(header[name]) is not dict:
            raise Refused("form")
        if _DTYPES.get(str(header[name].get("dtype"))) is not part.wire_dtype:
            raise Refused("dtype")
        shape = header[name].get("shape")
        if type(shape) is not list or len(shape) != len(part.shape):
            raise Refused("shape")
        for got, want in zip(shape, part.shape, strict=True):
            if type(got) is not int or not (0 <= got <= part.most if want < 0 else got == want):
                raise Refused("shape")
        if part.half and not (type(scales[name]) is float and 0 < scales[name] < math.inf):
            raise Refused("finite")


def _checked(value: Tensor, part: Field, scale: float | None) -> Tensor:
    """The tensor in the type in which it is used, if it is finite and no longer than its bound."""
    if part.half:
        value = _whole(value, scale or 1.0, part.dtype)
    if value.is_floating_point() and not bool(torch.isfinite(value).all()):
        raise Refused("finite")
    if part.longest < math.inf:
        hold({"": value}, {"": part.longest})
    if not value.is_floating_point():
        return value
    if part.norm < math.inf and value.numel():
        apart = value.double() if part.about is None else value.double() - part.about.double()
        if not float(apart.norm(dim=-1).max()) <= part.norm:  # of a scalar, its size
            raise Refused("norm")
    return value


def hold(fields: Mapping[str, Tensor], longest: Mapping[str, float]) -> None:
    """Refuse fields of which a row is beyond its declared bound."""
    if any(too_long(fields[name], bound) for name, bound in longest.items()):
        raise Refused("norm")
