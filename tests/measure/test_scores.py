"""Scores against scikit-learn, hand-computed cases and properties."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score, roc_curve

from selfsame.errors import SelfsameError
from selfsame.measure.scores import auroc, eer, one_class_auroc, precision_at_1, precision_at_k, roc, thin, trials

# Few distinct values, so that ties are the rule.
side = st.lists(st.integers(-5, 5), min_size=1, max_size=30).map(lambda x: np.array(x, dtype=np.float64))


def labelled(genuine, impostor):
    return np.append(np.ones(len(genuine)), np.zeros(len(impostor))), np.concatenate([genuine, impostor])


@settings(max_examples=60, deadline=None)
@given(side, side)
def test_roc_and_auroc_agree_with_scikit_learn(genuine, impostor):
    fpr, tpr, threshold = roc_curve(*labelled(genuine, impostor), drop_intermediate=False)
    curve = roc(genuine, impostor)
    np.testing.assert_allclose(curve.fpr, fpr)
    np.testing.assert_allclose(curve.tpr, tpr)
    np.testing.assert_array_equal(curve.threshold, threshold)
    assert auroc(genuine, impostor) == pytest.approx(roc_auc_score(*labelled(genuine, impostor)))


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


@settings(max_examples=100, deadline=None)
@given(side, side)
def test_eer_properties(genuine, impostor):
    rate, _ = eer(genuine, impostor)
    assert 0 <= rate <= 1
    assert eer(np.exp(genuine), np.exp(impostor))[0] == pytest.approx(rate)
    assert eer(-impostor, -genuine)[0] == pytest.approx(rate)
    assert auroc(-impostor, -genuine) == pytest.approx(auroc(genuine, impostor))
    assert auroc(impostor, genuine) == pytest.approx(1 - auroc(genuine, impostor))
    assert auroc(genuine**3, impostor**3) == pytest.approx(auroc(genuine, impostor))


@settings(max_examples=100, deadline=None)
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


@pytest.mark.parametrize("function", [roc, auroc, eer])
@pytest.mark.parametrize("bad", [[], [np.nan], [1.0, np.inf]])
def test_bad_scores_are_refused(function, bad):
    with pytest.raises(SelfsameError, match="genuine"):
        function(np.array(bad), np.array([0.0]))
    with pytest.raises(SelfsameError, match="impostor"):
        function(np.array([0.0]), np.array(bad))


def test_thin_keeps_ends_and_bounds_the_error():
    rng = np.random.default_rng(1)
    genuine = np.append(rng.normal(1, 1, 5000), np.full(2000, 0.5))  # with a jump of 2/7
    curve = roc(genuine, rng.normal(0, 1, 5000))
    for points in (4, 51, 200):
        small = thin(curve, points)
        assert len(small.fpr) <= points
        for full, few in ((curve.fpr, small.fpr), (curve.tpr, small.tpr)):
            assert (few[0], few[-1]) == (full[0], full[-1])
        along = np.interp(curve.fpr + curve.tpr, small.fpr + small.tpr, small.tpr)
        assert np.abs(along - curve.tpr).max() <= 2 / (points // 2 - 1)
    assert thin(small, 200) is small
    with pytest.raises(SelfsameError, match="points"):
        thin(curve, 3)


def test_precision_by_hand():
    score = np.array([[0.9, 0.1, 0.5], [0.2, 0.3, 0.8], [0.4, 0.6, 0.5]])
    label_S, label_T = np.array([7, 8, 9]), np.array([7, 8, 9])
    assert precision_at_1(score, label_S, label_T) == pytest.approx(1 / 3)
    assert precision_at_k(score, torch.from_numpy(label_S), label_T, 2) == pytest.approx(3 / 6)
    several = np.array([[7, 9], [9, -1], [9, 8]])
    assert precision_at_k(score, several, label_T, 2) == pytest.approx((2 + 1 + 2) / 6)
    with pytest.raises(SelfsameError, match="from 1 to the 3"):
        precision_at_k(score, label_S, label_T, 4)
    with pytest.raises(SelfsameError, match="shape"):
        precision_at_1(score[:2], label_S, label_T)
    with pytest.raises(SelfsameError, match="finite"):
        precision_at_1(score * np.nan, label_S, label_T)


def test_one_class_auroc_is_the_mean_over_templates():
    rng = np.random.default_rng(2)
    score, label_S = rng.normal(size=(60, 4)), rng.integers(0, 4, 60)
    expected = np.mean([roc_auc_score(label_S == t, score[:, t]) for t in range(4)])
    assert one_class_auroc(torch.from_numpy(score), label_S, np.arange(4)) == pytest.approx(expected)
    more = np.append(score, rng.normal(size=(60, 1)), 1)  # a template that nobody belongs to
    assert one_class_auroc(more, label_S, np.arange(5)) == pytest.approx(expected)
    with pytest.raises(SelfsameError, match="no template"):
        one_class_auroc(score, label_S, np.arange(4) + 9)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=2, max_size=40), st.integers(2, 400), st.integers(0, 3))
def test_trials(labels, count, seed):
    label = np.array(labels)
    equal = np.triu(label[:, None] == label, 1).sum()
    different = len(label) * (len(label) - 1) // 2 - equal
    if equal == 0 or different == 0:
        with pytest.raises(SelfsameError, match="pair"):
            trials(label, count, seed)
        return
    left, right, same = trials(label, count, seed)
    assert (left != right).all()
    np.testing.assert_array_equal(label[left] == label[right], same)
    assert same.sum() == min(equal, count // 2)
    assert (~same).sum() == min(different, count // 2)
    assert len({frozenset(pair) for pair in zip(left.tolist(), right.tolist())}) == len(left)
    for again, before in zip(trials(torch.from_numpy(label), count, seed), (left, right, same)):
        np.testing.assert_array_equal(again, before)


def test_trials_are_even_over_pairs_and_change_with_the_seed():
    label = np.repeat([0, 1, 2], [2, 4, 14])  # 1 + 6 + 91 genuine pairs
    of_class = np.zeros(3)
    for seed in range(200):
        left, _, same = trials(label, 20, seed)
        of_class += np.bincount(label[left[same]], minlength=3)
    np.testing.assert_allclose(of_class / of_class.sum(), np.array([1, 6, 91]) / 98, atol=0.02)
    assert not np.array_equal(trials(label, 20, 0)[0], trials(label, 20, 1)[0])
