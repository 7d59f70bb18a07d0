"""Enrolment and verification against a small network of plain numbers, and against every method's own scores."""

import json
import math

import numpy as np
import pytest
import torch

from selfsame.device.card import DTYPES, FORMAT, Card
from selfsame.device.vault import ScryptWork, Vault
from selfsame.device.verifier import Enrolment, Rule, Verifier
from selfsame.errors import SelfsameError
from selfsame.methods import METHODS, make

pytest.importorskip("cryptography")

CHEAP = ScryptWork(log_n=10, r=1, p=1)
WIDTH = 4


def card(score="cosine", place="unit", digest="ab" * 32, width=WIDTH):
    low, high = DTYPES["float32"]
    return Card(FORMAT, "0.1", "fedhide", "fake", (3,), "float32", low, high, width, place, score, 0, digest, "float32")


class Fake:
    """Embeddings by a fixed matrix."""

    def __init__(self, told=None):
        self.card = told or card()
        self.matrix = np.random.default_rng(5).normal(size=(3, self.card.width)).astype(np.float32)

    def embed(self, raw):
        assert raw.dtype == np.float32 and raw.shape == (1, 3)
        return raw @ self.matrix


@pytest.fixture
def vault(tmp_path):
    return Vault(tmp_path / "store", lambda: "open, sesame, now", CHEAP)


@pytest.fixture
def verifier(vault):
    return Verifier(Fake(), vault)


def people(number, seed=0, spread=0.3):
    """Samples of somebody."""
    rng = np.random.default_rng(seed)
    centre = rng.normal(size=3)
    return [(centre + spread * rng.normal(size=3)).astype(np.float32) for _ in range(number)]


def cosine(a, b):
    """With plain loops."""
    dot = sum(float(x) * float(y) for x, y in zip(a, b))
    return dot / math.sqrt(sum(float(x) ** 2 for x in a)) / math.sqrt(sum(float(y) ** 2 for y in b))


def test_template_and_threshold_come_from_different_samples(verifier):
    samples = people(9)
    done = verifier.enrol("ann", samples, Rule("warm-up", 0.75))
    assert (done.template_samples, done.threshold.samples) == (5, 4)
    emb = [x @ verifier.model.matrix for x in samples]
    length = [math.sqrt(sum(float(v) ** 2 for v in e)) for e in emb]
    mean = [sum(float(e[d]) / n for e, n in zip(emb[:5], length)) / 5 for d in range(WIDTH)]
    scores = sorted(cosine(e, mean) for e in emb[5:])
    assert done.threshold.value == pytest.approx(scores[0], abs=1e-6)  # i = floor(4 * 0.25) = 1, the smallest
    for seed in range(5):
        sample = people(1, seed=seed)[0]
        verdict = verifier.verify("ann", sample)
        want = cosine(sample @ verifier.model.matrix, mean)
        assert verdict.score == pytest.approx(want, abs=1e-6)
        assert verdict.accepted == (want >= scores[0])
    assert {verifier.verify("ann", people(1, seed=seed)[0]).accepted for seed in range(5)} == {True, False}


def test_a_score_at_the_threshold_is_accepted(verifier):
    samples = people(9)
    verifier.enrol("ann", samples, Rule("warm-up", 1.0))  # the smallest warm-up score
    verdicts = [verifier.verify("ann", sample) for sample in samples[5:]]
    assert min(verdict.score for verdict in verdicts) == verdicts[0].threshold
    assert all(verdict.accepted for verdict in verdicts)


def test_how_many_warm_up_samples(verifier):
    assert verifier.enrol("ann", people(9), warm_up=3).threshold.samples == 3
    for number in (0, 9, -1):
        with pytest.raises(SelfsameError, match="--warm-up: expected 1 to 8 of the 9 samples"):
            verifier.enrol("bob", people(9), warm_up=number)


@pytest.mark.parametrize("number", [0, 1])
def test_too_few_samples(verifier, number):
    with pytest.raises(SelfsameError, match=r"at least 2 are needed.*--threshold"):
        verifier.enrol("ann", people(number))
    assert verifier.vault.users() == []


def test_one_sample_and_a_fixed_threshold(verifier):
    done = verifier.enrol("ann", people(1), Rule("fixed", fixed=0.5))
    assert (done.template_samples, done.threshold.samples, done.threshold.value) == (1, 0, 0.5)
    verdict = verifier.verify("ann", people(1)[0])
    assert verdict.score == pytest.approx(1, abs=1e-6) and verdict.threshold == 0.5 and verdict.accepted
    with pytest.raises(SelfsameError, match="fixed threshold"):
        verifier.add_warm_up("ann", people(2))
    with pytest.raises(SelfsameError, match="takes no warm-up"):
        verifier.enrol("bob", people(2), Rule("fixed", fixed=0.5), warm_up=1)
    with pytest.raises(SelfsameError, match="needed to make a template"):
        verifier.enrol("bob", [], Rule("fixed", fixed=0.5))


def test_a_vector_that_training_left(verifier):
    vector, samples = np.arange(1.0, 5.0), people(6)
    done = verifier.enrol("ann", samples, Rule("warm-up", 1.0), vector=vector)
    assert (done.template_samples, done.threshold.samples) == (0, 6)
    scores = [cosine(x @ verifier.model.matrix, vector) for x in samples]
    assert done.threshold.value == pytest.approx(min(scores), abs=1e-6)
    verifier.enrol("bob", [], Rule("fixed", fixed=0.0), vector=vector)
    for bad, message in (
        (np.zeros(4), "stands for nobody"),
        (np.full(4, np.nan), "stands for nobody"),
        (np.ones(5), "vectors of 4"),
        (np.ones((1, 4)), "vectors of 4"),
    ):
        with pytest.raises(SelfsameError, match=message):
            verifier.enrol("eve", samples, vector=bad)
    with pytest.raises(SelfsameError, match="all are warm-up samples"):
        verifier.enrol("eve", samples, vector=vector, warm_up=2)
    with pytest.raises(SelfsameError, match="not needed"):
        verifier.enrol("eve", samples, Rule("fixed", fixed=0.0), vector=vector)


def test_more_warm_up_later(verifier):
    samples = people(45)
    with pytest.raises(SelfsameError, match="takes 29 warm-up samples, got 5; give more"):
        verifier.enrol("ann", samples[:10], Rule("bounded", 0.9, 0.95))
    verifier.enrol("ann", samples[:35], Rule("bounded", 0.9, 0.95), warm_up=30)
    now = verifier.add_warm_up("ann", samples[35:]).threshold
    assert (now.rule, now.samples, now.guaranteed) == ("bounded", 40, True)
    other = Verifier(verifier.model, Vault(verifier.vault.folder.parent / "other", lambda: "quite another one", CHEAP))
    at_once = other.enrol("ann", samples, Rule("bounded", 0.9, 0.95), warm_up=40)
    assert at_once.threshold == now
    assert verifier.verify("ann", samples[0]).threshold == now.value
    with pytest.raises(SelfsameError, match="at least one"):
        verifier.add_warm_up("ann", [])


def test_enrolling_again_and_revoking(verifier):
    verifier.enrol("ann", people(4))
    verifier.enrol("bob", people(4, seed=1))
    with pytest.raises(SelfsameError, match="--replace"):
        verifier.enrol("ann", people(4, seed=2))
    before = verifier.verify("ann", people(1)[0]).score
    verifier.enrol("ann", people(4, seed=2), replacing=True)
    assert verifier.verify("ann", people(1)[0]).score != before
    assert [kept.user for kept in verifier.vault.users()] == ["ann", "bob"]
    verifier.revoke("ann")
    with pytest.raises(SelfsameError, match="not enrolled"):
        verifier.verify("ann", people(1)[0])
    assert verifier.verify("bob", people(1, seed=1)[0]).score > 0.8


def test_another_model_is_refused(verifier):
    verifier.enrol("ann", people(4))
    other = Verifier(Fake(card(digest="cd" * 32)), verifier.vault)
    for act in (lambda: other.verify("ann", people(1)[0]), lambda: other.add_warm_up("ann", people(1))):
        with pytest.raises(SelfsameError, match="another model"):
            act()


def test_a_write_that_fails_leaves_the_old_enrolment(verifier, monkeypatch):
    verifier.enrol("ann", people(6))
    before = verifier.verify("ann", people(1)[0])

    def fail(*args):
        raise OSError("power cut")

    with monkeypatch.context() as patch:
        patch.setattr("os.replace", fail)
        for act in (
            lambda: verifier.add_warm_up("ann", people(3, seed=3)),
            lambda: verifier.enrol("ann", people(6, seed=3), replacing=True),
        ):
            with pytest.raises(OSError, match="power cut"):
                act()
    assert verifier.verify("ann", people(1)[0]) == before


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"name": "best"}, "--rule: expected tpr, bounded, fpr, balanced, paper, fixed"),
        ({"tpr": 0.0}, "--tpr"),
        ({"tpr": 1.5}, "--tpr"),
        ({"tpr": math.nan}, "--tpr"),
        ({"confidence": 1.0}, "--confidence"),
        ({"name": "fixed"}, "--threshold: a number goes with --rule fixed"),
        ({"fixed": 0.5}, "--threshold: a number goes with --rule fixed"),
        ({"name": "fixed", "fixed": math.nan}, "finite number"),
        ({"name": "fixed", "fixed": math.inf}, "finite number"),
    ],
)
def test_rules_that_cannot_be(given, message):
    with pytest.raises(SelfsameError, match=message):
        Rule(**given)


class Broken(Fake):
    def __init__(self, answer):
        super().__init__()
        self.answer = answer

    def embed(self, raw):
        return self.answer


@pytest.mark.parametrize("answer", [np.full((1, 4), np.nan), np.zeros((1, 5)), np.zeros((2, 4)), np.zeros(4)])
def test_a_network_that_is_not_what_it_says(vault, answer):
    with pytest.raises(SelfsameError, match="model: gives"):
        Verifier(Broken(answer), vault).enrol("ann", people(4))


def test_a_sample_that_maps_to_nothing_is_rejected(verifier):
    verifier.enrol("ann", people(8))
    verdict = verifier.verify("ann", np.zeros(3, np.float32))
    assert verdict.score == 0 and not verdict.accepted


def sealed(**change):
    good = {"template": "AACAPwAAgD8AAIA/AACAPw==", "scores": [0.5], "rule": {"name": "warm-up"}, "threshold": 0.5}
    return json.dumps({**good, **change}).encode()


@pytest.mark.parametrize(
    "plain",
    [
        b"",
        b"[]",
        b"{}",
        b"\xff",
        sealed(template="AAA"),
        sealed(template=3),
        sealed(template="AACAPw=="),
        sealed(template="AADAfwAAgD8AAIA/AACAPw=="),
        sealed(scores=3),
        sealed(scores=["x"]),
        sealed(scores=[math.nan]),
        sealed(rule={"name": "new"}),
        sealed(rule={"size": 3}),
        sealed(threshold=None),
        sealed(threshold=math.nan),
    ],
)
def test_texts_of_another_version(plain):
    with pytest.raises(SelfsameError, match=r"ann: the enrolment .* enrol anew"):
        Enrolment.of(plain, "ann", 4)


def test_the_text_of_this_version():
    found = Enrolment.of(sealed(), "ann", 4)
    assert found.template_D.tolist() == [1, 1, 1, 1] and found.threshold == 0.5
    again = Enrolment.of(found.to_bytes(), "ann", 4)
    assert (again.scores, again.rule, again.threshold) == (found.scores, found.rule, found.threshold)


def said(method):
    """The score and the place that the card of a method states."""
    if method.name == "deepsvdd":
        return "squared-distance", "as-is"
    if method.name.startswith("fedmetric"):
        return "distance", "unit" if method.unit_length else "as-is"
    return ("cosine", "unit") if method.by_angle else ("distance", "as-is")


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *((name, {}) for name in METHODS),
        ("fedaws", {"distance": "euclidean"}),
        ("fedmetric", {"unit_length": True}),
    ],
)
def test_scores_are_the_methods_own(vault, name, options):
    """From enrolment samples and from a given vector, the score of an attempt is `method.score`."""
    method = make(name, options)
    width = method.width(WIDTH)
    how, place = said(method)
    verifier = Verifier(Fake(card(how, place, width=width)), vault)
    samples, attempt = people(6), people(1, seed=9)[0]
    emb = torch.from_numpy(np.stack([*samples, attempt]) @ verifier.model.matrix)
    verifier.enrol("made", samples, warm_up=2)
    want = method.score(emb[-1:], method.template(emb[:4])[None])
    assert verifier.verify("made", attempt).score == pytest.approx(float(want), rel=1e-4, abs=1e-5)
    vector = np.random.default_rng(3).choice([-1.0, 1.0], width)  # as a codeword is
    verifier.enrol("left", samples, Rule("warm-up", 1.0), vector=vector)
    own = torch.from_numpy(vector).float()[None]
    verdict = verifier.verify("left", attempt)
    assert verdict.score == pytest.approx(float(method.score(emb[-1:], own)), rel=1e-4, abs=1e-5)
    assert verdict.threshold == pytest.approx(float(method.score(emb[:-1], own).min()), rel=1e-4, abs=1e-5)
