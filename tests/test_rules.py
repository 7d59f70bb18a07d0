"""The benchmark of rules on people of known scores."""

import numpy as np
import pytest

from bench import rules
from selfsame.device.card import DTYPES, FORMAT, Card, score, template
from selfsame.device.strangers import enrolled_cohort

LOW, HIGH = DTYPES["float32"]
CARD = Card(FORMAT, "0.1", "fedaws", "fake", (4,), "float32", LOW, HIGH, 4, "unit", "cosine", 0, "ab" * 32, "float32")


def people(seed, number):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=4) + 0.3 * rng.normal(size=(24, 4)) for _ in range(number)]


def test_what_was_told_and_what_came():
    reference, measured = people(0, 25), people(1, 12)

    def cosines(emb, vector):
        return np.asarray(score(CARD, emb, vector), float)

    known = enrolled_cohort(cosines, lambda emb: template(CARD, emb), reference, "them")
    found = rules.measured(rules.People(CARD, tuple(known), reference, measured), [5, 10], 4, 0)
    for (n, name), tally in found.items():
        assert tally.tried == 48
        if name == "bounded 80 %":
            assert tally.refused == 48 and not tally.rows  # it takes 14 warm-up scores
            continue
        tpr, fpr, told, within, _ = np.array(tally.rows, float).mean(0)
        assert told == pytest.approx(fpr, abs=0.06) and within > 0.75, (n, name)
        assert 0 < tpr <= 1
    assert rules.spread([0.1, 0.3]) == "20.0 [10.0, 30.0]" and rules.spread([]) == "–"
    alike = rules.one_person(rules.People(CARD, tuple(known), reference, measured), [10], 3, 0)
    assert alike[10][0] < 0.2 < alike[10][1]
