"""Who takes part and at which learning rate."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest
import torch
from small import recipe

from selfsame.config.recipe import LocalPart, Recipe, ServerPart
from selfsame.engine.plan import choose, cohort_size, make_plan, rate
from selfsame.errors import SelfsameError


def asked(rounds: int = 600, seed: int = 0, **cohort) -> Recipe:
    return recipe("fedhide", run={"rounds": rounds, "seed": seed}, cohort=cohort)


@pytest.mark.parametrize("kind", [LocalPart, ServerPart])
def test_schedules(kind):
    for t in range(90):
        assert rate(kind(lr=0.4), t, 90) == 0.4
        cosine = 0.4 * (1 + math.cos(math.pi * t / 90)) / 2
        assert math.isclose(rate(kind(lr=0.4, schedule="cosine"), t, 90), cosine, rel_tol=1e-12)
        assert math.isclose(rate(kind(lr=0.4, schedule="inverse", decay=0.2), t, 90), 0.4 / (1 + 0.2 * t))
        steps = sum(1 for mark in range(25, 90, 25) if t >= mark)
        assert math.isclose(rate(kind(lr=0.4, schedule="step", decay=0.5, every=25), t, 90), 0.4 * 0.5**steps)
        thirds = 0 if t < 30 else 1 if t < 60 else 2
        assert math.isclose(rate(kind(lr=0.4, schedule="step"), t, 90), 0.4 * 0.1**thirds)
    assert rate(kind(lr=1.0, schedule="step"), 1, 2) == 0.1  # runs shorter than three rounds


def test_rates_in_the_plan():
    order = recipe("fedhide", run={"rounds": 40}, local={"schedule": "cosine"}, server={"schedule": "inverse"})
    plan = make_plan(order, 10, 5, 12)
    assert plan.lr_T.dtype == plan.server_lr_T.dtype == torch.float64
    assert plan.lr_T.tolist() == [rate(order.local, t, 40) for t in range(10, 15)]
    assert plan.server_lr_T.tolist() == [rate(order.server, t, 40) for t in range(10, 15)]


@pytest.mark.parametrize(("clients", "size"), [(12, 5), (7, 7), (9, 3), (10, 4)])
def test_round_robin_is_fair(clients, size):
    order = asked(size=size, sampling="round-robin")
    plan = make_plan(order, 0, clients, clients)  # `clients` rounds of `size`: everybody exactly `size` times
    assert torch.bincount(plan.client_TM.flatten(), minlength=clients).tolist() == [size] * clients
    assert all(len(set(row)) == size for row in plan.client_TM.tolist())


def test_uniform_cohorts():
    order = asked(size=5)
    plan = make_plan(order, 0, 3000, 12)
    for row in plan.client_TM.tolist():
        assert len(set(row)) == 5 and row == sorted(row) and row[0] >= 0 and row[-1] < 12
    tally = torch.bincount(plan.client_TM.flatten(), minlength=12)
    spread = (3000 * 5 / 12 * 7 / 12) ** 0.5
    assert (tally - 1250).abs().max() < 5 * spread
    together = sum(1 for row in plan.client_TM.tolist() if 3 in row and 4 in row)
    chance = 5 * 4 / (12 * 11)
    assert abs(together - 3000 * chance) < 5 * (3000 * chance * (1 - chance)) ** 0.5


def test_everybody():
    for order in (asked(), asked(sampling="all"), asked(size=12)):
        assert make_plan(order, 3, 2, 12).client_TM.tolist() == [list(range(12))] * 2


def test_reproducible_however_rounds_are_blocked():
    order = asked(size=5, dropout=0.4)
    whole = make_plan(order, 0, 20, 12)
    for blocks in ([20], [1] * 20, [7, 2, 11]):
        first = 0
        for count in blocks:
            part = make_plan(order, first, count, 12)
            assert part.first == first and len(part) == count
            assert torch.equal(part.client_TM, whole.client_TM[first : first + count])
            assert torch.equal(part.alive_TM, whole.alive_TM[first : first + count])
            first += count
    other = make_plan(asked(size=5, dropout=0.4, seed=1), 0, 20, 12)
    assert not torch.equal(other.client_TM, whole.client_TM)
    assert not torch.equal(other.alive_TM, whole.alive_TM)


def test_sizes():
    assert cohort_size(asked(), 12) == 12
    assert cohort_size(asked(size=12), 12) == 12
    with pytest.raises(SelfsameError, match=r"^cohort\.size: 13 clients asked for, the federation has 12$"):
        cohort_size(asked(size=13), 12)
    with pytest.raises(SelfsameError, match=r"cohort\.size"):
        make_plan(asked(size=13), 0, 1, 12)


def test_before_the_late_clients_have_joined():
    """A cohort larger than those who are there shrinks to them, and grows once the others join."""
    order = asked(size=10, late=0.5, join_round=4)
    assert make_plan(order, 0, 4, 6).client_TM.tolist() == [list(range(6))] * 4
    assert make_plan(order, 4, 4, 12).client_TM.shape == (4, 10)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_dropouts(share):
    alive = make_plan(asked(size=10, dropout=share), 0, 1000, 12).alive_TM
    assert alive.dtype == torch.bool
    gone = 1 - float(alive.double().mean())
    assert abs(gone - share) < 5 * (share * (1 - share) / 10_000) ** 0.5
    columns = 1 - alive.double().mean(0)
    assert (columns - share).abs().max() < 5 * (share * (1 - share) / 1000) ** 0.5
    assert make_plan(asked(size=10), 0, 50, 12).alive_TM.all()


@pytest.mark.parametrize("sampling", ["uniform", "round-robin"])
@pytest.mark.parametrize("size", [64, 4096])
def test_a_million_clients_cost_no_more_than_the_cohort(sampling, size):
    order = asked(size=size, sampling=sampling)
    choose(order, 0, size, 1_000_000)
    tracemalloc.start()
    try:
        chosen = choose(order, 1, size, 1_000_000)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2_000_000  # a list of everybody takes 8 MB
    assert len(np.unique(chosen)) == size
