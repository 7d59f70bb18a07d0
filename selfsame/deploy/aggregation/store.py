"""What a server keeps of each device, on its disk: the answer that was released last, and the one that is to be."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from torch import Tensor

from selfsame.deploy.codec import Field, Refused, Spec, decode, encode
from selfsame.errors import SelfsameError
from selfsame.fields import read_fields
from selfsame.files import private_folder, read_json, write, write_json

_ASKED = "release.json"


@dataclass(frozen=True)
class Pending:
    """A release that helpers are asked for: what it holds stays as it is until they have answered."""

    round: int
    members: tuple[str, ...]
    fresh: tuple[str, ...]
    old: tuple[str, ...]


class Store:
    """A folder with two files for each device at most."""

    def __init__(self, folder: Path, run: str, fields: Mapping[str, Field]) -> None:
        self._folder, self._run, self._fields = folder, run, dict(fields)

    def put(self, node: str, round: int, fields: Mapping[str, Tensor]) -> None:
        """An answer of the open round."""
        private_folder(self._folder)
        kept = {name: fields[name] for name in self._fields}
        write(self._path(node, "new"), encode("kept", round, {"run": self._run}, kept), private=True)

    def get(self, node: str, new: bool) -> tuple[int, dict[str, Tensor]]:
        """(the round, the fields) of an answer: of the open round, or the last that was released."""
        path = self._path(node, "new" if new else "last")
        try:
            found = decode(path.read_bytes(), expected=Spec("kept", self._run, None, {}, self._fields))
        except (OSError, Refused) as error:
            raise SelfsameError(
                f"{path}: damaged or gone; it stands in for a device, which must answer anew"
            ) from error
        return found.round, found.fields

    def holds(self, node: str) -> bool:
        """Whether something of this device was released."""
        return self._path(node, "last").is_file()

    def pending(self) -> Pending | None:
        """The release that was being asked for when the server stopped."""
        path = self._folder / _ASKED
        return read_fields(_ASKED, read_json(path), Pending) if path.is_file() else None

    def ask(self, pending: Pending) -> None:
        """What is asked for is on the disk before anybody is asked."""
        write_json(self._folder / _ASKED, asdict(pending))

    def release(self, pending: Pending) -> None:
        """The sum is known: what was new stands in from now on."""
        for node in pending.fresh:
            if self._path(node, "new").exists():
                os.replace(self._path(node, "new"), self._path(node, "last"))
        (self._folder / _ASKED).unlink(missing_ok=True)

    def give_up(self) -> None:
        """Nothing of the open round is released."""
        (self._folder / _ASKED).unlink(missing_ok=True)
        for path in self._folder.glob("*.new"):
            path.unlink(missing_ok=True)

    def _path(self, node: str, which: str) -> Path:
        return self._folder / f"{node}.{which}"
