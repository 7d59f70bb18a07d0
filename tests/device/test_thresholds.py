"""Thresholds against their definitions, exact fractions, scipy's non-central t, and simulated promises."""

import json
import math
import subprocess
import sys
from dataclasses import asdict
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats

sys.path.insert(0, str(Path(__file__).parents[2]))

from bench.kept import DISTRIBUTIONS
from selfsame.device.thresholds import (
    CEILINGS,
    Threshold,
    balanced,
    bounded,
    common,
    fixed,
    kept_chance,
    needed,
    tolerance_factor,
    warm_up,
)
from selfsame.errors import SelfsameError

FEW = 1e-9
values = st.floats(-100, 100).map(lambda x: round(x, 3))
side = st.lists(values, min_size=1, max_size=60)
tied = st.lists(st.integers(-3, 3).map(float), min_size=1, max_size=40)
rate = st.integers(1, 99).map(lambda x: x / 100)


def binomial_tail(k, n, p):
    """P(at least k of n) in exact fractions."""
    return sum((math.comb(n, j) * p**j * (1 - p) ** (n - j) for j in range(k, n + 1)), Fraction(0))


# FedUV, Algorithm 2


@pytest.mark.parametrize(
    ("n", "q", "i"),
    [
        (10, 0.9, 1),  # 10 * (1 - 0.9) is 0.9999999999999998
        (100, 0.9, 10),
        (20, 0.95, 1),
        (1000, 0.999, 1),
        (10, 1.1 - 0.2, 1),  # 0.9000000000000001
        (3, 2 / 3, 1),
        (19, 0.9, 1),
        (29, 0.9, 2),
        (9, 0.9, 1),  # i = 0: the smallest
        (1, 0.5, 1),
        (1, 0.0, 1),
        (1, 1.0, 1),
        (7, 1.0, 1),
        (7, 0.0, 7),
    ],
)
def test_warm_up_takes_the_ith_smallest(n, q, i):
    scores = np.random.default_rng(n).permutation(np.arange(1.0, n + 1))
    found = warm_up(scores, q)
    assert found.value == i
    assert (found.rule, found.promised_tpr, found.samples, found.guaranteed) == ("tpr", q, n, False)
    assert found.confidence == pytest.approx(kept_chance(i, n, q))


def test_warm_up_counts_ties_one_by_one():
    assert warm_up([5, 1, 1, 1, 2, 2, 3, 3, 4, 4], 0.7).value == 1
    assert warm_up([5, 1, 1, 1, 2, 2, 3, 3, 4, 4], 0.6).value == 2


@settings(max_examples=60)
@given(st.one_of(side, tied), rate)
def test_warm_up_by_exact_counting(scores, q):
    i = int(len(scores) * (1 - Fraction(str(q))))
    assert warm_up(scores, q).value == sorted(scores)[max(i, 1) - 1]
    accepted = sum(s >= warm_up(scores, q).value for s in scores)
    assert Fraction(accepted, len(scores)) >= Fraction(str(q))


# The bound


@settings(max_examples=60)
@given(st.integers(1, 80), st.integers(1, 999), st.data())
def test_kept_chance_is_a_binomial_sum(n, thousandths, data):
    k = data.draw(st.integers(1, n))
    exact = binomial_tail(k, n, 1 - Fraction(thousandths, 1000))
    found = kept_chance(k, n, thousandths / 1000)
    assert found == pytest.approx(float(exact), abs=1e-12)
    assert found == pytest.approx(stats.beta.sf(thousandths / 1000, n - k + 1, k), abs=1e-9)


@pytest.mark.parametrize(
    ("q", "confidence", "n"),
    [(0.9, 0.95, 29), (0.95, 0.95, 59), (0.99, 0.95, 299), (0.5, 0.75, 2), (0.9, 0.19, 2), (0.0, 0.99, 1)],
)
def test_needed_by_hand(q, confidence, n):
    assert needed(q, confidence) == n


@settings(max_examples=60)
@given(rate, rate)
def test_needed_is_the_least_that_promises(q, confidence):
    n = needed(q, confidence)
    exact = Fraction(str(q))
    assert 1 - exact**n >= Fraction(str(confidence))
    assert n == 1 or 1 - exact ** (n - 1) < Fraction(str(confidence))


@settings(max_examples=60)
@given(st.one_of(side, tied), rate, rate)
def test_bounded_takes_the_largest_score_that_promises(scores, q, confidence):
    n, p = len(scores), 1 - Fraction(str(q))
    good = [k for k in range(1, n + 1) if binomial_tail(k, n, p) >= Fraction(str(confidence))]
    assume(good or len(set(scores)) > 1)
    found = bounded(scores, q, confidence)
    assert found.guaranteed == bool(good) == (n >= needed(q, confidence))
    if good:
        assert found.value == sorted(scores)[max(good) - 1]
    else:
        assert found.value <= min(scores)
        assert "not guaranteed" in found.note
        assert str(needed(q, confidence)) in found.note
    assert (found.promised_tpr, found.confidence, found.samples) == (q, confidence, n)


@settings(max_examples=60)
@given(st.lists(values, min_size=2, max_size=40, unique=True), st.randoms(), rate, rate, st.sampled_from([None, 101.0]))
def test_order_does_not_matter(scores, random, q, confidence, ceiling):
    mixed = random.sample(scores, len(scores))
    assert warm_up(mixed, q) == warm_up(scores, q)
    assert bounded(mixed, q, confidence, ceiling) == bounded(scores, q, confidence, ceiling)
    other = [score - 1 for score in scores]
    assert balanced(mixed, other[::-1]) == balanced(scores, other)
    for asked in ({}, {"fpr": q}, {"tpr": q}):
        assert common(mixed, other[::-1], **asked) == common(scores, other, **asked)


@settings(max_examples=60)
@given(st.lists(values, min_size=2, max_size=40, unique=True), rate, rate, rate, st.sampled_from([None, 101.0]))
def test_a_larger_promise_has_a_lower_threshold(scores, q, more, confidence, ceiling):
    q, more = min(q, more), max(q, more)
    assert warm_up(scores, more).value <= warm_up(scores, q).value
    lower, higher = (bounded(scores, asked, confidence, ceiling).value for asked in (more, q))
    assert lower <= higher + FEW * (1 + abs(higher))
    surer, less = (bounded(scores, confidence, asked, ceiling).value for asked in (more, q))
    assert surer <= less + FEW * (1 + abs(less))


@settings(max_examples=60)
@given(st.integers(2, 120), st.data(), st.integers(50, 99))
def test_a_guarantee_is_never_above_the_plain_quantile(n, data, confidence):
    """From a confidence of 50 % on where n(1 - q) is a whole number, which is then the median of the binomial.

    In between the plain quantile rounds down and may itself be surer than that: n = 10, q = 0.81 takes s_(1), and s_(2)
    already holds with 59 %.
    """
    i = data.draw(st.integers(1, n - 1))
    q, confidence = (n - i) / n, confidence / 100
    assert warm_up(range(1, n + 1), q).value == i
    if n >= needed(q, confidence):
        assert bounded(range(1, n + 1), q, confidence).value <= i
    else:
        assert bounded(range(1, n + 1), q, confidence).value <= 1


def test_the_plain_quantile_may_be_the_surer_one_in_between():
    scores = range(1, 11)
    assert (warm_up(scores, 0.81).value, bounded(scores, 0.81, 0.55).value) == (1, 2)


@pytest.mark.parametrize("n", [5, 9, 19, 29, 50, 59, 100, 137])
@pytest.mark.parametrize("q", [0.5, 0.75, 0.81, 0.9, 0.95])
def test_at_usual_rates_a_guarantee_is_never_above_the_plain_quantile(n, q):
    for confidence in (0.75, 0.9, 0.95):
        if n >= needed(q, confidence):
            assert bounded(range(n), q, confidence).value <= warm_up(range(n), q).value


def test_a_confidence_that_is_just_reached_counts():
    """The chances are 0.8836 and 0.2 exactly, and a little less in floating point."""
    assert bounded([1, 2], 0.06, 0.8836).value == 2
    assert bounded([1], 0.8, 0.2).guaranteed


def test_many_scores():
    k = bounded(np.arange(1.0, 20_001), 0.9).value
    assert kept_chance(int(k), 20_000, 0.9) >= 0.95 > kept_chance(int(k) + 1, 20_000, 0.9)


# Beyond the smallest score


@pytest.mark.parametrize("n", [2, 3, 5, 10, 28, 58, 298])
@pytest.mark.parametrize("q", [0.5, 0.9, 0.95, 0.99])
@pytest.mark.parametrize("confidence", [0.6, 0.95, 0.99])
def test_tolerance_factor_is_a_quantile_of_the_noncentral_t(n, q, confidence):
    exact = stats.nct.ppf(confidence, n - 1, stats.norm.ppf(q) * math.sqrt(n)) / math.sqrt(n)
    assert tolerance_factor(n, q, confidence) == pytest.approx(exact, rel=1e-8)


def test_tolerance_factor_of_published_tables():
    """One-sided factors for 90 % of a normal population with 95 % confidence (Owen's and later tables)."""
    for n, factor in ((2, 20.581), (5, 3.407), (10, 2.355), (20, 1.926)):
        assert tolerance_factor(n, 0.9, 0.95) == pytest.approx(factor, abs=6e-4)


def test_extrapolation_by_plain_loops():
    scores = [0.82, 0.9, 0.85, 0.88, 0.7]
    factor = 3.4066332628008  # of the test above
    mean = math.fsum(scores) / 5
    deviation = math.sqrt(math.fsum((s - mean) ** 2 for s in scores) / 4)
    plain = bounded(scores, 0.9, 0.95)
    assert plain.value == pytest.approx(mean - factor * deviation, rel=1e-9)
    logs = [math.log(1 - s) for s in scores]
    mean = math.fsum(logs) / 5
    deviation = math.sqrt(math.fsum((x - mean) ** 2 for x in logs) / 4)
    below = bounded(scores, 0.9, 0.95, CEILINGS["cosine"])
    assert below.value == pytest.approx(1 - math.exp(mean + factor * deviation), rel=1e-9)
    assert not plain.guaranteed and not below.guaranteed
    assert "scores were normal" in plain.note and "log(1 - score)" in below.note


def test_extrapolation_stays_finite_and_below_the_smallest():
    wide = bounded([-1e-300, -1e250], 0.99, 0.99, CEILINGS["distance"])
    assert math.isfinite(wide.value) and wide.value <= -1e250
    # Two scores of low spread beside many: the limit of the fit is above the smallest score.
    scores = [0.0, *([10.0] * 27)]
    assert bounded(scores, 0.9, 0.95).value == 0.0


@pytest.mark.parametrize("scores", [[0.5], [0.5] * 28])
def test_no_spread_is_no_ground_to_extrapolate_from(scores):
    with pytest.raises(SelfsameError, match=r"no spread.*give more"):
        bounded(scores, 0.9)
    assert bounded([0.5] * 29, 0.9).guaranteed


def test_a_score_at_the_ceiling_is_refused():
    with pytest.raises(SelfsameError, match="not in the template"):
        bounded([0.5, 0.6, 1.0], 0.9, 0.95, 1.0)


# Promises kept, by simulation. Of 2,000 draws the share scatters by 0.5 % at 95 % and by 1.1 % at 50 %.
DRAWS = 2000


def kept(name, q, rule, n):
    known, rng = DISTRIBUTIONS[name], np.random.default_rng(7)
    return np.mean([known.tpr(rule(known.draw(rng, n)).value) >= q for _ in range(DRAWS)])


@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize(("n", "q", "confidence"), [(29, 0.9, 0.95), (50, 0.9, 0.95), (40, 0.8, 0.5)])
def test_guarantees_hold_for_every_distribution(name, n, q, confidence):
    share = kept(name, q, lambda x: bounded(x, q, confidence), n)
    k = int(bounded(np.arange(1.0, n + 1), q, confidence).value)
    assert share >= confidence - 0.02
    assert share == pytest.approx(kept_chance(k, n, q), abs=0.04)


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_the_plain_quantile_keeps_what_its_confidence_says(name):
    assert kept(name, 0.9, lambda x: warm_up(x, 0.9), 20) == pytest.approx(warm_up(range(20), 0.9).confidence, abs=0.04)


@pytest.mark.parametrize("name", ["integers", "halves"])
def test_ties_only_help(name):
    """True TPR of discrete scores: integers 0 to 9, and a score that half of all samples share."""
    rng, n, q = np.random.default_rng(8), 29, 0.9
    good = 0
    for _ in range(DRAWS):
        x = rng.integers(0, 10, n).astype(float) if name == "integers" else np.maximum(rng.random(n), 0.5)
        t = bounded(x, q, 0.95).value
        good += (1 - t / 10 if name == "integers" else 1.0 if t <= 0.5 else 1 - t) >= q - 1e-12
    assert good / DRAWS >= 0.95


def test_extrapolations_keep_their_promise_where_the_fit_is_right_and_not_elsewhere():
    assert kept("normal", 0.9, lambda x: bounded(x, 0.9), 8) == pytest.approx(0.95, abs=0.02)
    assert kept("minus log-normal", 0.9, lambda x: bounded(x, 0.9, 0.95, 0.0), 8) == pytest.approx(0.95, abs=0.02)
    assert kept("minus log-normal", 0.9, lambda x: bounded(x, 0.9), 8) < 0.85


# FDML, Algorithm 4, and thresholds for all


@settings(max_examples=60)
@given(tied, tied)
def test_balanced_has_the_nearest_rates_of_all_thresholds(genuine, impostor):
    def rates(t):
        fnr = Fraction(sum(s < t for s in genuine), len(genuine))
        return Fraction(sum(s >= t for s in impostor), len(impostor)), fnr

    series = {s + shift for s in [*genuine, *impostor] for shift in (-0.5, 0, 0.5)}
    best = min((abs(a - b), a + b) for a, b in map(rates, series))
    fpr, fnr = rates(balanced(genuine, impostor).value)
    assert (abs(fpr - fnr), fpr + fnr) == best
    assert common(genuine, impostor).value == balanced(genuine, impostor).value


@pytest.mark.parametrize(
    ("genuine", "impostor", "value"),
    [
        ([3, 4], [1, 2], 2.5),  # the middle of the gap
        ([1, 2], [3, 4], 2.5),  # all wrong on both sides
        ([2, 4], [1, 3], 2.5),  # one of two wrong on both sides
        ([1], [1], 1.0),  # accept everybody, or nobody: as bad
    ],
)
def test_balanced_by_hand(genuine, impostor, value):
    found = balanced(genuine, impostor)
    assert (found.value, found.promised_tpr, found.guaranteed, found.samples) == (value, None, False, len(genuine))


def test_neighbouring_numbers_have_no_middle():
    low = 0.5
    high = np.nextafter(low, 1)
    assert balanced([high], [low]).value == high


@settings(max_examples=60)
@given(st.one_of(side, tied), st.one_of(side, tied), st.integers(0, 100).map(lambda x: x / 100))
def test_common_is_the_best_threshold_that_keeps_the_rate(genuine, impostor, asked):
    exact = Fraction(str(asked))

    def share(scores, t):
        return Fraction(sum(s >= t for s in scores), len(scores))

    at = common(genuine, impostor, fpr=asked).value
    assert share(impostor, at) <= exact
    # Any lower threshold that changes anything accepts too many impostors.
    below = [s for s in [*genuine, *impostor] if s < at]
    assert not below or share(impostor, max(below)) > exact

    at = common(genuine, impostor, tpr=asked).value
    assert share(genuine, at) >= exact
    above = [s for s in genuine if s > at]
    assert not above or share(genuine, min(above)) < exact


def test_common_says_when_impostors_are_too_few():
    assert "too few" in common([1, 2], range(50), fpr=0.01).note
    assert "too few" not in common([1, 2], range(100), fpr=0.01).note
    with pytest.raises(SelfsameError, match="exclude each other"):
        common([1], [0], fpr=0.1, tpr=0.9)


# All of them


def test_every_rule_says_its_name():
    genuine, impostor = np.linspace(0.5, 0.9, 40), np.linspace(0, 0.6, 100)
    rules = {
        "tpr": warm_up(genuine, 0.8),
        "bounded": bounded(genuine, 0.8, 0.9),
        "balanced": balanced(genuine, impostor),
        "common-eer": common(genuine, impostor),
        "common-tpr": common(genuine, impostor, tpr=0.8),
        "common-fpr": common(genuine, impostor, fpr=0.05),
        "fixed": fixed(0.5),
    }
    for name, found in rules.items():
        assert found.rule == name
        assert float(found) == found.value
        assert Threshold(**json.loads(json.dumps(asdict(found)))) == found
    assert fixed(0.5).value == 0.5 and fixed(0.5).promised_tpr is None
    with pytest.raises(SelfsameError, match="impostor: no scores"):
        balanced(genuine, [])


@pytest.mark.parametrize("bad", [[], [math.nan], [1.0, math.inf], ["x"], [[1, 2], [3]]])
def test_bad_scores_are_refused(bad):
    for call in (
        lambda: warm_up(bad, 0.9),
        lambda: bounded(bad, 0.9),
        lambda: balanced(bad, [1.0]),
        lambda: balanced([1.0], bad),
        lambda: common(bad, [1.0]),
        lambda: common([1.0], bad, fpr=0.1),
    ):
        with pytest.raises(SelfsameError, match="scores"):
            call()


@pytest.mark.parametrize("bad", [-0.1, 1.1, math.nan, math.inf])
def test_bad_rates_are_refused(bad):
    for call in (
        lambda: warm_up([1.0], bad),
        lambda: bounded([1.0], bad),
        lambda: bounded([1.0], 0.9, bad),
        lambda: common([1.0], [0.0], fpr=bad),
        lambda: common([1.0], [0.0], tpr=bad),
        lambda: kept_chance(1, 2, bad),
        lambda: tolerance_factor(5, bad, 0.95),
    ):
        with pytest.raises(SelfsameError, match=r"tpr|fpr|confidence|rates"):
            call()
    for q, confidence in ((1.0, 0.95), (0.9, 0.0), (0.9, 1.0)):
        with pytest.raises(SelfsameError, match=r"tpr|confidence"):
            needed(q, confidence)
    with pytest.raises(SelfsameError, match="finite"):
        fixed(math.inf)
    with pytest.raises(SelfsameError, match="1 to the 3"):
        kept_chance(4, 3, 0.9)


def test_a_device_needs_numpy_alone():
    code = (
        "import sys, selfsame.device.thresholds;"
        "print([m for m in ('torch', 'scipy', 'sklearn', 'matplotlib') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.strip()) == (0, "[]")
