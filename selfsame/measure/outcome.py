"""All figures of one protocol's trials, as plain numbers and words, ready for JSON."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from selfsame.device.calibration import calibrate, cllr, min_cllr
from selfsame.measure.bootstrap import LEAST_PEOPLE, interval, mean_replicates, replicates
from selfsame.measure.curves import FALSE_ACCEPTS, Bools, Floats, Ints, Roc, histogram, roc, supported
from selfsame.measure.ranking import KS, precision
from selfsame.measure.trials import Scored
from selfsame.measure.users import user_figures

FPRS = (1e-1, 1e-2, 1e-3, 1e-4)
P_TARGETS = (0.01, 0.05)  # VoxCeleb's, with both costs 1

Plain = dict[str, Any]
Stream = Callable[[str], np.random.Generator]  # the random numbers of a purpose


@dataclass(frozen=True)
class Measured:
    """The trials of a protocol, and what goes with them."""

    name: str
    what: str
    scored: Scored
    place: tuple[Ints, Ints] | None = None  # of each sample's own template among all, and whose sample
    pairs: bool = False  # no side of a trial is a template
    fold_T: Ints | None = None
    notes: tuple[str, ...] = ()
    precision: dict[int, float] | None = None  # P@k against several true labels, in place of that by places


def outcome(measured: Measured, bootstrap: int, rng: Stream, name_of: Callable[[int], str]) -> Plain:
    """Error rates with their intervals, identification, folds, users, curve and histogram."""
    scored = measured.scored
    curve = roc(scored.genuine, scored.impostor)
    value = _rates(curve)
    owners = len(np.unique(scored.person_a[scored.same]))
    notes = list(measured.notes)
    drawn: Floats | None = None
    if bootstrap and owners >= LEAST_PEOPLE:
        drawn = replicates(scored, _rates, bootstrap, rng(f"bootstrap/{measured.name}"))
    elif bootstrap:
        notes.append(f"no intervals: {owners} people have genuine trials, {LEAST_PEOPLE} are needed")

    def figure(number: int) -> Plain:
        low, high = (None, None) if drawn is None else interval(drawn[:, number])
        return {"value": float(value[number]), "low": low, "high": high}

    tprs: Plain = {}
    limits: Plain = {}
    impostors = len(scored.impostor)
    for number, at in enumerate(FPRS):
        needed = math.ceil(FALSE_ACCEPTS / at)
        refused = {"refused": f"needs {needed:,} impostor trials, there are {impostors:,}"}
        tprs[f"{at:g}"] = figure(2 + number) if supported(at, impostors) else refused
        if supported(at, impostors):
            limits[f"{at:g}"] = threshold_at(scored.impostor, at)
    edges, genuine, impostor = histogram(scored.score, scored.same)
    few = curve.thin()
    return {
        "name": measured.name,
        "what": measured.what,
        "genuine": len(scored.genuine),
        "impostor": impostors,
        "people": scored.people,
        "eer": {**figure(0), "threshold": curve.eer_threshold},
        "auroc": figure(1),
        "tpr_at_fpr": tprs,
        "thresholds": limits,
        "cllr": cllr_figures(scored),
        "min_dcf": {f"{p:g}": figure(2 + len(FPRS) + number) for number, p in enumerate(P_TARGETS)},
        "identification": _identification(measured, bootstrap if drawn is not None else 0, rng),
        "folds": None if measured.fold_T is None else fold_figures(scored, measured.fold_T),
        "users": user_figures(scored, curve.eer_threshold, measured.pairs, name_of),
        "curve": {"fpr": _few(few.fpr), "tpr": _few(few.tpr)},
        "histogram": {"edges": _few(edges), "genuine": genuine.tolist(), "impostor": impostor.tolist()},
        "notes": notes,
    }


def threshold_at(impostor: Floats, fpr: float) -> float:
    """The lowest threshold, of those just above an impostor's score, that accepts at most this share of them."""
    falling = np.sort(impostor)[::-1]
    allowed = math.floor(fpr * len(falling) + 1e-9)
    return float(np.nextafter(falling[min(allowed, len(falling) - 1)], np.inf))


def cllr_figures(scored: Scored) -> Plain | None:
    """The cost of log-likelihood ratios by logistic regression, and the least of any rising function (PAV).

    Half of the people, every second, fit the regression for the trials among the others and the other way round, so
    that nobody is judged by what they helped to fit; trials across the halves are left out. Both costs are means over
    the halves. None where one of them has no trials of a kind.
    """
    people = np.unique(np.concatenate([scored.person_a, scored.person_b]))
    half_a, half_b = (np.searchsorted(people, side) % 2 for side in (scored.person_a, scored.person_b))
    parts = [(half_a == half) & (half_b == half) for half in (0, 1)]
    sides = [(scored.score[part & scored.same], scored.score[part & ~scored.same]) for part in parts]
    if not all(len(kind) for side in sides for kind in side):
        return None
    costs = []
    for here, there in (sides, sides[::-1]):
        fitted = calibrate(*there)
        costs.append((cllr(fitted.llr(here[0]), fitted.llr(here[1])), min_cllr(*here)))
    whole = calibrate(scored.genuine, scored.impostor)
    return {
        "value": float(np.mean([cost for cost, _ in costs])),
        "least": float(np.mean([least for _, least in costs])),
        "slope": whole.slope,
        "offset": whole.offset,
    }


def _rates(curve: Roc) -> Floats:
    """EER, AUROC, TPRs, detection costs."""
    return np.array([curve.eer, curve.area, *map(curve.tpr_at, FPRS), *map(curve.min_dcf, P_TARGETS)])


def _identification(measured: Measured, bootstrap: int, rng: Stream) -> Plain | None:
    """Rank-k and P@k of each sample among all templates; the templates stay in every replicate."""
    rank: Plain = {}
    within: Plain = {}
    found = measured.precision
    if found is None:
        if measured.place is None:
            return None
        place_S, person_S = measured.place
        templates = len(np.unique(measured.scored.person_a))
        found = precision(place_S, len(place_S), [k for k in KS if k <= templates])
        within = {f"rank_{k}": float((place_S < k).mean()) for k in KS[1:] if k <= templates}
        rank = {"low": None, "high": None}
        if bootstrap:
            first = (place_S == 0).astype(np.float64)
            drawn = mean_replicates(first, person_S, bootstrap, rng(f"rank/{measured.name}"))
            rank["low"], rank["high"] = interval(drawn)
    return {"rank_1": {"value": found[1], **rank}, **within, **{f"p@{k}": value for k, value in found.items()}}


def fold_figures(scored: Scored, fold_T: Ints) -> Plain:
    """Right verdicts in each fold at the threshold that is best on all other folds, and their mean.

    This is how LFW's View 2 is reported. The threshold lies half way between the lowest score that is accepted and the
    highest that is not.
    """
    each = []
    for fold in np.unique(fold_T):
        here = fold_T == fold
        limit = _most_right(scored.score[~here], scored.same[~here])
        each.append(float(((scored.score[here] >= limit) == scored.same[here]).mean()))
    error = float(np.std(each, ddof=1) / math.sqrt(len(each)))
    return {"accuracy": float(np.mean(each)), "standard_error": error, "each": each}


def _most_right(score: Floats, same: Bools) -> float:
    """The threshold with most right verdicts, the highest of those."""
    curve = roc(score[same], score[~same])
    assert curve.threshold is not None
    best = int(np.argmax(curve.genuine - curve.impostor))
    here = curve.threshold[best]
    below = curve.threshold[best + 1] if best + 1 < len(curve.threshold) else here
    return float(here if np.isinf(here) else (here + below) / 2)


def _few(values: Floats) -> list[float]:
    """Numbers to be drawn need few digits."""
    return [float(f"{value:.7g}") for value in values]
