"""Per-user figures against plain loops and cases by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from selfsame.measure.trials import Scored
from selfsame.measure.users import per_user, user_figures


@settings(max_examples=60)
@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.booleans())
def test_users_by_loops(seed, trials, pairs):
    rng = np.random.default_rng(seed)
    a, b = rng.integers(5, size=trials), rng.integers(5, size=trials)
    scored = Scored(rng.integers(-3, 4, trials) / 2, a == b, a, b)
    users = {user["name"]: user for user in per_user(scored, 0.5, pairs, str)}
    found = 0
    for person in range(5):
        mine = [s for s, x, y in zip(scored.score, a, b) if x == y == person]
        others = [
            s for s, x, y in zip(scored.score, a, b) if x != y and (x == person or (pairs and y == person))
        ]  # fmt: skip
        if not mine:
            assert str(person) not in users
            continue
        user = users[str(person)]
        found += 1
        assert (user["genuine"], user["impostor"]) == (len(mine), len(others))
        assert user["tpr"] == pytest.approx(sum(s >= 0.5 for s in mine) / len(mine))
        if others:
            assert user["fpr"] == pytest.approx(sum(s >= 0.5 for s in others) / len(others))
            label = [1] * len(mine) + [0] * len(others)
            assert user["auroc"] == pytest.approx(roc_auc_score(label, mine + others))
        else:
            assert user["fpr"] is None and user["auroc"] is None
    assert found == len(users)


def of_rates(rates):
    """Ten genuine trials a user, of which so many are accepted, and one impostor trial that is not."""
    score, same, person = [], [], []
    for user, rate in enumerate(rates):
        score += [1.0] * round(10 * rate) + [0.0] * round(10 - 10 * rate) + [-1.0]
        same += [True] * 10 + [False]
        person += [user] * 11
    other = [p if s else 99 for p, s in zip(person, same)]
    return user_figures(Scored(np.array(score), np.array(same), np.array(person), np.array(other)), 0.5, False, str)


def test_who_is_locked_out():
    users = of_rates([1.0, 0.5, 0.4, 0.0, 0.9, 0.0])
    assert (users["locked_out"], users["never_accepted"]) == (3, 2)
    assert (users["worst_tenth"], users["worst_tenth_users"]) == (0.0, 1)
    assert users["mean"] == pytest.approx(2.8 / 6) and users["median"] == pytest.approx(0.45)
    assert [user["name"] for user in users["each"]] == ["3", "5", "2", "1", "4", "0"]


@pytest.mark.parametrize(("number", "worst"), [(1, 1), (10, 1), (11, 2), (20, 2), (25, 3)])
def test_the_worst_tenth_is_rounded_up(number, worst):
    rates = [round((i % 10) / 10, 1) for i in range(number)][::-1]
    users = of_rates(rates)
    assert users["worst_tenth_users"] == worst
    assert users["worst_tenth"] == pytest.approx(np.mean(sorted(rates)[:worst]))


def test_one_class_auroc_is_the_mean_over_those_who_have_one():
    score, same = np.array([3.0, 1.0, 2.0, 0.0, 5.0]), np.array([True, True, False, False, True])
    a, b = np.array([0, 0, 0, 0, 7]), np.array([0, 0, 1, 2, 7])
    users = user_figures(Scored(score, same, a, b), 0.0, False, str)
    assert {user["name"]: user["auroc"] for user in users["each"]} == {"0": pytest.approx(3 / 4), "7": None}
    assert users["one_class_auroc"] == pytest.approx(3 / 4)
    alone = user_figures(Scored(score[4:], same[4:], a[4:], b[4:]), 0.0, False, str)
    assert alone["one_class_auroc"] is None
