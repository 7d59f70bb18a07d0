"""The figures of a finished run with its people drawn again: what the intervals on a paper's page are made of.

A run keeps its replicates and not their interval. All runs draw by the same stream, so where the people are the same,
replicate 17 of one seed has the people of replicate 17 of another, and the mean over seeds has replicates of its own.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from selfsame.data.federation import Federation
from selfsame.data.sets.xc import MultiLabelled
from selfsame.errors import SelfsameError
from selfsame.measure.bootstrap import LEAST_PEOPLE, interval, mean_replicates, replicates
from selfsame.measure.curves import Floats, Ints, Roc
from selfsame.measure.looks import unseen_trials
from selfsame.measure.protocols import PROTOCOLS, Bench
from selfsame.measure.trials import Scored
from selfsame.streams import host_generator

REPLICATES = 200
KIND = {"p@1": "seen", "auroc_seen": "seen", "eer_seen": "seen", "auroc": "new", "eer": "new", "vii_c": "vii_c"}
_DIGITS = 7  # of a replicate that are kept

Plain = dict[str, Any]


def redrawn_seen(bench: Bench, count: int) -> Plain:
    """EER, AUROC and P@1 of test samples against everybody's vector, which stays."""
    if isinstance(bench.federation.test, MultiLabelled):
        raise SelfsameError("samples have several labels, none of which is a person")
    found = PROTOCOLS["test samples"](bench)
    eer, auroc = _rates(found.scored, count, "seen")
    assert found.place is not None
    place_S, person_S = found.place
    right = mean_replicates((place_S == 0).astype(np.float64), person_S, count, _rng("seen, P@1"))
    return _kept(bench.federation, found.scored, {"eer_seen": eer, "auroc_seen": auroc, "p@1": right})


def redrawn_new(bench: Bench, count: int) -> Plain:
    """EER and AUROC of pairs of samples of unseen people, those of a run's records."""
    bench.need_one_network()
    there = bench.federation
    if not len(there.unseen.x):
        raise SelfsameError("the data hold no unseen people")
    scored = unseen_trials(bench.method, bench.embed, there.unseen, there.trials)
    eer, auroc = _rates(scored, count, "new")
    return _kept(there, scored, {"eer": eer, "auroc": auroc})


def redrawn_users(federation: Federation, right_U: Floats, person_U: Ints, count: int) -> Plain:
    """FDML's accuracy, a mean over users; the others that each is set against stay."""
    _need(len(person_U))
    drawn = mean_replicates(right_U, person_U, count, _rng("VII-C"))
    own = Scored(right_U, np.ones(len(person_U), bool), person_U, person_U)
    return _kept(federation, own, {"vii_c": drawn})


def _rng(purpose: str) -> np.random.Generator:
    """The same for every run."""
    return host_generator(0, f"page/{purpose}")


def _rates(scored: Scored, count: int, purpose: str) -> Floats:
    """Replicates of EER and AUROC (2, count)."""
    _need(len(np.unique(scored.person_a[scored.same])))
    if scored.same.all():
        raise SelfsameError("no trial has an impostor")
    return replicates(scored, _eer_and_area, count, _rng(purpose)).T


def _eer_and_area(curve: Roc) -> Floats:
    return np.array([curve.eer, curve.area])


def _need(people: int) -> None:
    if people < LEAST_PEOPLE:
        raise SelfsameError(f"{people} people have genuine trials, {LEAST_PEOPLE} are needed")


def _kept(federation: Federation, scored: Scored, figures: dict[str, Floats]) -> Plain:
    """Replicates as they are kept, with a digest of whom the trials are about."""
    who = hashlib.sha256(json.dumps(federation.class_names).encode())
    for numbers in (scored.same, scored.person_a, scored.person_b):
        who.update(np.ascontiguousarray(numbers, np.int64).astype("<i8").tobytes())
    few = {key: [float(f"{value:.{_DIGITS}g}") for value in drawn] for key, drawn in figures.items()}
    return {"who": who.hexdigest(), "figures": few}


def seeds_interval(key: str, seeds: Sequence[Plain | None], factor: float = 100.0) -> Plain | None:
    """The 95 % interval of a figure's mean over seeds, and of each seed; None where a seed has no replicates.

    The mean has one where the trials of all seeds are about the same people. A seed that does not count is None.
    """
    drawn = [None if one is None else factor * np.array(one["figures"][key]) for one in seeds if _tells(one, key)]
    counted = [values for values in drawn if values is not None]
    if len(drawn) < len(seeds) or not counted:
        return None
    alike = len({one["who"] for one in seeds if one is not None}) == 1 and len(set(map(len, counted))) == 1
    return {
        "mean": list(interval(np.mean(counted, 0))) if alike else None,
        "seeds": [None if values is None else list(interval(values)) for values in drawn],
    }


def _tells(one: Plain | None, key: str) -> bool:
    """Whether a seed does not count, or has replicates of this figure."""
    return one is None or key in one.get("figures", {})
