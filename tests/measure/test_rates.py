"""Rates of a curve against scikit-learn, torchmetrics, plain loops over thresholds and cases by hand."""

import itertools
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm
from sklearn.metrics import det_curve, roc_auc_score

from selfsame.measure.rates import (
    area,
    det,
    deviate,
    equal_error,
    histogram,
    min_dcf,
    outline,
    supported,
    tpr_at_fpr,
)
from selfsame.measure.scores import eer, roc

# Few distinct values, so that ties are the rule.
side = st.lists(st.integers(-4, 4), min_size=1, max_size=25).map(lambda x: np.array(x, dtype=np.float64))


def points(genuine, impostor):
    """(FPR, FNR) of every threshold, by counting."""
    levels = [np.inf, *sorted({*genuine.tolist(), *impostor.tolist()})]
    return [(float((impostor >= t).mean()), float((genuine < t).mean())) for t in levels]


@settings(max_examples=80, deadline=None)
@given(side, side)
def test_equal_error_and_area_are_those_of_the_scores(genuine, impostor):
    curve = roc(genuine, impostor)
    assert equal_error(curve.fpr, curve.tpr) == pytest.approx(eer(genuine, impostor)[0], abs=1e-12)
    label = np.append(np.ones(len(genuine)), np.zeros(len(impostor)))
    assert area(curve.fpr, curve.tpr) == pytest.approx(roc_auc_score(label, np.append(genuine, impostor)))


@settings(max_examples=80, deadline=None)
@given(side, side, st.sampled_from([0.0, 0.05, 0.1, 0.25, 0.5, 1.0]), st.sampled_from([0.01, 0.05, 0.5, 0.9]))
def test_tpr_and_cost_by_counting(genuine, impostor, at, p_target):
    curve = roc(genuine, impostor)
    every = points(genuine, impostor)
    assert tpr_at_fpr(curve.fpr, curve.tpr, at) == pytest.approx(max(1 - fnr for fpr, fnr in every if fpr <= at))
    for c_miss, c_fa in ((1.0, 1.0), (10.0, 1.0), (1.0, 3.0)):
        cost = min(c_miss * p_target * fnr + c_fa * (1 - p_target) * fpr for fpr, fnr in every)
        best = cost / min(c_miss * p_target, c_fa * (1 - p_target))
        assert min_dcf(curve.fpr, curve.tpr, p_target, c_miss, c_fa) == pytest.approx(best)
        assert 0 <= best <= 1 + 1e-12


def test_by_hand():
    genuine, impostor = np.array([0.9, 0.8, 0.4, 0.3]), np.array([0.7, 0.5, 0.35, 0.1, 0.0])
    curve = roc(genuine, impostor)
    assert tpr_at_fpr(curve.fpr, curve.tpr, 0.0) == 0.5  # 0.9 and 0.8 lie above every impostor
    assert tpr_at_fpr(curve.fpr, curve.tpr, 0.19) == 0.5
    assert tpr_at_fpr(curve.fpr, curve.tpr, 0.4) == 0.75  # at 0.4, with 0.7 and 0.5 let in
    # VoxCeleb's cost at 0.01: each false accept costs 99 / 5 misses, so none is let in: half is missed.
    assert min_dcf(curve.fpr, curve.tpr, 0.01) == pytest.approx(0.5)
    # At 0.75 a false accept costs 1/4 of a fifth and a miss 3/4 of a fourth: accepting from 0.3 on is best.
    assert min_dcf(curve.fpr, curve.tpr, 0.75) == pytest.approx((0.25 * 3 / 5) / 0.25)
    assert equal_error(curve.fpr, curve.tpr) == pytest.approx(0.4)


def test_torchmetrics_agrees():
    metrics = pytest.importorskip("torchmetrics.functional.classification")
    rng = np.random.default_rng(0)
    genuine, impostor = rng.normal(0.7, 0.12, 300).clip(0, 1), rng.normal(0.4, 0.12, 700).clip(0, 1)
    curve = roc(genuine, impostor)
    score = torch.from_numpy(np.append(genuine, impostor))
    label = torch.cat([torch.ones(300), torch.zeros(700)]).long()
    for at in (0.105, 0.0125, 0.0031):
        found, _ = metrics.binary_sensitivity_at_specificity(score, label, min_specificity=1 - at)
        assert tpr_at_fpr(curve.fpr, curve.tpr, at) == pytest.approx(float(found), abs=1e-6)
    assert area(curve.fpr, curve.tpr) == pytest.approx(float(metrics.binary_auroc(score, label)), abs=1e-6)
    found = float(metrics.binary_eer(score, label))  # half way between both errors at the nearest threshold
    assert equal_error(curve.fpr, curve.tpr) == pytest.approx(found, abs=2 / 300)


def test_det_is_scikit_learns_in_normal_deviates():
    rng = np.random.default_rng(1)
    genuine, impostor = rng.normal(1.5, 1, 200), rng.normal(0, 1, 300)
    curve = roc(genuine, impostor)
    across, up = det(curve.fpr, curve.tpr)
    label = np.append(np.ones(200), np.zeros(300))
    fpr, fnr, _ = det_curve(label, np.append(genuine, impostor))
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


@settings(max_examples=40, deadline=None)
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


def test_the_outline_keeps_both_ends_and_the_decades():
    rng = np.random.default_rng(2)
    curve = roc(rng.normal(2, 1, 40_000), rng.normal(0, 1, 60_000))
    kept = outline(curve.fpr, curve.tpr)
    assert (kept[0], kept[-1]) == (0, len(curve.fpr) - 1) and (np.diff(kept) > 0).all() and len(kept) <= 402
    for at in (1e-4, 1e-3, 1e-2, 1e-1):
        for full, few in ((curve.fpr, curve.tpr), (1 - curve.tpr[::-1], 1 - curve.fpr[::-1])):
            places = kept if full is curve.fpr else len(curve.fpr) - 1 - kept[::-1]
            near = np.interp(at, full[places], few[places])
            assert near == pytest.approx(np.interp(at, full, few), abs=0.02)
    np.testing.assert_array_equal(outline(curve.fpr[:9], curve.tpr[:9]), np.arange(9))


def test_rates_and_bootstrap_need_no_torch():
    code = "import sys, selfsame.measure.rates, selfsame.measure.bootstrap; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "False", done.stderr
