"""Trials with their people: who is compared with whom, and what a comparison comes to.

Shapes: S samples, C templates, R rows of one block of scores, T trials, D embedding width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from selfsame.errors import SelfsameError
from selfsame.measure.rates import Bools, Floats, Ints
from selfsame.measure.scores import roc
from selfsame.methods.base import LocalLoss

Embed = Callable[[Tensor], Tensor]  # raw samples (S, *shape) -> embeddings (S, D)
Fetch = Callable[[Ints], Tensor]  # places -> raw samples

_CHUNK = 256
_MOST_NUMBERS = 2**24  # that a chunk of samples may hold
_BLOCK = 2**20  # scores at a time


@dataclass(frozen=True)
class Scored:
    """T trials: the score, whether both sides are one person, whose template or first sample, whose sample."""

    score: Floats
    same: Bools
    person_a: Ints
    person_b: Ints

    def __post_init__(self) -> None:
        sizes = [len(part) for part in (self.score, self.same, self.person_a, self.person_b)]
        if len(set(sizes)) > 1:
            raise SelfsameError(f"trials: expected as many scores, kinds and people, got {sizes}")
        if not np.isfinite(self.score).all():
            bad = int((~np.isfinite(self.score)).sum())
            raise SelfsameError(f"trials: scores must be finite, {bad} of {sizes[0]} are not: the network has diverged")

    def __len__(self) -> int:
        return len(self.score)

    @property
    def genuine(self) -> Floats:
        return self.score[self.same]

    @property
    def impostor(self) -> Floats:
        return self.score[~self.same]

    @property
    def people(self) -> int:
        """How many different people take part."""
        return len(np.union1d(self.person_a, self.person_b))


@dataclass(frozen=True)
class Matched:
    """Samples against templates: the trials, and how many templates of others fit each sample better than its own."""

    scored: Scored
    rank_S: Ints  # 0: its own comes first
    left_out: int = 0  # impostor trials that were not kept


def spread(total: int, most: int, rng: np.random.Generator) -> Ints:
    """At most `most` of the places 0 .. total-1, ascending: one drawn from each of as many equal parts."""
    if total <= most:
        return np.arange(total)
    edge = np.arange(most + 1, dtype=np.int64) * total // most
    return edge[:-1] + rng.integers(np.diff(edge))


def against_templates(
    blocks: Iterable[Tensor],
    person_S: Ints,
    person_C: Ints,
    most: int,
    rng: np.random.Generator,
) -> Matched:
    """The trials of all samples against all templates, from scores that come in blocks of rows (R, C).

    `person_C` ascends. Every genuine trial is kept; of the impostor trials at most `most`, spread evenly.
    """
    column_S = np.minimum(np.searchsorted(person_C, person_S), len(person_C) - 1)
    known_S = person_C[column_S] == person_S
    others = len(person_S) * len(person_C) - int(known_S.sum())
    pick = spread(others, most, rng)
    own: list[Floats] = []
    rank: list[Ints] = []
    other: list[Floats] = []
    place: list[Ints] = []
    at = passed = 0
    for block in blocks:
        score_RC = block.double().cpu().numpy()
        row = np.arange(len(score_RC))
        column, known = column_S[at + row], known_S[at + row]
        mine = score_RC[row, column]
        # Of equal scores the lower class comes first, as in `ranking`.
        level = (score_RC == mine[:, None]) & (np.arange(len(person_C)) < column[:, None])
        rank.append((score_RC > mine[:, None]).sum(1)[known] + level.sum(1)[known])
        own.append(mine[known])
        rest = np.ones(score_RC.shape, bool)
        rest[row[known], column[known]] = False
        flat = np.flatnonzero(rest)
        low, high = np.searchsorted(pick, [passed, passed + len(flat)])
        flat = flat[pick[low:high] - passed]
        other.append(score_RC.ravel()[flat])
        place.append(flat + at * len(person_C))
        at, passed = at + len(score_RC), passed + len(rest.ravel()) - int(known.sum())
    if at != len(person_S):
        raise SelfsameError(f"trials: scores of {at} samples, people of {len(person_S)}")
    row, column = np.divmod(np.concatenate([np.empty(0, np.int64), *place]), len(person_C))
    scored = Scored(
        np.concatenate([np.empty(0), *own, *other]),
        np.arange(int(known_S.sum()) + len(row)) < int(known_S.sum()),
        np.concatenate([person_S[known_S], person_C[column]]),
        np.concatenate([person_S[known_S], person_S[row]]),
    )
    return Matched(scored, np.concatenate([np.empty(0, np.int64), *rank]), others - len(pick))


def with_impostors(owners: Scored, strangers: Scored) -> Scored:
    """The genuine trials of some people with the trials in which strangers claim to be them."""
    parts = ((owners, owners.same), (strangers, ~strangers.same))

    def both(name: str) -> Any:
        return np.concatenate([getattr(scored, name)[kept] for scored, kept in parts])

    return Scored(both("score"), both("same"), both("person_a"), both("person_b"))


def chunks(places: Ints, shape: Sequence[int]) -> Iterator[Ints]:
    """The places in pieces whose samples, of this shape, are embedded at a time."""
    size = max(1, min(_CHUNK, _MOST_NUMBERS // max(1, math.prod(shape))))
    return (places[begin : begin + size] for begin in range(0, len(places), size))


def embedded(embed: Embed, fetch: Fetch, places: Ints, shape: Sequence[int]) -> Tensor:
    """The embeddings (S, D) of the samples at these places."""
    parts = [embed(fetch(part)) for part in chunks(places, shape)]
    return torch.cat(parts) if parts else torch.empty(0, 0)


def template_blocks(method: LocalLoss, emb_SD: Tensor, template_CD: Tensor) -> Iterator[Tensor]:
    """The scores of samples against templates, a block of rows at a time."""
    rows = max(1, _BLOCK // max(1, len(template_CD)))
    return (method.score(part_RD, template_CD) for part_RD in emb_SD.split(rows))


def pair_scores(method: LocalLoss, emb_SD: Tensor, left_T: Ints, right_T: Ints) -> Floats:
    """The score of each pair of samples."""
    left, right = (torch.from_numpy(side).to(emb_SD.device) for side in (left_T, right_T))
    parts = zip(left.split(_CHUNK), right.split(_CHUNK), strict=True)
    score = [method.score(emb_SD[a], emb_SD[b]).diagonal() for a, b in parts]
    return torch.cat(score).double().cpu().numpy() if score else np.empty(0)


def fold_accuracy(scored: Scored, fold_T: Ints) -> tuple[float, float, list[float]]:
    """(mean, its standard error, each fold's): right verdicts at the threshold that is best on all other folds.

    This is how LFW's View 2 is reported. The threshold lies half way between the lowest score that is accepted and the
    highest that is not.
    """
    folds = np.unique(fold_T)
    if len(folds) < 2:
        raise SelfsameError(f"folds: at least 2 are needed, got {len(folds)}")
    rights = []
    for fold in folds:
        here = fold_T == fold
        limit = _most_right(scored.score[~here], scored.same[~here])
        rights.append(float(((scored.score[here] >= limit) == scored.same[here]).mean()))
    return float(np.mean(rights)), float(np.std(rights, ddof=1) / math.sqrt(len(rights))), rights


def _most_right(score: Floats, same: Bools) -> float:
    """The threshold with most right verdicts, the highest of those."""
    curve = roc(score[same], score[~same])
    right = np.rint(curve.tpr * same.sum()) - np.rint(curve.fpr * (~same).sum())  # whole, so that equal ones are equal
    best = int(np.argmax(right))
    here = curve.threshold[best]
    below = curve.threshold[best + 1] if best + 1 < len(curve.threshold) else here
    return float(here if np.isinf(here) else (here + below) / 2)


@dataclass(frozen=True)
class Split:
    """How FDML measures accuracy (section VII-C)."""

    template: int = 20
    threshold: int = 10
    test: int = 10
    others: int = 10  # users each for the threshold and for the test

    @property
    def samples(self) -> int:
        return self.template + self.threshold + self.test

    @property
    def users(self) -> int:
        """The least number of users."""
        return 2 * self.others + 1


def split_accuracy(
    method: LocalLoss,
    emb_SD: Tensor,
    person_S: Ints,
    threshold: Callable[[Floats, Floats], float],
    rng: np.random.Generator,
    split: Split = Split(),  # noqa: B008
) -> Floats:
    """Each user's share of right verdicts (FDML, section VII-C), for users with enough samples.

    A user's template is the mean of some of their samples; the threshold comes from more of their samples and those of
    ten users, by Algorithm 4; the verdicts are on the rest and on samples of ten further users.
    """
    people, count = np.unique(person_S, return_counts=True)
    people = people[count >= split.samples]
    if len(people) < split.users:
        raise SelfsameError(
            f"{split.users} people with {split.samples} samples are needed, there are {len(people)} of {len(count)}"
        )
    order = [rng.permutation(np.flatnonzero(person_S == person))[: split.samples] for person in people]
    cut = [split.template, split.template + split.threshold]
    part_a, part_b, part_c = (np.stack(part) for part in zip(*(np.split(own, cut) for own in order)))
    right = np.empty(len(people))
    for user in range(len(people)):
        others = rng.permutation(np.delete(np.arange(len(people)), user))[: 2 * split.others]
        template_D = method.template(emb_SD[torch.from_numpy(part_a[user])])

        def scores(place: Ints, template_D: Tensor = template_D) -> Floats:
            emb = emb_SD[torch.from_numpy(place.ravel())]
            return method.score(emb, template_D[None])[:, 0].double().cpu().numpy()

        limit = threshold(scores(part_b[user]), scores(part_b[others[: split.others]]))
        own, other = scores(part_c[user]), scores(part_c[others[split.others :]])
        right[user] = ((own >= limit).sum() + (other < limit).sum()) / (len(own) + len(other))
    return right
