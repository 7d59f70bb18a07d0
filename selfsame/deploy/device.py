"""One device: bytes in, bytes out. It trains on its own samples, keeps what is private, answers what was declared."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from selfsame.data import Federation, Samples
from selfsame.data.federation import RAW
from selfsame.deploy.aggregation.base import NETWORK
from selfsame.deploy.aggregation.signing import Signer
from selfsame.deploy.agreement import Agreement
from selfsame.deploy.codec import Field, Json, Message, Refused, Spec, decode, encode, hold
from selfsame.deploy.guest import FAILURES, Guest
from selfsame.deploy.memory import Memory
from selfsame.deploy.received import theta_digest
from selfsame.deploy.schedule import Conditions
from selfsame.deploy.split.attest import Policy
from selfsame.engine.enrolling import enrolled_alone
from selfsame.engine.model import Model
from selfsame.engine.plan import Start, rate
from selfsame.engine.problem import Problem
from selfsame.engine.reference import client_update
from selfsame.engine.state import cast
from selfsame.errors import SelfsameError
from selfsame.methods.base import Cohort, Fields, World
from selfsame.methods.wire import finite_rows
from selfsame.privacy.fixed import shortened
from selfsame.streams import Stream

ASSIGNED = {
    "plan": str,
    "client": int,
    "class": int,
    "present": int,
    "group": str,
}  # what a request says beside the tensors
ANSWERED = {"plan": str}
REGISTERED = {"plan": str, "samples": int, "conditions": dict, "owner": str, "place": int}
_MOST_GROUPS = 8  # that a device is added up with in one run: a group grows by whole ones, to four times its size
_SMALL_WORLDS = ((50, 20), (103, 41))  # clients and classes


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


class Device(Guest[Agreement]):
    """A node that trains on its own samples.

    `owner`: a word that devices of one person share. `signer`: the node's own key, or the file that holds it, for runs
    in which updates are masked or sealed. `start`: a copy of the server's start.safetensors, for runs in which a part
    of the network does not learn. `policy` and `collateral` say which enclave the device trusts; by default
    none. The rest: `Guest`.
    """

    TERMS = Agreement
    INVITATION = Spec("register", meta={"agreement": dict, "attested": str})

    def __init__(
        self,
        folder: Path,
        samples: str | Path | Tensor,
        *,
        owner: str = "",
        signer: Signer | Path | None = None,
        policy: Policy | None = None,
        collateral: str | None = None,
        start: Path | None = None,
        **rest: Any,
    ) -> None:
        super().__init__(folder, samples, **rest)
        self._owner, self._signer = owner, signer
        self._policy, self._collateral, self._start = policy or Policy(), collateral, start
        self._steps = {"poll": self._poll, "train": self._train}
        self._model: tuple[str, Model] | None = None  # by the digest of the terms
        self._down: dict[tuple[str, int], dict[str, Field]] = {}  # and by the number of clients

    def _order(self) -> list[str]:
        polled = self._agreement is not None and self._agreement[1].polls
        return ["poll", "train"] if polled else ["train"]

    def _consent(self, kept: Memory, offered: Agreement) -> None:
        if offered.method.open_secrets and not self._simulate:
            raise Refused("plan")
        if offered.sums.summed:
            self._sign()
        self._network(offered)

    def _sign(self) -> Signer:
        """The node's own key."""
        if isinstance(self._signer, Path):
            self._signer = Signer.read(self._signer)
        if self._signer is None:
            raise Refused("helper")
        return self._signer

    def _introduce(
        self, kept: Memory, agreement: Agreement, message: Message
    ) -> tuple[dict[str, Json], dict[str, Json]]:
        """Where an enclave adds up or takes masks off, it is proved anew at every registration."""
        said = {"plan": agreement.digest, "owner": self._owner}
        if not agreement.sums.attested:
            return {}, said
        from selfsame.deploy.aggregation.sealing import attest

        noted = kept.notes.get("enclave", {})
        return {"enclave": attest(agreement, message.meta["attested"], noted, self._policy, self._collateral)}, said

    def _longest(self, kept: Memory, agreement: Agreement) -> int:
        return self._request(agreement, agreement.clients).most_bytes

    def _request(self, agreement: Agreement, present: int) -> Spec:
        """What a request to train must be where so many clients are registered."""
        model, key = self._network(agreement), (agreement.digest, present)
        fields = {NETWORK: Field((model.parameters,), agreement.dtype, half=agreement.transport == "half")}
        if key not in self._down:
            self._down[key] = down_fields(agreement, present)
        return Spec("train", agreement.run, None, ASSIGNED, fields | self._down[key])

    def _network(self, agreement: Agreement) -> Model:
        if self._model is None or self._model[0] != agreement.digest:
            try:
                self._model = agreement.digest, agreement.model(self._start)
            except SelfsameError:
                if not agreement.first:
                    raise
                raise Refused("start") from None
        return self._model[1]

    def _train(self, kept: Memory, agreement: Agreement, payload: bytes, turn: int, claimed: dict[str, Json]) -> bytes:
        client, label, present = self._assigned(kept, agreement, claimed)
        message = decode(payload, expected=self._request(agreement, present))
        notes = {"assigned": [client, label], **self._grouped(kept, agreement, message.meta["group"], "groups")}
        problem = self._problem(kept, agreement, present, client, label)
        theta_P = message.fields.pop(NETWORK)
        hold(self._network(agreement).head_views(theta_P), agreement.longest("head"))
        try:
            own, leaves, trained_P = self._update(problem, kept.fields, theta_P, message.fields, client, label, turn)
            update_P = shortened((trained_P - theta_P)[None], agreement.sums.clip)[0]
            half = frozenset({NETWORK} if agreement.transport == "half" and not agreement.sums.summed else ())
            if agreement.sums.summed:
                sent = self._sent(kept, agreement, update_P, turn, message.meta["group"], theta_P)
            else:
                sent = {NETWORK: update_P if half else theta_P + update_P}
        except FAILURES:  # whatever goes wrong in the arithmetic, the device says so and keeps its state
            raise Refused("failed") from None
        meta = {"run": agreement.run, "plan": agreement.digest}
        reply = encode("trained", turn, meta, {**sent, **leaves}, half)
        self.keep.write(kept.after(self._turn("train", turn), payload, reply, own, notes))
        return reply

    def _assigned(self, kept: Memory, agreement: Agreement, claimed: dict[str, Json]) -> tuple[int, int, int]:
        """(its number, its class, how many there are) as a request says, where all of it can be."""
        client, label, present = (claimed.get(name) for name in ("client", "class", "present"))
        if not all(type(number) is int for number in (client, label, present)):
            raise Refused("meta")
        assert isinstance(client, int) and isinstance(label, int) and isinstance(present, int)
        if not (0 <= client < present <= agreement.clients and 0 <= label < agreement.classes):
            raise Refused("meta")
        if kept.notes.get("assigned", [client, label]) != [client, label]:
            raise Refused("plan")
        if not Conditions.now(self._conditions).ready:
            raise Refused("not ready")
        return client, label, present

    def _poll(self, kept: Memory, agreement: Agreement, payload: bytes, turn: int, claimed: dict[str, Json]) -> bytes:
        """What the method adds up over everybody; nothing of it is seen before it is in the sum."""
        poll = agreement.poll
        if poll is None or not poll.due(turn):
            raise Refused("kind")
        client, label, present = self._assigned(kept, agreement, claimed)
        message = decode(payload, expected=self._to_poll(agreement, present))
        group = message.meta["group"]
        notes = {"assigned": [client, label], **self._grouped(kept, agreement, group, "poll groups")}
        problem = self._problem(kept, agreement, present, client, label)
        try:
            own = self._own(problem, kept.fields, torch.tensor([client]))
            own = cast(problem.method.answer_poll(own, message.fields), problem.model.dtype, problem.model.device)
            sent_V = problem.method.contribution(own)[0]
            if not bool(torch.isfinite(sent_V).all()):
                raise Refused("finite")
            sent = self._sent(kept, agreement, sent_V, turn, group)
        except FAILURES:
            raise Refused("failed") from None
        reply = encode("polled", turn, {"run": agreement.run, "plan": agreement.digest}, sent)
        self.keep.write(kept.after(self._turn("poll", turn), payload, reply, own, notes))
        return reply

    def _to_poll(self, agreement: Agreement, present: int) -> Spec:
        """What a poll must be: the tables that the method reads then, as they are sent for training."""
        down = self._request(agreement, present).fields
        fields = {name: down[name] for name in agreement.method.poll_reads}
        return Spec("poll", agreement.run, None, ASSIGNED, fields)

    def _grouped(self, kept: Memory, agreement: Agreement, group: str, where: str) -> dict[str, Json]:
        """What to note of the group: a server that formed others all the time would learn from how sums differ."""
        known = kept.notes.get(where, [])
        if not agreement.sums.summed or group in known:
            return {}
        if len(known) >= _MOST_GROUPS:
            raise Refused("group")
        return {where: [*known, group]}

    def _sent(
        self,
        kept: Memory,
        agreement: Agreement,
        update_P: Tensor,
        turn: int,
        group: str,
        theta_P: Tensor | None = None,
    ) -> Fields:
        """What leaves for a sum, masked or sealed: an update of this network, or without one what a poll asks for."""
        from selfsame.deploy.aggregation.contribution import contribution, masked
        from selfsame.enclave.records import HASH, POLL, Context

        try:
            members, plan = bytes.fromhex(group), bytes.fromhex(agreement.digest)
        except ValueError:
            raise Refused("group") from None
        if len(members) != HASH:
            raise Refused("group")
        context = Context(agreement.run, plan, turn, members, POLL if theta_P is None else theta_digest(theta_P))
        terms = agreement.polls[0] if theta_P is None else agreement.sums
        samples = self._open(agreement)[1]
        key = b""
        if agreement.sums.attested:
            from selfsame.deploy.aggregation.sealing import sealed, trusted_key

            key = trusted_key(kept.notes.get("enclave", {}), self._policy)
        if agreement.sums.aggregation == "enclave":
            return sealed(terms, update_P, samples, context, self._sign(), key)
        return masked(terms, contribution(terms, update_P, samples), context, self._sign(), key)

    def _problem(self, kept: Memory, agreement: Agreement, present: int, client: int, label: int) -> Problem:
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
        own = self._own(problem, own, client_M)
        lr = torch.tensor(rate(problem.recipe.local, turn, problem.recipe.run.rounds), dtype=torch.float64)
        trained_P, stays, leaves, loss = client_update(problem, theta_P, Start(who, own, sent, lr, turn))
        if not bool(finite_rows(trained_P[None], torch.tensor([loss]), *stays.values(), *leaves.values())):
            raise Refused("finite")
        return {**own, **cast(stays, problem.model.dtype, problem.model.device)}, leaves, trained_P

    def _own(self, problem: Problem, own: Fields, client_M: Tensor) -> Fields:
        """Its private fields, drawn where it has none yet."""
        if own or not problem.method.wire.own:
            return own
        drawn = problem.method.begin_own(problem.world, client_M, problem.stream("own", client_M))
        return enrolled_alone(problem, cast(drawn, problem.model.dtype, problem.model.device), int(client_M))


def down_fields(agreement: Agreement, present: int) -> dict[str, Field]:
    """What the server sends beside the network where so many clients are registered.

    The server's own code says so, for two small worlds: what is as long as there are clients in both is as long
    as there are clients here; what differs otherwise may be of any length that a table can have.
    """
    one, two = (_sent(agreement, *size) for size in _SMALL_WORLDS)
    shortened, longest = agreement.method.down_rows(), agreement.longest("down")
    fields = {}
    for name, value in one.items():
        shape = [a if a == b else -1 for a, b in zip(value.shape, two[name].shape, strict=True)]
        whole = (len(value), len(two[name])) == tuple(clients for clients, _ in _SMALL_WORLDS)
        if whole and name not in shortened:
            shape[0] = present
        most = present if whole else 4 * present + 64
        fields[name] = Field(tuple(shape), value.dtype, most=most, longest=longest[name])
    return fields


def _sent(agreement: Agreement, clients: int, classes: int) -> Fields:
    method, label_N = agreement.method, torch.arange(clients) % classes
    world = World(clients, classes, method.width(agreement.recipe.net.width), label_N)
    who = Cohort(torch.zeros(1, dtype=torch.int64), label_N[:1], torch.ones(1, dtype=torch.bool))
    tables = method.begin_server(world, Stream(torch.zeros(1, dtype=torch.int64)))
    return method.send(cast(tables, agreement.dtype, torch.device("cpu")), who)


def _world(agreement: Agreement, present: int, client: int, label: int) -> World:
    """As much of the world as a device knows: its own class among the clients."""
    class_of_N = torch.zeros(present, dtype=torch.int64)
    class_of_N[client] = label
    return World(present, agreement.classes, agreement.method.width(agreement.recipe.net.width), class_of_N)
