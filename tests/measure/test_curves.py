"""Curves and their rates against scikit-learn, torchmetrics, plain loops over thresholds and cases by hand."""

import itertools
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm
from sklearn.metrics import det_curve, roc_auc_score, roc_curve

from selfsame.errors import SelfsameError
from selfsame.measure.curves import Roc, auroc, corners, det, deviate, histogram, roc, supported

# Few distinct values, so that ties are the rule.
side = st.lists(st.integers(-5, 5), min_size=1, max_size=30).map(lambda x: np.array(x, dtype=np.float64))


def eer(genuine, impostor):
    curve = roc(genuine, impostor)
    return curve.eer, curve.eer_threshold


def labelled(genuine, impostor):
    return np.append(np.ones(len(genuine)), np.zeros(len(impostor))), np.concatenate([genuine, impostor])


def points(genuine, impostor):
    """(FPR, FNR) of every threshold, by counting."""
    levels = [np.inf, *sorted({*genuine.tolist(), *impostor.tolist()})]
    return [(float((impostor >= t).mean()), float((genuine < t).mean())) for t in levels]


@settings(max_examples=60)
@given(side, side)
def test_roc_and_area_agree_with_scikit_learn(genuine, impostor):
    fpr, tpr, threshold = roc_curve(*labelled(genuine, impostor), drop_intermediate=False)
    curve = roc(genuine, impostor)
    np.testing.assert_allclose(curve.fpr, fpr)
    np.testing.assert_allclose(curve.tpr, tpr)
    np.testing.assert_array_equal(curve.threshold, threshold)
    assert curve.area == auroc(genuine, impostor) == pytest.approx(roc_auc_score(*labelled(genuine, impostor)))


@settings(max_examples=60)
@given(side, side)
def test_corners_are_the_same_curve(genuine, impostor):
    """The EER to the last bit; every point of the full curve on a straight line between two corners."""
    full, few = roc(genuine, impostor), corners(genuine, impostor)
    assert (few.eer, few.area) == (full.eer, full.area)
    assert (np.diff(few.genuine) >= 0).all() and (np.diff(few.impostor) >= 0).all()
    points = set(zip(full.genuine.tolist(), full.impostor.tolist()))
    assert points >= set(zip(few.genuine.tolist(), few.impostor.tolist()))
    along = np.interp(full.fpr + full.tpr, few.fpr + few.tpr, few.tpr)
    np.testing.assert_allclose(along, full.tpr, atol=1e-12)


def test_corners_of_many_impostors_are_few():
    rng = np.random.default_rng(5)
    for genuine, impostor in ((rng.normal(1, 1, 50), rng.normal(0, 1, 9000)), (rng.random(9000), rng.random(40))):
        full, few = roc(genuine, impostor), corners(genuine, impostor)
        assert (few.eer, few.area) == (full.eer, full.area)
        assert len(few.fpr) <= 2 * len(genuine) + 4


@settings(max_examples=60)
@given(side, side)
def test_area_by_counting_pairs(genuine, impostor):
    """Exactly: the count of pairs is a whole number, and only the divisions round."""
    twice = sum(2 * (g > i) + (g == i) for g in genuine for i in impostor)
    assert auroc(genuine, impostor) == twice / 2 / len(genuine) / len(impostor)


@pytest.mark.parametrize(
    ("genuine", "impostor", "rate", "threshold"),
    [
        ([3.0, 4.0], [1.0, 2.0], 0.0, 3.0),
        ([1.0, 2.0], [3.0, 4.0], 1.0, 3.0),
        ([1.0, 1.0, 1.0], [1.0], 0.5, 1.0),  # every score ties: a coin
        ([2.0, 4.0], [1.0, 3.0], 0.5, 3.0),
        ([3.0, 5.0, 6.0, 7.0], [1.0, 2.0, 4.0, 4.5], 0.25, 4.5),
        ([2.0, 3.0], [1.0, 2.0], 0.25, 2.5),  # half way along the tie, from (0, 1/2) at 3 to (1/2, 1) at 2
    ],
)
def test_eer_by_hand(genuine, impostor, rate, threshold):
    assert eer(np.array(genuine), torch.tensor(impostor)) == (pytest.approx(rate), pytest.approx(threshold))


@settings(max_examples=60)
@given(side, side)
def test_eer_properties(genuine, impostor):
    rate, _ = eer(genuine, impostor)
    assert 0 <= rate <= 1
    assert eer(np.exp(genuine), np.exp(impostor))[0] == pytest.approx(rate)
    assert eer(-impostor, -genuine)[0] == pytest.approx(rate)
    assert auroc(-impostor, -genuine) == pytest.approx(auroc(genuine, impostor))
    assert auroc(impostor, genuine) == pytest.approx(1 - auroc(genuine, impostor))
    assert auroc(genuine**3, impostor**3) == pytest.approx(auroc(genuine, impostor))


@settings(max_examples=60)
@given(side, side)
def test_eer_lies_on_the_curve(genuine, impostor):
    """The first point of the ROC, from the highest threshold on, where FPR >= FNR, and the one before it."""
    curve = roc(genuine, impostor)
    right = next(k for k in range(len(curve.fpr)) if curve.fpr[k] >= 1 - curve.tpr[k] - 1e-12)
    a, b = (curve.fpr[k] + curve.tpr[k] - 1 for k in (right - 1, right))
    rate, threshold = eer(genuine, impostor)
    assert rate == pytest.approx(curve.fpr[right - 1] + (curve.fpr[right] - curve.fpr[right - 1]) * -a / (b - a))
    assert curve.threshold[right] <= threshold <= curve.threshold[right - 1]


def test_eer_threshold_splits_the_errors_evenly():
    rng = np.random.default_rng(0)
    genuine, impostor = rng.normal(1, 1, 4000), rng.normal(-1, 1, 9000)
    rate, threshold = eer(genuine, impostor)
    assert (impostor >= threshold).mean() == pytest.approx(rate, abs=1e-3)
    assert (genuine < threshold).mean() == pytest.approx(rate, abs=1e-3)
    assert rate == pytest.approx(0.1587, abs=0.01)  # Phi(-1)


@pytest.mark.parametrize("function", [roc, auroc, corners])
@pytest.mark.parametrize("bad", [[], [np.nan], [1.0, np.inf]])
def test_bad_scores_are_refused(function, bad):
    with pytest.raises(SelfsameError, match="genuine"):
        function(np.array(bad), np.array([0.0]))
    with pytest.raises(SelfsameError, match="impostor"):
        function(np.array([0.0]), np.array(bad))


@settings(max_examples=60)
@given(side, side, st.sampled_from([0.0, 0.05, 0.1, 0.25, 0.5, 1.0]), st.sampled_from([0.01, 0.05, 0.5, 0.9]))
def test_tpr_and_cost_by_counting(genuine, impostor, at, p_target):
    curve = roc(genuine, impostor)
    every = points(genuine, impostor)
    assert curve.tpr_at(at) == pytest.approx(max(1 - fnr for fpr, fnr in every if fpr <= at))
    cost = min(p_target * fnr + (1 - p_target) * fpr for fpr, fnr in every)
    assert curve.min_dcf(p_target) == pytest.approx(cost / min(p_target, 1 - p_target))
    assert 0 <= curve.min_dcf(p_target) <= 1 + 1e-12


def test_by_hand():
    genuine, impostor = np.array([0.9, 0.8, 0.4, 0.3]), np.array([0.7, 0.5, 0.35, 0.1, 0.0])
    curve = roc(genuine, impostor)
    assert curve.tpr_at(0.0) == 0.5  # 0.9 and 0.8 lie above every impostor
    assert curve.tpr_at(0.19) == 0.5
    assert curve.tpr_at(0.4) == 0.75  # at 0.4, with 0.7 and 0.5 let in
    # VoxCeleb's cost at 0.01: each false accept costs 99 / 5 misses, so none is let in: half is missed.
    assert curve.min_dcf(0.01) == pytest.approx(0.5)
    # At 0.75 a false accept costs 1/4 of a fifth and a miss 3/4 of a fourth: accepting from 0.3 on is best.
    assert curve.min_dcf(0.75) == pytest.approx((0.25 * 3 / 5) / 0.25)
    assert curve.eer == pytest.approx(0.4)


def test_torchmetrics_agrees():
    metrics = pytest.importorskip("torchmetrics.functional.classification")
    rng = np.random.default_rng(0)
    genuine, impostor = rng.normal(0.7, 0.12, 300).clip(0, 1), rng.normal(0.4, 0.12, 700).clip(0, 1)
    curve = roc(genuine, impostor)
    score = torch.from_numpy(np.append(genuine, impostor))
    label = torch.cat([torch.ones(300), torch.zeros(700)]).long()
    for at in (0.105, 0.0125, 0.0031):
        found, _ = metrics.binary_sensitivity_at_specificity(score, label, min_specificity=1 - at)
        assert curve.tpr_at(at) == pytest.approx(float(found), abs=1e-6)
    assert curve.area == pytest.approx(float(metrics.binary_auroc(score, label)), abs=1e-6)
    found = float(metrics.binary_eer(score, label))  # half way between both errors at the nearest threshold
    assert curve.eer == pytest.approx(found, abs=2 / 300)


def test_det_is_scikit_learns_in_normal_deviates():
    rng = np.random.default_rng(1)
    genuine, impostor = rng.normal(1.5, 1, 200), rng.normal(0, 1, 300)
    curve = roc(genuine, impostor)
    across, up = det(curve.fpr, curve.tpr)
    fpr, fnr, _ = det_curve(*labelled(genuine, impostor))
    inside = (fpr > 0) & (fpr < 1) & (fnr > 0) & (fnr < 1)
    expected = set(zip(norm.ppf(fpr[inside]).round(9), norm.ppf(fnr[inside]).round(9)))
    assert set(zip(across.round(9), up.round(9))) == expected
    assert len(expected) > 100
    np.testing.assert_allclose(deviate([0.5, 0.975]), [0.0, 1.959963984540054], atol=1e-12)


@pytest.mark.parametrize(
    ("at", "impostors", "enough"),
    [(1e-1, 100, True), (1e-1, 99, False), (1e-3, 10_000, True), (1e-4, 100_000, True), (1e-4, 99_999, False)],
)
def test_a_rate_must_rest_on_ten_false_accepts(at, impostors, enough):
    assert supported(at, impostors) is enough


@settings(max_examples=40)
@given(side, side)
def test_histogram_by_counting(genuine, impostor):
    score = np.append(genuine, impostor)
    same = np.arange(len(score)) < len(genuine)
    edges, of_genuine, of_impostor = histogram(score, same, 7)
    assert (of_genuine.sum(), of_impostor.sum()) == (len(genuine), len(impostor))
    assert edges[0] <= score.min() and edges[-1] >= score.max()
    for place, (low, high) in enumerate(itertools.pairwise(edges)):
        last = place == 6
        inside = (genuine >= low) & ((genuine <= high) if last else (genuine < high))
        assert of_genuine[place] == inside.sum()


def test_a_thin_curve_keeps_ends_and_bounds_the_error():
    rng = np.random.default_rng(1)
    genuine = np.append(rng.normal(1, 1, 5000), np.full(2000, 0.5))  # with a jump of 2/7
    curve = roc(genuine, rng.normal(0, 1, 5000))
    for number in (4, 51, 200):
        small = curve.thin(number)
        assert len(small.fpr) <= number and len(small.threshold) == len(small.fpr)
        for full, few in ((curve.fpr, small.fpr), (curve.tpr, small.tpr)):
            assert (few[0], few[-1]) == (full[0], full[-1])
        along = np.interp(curve.fpr + curve.tpr, small.fpr + small.tpr, small.tpr)
        assert np.abs(along - curve.tpr).max() <= 2 / (number // 2 - 1)
    assert small.thin() is small


def test_a_thin_curve_keeps_the_decades():
    rng = np.random.default_rng(2)
    curve = roc(rng.normal(2, 1, 40_000), rng.normal(0, 1, 60_000))
    small = curve.thin()
    assert len(small.fpr) <= 400 and (np.diff(small.threshold) < 0).all()
    for at in (1e-4, 1e-3, 1e-2, 1e-1):
        near, exact = (np.interp(at, c.fpr, c.tpr) for c in (small, curve))
        assert near == pytest.approx(exact, abs=0.02)
        near, exact = (np.interp(at, 1 - c.tpr[::-1], 1 - c.fpr[::-1]) for c in (small, curve))
        assert near == pytest.approx(exact, abs=0.02)


def test_a_curve_without_thresholds():
    """Weighted counts, as the bootstrap has them."""
    curve = Roc(np.array([0.0, 3.0, 6.0]), np.array([0.0, 2.0, 8.0]))
    assert (curve.tpr.tolist(), curve.fpr.tolist(), curve.area) == ([0, 0.5, 1], [0, 0.25, 1], 0.625)
    assert curve.eer == pytest.approx(0.4)  # FPR - FNR from -1/4 to 1: a fifth of the way
    assert curve.thin() is curve


def test_curves_and_bootstrap_need_no_torch():
    code = "import sys, selfsame.measure.curves, selfsame.measure.bootstrap; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "False", done.stderr
