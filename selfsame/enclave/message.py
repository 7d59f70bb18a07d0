"""What crosses the enclave's boundary: frames, and arrays in sealed messages, each read strictly."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import IO

import numpy as np
from numpy.typing import NDArray

_LENGTH = struct.Struct("<I")
_ARRAY = struct.Struct("<BII")  # type, rows, columns; then the values, row by row
_FLOAT32 = 1
_PIECE = 1 << 16

DIGEST = 32  # bytes that stand for a network

REASONS = {
    "frame": "the frame is empty or of an unknown kind",
    "size": "more or fewer bytes than the message says or the plan allows",
    "plan": "the training plan is not one, or there is none yet",
    "nonce": "no quote was taken with this nonce, or it was used before",
    "session": "no such session",
    "field": "not the field that is expected",
    "round": "another round than the present one, or one more than the plan allows",
    "replayed": "a sequence number that is not higher than the last",
    "seal": "it does not open: another key, or changed bytes",
    "dtype": "not 32-bit floating point",
    "shape": "not the shape that the plan gives",
    "finite": "infinite or not a number",
    "state": "nothing that this stage of the round waits for",
    "few": "fewer participants than the plan requires",
    "spent": "as many rounds as the plan allows one device are used up",
    "device": "not a device that is registered here",
    "signature": "not signed by the device whose name it bears",
    "network": "not made with the round's network, or not all with the same one",
    "group": "not a whole group of devices, or another one than before",
    "twice": "this group's sum of this round, or of a later one, was released before",
    "stand-in": "not the last contribution that was released, or one too many",
    "internal": "an error of the enclave's own",
}


class Denied(ValueError):
    """A message that changes nothing; `reason` is one of REASONS, `nodes` are those without whom it might be taken."""

    def __init__(self, reason: str, nodes: Sequence[str] = ()) -> None:
        super().__init__(f"{reason}: {REASONS[reason]}")
        self.reason, self.nodes = reason, tuple(nodes)


class Order(IntEnum):
    """The first byte of a frame to the enclave; the answer's first byte is 1 for yes, 0 for a refusal."""

    ATTEST = 1  # a client's nonce -> the enclave's key, a quote
    HELLO = 2  # a client's first sealed message -> the welcome
    FORGET = 3  # a session -> nothing
    BEGIN = 4  # a round and its network -> nothing
    SEALED = 5  # embeddings or a gradient, sealed -> nothing
    DERIVE = 6  # a round -> sealed derivatives, one message a participant
    AGGREGATE = 7  # a round -> the weighted mean of the gradients
    COUNTS = 8  # nothing -> what was taken and refused, in JSON
    REGISTER = 9  # the devices' public keys -> nothing
    OPEN = 10  # a round, its network and its group -> nothing
    ADD = 11  # a device's sealed update, of this round or one that stands in -> nothing
    RELEASE = 12  # a round -> the weighted sum of the group's updates, and its weight
    UNMASK = 13  # a round, its network, its group and their sealed seeds -> the sum of the masks


class Content(IntEnum):
    """What a sealed message holds."""

    WELCOME = 1
    EMBEDDINGS = 2
    DERIVATIVES = 3
    GRADIENT = 4


def write_frame(to: IO[bytes], body: bytes) -> None:
    """Send one frame: four bytes of length, then the body."""
    to.write(_LENGTH.pack(len(body)))
    to.write(body)
    to.flush()


def read_frame(source: IO[bytes], most: int) -> bytes | None:
    """The next frame's body, from a buffered stream; None at its end. One longer than `most` is read past, refused."""
    head = source.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    if length <= most:
        body = source.read(length)
        return body if len(body) == length else None
    while length:
        piece = source.read(min(length, _PIECE))
        if not piece:
            return None
        length -= len(piece)
    raise Denied("size")


def pack(array_RC: NDArray[np.floating]) -> bytes:
    """A matrix as bytes."""
    rows, columns = array_RC.shape
    return _ARRAY.pack(_FLOAT32, rows, columns) + np.ascontiguousarray(array_RC, "<f4").tobytes()


def unpack(data: bytes, most_rows: int, columns: int) -> NDArray[np.float32]:
    """The matrix that `pack` wrote; refused unless type, shape, size and finiteness are right."""
    if len(data) < _ARRAY.size:
        raise Denied("size")
    kind, rows, wide = _ARRAY.unpack_from(data)
    if kind != _FLOAT32:
        raise Denied("dtype")
    if not 1 <= rows <= most_rows or wide != columns:
        raise Denied("shape")
    if len(data) != _ARRAY.size + 4 * rows * columns:
        raise Denied("size")
    array_RC = np.frombuffer(data, "<f4", offset=_ARRAY.size).reshape(rows, columns).astype(np.float32)
    if not np.isfinite(array_RC).all():
        raise Denied("finite")
    return array_RC


def clipped(array_RC: NDArray[np.float32], longest: float) -> NDArray[np.float64]:
    """The rows in double precision, each scaled down to the length `longest` where it is longer."""
    return array_RC * within(array_RC, longest)[:, None]


def within(array_RC: NDArray[np.float32], longest: float) -> NDArray[np.float64]:
    """By how much to multiply each row so that none is longer than `longest`."""
    length_R = np.sqrt(np.einsum("rc,rc->r", array_RC, array_RC, dtype=np.float64))
    return longest / np.maximum(length_R, longest)


def packed_size(rows: int, columns: int) -> int:
    """How many bytes `pack` makes of such a matrix."""
    return _ARRAY.size + 4 * rows * columns
