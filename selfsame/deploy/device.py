"""One device: bytes in, bytes out. It trains on its own samples, keeps what is private, and answers what was declared.

Everything is on the disk before a reply is returned, so each message may find another process.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from selfsame.data import DATASETS, Federation, Held, Samples, Source, load
from selfsame.data.clips import HeldClips, Pieces
from selfsame.data.federation import RAW
from selfsame.deploy.agreement import Agreement
from selfsame.deploy.codec import Field, Json, Refused, Spec, decode, encode, glance
from selfsame.deploy.memory import Keep, Kept
from selfsame.deploy.schedule import Conditions
from selfsame.engine.model import Model
from selfsame.engine.plan import Start, rate
from selfsame.engine.problem import Problem
from selfsame.engine.reference import client_update
from selfsame.engine.state import cast
from selfsame.errors import SelfsameError
from selfsame.methods.base import Cohort, Fields, World
from selfsame.methods.wire import finite_rows
from selfsame.streams import Stream

ASSIGNED = {"plan": str, "client": int, "class": int, "present": int}  # what a request says beside the tensors
ANSWERED = {"plan": str}
REGISTERED = {"plan": str, "samples": int, "conditions": dict, "owner": str, "place": int}
_SMALL_WORLDS = ((50, 20), (103, 41))  # clients and classes
_FAILURES = (RuntimeError, ValueError, IndexError, TypeError, KeyError, ArithmeticError, SelfsameError)


class SystemStream(Stream):
    """Random numbers of the system's generator, whatever they are named after: nobody can draw them again."""

    def __init__(self, rows: int) -> None:
        object.__setattr__(self, "key_M", _system_bits(rows))

    def fold(self, part: int | Tensor) -> Stream:
        return SystemStream(len(self.key_M))

    def bits(self, *shape: int) -> Tensor:
        return _system_bits(len(self.key_M), *shape)


def _system_bits(*shape: int) -> Tensor:
    return torch.frombuffer(bytearray(os.urandom(8 * math.prod(shape))), dtype=torch.int64).reshape(shape)


@dataclass(frozen=True)
class PrivateProblem(Problem):
    """A problem whose private draws nobody else can repeat."""

    def stream(self, purpose: str, client_M: Tensor, *rest: int | Tensor) -> Stream:
        return SystemStream(len(client_M))


class Device:
    """A node's part in one run.

    `samples`: a folder of sample files, or "digits:3" for client 3 of a data set that needs no files (for trying), or
    the raw samples themselves. `conditions`: a JSON file with truth values for charging, unmetered and idle. `owner`: a
    word that devices of one person share. `simulate`: agree to private draws that the server can repeat. `agreed`: the
    digest of the only terms to agree to; without it the first server's terms are taken, and no others after them.
    """

    def __init__(
        self,
        folder: Path,
        samples: str | Path | Tensor,
        *,
        conditions: Path | None = None,
        owner: str = "",
        simulate: bool = False,
        agreed: str | None = None,
    ) -> None:
        self.keep = Keep(folder)
        self._samples, self._conditions, self._owner = samples, conditions, owner
        self._simulate, self._agreed = simulate, agreed
        self._agreement: tuple[str, Agreement] | None = None
        self._model: Model | None = None
        self._source: tuple[Source, int] | None = None
        self._down: dict[int, dict[str, Field]] = {}  # by the number of clients

    def reply(self, payload: bytes) -> bytes:
        """The answer to a message; a message that is not taken is answered with the reason, and changes nothing."""
        with self.keep.alone():
            kept = self.keep.read()
            try:
                return self._answer(kept, payload)
            except Refused as refusal:
                run = kept.notes.get("agreement", {}).get("run", "")
                return encode("refused", max(kept.turn, 0), {"run": run, "reason": refusal.reason}, {})

    def _answer(self, kept: Kept, payload: bytes) -> bytes:
        agreement = self._agreed_to(kept)
        most = Spec("register").most_bytes
        if agreement is not None:
            most = max(most, self._request(agreement, agreement.clients).most_bytes)
        kind, turn, claimed = glance(payload, most)
        if kind == "register":
            return self._register(kept, agreement, payload)
        if kind != "train":
            raise Refused("kind")
        if agreement is None or claimed.get("plan") != agreement.digest:
            raise Refused("run" if agreement and claimed.get("run") != agreement.run else "plan")
        said = kept.answered(turn, payload)
        return said if said is not None else self._train(kept, agreement, payload, turn, claimed)

    def _agreed_to(self, kept: Kept) -> Agreement | None:
        given = kept.notes.get("agreement")
        if given is None:
            return None
        key = json.dumps(given, sort_keys=True)
        if self._agreement is None or self._agreement[0] != key:
            try:
                self._agreement, self._model, self._down = (key, Agreement.from_json(given)), None, {}
            except SelfsameError:  # written by another version, whose fields are others
                raise Refused("plan") from None
        return self._agreement[1]

    # Registration

    def _register(self, kept: Kept, agreement: Agreement | None, payload: bytes) -> bytes:
        message = decode(payload, expected=Spec("register", meta={"agreement": dict}))
        try:
            offered = Agreement.from_json(message.meta["agreement"])
        except _FAILURES:
            raise Refused("plan") from None
        if message.run != offered.run:
            raise Refused("run")
        if agreement is None:
            self._consent(offered)
        elif offered.digest != agreement.digest:
            raise Refused("plan" if offered.run == agreement.run else "run")
        _, count = self._open(offered)
        if agreement is None:
            notes = {"agreement": offered.to_json(), "seed": secrets.randbits(62)}
            self.keep.write(replace(kept, notes=notes))
        meta = {
            "run": offered.run,
            "plan": offered.digest,
            "samples": count,
            "conditions": vars(Conditions.now(self._conditions)),
            "owner": self._owner,
            "place": place_of(self._samples),
        }
        return encode("registered", 0, meta, {})

    def _consent(self, offered: Agreement) -> None:
        """Whether this device agrees to the terms at all."""
        if self._agreed is not None:
            if offered.digest != self._agreed:
                raise Refused("plan")
        elif ":" in offered.recipe.net.name:  # code by its import path: only in terms that somebody has read
            raise Refused("plan")
        drawn_in_public = offered.seeded or getattr(offered.method, "secrets", "system") == "seeded"
        if drawn_in_public and not self._simulate:
            raise Refused("plan")
        try:
            self._model = offered.model()
        except _FAILURES:
            raise Refused("plan") from None

    def _open(self, agreement: Agreement) -> tuple[Source, int]:
        if self._source is None:
            try:
                self._source = open_samples(self._samples, agreement)
            except (SelfsameError, OSError):
                raise Refused("samples") from None
        return self._source

    # Training

    def _request(self, agreement: Agreement, present: int) -> Spec:
        """What a request to train must be where so many clients are registered."""
        model = self._network(agreement)
        fields = {"network": Field((model.parameters,), agreement.dtype, half=agreement.transport == "half")}
        if present not in self._down:
            self._down[present] = down_fields(agreement, present)
        fields |= self._down[present]
        return Spec("train", agreement.run, None, ASSIGNED, fields)

    def _network(self, agreement: Agreement) -> Model:
        if self._model is None:
            self._model = agreement.model()
        return self._model

    def _train(self, kept: Kept, agreement: Agreement, payload: bytes, turn: int, claimed: dict[str, Json]) -> bytes:
        client, label, present = (claimed.get(name) for name in ("client", "class", "present"))
        if not all(type(number) is int for number in (client, label, present)):
            raise Refused("meta")
        assert isinstance(client, int) and isinstance(label, int) and isinstance(present, int)
        if not (0 <= client < present <= agreement.clients and 0 <= label < agreement.classes):
            raise Refused("meta")
        if kept.notes.get("assigned", [client, label]) != [client, label]:
            raise Refused("plan")
        if not 0 <= turn < agreement.recipe.run.rounds:
            raise Refused("round")
        if not Conditions.now(self._conditions).ready:
            raise Refused("not ready")
        message = decode(payload, expected=self._request(agreement, present))
        problem = self._problem(kept, agreement, present, client, label)
        theta_P = message.fields.pop("network")
        with _failing():
            own, leaves, trained_P = self._update(problem, kept.fields, theta_P, message.fields, client, label, turn)
        half = agreement.transport == "half"
        fields = {"network": trained_P - theta_P if half else trained_P, **leaves}
        meta = {"run": agreement.run, "plan": agreement.digest}
        reply = encode("trained", turn, meta, fields, frozenset({"network"} if half else ()))
        self.keep.write(kept.after(turn, payload, reply, own, {"assigned": [client, label]}))
        return reply

    def _problem(self, kept: Kept, agreement: Agreement, present: int, client: int, label: int) -> Problem:
        """A federation in which this device is the one client that has samples."""
        source, count = self._open(agreement)
        world = _world(agreement, present, client, label)
        count_N = torch.zeros(present, dtype=torch.int64)
        count_N[client] = count
        none = Samples.none(agreement.shape, RAW[agreement.raw])
        federation = Federation(
            "device", agreement.shape, world.class_of_N, count_N, source, none, none, agreement.mean, agreement.std
        )
        recipe = agreement.recipe
        if not agreement.seeded:
            recipe = replace(recipe, run=replace(recipe.run, seed=kept.notes["seed"]))
        problem = Problem.of(recipe, agreement.method, self._network(agreement), federation, world)
        return problem if agreement.seeded else PrivateProblem(**vars(problem))

    def _update(
        self, problem: Problem, own: Fields, theta_P: Tensor, sent: Fields, client: int, label: int, turn: int
    ) -> tuple[Fields, Fields, Tensor]:
        """(what stays, what leaves, the trained network)"""
        client_M = torch.tensor([client])
        who = Cohort(client_M, torch.tensor([label]), torch.ones(1, dtype=torch.bool))
        if problem.method.wire.own and not own:
            drawn = problem.method.begin_own(problem.world, client_M, problem.stream("own", client_M))
            own = cast(drawn, problem.model.dtype, problem.model.device)
        lr = torch.tensor(rate(problem.recipe.local, turn, problem.recipe.run.rounds), dtype=torch.float64)
        trained_P, stays, leaves, loss = client_update(problem, theta_P, Start(who, own, sent, lr, turn))
        if not bool(finite_rows(trained_P[None], torch.tensor([loss]), *stays.values(), *leaves.values())):
            raise Refused("finite")
        return {**own, **cast(stays, problem.model.dtype, problem.model.device)}, leaves, trained_P


def down_fields(agreement: Agreement, present: int) -> dict[str, Field]:
    """What the server sends beside the network where so many clients are registered.

    The server's own code says so, for two small worlds: what is as long as there are clients in both is as long
    as there are clients here; what differs otherwise may be of any length that a table can have.
    """
    one, two = (_sent(agreement, *size) for size in _SMALL_WORLDS)
    packed = {"near_rows", "drawn_rows"} <= one.keys()  # then the tables hold some of the rows
    fields = {}
    for name, value in one.items():
        shape = [a if a == b else -1 for a, b in zip(value.shape, two[name].shape, strict=True)]
        whole = (len(value), len(two[name])) == tuple(clients for clients, _ in _SMALL_WORLDS)
        if whole and not packed:
            shape[0] = present
        fields[name] = Field(tuple(shape), value.dtype, most=present if whole else 4 * present + 64)
    return fields


def _sent(agreement: Agreement, clients: int, classes: int) -> Fields:
    method, label_N = agreement.method, torch.arange(clients) % classes
    world = World(clients, classes, method.width(agreement.recipe.net.width), label_N)
    who = Cohort(torch.zeros(1, dtype=torch.int64), label_N[:1], torch.ones(1, dtype=torch.bool))
    tables = method.begin_server(world, Stream(torch.zeros(1, dtype=torch.int64)))
    return method.send(cast(tables, agreement.dtype, torch.device("cpu")), who)


def open_samples(where: str | Path | Tensor, agreement: Agreement) -> tuple[Source, int]:
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
        found = _read(Path(where), agreement)
        if agreement.clips:
            length = np.array([len(sound[0]) for sound in found])
            pieces = Pieces(np.concatenate([sound[0] for sound in found]), np.cumsum(length) - length, length)
            return HeldClips.of(pieces, start_N, agreement.shape[-1]), len(found)
        raw = torch.from_numpy(np.stack(found))
    if raw.shape[1:] != agreement.shape or raw.dtype != RAW[agreement.raw] or not len(raw):
        raise SelfsameError(f"samples: expected {agreement.raw} of {agreement.shape}, got {raw.dtype} of {raw.shape}")
    return Held(raw, start_N), len(raw)


def _read(folder: Path, agreement: Agreement) -> list[Any]:
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


def _world(agreement: Agreement, present: int, client: int, label: int) -> World:
    """As much of the world as a device knows: its own class among the clients."""
    class_of_N = torch.zeros(present, dtype=torch.int64)
    class_of_N[client] = label
    return World(present, agreement.classes, agreement.method.width(agreement.recipe.net.width), class_of_N)


@contextlib.contextmanager
def _failing() -> Iterator[None]:
    """Whatever goes wrong in the arithmetic, the device says so and keeps its state."""
    try:
        yield
    except _FAILURES:
        raise Refused("failed") from None
