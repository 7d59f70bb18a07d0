"""Groups: who is always together, whose turn it is, and who fills the places that a small group leaves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small import assert_same, build, people, recipe, train

from selfsame.config.recipe import Recipe
from selfsame.engine.groups import groups_of, in_turn, initially_present, most_turns
from selfsame.engine.plan import make_plan
from selfsame.engine.rounds import Engine
from selfsame.engine.state import begin
from selfsame.errors import SelfsameError


def grouped(size: int, seed: int = 0, **cohort) -> Recipe:
    return recipe("fedhide", run={"rounds": 100, "seed": seed}, cohort={"size": size, "sampling": "groups", **cohort})


@given(clients=st.integers(1, 300), size=st.integers(1, 60), seed=st.integers(0, 5))
def test_a_partition(clients, size, seed):
    size = min(size, clients)
    groups = groups_of(grouped(size, seed), 0, clients)
    assert sorted(np.concatenate(groups).tolist()) == list(range(clients))
    sizes = [len(group) for group in groups]
    assert len(groups) == clients // size and min(sizes) >= size and max(sizes) - min(sizes) <= 1
    assert all(group.tolist() == sorted(group.tolist()) for group in groups)


@given(
    clients=st.integers(1, 60), size=st.integers(1, 20), first=st.integers(0, 40), late=st.sampled_from([0, 0.3, 0.5])
)
def test_turns(clients, size, first, late):
    order = grouped(min(size, clients), late=late, join_round=17 if late else 0)
    present = clients if first >= 17 else initially_present(order, clients)
    try:
        groups = [set(group.tolist()) for group in groups_of(order, first, present)]
    except SelfsameError:
        assert late  # too few who are there, or too few who join
        return
    client_TM, member_TM = in_turn(order, range(first, first + 30), present)
    for row, t in enumerate(range(first, first + 30)):
        assert set(client_TM[row, member_TM[row]].tolist()) == groups[t % len(groups)]
        assert len(set(client_TM[row].tolist())) == client_TM.shape[1] == max(map(len, groups))
        assert client_TM[row].min() >= 0 and client_TM[row].max() < present


def test_seeds_mix_differently_and_blocks_do_not():
    whole = make_plan(grouped(5, dropout=0.3), 0, 20, 23)
    for first, count in ((0, 7), (7, 13)):
        part = make_plan(grouped(5, dropout=0.3), first, count, 23)
        for a, b in zip(part.tensors(), whole.part(first, first + count).tensors(), strict=True):
            assert torch.equal(a, b)
    assert not torch.equal(make_plan(grouped(5, 1), 0, 20, 23).client_TM, whole.client_TM)


def test_those_who_fill_up_never_answer():
    plan = make_plan(grouped(5, dropout=0.3), 0, 400, 23)  # 23 in groups of 6, 6, 6, 5
    assert plan.client_TM.shape == (400, 6) and plan.member_TM is not None
    assert plan.member_TM.sum(1).tolist() == [6, 6, 6, 5] * 100
    assert not (plan.alive_TM & ~plan.member_TM).any()
    gone = 1 - float(plan.alive_TM[plan.member_TM].double().mean())
    assert abs(gone - 0.3) < 5 * (0.3 * 0.7 / 2300) ** 0.5


def test_those_who_join_form_groups_of_their_own():
    order = grouped(4, late=0.5, join_round=10)
    before = [group.tolist() for group in groups_of(order, 9, 10)]
    after = [group.tolist() for group in groups_of(order, 10, 20)]
    assert after[: len(before)] == before and len(after) == 4
    assert sorted([*after[2], *after[3]]) == list(range(10, 20))
    assert make_plan(order, 10, 4, 20).client_TM.shape == (4, 5)


def test_too_few_for_a_group():
    with pytest.raises(
        SelfsameError, match=r"^cohort\.size: 4 clients join late, a group has at least 5; lower cohort"
    ):
        build("fedhide", cohort={"size": 5, "sampling": "groups", "late": 0.3, "join_round": 2})
    with pytest.raises(SelfsameError, match=r"^cohort\.size: 3 clients are there from the beginning, a group has"):
        build("fedhide", cohort={"size": 5, "sampling": "groups", "late": 0.75, "join_round": 2})
    with pytest.raises(SelfsameError, match=r"^cohort\.size: 13 clients asked for"):
        build("fedhide", cohort={"size": 13, "sampling": "groups"})


def test_split_rounds_have_no_groups():
    with pytest.raises(SelfsameError, match=r"^cohort\.sampling: fdml uses the first embeddings that arrive"):
        build("fdml", cohort={"size": 5, "sampling": "groups"})
    with pytest.raises(SelfsameError, match=r"^cohort\.cap: fdml weighs devices by one batch"):
        build("fdml", cohort={"cap": 5})


@pytest.mark.parametrize("cohort", [{}, {"late": 0.5, "join_round": 7}])
def test_most_turns_by_counting(cohort):
    order = grouped(3, **cohort)
    for rounds in (0, 1, 5, 7, 8, 30):
        seen = np.zeros(20, dtype=int)
        for t in range(rounds):
            plan = make_plan(order, t, 1, initially_present(order, 20) if t < order.cohort.join_round else 20)
            seen[plan.client_TM[0][plan.alive_TM[0]].numpy()] += 1
        assert most_turns(order, rounds, 20) == seen.max()


def test_clients_that_fill_up_change_nothing():
    """11 clients in groups of 4: two groups of 6 and 5. The same without the client that fills the place."""
    problem = build("fedaws", people(clients=11), cohort={"size": 4, "sampling": "groups"}, run={"rounds": 4})
    state, _ = train(problem)
    bare = begin(problem)
    for t in range(4):
        plan = make_plan(problem.recipe, t, 1, 11)
        there = plan.member_TM[0]
        client_TM, alive_TM = plan.client_TM[:, there], plan.alive_TM[:, there]
        Engine(problem).run(bare, replace(plan, client_TM=client_TM, alive_TM=alive_TM, member_TM=None))
    assert_same(state, bare, 1e-12)
    assert not torch.equal(bare.theta_P, begin(problem).theta_P)
