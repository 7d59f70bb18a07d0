"""The attacker that reads FedUV's codewords off single network updates."""

from functools import partial

import torch

from selfsame.audit.recovery import audit
from selfsame.audit.updates import bias_updates
from selfsame.config.recipe import from_mapping
from selfsame.data import load
from selfsame.engine.setup import prepare
from selfsame.engine.state import begin


def feduv_problem(clients=6):
    tables = {
        "method": {"name": "feduv", "code_length": 31, "secrets": "seeded"},
        "data": {"name": "synthetic"},
        "local": {"batch": 4},
        "run": {"device": "cpu", "precision": "float64"},
    }
    return prepare(from_mapping(tables), load("synthetic", clients=clients, samples=5, held_out=2))


def attacked(problem, state, updates):
    stream = problem.server_stream("audit", 0)
    return audit(problem.method, state.own, state.server, {}, problem.world, stream, updates=updates)


def test_the_signs_of_one_clients_last_bias_update_are_its_codeword():
    problem = feduv_problem()
    state = begin(problem)
    found = attacked(problem, state, partial(bias_updates, problem, state))
    assert found.recovered == 1.0 and found.paper is None and found.recovered_cosine > 0.9
    assert "signs" in found.how
    assert attacked(problem, state, None).recovered is None


def test_the_bias_update_is_what_the_server_sees():
    """A single client's step, by plain autograd on the whole network, moves the last bias by lr times this."""
    problem = feduv_problem()
    state = begin(problem)
    seen = bias_updates(problem, state, torch.tensor([2]))[0]
    from selfsame.engine.plan import Start
    from selfsame.engine.reference import client_update
    from selfsame.methods.base import pick

    who = problem.cohort(torch.tensor([2]), torch.tensor([True]))
    lr = torch.tensor(0.1, dtype=torch.float64)
    theta, _, _, _ = client_update(problem, state.theta_P, Start(who, pick(state.own, who.client_M), {}, lr, 0))
    moved = problem.model.net_views(theta - state.theta_P)
    bias = [value for name, value in moved.items() if name.endswith("bias")][-1]
    assert torch.allclose(bias / 0.1, seen, atol=1e-12)


def test_noise_recovers_nobody_reliably():
    problem = feduv_problem(clients=50)
    draw = torch.Generator().manual_seed(0)
    found = attacked(problem, begin(problem), lambda client_M: torch.randn(len(client_M), 31, generator=draw))
    assert found.recovered < 0.2
