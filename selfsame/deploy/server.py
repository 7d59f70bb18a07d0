"""The server of a run whose devices train alone: one phase a round, and tables that grow with the devices.

Where the method has polls, one comes before the rounds in which it is due: a phase of its own, with sums of its own.

After a crash the requests of the round that was open are written again, byte for byte, and devices that have answered
them answer the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from selfsame.config.recipe import Recipe
from selfsame.deploy.aggregation.base import NETWORK, Clear, Outcome, Totals
from selfsame.deploy.aggregation.groups import Group, divided, joined, whose_turn
from selfsame.deploy.aggregation.sum_terms import HelperTerms, SumTerms
from selfsame.deploy.agreement import Agreement
from selfsame.deploy.codec import Field, Json, Message, Refused, Spec, encode, hold
from selfsame.deploy.device import ANSWERED, REGISTERED
from selfsame.deploy.folder import Seat
from selfsame.deploy.host import Ask, Call, Host, rates
from selfsame.deploy.schedule import Decision, Phase, Terms
from selfsame.engine import checkpoint, optimisers
from selfsame.engine.reference import Reported, take_mean
from selfsame.engine.state import State, cast
from selfsame.errors import SelfsameError
from selfsame.methods.base import Cohort, Fields, World

if TYPE_CHECKING:
    from selfsame.deploy.aggregation.enclave import Keeper

_GONE = 10  # rounds of its group in a row that a device has missed before it no longer counts as a member


@dataclass
class Tally:
    """One kind of sum: its terms, how it is added up, and who of a group has missed how many in a row."""

    terms: SumTerms
    totals: Totals
    polled: bool = False
    missed: dict[str, int] = field(default_factory=dict)


class Server(Host[Agreement]):
    """As `Host`; the tables and the network are made when the first devices are there.

    `helpers` take the masks off, where the recipe has updates masked. `enclave` keeps the one that adds up.
    """

    KINDS = ("polled", "trained")

    def __init__(
        self,
        folder: Path,
        recipe: Recipe,
        terms: Terms,
        *,
        helpers: Sequence[HelperTerms] = (),
        enclave: Callable[[Agreement], Keeper] | None = None,
        **rest: Any,
    ) -> None:
        self._helpers = tuple(helpers)
        self._tallies: list[Tally] = []  # of updates and of polls; made with the first round, when the tables are there
        self._tally: Tally | None = None  # of the phase that is open, or was last
        super().__init__(folder, recipe, terms, **rest)
        self._keeper: Keeper | None = None
        if self.agreement.sums.attested:
            if enclave is None:
                raise SelfsameError("sums.aggregation: no enclave is there; name its devices' keys, or another way")
            self._keeper = enclave(self.agreement)
        self._new: list[str] = []  # registered, but the tables have no rows for them yet
        self._reports: dict[str, Reported] = {}  # of the open round
        self._group: Group = ()  # whose round it is, where sums are over groups
        self._closed: tuple[int, int] | None = None  # asked and silent of a round whose sum is not yet known
        self._there: list[str] = []  # helpers that can be reached
        self._to_poll: list[Group] = []  # groups that the poll has yet to ask
        self._sum_V: Tensor | None = None  # of those that it has asked
        self._counted_in = 0
        self._enter()

    def _agree(self, transport: str, seeded: bool) -> Agreement:
        sums = SumTerms.of(self.problem, self.terms.required, self._helpers)
        return Agreement.of(self.problem, self.run, transport, seeded, sums)

    def _tally_of(self, polled: bool) -> Tally:
        """How this run's updates, or its polls, are added up."""
        agreement, half = self.agreement, self.agreement.transport == "half"
        sums, model = agreement.polls[0] if polled else agreement.sums, self.problem.model
        folder = self.folder / ("polls" if polled else "contributions")
        if sums.aggregation == "clear":
            return Tally(sums, Clear(model.parameters, model.dtype, sums.clip, half))
        if self._keeper is not None and sums.aggregation == "enclave":
            return Tally(sums, self._keeper.totals(agreement, folder, polled), polled)
        from selfsame.deploy.aggregation.contribution import masked_fields
        from selfsame.deploy.aggregation.masked import Masked
        from selfsame.deploy.aggregation.store import Store

        store = Store(folder, self.run, masked_fields(sums) | ({} if polled else self._report_fields()))
        terms, wait = agreement.to_json(), self.terms.answer_wait
        return Tally(sums, Masked(sums, terms, agreement.digest, store, wait, half, self._keeper, polled), polled)

    @property
    def _totals(self) -> Totals | None:
        """The sums of the phase that is open, or was last."""
        return None if self._tally is None else self._tally.totals

    # The enclave, where one adds up

    def _invite(self, node: str, **more: Any) -> Ask:
        return super()._invite(node, attested=self._keeper.told() if self._keeper else "", **more)

    def _enclave_ended(self, now: float) -> None:
        """Its key is gone: the round is given up, and everybody attests the next one."""
        self.counts["enclave ended"] += 1
        for node in self._calls:
            self.registry.forget(node)
            self._calls[node] = Call()
        self._new.clear()
        if self._round is not None and self._round.answers is not None:
            self._round.close()
            self._closed, self._round = (len(self._round.answers.asked), 0), None
        if self._closed is not None:
            self._end(now, Outcome(()))

    def close(self) -> None:
        """End the enclave, where there is one."""
        if self._keeper is not None:
            self._keeper.close()

    def begin(self, nodes: Sequence[str], now: float) -> None:
        helpers = {helper.name for helper in self._helpers}
        self._there = [node for node in nodes if node in helpers]
        super().begin([node for node in nodes if node not in helpers], now)

    def answer(self, node: str, payload: bytes, now: float) -> str | None:
        if node not in {helper.name for helper in self._helpers}:
            return super().answer(node, payload, now)
        self._up += len(payload)
        try:
            if self._totals is None:
                raise Refused("not asked")
            self.counts[self._totals.heard(node, payload, now)] += 1
        except Refused as refusal:
            self.counts[refusal.reason] += 1
            return refusal.reason
        return None

    def lost(self, node: str, now: float) -> None:
        if self._totals is not None and node in self._totals.helpers:
            self._totals.lost(node, now)
        else:
            super().lost(node, now)

    @property
    def waiting_until(self) -> float:
        if self._closed is not None and self._totals is not None:
            return min(super().waiting_until, self._totals.waiting_until)
        return super().waiting_until

    def _step(self, now: float) -> list[Ask]:
        if self._keeper is not None and self._keeper.ended():
            self._enclave_ended(now)
        if self._round is not None:
            self._settle(now)
        if self._closed is not None:
            self._conclude(now)
        if self.done:
            return []
        if self._round is None:
            for node in self.registry.expired(now):
                self.registry.forget(node)
        asks = self._call(now)
        if self._round is None and self._closed is None and self._enough(now):
            asks += self._open(now)
        if self._totals is not None:
            errands = self._totals.errands(now, self._there)
            what = "unmask poll" if self._polling else "unmask"
            asks += [self._ask(one.node, what, one.payload, self.round) for one in errands]
        return asks

    # Registration

    def _to_call(self, node: str) -> bool:
        return node not in self.registry and node not in self._new

    def _registered(self, node: str, payload: bytes, now: float) -> str:
        """It gets its place, or keeps the one it has."""
        _, message, conditions = self._heard(node, payload, REGISTERED)
        if message.meta["plan"] != self.agreement.digest:
            raise Refused("plan")
        if self._keeper is not None and node not in self._keeper.names:
            raise Refused("device")
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
        assert self.state is not None
        if not self._tallies:
            self._tallies = [self._tally_of(polled) for polled in (False, True)[: 1 + len(self.agreement.polls)]]
            if self._left(now):
                return []
        if self._poll_due() and (self._to_poll or self._begin_poll(now)):
            return self._open_poll(now)
        self._tally = self._tallies[0]
        nodes = None
        if self._tally.totals.grouped:
            if not self._helped():
                return []
            self._divide(self._tally, now)
            self._group = (
                whose_turn(self.groups, self.registry.eligible(now), self._tally.terms.least, self.round) or ()
            )
            nodes = self._there_of(self._group, now)
            if not nodes:
                return []
        asked = self._ask_all(now, nodes, "trained", self._report_fields())
        return [self._ask(node, "train", self._request(self.seats[node]), self.round) for node in asked]

    def _left(self, now: float) -> bool:
        """Go on with a sum that was asked for when the server stopped, if there is one."""
        for tally in self._tallies:
            left = tally.totals.left(self.round + (tally.polled and self._polled >= self.round))
            if left is not None:
                self._begin_round(now)
                self._tally, self._round = tally, None
                self._reports = {node: self._report(node, fields) for node, fields in left.items()}
                self._closed = len(left), 0
                return True
        return False

    def _ask_all(self, now: float, nodes: list[str] | None, kind: str, fields: dict[str, Field]) -> list[str]:
        """Begin a phase with these nodes, or those whom the schedule selects; whom to ask."""
        assert self.state is not None and self._tally is not None
        round = self._begin_round(now)
        self._reports = {}
        self._said = self._tally.totals.open(self.round, self.state, self._group)
        self._forms = {kind: Spec(kind, meta=ANSWERED, fields=self._tally.totals.fields() | fields)}
        return round.open_answers(now, nodes, whole=nodes is not None)

    def _phase_of(self, kind: str) -> Phase | None:
        return None if self._round is None or kind not in self._forms else self._round.answers

    # Groups

    def _helped(self) -> bool:
        """Whether all are there who take masks off."""
        assert self._tally is not None
        return set(self._tally.totals.helpers) <= set(self._there)

    def _divide(self, tally: Tally, now: float) -> None:
        """Place those who are new, and merge groups of which too few are left; on the disk where that changed any."""
        sums, ready = tally.terms, self.registry.eligible(now)
        groups = self.poll_groups if tally.polled else self.groups
        placed = {node for group in groups for node in group}
        gone = {node for node, missed in tally.missed.items() if missed >= (sums.stand_ins or _GONE)}
        found = groups + divided([node for node in ready if node not in placed], sums.group)
        found = joined(found, gone, sums.group, sums.most) if self._may_grow else found
        if found == groups:
            return
        if tally.polled:
            self.poll_groups = found
        else:
            self.groups = found
        self._save()

    def _there_of(self, group: Group, now: float) -> list[str]:
        """The members who can be asked; the others are stood in for."""
        ready = self.registry.eligible(now)
        return [node for node in group if node in ready]

    # Polls

    @property
    def _polling(self) -> bool:
        return self._tally is not None and self._tally.polled

    def _poll_due(self) -> bool:
        poll = self.problem.poll
        return poll is not None and poll.due(self.round) and self._polled < self.round

    def _begin_poll(self, now: float) -> bool:
        """Whether there is somebody to poll: every group of which enough are there. Without, the round does."""
        self._tally = self._tallies[1]
        if not self._helped():
            return False
        self._divide(self._tally, now)
        able = [group for group in self.poll_groups if len(self._there_of(group, now)) >= self._tally.terms.least]
        self._to_poll, self._sum_V, self._counted_in = able, None, 0
        if not able:
            self._end_poll()
        return bool(able)

    def _open_poll(self, now: float) -> list[Ask]:
        """The requests to the next group of the poll."""
        assert self.state is not None
        self._tally, self._group = self._tallies[1], self._to_poll[0]
        asked = self._ask_all(now, self._there_of(self._group, now), "polled", {})
        fields = {name: self.state.server[name] for name in self.problem.method.poll_reads}
        asks = []
        for node in asked:
            seat = self.seats[node]
            payload = encode("poll", self.round, self._assigned(seat), fields)
            asks.append(self._ask(node, "poll", payload, self.round))
        return asks

    def _take_poll(self, outcome: Outcome) -> None:
        """The sum of one group is known, or will not be."""
        assert self._tally is not None
        if outcome.update_P is not None:
            sum_V = outcome.update_P.double() * outcome.weight
            self._sum_V = sum_V if self._sum_V is None else self._sum_V + sum_V
            self._counted_in += outcome.weight
        self.counts["polled" if outcome.taken else "poll failed"] += 1
        self._to_poll = self._to_poll[1:]
        if not self._to_poll:
            self._end_poll()
        (self._tally.totals.done if outcome.taken else self._tally.totals.give_up)()

    def _end_poll(self) -> None:
        """What all groups came to is in the tables, and on the disk, before the round begins."""
        assert self.state is not None
        if self._sum_V is not None and self._counted_in:
            self.problem.method.take_poll(
                self.state.server, self._sum_V.to(self.state.theta_P.device), self._counted_in
            )
            checkpoint.save_state(self.state, self._files.checkpoint)
        self._polled = self.round
        self._save()

    def _request(self, seat: Seat) -> bytes:
        """A function of the checkpoint and the client alone, so that it can be written again after a crash."""
        assert self.state is not None
        method, half = self.problem.method, self.agreement.transport == "half"
        sent = method.send(self.state.server, self._cohort([seat.client], [seat.label]))
        method.wire.check_down(sent)
        fields = {NETWORK: self.state.theta_P, **method.packed(sent)}
        return encode("train", self.round, self._assigned(seat), fields, frozenset({NETWORK} if half else ()))

    def _assigned(self, seat: Seat) -> dict[str, Json]:
        """What a request says beside the tensors."""
        assert self.state is not None
        return {
            "run": self.run,
            "plan": self.agreement.digest,
            "client": seat.client,
            "class": seat.label,
            "present": self.state.present,
            **self._said,
        }

    def _cohort(self, clients: list[int], labels: list[int]) -> Cohort:
        device = self.problem.model.device
        alive_M = torch.ones(len(clients), dtype=torch.bool, device=device)
        return Cohort(torch.tensor(clients, device=device), torch.tensor(labels, device=device), alive_M)

    def _report_fields(self) -> dict[str, Field]:
        longest = self.agreement.longest("up")
        return {
            name: Field(tuple(value.shape), value.dtype, longest=longest[name])
            for name, value in self._reported().items()
        }

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
        assert self._totals is not None and self.state is not None
        fields = dict(message.fields)
        if NETWORK in fields:  # of what is masked or sealed nobody can look at the heads
            about = self.state.theta_P if self.agreement.transport == "half" else 0.0
            hold(self.problem.model.head_views(about + fields[NETWORK]), self.agreement.longest("head"))
        self._totals.take(node, self._weight(self.seats[node]), fields)
        phase.take(node, now)
        self._reports[node] = self._report(node, fields)
        return "taken"

    def _report(self, node: str, fields: Fields) -> Reported:
        device = self.problem.model.device
        here = {name: value.to(device) for name, value in fields.items()}
        seat = self.seats[node]
        return Reported(seat.client, seat.label, self._weight(seat), here)

    def _weight(self, seat: Seat) -> int:
        cap = self.agreement.sums.cap
        return min(seat.samples, cap) if cap > 1 else 1

    def _settle(self, now: float) -> None:
        """Close the round if no more answers are to come."""
        assert self._round is not None and self._round.answers is not None and self._tally is not None
        phase, totals = self._round.answers, self._tally.totals
        if totals.grouped:
            enough = len(phase.answered) >= self._tally.terms.least
            decision = Decision.WAIT if not phase.over(now) else Decision.GO_ON if enough else Decision.GIVE_UP
        else:
            decision = self._round.answers_decision(now)
        if decision is Decision.WAIT:
            return
        silent = phase.waiting() if phase.expired(now) else []
        self._round.close()
        for node in silent:
            self.counts["silent"] += 1
            self._failed(node, "silent", now)
            self._calls[node] = Call()
        self._round = None
        self._closed = len(phase.asked), len(silent)
        if decision is Decision.GO_ON and self._reports:
            totals.close(sorted(self._reports, key=lambda node: self.seats[node].client))
        else:
            self._end(now, Outcome(()))

    def _conclude(self, now: float) -> None:
        """End the round, once its sum is known."""
        assert self._totals is not None
        outcome = self._totals.outcome(now)
        if outcome is not None:
            self._end(now, outcome)

    def _end(self, now: float, outcome: Outcome) -> None:
        assert self.state is not None and self._tally is not None and self._closed is not None
        for node in self._group:
            self._tally.missed[node] = 0 if node in outcome.taken else self._tally.missed.get(node, 0) + 1
        reports = [self._reports[node] for node in outcome.taken]
        answered, (asked, _) = len(self._reports), self._closed
        self._reports, self._closed = {}, None
        if self._tally.polled:
            self._take_poll(outcome)
            return
        if reports:
            self._absorb(sorted(reports, key=lambda report: report.client), outcome.update_P)
        totals = self._tally.totals
        more = {"answered": answered} if answered != len(reports) else {}
        more |= {"stood_in": outcome.stood_in} if totals.grouped else {}
        self._end_round(now, asked, len(reports), **more)
        (totals.done if reports else totals.give_up)()

    def _absorb(self, reports: Sequence[Reported], update_P: Tensor | None) -> None:
        """The server's half of a round; where all kept silent the network has not moved."""
        assert self.state is not None
        theta_P = self.state.theta_P
        mean_P = theta_P if update_P is None else theta_P + update_P.to(theta_P)
        lr, server_lr = rates(self.problem.recipe, self.round)
        take_mean(self.problem, self.state, reports, mean_P, lr, server_lr, self.round)

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
