"""The server's side of masks: a running sum that means nothing until every helper has taken its masks off.

What helpers are asked for is on the disk before they are asked, and stays the same until all of them have answered: a
helper that is gone is waited for, and a server that was killed asks for the very same again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from selfsame.deploy.aggregation.base import Errand, Outcome, Totals
from selfsame.deploy.aggregation.contribution import MASKED, RECORDS, masked_fields
from selfsame.deploy.aggregation.groups import Group
from selfsame.deploy.aggregation.helper import BLAMED, request, unmasked
from selfsame.deploy.aggregation.store import Pending, Store
from selfsame.deploy.aggregation.sum_terms import ENCLAVE, SumTerms
from selfsame.deploy.codec import Field, Json, Refused, decode, glance
from selfsame.deploy.received import as_received, theta_digest
from selfsame.enclave.masks import NUMBERS
from selfsame.enclave.records import POLL, Record, group_digest
from selfsame.enclave.release import Asked
from selfsame.engine.state import State
from selfsame.errors import SelfsameError
from selfsame.methods.base import Fields


class Unmasker(Protocol):
    """An enclave that takes masks off."""

    released: set[str]  # devices of which it has released something
    polled: set[str]  # the same of polls

    def unmask(self, asked: Asked, bits: int) -> NDArray[Any]:
        """The sum of the masks in a release."""


class Masked(Totals):
    """Sums of contributions whose masks helpers know. `terms` are the run's, as its devices agreed to them."""

    grouped = True

    def __init__(
        self,
        sums: SumTerms,
        terms: Mapping[str, Json],
        plan: str,
        store: Store,
        wait: float,
        half: bool,
        enclave: Unmasker | None = None,
        polled: bool = False,
    ) -> None:
        """`enclave`: the run's own, where it is one of the helpers. `polled`: of polls, on terms of their own."""
        self._polled = polled
        self._sums, self._terms, self._plan, self._store = sums, terms, plan, store
        self._run, self._wait, self._half, self._enclave = str(terms["run"]), wait, half, enclave
        self._all = tuple(helper.name for helper in sums.helpers)
        self.helpers = tuple(helper.name for helper in sums.helpers if not helper.enclosed)
        self._pending: Pending | None = None
        self._network, self._round = b"", -1
        self._group: Group = ()
        self._due: dict[str, float] = {}  # of helpers that have not answered yet: when to ask (again)
        self._failed = False
        self._zero()

    def _zero(self) -> None:
        self._records: dict[str, list[Record]] = {}  # of this round's sum: one for each helper
        self._total: NDArray[Any] = np.zeros(self._sums.numbers, NUMBERS[self._sums.bits])

    def fields(self) -> dict[str, Field]:
        return masked_fields(self._sums)

    def open(self, round: int, state: State, group: Sequence[str]) -> dict[str, Json]:
        self._zero()
        self._pending, self._failed, self._due = None, False, {}
        self._round, self._group = round, tuple(group)
        self._network = POLL if self._polled else theta_digest(as_received(state.theta_P, self._half))
        return {"group": group_digest(group).hex()}

    def take(self, node: str, weight: int, fields: Fields) -> None:
        records = records_of(fields)
        for record in records:
            head = (record.name, record.round, record.group, record.network)
            if head != (node, self._round, group_digest(self._group), self._network):
                raise Refused("seal")
        self._store.put(node, self._round, fields)
        self._add(fields)
        self._records[node] = records
        for name in (MASKED, RECORDS):
            del fields[name]

    def close(self, taken: Sequence[str]) -> None:
        old = [node for node in self._group if node not in taken and self._holds(node)]
        for node in old:
            self._stand_in(node)
        self._ask(Pending(self._round, self._group, tuple(taken), tuple(old)))

    def _holds(self, node: str) -> bool:
        """Whether something of this device can stand in for it: what an enclave that has ended released cannot."""
        if self._enclave is None:
            return self._store.holds(node)
        released = self._enclave.polled if self._polled else self._enclave.released
        return self._store.holds(node) and node in released

    def _stand_in(self, node: str) -> None:
        fields = self._store.get(node, new=False)[1]
        self._add(fields)
        self._records[node] = records_of(fields)

    def _ask(self, pending: Pending) -> None:
        self._store.ask(pending)
        self._pending = pending
        self._due = dict.fromkeys(self._all, -math.inf)

    def left(self, round: int) -> dict[str, Fields] | None:
        pending = self._store.pending()
        if pending is None:
            return None
        if pending.round < round:  # its round was complete
            self._store.release(pending)
            return None
        if self._enclave is not None:  # the one that could have opened the seeds ended with the server
            self._store.give_up()
            return None
        self._zero()
        self._group, self._round, self._failed = pending.members, pending.round, False
        answers = {node: self._store.get(node, new=True)[1] for node in pending.fresh}
        for node, fields in answers.items():
            self._add(fields)
            self._records[node] = records_of(fields)
        for node in pending.old:
            self._stand_in(node)
        self._network = self._records[pending.fresh[0]][0].network
        self._ask(pending)
        return {node: {k: v for k, v in one.items() if k not in (MASKED, RECORDS)} for node, one in answers.items()}

    def outcome(self, now: float) -> Outcome | None:
        if self._failed:
            return Outcome(())
        if self._pending is None or self._due:
            return None
        whole_P = torch.from_numpy(self._total.astype(np.int64))
        mean_P, weight = self._sums.code.mean(whole_P)
        return Outcome(self._pending.fresh, mean_P if weight > 0 else None, len(self._pending.old), weight)

    def done(self) -> None:
        if self._pending is not None:
            self._store.release(self._pending)
        self._pending = None

    def give_up(self) -> None:
        self._pending, self._due = None, {}
        self._store.give_up()

    # Helpers

    def errands(self, now: float, there: Sequence[str]) -> list[Errand]:
        found = []
        for helper, due in list(self._due.items()):
            if helper == ENCLAVE and set(self._due) == {ENCLAVE}:  # the others may have something against it
                self._take_off_inside()
            elif now >= due and helper in there:
                self._due[helper] = now + self._wait
                found.append(Errand(helper, request(self._asked(helper), self._terms)))
        return found

    def _take_off_inside(self) -> None:
        """The enclave's masks, at once."""
        assert self._enclave is not None
        try:
            self._total -= self._enclave.unmask(self._asked(ENCLAVE), self._sums.bits)
            del self._due[ENCLAVE]
        except SelfsameError:  # it has refused, or ended: nothing of this round comes out
            self._failed = True

    def _asked(self, helper: str) -> Asked:
        assert self._pending is not None
        pending, place = self._pending, self._all.index(helper)
        records = [self._records[node][place] for node in (*pending.fresh, *pending.old)]
        plan = bytes.fromhex(self._plan)
        return Asked(self._run, plan, pending.round, pending.members, self._network, tuple(records))

    def heard(self, node: str, payload: bytes, now: float) -> str:
        if self._pending is None or node not in self._due:
            raise Refused("not asked")
        form = unmasked(self._sums, self._run, self._round)
        kind, _, _ = glance(payload, max(form.most_bytes, BLAMED.most_bytes))
        if kind == "blamed":
            said = decode(payload, expected=BLAMED).meta
            return self._blame(str(said["reason"]), [name for name in said["nodes"] if type(name) is str])
        message = decode(payload, expected=form)
        if message.meta["plan"] != self._plan:
            raise Refused("plan")
        masks = message.fields["masks"].numpy()
        self._total -= masks.view(self._total.dtype)
        del self._due[node]
        return "unmasked"

    def _blame(self, reason: str, nodes: Sequence[str]) -> str:
        """Ask again without those whose records are bad, where some are named and none of the masks is off yet."""
        assert self._pending is not None
        pending = self._pending
        fresh = tuple(node for node in pending.fresh if node not in nodes)
        old = tuple(node for node in pending.old if node not in nodes)
        again = (fresh, old) != (pending.fresh, pending.old) and len(self._due) == len(self._all)
        if not again or len(fresh) < self._sums.least:
            self._failed = True
            return f"helper: {reason}"
        for node in set(pending.fresh) - set(fresh):
            self._add(self._store.get(node, new=True)[1], minus=True)
            if self._holds(node):
                self._stand_in(node)
                old = (*old, node)
        for node in set(pending.old) - set(old):
            self._add(self._store.get(node, new=False)[1], minus=True)
        self._ask(Pending(pending.round, pending.members, fresh, old))
        return f"helper: {reason}"

    def lost(self, node: str, now: float) -> None:
        if node in self._due:
            self._due[node] = now + self._wait / 4

    @property
    def waiting_until(self) -> float:
        return min(self._due.values(), default=math.inf)

    # Contributions

    def _add(self, fields: Fields, minus: bool = False) -> None:
        numbers = fields[MASKED].numpy().view(self._total.dtype)
        (np.subtract if minus else np.add)(self._total, numbers, out=self._total)


def records_of(fields: Fields) -> list[Record]:
    """A device's records, one for each helper."""
    return [Record.unpack(bytes(row.numpy())) for row in fields[RECORDS]]
