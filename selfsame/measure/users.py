"""What the figures mean for each user: an average hides those whom the network does not know."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from selfsame.measure.curves import auroc
from selfsame.measure.trials import Scored

_MOST = 10_000  # users listed one by one


@dataclass(frozen=True)
class User:
    """Somebody who has genuine trials: theirs, those of others against them, and the rates at one threshold."""

    name: str
    genuine: int
    impostor: int
    tpr: float
    fpr: float | None  # None where nobody tried
    auroc: float | None  # likewise


def per_user(scored: Scored, threshold: float, pairs: bool, name_of: Callable[[int], str]) -> list[User]:
    """The rates of each user at score >= threshold, in the order of their numbers.

    Impostor trials are those against the user's template. With `pairs`, where no side is a template, they are those in
    which the user takes part on either side.
    """
    own, score, same = scored.person_a, scored.score, scored.same
    if pairs:
        twice = ~same
        own = np.concatenate([own, scored.person_b[twice]])
        score, same = np.concatenate([score, score[twice]]), np.concatenate([same, same[twice]])
    order = np.lexsort((~same, own))  # user after user, genuine trials first
    person, first = np.unique(own[order], return_index=True)
    users = []
    for number, place in zip(person.tolist(), np.split(order, first[1:])):
        mine = int(same[place].sum())
        if mine:
            yes, no = score[place[:mine]], score[place[mine:]]
            fpr, area = (float((no >= threshold).mean()), auroc(yes, no)) if len(no) else (None, None)
            users.append(User(name_of(number), mine, len(no), float((yes >= threshold).mean()), fpr, area))
    return users


def user_figures(scored: Scored, threshold: float, pairs: bool, name_of: Callable[[int], str]) -> dict[str, Any]:
    """The same as plain values, the worst first, and over all users."""
    users = per_user(scored, threshold, pairs, name_of)
    order = sorted(users, key=lambda user: (user.tpr, np.inf if user.auroc is None else user.auroc))
    worst = order[: -(-len(users) // 10)]  # a tenth, at least one
    tpr, areas = np.array([user.tpr for user in users]), [user.auroc for user in users if user.auroc is not None]
    return {
        "number": len(users),
        "threshold": threshold,
        "mean": float(tpr.mean()),
        "median": float(np.median(tpr)),
        "worst_tenth": float(np.mean([user.tpr for user in worst])),
        "worst_tenth_users": len(worst),
        "locked_out": int((tpr < 0.5).sum()),  # accepted less than half of the time
        "never_accepted": int((tpr == 0).sum()),
        "one_class_auroc": float(np.mean(areas)) if areas else None,  # FedMetric, Table 2
        "each": [asdict(user) for user in order[:_MOST]],
    }
