"""What the figures mean for each user: an average hides those whom the network does not know."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from selfsame.measure.curves import auroc
from selfsame.measure.trials import Scored

Plain = dict[str, Any]

_MOST = 10_000  # users listed one by one


def per_user(scored: Scored, threshold: float, pairs: bool, name_of: Callable[[int], str]) -> list[Plain]:
    """The rates at score >= threshold of each user who has genuine trials, in the order of their numbers.

    Impostor trials are those against the user's template; where there are none, rates are None. With `pairs`, where no
    side is a template, they are those in which the user takes part on either side.
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
            rates = {"tpr": float((yes >= threshold).mean()), "fpr": fpr, "auroc": area}
            users.append({"name": name_of(number), "genuine": mine, "impostor": len(no), **rates})
    return users


def user_figures(scored: Scored, threshold: float, pairs: bool, name_of: Callable[[int], str]) -> Plain:
    """The same as plain values, the worst first, and over all users."""
    users = per_user(scored, threshold, pairs, name_of)
    order = sorted(users, key=lambda user: (user["tpr"], np.inf if user["auroc"] is None else user["auroc"]))
    worst = order[: -(-len(users) // 10)]  # a tenth, at least one
    tpr = np.array([user["tpr"] for user in users])
    areas = [user["auroc"] for user in users if user["auroc"] is not None]
    return {
        "number": len(users),
        "threshold": threshold,
        "mean": float(tpr.mean()),
        "median": float(np.median(tpr)),
        "worst_tenth": float(np.mean([user["tpr"] for user in worst])),
        "worst_tenth_users": len(worst),
        "locked_out": int((tpr < 0.5).sum()),  # accepted less than half of the time
        "never_accepted": int((tpr == 0).sum()),
        "one_class_auroc": float(np.mean(areas)) if areas else None,  # FedMetric, Table 2
        "each": order[:_MOST],
    }
