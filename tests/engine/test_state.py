"""Clients that register while a run is under way."""

from __future__ import annotations

import pytest
import torch
from small import OPTIONS, assert_same, bits, build, people, recipe

from selfsame.data import Federation
from selfsame.engine.plan import make_plan
from selfsame.engine.rounds import Engine
from selfsame.engine.state import begin, join, smaller_world
from selfsame.errors import SelfsameError
from selfsame.methods import METHODS, World
from selfsame.runs.loop import carry_on
from selfsame.runs.run import start

LATE = {"late": 0.5, "join_round": 2}


# Of the whole crowd, not of its members.
SUMS = {"server.crowd_mean", "server.crowd_second", "server.crowd_count", "server.sketch"}


def joined(name: str, federation: Federation | None = None, engine: str = "cohort", rounds: int = 4, **parts):
    """(problem, the tensors just before the others joined, the state just after)."""
    problem = build(name, federation, cohort={**LATE, **parts.pop("cohort", {})}, run={"rounds": rounds}, **parts)
    state = begin(problem, 6)
    Engine(problem, engine).run(state, make_plan(problem.recipe, 0, 2, state.present))
    before = {key: value.clone() for key, value in state.tensors().items()}
    join(problem, state)
    return problem, before, state


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("each", [1, 2])
def test_old_rows_are_kept(name, each):
    problem, before, state = joined(name, people(clients_per_class=each))
    after = state.tensors()
    assert before.keys() == after.keys()
    assert state.present == 12
    for key, old in before.items():
        new = after[key]
        assert new.dtype == old.dtype
        if (key.startswith(("own.", "server.")) and key not in SUMS) or key == "alone":
            rows = problem.world.classes if key == "server.class_embedding" else 12
            assert len(new) == rows and len(old) == -(-rows // 2), key
            assert bits(new[: len(old)]) == bits(old), key
        else:
            assert bits(new) == bits(old), key
    join(problem, state)  # nobody left to join: nothing happens
    assert all(state.tensors()[key] is value for key, value in after.items())


@pytest.mark.parametrize("name", METHODS)
def test_new_rows_are_those_of_a_run_where_all_were_there(name):
    """Except for what a round has changed since: the late clients' rows are as drawn."""
    problem, before, state = joined(name)
    fresh = begin(problem).tensors()
    for key, value in state.tensors().items():
        if key.startswith(("own.", "server.")) or key == "alone":
            assert torch.equal(value[len(before[key]) :], fresh[key][len(before[key]) :]), key


@pytest.mark.parametrize("name", ["feduv", "feduv-negative"])
@pytest.mark.parametrize("secrets", ["seeded", "system"])
def test_codewords(name, secrets):
    problem = build(name, options={"secrets": secrets})
    state = begin(problem, 6)
    old = state.own["codeword"].clone()
    join(problem, state)
    words = state.own["codeword"]
    assert torch.equal(words[:6], old)
    apart = [(words[a] != words[b]).sum() for a in range(12) for b in range(a)]
    assert min(apart) >= problem.method.code.designed_distance
    assert set(words.flatten().tolist()) == {-1.0, 1.0}


def test_a_late_device_of_an_owner_who_is_there_gets_their_codeword():
    problem = build("feduv", people(clients_per_class=4), options={"secrets": "system"})
    state = begin(problem, 6)  # classes 0 0 0 0 1 1 | 1 1 2 2 2 2
    join(problem, state)
    words = state.own["codeword"]
    for a in range(12):
        for b in range(a):
            assert torch.equal(words[a], words[b]) == (a // 4 == b // 4)


@pytest.mark.parametrize("name", METHODS)
def test_runs_with_late_clients(name):
    order = recipe(name, cohort={**LATE, "size": 8}, run={"rounds": 4, "eval_every": 2})
    run = carry_on(start(order, federation=people()))
    assert run.done and run.state.present == 12 and not int(run.state.refused)
    assert [record["round"] for record in run.history] == [2, 4]
    assert run.history[-1]["p@1"] is not None


@pytest.mark.parametrize("name", METHODS)
def test_engines_agree_after_others_have_joined(name):
    states = []
    for engine in ("cohort", "reference"):
        problem, _, state = joined(name, engine=engine, cohort={"dropout": 0.2})
        Engine(problem, engine).run(state, make_plan(problem.recipe, 2, 2, state.present))
        states.append(state)
    assert_same(*states)


def test_smaller_world():
    world = World(6, 3, 4, torch.tensor([0, 0, 1, 1, 2, 2]))
    assert smaller_world(world, 6) is world
    small = smaller_world(world, 3)
    assert (small.clients, small.classes, small.dim, small.class_of_N.tolist()) == (3, 2, 4, [0, 0, 1])


def test_too_many_for_the_code():
    """A code that cannot tell the federation apart is refused before training, not when the late ones join."""
    with pytest.raises(SelfsameError, match="feduv: 12 classes"):
        build("feduv", options={"base_bits": 3}, cohort=LATE)
    assert "base_bits" not in OPTIONS["feduv"]


@pytest.mark.parametrize("name", METHODS)
def test_everything_is_in_the_run_precision(name):
    for key, value in begin(build(name)).tensors().items():
        assert value.dtype == torch.float64 or not value.is_floating_point(), key
