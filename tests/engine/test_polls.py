"""Polls by hand: who is counted, who is stood in for, when nothing is released, and noise."""

import pytest
import torch

from selfsame.config.recipe import from_mapping
from selfsame.data import load
from selfsame.engine.plan import make_plan
from selfsame.engine.polls import answering, poll_if_due
from selfsame.engine.rounds import Engine
from selfsame.engine.setup import prepare
from selfsame.engine.state import begin
from selfsame.errors import SelfsameError
from selfsame.methods.base import unit


def build(clients=12, rounds=8, cohort=None, **options):
    tables = {
        "method": {"name": "fedcrowd", **options},
        "data": {"name": "synthetic"},
        "net": {"name": "lenet", "width": 4, "channels": [4, 4]},
        "run": {"rounds": rounds, "device": "cpu", "precision": "float64"},
        "local": {"batch": 4, "lr": 0.1},
        "cohort": cohort or {},
    }
    return prepare(from_mapping(tables), load("synthetic", clients=clients, samples=5, held_out=4))


def run(problem, state, count):
    Engine(problem).run(state, make_plan(problem.recipe, state.round, count, state.present))


def moments(rows):
    """Mean and second moment, number by number."""
    count, width = rows.shape
    mean = [sum(float(row[i]) for row in rows) / count for i in range(width)]
    second = [[sum(float(row[i] * row[j]) for row in rows) / count for j in range(width)] for i in range(width)]
    return torch.tensor(mean, dtype=torch.float64), torch.tensor(second, dtype=torch.float64)


def test_everybody_is_counted_before_the_rounds_that_are_due():
    problem = build(every=3)
    state = begin(problem)
    prototype = unit(state.own["prototype"])  # as everybody stands before the first round
    for number in range(8):
        if number % 3 == 0:
            prototype = unit(state.own["prototype"]).clone()
        run(problem, state, 1)
        mean, second = moments(prototype)
        assert torch.allclose(state.server["crowd_mean"][0], mean, atol=1e-12)
        assert torch.allclose(state.server["crowd_second"], second, atol=1e-12)
        assert state.server["crowd_count"].tolist() == [12]
        assert torch.equal(state.own["polled"], prototype)


def test_a_block_of_rounds_is_cut_where_polls_are_due():
    one, two = (begin(build(every=3)) for _ in range(2))
    problem = build(every=3)
    run(problem, one, 8)
    for count in (2, 1, 4, 1):
        run(problem, two, count)
    assert all(torch.equal(value, two.tensors()[name]) for name, value in one.tensors().items())


def test_whoever_does_not_answer_is_stood_in_for():
    problem = build(every=1, sketch=2, cohort={"dropout": 0.4})
    state = begin(problem)
    kept = torch.zeros_like(state.own["polled"])
    assert kept.shape[1] == problem.world.dim + 2  # the sketch stands behind the vector
    seen, missed = 0, 0
    for number in range(8):
        before = problem.method.answer_poll(state.own, state.server)["polled"].clone()
        alive = answering(problem, 12, number)
        run(problem, state, 1)
        if int(alive.sum()) >= 4:  # 2K
            kept[alive] = before[alive]
            seen, missed = seen + 1, missed + int((~alive).sum())
            counted = kept[(kept != 0).any(1)]
            mean, second = moments(counted)
            assert torch.allclose(state.server["crowd_mean"][0], mean, atol=1e-12)
            assert torch.allclose(state.server["crowd_second"], second[-2:, -2:], atol=1e-12)
            assert state.server["crowd_count"].tolist() == [len(counted)]
        assert torch.equal(state.own["polled"], kept)
    assert seen >= 6 and missed >= 10


def test_too_few_answers_release_nothing():
    problem = build(every=1, cohort={"dropout": 0.9})
    state = begin(problem)
    poll_if_due(problem, state)
    assert int(answering(problem, 12, 0).sum()) < 8
    assert not state.server["crowd_count"].any() and not state.own["polled"].any()


def test_a_late_half_is_counted_from_its_first_poll_on():
    from selfsame.engine.state import join

    problem = build(every=1, rounds=4, cohort={"late": 0.5, "join_round": 2})
    assert problem.method.sketch == 3  # of the six who are there first
    state = begin(problem, 6)
    run(problem, state, 2)
    assert state.server["crowd_count"].tolist() == [6]
    join(problem, state)
    assert not state.own["polled"][6:].any()
    run(problem, state, 1)
    assert state.server["crowd_count"].tolist() == [12]


def test_noise_is_on_the_sum_and_the_same_again():
    plain, noisy, again = (begin(build(every=1)) for _ in range(3))
    poll_if_due(build(every=1), plain)
    for state in (noisy, again):
        poll_if_due(build(every=1, noise=0.5), state)
    assert torch.equal(noisy.server["crowd_second"], again.server["crowd_second"])
    assert not torch.allclose(noisy.server["crowd_second"], plain.server["crowd_second"], atol=1e-3)
    assert float(torch.trace(noisy.server["crowd_second"])) == pytest.approx(1)


def test_polls_so_close_that_few_have_changed_are_refused():
    with pytest.raises(SelfsameError, match=r"fedcrowd: 4 devices train between two polls.*every to at least 2"):
        build(every=1, cohort={"size": 4})
    build(every=2, cohort={"size": 4})


def test_the_recipe_says_what_was_fitted():
    options = build(cohort={"size": 4}).recipe.method.options
    assert options == {"sketch": 4, "every": 2, "scale": pytest.approx(8**0.5, rel=1e-5)}
    same = build(cohort={"size": 4}, **options)
    assert same.recipe.method.options == options
