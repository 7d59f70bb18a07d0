"""One release, checked as a whole: whose records are in it, of which round, and what their seals hold.

A helper that takes masks off and the enclave that adds up hold themselves to the same checks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from selfsame.enclave.ledger import Ledger
from selfsame.enclave.masks import mask_key
from selfsame.enclave.message import Denied
from selfsame.enclave.records import SEED, Context, Record, check_signature, group_digest, open_record


@dataclass(frozen=True)
class Asked:
    """What is to be released: the sum of a group in a round."""

    run: str
    plan: bytes
    round: int
    members: tuple[str, ...]
    network: bytes
    records: tuple[Record, ...]

    @property
    def context(self) -> Context:
        """That of every record of this round."""
        return Context(self.run, self.plan, self.round, group_digest(self.members), self.network)

    def fresh(self) -> dict[str, Record]:
        return {record.name: record for record in self.records if record.round == self.round}

    def old(self) -> dict[str, Record]:
        return {record.name: record for record in self.records if record.round != self.round}


def check(asked: Asked, register: Mapping[str, bytes], recipient: bytes) -> None:
    """Denied unless every record is by a registered member, and every new one of this round, group and network.

    What stands in was checked when it was new; the ledger knows it by its digest.
    """
    names = [record.name for record in asked.records]
    if len(set(names)) != len(names):
        raise Denied("twice")
    unknown = [name for name in asked.members if name not in register]
    if unknown:
        raise Denied("device", unknown)
    strangers = sorted(set(names) - set(asked.members))
    if strangers:
        raise Denied("group", strangers)
    context = asked.context
    bad: dict[str, str] = {}
    for name, record in asked.fresh().items():
        if record.group != context.group:
            bad[name] = "group"
        elif record.network != context.network:
            bad[name] = "network"
        else:
            try:
                check_signature(record, recipient, context, register[name])
            except Denied as refusal:
                bad[name] = refusal.reason
    if bad:
        raise Denied(next(iter(bad.values())), list(bad))


def mask_keys(asked: Asked, register: Mapping[str, bytes], private: X25519PrivateKey, ledger: Ledger) -> list[bytes]:
    """The keys of the masks that come off; entered into the ledger, which must be on the disk before masks leave."""
    check(asked, register, private.public_key().public_bytes_raw())
    keys, bad = [], []
    for record in asked.records:
        context = record.context(asked.run, asked.plan)
        try:
            seed = open_record(record, private, context)
            if len(seed) != SEED:
                raise Denied("seal")
            keys.append(mask_key(seed, context.digest()))
        except Denied:
            bad.append(record.name)
    if bad:
        raise Denied("seal", bad)
    enter(asked, ledger)
    return keys


def enter(asked: Asked, ledger: Ledger) -> bool:
    """Enter a release into the ledger; False where it was there already."""
    fresh, old = ({name: one.digest() for name, one in some.items()} for some in (asked.fresh(), asked.old()))
    return ledger.release(asked.round, asked.members, fresh, old)
