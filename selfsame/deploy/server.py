"""The server of a run whose devices train alone: one phase a round, and tables that grow with the devices.

After a crash the requests of the round that was open are written again, byte for byte, and devices that have answered
them answer the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from selfsame.config.recipe import Recipe
from selfsame.deploy.agreement import Agreement
from selfsame.deploy.codec import Field, Message, Refused, Spec, encode, hold
from selfsame.deploy.device import ANSWERED, REGISTERED
from selfsame.deploy.folder import Seat
from selfsame.deploy.host import Ask, Call, Host, rates
from selfsame.deploy.schedule import Decision, Phase, Terms
from selfsame.engine import checkpoint, optimisers
from selfsame.engine.problem import Problem
from selfsame.engine.reference import Answer, take_answers
from selfsame.engine.state import State, cast
from selfsame.methods.base import Cohort, Fields, World

MOST_WEIGHT = 1000  # samples that weigh, where the recipe has no cap: a device says itself how many it has


@dataclass(frozen=True)
class Limits:
    """How long the vectors of an answer may be."""

    update: float = 10.0  # of the network's change, as a multiple of the network's own length


class Server(Host[Agreement]):
    """As `Host`; the tables and the network are made when the first devices are there."""

    KINDS = ("trained",)

    def __init__(
        self, folder: Path, recipe: Recipe, terms: Terms, *, limits: Limits | None = None, **rest: Any
    ) -> None:
        super().__init__(folder, recipe, terms, **rest)
        self.limits = limits or Limits()
        self._new: list[str] = []  # registered, but the tables have no rows for them yet
        self._answers: dict[str, Answer] = {}
        self._enter()

    def _agree(self, transport: str, seeded: bool) -> Agreement:
        return Agreement.of(self.problem, self.run, transport, seeded)

    def _step(self, now: float) -> list[Ask]:
        if self._round is not None:
            self._settle(now)
        if self.done:
            return []
        if self._round is None:
            for node in self.registry.expired(now):
                self.registry.forget(node)
        asks = self._call(now)
        if self._round is None and self._enough(now):
            asks += self._open(now)
        return asks

    # Registration

    def _to_call(self, node: str) -> bool:
        return node not in self.registry and node not in self._new

    def _registered(self, node: str, payload: bytes, now: float) -> str:
        """It gets its place, or keeps the one it has."""
        _, message, conditions = self._heard(node, payload, REGISTERED)
        if message.meta["plan"] != self.agreement.digest:
            raise Refused("plan")
        seat = self._seat(node, message)
        self._calls[node] = Call()
        if not conditions.ready:
            self._calls[node].again = now + self.terms.answer_wait
            return "not ready yet"
        if self.state is not None and seat.client < self.state.present:
            self.registry.register(node, now, seat.client, conditions)
        elif node not in self._new:
            self._new.append(node)
        return "registered"

    def _failed(self, node: str, reason: str, now: float, told: bool = False) -> None:
        """Nothing more is expected of it in this round; it has to register again."""
        if self._round is not None and self._round.answers is not None:
            self._round.answers.lose(node)
        self.registry.forget(node)
        if node in self._new:
            self._new.remove(node)
        if told:
            self._calls.setdefault(node, Call()).later(now, self.terms.answer_wait)

    # Rounds

    def _enough(self, now: float) -> bool:
        """Whether a round can begin: as many as are required, or what the strategy goes on with where no more come."""
        ready = len(self.registry.eligible(now)) + (len(self._new) if self._may_grow else 0)
        if ready >= self.terms.required:
            return True
        if any(self._calls[node].awaited(now) for node in self._nodes if self._to_call(node)):
            return False
        least = self.terms.fewest + 1 if self.terms.strategy == "uc" else self.terms.needed
        return ready >= max(1, min(least, self.terms.required))

    @property
    def _may_grow(self) -> bool:
        """Not while a round is repeated after a crash: its requests must be what they were."""
        return self._opened < self.round

    def _open(self, now: float) -> list[Ask]:
        """Begin a round: the requests to those who are selected."""
        if self._new and self._may_grow:
            self._grow(now)
        round = self._begin_round(now)
        self._answers, self._forms = {}, {"trained": self._form()}
        nodes = round.open_answers(now)
        return [self._ask(node, "train", self._request(self.seats[node]), round.number) for node in nodes]

    def _request(self, seat: Seat) -> bytes:
        """A function of the checkpoint and the client alone, so that it can be written again after a crash."""
        assert self.state is not None
        method, half = self.problem.method, self.agreement.transport == "half"
        sent = method.send(self.state.server, self._cohort([seat.client], [seat.label]))
        method.wire.check_down(sent)
        meta = {
            "run": self.run,
            "plan": self.agreement.digest,
            "client": seat.client,
            "class": seat.label,
            "present": self.state.present,
        }
        fields = {"network": self.state.theta_P, **method.packed(sent)}
        return encode("train", self.round, meta, fields, frozenset({"network"} if half else ()))

    def _cohort(self, clients: list[int], labels: list[int]) -> Cohort:
        device = self.problem.model.device
        alive_M = torch.ones(len(clients), dtype=torch.bool, device=device)
        return Cohort(torch.tensor(clients, device=device), torch.tensor(labels, device=device), alive_M)

    def _form(self) -> Spec:
        """What an answer of this round must be."""
        assert self.state is not None
        theta_P, half = self.state.theta_P, self.agreement.transport == "half"
        bound = self.limits.update * float(theta_P.double().norm())
        about = None if half else theta_P.cpu()
        fields = {"network": Field((len(theta_P),), theta_P.dtype, bound, about, half)}
        longest = self.agreement.longest("up")
        for name, value in self._reported().items():
            fields[name] = Field(tuple(value.shape), value.dtype, longest=longest[name])
        return Spec("trained", meta=ANSWERED, fields=fields)

    def _reported(self) -> Fields:
        """A report of the method on samples that are all alike: what fields a device sends, and their shapes."""
        assert self.state is not None
        method, model, world = self.problem.method, self.problem.model, self._world(self.state.present)
        who, stream = self._cohort([0], [int(world.class_of_N[0])]), self.problem.server_stream("shapes")
        drawn = method.begin_own(world, who.client_M, stream)
        own, sent = cast(drawn, model.dtype, model.device), method.send(self.state.server, who)
        emb_MBD = torch.ones(1, 2, world.dim, dtype=model.dtype, device=model.device)
        mask_MB = torch.ones_like(emb_MBD[..., 0])
        with torch.no_grad():
            mine = method.start(own, sent, who, emb_MBD, mask_MB)
            return method.report(mine, sent, who, emb_MBD, mask_MB, stream)[1]

    def _taken(self, node: str, message: Message, phase: Phase, now: float) -> str:
        if message.meta["plan"] != self.agreement.digest:
            raise Refused("plan")
        fields = {name: value.to(self.problem.model.device) for name, value in message.fields.items()}
        theta_P = fields.pop("network")
        if self.agreement.transport == "half":
            assert self.state is not None
            theta_P = self.state.theta_P + theta_P
        hold(self.problem.model.head_views(theta_P), self.agreement.longest("head"))
        seat = self.seats[node]
        cohort = self.problem.recipe.cohort
        weight = float(min(seat.samples, cohort.cap or MOST_WEIGHT)) if cohort.weights == "samples" else 1.0
        phase.take(node, now)
        self._answers[node] = Answer(seat.client, seat.label, weight, theta_P, fields)
        return "taken"

    def _settle(self, now: float) -> None:
        """End the round if it is over, one way or the other."""
        assert self._round is not None and self._round.answers is not None and self.state is not None
        decision, phase = self._round.answers_decision(now), self._round.answers
        if decision is Decision.WAIT:
            return
        silent = phase.waiting() if phase.expired(now) else []
        self._round.close()
        for node in silent:
            self.counts["silent"] += 1
            self._failed(node, "silent", now)
            self._calls[node] = Call()
        answers = list(self._answers.values()) if decision is Decision.GO_ON else []
        if answers:
            absorb_answers(self.problem, self.state, answers)
        self._answers = {}
        self._end_round(now, len(phase.asked), len(answers))

    # State

    def _world(self, present: int) -> World:
        class_of_N = self.problem.world.class_of_N.cpu()[:present].clone()
        for seat in self.seats.values():
            if seat.client < present:
                class_of_N[seat.client] = seat.label
        classes = int(class_of_N.max()) + 1
        return World(present, classes, self.problem.world.dim, class_of_N.to(self.problem.model.device))

    def _grow(self, now: float) -> None:
        """Rows for the nodes that have registered since the last round began; they take part from now on."""
        present = max(self.seats[node].client for node in self._new) + 1
        if self.state is None:
            self.state = self._blank(present)
        elif present > self.state.present:
            for name, table in self._tables(present).items():
                old = self.state.server[name]
                self.state.server[name] = torch.cat([old, table[len(old) :]])
            self.state.present = present
        checkpoint.save_state(self.state, self._files.checkpoint)
        for node in self._new:
            self.registry.register(node, now, self.seats[node].client)
        self._new = []

    def _tables(self, present: int) -> Fields:
        model = self.problem.model
        drawn = self.problem.method.begin_server(self._world(present), self.problem.server_stream("server"))
        return cast(drawn, model.dtype, model.device)

    def _blank(self, present: int) -> State:
        """The server's part of `engine.state.begin`: what is private is nowhere but on the devices."""
        model = self.problem.model
        theta_P = model.first_theta.to(model.device, copy=True)
        return State(
            round=0,
            theta_P=theta_P,
            optim=optimisers.begin(self.problem.recipe.server, theta_P),
            own={},
            server=self._tables(present),
            alone_NP=None,
            refused=torch.zeros((), dtype=torch.int64, device=model.device),
            present=present,
        )


def absorb_answers(problem: Problem, state: State, answers: Sequence[Answer]) -> None:
    """The server's half of a round, in the order of the clients."""
    lr, server_lr = rates(problem.recipe, state.round)
    take_answers(problem, state, sorted(answers, key=lambda answer: answer.client), lr, server_lr, state.round)
