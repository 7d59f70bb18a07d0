"""The server of split rounds (FDML) on real devices: it keeps the enclave, the network and the clock's deadlines.

It neither sleeps nor sends. A loop around it calls `step` and pushes what that gives, pulls what has arrived into
`answer`, and says the time each time. Embeddings, derivatives and gradients pass through it sealed. Where the
enclave's process ends, the round is given up and devices attest the next one. After a crash of the server it goes on
from the last complete round; the round that was open is given up, for its enclave is gone.
"""

from __future__ import annotations

import contextlib
import json
import math
import secrets
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from selfsame.config.recipe import Recipe, to_toml
from selfsame.data import Federation
from selfsame.deploy.agreement import write_samples
from selfsame.deploy.codec import Message, Spec, decode, encode, glance
from selfsame.deploy.codec import Refused as Untaken
from selfsame.deploy.schedule import Conditions, Phase, Registry, Round, Terms, Verdict
from selfsame.deploy.server import Ask
from selfsame.deploy.split.agreement import (
    REASONS,
    REFUSED,
    REGISTERED,
    Refused,
    SplitAgreement,
    boxed,
    derived,
    embedded,
    from_hex,
    unboxed,
)
from selfsame.deploy.split.controller import Controller, EnclaveEnded
from selfsame.enclave import seal
from selfsame.enclave.mandate import Plan
from selfsame.engine import checkpoint, optimisers
from selfsame.engine.joint import privacy_spent
from selfsame.engine.plan import rate
from selfsame.engine.problem import Problem
from selfsame.engine.setup import prepare
from selfsame.engine.state import begin
from selfsame.errors import SelfsameError
from selfsame.files import write
from selfsame.privacy.accountant import PrivacySpent

_FORMAT = "selfsame-split-server-1"
_SLOWEST = 5  # a silent node is called again after 1, 2, 4, .. 2^5 waits
_STRAY = ("run", "round", "not asked", "not needed", "late")  # an answer may still come from who sent this
_NEVER = -math.inf
_ROUNDS = "rounds.jsonl"


@dataclass
class _Member:
    """A node: what it was asked for beside rounds, and its session with the present enclave."""

    client: int = -1
    session: int = 0
    welcome: bytes = b""  # to be sent with the network, until the device has answered to it
    valid: float = _NEVER  # its registration and its session
    asked: str = ""  # "terms" or "quote"
    until: float = _NEVER  # it is not called again before
    silent: int = 0


class SplitServer:
    """A run in a folder, begun or gone on with.

    `terms` are Algorithm 3's numbers. `federation` says what samples look like and how many devices there can be;
    without it the recipe's data set is loaded. `transport`: "half" sends the network down in half precision. `seeded`:
    batches come from the recipe's seed, as in the simulator, and nodes take the places they name: for trying things
    out and for tests. `enclave` starts the enclave of a plan.
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
        enclave: Callable[[Plan], Controller] | None = None,
    ) -> None:
        self.folder, self.terms = folder, terms
        self.problem: Problem = prepare(recipe, federation)
        size, most = self.problem.recipe.cohort.size, self.problem.world.clients
        if terms.required > most or (size and terms.required != size):
            raise SelfsameError(f"cohort.size: {size or most}, while the schedule requires {terms.required} devices")
        saved = self._saved()
        self.run: str = saved["run"] if saved else secrets.token_hex(16)
        self.agreement = SplitAgreement.of(self.problem, terms, self.run, seeded, transport)
        if saved and saved["plan"] != self.agreement.digest:
            raise SelfsameError(f"{folder}: was begun with another recipe, data or schedule; name another folder")
        self.plan = self.agreement.plan(self.problem)
        self._start = enclave or (lambda plan: Controller(plan, limit=terms.answer_wait))
        self._enclave: Controller | None = None
        self.registry = Registry(terms.registration)
        self.counts: Counter[str] = Counter(saved["counts"] if saved else {})
        self.records: list[dict[str, Any]] = []
        self._member = {node: _Member(client) for node, client in saved["nodes"].items()} if saved else {}
        self._nodes: list[str] = []
        self._queue: list[Ask] = []
        self._round: Round | None = None
        self._silent: set[str] = set()  # let a deadline of the open round pass
        self._begun = 0.0
        self._opened = -1
        self.state = begin(self.problem)
        if saved:
            self._resume(saved)
        else:
            folder.mkdir(parents=True, exist_ok=True)
            write(folder / "recipe.toml", to_toml(self.problem.recipe).encode())
            write_samples(folder, self.problem.federation, self.agreement.raw)
            self._save()

    def __enter__(self) -> SplitServer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the enclave."""
        if self._enclave is not None:
            self._enclave.close()
            self._enclave = None

    # What the loop around it sees

    @property
    def round(self) -> int:
        """Rounds that are over, those that were given up among them."""
        return self.state.round

    @property
    def done(self) -> bool:
        return self.round >= self.problem.recipe.run.rounds

    @property
    def waiting_until(self) -> float:
        """When `step` has something to do at the latest, whatever arrives."""
        if self._queue:
            return _NEVER
        times = [self._member[node].until for node in self._nodes if not self._in_round(node)]
        if self._round is not None:
            times.append(self._round.waiting_until)
        return min(times, default=math.inf)

    @property
    def privacy(self) -> PrivacySpent | None:
        """What the device that took part most often has spent."""
        spent = privacy_spent(self.problem, self.state)
        return None if spent is None else replace(spent, simulated=False)

    def table(self) -> list[dict[str, Any]]:
        """A record a round: whether it was complete, whose embeddings and gradients counted, and its seconds."""
        return list(self.records)

    def begin(self, nodes: Sequence[str], now: float) -> None:
        """The nodes that can be reached now; to be called again whenever that changes."""
        for node in self._nodes:
            if node not in nodes:
                self._failed(node, "lost", now)
        for node in nodes:
            member = self._member.setdefault(node, _Member())
            if node not in self._nodes:  # it is new, or back
                member.asked, member.until, member.silent = "", _NEVER, 0
        self._nodes = list(nodes)

    def step(self, now: float) -> list[Ask]:
        """Messages to push now."""
        if self.done:
            return []
        asks: list[Ask] = []
        try:
            if self._enclave is not None and not self._enclave.alive:
                raise EnclaveEnded("enclave: its process has ended")
            if self._enclave is None:
                self._enclave = self._start(self.plan)
            if self._round is not None:
                asks += self._settle(now)
            if not self.done:
                asks += self._call(now)
                if self._round is None and not self._registering(now):
                    asks += self._open(now)
        except EnclaveEnded:
            self._enclave_ended(now)
            return []
        queued, self._queue = self._queue, []
        return queued + asks

    def answer(self, node: str, payload: bytes, now: float) -> str | None:
        """Take what a node has sent; None, or why not. What is refused is counted and changes nothing else."""
        try:
            self._take(node, payload, now)
        except Untaken as refusal:
            self.counts[refusal.reason] += 1
            if refusal.reason not in _STRAY:
                self._failed(node, refusal.reason, now)
            return refusal.reason
        except EnclaveEnded:
            self._enclave_ended(now)
            return "session"
        return None

    def lost(self, node: str, now: float) -> None:
        """The transport says that nothing more will come of what this node was asked."""
        if self._expected(node):
            self.counts["lost"] += 1
            self._failed(node, "lost", now)

    # Registration, Step 1

    def _call(self, now: float) -> list[Ask]:
        """Ask for registration who is not registered, and those in good time whose registration will run out."""
        asks = []
        for node in self._nodes:
            member = self._member[node]
            if self._in_round(node):
                continue
            if member.session and now >= member.valid:
                self._forget(node)
            if now < member.until:
                continue
            if member.asked:
                member.silent = min(member.silent + 1, _SLOWEST)
            self._wait(member, "terms", now)
            asks.append(self._ask(node, "register", b""))
        return asks

    def _wait(self, member: _Member, what: str, now: float) -> None:
        member.asked, member.until = what, now + self.terms.answer_wait * 2**member.silent

    def _ask(self, node: str, kind: str, attested: bytes) -> Ask:
        meta = {"run": self.run, "agreement": self.agreement.to_json(), "attested": attested.hex()}
        return Ask(node, encode("register", self.round, meta, {}), f"{self.run}-{kind}-{secrets.token_hex(4)}")

    def _registered(self, node: str, payload: bytes, now: float) -> None:
        """The device's word: first its nonce, for which the enclave makes a quote; then its hello."""
        member = self._member.get(node)
        if member is None or not member.asked:
            raise Refused("not asked")
        message = decode(payload, expected=Spec("registered", self.run, meta=REGISTERED))
        if bool(message.meta["hello"]) != (member.asked == "quote"):
            raise Refused("not asked")  # it answers an earlier question
        try:
            conditions = Conditions.read(message.meta["conditions"])
        except SelfsameError:
            raise Refused("meta") from None
        if message.meta["samples"] < 1:
            raise Refused("samples")
        self._seat(member, message.meta["place"])
        assert self._enclave is not None
        try:
            if member.asked == "terms" and not member.session:
                attested = self._enclave.attest(from_hex(message.meta["nonce"]))
                self._wait(member, "quote", now)
                self._queue.append(self._ask(node, "quote", attested))
                return
            if member.asked == "quote":
                member.welcome = self._enclave.hello(from_hex(message.meta["hello"]))
                member.session = int.from_bytes(member.welcome[:8], "little")
        except EnclaveEnded:
            raise
        except SelfsameError:
            raise Refused("session") from None
        self.registry.register(node, now, conditions, rank=member.client)
        member.valid = now + self.terms.registration
        if conditions.ready:
            member.asked, member.silent, member.until = "", 0, now + self.terms.registration / 2
        else:
            self._later(member, now)

    def _seat(self, member: _Member, place: int) -> None:
        """A client number for good: the one that the device names, where that is asked for and free, or the lowest."""
        if member.client >= 0:
            return
        used = {one.client for one in self._member.values()}
        free = [client for client in range(self.agreement.clients) if client not in used]
        if not free:
            raise Refused("full")
        member.client = place if self.agreement.seeded and place in free else free[0]
        self._save()

    def _registering(self, now: float) -> bool:
        """Whether somebody who has just come is about to register: a round may wait for that, once."""
        here = [self._member[node] for node in self._nodes if node not in self.registry]
        return any(member.asked and now < member.until and not member.silent for member in here)

    def _forget(self, node: str) -> None:
        """Its registration has run out, or its session is of no use: it has to attest anew."""
        member = self._member[node]
        self.registry.forget(node)
        if member.session and self._enclave is not None:
            with contextlib.suppress(SelfsameError):  # it may have ended meanwhile, which the next step finds out
                self._enclave.forget(member.session)
        member.session, member.welcome, member.valid, member.until = 0, b"", _NEVER, _NEVER

    # Rounds, Steps 2 to 9

    def _open(self, now: float) -> list[Ask]:
        """Begin a round where enough devices can be asked."""
        if len(self.registry.eligible(now)) < self.terms.required:
            return []
        assert self._enclave is not None
        number = self.round
        self._opened, self._begun = number, now
        self._save()  # before a device hears of it: its number is used up whatever happens
        self._enclave.begin(number + 1)
        self._round = Round(self.terms, self.registry, self.problem.recipe.run.seed, number)
        return self._embeddings(self._round.open_embeddings(now))

    def _settle(self, now: float) -> list[Ask]:
        """What the open round asks for now; where it is over, the network's step."""
        round = self._round
        asks: list[Ask] = []
        assert round is not None and self._enclave is not None
        while True:
            verdict = round.embeddings_verdict(now) if round.answers is None else round.answers_verdict(now)
            try:
                if verdict is Verdict.WAIT:
                    return asks
                if verdict is Verdict.GIVE_UP:
                    self._end(now, complete=False)
                    return []
                if verdict is Verdict.AGAIN:
                    self._note_silent(round.embeddings, now)
                    asks += self._embeddings(round.open_embeddings(now))
                elif round.answers is None:
                    asks = self._derivatives(round, now)
                else:
                    self._update(round, torch.from_numpy(self._enclave.aggregate(round.number + 1)))
                    self._end(now, complete=True)
                    return []
            except EnclaveEnded:
                raise
            except SelfsameError:  # the enclave has refused: there is nothing that the round could go on with
                self.counts["enclave refused"] += 1
                self._end(now, complete=False)
                return []

    def _embeddings(self, nodes: Sequence[str]) -> list[Ask]:
        """Step 2."""
        assert self._round is not None
        number, asks = self._round.number, []
        for node in nodes:
            member = self._member[node]
            meta = {"run": self.run, "plan": self.agreement.digest, "client": member.client}
            meta |= {"session": member.session, "welcome": member.welcome.hex()}
            half = frozenset({"network"} if self.agreement.transport == "half" else ())
            payload = encode("embed", number, meta, {"network": self.state.theta_P}, half)
            asks.append(Ask(node, payload, f"{self.run}-{number}-embed-{node}-{self._round.attempt}"))
        return asks

    def _derivatives(self, round: Round, now: float) -> list[Ask]:
        """Steps 5 and 6. What is sent now counts against the budgets, whatever comes back."""
        assert round.embeddings is not None and self._enclave is not None
        sent = self._enclave.derive(round.number + 1)
        node_of = {self._member[node].session: node for node in round.embeddings.answered}
        taken_N = self.state.server["taken"]
        for node in node_of.values():
            taken_N[self._member[node].client] += 1
        self._save()
        self._mark_spent()
        nodes = round.open_answers(now, [node_of[session] for session in sorted(sent) if session in node_of])
        asks = []
        for node in nodes:
            meta, fields = boxed(sent[self._member[node].session])
            meta |= {"run": self.run, "plan": self.agreement.digest}
            payload = encode("derive", round.number, meta, fields)
            asks.append(Ask(node, payload, f"{self.run}-{round.number}-derive-{node}"))
        return asks

    def _update(self, round: Round, sum_P: Tensor) -> None:
        """Step 9."""
        recipe, state = self.problem.recipe, self.state
        lr, server_lr = (
            torch.tensor(rate(part, round.number, recipe.run.rounds), dtype=torch.float64)
            for part in (recipe.local, recipe.server)
        )
        delta_P = lr * sum_P.to(state.theta_P)
        optimisers.step(recipe.server, state.optim, state.theta_P, delta_P, lr, server_lr)

    def _end(self, now: float, complete: bool) -> None:
        """The round is over; what it did is on the disk before the next one begins."""
        round = self._round
        assert round is not None
        self._note_silent(round.answers or round.embeddings, now)
        round.close()
        self._round = None
        self._drop_silent()
        self.counts["complete" if complete else "given up"] += 1
        self.state.round = round.number + 1
        self._record(round, complete, now - self._begun)
        checkpoint.save_state(self.state, self._checkpoint)
        self._save()
        if self.done:
            self._write_model()

    def _note_silent(self, phase: Phase | None, now: float) -> None:
        if phase is not None and phase.expired(now):
            self._silent |= set(phase.waiting())

    def _drop_silent(self) -> None:
        """Who let a deadline pass has to register again, which no round waits for: a dead device delays one round."""
        for node in self._silent:
            self.counts["silent"] += 1
            self.registry.forget(node)
            member = self._member[node]
            member.asked, member.until, member.silent = "", _NEVER, max(member.silent, 1)
        self._silent.clear()

    def _record(self, round: Round, complete: bool, seconds: float) -> None:
        """A line in rounds.jsonl; written before the checkpoint, and dropped again where that was never written."""
        assert round.embeddings is not None
        used = round.answers.answered if round.answers and complete else []
        record = {
            "round": self.round,
            "complete": complete,
            "asked": len(round.embeddings.asked),
            "taken": len(used),
            "embedded": sorted(self._member[node].client for node in round.embeddings.answered),
            "answered": sorted(self._member[node].client for node in used),
            "selections": round.attempt + 1,
            "seconds": seconds,
        }
        self.records.append(record)
        with open(self.folder / _ROUNDS, "a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    # What arrives

    def _take(self, node: str, payload: bytes, now: float) -> None:
        specs = {"embed": embedded(self.plan), "derive": derived(self.plan)}
        kind, number, _ = glance(payload, max(spec.most_bytes for spec in (*specs.values(), REFUSED)))
        if kind == "refused":
            return self._refused_by(node, payload, now)
        if kind == "registered":
            return self._registered(node, payload, now)
        if kind not in specs:
            raise Refused("kind")
        round = self._round
        if round is None or number != round.number:
            raise Refused("round")
        phase = round.embeddings if kind == "embed" else round.answers
        if phase is None or node not in phase.asked:
            raise Refused("not asked")
        if not phase.wants(node, now) or (kind == "embed" and round.answers is not None):
            raise Refused("late" if now > phase.deadline else "not needed")
        spec = specs[kind]
        message = decode(payload, expected=Spec(kind, self.run, number, spec.meta, spec.fields))
        self._relay(node, message, phase, now)

    def _relay(self, node: str, message: Message, phase: Phase, now: float) -> None:
        """Hand what is sealed to the enclave, which alone can read it."""
        member, content = self._member[node], unboxed(message)
        assert self._enclave is not None
        if len(content) < seal.OVERHEAD or seal.addressed(content)[1] != member.session:
            raise Refused("session")
        why = self._enclave.submit(content)
        if why is not None:
            raise Refused({"replayed": "stale"}.get(why, why if why in REASONS else "failed"))
        phase.take(node, now)
        self._silent.discard(node)
        member.welcome = b""

    def _refused_by(self, node: str, payload: bytes, now: float) -> None:
        """A device has refused what it was asked."""
        if not self._expected(node):
            raise Refused("not asked")
        reason = decode(payload, expected=REFUSED).meta["reason"]
        if reason not in REASONS:
            raise Refused("meta")
        self.counts[f"device: {reason}"] += 1
        self._failed(node, reason, now)

    def _failed(self, node: str, reason: str, now: float) -> None:
        """Nothing is to be expected of this node for now."""
        member = self._member.get(node)
        if member is None:
            return
        for phase in (self._round.embeddings, self._round.answers) if self._round else ():
            if phase is not None:
                phase.lose(node)
        if reason == "spent":
            self.registry.spent.add(node)
        if reason in ("session", "seal", "quote") and not self._in_answers(node):
            self._forget(node)
        elif reason in ("lost", "not ready", "plan", "samples"):
            self.registry.forget(node)
        self._later(member, now)

    def _later(self, member: _Member, now: float) -> None:
        """Call it again, each time later."""
        self._wait(member, "", now)
        member.silent = min(member.silent + 1, _SLOWEST)

    def _enclave_ended(self, now: float) -> None:
        """Its keys are gone: the round is given up, and everybody attests the next one."""
        self.counts["enclave ended"] += 1
        self.close()
        self._queue.clear()
        for node, member in self._member.items():
            self.registry.forget(node)
            member.session, member.welcome, member.valid = 0, b"", _NEVER
            member.asked, member.until, member.silent = "", _NEVER, 0
        if self._round is not None:
            self._end(now, complete=False)

    def _expected(self, node: str) -> bool:
        """Whether an answer of this node is waited for."""
        phase = None if self._round is None else self._round.answers or self._round.embeddings
        asked = node in self._member and bool(self._member[node].asked)
        return asked or (phase is not None and node in phase.waiting())

    def _in_round(self, node: str) -> bool:
        """Whether the open round may still hear of this node."""
        phase = None if self._round is None else self._round.answers or self._round.embeddings
        return phase is not None and node in phase.asked and node not in phase.gone

    def _in_answers(self, node: str) -> bool:
        return self._round is not None and self._round.answers is not None and node in self._round.answers.asked

    # The folder

    @property
    def _checkpoint(self) -> Path:
        return self.folder / "checkpoint" / "state.safetensors"

    def _saved(self) -> dict[str, Any] | None:
        path = self.folder / "server.json"
        try:
            saved = json.loads(path.read_text(encoding="utf-8"))
            if saved["format"] != _FORMAT:
                raise ValueError("another format")
            return dict(saved)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
            raise SelfsameError(f"{path}: damaged, or not of this version ({error})") from None

    def _save(self) -> None:
        """The small things, several times a round; the network's turn is at the round's end."""
        whole = {
            "format": _FORMAT,
            "run": self.run,
            "plan": self.agreement.digest,
            "nodes": {node: member.client for node, member in self._member.items() if member.client >= 0},
            "opened": self._opened,
            "counts": dict(self.counts),
            "taken": self.state.server["taken"].tolist(),
        }
        write(self.folder / "server.json", json.dumps(whole).encode())

    def _resume(self, saved: dict[str, Any]) -> None:
        if self._checkpoint.is_file():
            checkpoint.load_state(self.state, self._checkpoint)
        self._opened = saved["opened"]
        taken_N = self.state.server["taken"]
        taken_N.copy_(torch.maximum(taken_N, torch.tensor(saved["taken"], dtype=taken_N.dtype)))
        if self._opened >= self.state.round:  # the round that was open when the server stopped
            self.counts["given up"] += 1
            self.state.round = self._opened + 1
        self._mark_spent()
        found: dict[int, dict[str, Any]] = {}
        path = self.folder / _ROUNDS
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
            with contextlib.suppress(ValueError, KeyError, TypeError):  # cut off by a crash
                record = json.loads(line)
                found[int(record["round"])] = record
        complete = checkpoint.peek(self._checkpoint)["round"] if self._checkpoint.is_file() else 0
        self.records = [record for number, record in sorted(found.items()) if number <= complete]
        text = "".join(json.dumps(record) + "\n" for record in self.records)
        write(path, text.encode())

    def _write_model(self) -> None:
        """The network alone, as the simulator's runs leave it."""
        checkpoint.save_model(self.problem, self.state.theta_P, self.folder / "model.safetensors")

    def _mark_spent(self) -> None:
        """Whose privacy budget is spent is not selected again."""
        most, taken_N = self.problem.recipe.split.most, self.state.server["taken"]
        for node, member in self._member.items():
            if most and member.client >= 0 and int(taken_N[member.client]) >= most:
                self.registry.spent.add(node)
