"""A server that sends what it likes."""

from dataclasses import replace

import pytest
import torch

from selfsame.audit.active import ActiveServer, chosen_table, stilled
from selfsame.audit.attackers import Audited
from selfsame.audit.layers import LastLayer
from selfsame.audit.transcript import local_updates
from selfsame.config.recipe import from_mapping
from selfsame.data import load
from selfsame.engine.plan import make_plan
from selfsame.engine.rounds import Engine
from selfsame.engine.setup import prepare
from selfsame.engine.state import begin
from selfsame.methods.base import unit


def case_of(name, rounds=3, sums=None, **method):
    tables = {
        "method": {"name": name, **method},
        "data": {"name": "synthetic"},
        "net": {"name": "lenet", "channels": [4, 4]},
        "local": {"batch": 4},
        "cohort": {"size": 6, "weights": "uniform"},
        "sums": sums or {},
        "run": {"device": "cpu", "precision": "float64", "rounds": 40},
    }
    problem = prepare(from_mapping(tables), load("synthetic", clients=12, samples=5, held_out=2))
    state = begin(problem)
    Engine(problem).run(state, make_plan(problem.recipe, 0, rounds, state.present))
    return Audited(problem, state, 40)


@pytest.mark.parametrize("name", ["fedhide", "feduv", "fedmetric-pos", "fedmetric"])
def test_a_stilled_network_keeps_the_last_layer_still(name):
    options = {"code_length": 31, "secrets": "seeded"} if name == "feduv" else {}
    case = case_of(name, **options)
    lr = torch.tensor(0.1, dtype=torch.float64)
    still = replace(case.state, theta_P=stilled(case.problem, case.state.theta_P))
    layer = LastLayer.of(case.problem)
    moves = []
    for state in (case.state, still):
        change = layer.of_network(case.problem, local_updates(case.problem, state, case.everyone, lr)[0])
        moves.append(float(change.weight.norm() + change.bias.norm()))
    assert moves[1] < 1e-4 * moves[0]
    assert torch.equal(case.state.theta_P, case.copy().theta_P)  # the run itself is as it was


@pytest.mark.parametrize("aggregation", ["clear", "masked", "enclave"])
def test_what_each_gets_and_what_stops_it(aggregation):
    sums = {"aggregation": aggregation}
    case = case_of("feduv", sums=sums, code_length=31, secrets="seeded")
    found = {(one.did, one.under): one for one in ActiveServer().run(case)}
    assert found["2 networks", "clear"].identified == 1
    assert found["2 networks, unseen", "sums"].identified == 1  # what the digest is for
    assert not found["2 networks, unseen", "sums"].applies(aggregation)
    for under, who in (("masked", "helper"), ("enclave", "enclave")):
        stopped = found["2 networks", under]
        assert stopped.identified == 0 and who in stopped.said and stopped.applies(under)
    alone, two = found["sybils, 1 honest", "sums"], found["sybils, 2 honest", "sums"]
    assert alone.identified == 1 and "everybody is identified" in alone.said
    assert two.identified <= 0.5 and "one in 2" in two.said
    assert alone.applies(aggregation) == (aggregation != "clear")
    assert ("silence, 3 answer", "sums") in found or aggregation == "clear"  # half of a group of 6
    if aggregation != "clear":
        assert found["silence, 3 answer", "sums"].identified <= 1 / 3
        assert ("helper" if aggregation == "masked" else "auditor") in alone.said


def test_a_table_of_one_vector_leaves_the_prototype_bare():
    case = case_of("fedhide", alpha=0.05, neighbours=3)
    guess, rounds = chosen_table(case, case.everyone)
    assert rounds == 2
    assert float((unit(guess) * case.truth()).sum(1).min()) > 0.9999


def test_without_a_trace_of_the_prototype_the_choice_of_neighbours_tells():
    """With alpha 0 the report says nothing but which rows are nearest; the server chooses the rows."""
    case = case_of("fedhide", alpha=0.0, neighbours=3)
    guess, rounds = chosen_table(case, case.everyone)
    share, cosine = case.judged(case.everyone, guess)
    assert rounds == 40 and cosine > 0.7 and share > 0.8
