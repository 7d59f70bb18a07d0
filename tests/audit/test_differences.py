"""The differencing attacker finds everybody where rosters mix, and a group's share where they do not."""

import math

import pytest
import torch

from selfsame.audit.differences import WAYS, Way, contributions, guesses, identified, judged
from selfsame.audit.transcript import Release, Transcript, local_updates, overheard, record
from selfsame.config.recipe import from_mapping
from selfsame.data import load
from selfsame.engine.plan import make_plan
from selfsame.engine.rounds import Engine
from selfsame.engine.setup import prepare
from selfsame.engine.state import begin

CLIENTS, SIZE, ROUNDS, DIM = 60, 10, 180, 24


def transcript(groups, dropout=0.0, stand_ins=False, noise=0.0, rounds=ROUNDS, seed=0):
    """(what is released, the clients' vectors): updates are the vectors with some noise, shrinking over time."""
    draw = torch.Generator().manual_seed(seed)
    truth = torch.nn.functional.normalize(torch.randn(CLIENTS, DIM, generator=draw, dtype=torch.float64))
    terms = Release(SIZE, groups)
    asked = torch.zeros(rounds, CLIENTS, dtype=torch.bool)
    fresh, sums, last = torch.zeros_like(asked), [], torch.zeros(CLIENTS, DIM, dtype=torch.float64)
    for t in range(rounds):
        asked[t, terms.asked(seed, t, CLIENTS)] = True
        fresh[t] = asked[t] & (torch.rand(CLIENTS, generator=draw) >= dropout)
        own = 0.2 * torch.randn(CLIENTS, DIM, generator=draw, dtype=torch.float64) / math.sqrt(DIM)
        update = (truth + own) * math.exp(-t / rounds)
        last[fresh[t]] = update[fresh[t]]
        total = last[asked[t]].sum(0) if stand_ins else update[fresh[t]].sum(0)
        sums.append(total + noise * torch.randn(DIM, generator=draw, dtype=torch.float64))
    return Transcript(asked, fresh, torch.stack(sums), stand_ins), truth


def most(share, looks=1):
    """What so many clients, each found with chance `share`, exceed in less than one of a million cases (Hoeffding)."""
    return share + math.sqrt(math.log(1e6 * looks) / (2 * CLIENTS))


def test_random_cohorts_give_everybody_away():
    seen, truth = transcript(groups=False)
    got = identified(seen, truth)
    assert got.share == 1 and got.cosine > 0.95


@pytest.mark.parametrize("seed", [0, 1])
def test_whole_groups_give_the_groups_share(seed):
    """All members of a group get one guess, which can be closest to one of them: held exactly, whatever the draw."""
    seen, truth = transcript(groups=True, seed=seed)
    for way in WAYS:
        assert judged(guesses(seen, way), truth, way).share <= SIZE**-1 + 1e-9
    assert identified(seen, truth).share <= most(1 / SIZE)


def test_drop_outs_give_everybody_away_and_stand_ins_with_noise_do_not():
    bare, truth = transcript(groups=True, dropout=0.1)
    assert identified(bare, truth).share > 0.9
    kept, truth = transcript(groups=True, dropout=0.1, stand_ins=True, noise=1.0)
    assert identified(kept, truth).share <= most(1 / SIZE, len(WAYS))


def test_stand_ins_alone_are_told_apart_by_their_age():
    """Updates shrink over time, so a stand-in is larger than those around it: more than the group's share is found."""
    kept, truth = transcript(groups=True, dropout=0.3, stand_ins=True)
    assert identified(kept, truth).share > 0.3
    plain = [judged(guesses(kept, way), truth, way).share for way in WAYS if way.power == 0]
    assert max(plain) < identified(kept, truth).share  # weighing by size is what finds them


def test_who_is_in_a_sum_and_how_much():
    """By plain loops: a stand-in counts as large as updates were when it was made."""
    seen, _ = transcript(groups=True, dropout=0.4, stand_ins=True, rounds=30)
    size = [float(row.norm()) / int(asked.sum()) for row, asked in zip(seen.sum_TD, seen.asked_TN)]
    padded = [size[0]] * 5 + size + [size[-1]] * 5
    smooth = [sum(padded[t : t + 11]) / 11 for t in range(30)]
    for drift in (False, True):
        part = contributions(seen, drift)
        last = [0.0] * CLIENTS
        for t in range(30):
            for client in range(CLIENTS):
                if seen.fresh_TN[t, client]:
                    last[client] = smooth[t] if drift else 1.0
                expected = last[client] if seen.asked_TN[t, client] else 0.0
                assert float(part[t, client]) == pytest.approx(expected)


def test_the_regression_is_ridge_regression():
    seen, _ = transcript(groups=False, rounds=40)
    way = Way(0.0, False, 0.1)
    X, Y = seen.fresh_TN.double(), seen.sum_TD
    square = X.T @ X
    weight = 0.1 * float(square.diagonal().mean())
    both = torch.cat([X, math.sqrt(weight) * torch.eye(CLIENTS, dtype=torch.float64)])
    expected = torch.linalg.lstsq(both, torch.cat([Y, torch.zeros(CLIENTS, DIM, dtype=torch.float64)])).solution
    torch.testing.assert_close(guesses(seen, way), expected)


@pytest.mark.parametrize("plain", [{}, {"plain": ["head"], "plain_lr": 2.0}], ids=["", "plain"])
@pytest.mark.parametrize("optimiser", ["average", "momentum"])
def test_what_is_overheard_of_an_engine_is_the_sum_of_its_clients_updates(optimiser, plain):
    tables = {
        "method": {"name": "feduv", "code_length": 31, "secrets": "seeded"},
        "data": {"name": "synthetic"},
        "net": {"name": "lenet", "channels": [4, 4]},
        "local": {"batch": 4},
        "run": {"device": "cpu", "precision": "float64", "rounds": 4},
        "cohort": {"weights": "uniform", "size": 5, "dropout": 0.3},
        "server": {"optimiser": optimiser, "weight_decay": 0.01, **plain},
    }
    problem = prepare(from_mapping(tables), load("synthetic", clients=8, samples=6, held_out=2))
    state, plan = begin(problem), make_plan(problem.recipe, 0, 4, 8)
    seen = overheard(problem, state, Engine(problem), plan)
    again = begin(problem)
    for t in range(4):
        client_M = plan.client_TM[t, plan.alive_TM[t]]
        assert torch.equal(seen.fresh_TN[t].nonzero()[:, 0], client_M.sort().values)
        change_MP, _, _ = local_updates(problem, again, client_M, plan.lr_T[t])
        bias_MD = problem.model.net_views(change_MP)["head.bias"]
        torch.testing.assert_close(seen.sum_TD[t], bias_MD.sum(0) / plan.lr_T[t], rtol=1e-6, atol=1e-8)
        Engine(problem).run(again, plan.part(t, t + 1))


def test_a_recorded_run():
    """The whole chain on a real training: random cohorts identify most clients, whole groups a group's share."""
    tables = {
        "method": {"name": "feduv", "code_length": 31, "secrets": "seeded"},
        "data": {"name": "synthetic"},
        "net": {"name": "lenet", "channels": [4, 4]},
        "local": {"batch": 4},
        "run": {"device": "cpu", "precision": "float64", "rounds": 40},
        "cohort": {"weights": "uniform"},
    }
    problem = prepare(from_mapping(tables), load("synthetic", clients=16, samples=6, held_out=2))
    shares = {}
    for groups in (False, True):
        state = begin(problem)
        seen = record(problem, state, Release(4, groups), 40)
        assert state.round == 40 and seen.sum_TD.shape == (40, 31)
        shares[groups] = identified(seen, state.own["codeword"]).share
    assert shares[False] > 0.9
    assert shares[True] <= 1 / 4
