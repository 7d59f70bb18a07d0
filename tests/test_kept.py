"""Kept promises against exact combinatorics, plain loops and distributions whose TPR is known."""

import itertools
import math
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.kept import DISTRIBUTIONS, measured, share_with_rest, simulated, thresholds
from selfsame.device.thresholds import bounded, kept_chance, warm_up
from selfsame.errors import SelfsameError


@settings(max_examples=40)
@given(st.integers(1, 4), st.integers(1, 5), st.integers(0, 10), st.data())
def test_share_with_rest_by_trying_every_order(n, m, tenths, data):
    k = data.draw(st.integers(1, n))
    q = Fraction(tenths, 10)
    good = total = 0
    for warm in itertools.combinations(range(n + m), n):  # which of the ordered scores are warm-up ones
        kept = sum(place > warm[k - 1] for place in range(n + m) if place not in warm)
        good += kept >= q * m
        total += 1
    assert share_with_rest(k, n, m, tenths / 10) == pytest.approx(good / total, abs=1e-12)


@pytest.mark.parametrize(("k", "n", "m", "q"), [(1, 10, 30, 0.9), (2, 50, 100, 0.95), (5, 50, 450, 0.9)])
def test_share_with_rest_is_a_beta_binomial_tail(k, n, m, q):
    exact = stats.betabinom.sf(math.ceil(q * m - 1e-9) - 1, m, n - k + 1, k)
    assert share_with_rest(k, n, m, q) == pytest.approx(exact, abs=1e-9)


def test_a_large_rest_has_no_noise():
    assert share_with_rest(2, 20, 20_000, 0.9) == pytest.approx(kept_chance(2, 20, 0.9), abs=2e-3)
    assert abs(share_with_rest(2, 20, 30, 0.9) - kept_chance(2, 20, 0.9)) > 0.02


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_known_distributions_are_what_they_say(name):
    """The share of a large draw at several thresholds, and nothing beyond the ceiling."""
    known = DISTRIBUTIONS[name]
    scores = known.draw(np.random.default_rng(0), 200_000)
    for threshold in np.quantile(scores, [0.001, 0.05, 0.1, 0.5, 0.9]):
        assert known.tpr(threshold) == pytest.approx((scores >= threshold).mean(), abs=5e-3)
    if known.ceiling is not None:
        assert scores.max() <= known.ceiling and known.tpr(known.ceiling) == 0
    assert known.tpr(1e6) == pytest.approx(0)
    assert known.tpr(-1e6) == pytest.approx(1)


def test_names_tell_guaranteed_from_extrapolated():
    scores = np.random.default_rng(1).random(29)
    assert thresholds(scores, 0.9, 0.95, 1.0) == {"warm-up": warm_up(scores, 0.9), "bounded": bounded(scores, 0.9)}
    few = scores[:28]
    assert thresholds(few, 0.9, 0.95, 1.0) == {
        "warm-up": warm_up(few, 0.9),
        "normal fit": bounded(few, 0.9),
        "log fit": bounded(few, 0.9, 0.95, 1.0),
    }
    assert set(thresholds(few, 0.9, 0.95, None)) == {"warm-up", "normal fit"}


def test_measured_by_plain_loops():
    rng = np.random.default_rng(2)
    genuine = [rng.normal(1, 1, 40), rng.normal(2, 1, 55)]
    impostor = [rng.normal(-1, 1, 70), rng.normal(0, 1, 30)]
    found = {kept.rule: kept for kept in measured(genuine, impostor, 10, 0.9, 0.6, None, 25, 3)}
    again, tprs, fprs = np.random.default_rng(3), [], []
    for own, other in zip(genuine, impostor):
        for _ in range(25):
            mixed = again.permutation(own)
            limit = sorted(mixed[:10])[0]  # 10 warm-up scores: i = 1, and 65 % sure
            tprs.append(sum(s >= limit for s in mixed[10:]) / (len(own) - 10))
            fprs.append(sum(s >= limit for s in other) / len(other))
    assert set(found) == {"warm-up", "bounded"}
    for kept in found.values():
        assert (kept.draws, kept.samples, kept.promised_tpr) == (50, 10, 0.9)
        assert kept.mean_tpr == pytest.approx(math.fsum(tprs) / 50)
        assert kept.mean_fpr == pytest.approx(math.fsum(fprs) / 50)
        assert kept.share == pytest.approx(sum(t >= 0.9 - 1e-9 for t in tprs) / 50)


def test_measured_shares_are_the_exact_ones():
    """Fresh scores for every draw: the share scatters by 1.1 % around what all orders of the scores give."""
    rng = np.random.default_rng(4)
    users, rest = 2000, 40
    genuine = [rng.normal(size=20 + rest) for _ in range(users)]
    found = measured(genuine, [np.zeros(1)] * users, 20, 0.9, 0.95, None, 1, 5)
    warm = next(kept for kept in found if kept.rule == "warm-up")
    assert warm.share == pytest.approx(share_with_rest(2, 20, rest, 0.9), abs=0.04)
    assert warm.mean_tpr == pytest.approx(19 / 21, abs=0.01)  # of a Beta(19, 2)


def test_simulated_against_the_integral():
    """How often mean - f deviation of 6 normal scores keeps a TPR of 90 %, and what the plain quantile keeps."""
    found = {kept.rule: kept for kept in simulated(DISTRIBUTIONS["normal"], 6, 0.9, 0.95, 3000, 6)}
    assert set(found) == {"warm-up", "normal fit"}
    assert found["warm-up"].share == pytest.approx(kept_chance(1, 6, 0.9), abs=0.04)
    mean, _ = integrate.quad(lambda t: t * stats.beta.pdf(t, 6, 1), 0, 1)
    assert found["warm-up"].mean_tpr == pytest.approx(mean, abs=0.02)
    # Or the smallest score where it is lower: then a little surer.
    assert 0.93 <= found["normal fit"].share <= 0.98
    assert found["normal fit"].mean_fpr is None


def test_bad_input_is_refused():
    one = [np.arange(5.0)]
    for call, line in (
        (lambda: measured([], [], 2, 0.9, 0.95, None, 1, 0), "same users"),
        (lambda: measured(one, [], 2, 0.9, 0.95, None, 1, 0), "same users"),
        (lambda: measured(one, one, 2, 0.9, 0.95, None, 0, 0), "draws"),
        (lambda: measured(one, one, 5, 0.9, 0.95, None, 1, 0), "leave none of a user's 5"),
        (lambda: share_with_rest(3, 2, 5, 0.9), "k from 1 to n"),
        (lambda: share_with_rest(1, 2, 0, 0.9), "m of 1 or more"),
    ):
        with pytest.raises(SelfsameError, match=line):
            call()
