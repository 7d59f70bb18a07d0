"""What a device keeps on its disk: private fields, what it agreed to, and the last answer it gave.

All of it lies in one file that is replaced as a whole, so that after a crash at any point the device is as it was
before a request or as it was after. The answer is part of it: where a reply is lost on the way, the same request brings
the same bytes again, and no private state moves twice.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from selfsame.deploy.codec import Refused, as_tensor, unshared
from selfsame.errors import SelfsameError
from selfsame.files import locked, parse_json, private_folder, read_private, sync_folder, write

_FORMAT = "selfsame-device-1"
_STATE = "state.safetensors"
_LOCK = "lock"
_REPLY = "last reply"


@dataclass(frozen=True)
class Memory:
    """What a device keeps. `turn` counts what it has answered and never goes back; -1: nothing yet."""

    turn: int = -1
    request: str = ""  # sha256 of the request that was answered last
    reply: bytes = b""  # and the answer
    fields: dict[str, Tensor] = field(default_factory=dict)  # private
    notes: dict[str, Any] = field(default_factory=dict)  # JSON: what was agreed to, which client this is

    def answered(self, turn: int, request: bytes) -> bytes | None:
        """The answer that this request got before; None where it is new; refused where the turn is over."""
        if turn > self.turn:
            return None
        if turn == self.turn and self.request == digest(request):
            return self.reply
        raise Refused("stale")

    def after(
        self, turn: int, request: bytes, reply: bytes, fields: Mapping[str, Tensor], notes: Mapping[str, Any]
    ) -> Memory:
        """What to keep once this request has been answered."""
        return replace(
            self, turn=turn, request=digest(request), reply=reply, fields=dict(fields), notes={**self.notes, **notes}
        )


class Keep:
    """A folder of mode 0700 with a file of mode 0600, for one node and one run."""

    def __init__(self, folder: Path) -> None:
        self.folder = private_folder(folder)
        self._path = folder / _STATE

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Nobody else answers for this device meanwhile: a second process waits here."""
        with locked(self.folder / _LOCK):
            self._sweep()
            yield

    def read(self) -> Memory:
        """The device's memory; an empty one where there is none."""
        try:
            tensors, said = _parse(read_private(self._path))
            reply = bytes(tensors.pop(_REPLY).numpy())
            return Memory(int(said["turn"]), str(said["request"]), reply, tensors, dict(said["notes"]))
        except FileNotFoundError:
            return Memory()
        except (SafetensorError, KeyError, ValueError, TypeError, RuntimeError):
            raise SelfsameError(f"{self._path}: damaged; the device cannot go on with this run") from None

    def write(self, kept: Memory) -> None:
        """Replace the memory; when this returns it is on the disk. A turn never goes back."""
        if kept.turn < self.read().turn:
            raise Refused("stale")
        said = {"format": _FORMAT, "turn": kept.turn, "request": kept.request, "notes": kept.notes}
        fields = unshared({**kept.fields, _REPLY: as_tensor(kept.reply)})
        data = save(fields, metadata={"selfsame": json.dumps(said, allow_nan=False)})
        try:
            write(self._path, data, private=True)
        except OSError as error:
            raise SelfsameError(f"{self._path}: {error.strerror or error}") from None

    def forget(self) -> None:
        """Leave the run: the private fields and everything else are gone from this folder."""
        self._path.unlink(missing_ok=True)
        self._sweep()
        sync_folder(self.folder)

    def _sweep(self) -> None:
        """Remove what a crash left half written; it is as private as the rest."""
        for path in (*self.folder.glob(f".{_STATE}.*"), self.folder / f"{_STATE}.new"):
            path.unlink(missing_ok=True)


def digest(payload: bytes) -> str:
    return hashlib.sha256(payload).hexdigest()


def _parse(data: bytes) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """(tensors, our JSON): `load` itself hands no metadata out."""
    header = parse_json(data[8 : 8 + int.from_bytes(data[:8], "little")])
    said = parse_json(header["__metadata__"]["selfsame"])
    if said["format"] != _FORMAT:
        raise ValueError("another format")
    return load(data), said
