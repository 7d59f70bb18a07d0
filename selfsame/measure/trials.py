"""Trials with their people: who is compared with whom, and the scores of these comparisons.

Shapes: S samples, C templates, N clients, R rows of one block of scores, T trials, D embedding width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from selfsame.errors import SelfsameError
from selfsame.measure.curves import Bools, Floats, Ints
from selfsame.measure.ranking import places
from selfsame.methods.base import Comparison, LocalLoss, World
from selfsame.streams import host_generator

Embed = Callable[..., Tensor]  # raw samples (S, *shape), and a client where each has a network -> embeddings (S, D)

_CHUNK = 256
_MOST_NUMBERS = 2**24  # that a chunk of samples may hold
_MOST_SCORES = 2_000_000  # in one block
MOST_PAIRED = 2000  # samples of which all are compared with one another, at most


class Raw(Protocol):
    """Raw samples that are had by their places, such as a tensor."""

    @property
    def shape(self) -> Sequence[int]: ...

    def __getitem__(self, which: Any) -> Tensor: ...


@dataclass(frozen=True)
class Scored:
    """T trials: the score, whether both sides are one person, whose template or first sample, whose sample."""

    score: Floats
    same: Bools
    person_a: Ints
    person_b: Ints

    def __post_init__(self) -> None:
        if bad := int((~np.isfinite(self.score)).sum()):
            raise SelfsameError(f"trials: {bad} of {len(self)} are not finite scores: the network has diverged")

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
    place_S: Ints  # 0: its own comes first
    left_out: int = 0  # impostor trials that were not kept


def spread(total: int, most: int, rng: np.random.Generator) -> Ints:
    """At most `most` of the places 0 .. total-1, ascending: one drawn from each of as many equal parts."""
    if total <= most:
        return np.arange(total)
    edge = np.arange(most + 1, dtype=np.int64) * total // most
    return edge[:-1] + rng.integers(np.diff(edge))


def most_pairs(person_S: Ints) -> tuple[int, float, int]:
    """(who has most of the pairs of one person, their share of these, how many there are)."""
    person_P, size = np.unique(person_S, return_counts=True)
    pairs_P = size * (size - 1) // 2
    total, most = int(pairs_P.sum()), int(pairs_P.argmax())
    return int(person_P[most]), pairs_P[most] / max(1, total), total


def draw_pairs(person_S: Ints, count: int, seed: int) -> tuple[Ints, Ints, Bools]:
    """(left, right, same): half genuine and half impostor pairs of different samples, none twice.

    Each kind is drawn evenly from all its pairs, or is all of them where there are no more than `count // 2`.
    """
    order = np.argsort(person_S, kind="stable")
    _, start, size = np.unique(person_S[order], return_index=True, return_counts=True)
    end = np.repeat(start + size, size)  # of each sorted sample's person
    place = np.arange(len(order))
    # Sorted sample i has a genuine pair with every later one of its person and an impostor pair with all after that:
    # either kind of pair is numbered by running through i and then through its partners.
    pairs = []
    for kind, first, partners in (("genuine", place + 1, end - place - 1), ("impostor", end, len(order) - end)):
        until = np.cumsum(partners)
        total = int(until[-1]) if len(until) else 0
        if total == 0:
            raise SelfsameError(f"trials: no {kind} pair among {len(order)} samples of {len(size)} people")
        if total <= count // 2:
            number = np.arange(total)
        else:
            number = host_generator(seed, f"trials/{kind}").choice(total, count // 2, replace=False, shuffle=False)
            number.sort()
        i = np.searchsorted(until, number, "right")
        pairs.append((order[i], order[first[i] + number - (until[i] - partners[i])]))
    (left_g, right_g), (left_i, right_i) = pairs
    same = np.arange(len(left_g) + len(left_i)) < len(left_g)
    return np.concatenate([left_g, left_i]), np.concatenate([right_g, right_i]), same


def pieces(x: Raw, place_S: Tensor | None = None) -> Iterator[Tensor]:
    """All samples, or those at these places, as many at a time as are embedded at once: fewer if each is large."""
    size = max(1, min(_CHUNK, _MOST_NUMBERS // max(1, math.prod(x.shape[1:]))))
    if place_S is not None:
        return (x[part] for part in place_S.split(size))
    return (x[begin : begin + size] for begin in range(0, x.shape[0], size))


def embedded(embed: Embed, x: Raw, place_S: Tensor | None = None) -> Tensor:
    """The embeddings (S, D) of all samples, or of those at these places."""
    parts = [embed(part) for part in pieces(x, place_S) if len(part)]
    return torch.cat(parts) if parts else torch.empty(0, 0)


def template_blocks(method: LocalLoss, emb_SD: Tensor, template_CD: Tensor) -> Iterator[Tensor]:
    """The scores of samples against templates, a block of rows (R, C) at a time."""
    rows = max(1, min(_CHUNK, _MOST_SCORES // max(1, len(template_CD))))
    return (method.score(part_RD, template_CD) for part_RD in emb_SD.split(rows))


def alone_blocks(
    method: LocalLoss, embed: Embed, truth_ND: Tensor, world: World, parts: Iterable[Tensor]
) -> Iterator[Tensor]:
    """The same where every client judges by its own network; where several hold one class, the best of them."""
    class_N = world.class_of_N[: len(truth_ND)].cpu()
    for raw in parts:
        one_by_one = [method.score(embed(raw, n), truth_ND[n : n + 1])[:, 0].cpu() for n in range(len(class_N))]
        score_RN = torch.stack(one_by_one, 1)
        score_RC = torch.full((len(raw), world.classes), -torch.inf, dtype=score_RN.dtype)
        yield score_RC.scatter_reduce(1, class_N.expand_as(score_RN), score_RN, "amax")


def pair_scores(method: Comparison, emb_SD: Tensor, left_T: Ints, right_T: Ints) -> Floats:
    """The score of each pair of samples, of which the right one stands where a template does."""
    there_SD = emb_SD if method.by_angle else method.place(emb_SD)  # a cosine takes lengths off by itself
    if len(emb_SD) <= MOST_PAIRED and len(emb_SD) ** 2 <= _CHUNK * len(left_T):  # all against all is less work
        return method.score(emb_SD, there_SD).cpu().numpy()[left_T, right_T].astype(np.float64)
    left, right = (torch.from_numpy(side).to(emb_SD.device) for side in (left_T, right_T))
    parts = zip(left.split(_CHUNK), right.split(_CHUNK), strict=True)
    score = [method.score(emb_SD[a], there_SD[b]).diagonal() for a, b in parts]
    return torch.cat(score).double().cpu().numpy() if score else np.empty(0)


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
        rank.append(places(block, torch.from_numpy(column).to(block.device)).cpu().numpy()[known])
        own.append(score_RC[row, column][known])
        rest = np.ones(score_RC.shape, bool)
        rest[row[known], column[known]] = False
        flat = np.flatnonzero(rest)
        low, high = np.searchsorted(pick, [passed, passed + len(flat)])
        kept = flat[pick[low:high] - passed]
        other.append(score_RC.ravel()[kept])
        place.append(kept + at * len(person_C))
        at, passed = at + len(score_RC), passed + len(flat)
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
