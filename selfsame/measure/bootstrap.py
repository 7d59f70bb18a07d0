"""Confidence intervals by people: trials of one person rise and fall together, so people are drawn again, not trials.

A replicate draws as many people as there are, with replacement. A trial counts as often as its people were drawn: a
genuine one as often as its one person, an impostor one as often as either of its two, multiplied. People with genuine
trials and people who only appear as impostors are drawn separately. Scores are sorted once; a replicate is a pass over
the weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from selfsame.measure.curves import Floats, Ints, Roc

if TYPE_CHECKING:
    from selfsame.measure.trials import Scored

Measure = Callable[[Roc], Floats]  # figures of a curve

LEAST_PEOPLE = 10  # with genuine trials: below, what they have in common cannot be told from chance


@dataclass(frozen=True)
class Replicates:
    """The trials in the order of their scores, ready to be weighted.

    Between two genuine scores only the number of impostors matters, so impostors are summed in cells: those above the
    highest genuine score, those equal to it, those between it and the next, and so on.
    """

    person_g: Ints  # of each genuine trial, highest score first; people are numbered from 0
    person_i: tuple[Ints, Ints]  # the two of each impostor trial, highest score first
    first_g: Ints  # the first genuine trial of each distinct genuine score
    first_i: Ints  # the first impostor trial of each cell that is not empty
    cell: Ints  # the number of each such cell
    groups: tuple[Ints, ...]  # people that are drawn from among themselves
    space: tuple[Floats, Floats]  # to weight impostor trials in: fresh memory would cost more than the weighting

    @staticmethod
    def of(scored: Scored) -> Replicates:
        """Sort the trials."""
        number = np.unique(np.concatenate([scored.person_a, scored.person_b]), return_inverse=True)[1]
        a, b = number[: len(scored.score)], number[len(scored.score) :]
        genuine, impostor = (np.flatnonzero(kind) for kind in (scored.same, ~scored.same))
        genuine = genuine[np.argsort(-scored.score[genuine])]
        impostor = impostor[np.argsort(-scored.score[impostor])]
        high_g, high_i = -scored.score[genuine], -scored.score[impostor]
        first_g = np.flatnonzero(np.append(True, high_g[1:] != high_g[:-1]))
        # Impostors of cell 2k lie above the k-th distinct genuine score, those of cell 2k + 1 are equal to it.
        level = high_g[first_g]
        cell_i = np.searchsorted(level, high_i, "left") + np.searchsorted(level, high_i, "right")
        first_i = np.flatnonzero(np.append(True, cell_i[1:] != cell_i[:-1]))
        owners = np.unique(a[genuine])
        others = np.setdiff1d(number, owners)
        return Replicates(
            person_g=a[genuine],
            person_i=(a[impostor], b[impostor]),
            first_g=first_g,
            first_i=first_i,
            cell=cell_i[first_i],
            groups=(owners, others),
            space=(np.empty(len(impostor)), np.empty(len(impostor))),
        )

    def curve(self, drawn_P: Floats) -> Roc | None:
        """The corners of the ROC if each person counts so often; None if a kind of trial is gone."""
        genuine_k = np.add.reduceat(drawn_P[self.person_g], self.first_g)
        # Clipping does nothing to places that exist, but spares NumPy a checked copy of the output.
        weight, second = self.space
        np.take(drawn_P, self.person_i[0], out=weight, mode="clip")
        np.take(drawn_P, self.person_i[1], out=second, mode="clip")
        weight *= second
        impostor = np.zeros(2 * len(self.first_g) + 1)
        impostor[self.cell] = np.add.reduceat(weight, self.first_i)
        genuine = np.zeros_like(impostor)
        genuine[1::2] = genuine_k  # beside the impostors of equal score: the curve is straight across a tie
        accepted = Roc(*(np.concatenate([[0.0], np.cumsum(kind)]) for kind in (genuine, impostor)))
        return accepted if accepted.genuine[-1] and accepted.impostor[-1] else None


def replicates(scored: Scored, measure: Measure, count: int, rng: np.random.Generator) -> Floats:
    """The figures of `count` replicates (count, figures)."""
    trials = Replicates.of(scored)
    people = sum(map(len, trials.groups))
    found: list[Floats] = []
    while len(found) < count:
        drawn_P = np.empty(people)
        for group in trials.groups:
            drawn_P[group] = _draw(len(group), rng)
        curve = trials.curve(drawn_P)
        if curve is not None:  # everybody once is always among the draws, so this ends
            found.append(measure(curve))
    return np.array(found)


def mean_replicates(value_S: Floats, person_S: Ints, count: int, rng: np.random.Generator) -> Floats:
    """The mean of what samples are worth in `count` replicates (count,)."""
    person = np.unique(person_S, return_inverse=True)[1]
    size_P, sum_P = np.bincount(person), np.bincount(person, value_S)
    drawn = (_draw(len(size_P), rng) for _ in range(count))
    return np.array([(drawn_P @ sum_P) / (drawn_P @ size_P) for drawn_P in drawn])


def _draw(people: int, rng: np.random.Generator) -> Ints:
    """How often each person is drawn."""
    return np.bincount(rng.integers(people, size=people), minlength=people) if people else np.empty(0, np.int64)


def interval(figure_B: Floats, level: float = 0.95) -> tuple[float, float]:
    """The percentiles between which this share of the replicates lies."""
    low, high = np.quantile(figure_B, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
