"""The attacker that reads FedUV's codewords off single network updates."""

import torch

from selfsame.audit.updates import audit_updates, bias_updates
from selfsame.config.recipe import from_mapping
from selfsame.data import load
from selfsame.engine.setup import prepare
from selfsame.engine.state import begin


def feduv_problem():
    tables = {
        "method": {"name": "feduv", "code_length": 31, "secrets": "seeded"},
        "data": {"name": "synthetic"},
        "local": {"batch": 4},
        "run": {"device": "cpu", "precision": "float64"},
    }
    return prepare(from_mapping(tables), load("synthetic", clients=6, samples=5, held_out=2))


def test_the_signs_of_one_clients_last_bias_update_are_its_codeword():
    problem = feduv_problem()
    state = begin(problem)
    client = torch.arange(6)
    found = audit_updates(bias_updates(problem, state, client), client, state.own["codeword"])
    assert found.recovered == 1.0 and found.paper is None and found.recovered_cosine > 0.9


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
    draw = torch.Generator().manual_seed(0)
    codewords = torch.sign(torch.randn(50, 63, generator=draw))
    found = audit_updates(torch.randn(50, 63, generator=draw), torch.arange(50), codewords)
    assert found.recovered < 0.2
