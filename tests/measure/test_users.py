"""Per-user figures against plain loops and cases by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from selfsame.measure.trials import Scored
from selfsame.measure.users import per_user


@settings(max_examples=60)
@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.booleans())
def test_users_by_loops(seed, trials, pairs):
    rng = np.random.default_rng(seed)
    a, b = rng.integers(5, size=trials), rng.integers(5, size=trials)
    scored = Scored(rng.integers(-3, 4, trials) / 2, a == b, a, b)
    users = per_user(scored, 0.5, pairs)
    found = 0
    for person in range(5):
        mine = [s for s, x, y in zip(scored.score, a, b) if x == y == person]
        others = [
            s for s, x, y in zip(scored.score, a, b) if x != y and (x == person or (pairs and y == person))
        ]  # fmt: skip
        if not mine:
            assert person not in users.person_P
            continue
        place = users.person_P.tolist().index(person)
        found += 1
        assert (users.genuine_P[place], users.impostor_P[place]) == (len(mine), len(others))
        assert users.tpr_P[place] == pytest.approx(sum(s >= 0.5 for s in mine) / len(mine))
        if others:
            assert users.fpr_P[place] == pytest.approx(sum(s >= 0.5 for s in others) / len(others))
            label = [1] * len(mine) + [0] * len(others)
            assert users.auroc_P[place] == pytest.approx(roc_auc_score(label, mine + others))
        else:
            assert np.isnan(users.fpr_P[place]) and np.isnan(users.auroc_P[place])
    assert found == len(users.person_P)


def of_rates(rates):
    """Ten genuine trials a user, of which so many are accepted, and one impostor trial that is not."""
    score, same, person = [], [], []
    for user, rate in enumerate(rates):
        score += [1.0] * round(10 * rate) + [0.0] * round(10 - 10 * rate) + [-1.0]
        same += [True] * 10 + [False]
        person += [user] * 11
    other = [p if s else 99 for p, s in zip(person, same)]
    return per_user(Scored(np.array(score), np.array(same), np.array(person), np.array(other)), 0.5)


def test_who_is_locked_out():
    users = of_rates([1.0, 0.5, 0.4, 0.0, 0.9, 0.0])
    assert (users.locked_out, users.never_accepted) == (3, 2)
    assert users.tpr_P[users.worst].tolist() == [0.0]


@pytest.mark.parametrize(("number", "worst"), [(1, 1), (10, 1), (11, 2), (20, 2), (25, 3)])
def test_the_worst_tenth_is_rounded_up(number, worst):
    users = of_rates([round((i % 10) / 10, 1) for i in range(number)][::-1])
    assert len(users.worst) == worst
    assert users.tpr_P[users.worst].max() <= np.delete(users.tpr_P, users.worst).min(initial=1)


def test_one_class_auroc_is_the_mean_over_those_who_have_one():
    score, same = np.array([3.0, 1.0, 2.0, 0.0, 5.0]), np.array([True, True, False, False, True])
    a, b = np.array([0, 0, 0, 0, 7]), np.array([0, 0, 1, 2, 7])
    users = per_user(Scored(score, same, a, b), 0.0)
    assert users.auroc_P[0] == pytest.approx(3 / 4) and np.isnan(users.auroc_P[1])
    assert users.one_class_auroc == pytest.approx(3 / 4)
    alone = per_user(Scored(score[4:], same[4:], a[4:], b[4:]), 0.0)
    assert np.isnan(alone.one_class_auroc)
