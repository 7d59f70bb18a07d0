"""What strangers score: statistics of a population that a model's card carries. It has nobody's vector, and no sample.

Owners of the population have templates, and everybody else's samples are scored against them. An owner's FPR at a
threshold is the share of those scores that reach it. A new owner is taken for one more draw from the owners: of O + 1
owners who could stand in any order, the new one has at most the k-th smallest figure with a chance of k / (O + 1). So
bounds are order statistics over owners, whatever the distribution.

Shapes: O owners, D dimensions, S samples.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfsame.device.calibration import Calibration, calibrate
from selfsame.device.thresholds import balanced
from selfsame.errors import SelfsameError

Floats = NDArray[np.float64]
Scorer = Callable[[Any, Any], Floats]  # of samples (S, D) and a template (D,): (S,)
Maker = Callable[[Any], Any]  # from samples (S, D) a template (D,)

KINDS = ("enrolled", "trained")  # templates made from samples, or vectors that training left
_DECADES: tuple[tuple[int, ...], ...] = (
    (9900, 9500, 9000, 8000, 7000, 6000, 5000, 4000, 3000, 2500, 2000, 1500),
    (1000, 700, 500, 300, 200, 150),
    (100, 70, 50, 30, 20),
    (10, 5, 2, 1),
)
RATES = tuple(share / 10_000 for decade in _DECADES for share in decade)
LEVELS = (0.5, 0.8, 0.95)  # of owners whose FPR a bound is to hold for; the last on either side
TEMPLATES = (1, 2, 5, 15)  # samples behind a template
TOGETHER = (1, 3)  # samples of an attempt
SIZES = (3, 5, 10, 20)  # warm-up scores by which it is told whether they are one person's
LEAST_OWNERS = 5
_LEAST_ACCEPTS = 5  # false accepts of every owner that a rate must rest on
_DIGITS = 6


@dataclass(frozen=True)
class Share:
    """A share that is expected, and between which two it lies."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Strangers:
    """Statistics of one population, for templates of one size and attempts of one size.

    At the thresholds `pooled` strangers pass at the rates, over all owners; `low` are the thresholds at which they do
    for an owner with few false accepts, `highs` for owners with many: a row for each of the confidences.
    """

    kind: str
    who: str  # the people, in words
    template: int  # samples behind a template; 0: vectors that training left
    together: int  # samples of an attempt, whose mean score decides
    owners: int
    scores: int  # of strangers, against the owner who has fewest
    confidence: tuple[float, ...]  # rising: that a row of `highs` holds for a new owner
    rate: tuple[float, ...]  # falling
    pooled: tuple[float, ...]
    low: tuple[float, ...]
    highs: tuple[tuple[float, ...], ...]
    even: float  # the threshold at which as many strangers pass as owners fail, over all owners
    limits: tuple[tuple[int, float], ...]  # of so many own scores no owner had a larger share below `even`
    slope: float  # of the log-likelihood ratio
    offset: float

    def __post_init__(self) -> None:
        lists = (self.pooled, self.low, *self.highs)
        sound = self.kind in KINDS and 0 < len(self.who) <= 100 and self.who.isprintable()
        sound = sound and self.template >= 0 and self.together >= 1 and self.owners >= 1 and self.scores >= 1
        sound = sound and 0 < len(self.rate) <= 100 and all(len(one) == len(self.rate) for one in lists)
        sound = sound and all(0 < f < 1 for f in self.rate) and all(a > b for a, b in itertools.pairwise(self.rate))
        sound = sound and all(a <= b for one in lists for a, b in itertools.pairwise(one))
        sound = sound and 0 < len(self.highs) == len(self.confidence) <= 10 and all(0 < c < 1 for c in self.confidence)
        sound = (
            sound
            and all(a <= b for a, b in itertools.pairwise(self.confidence))
            and self.slope >= 0
            and len(self.limits) <= 100
        )
        sound = sound and all(size >= 1 and 0 <= limit <= 1 for size, limit in self.limits)
        if not sound:
            raise SelfsameError("card: cohort: figures that no population has")

    @property
    def high(self) -> tuple[float, ...]:
        """The thresholds of the highest confidence."""
        return self.highs[-1]

    @property
    def words(self) -> str:
        return f"{self.owners} owners and {self.who}"

    @property
    def calibration(self) -> Calibration:
        return Calibration(self.slope, self.offset)

    def let_in(self, threshold: float) -> Share:
        """The share of strangers that reach a threshold: over all owners, and between which two for one owner.

        The ends are steps of `rate`, outwards; beyond the last rate that the population shows nothing is known but
        that the share is no larger.
        """
        rate = np.array(self.rate)
        below = threshold < self.pooled[0]
        value = 1.0 if below else float(np.exp(np.interp(threshold, self.pooled, np.log(rate))))
        under = int(np.searchsorted(self.high, threshold, "left"))  # as many bounds lie below the threshold
        over = int(np.searchsorted(self.low, threshold, "right"))
        high = 1.0 if under == 0 else float(rate[under - 1])
        low = float(rate[over]) if over < len(rate) else 0.0
        return Share(value, min(low, value), max(high, value))

    def bound(self, fpr: float, confidence: float = LEVELS[-1]) -> tuple[float, float]:
        """The lowest threshold known to let in at most this share of strangers, and for which share of owners.

        That is the first of the confidences that is as high as the one asked for, or else the highest.
        """
        row = next(
            (at for at, level in enumerate(LEVELS[: len(self.highs)]) if level >= confidence), len(self.highs) - 1
        )
        fits = [number for number, rate in enumerate(self.rate) if rate <= fpr * (1 + 1e-9)]
        if not fits:
            raise SelfsameError(
                f"--fpr {fpr:g}: the model's cohort of {self.owners} owners shows rates from {self.rate[-1]:g} on"
            )
        return float(np.nextafter(self.highs[row][fits[0]], np.inf)), self.confidence[row]

    def typical(self, number: int = 1000) -> Floats:
        """So many scores with the quantiles of all strangers, those beyond the rates at the ends."""
        level = (np.arange(number) + 0.5) / number  # shares that pass
        rising = np.log(np.array(self.rate[::-1])), np.array(self.pooled[::-1])
        out: Floats = np.interp(np.log(level), *rising)
        return out

    def alike(self, scores: Sequence[float]) -> tuple[float, float] | None:
        """(share of these own scores below `even`, the largest of an owner): None where they are too few to tell."""
        fits = [limit for size, limit in self.limits if size <= len(scores)]
        return (float(np.mean(np.asarray(scores) < self.even)), fits[-1]) if fits else None


def find(cohort: Sequence[Strangers], kind: str, template: int, together: int = 1) -> Strangers | None:
    """The population whose templates are nearest in size, of attempts that are no larger; None where there is none."""
    fits = [one for one in cohort if one.kind == kind and one.together <= together]
    if not fits:
        return None
    return min(fits, key=lambda one: (together - one.together, abs(math.log(max(1, template) / max(1, one.template)))))


def enrolled_cohort(score: Scorer, make: Maker, people: Sequence[Floats], who: str) -> list[Strangers]:
    """The populations of people who enrol with their first samples and are judged by the others: (n, D) each."""
    out = []
    for size in TEMPLATES:
        rich = [emb for emb in people if len(emb) >= 2 * size and len(emb) >= size + 2]
        if len(rich) < LEAST_OWNERS:
            continue
        template_OD = [make(emb[:size]) for emb in rich]
        table = [[score(emb, template_D) for emb in rich] for template_D in template_OD]  # owner, then whose samples
        own = [row[owner][size:] for owner, row in enumerate(table)]
        pairs = [_pairs(score, make, emb[: SIZES[-1]]) for emb in rich] if size == 1 else None
        for together in TOGETHER:
            out += _populations("enrolled", who, size, together, table, own, pairs)
    return out


def trained_cohort(
    score: Scorer,
    template_OD: Sequence[Floats],
    own: Sequence[Floats],
    strangers: Sequence[Floats] | None,
    who: str,
) -> list[Strangers]:
    """The populations of vectors that training left; without `strangers` the other owners' samples are those."""
    kept = [owner for owner, emb in enumerate(own) if len(emb) >= 2]
    if len(kept) < LEAST_OWNERS:
        return []
    others = [own[owner] for owner in kept] if strangers is None else list(strangers)
    table = [[score(emb, template_OD[owner]) for emb in others] for owner in kept]
    mine = [score(own[owner], template_OD[owner]) for owner in kept]
    out = []
    for together in TOGETHER:
        out += _populations("trained", who, 0, together, table, mine, None, strangers is None)
    return out


def _populations(
    kind: str,
    who: str,
    size: int,
    together: int,
    table: Sequence[Sequence[Floats]],
    own: Sequence[Floats],
    pairs: Sequence[Floats] | None,
    owners_are_others: bool = True,
) -> list[Strangers]:
    """The population of these scores, or none where they are too few."""
    other = [
        _flat([_means(part, together) for j, part in enumerate(row) if j != o or not owners_are_others])
        for o, row in enumerate(table)
    ]
    mine = [_means(scores, together) for scores in own]
    kept = [o for o in range(len(own)) if len(mine[o])]
    least = min((len(other[o]) for o in kept), default=0)
    rate = [f for f in RATES if f * least >= _LEAST_ACCEPTS]
    if len(kept) < LEAST_OWNERS or not rate:
        return []
    mine, other = [mine[o] for o in kept], [other[o] for o in kept]
    all_own, all_other = np.concatenate(mine), np.concatenate(other)
    even = balanced(all_own, all_other).value
    each_OR = np.array([_at_rates(scores, rate) for scores in other])
    ordered_OR = np.sort(each_OR, 0)
    few, many, confidence = _places(len(kept))
    judged = mine if pairs is None or together > 1 else [pairs[o] for o in kept]
    fitted = calibrate(all_own, all_other)
    found = Strangers(
        kind, who, size, together, len(kept), least, confidence, tuple(rate),
        _rounded(_at_rates(all_other, rate)), _rounded(ordered_OR[few]), tuple(_rounded(ordered_OR[at]) for at in many),
        _up(even), _limits(judged, even, pairs is not None and together == 1),
        _short(fitted.slope), _short(fitted.offset),
    )  # fmt: skip
    return [found]


def _places(owners: int) -> tuple[int, list[int], tuple[float, ...]]:
    """The place of the owner with few false accepts, those with many, and the chances that a new one has no more."""
    many = [min(owners, math.ceil(level * (owners + 1) - 1e-9)) for level in LEVELS]
    few = max(1, math.floor((1 - LEVELS[-1]) * (owners + 1) + 1e-9))
    return few - 1, [place - 1 for place in many], tuple(_short(place / (owners + 1)) for place in many)


def _at_rates(scores: Floats, rate: Sequence[float]) -> Floats:
    """The highest score that must be refused for at most each share to pass."""
    falling = np.sort(scores)[::-1]
    return falling[[math.floor(f * len(falling) + 1e-9) for f in rate]]


def _means(scores: Floats, together: int) -> Floats:
    """The means of so many scores after one another."""
    whole = len(scores) // together * together
    out: Floats = scores[:whole].reshape(-1, together).mean(1)
    return out


def _flat(parts: Sequence[Floats]) -> Floats:
    return np.concatenate([np.empty(0), *parts])


def _pairs(score: Scorer, make: Maker, emb_SD: Floats) -> Floats:
    """The scores (S, S) of samples against each other as templates of one."""
    return np.stack([score(emb_SD, make(one_D[None])) for one_D in emb_SD])


def upper(pair_SS: Floats) -> Floats:
    """One score for each pair of different samples, of a square of scores."""
    out: Floats = pair_SS[np.triu_indices(len(pair_SS), 1)]
    return out


def _limits(own: Sequence[Floats], even: float, square: bool) -> tuple[tuple[int, float], ...]:
    """The largest share below `even` among so many own scores, or among the pairs of so many samples, of any owner."""
    out = []
    for size in SIZES:
        enough = [upper(part[:size, :size]) if square else part[:size] for part in own if len(part) >= size]
        if len(enough) >= LEAST_OWNERS:
            number = len(enough[0])
            out.append((number, _short(max(float((scores < even).mean()) for scores in enough))))
    return tuple(out)


def _rounded(values: Floats) -> tuple[float, ...]:
    return tuple(_up(value) for value in values.tolist())


def _up(value: float) -> float:
    """With few digits, and no lower."""
    if value == 0:
        return 0.0
    step = 10.0 ** (math.floor(math.log10(abs(value))) - _DIGITS + 1)
    return _short(math.ceil(value / step - 1e-9) * step)


def _short(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
