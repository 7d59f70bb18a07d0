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
