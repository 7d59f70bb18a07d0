"""The figures of a protocol against plain loops."""

import numpy as np
import pytest

from selfsame.measure.outcome import fold_figures
from selfsame.measure.trials import Scored


def test_folds_by_loops():
    rng = np.random.default_rng(2)
    same = rng.random(200) < 0.5
    score = (rng.normal(size=200) + 1.5 * same).round(1)
    fold = np.arange(200) % 5
    expected = []
    for this in range(5):
        others = [(s, k) for s, k, f in zip(score, same, fold) if f != this]
        levels = [np.inf, *sorted({s for s, _ in others}, reverse=True)]
        right = [sum((s >= t) == k for s, k in others) for t in levels]
        best = right.index(max(right))
        limit = levels[best] if best in (0, len(levels) - 1) else (levels[best] + levels[best + 1]) / 2
        mine = [(s >= limit) == k for s, k, f in zip(score, same, fold) if f == this]
        expected.append(sum(mine) / len(mine))
    found = fold_figures(Scored(score, same, fold, fold), fold)
    mean, error, each = found["accuracy"], found["standard_error"], found["each"]
    assert each == pytest.approx(expected) and mean == pytest.approx(np.mean(expected))
    assert error == pytest.approx(np.sqrt(sum((x - mean) ** 2 for x in expected) / 4) / np.sqrt(5))


def test_calibrated_scores_by_plain_loops():
    """Fitted on one half of the people, judged on the other."""
    from selfsame.device.calibration import calibrate, cllr, min_cllr
    from selfsame.measure.outcome import cllr_figures, threshold_at

    rng = np.random.default_rng(0)
    a, b = (rng.integers(0, 12, 600) * 10 for _ in range(2))
    scored = Scored(rng.normal(size=600) + 2 * (a == b), a == b, a, b)
    number = {person: place for place, person in enumerate(sorted({*a.tolist(), *b.tolist()}))}
    kinds = {(half, same): [] for half in (0, 1) for same in (True, False)}
    for score, same, one, two in zip(scored.score, scored.same, a, b):
        if number[one] % 2 == number[two] % 2:
            kinds[number[one] % 2, bool(same)].append(score)
    cost, least = 0.0, 0.0
    for half in (0, 1):
        fitted = calibrate(kinds[1 - half, True], kinds[1 - half, False])
        own, other = ([fitted.slope * x + fitted.offset for x in kinds[half, same]] for same in (True, False))
        cost += cllr(own, other) / 2
        least += min_cllr(kinds[half, True], kinds[half, False]) / 2
    found = cllr_figures(scored)
    assert (found["value"], found["least"]) == (pytest.approx(cost), pytest.approx(least))
    assert found["least"] <= found["value"] < 1
    assert cllr_figures(Scored(np.ones(2), np.array([True, False]), np.array([0, 0]), np.array([0, 1]))) is None
    for at in (0.1, 0.02):
        limit = threshold_at(scored.impostor, at)
        assert sum(x >= limit for x in scored.impostor) <= at * len(scored.impostor)
        lower = max(x for x in scored.impostor if x < limit)
        assert sum(x >= lower for x in scored.impostor) > at * len(scored.impostor)
