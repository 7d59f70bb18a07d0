"""The server of split rounds (FDML) on real devices: two phases a round, and an enclave that alone reads what is sent.

Embeddings, derivatives and gradients pass through it sealed. Where the enclave's process ends, the round is given up
and devices attest the next one; so is the round that was open when the server itself stopped, for its enclave is gone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from selfsame.config.recipe import Recipe
from selfsame.deploy.codec import REASONS, Message, Refused, as_tensor, encode
from selfsame.deploy.folder import Saved
from selfsame.deploy.host import NEVER, Ask, Call, Host, rates
from selfsame.deploy.process import EnclaveEnded
from selfsame.deploy.received import as_received, theta_digest
from selfsame.deploy.schedule import Decision, Phase, Round, Terms
from selfsame.deploy.split.agreement import REGISTERED, SplitAgreement, derived, embedded, from_hex
from selfsame.deploy.split.controller import Controller
from selfsame.enclave import seal
from selfsame.enclave.mandate import Mandate
from selfsame.engine import optimisers
from selfsame.engine.state import State, begin
from selfsame.errors import SelfsameError


@dataclass
class Session:
    """A node's session with the present enclave; number 0: it has none."""

    number: int = 0
    welcome: bytes = b""  # to be sent with the network, until the device has answered to it
    valid: float = NEVER


class SplitServer(Host[SplitAgreement]):
    """As `Host`; `transport`: "half" sends the network down in half precision. `enclave` starts that of a mandate."""

    KINDS = ("embed", "derive")
    state: State

    def __init__(
        self,
        folder: Path,
        recipe: Recipe,
        terms: Terms,
        *,
        enclave: Callable[[Mandate], Controller] | None = None,
        **rest: Any,
    ) -> None:
        super().__init__(folder, recipe, terms, **rest)
        self.mandate = self.agreement.mandate(self.problem)
        self._start = enclave or (lambda mandate: Controller(mandate, limit=terms.answer_wait))
        self._enclave: Controller | None = None
        self._forms = {"embed": embedded(self.mandate), "derive": derived(self.mandate)}
        self._sessions: dict[str, Session] = {}
        self._queue: list[Ask] = []
        self._silent: set[str] = set()  # let a deadline of the open round pass
        self.state = begin(self.problem)
        self.state.enclave = {}  # which keeps its tables itself
        self._enter()

    def _agree(self, transport: str, seeded: bool) -> SplitAgreement:
        size, most = self.problem.recipe.cohort.size, self.problem.world.clients
        required = self.terms.required
        if required > most or (size and required != size):
            raise SelfsameError(f"cohort.size: {size or most}, while the schedule requires {required} devices")
        return SplitAgreement.of(self.problem, self.terms, self.run, seeded, transport)

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
    def waiting_until(self) -> float:
        return NEVER if self._queue else super().waiting_until

    def _step(self, now: float) -> list[Ask]:
        asks: list[Ask] = []
        try:
            if self._enclave is not None and not self._enclave.alive:
                raise EnclaveEnded("enclave: its process has ended")
            if self._enclave is None:
                self._enclave = self._start(self.mandate)
            if self._round is not None:
                asks += self._settle(now)
            if not self.done:
                self._end_sessions(now)
                asks += self._call(now)
                if self._round is None and not self._registering(now):
                    asks += self._open(now)
        except EnclaveEnded:
            self._enclave_ended(now)
            return []
        queued, self._queue = self._queue, []
        return queued + asks

    def answer(self, node: str, payload: bytes, now: float) -> str | None:
        try:
            return super().answer(node, payload, now)
        except EnclaveEnded:
            self._enclave_ended(now)
            return "session"

    # Registration, Step 1

    def _invite(self, node: str, attested: bytes = b"", **more: Any) -> Ask:
        return super()._invite(node, attested=attested.hex(), **more)

    def _to_call(self, node: str) -> bool:
        """Those too whose registration has run out; but nobody whom the open round may still hear."""
        phase = self._round.phase if self._round else None
        return phase is None or node not in phase.asked or node in phase.gone

    def _call(self, now: float) -> list[Ask]:
        """Whoever registers attests anew: its old session ends, and nothing is asked of it before it has another."""
        asks = super()._call(now)
        for ask in asks:
            self._end_session(ask.node)
        return asks

    def _registered(self, node: str, payload: bytes, now: float) -> str:
        """The device's word: first its nonce, for which the enclave makes a quote; then its hello."""
        call, message, conditions = self._heard(node, payload, REGISTERED)
        asked, wait = call.asked, self.terms.answer_wait
        if bool(message.meta["hello"]) != (asked == "quote"):
            raise Refused("not asked")  # it answers an earlier question
        seat, session = self._seat(node, message), self._session(node)
        assert self._enclave is not None
        try:
            if asked == "terms":
                attested = self._enclave.attest(from_hex(message.meta["nonce"]))
                call.asked = ""
                call.ask("quote", now, wait)
                self._queue.append(self._invite(node, attested))
                return ""
            session.welcome = self._enclave.hello(from_hex(message.meta["hello"]))
            session.number = int.from_bytes(session.welcome[:8], "little")
        except EnclaveEnded:
            raise
        except SelfsameError:
            raise Refused("session") from None
        self.registry.register(node, now, seat.client, conditions)
        session.valid = now + self.terms.registration
        if conditions.ready:
            call.asked, call.silent, call.again = "", 0, session.valid
        else:
            call.later(now, wait)
        return ""

    def _registering(self, now: float) -> bool:
        """Whether somebody who has just come is about to register: a round may wait for that, once."""
        return any(self._calls[node].awaited(now) for node in self._nodes if node not in self.registry)

    def _session(self, node: str) -> Session:
        return self._sessions.setdefault(node, Session())

    def _end_sessions(self, now: float) -> None:
        """A session ends with its registration."""
        for node in self._nodes:
            if self._session(node).number and now >= self._session(node).valid and self._to_call(node):
                self._forget(node)

    def _forget(self, node: str) -> None:
        """Its registration has run out, or its session is of no use: it has to attest anew, at once."""
        self._end_session(node)
        self._calls[node].again = NEVER

    def _end_session(self, node: str) -> None:
        session = self._sessions.pop(node, Session())
        self.registry.forget(node)
        if session.number and self._enclave is not None:
            with contextlib.suppress(SelfsameError):  # it may have ended meanwhile, which the next step finds out
                self._enclave.forget(session.number)

    # Rounds, Steps 2 to 9

    def _open(self, now: float) -> list[Ask]:
        """Begin a round where enough devices can be asked."""
        if len(self.registry.eligible(now)) < self.terms.required:
            return []
        assert self._enclave is not None
        round = self._begin_round(now)
        half = self.agreement.transport == "half"
        self._enclave.begin(round.number + 1, theta_digest(as_received(self.state.theta_P, half)))
        return self._embeddings(round, round.open_embeddings(now))

    def _settle(self, now: float) -> list[Ask]:
        """What the open round asks for now; where it is over, the network's step."""
        round = self._round
        asks: list[Ask] = []
        assert round is not None and self._enclave is not None
        while True:
            decision = round.embeddings_decision(now) if round.answers is None else round.answers_decision(now)
            try:
                if decision is Decision.WAIT:
                    return asks
                if decision is Decision.GIVE_UP:
                    self._end(round, now, complete=False)
                    return []
                if decision is Decision.AGAIN:
                    self._note_silent(round.embeddings, now)
                    asks += self._embeddings(round, round.open_embeddings(now))
                elif round.answers is None:
                    asks = self._derivatives(round, now)
                else:
                    self._update(torch.from_numpy(self._enclave.aggregate(round.number + 1)))
                    self._end(round, now, complete=True)
                    return []
            except EnclaveEnded:
                raise
            except SelfsameError:  # the enclave has refused: there is nothing that the round could go on with
                self.counts["enclave refused"] += 1
                self._end(round, now, complete=False)
                return []

    def _embeddings(self, round: Round, nodes: Sequence[str]) -> list[Ask]:
        """Step 2."""
        half = frozenset({"network"} if self.agreement.transport == "half" else ())
        asks = []
        for node in nodes:
            session = self._session(node)
            meta = {"run": self.run, "plan": self.agreement.digest, "client": self.seats[node].client}
            meta |= {"session": session.number, "welcome": session.welcome.hex()}
            payload = encode("embed", round.number, meta, {"network": self.state.theta_P}, half)
            asks.append(self._ask(node, "embed", payload, round.number, round.attempt))
        return asks

    def _derivatives(self, round: Round, now: float) -> list[Ask]:
        """Steps 5 and 6. What is sent now counts against the budgets, whatever comes back."""
        assert round.embeddings is not None and self._enclave is not None
        sent = self._enclave.derive(round.number + 1)
        node_of = {self._session(node).number: node for node in round.embeddings.answered}
        for node in node_of.values():
            self._used_N[self.seats[node].client] += 1
        self._save()
        self._mark_spent()
        asks, meta = [], {"run": self.run, "plan": self.agreement.digest}
        for node in round.open_answers(now, [node_of[session] for session in sorted(sent) if session in node_of]):
            sealed = as_tensor(sent[self._session(node).number])
            payload = encode("derive", round.number, meta, {"sealed": sealed})
            asks.append(self._ask(node, "derive", payload, round.number))
        return asks

    def _update(self, sum_P: Tensor) -> None:
        """Step 9."""
        state, recipe = self.state, self.problem.recipe
        lr, server_lr = rates(recipe, self.round)
        optimisers.step(recipe.server, state.optim, state.theta_P, lr * sum_P.to(state.theta_P), lr, server_lr)

    def _end(self, round: Round, now: float, complete: bool) -> None:
        assert round.embeddings is not None
        self._note_silent(round.phase, now)
        round.close()
        self._drop_silent()
        self.counts["complete" if complete else "given up"] += 1
        used = round.answers.answered if round.answers and complete else []
        told = {
            "complete": complete,
            "embedded": sorted(self.seats[node].client for node in round.embeddings.answered),
            "answered": sorted(self.seats[node].client for node in used),
            "selections": round.attempt + 1,
        }
        self._end_round(now, len(round.embeddings.asked), len(used), **told)

    def _note_silent(self, phase: Phase | None, now: float) -> None:
        if phase is not None and phase.expired(now):
            self._silent |= set(phase.waiting())

    def _drop_silent(self) -> None:
        """Who let a deadline pass has to register again, which no round waits for: a dead device delays one round."""
        for node in self._silent:
            self.counts["silent"] += 1
            self.registry.forget(node)
            self._calls[node] = Call(silent=max(self._calls[node].silent, 1))
        self._silent.clear()

    # What arrives

    def _taken(self, node: str, message: Message, phase: Phase, now: float) -> str:
        """Hand what is sealed to the enclave, which alone can read it."""
        session, content = self._session(node), bytes(message.fields["sealed"].numpy())
        assert self._enclave is not None
        if len(content) < seal.OVERHEAD or seal.addressed(content)[1] != session.number:
            raise Refused("session")
        why = self._enclave.submit(content)
        if why is not None:
            # A device that counts from an earlier number was put back to an earlier state: it attests anew.
            raise Refused({"replayed": "session"}.get(why, why if why in REASONS else "failed"))
        phase.take(node, now)
        self._silent.discard(node)
        session.welcome = b""
        return ""

    def _failed(self, node: str, reason: str, now: float, told: bool = False) -> None:
        call, round = self._calls.get(node), self._round
        if call is None:
            return
        for phase in (round.embeddings, round.answers) if round else ():
            if phase is not None:
                phase.lose(node)
        answering = round is not None and round.answers is not None and node in round.answers.asked
        if reason == "spent":
            self.registry.spent.add(node)
        if reason in ("session", "seal", "quote") and not answering:
            self._forget(node)
        elif reason in ("lost", "not ready", "plan", "samples"):
            self.registry.forget(node)
        call.later(now, self.terms.answer_wait)

    def _enclave_ended(self, now: float) -> None:
        """Its keys are gone: the round is given up, and everybody attests the next one."""
        self.counts["enclave ended"] += 1
        self.close()
        self._queue.clear()
        self._sessions.clear()
        for node in self._calls:
            self.registry.forget(node)
            self._calls[node] = Call()
        if self._round is not None:
            self._end(self._round, now, complete=False)

    # The folder

    def _blank(self, present: int) -> State:
        return self.state

    def _go_on(self, saved: Saved) -> None:
        """What was spent stays spent, and the round that was open is given up."""
        self._used_N.copy_(torch.maximum(self._used_N, torch.tensor(saved.taken or 0, dtype=torch.int64)))
        if self._opened >= self.round:
            self.counts["given up"] += 1
            self.state.round = self._opened + 1
        self._mark_spent()

    def _mark_spent(self) -> None:
        """Whose privacy budget is spent is not selected again."""
        most = self.problem.recipe.split.most
        for node, seat in self.seats.items():
            if most and int(self._used_N[seat.client]) >= most:
                self.registry.spent.add(node)

    @property
    def _used_N(self) -> Tensor:
        """In how many rounds each client's embeddings were used."""
        used_N = self.problem.method.rounds_used(self.state.server)
        assert used_N is not None
        return used_N
