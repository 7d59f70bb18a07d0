"""What every device of a run does, whatever the method: agree to terms once, register, answer a request once.

Everything is on the disk before a reply is returned, so each message may find another process.
"""

from __future__ import annotations

import json
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Generic, NoReturn, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from selfsame.data import DATASETS, Held, Source, load
from selfsame.data.clips import HeldClips, Pieces
from selfsame.data.federation import RAW
from selfsame.deploy.agreement import Agreed
from selfsame.deploy.codec import Json, Message, Refused, Spec, decode, encode, glance
from selfsame.deploy.memory import Keep, Memory
from selfsame.deploy.policy import TRIAL, DevicePolicy
from selfsame.deploy.schedule import Conditions
from selfsame.errors import SelfsameError
from selfsame.files import write

REFUSED_TERMS = "refused.txt"  # in the device's folder: what its policy refused last
FAILURES = (RuntimeError, ValueError, IndexError, TypeError, KeyError, ArithmeticError, SelfsameError)
A = TypeVar("A", bound=Agreed)


class Guest(ABC, Generic[A]):
    """A node's part in one run.

    `samples`: a folder of sample files, or "digits:3" for client 3 of a data set that needs no files (for trying), or
    the raw samples themselves. `conditions`: a JSON file with truth values for charging, unmetered and idle.
    `rules`: what its owner lets a server ask for. `agreed`: the digest of the only terms to agree to. `trial`: to try
    things out, the first server's terms are taken without it, and no others after them. `simulate`: a trial that agrees
    to private draws that the server can repeat.
    """

    TERMS: ClassVar[type[Agreed]]
    INVITATION: ClassVar[Spec]  # what a request to register must be

    def __init__(
        self,
        folder: Path,
        samples: str | Path | Tensor,
        *,
        conditions: Path | None = None,
        simulate: bool = False,
        agreed: str | None = None,
        trial: bool = False,
        rules: DevicePolicy | None = None,
    ) -> None:
        self.keep = Keep(folder)
        self._samples, self._conditions = samples, conditions
        self._simulate, self._agreed, self._trial = simulate, agreed, trial or simulate
        self._rules = rules or (TRIAL if self._trial else DevicePolicy())
        self._agreement: tuple[str, A] | None = None
        self._source: tuple[str, Source, int] | None = None
        self._steps: dict[str, Callable[[Memory, A, bytes, int, dict[str, Json]], bytes]] = {}  # a round's, in order

    def reply(self, payload: bytes) -> bytes:
        """The answer to a message; a message that is not taken is answered with the reason, and changes nothing."""
        with self.keep.alone():
            kept = self.keep.read()
            try:
                return self._answer(kept, payload)
            except Refused as refusal:
                run = kept.notes.get("agreement", {}).get("run", "")
                number = max(kept.turn // len(self._order()), 0)
                return encode("refused", number, {"run": run, "reason": refusal.reason}, {})

    def _answer(self, kept: Memory, payload: bytes) -> bytes:
        agreement = self._agreed_to(kept)
        most = self.INVITATION.most_bytes if agreement is None else self._longest(kept, agreement)
        kind, number, claimed = glance(payload, max(most, self.INVITATION.most_bytes))
        if kind == "register":
            return self._register(kept, agreement, payload)
        if kind not in self._order():
            raise Refused("kind")
        if agreement is None or claimed.get("plan") != agreement.digest:
            raise Refused("run" if agreement and claimed.get("run") != agreement.run else "plan")
        if number >= agreement.recipe.run.rounds:
            raise Refused("round")
        said = kept.answered(self._turn(kind, number), payload)
        return said if said is not None else self._steps[kind](kept, agreement, payload, number, claimed)

    def _turn(self, kind: str, number: int) -> int:
        """The place of a round's step among all steps."""
        order = self._order()
        return len(order) * number + order.index(kind)

    def _order(self) -> list[str]:
        """The kinds of a round's steps in the run that the device agreed to."""
        return list(self._steps)

    @abstractmethod
    def _longest(self, kept: Memory, agreement: A) -> int:
        """Bytes of the longest request under these terms."""

    def _agreed_to(self, kept: Memory) -> A | None:
        given = kept.notes.get("agreement")
        if given is None:
            return None
        key = json.dumps(given, sort_keys=True)
        if self._agreement is None or self._agreement[0] != key:
            try:
                self._agreement = key, self._read(given)
            except SelfsameError:  # written by another version, whose fields are others
                raise Refused("plan") from None
        return self._agreement[1]

    def _read(self, given: Json) -> A:
        return cast(A, self.TERMS.from_json(given))

    # Registration

    def _register(self, kept: Memory, agreement: A | None, payload: bytes) -> bytes:
        message = decode(payload, expected=self.INVITATION)
        try:
            offered = self._read(message.meta["agreement"])
        except FAILURES:
            raise Refused("plan") from None
        if message.run != offered.run:
            raise Refused("run")
        if agreement is None:
            if self._agreed not in (None, offered.digest) or (offered.seeded and not self._simulate):
                raise Refused("plan")
        elif offered.digest != agreement.digest:
            raise Refused("plan" if offered.run == agreement.run else "run")
        self._allow(offered)
        if agreement is None:
            if self._agreed is None and not self._trial:
                self._forbid(f"nobody has agreed to these terms; set agreed = {offered.digest!r} once they are read")
            seed = offered.recipe.run.seed if offered.seeded else secrets.randbits(62)
            kept = replace(kept, notes={"agreement": offered.to_json(), "seed": seed})
            try:
                self._consent(kept, offered)
            except FAILURES:
                raise Refused("plan") from None
        _, count = self._open(offered)
        notes, said = self._introduce(kept, offered, message)
        if notes or agreement is None:
            self.keep.write(replace(kept, notes={**kept.notes, **notes}))
        meta = {
            "run": offered.run,
            "samples": count,
            "conditions": vars(Conditions.now(self._conditions)),
            "place": place_of(self._samples),
            **said,
        }
        return encode("registered", message.round, meta, {})

    def _allow(self, terms: A) -> None:
        """Hold terms to the owner's policy."""
        try:
            broken = self._rules.broken(terms, self._open(terms)[1])
        except FAILURES:
            raise Refused("plan") from None
        if broken:
            self._forbid(broken)

    def _forbid(self, words: str) -> NoReturn:
        """Refuse by the policy; the words stay on the device, for its owner to read."""
        write(self.keep.folder / REFUSED_TERMS, words + "\n", private=True)
        raise Refused("policy")

    @abstractmethod
    def _consent(self, kept: Memory, offered: A) -> None:
        """Refuse terms that this device does not agree to, or cannot work with."""

    @abstractmethod
    def _introduce(self, kept: Memory, agreement: A, message: Message) -> tuple[dict[str, Json], dict[str, Json]]:
        """(what to note, what else to say) when it registers."""

    def _open(self, agreement: A) -> tuple[Source, int]:
        if self._source is None or self._source[0] != agreement.digest:
            try:
                self._source = agreement.digest, *open_samples(self._samples, agreement)
            except (SelfsameError, OSError):
                raise Refused("samples") from None
        return self._source[1:]


# Samples


def open_samples(where: str | Path | Tensor, agreement: Agreed) -> tuple[Source, int]:
    """The device's training samples, every client's first sample at the same place, and how many there are."""
    start_N = torch.zeros(1, dtype=torch.int64).expand(agreement.clients)
    if isinstance(where, Tensor):
        raw = where
    elif place_of(where) >= 0:
        name, place = str(where).split(":")[0], place_of(where)
        data = agreement.recipe.data
        federation = load(name, **(data.options if data.name == name else {}))
        if place >= federation.clients:
            raise SelfsameError(f"{where}: there are clients 0 to {federation.clients - 1}")
        index_1B = torch.arange(int(federation.count_N[place]))[None]
        raw = federation.source.rows(torch.tensor([place]), index_1B)[0]
    else:
        found = _files(Path(where), agreement)
        if agreement.clips:
            length = np.array([len(sound[0]) for sound in found])
            pieces = Pieces(np.concatenate([sound[0] for sound in found]), np.cumsum(length) - length, length)
            return HeldClips.of(pieces, start_N, agreement.shape[-1]), len(found)
        raw = torch.from_numpy(np.stack(found))
    if raw.shape[1:] != agreement.shape or raw.dtype != RAW[agreement.raw] or not len(raw):
        raise SelfsameError(f"samples: expected {agreement.raw} of {agreement.shape}, got {raw.dtype} of {raw.shape}")
    return Held(raw, start_N), len(raw)


def _files(folder: Path, agreement: Agreed) -> list[Any]:
    """The files of a folder, as enrolment reads them."""
    from selfsame.device.card import DTYPES, FORMAT, Card
    from selfsame.device.samples import read_samples

    low, high = DTYPES[agreement.raw]
    shape = (*agreement.shape[:-1], -1) if agreement.clips else agreement.shape
    card = Card(
        FORMAT, "0", agreement.recipe.method.name, agreement.recipe.data.name, shape, agreement.raw, low, high, 1,
        "unit", "cosine", 0, "0" * 64, "float32", agreement.rate,
    )  # fmt: skip
    return read_samples([folder], card, resize=True)


def place_of(where: str | Path | Tensor) -> int:
    """Which client of an embedded data set these samples are; -1: of none."""
    if not isinstance(where, str):
        return -1
    name, _, number = where.partition(":")
    known = name in DATASETS and not DATASETS[name].needs_path
    return int(number) if known and number.isascii() and number.isdigit() else -1
