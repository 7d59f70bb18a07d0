"""Calibration against its own objective in plain loops, and Cllr against every rising function there is."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfsame.device.calibration import calibrate, cllr, min_cllr
from selfsame.errors import SelfsameError

OWN, OTHER = [0.9, 0.7, 0.75, 0.3, 0.8], [0.1, 0.4, -0.2, 0.72, 0.0, 0.2, 0.1]


def objective(slope, offset, own, other):
    """The mean loss of both kinds with Platt's targets, in plain loops."""
    total = 0.0
    for scores, target in ((own, (len(own) + 1) / (len(own) + 2)), (other, 1 / (len(other) + 2))):
        for score in scores:
            logit = slope * score + offset
            p = 1 / (1 + math.exp(-logit))
            total -= (target * math.log(p) + (1 - target) * math.log(1 - p)) / len(scores) / 2
    return total


def test_the_objective_is_least_there():
    found = calibrate(OWN, OTHER)
    least = objective(found.slope, found.offset, OWN, OTHER)
    for a, b in itertools.product((-0.05, 0.0, 0.05), repeat=2):
        assert objective(found.slope + a, found.offset + b, OWN, OTHER) >= least - 1e-12
    assert found.slope > 0
    assert found.llr([0.5])[0] == pytest.approx(0.5 * found.slope + found.offset)


def test_normal_scores_give_their_true_ratio():
    """Means 0 and 2, deviation 1: the log-likelihood ratio is 2 score - 2, however many trials each kind has."""
    rng = np.random.default_rng(0)
    found = calibrate(rng.normal(2, 1, 20_000), rng.normal(0, 1, 80_000))
    assert (found.slope, found.offset) == (pytest.approx(2, abs=0.1), pytest.approx(-2, abs=0.1))


def test_kinds_that_never_mix_or_never_differ():
    apart = calibrate([1.0, 1.1], [0.0, 0.1])
    assert math.isfinite(apart.slope) and apart.llr([1.0])[0] > 0 > apart.llr([0.1])[0]
    same = calibrate([1.0], [1.0, 1.0])
    assert (same.slope, same.offset) == (0, 0)
    assert calibrate([0.0, 0.1], [1.0, 1.1]).slope == 0  # a ratio that falls with the score is none


def test_cllr_by_plain_loops():
    want = sum(math.log2(1 + math.exp(-x)) for x in OWN) / len(OWN) / 2
    want += sum(math.log2(1 + math.exp(x)) for x in OTHER) / len(OTHER) / 2
    assert cllr(OWN, OTHER) == pytest.approx(want)
    assert cllr([0, 0], [0]) == 1
    with pytest.raises(SelfsameError, match="genuine"):
        cllr([], [1])
    with pytest.raises(SelfsameError, match="impostor"):
        min_cllr([1], [math.nan])


def least_of_all(own, other):
    """The least Cllr over all ways to cut the ordered scores into blocks of one ratio, those whose ratios rise."""
    levels = sorted({*own, *other})
    best = math.inf
    for cuts in itertools.product((False, True), repeat=len(levels) - 1):
        blocks, block = [], [levels[0]]
        for level, cut in zip(levels[1:], cuts):
            if cut:
                blocks.append(block)
                block = []
            block.append(level)
        blocks.append(block)
        shares = [(sum(x in b for x in own) / len(own), sum(x in b for x in other) / len(other)) for b in blocks]
        rising = all(g1 * i2 <= g2 * i1 for (g1, i1), (g2, i2) in itertools.pairwise(shares))
        if rising:
            cost = sum(
                (g * math.log2(1 + i / g) if g else 0) + (i * math.log2(1 + g / i) if i else 0) for g, i in shares
            )
            best = min(best, cost / 2)
    return best


@given(
    st.lists(st.integers(0, 6), min_size=1, max_size=6),
    st.lists(st.integers(0, 6), min_size=1, max_size=6),
)
def test_the_least_cllr_over_all_rising_functions(own, other):
    assert min_cllr(own, other) == pytest.approx(least_of_all(own, other), abs=1e-12)
    assert min_cllr(own, other) <= 1 + 1e-12
