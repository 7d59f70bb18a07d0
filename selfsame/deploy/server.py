"""The server of a run on real devices: which messages to push, and what to do with those that come back.

It neither sleeps nor sends. A loop around it calls `step` and pushes what that gives, pulls what has arrived into
`answer`, and says the time each time. After a crash it goes on from the last complete round: the requests of the round
that was open are written again, byte for byte, and devices that have answered them answer the same.
"""

from __future__ import annotations

import json
import secrets
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from selfsame.config.recipe import Recipe, to_toml
from selfsame.data import Federation
from selfsame.deploy.agreement import Agreement, write_samples
from selfsame.deploy.codec import REASONS, Field, Refused, Spec, decode, encode, glance
from selfsame.deploy.device import ANSWERED, REGISTERED
from selfsame.deploy.schedule import Conditions, Registry, Round, Terms, Verdict
from selfsame.engine import checkpoint, optimisers
from selfsame.engine.plan import rate
from selfsame.engine.problem import Problem
from selfsame.engine.reference import Answer, take_answers
from selfsame.engine.setup import prepare
from selfsame.engine.state import State, cast
from selfsame.errors import SelfsameError
from selfsame.files import write
from selfsame.methods.base import Cohort, Fields, World

_FORMAT = "selfsame-server-1"
_MOST_SAMPLES = 2**31
_LONGEST_OWNER = 64
_BACK_OFF = 5  # a silent node is asked to register again after 1, 2, 4, .. 2^5 waits
_FIRST = 1  # the call that a round waits for
_STRAY = ("run", "round", "not asked", "not needed", "late")  # its sender may still send the right one


@dataclass(frozen=True)
class Ask:
    """A message to push to a node."""

    node: str
    payload: bytes
    id: str


@dataclass(frozen=True)
class Limits:
    """How long the vectors of an answer may be."""

    update: float = 10.0  # of the network's change, as a multiple of the network's own length
    field: float = 1000.0  # of every row of the other fields


@dataclass
class Seat:
    """A node's place in the run, for good."""

    client: int
    label: int  # its class
    samples: int
    owner: str


@dataclass
class _Call:
    """Asking a node to register."""

    tries: int = 0  # since it was last heard
    again: float = float("-inf")  # not before then


class Server:
    """A run in a folder, begun or gone on with.

    `terms` are the schedule's numbers. `federation` says what samples look like and how many clients and classes there
    can be (`without_samples` makes one); without it the recipe's data set is loaded. `transport`: "exact" or "half".
    `seeded`: private draws come from the recipe's seed, as in the simulator, and nodes take the places they name: for
    trying things out and for tests.
    """

    def __init__(
        self,
        folder: Path,
        recipe: Recipe,
        terms: Terms,
        *,
        federation: Federation | None = None,
        transport: str = "exact",
        seeded: bool = False,
        limits: Limits | None = None,
    ) -> None:
        self.folder, self.terms, self.limits = folder, terms, limits or Limits()
        self.problem: Problem = prepare(recipe, federation)
        saved = self._saved()
        self.run: str = saved["run"] if saved else secrets.token_hex(16)
        self.agreement = Agreement.of(self.problem, self.run, transport, seeded)
        if saved and saved["plan"] != self.agreement.digest:
            raise SelfsameError(f"{folder}: was begun with another recipe, data or transport; name another folder")
        self.seats = {node: Seat(**seat) for node, seat in saved["nodes"].items()} if saved else {}
        self.counts: Counter[str] = Counter(saved["counts"] if saved else {})
        self._opened: int = saved["opened"] if saved else -1  # the last round of which requests were sent
        self._class_of_N = self.problem.world.class_of_N.cpu().clone()
        for seat in self.seats.values():
            self._class_of_N[seat.client] = seat.label
        self.registry = Registry(terms.registration)
        self._nodes: list[str] = []
        self._calls: dict[str, _Call] = {}
        self._new: list[str] = []  # registered, but the tables have no rows for them yet
        self._round: Round | None = None
        self._spec: Spec | None = None
        self._most = Spec("registered").most_bytes  # of any message so far
        self._answers: dict[str, Answer] = {}
        self._begun, self._down, self._up, self._counted = 0.0, 0, 0, Counter(self.counts)
        self.state: State | None = None
        self.records: list[dict[str, Any]] = []  # one a complete round
        if saved:
            self._resume()
        else:
            self._create()

    # What the loop around it sees

    @property
    def round(self) -> int:
        """Complete rounds."""
        return 0 if self.state is None else self.state.round

    @property
    def done(self) -> bool:
        return self.round >= self.problem.recipe.run.rounds

    @property
    def waiting_until(self) -> float:
        """Until when `step` has nothing to do unless something arrives."""
        if self._round is not None:
            return self._round.waiting_until
        unknown = [node for node in self._nodes if not self._known(node)]
        return min((self._call_of(node).again for node in unknown), default=float("inf"))

    def begin(self, nodes: Sequence[str], now: float) -> None:
        """The nodes that can be reached now; to be called again whenever that changes."""
        for node in set(self._nodes) - set(nodes):
            self.lost(node, now)
        for node in set(nodes) - set(self._nodes):  # it is new, or back
            self._calls.pop(node, None)
        self._nodes = list(nodes)

    def step(self, now: float) -> list[Ask]:
        """Messages to push now."""
        if self._round is not None and not self.done:
            self._settle(now)
        if self.done:
            return []
        asks = self._call(now)
        if self._round is None and self._enough(now):
            asks += self._open(now)
        self._down += sum(len(ask.payload) for ask in asks)
        return asks

    def answer(self, node: str, payload: bytes, now: float) -> str | None:
        """Take what a node has sent; None, or why not. What is refused is counted and changes nothing else.

        Where the transport knows that a refused answer was the only one that would come, it says so with `lost`.
        """
        self._up += len(payload)
        try:
            self.counts[self._take(node, payload, now)] += 1
        except Refused as refusal:
            self.counts[refusal.reason] += 1
            if refusal.reason not in _STRAY:
                self._drop(node)
            return refusal.reason
        return None

    def lost(self, node: str, now: float) -> None:
        """The transport says that nothing more will come of what this node was asked."""
        if self._asked(node):
            self.counts["lost"] += 1
        self._drop(node)
        self._calls[node] = self._later(now)

    # Registration

    def _call_of(self, node: str) -> _Call:
        return self._calls.setdefault(node, _Call())

    def _later(self, now: float) -> _Call:
        """Not before another wait, and no round waits for it."""
        return _Call(_FIRST + 1, now + self.terms.answer_wait)

    def _known(self, node: str) -> bool:
        return node in self.registry or node in self._new

    def _asked(self, node: str) -> bool:
        """Whether an answer of this node is waited for in a round."""
        return self._round is not None and self._round.answers is not None and node in self._round.answers.waiting()

    def _call(self, now: float) -> list[Ask]:
        """Ask those to register who are not, or no longer."""
        if self._round is None:
            for node in self.registry.expired(now):
                self.registry.forget(node)
        asks = []
        for node in self._nodes:
            call = self._call_of(node)
            if self._known(node) or now < call.again:
                continue
            call.again = now + self.terms.answer_wait * 2 ** min(call.tries, _BACK_OFF)
            call.tries += 1
            meta = {"run": self.run, "agreement": self.agreement.to_json()}
            asks.append(Ask(node, encode("register", 0, meta, {}), f"{self.run}/register/{node}/{call.tries}"))
        return asks

    def _registered(self, node: str, payload: bytes, now: float) -> str:
        """A node has registered: it gets its place, or keeps the one it has."""
        call = self._call_of(node)
        if not call.tries:
            raise Refused("not asked")
        message = decode(payload, expected=Spec("registered", self.run, None, REGISTERED))
        if message.meta["plan"] != self.agreement.digest:
            raise Refused("plan")
        samples, owner, place = (message.meta[name] for name in ("samples", "owner", "place"))
        if not (0 < samples <= _MOST_SAMPLES and len(owner) <= _LONGEST_OWNER and -1 <= place < 2**31):
            raise Refused("meta")
        try:
            conditions = Conditions.read(message.meta["conditions"])
        except SelfsameError:
            raise Refused("meta") from None
        seat = self.seats.get(node) or self._place(owner, place)
        before, seat.samples = self.seats.get(node), samples
        self.seats[node] = seat
        self._class_of_N[seat.client] = seat.label
        if before is None:
            self._save_nodes()
        call.tries = 0
        if not conditions.ready:
            call.again = now + self.terms.answer_wait
            return "not ready yet"
        call.again = float("-inf")
        if self.state is not None and seat.client < self.state.present:
            self.registry.register(node, now, conditions, rank=seat.client)
        elif node not in self._new:
            self._new.append(node)
        return "registered"

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

    def _drop(self, node: str) -> None:
        """Nothing more is expected of it in this round; it has to register again."""
        if self._round is not None and self._round.answers is not None:
            self._round.answers.lose(node)
        self.registry.forget(node)
        if node in self._new:
            self._new.remove(node)

    # Rounds

    def _enough(self, now: float) -> bool:
        """Whether a round can begin: as many as are required, or what the strategy goes on with where no more come."""
        ready = len(self.registry.eligible(now)) + (len(self._new) if self._may_grow else 0)
        if ready >= self.terms.required:
            return True
        calls = [self._call_of(node) for node in self._nodes if not self._known(node)]
        if any(call.tries <= _FIRST and now < call.again for call in calls):
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
        assert self.state is not None
        number = self.round
        if self._opened != number:
            self._opened = number
            self._save_nodes()
        self._round = Round(self.terms, self.registry, self.problem.recipe.run.seed, number)
        self._answers, self._spec, self._begun = {}, self._expected(), now
        self._most = max(self._most, self._spec.most_bytes)
        nodes = self._round.open_answers(now)
        return [Ask(node, self._request(self.seats[node]), f"{self.run}/train/{node}/{number}") for node in nodes]

    def _request(self, seat: Seat) -> bytes:
        """A function of the checkpoint and the client alone, so that it can be written again after a crash."""
        assert self.state is not None
        method, half = self.problem.method, self.agreement.transport == "half"
        sent = method.send(self.state.server, self._cohort([seat.client], [seat.label]))
        method.wire.check_down(sent)
        if hasattr(method, "packed"):
            sent = method.packed(sent)
        meta = {
            "run": self.run,
            "plan": self.agreement.digest,
            "client": seat.client,
            "class": seat.label,
            "present": self.state.present,
        }
        fields = {"network": self.state.theta_P, **sent}
        return encode("train", self.round, meta, fields, frozenset({"network"} if half else ()))

    def _cohort(self, clients: list[int], labels: list[int]) -> Cohort:
        device = self.problem.model.device
        alive_M = torch.ones(len(clients), dtype=torch.bool, device=device)
        return Cohort(torch.tensor(clients, device=device), torch.tensor(labels, device=device), alive_M)

    def _expected(self) -> Spec:
        """What an answer of this round must be."""
        assert self.state is not None
        theta_P, half = self.state.theta_P, self.agreement.transport == "half"
        bound = self.limits.update * float(theta_P.double().norm())
        about = None if half else theta_P.cpu()
        fields = {"network": Field((len(theta_P),), theta_P.dtype, bound, about, half)}
        for name, value in self._reported().items():
            fields[name] = Field(tuple(value.shape), value.dtype, self.limits.field)
        return Spec("trained", self.run, self.round, ANSWERED, fields)

    def _reported(self) -> Fields:
        """A report of the method on samples that are all alike: what fields a device sends, and their shapes."""
        assert self.state is not None
        method, model = self.problem.method, self.problem.model
        who, stream = self._cohort([0], [int(self._class_of_N[0])]), self.problem.server_stream("shapes")
        drawn = method.begin_own(self._world(self.state.present), who.client_M, stream)
        own, sent = cast(drawn, model.dtype, model.device), method.send(self.state.server, who)
        emb_MBD = torch.ones(1, 2, self.problem.world.dim, dtype=model.dtype, device=model.device)
        mask_MB = torch.ones_like(emb_MBD[..., 0])
        with torch.no_grad():
            mine = method.start(own, sent, who, emb_MBD, mask_MB)
            return method.report(mine, sent, who, emb_MBD, mask_MB, stream)[1]

    def _take(self, node: str, payload: bytes, now: float) -> str:
        """What an arrival is counted as, once it is taken."""
        kind, number, _ = glance(payload, self._most)
        if kind == "registered":
            return self._registered(node, payload, now)
        if kind == "refused":
            return self._refused_by(node, payload, now)
        if kind != "trained":
            raise Refused("kind")
        if self._round is None or self._spec is None or number != self.round:
            raise Refused("round" if number != self.round else "not asked")
        phase = self._round.answers
        if phase is None or node not in phase.asked:
            raise Refused("not asked")
        if node in phase.answered or phase.enough(now):
            raise Refused("not needed")
        if now > phase.deadline:
            raise Refused("late")
        message = decode(payload, expected=self._spec)
        if message.meta["plan"] != self.agreement.digest:
            raise Refused("plan")
        fields = {name: value.to(self.problem.model.device) for name, value in message.fields.items()}
        theta_P = fields.pop("network")
        if self.agreement.transport == "half":
            assert self.state is not None
            theta_P = self.state.theta_P + theta_P
        seat = self.seats[node]
        weight = float(seat.samples) if self.problem.recipe.cohort.weights == "samples" else 1.0
        phase.take(node, now)
        self._answers[node] = Answer(seat.client, seat.label, weight, theta_P, fields)
        return "taken"

    def _refused_by(self, node: str, payload: bytes, now: float) -> str:
        """A device has refused what it was asked."""
        if not self._asked(node) and not self._call_of(node).tries:
            raise Refused("not asked")
        reason = decode(payload, expected=Spec("refused", meta={"reason": str})).meta["reason"]
        if reason not in REASONS:
            raise Refused("meta")
        self._drop(node)
        self._calls[node] = self._later(now)
        return f"device: {reason}"

    def _settle(self, now: float) -> None:
        """End the round if it is over, one way or the other."""
        assert self._round is not None and self._round.answers is not None and self.state is not None
        verdict = self._round.answers_verdict(now)
        if verdict is Verdict.WAIT:
            return
        phase, number = self._round.answers, self.round
        silent = phase.waiting() if phase.expired(now) else []
        self._round.close()
        for node in silent:
            self.counts["silent"] += 1
            self._drop(node)
            self._calls[node] = _Call()
        answers = list(self._answers.values()) if verdict is Verdict.GO_ON else []
        if answers:
            absorb_answers(self.problem, self.state, answers)
        self._round = self._spec = None
        self._answers = {}
        self.state.round = number + 1
        self._record(now, len(phase.asked), len(answers))
        checkpoint.save_state(self.state, self._checkpoint)
        if self.done:
            self._save_nodes()
            self._write_model()

    def _record(self, now: float, asked: int, taken: int) -> None:
        """A line in rounds.jsonl; written before the checkpoint, and dropped again where that was never written."""
        counted = self.counts - self._counted
        record = {
            "round": self.round,
            "asked": asked,
            "taken": taken,
            "seconds": now - self._begun,
            "down": self._down,
            "up": self._up,
            "counts": dict(sorted(counted.items())),
        }
        self._counted, self._down, self._up = Counter(self.counts), 0, 0
        self.records.append(record)
        with open(self.folder / "rounds.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    # State

    def _world(self, present: int) -> World:
        class_of_N = self._class_of_N[:present].to(self.problem.model.device)
        return World(present, int(class_of_N.max()) + 1, self.problem.world.dim, class_of_N)

    def _grow(self, now: float) -> None:
        """Rows for the nodes that have registered since the last round began; they take part from now on."""
        present = max(self.seats[node].client for node in self._new) + 1
        if self.state is None:
            self.state = self._first_state(present)
        elif present > self.state.present:
            for name, table in self._tables(present).items():
                old = self.state.server[name]
                self.state.server[name] = torch.cat([old, table[len(old) :]])
            self.state.present = present
        checkpoint.save_state(self.state, self._checkpoint)
        for node in self._new:
            self.registry.register(node, now, rank=self.seats[node].client)
        self._new = []

    def _tables(self, present: int) -> Fields:
        model = self.problem.model
        drawn = self.problem.method.begin_server(self._world(present), self.problem.server_stream("server"))
        return cast(drawn, model.dtype, model.device)

    def _first_state(self, present: int) -> State:
        """The server's part of `engine.state.begin`: what is private is nowhere but on the devices."""
        model = self.problem.model
        theta_P = model.first_theta.to(model.device, copy=True)
        optim = optimisers.begin(self.problem.recipe.server, theta_P)
        none = torch.zeros((), dtype=torch.int64, device=model.device)
        return State(
            round=0,
            theta_P=theta_P,
            optim=optim,
            own={},
            server=self._tables(present),
            alone_NP=None,
            refused=none,
            present=present,
        )

    @property
    def _checkpoint(self) -> Path:
        return self.folder / "checkpoint" / "state.safetensors"

    def _saved(self) -> dict[str, Any] | None:
        """nodes.json, or None for a folder without a run."""
        path = self.folder / "nodes.json"
        if not path.exists():
            return None
        try:
            saved: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            if saved["format"] != _FORMAT:
                raise ValueError
            _ = [Seat(**seat) for seat in saved["nodes"].values()], saved["run"], saved["plan"], saved["opened"] + 0
            _ = Counter(saved["counts"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise SelfsameError(f"{path}: damaged, or of another version") from None
        return saved

    def _create(self) -> None:
        if self.folder.is_dir() and any(self.folder.iterdir()):
            raise SelfsameError(f"{self.folder}: is there already and holds no run on devices; name another folder")
        self.folder.mkdir(parents=True, exist_ok=True)
        text = to_toml(self.problem.recipe)
        write(self.folder / "recipe.toml", text.encode())
        write_samples(self.folder, self.problem.federation, self.agreement.raw)
        self._save_nodes()

    def _save_nodes(self) -> None:
        """Who is which client. It is on the disk before any message depends on it."""
        saved = {
            "format": _FORMAT,
            "run": self.run,
            "plan": self.agreement.digest,
            "opened": self._opened,
            "counts": dict(self.counts),
            "nodes": {node: asdict(seat) for node, seat in self.seats.items()},
        }
        write(self.folder / "nodes.json", json.dumps(saved, indent=1).encode())

    def _resume(self) -> None:
        """From the last complete round, and the records up to it."""
        if self._checkpoint.is_file():
            self.state = self._first_state(checkpoint.peek(self._checkpoint)["present"])
            checkpoint.load_state(self.state, self._checkpoint)
        path = self.folder / "rounds.jsonl"
        found: dict[int, dict[str, Any]] = {}
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
            try:
                record = json.loads(line)
                found[int(record["round"])] = record
            except (ValueError, KeyError, TypeError):  # cut off by a crash
                continue
        self.records = [record for number, record in sorted(found.items()) if number <= self.round]
        text = "".join(json.dumps(record) + "\n" for record in self.records)
        write(path, text.encode())
        if self.done:
            self._write_model()

    def _write_model(self) -> None:
        """The network alone, as the simulator's runs leave it."""
        assert self.state is not None
        checkpoint.save_model(self.problem, self.state.theta_P, self.folder / "model.safetensors")


def absorb_answers(problem: Problem, state: State, answers: Sequence[Answer]) -> None:
    """The server's half of a round, in the order of the clients."""
    recipe, number = problem.recipe, state.round
    lr, server_lr = (
        torch.tensor(rate(part, number, recipe.run.rounds), dtype=torch.float64)
        for part in (recipe.local, recipe.server)
    )
    take_answers(problem, state, sorted(answers, key=lambda answer: answer.client), lr, server_lr, number)
