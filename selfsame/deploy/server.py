"""The server of a run whose devices train alone: one phase a round, and tables that grow with the devices.

Where the method has polls, one comes before the rounds in which it is due: a phase of its own, with sums of its own.

After a crash the requests of the round that was open are written again, byte for byte, and devices that have answered
them answer the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from selfsame.config.recipe import Recipe
from selfsame.deploy.aggregation.base import NETWORK, Outcome
from selfsame.deploy.aggregation.groups import Group, whose_turn
from selfsame.deploy.aggregation.sum_terms import HelperTerms
from selfsame.deploy.agreement import Agreement
from selfsame.deploy.codec import Field, Json, Refused, encode
from selfsame.deploy.collector import Collector
from selfsame.deploy.device import REGISTERED
from selfsame.deploy.folder import Seat
from selfsame.deploy.host import Ask, Call, rates
from selfsame.deploy.schedule import Terms
from selfsame.engine import checkpoint, optimisers
from selfsame.engine.reference import Reported, take_mean
from selfsame.engine.state import State, cast
from selfsame.methods.base import Cohort, Fields, World

if TYPE_CHECKING:
    from selfsame.deploy.aggregation.enclave import Keeper


class Server(Collector):
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
        super().__init__(folder, recipe, terms, helpers=helpers, enclave=enclave, **rest)
        self._new: list[str] = []  # registered, but the tables have no rows for them yet
        self._to_poll: list[Group] = []  # groups that the poll has yet to ask
        self._sum_V: Tensor | None = None  # of those that it has asked
        self._counted_in = 0
        self._enter()

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

    def _enclave_ended(self, now: float) -> None:
        self._new.clear()
        super()._enclave_ended(now)

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

    # Polls

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

    # What is asked, and what comes of it

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
            optim=optimisers.begin(self.problem.recipe.server, theta_P, self.problem.model.layout),
            own={},
            server=self._tables(present),
            alone_NP=None,
            refused=torch.zeros((), dtype=torch.int64, device=model.device),
            present=present,
        )
