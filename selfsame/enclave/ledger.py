"""Whose sums may be released, and whose were: the rule that keeps differences of sums from telling on anybody.

What is released is always the sum over the same whole group. A member that did not answer is stood in for by the
contribution of its that was released last; one of which nothing was ever released counts as zero. So the sums of two
rounds differ by what the members who answered have changed, and by nobody's presence or absence.

A stand-in is an exception: it makes the others' changes stand out. They are counted for each device and limited; a
device whose exceptions are spent counts as zero until it answers again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from selfsame.enclave.message import Denied
from selfsame.enclave.records import group_digest


@dataclass(frozen=True)
class Rules:
    """What the devices of a run agreed to."""

    group: int  # the least members of a group
    least: int  # the least of them that must have answered
    stand_ins: int  # the most exceptions of a device; 0: any
    rounds: int


@dataclass(frozen=True)
class Released:
    """A group of which sums were released: the last round, and what was in its sum."""

    members: tuple[str, ...]
    round: int
    whole: str  # digest of the set


@dataclass(frozen=True)
class Trace:
    """What a ledger knows of a device."""

    group: str = ""
    latest: str = ""  # digest of its record in the last sum that had a new one of it
    exceptions: int = 0


@dataclass
class Ledger:
    """All releases of one run, as far as later ones depend on them."""

    rules: Rules
    groups: dict[str, Released] = field(default_factory=dict)
    devices: dict[str, Trace] = field(default_factory=dict)

    def release(self, round: int, members: Sequence[str], fresh: Mapping[str, str], old: Mapping[str, str]) -> bool:
        """Enter a release: digests of the records of this round, and of those that stand in.

        Denied where it would break the rule, and then nothing is entered. The same set again is no second release, and
        makes no difference: then False.
        """
        if sorted(set(members)) != sorted(members) or not (fresh.keys() | old.keys()) <= set(members):
            raise Denied("group")
        if fresh.keys() & old.keys():
            raise Denied("twice")
        if not 0 <= round < self.rules.rounds:
            raise Denied("round")
        name, whole = group_digest(members).hex(), set_digest(round, members, fresh, old)
        known = self.groups.get(name)
        if known is not None and known.round >= round:
            if known.round == round and known.whole == whole:
                return False
            raise Denied("twice")
        merged = self._merged(name, members, round)
        if len(fresh) < self.rules.least:
            raise Denied("few")
        devices = {node: self._entry(node, fresh.get(node), old.get(node), name) for node in members}
        for other in merged:
            del self.groups[other]
        self.groups[name] = Released(tuple(sorted(members)), round, whole)
        self.devices.update(devices)
        return True

    def _merged(self, name: str, members: Sequence[str], round: int) -> set[str]:
        """The earlier groups that this one replaces: none where it is new or known; else whole ones, and no others."""
        before = {self.devices[node].group for node in members if node in self.devices}
        if before <= {name}:
            if len(members) < self.rules.group:
                raise Denied("few")
            return set()
        whole = {node for group in before for node in self.groups[group].members}
        if whole != set(members) or any(self.groups[group].round >= round for group in before):
            raise Denied("group")
        return before

    def _entry(self, node: str, fresh: str | None, old: str | None, group: str) -> Trace:
        """What is known of a device after this release."""
        trace = replace(self.devices.get(node, Trace()), group=group)
        most = self.rules.stand_ins
        if fresh is not None:
            return replace(trace, latest=fresh)
        if old is not None:
            if old != trace.latest or (most and trace.exceptions >= most):
                raise Denied("stand-in", [node])
            return replace(trace, exceptions=trace.exceptions + 1)
        if trace.latest and not (most and trace.exceptions >= most):
            raise Denied("stand-in", [node])  # its last contribution is missing
        return trace

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(given: Mapping[str, Any]) -> Ledger:
        groups = {name: Released(**one | {"members": tuple(one["members"])}) for name, one in given["groups"].items()}
        devices = {name: Trace(**one) for name, one in given["devices"].items()}
        return Ledger(Rules(**given["rules"]), groups, devices)


def set_digest(round: int, members: Collection[str], fresh: Mapping[str, str], old: Mapping[str, str]) -> str:
    """What stands for everything that goes into a sum."""
    whole = [round, sorted(members), sorted(fresh.items()), sorted(old.items())]
    return hashlib.sha256(json.dumps(whole).encode()).hexdigest()
