"""Figures of a toy embedding against scikit-learn and plain loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score, roc_curve
from torch import Tensor

from selfsame.data import Samples, Trials
from selfsame.errors import SelfsameError
from selfsame.measure import looks
from selfsame.measure import trials as module
from selfsame.measure.looks import alikeness, class_templates, evaluate, one_class_auroc, pair_curve
from selfsame.methods import World, make

ANGLE, DISTANCE = make("fedhide", {}), make("fedmetric", {})


def samples(classes: int, each: int, noise: float = 0.7, seed: int = 0, first: int = 0) -> tuple[Samples, Tensor]:
    """(labelled points around their classes' directions, the directions), shuffled."""
    draw = torch.Generator().manual_seed(seed)
    centre_CD = torch.randn(classes, 5, generator=draw, dtype=torch.float64)
    y = torch.arange(classes).repeat_interleave(each)[torch.randperm(classes * each, generator=draw)]
    x = centre_CD[y] + noise * torch.randn(len(y), 5, generator=draw, dtype=torch.float64)
    return Samples(x, y + first), centre_CD


def embed(x: Tensor) -> Tensor:
    return torch.stack([x[:, 0] - x[:, 1], x[:, 1] * 2, x[:, 2], x[:, 3] + 0.1, x[:, 4]], 1)


def score(method, a: Tensor, b: Tensor) -> float:
    return float(-(a - b).norm() if method is DISTANCE else a @ b / (a.norm() * b.norm()))


def eer_of(label: list[int], value: list[float]) -> float:
    """Where the straight lines of scikit-learn's ROC cross FPR = FNR."""
    fpr, tpr, _ = roc_curve(label, value, drop_intermediate=False)
    for i in range(1, len(fpr)):
        low, high = fpr[i - 1] - (1 - tpr[i - 1]), fpr[i] - (1 - tpr[i])
        if high >= 0:
            return float(fpr[i - 1] + (fpr[i] - fpr[i - 1]) * -low / (high - low))
    raise AssertionError


@pytest.mark.parametrize("method", [ANGLE, DISTANCE], ids=["angle", "distance"])
def test_precision_by_what_others_see(method, monkeypatch):
    monkeypatch.setattr(module, "_CHUNK", 8)  # 42 samples in pieces
    test, centre_CD = samples(7, 6)
    template_CD = embed(centre_CD)
    shared_CD = template_CD + 2 * torch.randn(7, 5, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    found = evaluate(method, embed, template_CD, test, test, shared_CD=shared_CD).figures
    right = 0
    for x, y in zip(embed(test.x), test.y.tolist()):
        right += int(np.argmax([score(method, x, t) for t in shared_CD])) == y
    assert found["p@1_shared"] == pytest.approx(right / 42, abs=1e-12)
    assert 0.1 < right / 42 < found["p@1"]
    rest = evaluate(method, embed, template_CD, test, test).figures
    assert rest.pop("p@1_shared") is None
    assert rest == {key: value for key, value in found.items() if key != "p@1_shared"}


@pytest.mark.parametrize("method", [ANGLE, DISTANCE], ids=["angle", "distance"])
@pytest.mark.parametrize("noise", [0.2, 0.7, 3.0])
def test_figures(method, noise):
    test, centre_CD = samples(7, 6, noise)
    unseen, _ = samples(5, 8, noise, seed=1, first=100)
    template_CD = embed(centre_CD)
    found = evaluate(method, embed, template_CD, test, unseen, curves=True)

    right, label, value = 0, [], []
    columns: list[list[float]] = [[] for _ in range(7)]
    for x, y in zip(embed(test.x), test.y.tolist()):
        each = [score(method, x, t) for t in template_CD]
        right += int(np.argmax(each)) == y
        label += [int(c == y) for c in range(7)]
        value += each
        for c in range(7):
            columns[c].append(each[c])
    assert found.figures["p@1"] == pytest.approx(right / 42, abs=1e-12)
    assert found.figures["auroc_seen"] == pytest.approx(roc_auc_score(label, value), abs=1e-12)
    assert found.figures["eer_seen"] == pytest.approx(eer_of(label, value), abs=1e-12)
    one_class = [roc_auc_score(test.y.numpy() == c, columns[c]) for c in range(7)]
    assert found.figures["one_class_auroc"] == pytest.approx(np.mean(one_class), abs=1e-12)

    label, value = [], []
    emb = embed(unseen.x)
    for i in range(len(emb)):
        for j in range(i):
            label.append(int(unseen.y[i] == unseen.y[j]))
            value.append(score(method, emb[i], emb[j]))
    assert found.figures["auroc"] == pytest.approx(roc_auc_score(label, value), abs=1e-12)
    assert found.figures["eer"] == pytest.approx(eer_of(label, value), abs=1e-12)
    for curve in (found.curves["seen"], found.curves["unseen"]):
        assert curve.fpr[0] == curve.tpr[0] == 0 and curve.fpr[-1] == curve.tpr[-1] == 1


def test_pieces_do_not_matter(monkeypatch):
    test, centre_CD = samples(7, 6)
    unseen, _ = samples(5, 8, seed=1)
    whole = evaluate(ANGLE, embed, centre_CD, test, unseen)
    monkeypatch.setattr(module, "_CHUNK", 5)
    pieces = evaluate(ANGLE, embed, centre_CD, test, unseen)
    assert pieces.figures == pytest.approx(whole.figures, abs=1e-12)
    assert whole.curves == {}


def test_nobody_to_test_on():
    nobody = Samples(torch.zeros(0, 5), torch.zeros(0, dtype=torch.int64))
    test, centre_CD = samples(4, 3)
    found = evaluate(ANGLE, embed, embed(centre_CD), test, nobody)
    assert found.figures["auroc"] is None and found.figures["eer"] is None and found.figures["p@1"] is not None
    found = evaluate(ANGLE, embed, embed(centre_CD), nobody, test)
    assert found.figures["auroc"] is not None and found.figures.get("p@1") is None


def test_all_pairs_once():
    unseen, _ = samples(3, 4)
    curve = pair_curve(ANGLE, embed, unseen)
    assert (curve.genuine[-1], curve.impostor[-1]) == (3 * 6, 3 * 16)


def test_an_even_selection_of_many(monkeypatch):
    monkeypatch.setattr(looks, "MOST_PAIRED", 5)
    unseen, _ = samples(3, 4)  # 12 samples: every third
    curve = pair_curve(ANGLE, embed, unseen)
    kept = embed(unseen.x[::3])
    expected = sorted((score(ANGLE, kept[i], kept[j]) for i in range(4) for j in range(i)), reverse=True)
    assert curve.threshold[1:].tolist() == pytest.approx(expected, abs=1e-12)


def test_one_class_auroc_is_the_mean_over_classes():
    rng = np.random.default_rng(2)
    score_SC, label_S = rng.normal(size=(60, 4)), rng.integers(0, 4, 60)
    expected = np.mean([roc_auc_score(label_S == c, score_SC[:, c]) for c in range(4)])
    label = torch.from_numpy(label_S)
    assert one_class_auroc(torch.from_numpy(score_SC), label) == pytest.approx(expected)
    more = np.append(score_SC, rng.normal(size=(60, 1)), 1)  # a class without samples
    assert one_class_auroc(torch.from_numpy(more), label) == pytest.approx(expected)
    with pytest.raises(SelfsameError, match="no class"):
        one_class_auroc(torch.from_numpy(score_SC), label + 9)


def test_templates_of_classes():
    truth = torch.arange(14.0).reshape(7, 2) ** 2
    class_of = [0, 0, 2, 1, 2, 2, 4]
    world = World(7, 5, 2, torch.tensor(class_of))
    found = class_templates(ANGLE, truth, world)
    assert found.shape == (5, 2)
    for c in range(5):
        rows = [truth[k] for k in range(7) if class_of[k] == c]
        assert torch.allclose(found[c], sum(rows) / len(rows) if rows else torch.zeros(2))
    assert class_templates(make("fedaws", {}), truth, world) is truth  # its rows are classes already
    fewer = World(3, 3, 2, torch.tensor(class_of[:3]))  # before the others have joined
    assert torch.equal(class_templates(ANGLE, truth[:3], fewer)[2], truth[2])


def test_alikeness():
    test, _ = samples(4, 5)
    emb = embed(test.x)
    total, count = 0.0, 0
    for i in range(20):
        for j in range(20):
            if test.y[i] != test.y[j]:
                total, count = total + score(ANGLE, emb[i], emb[j]), count + 1
    assert alikeness(emb, test.y) == pytest.approx(total / count, abs=1e-12)
    assert alikeness(emb, test.y + 3) == pytest.approx(total / count, abs=1e-12)
    assert alikeness(torch.ones(20, 3), test.y) == pytest.approx(1.0)
    assert alikeness(emb, torch.zeros(20, dtype=torch.int64)) == 0.0


def test_alikeness_of_an_even_selection(monkeypatch):
    monkeypatch.setattr(looks, "MOST_PAIRED", 7)
    monkeypatch.setattr(module, "_CHUNK", 4)
    test, centre_CD = samples(4, 5)
    found = evaluate(ANGLE, embed, embed(centre_CD), test, test)  # 20 samples, at most 7, in pieces of 4
    assert found.figures["alike"] == pytest.approx(alikeness(embed(test.x[::3]), test.y[::3]), abs=1e-12)


@pytest.mark.parametrize("method", [ANGLE, DISTANCE], ids=["angle", "distance"])
def test_a_trial_list_decides_which_pairs_are_scored(method, monkeypatch):
    monkeypatch.setattr(module, "_CHUNK", 4)  # several chunks
    unseen, _ = samples(4, 5, seed=2, first=50)
    draw = torch.Generator().manual_seed(3)
    a, b = torch.randint(0, 20, (2, 11), generator=draw).unbind()
    trials = Trials(a, b, unseen.y[a] == unseen.y[b], torch.zeros(11, dtype=torch.int64))
    emb = embed(unseen.x)
    each = [score(method, emb[i], emb[j]) for i, j in zip(a.tolist(), b.tolist())]
    curve = pair_curve(method, embed, unseen, trials)
    assert curve.threshold[1:] == pytest.approx(sorted(set(each), reverse=True), abs=1e-9)
    assert (curve.genuine[-1], curve.impostor[-1]) == (int(trials.same.sum()), int((~trials.same).sum()))
    test, centre_CD = samples(3, 4)
    found = evaluate(method, embed, embed(centre_CD), test, unseen, trials=trials)
    assert found.figures["auroc"] == pytest.approx(roc_auc_score(trials.same.numpy(), each))
    assert found.figures["auroc"] != evaluate(method, embed, embed(centre_CD), test, unseen).figures["auroc"]
