"""What every server of a run on real devices does: it calls nodes, gives them places, and keeps the run's folder.

It neither sleeps nor sends. A loop around it calls `step` and pushes what that gives, pulls what has arrived into
`answer`, and says the time each time. After a crash it goes on from the last complete round.
"""

from __future__ import annotations

import math
import secrets
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Generic, TypeVar

import torch
from torch import Tensor

from selfsame.config.recipe import Recipe
from selfsame.data import Federation
from selfsame.deploy.agreement import Agreed
from selfsame.deploy.codec import REASONS, REFUSED, Json, Message, Refused, Spec, decode, encode, glance
from selfsame.deploy.folder import FORMAT, RunFolder, Saved, Seat
from selfsame.deploy.schedule import Conditions, Phase, Registry, Round, Terms
from selfsame.engine.plan import rate
from selfsame.engine.problem import Problem
from selfsame.engine.setup import prepare
from selfsame.engine.state import State
from selfsame.errors import SelfsameError
from selfsame.fields import read_fields
from selfsame.files import Record

NEVER = -math.inf
_STRAY = ("run", "round", "not asked", "not needed", "late")  # its sender may still send the right one
_SLOWEST = 5  # a silent node is asked to register again after 1, 2, 4, .. 2^5 waits
_MOST_SAMPLES = 2**31
_LONGEST_OWNER = 64
A = TypeVar("A", bound=Agreed)


@dataclass(frozen=True)
class Ask:
    """A message to push to a node."""

    node: str
    payload: bytes
    id: str


@dataclass
class Call:
    """Asking a node to register: what for, until it answers; how often in vain; and not again before when."""

    asked: str = ""
    silent: int = 0
    again: float = NEVER

    def ask(self, what: str, now: float, wait: float) -> None:
        """Each time later, where nothing came of the last one."""
        if self.asked:
            self.silent = min(self.silent + 1, _SLOWEST)
        self.asked, self.again = what, now + wait * 2**self.silent

    def later(self, now: float, wait: float) -> None:
        """Not before another wait, and no round waits for it."""
        self.asked, self.again = "", now + wait * 2**self.silent
        self.silent = min(self.silent + 1, _SLOWEST)

    def awaited(self, now: float) -> bool:
        """Whether a round may wait for this node to register: the first time it is asked, and no longer."""
        return now < self.again and not self.silent


class Host(ABC, Generic[A]):
    """A run in a folder, begun or gone on with; a server calls `_enter` once it is made.

    `terms` are Algorithm 3's numbers. `federation` says what samples look like and how many clients and classes there
    can be (`without_samples` makes one); without it the recipe's data set is loaded. `transport`: "exact" or "half".
    `seeded`: private draws come from the recipe's seed, as in the simulator, and nodes take the places they name: for
    trying things out and for tests.
    """

    KINDS: ClassVar[tuple[str, ...]]  # of the answers in a round, phase by phase
    state: State | None

    def __init__(
        self,
        folder: Path,
        recipe: Recipe,
        terms: Terms,
        *,
        federation: Federation | None = None,
        transport: str = "exact",
        seeded: bool = False,
    ) -> None:
        self.folder, self.terms = folder, terms
        self.problem: Problem = prepare(recipe, federation, expected=terms.required, folder=folder)
        self._files = RunFolder(folder)
        self._saved = self._files.saved()
        self.run: str = self._saved.run if self._saved else secrets.token_hex(16)
        self.agreement: A = self._agree(transport, seeded)
        if self._saved and self._saved.plan != self.agreement.digest:
            raise SelfsameError(f"{folder}: was begun with another recipe, data or schedule; name another folder")
        self.seats: dict[str, Seat] = self._saved.nodes if self._saved else {}
        self.counts: Counter[str] = Counter(self._saved.counts if self._saved else {})
        self.groups: list[tuple[str, ...]] = list(self._saved.groups) if self._saved else []
        self.poll_groups: list[tuple[str, ...]] = list(self._saved.poll_groups) if self._saved else []
        self._polled: int = self._saved.polled if self._saved else -1  # the last round that a poll came before
        self.records: list[Record] = []  # one a complete round
        self.registry = Registry(terms.registration)
        self._opened: int = self._saved.opened if self._saved else -1  # the last round of which requests were sent
        self._nodes: list[str] = []
        self._calls: dict[str, Call] = {}
        self._invited = 0
        self._round: Round | None = None
        self._forms: dict[str, Spec] = {}  # what answers of the present round must be, or were of the last
        self._begun, self._down, self._up, self._counted = 0.0, 0, 0, Counter(self.counts)
        self.state = None

    @abstractmethod
    def _agree(self, transport: str, seeded: bool) -> A:
        """The terms that devices are offered."""

    # What the loop around it sees

    @property
    def round(self) -> int:
        """Rounds that are over."""
        return 0 if self.state is None else self.state.round

    @property
    def done(self) -> bool:
        return self.round >= self.problem.recipe.run.rounds

    @property
    def waiting_until(self) -> float:
        """Until when `step` has nothing to do unless something arrives."""
        times = [self._calls[node].again for node in self._nodes if self._to_call(node)]
        return min([*times, *([self._round.waiting_until] if self._round else [])], default=math.inf)

    def begin(self, nodes: Sequence[str], now: float) -> None:
        """The nodes that can be reached now; to be called again whenever that changes."""
        for node in self._nodes:
            if node not in nodes:
                self._gone(node, now)
        for node in nodes:
            if node not in self._nodes:  # it is new, or back
                self._calls[node] = Call()
        self._nodes = list(nodes)

    def step(self, now: float) -> list[Ask]:
        """Messages to push now."""
        asks = [] if self.done else self._step(now)
        self._down += sum(len(ask.payload) for ask in asks)
        return asks

    @abstractmethod
    def _step(self, now: float) -> list[Ask]:
        """As `step`, in a run that is not done."""

    def answer(self, node: str, payload: bytes, now: float) -> str | None:
        """Take what a node has sent; None, or why not. What is refused is counted and changes nothing else.

        Where the transport knows that a refused answer was the only one that would come, it says so with `lost`.
        """
        self._up += len(payload)
        try:
            taken = self._take(node, payload, now)
        except Refused as refusal:
            self.counts[refusal.reason] += 1
            if refusal.reason not in _STRAY:
                self._failed(node, refusal.reason, now)
            return refusal.reason
        if taken:
            self.counts[taken] += 1
        return None

    def lost(self, node: str, now: float) -> None:
        """The transport says that nothing more will come of what this node was asked."""
        if self._expected(node):
            self._gone(node, now)

    # Calls

    @abstractmethod
    def _to_call(self, node: str) -> bool:
        """Whether a node is to register, once its time has come."""

    def _call(self, now: float) -> list[Ask]:
        """Ask those to register who are not registered, or not for much longer."""
        asks = []
        for node in self._nodes:
            call = self._calls[node]
            if self._to_call(node) and now >= call.again:
                call.ask("terms", now, self.terms.answer_wait)
                asks.append(self._invite(node))
        return asks

    def _invite(self, node: str, **more: Json) -> Ask:
        self._invited += 1
        meta = {"run": self.run, "agreement": self.agreement.to_json(), **more}
        return self._ask(node, "register", encode("register", 0, meta, {}), self._invited)

    def _ask(self, node: str, kind: str, payload: bytes, *which: int) -> Ask:
        return Ask(node, payload, "/".join([self.run, kind, node, *map(str, which)]))

    def _expected(self, node: str) -> bool:
        """Whether something is to come from this node."""
        call, phase = self._calls.get(node), self._round.phase if self._round else None
        return bool(call and call.asked) or (phase is not None and node in phase.waiting())

    def _gone(self, node: str, now: float) -> None:
        if self._expected(node):
            self.counts["lost"] += 1
        self._failed(node, "lost", now, told=True)

    @abstractmethod
    def _failed(self, node: str, reason: str, now: float, told: bool = False) -> None:
        """Nothing is to be expected of this node for now; `told`: it or the transport said so itself."""

    # What arrives

    def _take(self, node: str, payload: bytes, now: float) -> str:
        """What an arrival is counted as, once it is taken."""
        kind, number, _ = glance(payload, max(form.most_bytes for form in (REFUSED, *self._forms.values())))
        if kind == "registered":
            return self._registered(node, payload, now)
        if kind == "refused":
            return self._refused_by(node, payload, now)
        if kind not in self.KINDS:
            raise Refused("kind")
        if number != self.round:
            raise Refused("round")
        phase = self._phase_of(kind)
        if phase is None:
            raise Refused("not asked")
        if why := phase.refusal(node, now):
            raise Refused(why)
        form = replace(self._forms[kind], run=self.run, round=number)
        return self._taken(node, decode(payload, expected=form), phase, now)

    def _phase_of(self, kind: str) -> Phase | None:
        """The wait for answers of this kind."""
        return None if self._round is None else self._round.phase_of(first=kind != self.KINDS[-1])

    @abstractmethod
    def _taken(self, node: str, message: Message, phase: Phase, now: float) -> str:
        """Take an answer that counts."""

    @abstractmethod
    def _registered(self, node: str, payload: bytes, now: float) -> str:
        """A node has answered a call."""

    def _heard(self, node: str, payload: bytes, meta: dict[str, type]) -> tuple[Call, Message, Conditions]:
        """A node's answer to a call, read strictly; nothing has changed yet."""
        call = self._calls.get(node)
        if call is None or not call.asked:
            raise Refused("not asked")
        message = decode(payload, expected=Spec("registered", self.run, meta=meta))
        samples, owner, place = message.meta["samples"], message.meta.get("owner", ""), message.meta["place"]
        if not (0 < samples <= _MOST_SAMPLES and len(owner) <= _LONGEST_OWNER and -1 <= place < 2**31):
            raise Refused("meta")
        try:
            return call, message, read_fields("conditions", message.meta["conditions"], Conditions)
        except SelfsameError:
            raise Refused("meta") from None

    def _refused_by(self, node: str, payload: bytes, now: float) -> str:
        """A device has refused what it was asked."""
        if not self._expected(node):
            raise Refused("not asked")
        reason = decode(payload, expected=REFUSED).meta["reason"]
        if reason not in REASONS:
            raise Refused("meta")
        self._failed(node, reason, now, told=True)
        return f"device: {reason}"

    # Seats

    def _seat(self, node: str, message: Message) -> Seat:
        """The node's place: the one that it has, or a new one, which is on the disk before anybody hears of it."""
        seat = self.seats.get(node)
        if seat is None:
            seat = self._place(message.meta.get("owner", ""), message.meta["place"])
            seat.samples, self.seats[node] = message.meta["samples"], seat
            self._save()
        seat.samples = message.meta["samples"]
        return seat

    def _place(self, owner: str, place: int) -> Seat:
        """A free client number and the class of its owner: the place that the node names, in a run that is seeded."""
        clients = {seat.client for seat in self.seats.values()}
        world = self.problem.world
        if self.agreement.seeded and place >= 0:
            if place in clients or place >= world.clients:
                raise Refused("full")
            return Seat(place, int(world.class_of_N[place]), 0, owner)
        client = next((number for number in range(world.clients) if number not in clients), None)
        if client is None:
            raise Refused("full")
        if self.agreement.seeded:
            return Seat(client, int(world.class_of_N[client]), 0, owner)
        labels = {seat.owner: seat.label for seat in self.seats.values() if seat.owner}
        used = {seat.label for seat in self.seats.values()}
        label = labels.get(owner, next((number for number in range(world.classes) if number not in used), None))
        if label is None:
            raise Refused("full")
        return Seat(client, label, 0, owner)

    # Rounds

    def _begin_round(self, now: float) -> Round:
        """Its number is on the disk before a device hears of it."""
        self._begun = now
        if self._opened != self.round:
            self._opened = self.round
            self._save()
        self._round = Round(self.terms, self.registry, self.problem.recipe.run.seed, self.round)
        return self._round

    def _end_round(self, now: float, asked: int, taken: int, **more: Json) -> None:
        """The round is over; what it did is on the disk before the next one begins."""
        assert self.state is not None
        self._round = None
        self.state.round += 1
        counted = self.counts - self._counted
        record = {
            "round": self.round,
            **more,
            "asked": asked,
            "taken": taken,
            "seconds": now - self._begun,
            "down": self._down,
            "up": self._up,
            "counts": dict(sorted(counted.items())),
        }
        self._counted, self._down, self._up = Counter(self.counts), 0, 0
        self.records.append(record)
        self._files.complete(record, self.state)
        self._save()
        if self.done:
            self._finish()

    # The folder

    def _enter(self) -> None:
        """Begin the run, or go on with it."""
        if self._saved is None:
            self._files.begin(self.problem, self.agreement.raw)
            self._save()
            return
        self.state = self._files.load(self._blank) or self.state
        self.records = self._files.records(self.round)
        self._go_on(self._saved)
        if self.done:
            self._finish()

    @abstractmethod
    def _blank(self, present: int) -> State:
        """A state of so many clients, to be filled from a checkpoint."""

    def _go_on(self, saved: Saved) -> None:
        """What is to be done with a round that was open when the server stopped."""
        return None

    def _save(self) -> None:
        """Who is which client and how far the run is. It is on the disk before any message depends on it."""
        used_N = None if self.state is None else self.problem.method.rounds_used(self.state.server)
        taken = () if used_N is None else tuple(used_N.tolist())  # privacy that is spent must not wait for a checkpoint
        plan, counts = self.agreement.digest, dict(self.counts)
        groups, polls = tuple(self.groups), tuple(self.poll_groups)
        saved = Saved(FORMAT, self.run, plan, self._opened, counts, self.seats, taken, groups, polls, self._polled)
        self._files.save(saved)

    def _finish(self) -> None:
        assert self.state is not None
        self._files.finish(self.problem, self.state)


def rates(recipe: Recipe, number: int) -> tuple[Tensor, Tensor]:
    """The learning rates of a round, the devices' and the server's."""
    local, server = (rate(part, number, recipe.run.rounds) for part in (recipe.local, recipe.server))
    return torch.tensor(local, dtype=torch.float64), torch.tensor(server, dtype=torch.float64)
