"""What a server does whose phases end in a sum: it asks, takes answers, and has them added up.

Updates and polls are summed alike: in the clear, masked (helpers take the masks off the sum), or in an enclave. Some
sums are over whole groups alone, whose members stay together.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from selfsame.config.recipe import Recipe
from selfsame.deploy.aggregation.base import NETWORK, Clear, Outcome, Totals
from selfsame.deploy.aggregation.groups import Group, divided, joined
from selfsame.deploy.aggregation.sum_terms import HelperTerms, SumTerms
from selfsame.deploy.agreement import Agreement
from selfsame.deploy.codec import Field, Message, Refused, Spec, hold
from selfsame.deploy.device import ANSWERED
from selfsame.deploy.folder import Seat
from selfsame.deploy.host import Ask, Call, Host
from selfsame.deploy.schedule import Decision, Phase, Terms
from selfsame.engine.reference import Reported
from selfsame.errors import SelfsameError
from selfsame.methods.base import Fields

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


class Collector(Host[Agreement]):
    """As `Host`; which phase comes next, and what is done with its sum, is for the server to say."""

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
        self._reports: dict[str, Reported] = {}  # of the open round
        self._group: Group = ()  # whose round it is, where sums are over groups
        self._closed: tuple[int, int] | None = None  # asked and silent of a round whose sum is not yet known
        self._there: list[str] = []  # helpers that can be reached

    def _agree(self, transport: str, seeded: bool) -> Agreement:
        sums = SumTerms.of(self.problem, self.terms.required, self._helpers)
        return Agreement.of(self.problem, self.run, transport, seeded, sums)

    def close(self) -> None:
        """End the enclave, where there is one."""
        if self._keeper is not None:
            self._keeper.close()

    # What the loop around it sees

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

    @abstractmethod
    def _enough(self, now: float) -> bool:
        """Whether a round can begin."""

    @abstractmethod
    def _open(self, now: float) -> list[Ask]:
        """Begin the next phase: its requests."""

    @abstractmethod
    def _report_fields(self) -> dict[str, Field]:
        """What devices report beside their updates."""

    @abstractmethod
    def _end(self, now: float, outcome: Outcome) -> None:
        """The sum of a phase that is closed is known, or will not be."""

    # How answers are added up

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

    @property
    def _polling(self) -> bool:
        return self._tally is not None and self._tally.polled

    # The enclave, where one adds up

    def _invite(self, node: str, **more: Any) -> Ask:
        return super()._invite(node, attested=self._keeper.told() if self._keeper else "", **more)

    def _enclave_ended(self, now: float) -> None:
        """Its key is gone: the round is given up, and everybody attests the next one."""
        self.counts["enclave ended"] += 1
        for node in self._calls:
            self.registry.forget(node)
            self._calls[node] = Call()
        if self._round is not None and self._round.answers is not None:
            self._round.close()
            self._closed, self._round = (len(self._round.answers.asked), 0), None
        if self._closed is not None:
            self._end(now, Outcome(()))

    # A phase

    @property
    def _may_grow(self) -> bool:
        """Not while a round is repeated after a crash: its requests must be what they were."""
        return self._opened < self.round

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
