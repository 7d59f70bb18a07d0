"""What the reports of a real run give away, and which root of (4) is the right one."""

from copy import deepcopy

import pytest
import torch

from selfsame.audit.heard import listen
from selfsame.audit.transcript import local_updates
from selfsame.config.recipe import from_mapping
from selfsame.data import load
from selfsame.engine.plan import make_plan
from selfsame.engine.rounds import Engine
from selfsame.engine.setup import prepare
from selfsame.engine.state import begin
from selfsame.methods.base import Cohort, Heard, Scene, averaged_reports, unit
from selfsame.methods.fedhide_attack import mirrored, recover_fedhide, told_apart


def digits(name, rounds, **method):
    """A federation of 14 digits after some rounds at the preset's rates, and its problem."""
    tables = {
        "method": {"name": name, **method},
        "data": {"name": "digits"},
        "net": {"name": "lenet", "channels": [4, 4]},
        "local": {"lr": 0.1, "schedule": "cosine", "batch": 8},
        "server": {"optimiser": "momentum", "weight_decay": 5e-4},
        "run": {"device": "cpu", "rounds": 600},
    }
    problem = prepare(from_mapping(tables))
    state = begin(problem)
    Engine(problem).run(state, make_plan(problem.recipe, 0, rounds, state.present))
    return problem, state


def cosines(found, truth):
    return (unit(found.double()) * truth.double()).sum(1)


def test_the_right_root_in_mid_training():
    """At round 60 prototypes lean away from their proxies: the larger root is wrong for nearly everybody."""
    problem, state = digits("fedhide", 60, alpha=0.01, neighbours=5)
    method, everyone = problem.method, torch.arange(14)
    truth = method.truth(state.own, state.server, {})
    stream = problem.stream("audit", everyone, 0)
    scene = Scene(state.own, state.server, truth, problem.world, everyone, stream, 1)
    proxy = scene.report(method, 0)["proxy"]
    alone = recover_fedhide(proxy, state.server["proxies"], everyone, 0.01, 5, problem.world.class_of_N)
    assert float(cosines(alone, truth).median()) < 0.5  # what one report gives, whose roots are alike
    assert float(cosines(mirrored(alone, unit(proxy.double())), truth).median()) > 0.999
    assert float(cosines(method.attack(scene)[0], truth).min()) > 0.999
    heard = listen(problem, state, 2)  # prototypes move on meanwhile
    after = method.truth(state.own, state.server, {})
    assert float(cosines(method.attack_reports(heard, problem.world)[0], after).min()) > 0.999


def test_the_other_root_mirrors_the_first_and_explains_the_proxy():
    """With s of |s p - (1 - a) d| = a by the quadratic formula, in plain numbers."""
    draw = torch.Generator().manual_seed(0)
    w, d = unit(torch.randn(2, 8, generator=draw, dtype=torch.float64))
    alpha = 0.1
    mixed = alpha * w + (1 - alpha) * d
    p = mixed / mixed.norm()
    half, rest = float((1 - alpha) * (p @ d)), (1 - alpha) ** 2 - alpha**2
    roots = [half + sign * (half**2 - rest) ** 0.5 for sign in (1, -1)]
    both = [(s * p - (1 - alpha) * d) / alpha for s in roots]
    mine = min(both, key=lambda v: float((v - w).norm()))
    other = max(both, key=lambda v: float((v - w).norm()))
    torch.testing.assert_close(mine, w)
    torch.testing.assert_close(mirrored(w[None], p[None])[0], other)


@pytest.mark.parametrize("drifts", [False, True])
def test_two_reports_agree_on_the_truth_alone(drifts):
    draw = torch.Generator().manual_seed(1)
    w, p, q, step = unit(torch.randn(4, 20, 16, generator=draw, dtype=torch.float64))
    later = unit(w + 0.3 * step) if drifts else w
    earlier_2 = torch.stack([mirrored(w, p), w])
    drift_2 = torch.stack([torch.zeros_like(w), later - w]) if drifts else None
    for flip in (False, True):
        pair = [later, mirrored(later, q)]
        got = told_apart(earlier_2, torch.stack(pair[::-1] if flip else pair), drift_2, 0.01)
        torch.testing.assert_close(got, later)
    same = torch.stack([mirrored(w, p), w])  # the table has not moved: nothing tells, and the first root stays
    torch.testing.assert_close(told_apart(earlier_2, same, None, 0.01), same[0])


def test_reports_are_averaged_by_client():
    who = [Cohort(torch.tensor(rows), torch.tensor(rows), torch.ones(len(rows)).bool()) for rows in ([0, 2], [2])]
    sent = [torch.tensor([[1.0, 0], [0, 4]]), torch.tensor([[2.0, 2]])]
    heard = [Heard({}, one, {"proxy": rows}, 0.1) for one, rows in zip(who, sent, strict=True)]
    expected = torch.tensor([[1.0, 0], [0, 0], [1, 3]], dtype=torch.float64)
    torch.testing.assert_close(averaged_reports(heard, "proxy", 3), expected)


@pytest.mark.parametrize("name", ["fedgn", "fedcs", "fedmetric"])
def test_what_is_heard_is_what_the_run_sends(name):
    """After each round the server's table holds what was heard in it."""
    tables = {
        "method": {"name": name},
        "data": {"name": "synthetic"},
        "net": {"name": "lenet", "channels": [4, 4]},
        "local": {"batch": 4, "steps": 2},
        "cohort": {"size": 5},
        "run": {"device": "cpu", "precision": "float64", "rounds": 9},
    }
    problem = prepare(from_mapping(tables), load("synthetic", clients=8, samples=6, held_out=2))
    state = begin(problem)
    before = deepcopy(state)
    heard = listen(problem, state, 3)
    assert state.round == 3 and len(heard) == 3
    assert heard[0].moved == pytest.approx(2 * problem.recipe.local.lr)
    _, _, leaves = local_updates(problem, before, heard[0].who.client_M, torch.tensor(problem.recipe.local.lr))
    field, table = next(iter(problem.method.wire.up)), next(iter(problem.method.wire.down))
    torch.testing.assert_close(heard[0].leaves[field], leaves[field])
    for one, after in zip(heard, [*(later.server for later in heard[1:]), state.server], strict=True):
        torch.testing.assert_close(after[table][one.who.client_M], one.leaves[field])
    found = problem.method.attack_reports(heard, problem.world)[0]
    never = [client for client in range(8) if not any(client in one.who.client_M for one in heard)]
    assert found.shape == (8, problem.world.dim) and not found[never].any()
