"""What a device keeps on its disk: private fields, what it agreed to, and the last answer it gave.

All of it lies in one file that is replaced as a whole, so that after a crash at any point the device is as it was
before a request or as it was after. The answer is part of it: where a reply is lost on the way, the same request brings
the same bytes again, and no private state moves twice.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from selfsame.deploy.codec import Refused, unshared
from selfsame.errors import SelfsameError

_FORMAT = "selfsame-device-1"
_STATE = "state.safetensors"
_LOCK = "lock"
_NEW = ".new"
_REPLY = "last reply"
_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)
_BINARY = getattr(os, "O_BINARY", 0)


@dataclass(frozen=True)
class Kept:
    """A device's memory. `turn` counts what it has answered and never goes back; -1: nothing yet."""

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
    ) -> Kept:
        """What to keep once this request has been answered."""
        return replace(
            self, turn=turn, request=digest(request), reply=reply, fields=dict(fields), notes={**self.notes, **notes}
        )


class Keep:
    """A folder of mode 0700 with a file of mode 0600, for one node and one run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            _private(folder, folder.lstat(), stat.S_ISDIR)
        except OSError as error:
            raise SelfsameError(f"{folder}: {error.strerror or error}") from None

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Nobody else answers for this device meanwhile: a second process waits here."""
        try:
            import fcntl
        except ImportError:  # no such locks on this system
            yield
            return
        handle = os.open(self.folder / _LOCK, os.O_RDWR | os.O_CREAT | _NOFOLLOW, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def read(self) -> Kept:
        """The device's memory; an empty one where there is none."""
        path = self.folder / _STATE
        try:
            _private(path, path.lstat(), stat.S_ISREG)
            tensors, said = _parse(path.read_bytes())
            reply = bytes(tensors.pop(_REPLY).numpy())
            return Kept(int(said["turn"]), str(said["request"]), reply, tensors, dict(said["notes"]))
        except FileNotFoundError:
            return Kept()
        except OSError as error:
            raise SelfsameError(f"{path}: {error.strerror or error}") from None
        except (SafetensorError, KeyError, ValueError, TypeError, RuntimeError, RecursionError):
            raise SelfsameError(f"{path}: damaged; the device cannot go on with this run") from None

    def write(self, kept: Kept) -> None:
        """Replace the memory; when this returns it is on the disk. A turn never goes back."""
        if kept.turn < self.read().turn:
            raise Refused("stale")
        reply = torch.frombuffer(bytearray(kept.reply), dtype=torch.uint8) if kept.reply else torch.empty(0).byte()
        said = {"format": _FORMAT, "turn": kept.turn, "request": kept.request, "notes": kept.notes}
        data = save(unshared({**kept.fields, _REPLY: reply}), metadata={"selfsame": json.dumps(said, allow_nan=False)})
        try:
            _replace(self.folder, _STATE, data)
        except OSError as error:
            raise SelfsameError(f"{self.folder / _STATE}: {error.strerror or error}") from None

    def forget(self) -> None:
        """Leave the run: the private fields and everything else are gone from this folder."""
        for name in (_STATE, _STATE + _NEW):
            (self.folder / name).unlink(missing_ok=True)
        _sync(self.folder)


def digest(payload: bytes) -> str:
    return hashlib.sha256(payload).hexdigest()


def _parse(data: bytes) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """(tensors, our JSON): `load` itself hands no metadata out."""
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    said = json.loads(header["__metadata__"]["selfsame"])
    if said["format"] != _FORMAT:
        raise ValueError("another format")
    return load(data), said


def _private(path: Path, status: os.stat_result, wanted: Any) -> None:
    """Refuse what others may read, what belongs to somebody else, and links."""
    if not wanted(status.st_mode):
        raise SelfsameError(f"{path}: expected a plain file or folder of the device's own")
    if os.name == "posix" and (status.st_mode & 0o077 or status.st_uid != os.geteuid()):
        raise SelfsameError(f"{path}: others may read it, or it is not yours; chmod go-rwx and chown it")


def _replace(folder: Path, name: str, data: bytes) -> None:
    """The old file or the new one, never a part of either: written beside it, synced, renamed, and the folder synced.

    A file left over by a crash is overwritten; the lock keeps two writers apart.
    """
    beside = folder / (name + _NEW)
    handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | _NOFOLLOW | _BINARY, 0o600)
    try:
        os.fchmod(handle, 0o600) if hasattr(os, "fchmod") else None
        left = memoryview(data)
        while left:
            left = left[os.write(handle, left) :]
        os.fsync(handle)
    finally:
        os.close(handle)
    os.replace(beside, folder / name)
    _sync(folder)


def _sync(folder: Path) -> None:
    """Make the renaming last."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
