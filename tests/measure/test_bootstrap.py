"""A replicate against trials that are written out as often as they count; intervals against what is known of them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selfsame.measure.bootstrap import Replicates, interval, mean_replicates, replicates
from selfsame.measure.curves import roc
from selfsame.measure.trials import Scored


def figures(curve):
    return np.array([curve.eer, curve.area, curve.tpr_at(0.2), curve.min_dcf(0.05)])


def people_and_trials(rng, people=6, genuine=12, impostor=30, levels=7):
    """Trials with many ties; everybody has genuine ones."""
    own = np.append(np.arange(people), rng.integers(people, size=genuine))
    a = rng.integers(people, size=impostor)
    b = (a + rng.integers(1, people, size=impostor)) % people
    score = np.append(rng.integers(2, levels, len(own)), rng.integers(0, levels - 1, impostor)) / 3.0
    order = rng.permutation(len(score))
    same = np.arange(len(score)) < len(own)
    return Scored(score[order], same[order], np.append(own, a)[order] * 10, np.append(own, b)[order] * 10)


@settings(max_examples=60)
@given(st.integers(0, 2**32 - 1), st.integers(2, 9), st.integers(2, 12))
def test_a_replicate_is_the_trials_written_out(seed, people, levels):
    rng = np.random.default_rng(seed)
    scored = people_and_trials(rng, people, levels=max(4, levels))
    drawn = np.bincount(rng.integers(people, size=people), minlength=people).astype(float)
    out: dict[bool, list[float]] = {True: [], False: []}
    for score, same, a, b in zip(scored.score, scored.same, scored.person_a, scored.person_b):
        times = drawn[a // 10] if a == b else drawn[a // 10] * drawn[b // 10]
        out[bool(same)] += [score] * int(times)
    found = Replicates.of(scored).curve(drawn)
    if not out[True] or not out[False]:
        assert found is None
        return
    curve = roc(np.array(out[True]), np.array(out[False]))
    np.testing.assert_allclose(figures(found), figures(curve), atol=1e-12)


def test_with_everybody_once_the_figures_are_those_of_the_trials():
    scored = people_and_trials(np.random.default_rng(3), people=40, genuine=400, impostor=2000, levels=60)
    curve = roc(scored.genuine, scored.impostor)
    found = Replicates.of(scored).curve(np.ones(40))
    np.testing.assert_allclose(figures(found), figures(curve), atol=1e-12)


def test_people_who_are_only_impostors_are_drawn_among_themselves():
    rng = np.random.default_rng(4)
    own = np.repeat(np.arange(5), 3)
    claimed, stranger = rng.integers(5, size=30), 100 + rng.integers(4, size=30)
    scored = Scored(
        rng.normal(size=45), np.arange(45) < 15, np.append(own, claimed), np.append(own, stranger)
    )  # fmt: skip
    owners, others = Replicates.of(scored).groups
    assert owners.tolist() == [0, 1, 2, 3, 4] and others.tolist() == [5, 6, 7, 8]


def test_intervals_follow_people_not_trials():
    """Everybody has one genuine score, repeated: the spread is that of 50 people, however many trials there are."""
    rng = np.random.default_rng(5)
    people, each = 50, 40
    level = rng.random(people) < 0.3  # a third of the people is never accepted
    own = np.repeat(np.arange(people), each)
    a = rng.integers(people, size=4000)
    b = (a + rng.integers(1, people, size=4000)) % people
    score = np.append(np.where(level[own], -1.0, 1.0), rng.choice([-2.0, 0.0], 4000, p=[0.01, 0.99]))
    scored = Scored(score, np.arange(len(score)) < len(own), np.append(own, a), np.append(own, b))
    drawn = replicates(scored, lambda curve: np.array([curve.tpr_at(0.0)]), 600, np.random.default_rng(0))
    share = 1 - level.mean()
    assert drawn.shape == (600, 1)
    assert drawn.mean() == pytest.approx(share, abs=0.01)
    by_people, by_trials = (np.sqrt(share * (1 - share) / n) for n in (people, people * each))
    assert drawn.std() == pytest.approx(by_people, rel=0.1)
    assert drawn.std() > 4 * by_trials
    low, high = interval(drawn[:, 0])
    assert low == pytest.approx(share - 1.96 * by_people, abs=0.03)
    assert high == pytest.approx(share + 1.96 * by_people, abs=0.03)


def test_means_follow_people_too():
    rng = np.random.default_rng(6)
    person = np.repeat(np.arange(80), 5) * 7
    value = np.repeat(rng.normal(size=80), 5)
    drawn = mean_replicates(value, person, 800, np.random.default_rng(1))
    assert drawn.mean() == pytest.approx(value.mean(), abs=0.02)
    assert drawn.std() == pytest.approx(value.std() / np.sqrt(80), rel=0.1)


def test_people_with_more_samples_weigh_more_in_a_mean():
    value, person = np.array([1.0, 1.0, 1.0, 0.0]), np.array([3, 3, 3, 9])
    drawn = mean_replicates(value, person, 300, np.random.default_rng(2))
    assert set(drawn.tolist()) == {0.0, 0.75, 1.0}  # one of them twice, or both


def test_the_same_generator_gives_the_same_replicates():
    scored = people_and_trials(np.random.default_rng(7))
    first, again, other = (replicates(scored, figures, 20, np.random.default_rng(seed)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_replicates_without_impostors_are_drawn_again():
    scored = Scored(np.array([2.0, 1.0, 0.0]), np.array([True, True, False]), np.array([0, 1, 0]), np.array([0, 1, 1]))
    drawn = replicates(scored, figures, 50, np.random.default_rng(3))
    assert np.isfinite(drawn).all() and (drawn[:, 1] == 1).all()


def test_interval_by_hand():
    assert interval(np.arange(101.0)) == pytest.approx((2.5, 97.5))
    assert interval(np.arange(101.0), 0.5) == pytest.approx((25.0, 75.0))
