"""All attackers that come with selfsame, in the order of the table. One line adds another."""

from __future__ import annotations

from selfsame.audit.active import ActiveServer
from selfsame.audit.attackers import ATTACKERS, Attacker, register
from selfsame.audit.membership import MembershipReader
from selfsame.audit.picture_reader import PictureReader
from selfsame.audit.readers import ReportReader, SumReader, UpdateReader
from selfsame.audit.spans import PollReader

KNOWN: tuple[Attacker, ...] = (
    ReportReader(),
    UpdateReader(),
    SumReader(),
    PollReader(),
    PictureReader(),
    MembershipReader(),
    ActiveServer(),
)


def load() -> None:
    """Register them all; those that were registered before, by anybody, stay."""
    for attacker in KNOWN:
        if attacker.name not in ATTACKERS:
            register(attacker)
