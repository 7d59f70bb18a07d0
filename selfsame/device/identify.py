"""Which of a device's users somebody is, or none: one sample against every enrolment (1:N, open set)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from selfsame.device.attempts import Attempts
from selfsame.device.card import Raw
from selfsame.device.verifier import Unlocked, Verifier
from selfsame.errors import SelfsameError


@dataclass(frozen=True)
class Recognised:
    """Who it is; None: nobody who is enrolled."""

    user: str | None
    users: int  # who were tried
    strangers: float | None  # the share of strangers expected to be taken for one of them; None: unknown


def identified(
    device: Verifier,
    attempts: Attempts,
    samples: Sequence[Raw],
    names: Sequence[str],
    now: float,
    fpr: float | None = None,
) -> Recognised:
    """The user whose threshold the mean score passes by most; `fpr` bounds the strangers taken for any of the users.

    An attempt is counted at every user before anything is opened. It is taken back at the others when one is accepted:
    the answer says nothing of them then.
    """
    among = list(names) or [kept.user for kept in device.vault.users() if kept.digest == device.model.card.digest]
    if not among:
        raise SelfsameError(f"{device.vault.folder}: nobody is enrolled with this model")
    if len(set(among)) < len(among):
        raise SelfsameError("--user: a name stands twice")
    if fpr is not None and not 0 < fpr < 1:
        raise SelfsameError(f"--fpr: expected a share between 0 and 1, got {fpr}")
    before = _begun(attempts, among, now)
    opened = [_opened(device, user) for user in among]
    limits = [_limit(one, len(samples), None if fpr is None else fpr / len(among)) for one in opened]
    margins = [one.verify_together(samples).score - limit for one, limit in zip(opened, limits, strict=True)]
    best = max(range(len(among)), key=lambda number: margins[number])
    shares = [_let_in(one, limit, len(samples)) for one, limit in zip(opened, limits, strict=True)]
    strangers = None if None in shares else min(1.0, sum(share for share in shares if share is not None))
    if margins[best] < 0:
        return Recognised(None, len(among), strangers)
    for number, user in enumerate(among):
        if number == best:
            attempts.forget(user)
        else:
            attempts.take_back(user, before[user])
    return Recognised(among[best], len(among), strangers)


def _begun(attempts: Attempts, among: Sequence[str], now: float) -> dict[str, tuple[int, float]]:
    """Count an attempt at everybody, or at nobody where one of them must wait."""
    before: dict[str, tuple[int, float]] = {}
    for user in among:
        try:
            before[user] = attempts.begin(user, now)
        except SelfsameError:
            for other, count in before.items():
                attempts.take_back(other, count)
            raise
    return before


def _opened(device: Verifier, user: str) -> Unlocked:
    try:
        return device.unlock(user)
    except SelfsameError as error:
        raise SelfsameError(f"{error}; choose among others with --user") from None


def _limit(one: Unlocked, together: int, fpr: float | None) -> float:
    """The user's own threshold, or the one that lets in at most this share of strangers where that is higher."""
    own = one.threshold(together)
    if fpr is None:
        return own
    strangers = one.verifier.strangers(one.enrolment.made_from, together)
    if strangers is None:
        raise SelfsameError("--fpr: the model carries no cohort of strangers; export it again")
    return max(own, strangers.bound(fpr)[0])


def _let_in(one: Unlocked, limit: float, together: int) -> float | None:
    strangers = one.verifier.strangers(one.enrolment.made_from, together)
    return None if strangers is None else strangers.let_in(limit).value
