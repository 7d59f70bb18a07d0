"""The enclave that adds up: it opens each device's update, clips it, and lets nothing out but sums over whole groups.

It holds one running sum and never two updates at once. What stands in for a device that is silent is kept by the
server, sealed as it came, and known again by its digest. Key and ledger live as long as the process: with another one
nothing old can be opened, so nothing stands in for anybody, and every device has to attest it.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfsame.enclave import quote
from selfsame.enclave.door import Attest, Door
from selfsame.enclave.ledger import Ledger, Rules
from selfsame.enclave.mandate import SumPlan
from selfsame.enclave.masks import NUMBERS, masks_of
from selfsame.enclave.message import Denied, Order, pack, packed_size, unpack, within
from selfsame.enclave.noise import Draw, add_gaussian
from selfsame.enclave.records import (
    HASH,
    NODE,
    OVERHEAD,
    POLL,
    SEED,
    Context,
    Record,
    check_signature,
    group_digest,
    node_name,
    open_record,
)
from selfsame.enclave.release import Asked, mask_keys

_NUMBER = struct.Struct("<Q")
_WEIGHT = struct.Struct("<I")
_UNMASK = struct.Struct("<BQ32sI")  # bits of a number, round, network, members; then their names, then the records
SEALED_SEED = OVERHEAD + SEED
_REGISTER = b"selfsame register 1\n"
_PIECE = 1 << 16  # numbers that are added at a time
_MOST = 1 << 24  # bytes of a register or of a group: some 60,000 devices


def register_bytes(keys: Iterable[bytes]) -> bytes:
    """The devices' public keys in PEM, in the one order that there is."""
    return b"\0".join(sorted(keys))


def register_digest(keys: Iterable[bytes]) -> str:
    """What stands for the register in a plan."""
    return hashlib.sha256(_REGISTER + register_bytes(keys)).hexdigest()


def update_bytes(update_P: NDArray[np.floating], weight: int) -> bytes:
    """What a device seals: its weight and its update."""
    return _WEIGHT.pack(weight) + pack(update_P[None])


def unmask_bytes(asked: Asked, bits: int) -> bytes:
    """What an enclave that takes masks off is asked."""
    names = b"".join(bytes.fromhex(name) for name in asked.members)
    head = _UNMASK.pack(bits, asked.round, asked.network, len(asked.members))
    return head + names + b"".join(record.pack() for record in asked.records)


def record_size(parameters: int) -> int:
    """How many bytes the record of an update has."""
    return OVERHEAD + _WEIGHT.size + packed_size(1, parameters)


@dataclass
class Sum:
    """A group's updates of one round, as far as they are in."""

    plan: SumPlan  # the run's, or that of its polls
    context: Context
    members: tuple[str, ...]
    sum_P: NDArray[np.float64]
    weight: int = 0
    fresh: dict[str, str] = field(default_factory=dict)  # digests of the records that are in
    old: dict[str, str] = field(default_factory=dict)


class Adder(Door):
    """The enclave of `aggregation = "enclave"`, and a helper of `masked`."""

    def __init__(self, plan: SumPlan, draw: Draw = os.urandom, attest: Attest = quote.take) -> None:
        super().__init__(plan.digest(), attest)
        self._plan, self._draw = plan, draw
        self._ledgers: dict[bool, Ledger] = {}  # of updates, and of polls
        self._register: dict[str, bytes] = {}
        self._open: Sum | None = None
        self._answers |= {
            Order.REGISTER: self._registered,
            Order.OPEN: self._begin,
            Order.ADD: self._add,
            Order.RELEASE: self._release,
            Order.UNMASK: self._unmask,
        }

    def largest_frame(self) -> int:
        polled = self._plan.polls.get("parameters", 0)
        return 256 + max(record_size(max(self._plan.parameters, polled)), _MOST)

    def _registered(self, payload: bytes) -> bytes:
        """The register that the plan names, and no other."""
        keys = payload.split(b"\0")
        if register_digest(keys) != self._plan.register:
            raise Denied("device")
        self._register = {node_name(key): key for key in keys}
        return b""

    def _begin(self, payload: bytes) -> bytes:
        """A round of one group; one that is still open is given up."""
        start = _NUMBER.size + HASH
        if len(payload) < start or (len(payload) - start) % NODE:
            raise Denied("size")
        round, network = int(_NUMBER.unpack_from(payload)[0]), payload[_NUMBER.size : start]
        members = tuple(payload[at : at + NODE].hex() for at in range(start, len(payload), NODE))
        if len(set(members)) != len(members):
            raise Denied("group")
        if not set(members) <= self._register.keys():
            raise Denied("device")
        plan = self._plan_of(network)
        context = Context(plan.run, bytes.fromhex(plan.terms), round, group_digest(members), network)
        self._open = Sum(plan, context, members, np.zeros(plan.parameters))
        return b""

    def _plan_of(self, network: bytes) -> SumPlan:
        """The plan of what goes by this network, or of polls."""
        if network != POLL:
            return self._plan
        if not self._plan.polls:
            raise Denied("network")
        return self._plan.of_polls

    def _ledger(self, network: bytes) -> Ledger:
        plan = self._plan_of(network)
        rules = Rules(plan.group, plan.least, plan.stand_ins, plan.rounds)
        return self._ledgers.setdefault(network == POLL, Ledger(rules))

    def _add(self, payload: bytes) -> bytes:
        """A device's update. One of an earlier round stands in, if it is the last of it that was released."""
        record, current = Record.unpack(payload), self._open
        if current is None:
            raise Denied("state")
        name = record.name
        if name not in current.members:
            raise Denied("device")
        if name in current.fresh or name in current.old:
            raise Denied("twice")
        if record.round == current.context.round:
            context, into = current.context, current.fresh
            if record.group != context.group:
                raise Denied("group")
            if record.network != context.network:
                raise Denied("network")
            check_signature(record, self._key, context, self._register[name])
        else:
            context, into = record.context(self._plan.run, bytes.fromhex(self._plan.terms)), current.old
            ledger = self._ledger(current.context.network)
            known, most = ledger.devices.get(name), self._plan.stand_ins
            if known is None or known.latest != record.digest() or (most and known.exceptions >= most):
                raise Denied("stand-in")  # what is in the sum cannot be taken out again
        update_1P, weight = self._opened(open_record(record, self._private, context), current.plan)
        factor = weight * within(update_1P, current.plan.clip)[0]
        for start in range(0, len(current.sum_P), _PIECE):
            current.sum_P[start : start + _PIECE] += factor * update_1P[0, start : start + _PIECE]
        current.weight += weight
        into[name] = record.digest()
        self.accepted["stand-in" if into is current.old else "update"] += 1
        return b""

    def _opened(self, text: bytes, plan: SumPlan) -> tuple[NDArray[np.float32], int]:
        """(update, weight) of what a device has sealed."""
        if len(text) < _WEIGHT.size:
            raise Denied("size")
        (weight,) = _WEIGHT.unpack_from(text)
        return unpack(text[_WEIGHT.size :], 1, plan.parameters), min(weight, plan.cap)

    def _release(self, payload: bytes) -> bytes:
        """The weighted sum and its weight, once: what the ledger refuses stays open, for what is missing to come."""
        current = self._open
        if len(payload) != _NUMBER.size:
            raise Denied("size")
        if current is None or _NUMBER.unpack(payload)[0] != current.context.round:
            raise Denied("round")
        ledger = self._ledger(current.context.network)
        if not ledger.release(current.context.round, current.members, current.fresh, current.old):
            raise Denied("twice")  # the same sum under other noise
        self._open = None
        if current.plan.noise:
            add_gaussian(current.sum_P, current.plan.noise * current.plan.clip, self._draw)
        self.accepted["release"] += 1
        return _NUMBER.pack(current.weight) + current.sum_P.astype("<f8").tobytes()

    def _unmask(self, payload: bytes) -> bytes:
        """The sum of a group's masks, where this enclave is a helper: it sees no update. The same set gets the same."""
        if len(payload) < _UNMASK.size:
            raise Denied("size")
        bits, round, network, count = _UNMASK.unpack_from(payload)
        begin = _UNMASK.size + NODE * count
        rest = payload[begin:]
        if bits not in NUMBERS or len(payload) < begin or len(rest) % SEALED_SEED:
            raise Denied("size")
        members = tuple(payload[at : at + NODE].hex() for at in range(_UNMASK.size, begin, NODE))
        records = tuple(Record.unpack(rest[at : at + SEALED_SEED]) for at in range(0, len(rest), SEALED_SEED))
        terms = bytes.fromhex(self._plan.terms)
        asked = Asked(self._plan.run, terms, round, members, network, records)
        keys = mask_keys(asked, self._register, self._private, self._ledger(network))
        self.accepted["unmask"] += 1
        return masks_of(keys, self._plan_of(network).parameters + 1, bits).tobytes()

    def _now(self) -> dict[str, Any]:
        current = self._open
        return {
            "round": current.context.round if current else None,
            "updates": len(current.fresh) if current else 0,
            "stand_ins": len(current.old) if current else 0,
        }
