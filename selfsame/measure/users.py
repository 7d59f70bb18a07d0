"""What the figures mean for each user: an average hides those whom the network does not know."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from selfsame.measure.curves import Floats, Ints, auroc
from selfsame.measure.trials import Scored

WORST = 0.1  # the share of users that is called the worst


@dataclass(frozen=True)
class Users:
    """P users who have genuine trials: theirs, those of others against them, and the rates at one threshold."""

    person_P: Ints
    genuine_P: Ints
    impostor_P: Ints
    tpr_P: Floats
    fpr_P: Floats  # NaN where nobody tried
    auroc_P: Floats  # likewise

    @property
    def locked_out(self) -> int:
        """Users who are accepted less than half of the time."""
        return int((self.tpr_P < 0.5).sum())

    @property
    def never_accepted(self) -> int:
        """Users who are never accepted."""
        return int((self.tpr_P == 0).sum())

    @property
    def order(self) -> Ints:
        """The places of all users, the lowest TPR first."""
        return np.lexsort((self.auroc_P, self.tpr_P))

    @property
    def worst(self) -> Ints:
        """The places of the tenth of users with the lowest TPR, at least one, worst first."""
        return self.order[: -(-len(self.tpr_P) // round(1 / WORST))]

    @property
    def one_class_auroc(self) -> float:
        """The mean over users of their own AUROC (FedMetric, Table 2); NaN where nobody has one."""
        known = self.auroc_P[np.isfinite(self.auroc_P)]
        return float(known.mean()) if len(known) else float("nan")


def per_user(scored: Scored, threshold: float, pairs: bool = False) -> Users:
    """The rates of each user at score >= threshold.

    Impostor trials are those against the user's template. With `pairs`, where no side is a template, they are those in
    which the user takes part on either side.
    """
    own, score, same = scored.person_a, scored.score, scored.same
    if pairs:
        twice = ~same
        own = np.concatenate([own, scored.person_b[twice]])
        score, same = np.concatenate([score, score[twice]]), np.concatenate([same, same[twice]])
    order = np.lexsort((~same, own))  # user after user, genuine trials first
    own, score, same = own[order], score[order], same[order]
    person, first, count = np.unique(own, return_index=True, return_counts=True)
    genuine = np.add.reduceat(same, first, dtype=np.int64) if len(first) else first
    keep = genuine > 0
    person, first, count, genuine = person[keep], first[keep], count[keep], genuine[keep]
    tpr, fpr, area = (np.full(len(person), np.nan) for _ in range(3))
    for place, (begin, size, mine) in enumerate(zip(first.tolist(), count.tolist(), genuine.tolist())):
        yes, no = score[begin : begin + mine], score[begin + mine : begin + size]
        tpr[place] = (yes >= threshold).mean()
        if len(no):
            fpr[place] = (no >= threshold).mean()
            area[place] = auroc(yes, no)
    return Users(person, genuine, count - genuine, tpr, fpr, area)
