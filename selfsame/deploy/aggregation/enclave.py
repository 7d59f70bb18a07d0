"""The server's side of sums in an enclave: it relays records that it cannot open, and keeps the last of each device."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from selfsame.deploy.aggregation.base import Outcome, Totals
from selfsame.deploy.aggregation.groups import Group
from selfsame.deploy.aggregation.sealing import RECORD, run_nonce, sealed_fields, sum_plan
from selfsame.deploy.aggregation.store import Pending, Store
from selfsame.deploy.agreement import Agreement
from selfsame.deploy.codec import REASONS, Field, Json, Refused
from selfsame.deploy.process import EnclaveEnded, EnclaveProcess
from selfsame.deploy.received import as_received, theta_digest
from selfsame.enclave.adder import register_bytes, register_digest, unmask_bytes
from selfsame.enclave.mandate import SumPlan
from selfsame.enclave.masks import NUMBERS
from selfsame.enclave.message import Denied, Order
from selfsame.enclave.records import POLL, Record, group_digest, node_name
from selfsame.enclave.release import Asked
from selfsame.engine.state import State
from selfsame.errors import SelfsameError
from selfsame.methods.base import Fields

_NUMBER = struct.Struct("<Q")
_REASONS = {"signature": "seal", "twice": "stale", "network": "plan"}


class SumController(EnclaveProcess):
    """The enclave of a plan for sums; `keys` are the public keys of its devices, the rest is as `EnclaveProcess`."""

    def __init__(self, plan: SumPlan, keys: Sequence[bytes], **rest: Any) -> None:
        self.plan = plan
        super().__init__(plan.canonical(), **rest)
        self._ask(Order.REGISTER, register_bytes(keys))

    def open(self, round: int, network: bytes, members: Sequence[str]) -> None:
        """Begin a round of one group; one that is still open is given up."""
        names = b"".join(bytes.fromhex(name) for name in members)
        self._ask(Order.OPEN, _NUMBER.pack(round) + network + names)

    def add(self, record: bytes) -> str | None:
        """Relay a sealed update; None if it is in the sum, else why not."""
        try:
            self._frame(bytes([Order.ADD]) + record)
        except Denied as refusal:
            return refusal.reason
        return None

    def unmask(self, asked: Asked, bits: int) -> NDArray[Any]:
        """The sum of a group's masks, where the enclave is a helper."""
        answer = self._ask(Order.UNMASK, unmask_bytes(asked, bits))
        plan = self.plan.of_polls if asked.network == POLL else self.plan
        if len(answer) != bits // 8 * (plan.parameters + 1):
            raise SelfsameError("enclave: the masks are not of the plan's size")
        return np.frombuffer(answer, NUMBERS[bits])

    def release(self, round: int, numbers: int = 0) -> tuple[NDArray[np.float64], int]:
        """(the weighted sum of the group's updates, or of so many numbers, its weight)"""
        answer = self._ask(Order.RELEASE, _NUMBER.pack(round))
        if len(answer) != _NUMBER.size + 8 * (numbers or self.plan.parameters):
            raise SelfsameError("enclave: the sum is not of the plan's size")
        return np.frombuffer(answer, "<f8", offset=_NUMBER.size).copy(), int(_NUMBER.unpack_from(answer)[0])


class Keeper:
    """An enclave that is started when it is needed; `start` makes that of the plan. `names` are its devices'."""

    def __init__(self, plan: SumPlan, names: Collection[str], start: Callable[[SumPlan], SumController]) -> None:
        self.plan, self.names, self._start = plan, frozenset(names), start
        self.process: SumController | None = None
        self.released: set[str] = set()  # devices of which this process has released something
        self.polled: set[str] = set()  # the same of polls

    def told(self) -> str:
        """What devices need to prove the enclave: the register's digest, its key and its quote."""
        if self.process is None:
            self.process = self._start(self.plan)
        return self.plan.register + self.process.attest(run_nonce(self.plan.run)).hex()

    def ended(self) -> bool:
        """Whether the process is gone; then the next one knows nothing, and nothing stands in for anybody."""
        if self.process is None or self.process.alive:
            return False
        self.close()
        return True

    def totals(self, agreement: Agreement, folder: Path, polled: bool = False) -> Totals:
        """The sums of a run that the enclave adds up, with what stands in for devices in a folder."""
        return Enclosed(agreement, folder, self, polled)

    def unmask(self, asked: Asked, bits: int) -> NDArray[Any]:
        """The sum of the masks in a release, by the enclave that runs now."""
        if self.process is None:
            raise EnclaveEnded("enclave: its process has ended")
        masks = self.process.unmask(asked, bits)
        (self.polled if asked.network == POLL else self.released).update(asked.fresh())
        return masks

    def close(self) -> None:
        """End the process."""
        if self.process is not None:
            self.process.close()
        self.process = None
        self.released.clear()
        self.polled.clear()


def keeper_of(agreement: Agreement, keys: Sequence[bytes], start: Callable[..., SumController], **rest: Any) -> Keeper:
    """The enclave of a run whose devices have these public keys, in PEM; `rest` is for `start`, as for a controller."""
    if not keys:
        raise SelfsameError("sums.aggregation: an enclave needs the public keys of the devices that are registered")
    plan = sum_plan(agreement, register_digest(keys))
    return Keeper(plan, [node_name(key) for key in keys], partial(start, keys=keys, **rest))


class Enclosed(Totals):
    """Sums that an enclave adds up as sealed updates come."""

    grouped = True

    def __init__(self, agreement: Agreement, folder: Path, keeper: Keeper, polled: bool = False) -> None:
        self._sums = agreement.polls[0] if polled else agreement.sums
        self._half, self._keeper, self._polled = agreement.transport == "half", keeper, polled
        self._released = keeper.released if not polled else keeper.polled
        self._store = Store(folder, agreement.run, self.fields())
        self._round, self._group = -1, Group()
        self._asked: Pending | None = None
        self._outcome: Outcome | None = None

    def fields(self) -> dict[str, Field]:
        return sealed_fields(self._sums)

    def open(self, round: int, state: State, group: Sequence[str]) -> dict[str, Json]:
        self._round, self._group, self._outcome = round, tuple(group), None
        network = POLL if self._polled else theta_digest(as_received(state.theta_P, self._half))
        with contextlib.suppress(EnclaveEnded):  # which the server's next step finds out
            self._process.open(round, network, group)
        return {"group": group_digest(group).hex()}

    def take(self, node: str, weight: int, fields: Fields) -> None:
        record = bytes(fields[RECORD].numpy())
        if Record.unpack(record).name != node:
            raise Refused("seal")
        why = self._add(record)
        if why is not None:
            found = _REASONS.get(why, why)
            raise Refused(found if found in REASONS else "failed")
        self._store.put(node, self._round, fields)
        del fields[RECORD]

    def close(self, taken: Sequence[str]) -> None:
        silent = [node for node in self._group if node not in taken and node in self._released]
        old = [node for node in silent if self._stands_in(node)]
        self._asked = Pending(self._round, self._group, tuple(taken), tuple(old))
        try:
            sum_P, weight = self._process.release(self._round, self._sums.numbers - 1)
        except SelfsameError:  # it has refused, or ended: nothing of this round comes out
            self._outcome = Outcome(())
            return
        self._released.update(taken)
        mean_P = torch.from_numpy(sum_P / weight) if weight else None
        self._outcome = Outcome(tuple(taken), mean_P, len(old), weight)

    def outcome(self, now: float) -> Outcome | None:
        return self._outcome

    def done(self) -> None:
        if self._asked is not None:
            self._store.release(self._asked)

    def give_up(self) -> None:
        self._store.give_up()

    def _stands_in(self, node: str) -> bool:
        """Whether a device's last update was taken in place of a new one; it is not where too many have been."""
        return self._add(bytes(self._store.get(node, new=False)[1][RECORD].numpy())) is None

    def _add(self, record: bytes) -> str | None:
        try:
            return self._process.add(record)
        except EnclaveEnded:
            return "session"

    @property
    def _process(self) -> SumController:
        if self._keeper.process is None:
            raise EnclaveEnded("enclave: its process has ended")
        return self._keeper.process
