"""The enclave's losses against plain loops, autograd and pytorch-metric-learning, all in float64."""

from __future__ import annotations

import ast
import itertools
import math
import sys
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from selfsame.enclave import losses
from selfsame.enclave.losses import KINDS, ON_SPHERE, Loss, value_and_derivatives

TRIPLETS = ("batch-all", "semi-hard", "batch-hard")
LOSSES = [
    Loss(kind, 0.7, squared, average, normalise)
    for kind in KINDS
    for squared, average, normalise in itertools.product((False, True), ("active", "all"), (False, True))
    if kind not in ON_SPHERE or (average == "all" and not squared)
]


def name(loss):
    flags = (loss.average, "squared" * loss.squared, "normalised" * loss.normalise)
    return " ".join((loss.kind, *filter(None, flags)))


def scene(seed=0, labels=(3, 1, 1, 0, 3, 1, 2, 0, 3, 1, 4, 4, 0, 1)):
    """Labels out of order, of one to five samples each."""
    draw = np.random.default_rng(seed)
    return draw.normal(size=(len(labels), 4)), np.array(labels)


def clouds(seed, classes, each):
    return scene(seed, tuple(np.random.default_rng(seed).permutation(np.repeat(np.arange(classes), each)).tolist()))


# The formulas, one triplet or pair at a time ---------------------------------------------------------------------


def chosen_triplets(dist, label, loss):
    """(anchor, positive, negative, weight, share of a term) of every triplet; weight 0 if the kind leaves it out."""
    count = range(len(label))
    for a in count:
        positives = [p for p in count if p != a and label[p] == label[a]]
        negatives = [n for n in count if label[n] != label[a]]
        if not positives or not negatives:
            continue
        if loss.kind == "batch-hard":
            far, near = max(dist(a, p) for p in positives), min(dist(a, n) for n in negatives)
            positives = [p for p in positives if dist(a, p) == far]
            negatives = [n for n in negatives if dist(a, n) == near]
        for p, n in itertools.product(positives, negatives):
            skipped = loss.kind == "semi-hard" and dist(a, n) <= dist(a, p)
            share = len(positives) * len(negatives) if loss.kind == "batch-hard" else 1
            yield a, p, n, 0 if skipped else 1 / share, 1 / share


def dot(a, b):
    return sum(x * y for x, y in zip(a, b))


def mean_directions(point, label):
    """The direction of the mean of each label's points."""
    sums = {c: [sum(xs) for xs in zip(*(p for p, own in zip(point, label) if own == c))] for c in label.tolist()}
    return {c: [x / math.hypot(*row) for x in row] for c, row in sums.items()}


def cosine_power(point, vector, own, loss):
    return math.exp(loss.logit_scale * (dot(point, vector) - loss.margin * own))


def plain_loops(emb, label, loss):
    """(1) and Algorithm 1 with its activation test, or the pair losses, by loops over samples."""
    count, dim = emb.shape
    similar = loss.kind in ON_SPHERE
    point = [list(row) for row in emb.tolist()]
    if loss.normalise or similar:
        point = [[x / math.hypot(*row) for x in row] for row in point]

    def dist(i, j):
        square = sum((x - y) ** 2 for x, y in zip(point[i], point[j]))
        return square if loss.squared else math.sqrt(square)

    def slope(i, j):
        """The derivative of dist(i, j) by point i."""
        factor = 2.0 if loss.squared else (1 / dist(i, j) if dist(i, j) else 0.0)
        return [factor * (x - y) for x, y in zip(point[i], point[j])]

    grad = [[0.0] * dim for _ in range(count)]

    def add(i, row, factor):
        grad[i] = [g + factor * x for g, x in zip(grad[i], row)]

    value = 0.0
    if loss.kind in TRIPLETS:
        looked_at = list(chosen_triplets(dist, label, loss))
        active = [t for t in looked_at if t[3] and dist(t[0], t[1]) - dist(t[0], t[2]) + loss.margin > 0]
        divisor = sum(t[4] for t in (looked_at if loss.average == "all" else active)) or 1
        for a, p, n, weight, _ in active:
            weight /= divisor
            value += weight * (dist(a, p) - dist(a, n) + loss.margin)
            add(a, slope(a, p), weight)
            add(a, slope(a, n), -weight)
            add(p, slope(p, a), weight)
            add(n, slope(n, a), -weight)
    elif loss.kind == "contrastive":
        pairs = list(itertools.permutations(range(count), 2))
        for same, sign in ((True, 1), (False, -1)):
            mine = [(i, j) for i, j in pairs if (label[i] == label[j]) == same]
            term = {(i, j): dist(i, j) if same else max(loss.margin - dist(i, j), 0) for i, j in mine}
            divisor = (len(mine) if loss.average == "all" else sum(t > 0 for t in term.values())) or 1
            for (i, j), t in term.items():
                if t > 0:
                    value += t / divisor
                    add(i, slope(i, j), sign / divisor)
                    add(j, slope(j, i), sign / divisor)
    elif loss.kind == "margin-softmax":
        vectors = mean_directions(point, label)
        for c, vector in vectors.items():
            for i in range(count):
                power = {k: cosine_power(point[i], v, k == label[i], loss) for k, v in vectors.items()}
                share = power[c] / sum(power.values())
                if c == label[i]:
                    value -= math.log(share) / count
                add(i, vector, loss.logit_scale * (share - (c == label[i])) / count)
    elif loss.kind == "supervised-contrastive":
        anchors = [i for i in range(count) if list(label).count(label[i]) > 1]
        for i in anchors:
            mates = [j for j in range(count) if j != i and label[j] == label[i]]
            power = {j: math.exp(dot(point[i], point[j]) / loss.temperature) for j in range(count) if j != i}
            whole = sum(power.values())
            value -= sum(math.log(power[p] / whole) for p in mates) / len(mates) / len(anchors)
            for j in power:
                weight = (power[j] / whole - (j in mates) / len(mates)) / loss.temperature / len(anchors)
                add(i, point[j], weight)
                add(j, point[i], weight)
    else:
        for i in range(count):
            cosine = [sum(x * y for x, y in zip(point[i], point[j])) for j in range(count)]
            for same, sharp in ((True, -loss.alpha), (False, loss.beta)):
                mine = [j for j in range(count) if j != i and (label[i] == label[j]) == same]
                power = {j: math.exp(sharp * (cosine[j] - loss.base)) for j in mine}
                value += math.log(1 + sum(power.values())) / abs(sharp) / count
                for j in mine:
                    weight = math.copysign(power[j] / (1 + sum(power.values())) / count, sharp)
                    add(i, point[j], weight)
                    add(j, point[i], weight)
    if loss.normalise or similar:
        for i in range(count):
            turn = (np.eye(dim) - np.outer(point[i], point[i])) / math.hypot(*emb[i])
            grad[i] = (turn @ grad[i]).tolist()
    return value, np.array(grad).reshape(count, dim)


def averaged(term, loss):
    return term.sum() / max(1, term.numel() if loss.average == "all" else int((term > 0).sum()))


def by_autograd(emb, label, loss):
    """The loss as it would be written for autograd, with an array of all triplets."""
    x = torch.tensor(emb, requires_grad=True)
    label = torch.tensor(label)
    point = torch.nn.functional.normalize(x) if loss.normalise or loss.kind in ON_SPHERE else x
    same = label[:, None] == label
    positive, negative = same & ~torch.eye(len(label), dtype=torch.bool), ~same
    if loss.kind == "margin-softmax":
        of = torch.tensor(np.unique(label, return_inverse=True)[1])
        own = functional.one_hot(of).double()
        table = functional.normalize(own.T @ point.detach())
        value = functional.cross_entropy(loss.logit_scale * (point @ table.T - loss.margin * own), of)
    elif loss.kind == "supervised-contrastive":
        share = torch.where(positive | negative, point @ point.T / loss.temperature, -torch.inf).log_softmax(1)
        value = -(torch.where(positive, share, 0).sum(1) / positive.sum(1))[positive.any(1)].mean()
    elif loss.kind == "multi-similarity":
        s = point @ point.T - loss.base
        power_p = torch.where(positive, torch.exp(-loss.alpha * s), 0).sum(1)
        power_n = torch.where(negative, torch.exp(loss.beta * s), 0).sum(1)
        value = (torch.log1p(power_p) / loss.alpha + torch.log1p(power_n) / loss.beta).mean()
    else:
        square = ((point[:, None] - point) ** 2).sum(-1)
        dist = square if loss.squared else torch.where(square > 0, square, 1).sqrt() * (square > 0)
        if loss.kind == "contrastive":
            halves = (dist[positive], torch.relu(loss.margin - dist[negative]))
            value = sum(averaged(half, loss) for half in halves)
        else:
            there = positive[:, :, None] & negative[:, None]
            if loss.kind == "batch-hard":
                far = torch.where(positive, dist, -torch.inf).amax(1)
                near = torch.where(negative, dist, torch.inf).amin(1)
                whole = positive.any(1) & negative.any(1)
                term = torch.relu(far[whole] - near[whole] + loss.margin)
            else:
                term = torch.relu(dist[:, :, None] - dist[:, None] + loss.margin)
                if loss.kind == "semi-hard":
                    term = torch.where(dist[:, None] > dist[:, :, None], term, 0)
                term = term[there]
            value = averaged(term, loss)
    value.backward()
    return value.item(), x.grad.numpy()


def assert_same(found, wanted, tolerance=1e-10):
    assert found[0] == pytest.approx(wanted[0], rel=tolerance, abs=tolerance)
    np.testing.assert_allclose(found[1], wanted[1], rtol=tolerance, atol=tolerance)
    assert found[1].dtype == np.float64


@pytest.mark.parametrize("loss", LOSSES, ids=name)
def test_equal_to_plain_loops(loss):
    for seed in range(3):
        emb, label = scene(seed)
        wanted = plain_loops(emb, label, loss)
        assert wanted[0] > 0 and np.abs(wanted[1]).max() > 0
        assert_same(value_and_derivatives(emb, label, loss), wanted)


@pytest.mark.parametrize("loss", LOSSES, ids=name)
def test_equal_to_autograd(loss):
    emb, label = clouds(5, 9, 7)
    assert_same(value_and_derivatives(emb, label, loss), by_autograd(emb, label, loss))


@pytest.mark.parametrize("loss", [loss for loss in LOSSES if loss.kind not in ON_SPHERE], ids=name)
def test_equal_to_autograd_with_many_positives(loss):
    """More positives than are compared one by one: the sorted lists."""
    emb, label = clouds(6, 2, losses._FEW + 8)
    emb = np.concatenate([emb, emb[:9] + 0.1])
    label = np.concatenate([label, np.array([5, 5, 6, 6, 6, 7, 7, 8, 9])])
    assert_same(value_and_derivatives(emb, label, loss), by_autograd(emb, label, loss))


@pytest.mark.parametrize("kind", ["batch-all", "semi-hard"])
@pytest.mark.parametrize("squared", [False, True])
def test_few_positives_counted_as_many_are(kind, squared, monkeypatch):
    """Uneven labels, and neither samples nor blocks of a round number."""
    emb, label = scene(4, tuple(np.random.default_rng(4).integers(0, 23, 301).tolist()))
    loss = Loss(kind, 0.4, squared)
    monkeypatch.setattr(losses, "_BLOCK", 301 * 37 // 2)
    few = value_and_derivatives(emb, label, loss)
    monkeypatch.setattr(losses, "_FEW", 0)
    assert_same(few, value_and_derivatives(emb, label, loss), 1e-11)


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_do_not_show(kind, monkeypatch):
    emb, label = clouds(7, 9, 5)
    whole = value_and_derivatives(emb, label, Loss(kind, 0.7))
    monkeypatch.setattr(losses, "_BLOCK", 1)
    assert_same(value_and_derivatives(emb, label, Loss(kind, 0.7)), whole, 1e-12)


def reference_library(loss):
    """The same loss made of pytorch-metric-learning's parts: (miner or None, loss)."""
    pytest.importorskip("pytorch_metric_learning")
    from pytorch_metric_learning import distances, miners, reducers
    from pytorch_metric_learning import losses as theirs

    if loss.kind == "supervised-contrastive":
        return None, theirs.SupConLoss(temperature=loss.temperature)
    if loss.kind == "multi-similarity":
        return None, theirs.MultiSimilarityLoss(alpha=loss.alpha, beta=loss.beta, base=loss.base)
    distance = distances.LpDistance(normalize_embeddings=loss.normalise, p=2, power=2 if loss.squared else 1)
    reducer = reducers.AvgNonZeroReducer() if loss.average == "active" else reducers.MeanReducer()
    if loss.kind == "contrastive":
        return None, theirs.ContrastiveLoss(pos_margin=0, neg_margin=loss.margin, distance=distance, reducer=reducer)
    triplet = theirs.TripletMarginLoss(margin=loss.margin, distance=distance, reducer=reducer)
    if loss.kind == "semi-hard":
        return miners.TripletMarginMiner(loss.margin, "semihard", distance=distance), triplet
    return (miners.BatchHardMiner(distance=distance) if loss.kind == "batch-hard" else None), triplet


@pytest.mark.parametrize(
    "loss",
    [loss for loss in LOSSES if not loss.keeps and (loss.kind != "semi-hard" or loss.average == "active")],
    ids=name,
)
def test_equal_to_pytorch_metric_learning(loss):
    """All but semi-hard over all triplets, which it does not have: its average is over the mined ones."""
    miner, theirs = reference_library(loss)
    emb, label = clouds(8, 6, 5)
    x, label_S = torch.tensor(emb, requires_grad=True), torch.tensor(label)
    value = theirs(x, label_S, miner(x.detach(), label_S) if miner else None)
    value.backward()
    assert_same(value_and_derivatives(emb, label, loss), (value.item(), x.grad.numpy()), 1e-8)


def test_a_margin_softmax_is_cosface():
    """Of samples of some of the classes, by embeddings and by class vectors of any length."""
    theirs = pytest.importorskip("pytorch_metric_learning.losses").CosFaceLoss(9, 4, margin=0.35, scale=11.0).double()
    emb, label = clouds(8, 6, 5)
    table = 3 * np.random.default_rng(2).normal(size=(9, 4))
    theirs.W.data = torch.tensor(table.T.copy())
    x = torch.tensor(emb, requires_grad=True)
    theirs(x, torch.tensor(label)).backward()
    value, grad, table_grad = losses.margin_softmax(
        emb, label, table, Loss("margin-softmax", margin=0.35, logit_scale=11.0)
    )
    wanted = theirs(x, torch.tensor(label)).item()
    assert_same((value, grad), (wanted, x.grad.numpy()), 1e-8)
    np.testing.assert_allclose(table_grad, theirs.W.grad.T.numpy(), rtol=1e-8, atol=1e-10)


def test_classes_without_a_vector_are_not_there():
    """A class that nobody has seen is no negative, and samples that point nowhere begin no vector and do not count."""
    loss = Loss("margin-softmax")
    emb, label = clouds(3, 4, 5)
    nowhere = np.array([[1.0, 2, 3, 4], [-2, -4, -6, -8], [0, 0, 0, 0]])
    table = losses.first_vectors(np.concatenate([emb, nowhere]), np.append(label, [5, 5, 4]), np.zeros((8, 4)))
    np.testing.assert_array_equal(table.any(1), [1, 1, 1, 1, 0, 0, 0, 0])
    np.testing.assert_allclose((table[:4] ** 2).sum(1), 1, atol=1e-12)
    whole = losses.margin_softmax(np.concatenate([emb, nowhere]), np.append(label, [5, 5, 4]), table, loss)
    alone = losses.margin_softmax(emb, label, table[:4], loss)
    assert_same((whole[0], whole[1][:-3]), alone[:2], 1e-12)
    assert not whole[1][-3:].any() and not whole[2][4:].any()
    np.testing.assert_allclose(whole[2][:4], alone[2], atol=1e-14)
    moved = losses.moved_vectors(table, whole[2], loss)
    assert not moved[4:].any() and np.abs(moved[:4] - table[:4]).max() > 1e-3
    again = losses.first_vectors(-emb, label, table)
    np.testing.assert_array_equal(again, table)


# Properties ------------------------------------------------------------------------------------------------------


@st.composite
def grids(draw):
    """Small whole coordinates, full of equal distances; of 2^k samples the mean and all distances are exact."""
    count = draw(st.sampled_from((2, 4, 8, 16)))
    dim = draw(st.integers(1, 3))
    whole = st.integers(-3, 3)
    emb = draw(st.lists(st.lists(whole, min_size=dim, max_size=dim), min_size=count, max_size=count))
    label = draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
    return np.array(emb, np.float64), np.array(label)


FLAT = [loss for loss in LOSSES if not loss.normalise and loss.kind not in ON_SPHERE]
flat = st.sampled_from(FLAT)
any_loss = st.sampled_from(LOSSES)
seeds = st.integers(0, 2**31)


def with_margin(loss, margin):
    return Loss(loss.kind, margin, loss.squared, loss.average, loss.normalise)


@pytest.mark.parametrize("loss", FLAT, ids=name)
@settings(max_examples=25)
@given(grids(), st.sampled_from((0.5, 1.0, 2.0)), st.sampled_from((0, 32)))
def test_ties_as_the_formula_has_them(loss, scene, margin, few):
    loss = with_margin(loss, margin)
    with mock.patch.multiple(losses, _FEW=few, _BLOCK=1):
        assert_same(value_and_derivatives(*scene, loss), plain_loops(*scene, loss), 1e-9)


@settings(max_examples=60)
@given(grids(), flat, seeds)
def test_order_does_not_matter(scene, loss, seed):
    emb, label = scene
    order = np.random.default_rng(seed).permutation(len(label))
    value, grad = value_and_derivatives(emb, label, with_margin(loss, 1.0))
    assert_same(value_and_derivatives(emb[order], label[order], with_margin(loss, 1.0)), (value, grad[order]), 1e-9)


@settings(max_examples=60)
@given(seeds, any_loss)
def test_order_and_names_of_labels_do_not_matter(seed, loss):
    emb, label = scene(seed)
    order = np.random.default_rng(seed).permutation(len(label))
    value, grad = value_and_derivatives(emb, label, loss)
    renamed = np.array([7, -3, 2**40, 0, 5])[label[order]]
    assert_same(value_and_derivatives(emb[order], renamed, loss), (value, grad[order]))


@settings(max_examples=60)
@given(seeds, flat, st.floats(-1e6, 1e6))
def test_a_shift_changes_nothing_and_derivatives_sum_to_zero(seed, loss, shift):
    emb, label = scene(seed)
    value, grad = value_and_derivatives(emb, label, loss)
    np.testing.assert_allclose(grad.sum(0), 0, atol=1e-12)
    assert_same(value_and_derivatives(emb + shift, label, loss), (value, grad), 1e-6)


@settings(max_examples=60)
@given(seeds, any_loss, st.floats(1e-3, 1e3))
def test_on_the_sphere_length_does_not_matter(seed, loss, factor):
    emb, label = scene(seed)
    loss = Loss(loss.kind, loss.margin, loss.squared, loss.average, True)
    value, grad = value_and_derivatives(emb, label, loss)
    np.testing.assert_allclose((grad * emb).sum(1), 0, atol=1e-12)
    again = value_and_derivatives(emb * factor, label, loss)
    assert_same((again[0], again[1] * factor), (value, grad))


@settings(max_examples=60)
@given(seeds, flat, st.floats(1e-3, 1e3))
def test_plain_distances_scale_with_their_margin(seed, loss, factor):
    emb, label = scene(seed)
    value, grad = value_and_derivatives(emb, label, loss)
    power = 2 if loss.squared else 1
    again = value_and_derivatives(emb * factor, label, with_margin(loss, loss.margin * factor**power))
    assert_same((again[0] / factor**power, again[1] / factor ** (power - 1)), (value, grad), 1e-9)


@pytest.mark.parametrize("kind", TRIPLETS)
@pytest.mark.parametrize("average", ["active", "all"])
def test_nothing_moves_when_no_triplet_is_active(kind, average):
    emb, label = clouds(9, 5, 4)
    apart = 0.01 * emb + 100 * np.eye(5, 4, k=-1)[label]
    value, grad = value_and_derivatives(apart, label, Loss(kind, 0.5, average=average))
    assert value == 0 and not grad.any()


@pytest.mark.parametrize("loss", LOSSES, ids=name)
@pytest.mark.parametrize("label", [[4, 4, 4, 4], [0, 1, 2, 3], [6], []], ids=["one label", "all differ", "one", "none"])
def test_no_positives_or_no_negatives(loss, label):
    emb, label = np.random.default_rng(1).normal(size=(len(label), 4)), np.array(label, np.int64)
    value, grad = value_and_derivatives(emb, label, loss)
    assert grad.shape == emb.shape
    if loss.kind in TRIPLETS or len(label) < 2 or (loss.kind == "supervised-contrastive" and len(set(label)) > 1):
        assert value == 0 and not grad.any()
    else:
        assert_same((value, grad), plain_loops(emb, label, loss))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("normalise", [False, True])
def test_samples_at_one_point_have_no_direction(kind, normalise):
    """Collapsed embeddings, also where rounding leaves no exact zero, and embeddings of length zero."""
    label = np.repeat(np.arange(4), 3)
    for point in (np.zeros(5), np.array([0.1, -0.3, 0.7, 1e5, 0.2])):
        value, grad = value_and_derivatives(np.tile(point, (12, 1)), label, Loss(kind, 0.5, False, "all", normalise))
        assert np.isfinite(value)
        np.testing.assert_allclose(grad, 0, atol=1e-15)
        if kind in ("batch-all", "batch-hard", "contrastive"):
            assert value == 0.5


def test_copies_among_others_are_at_distance_zero():
    emb, label = clouds(10, 6, 4)
    emb[label == 1] = emb[label == 0]
    emb = emb / 3 + 0.1
    loss = Loss("batch-all", 0.7)
    assert_same(value_and_derivatives(emb, label, loss), plain_loops(emb, label, loss))


@pytest.mark.parametrize("loss", [loss for loss in LOSSES if loss.normalise], ids=name)
def test_an_embedding_of_length_zero_has_no_derivative(loss):
    emb, label = clouds(13, 6, 4)
    emb[5] = 0
    value, grad = value_and_derivatives(emb, label, loss)
    assert np.isfinite(value) and np.isfinite(grad).all()
    assert not grad[5].any() and grad.any()


def test_float32_is_computed_in_double_precision():
    emb, label = clouds(11, 6, 4)
    single = emb.astype(np.float32)
    value, grad = value_and_derivatives(single, label, Loss())
    value_64, grad_64 = value_and_derivatives(single.astype(np.float64), label, Loss())
    assert value == value_64
    np.testing.assert_array_equal(grad, grad_64)


def test_the_callers_arrays_stay_as_they_were():
    emb, label = clouds(12, 4, 3)
    before = emb.copy(), label.copy()
    value_and_derivatives(emb, label, Loss(normalise=True))
    np.testing.assert_array_equal(emb, before[0])
    np.testing.assert_array_equal(label, before[1])


# Refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e101])
@pytest.mark.parametrize("kind", KINDS)
def test_embeddings_that_are_no_numbers_are_refused(bad, kind):
    emb, label = scene()
    emb[3, 2] = bad
    with pytest.raises(ValueError, match="finite"):
        value_and_derivatives(emb, label, Loss(kind))


@pytest.mark.parametrize("kind", KINDS)
def test_the_largest_embeddings_stay_finite(kind):
    emb, label = scene()
    value, grad = value_and_derivatives(emb * (losses.LARGEST / 10), label, Loss(kind, squared=True))
    assert np.isfinite(value) and np.isfinite(grad).all()


@pytest.mark.parametrize(
    ("emb", "label"),
    [
        (np.zeros(4), np.zeros(4, int)),
        (np.zeros((4, 2), int), np.zeros(4, int)),
        (np.zeros((4, 2), np.float16), np.zeros(4, int)),
        (np.zeros((4, 2), complex), np.zeros(4, int)),
        ([[0.0], [1.0]], np.zeros(2, int)),
        (np.zeros((4, 2)), np.zeros(3, int)),
        (np.zeros((4, 2)), np.zeros((4, 1), int)),
        (np.zeros((4, 2)), np.zeros(4)),
        (np.zeros((4, 2)), np.zeros(4, bool)),
        (np.zeros((4, 2)), [0, 0, 0, 0]),
    ],
)
def test_arrays_of_another_kind_are_refused(emb, label):
    with pytest.raises(ValueError, match=r"embeddings must be a|labels must be"):
        value_and_derivatives(emb, label, Loss())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("kind", "hardest"),
        ("kind", None),
        ("average", "sum"),
        ("margin", 0),
        ("margin", math.nan),
        ("margin", math.inf),
        ("margin", "0.2"),
        ("margin", True),
        ("squared", 1),
        ("normalise", "yes"),
        ("alpha", 0.0),
        ("beta", -1.0),
        ("beta", 1e7),
        ("base", 1.5),
        ("base", None),
        ("temperature", 0.0),
        ("temperature", math.nan),
        ("logit_scale", 0.0),
        ("logit_scale", 1e4),
        ("class_lr", -1.0),
        ("class_lr", "1"),
    ],
)
def test_a_loss_that_makes_no_sense_is_refused_by_name(field, value):
    with pytest.raises(ValueError, match=f"^loss: {field} is "):
        Loss(**{field: value})


def test_only_numpy_and_the_standard_library_are_imported():
    tree = ast.parse(Path(losses.__file__).read_text(encoding="utf-8"))
    rooms = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    rooms |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {room.split(".")[0] for room in rooms} <= {"numpy", *sys.stdlib_module_names}
