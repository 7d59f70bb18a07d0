"""Sums in the simulator: one answer from both engines, and both against loops written here."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from small import assert_same, build, people, recipe, train
from test_equal import compare
from torch.utils._python_dispatch import TorchDispatchMode

from selfsame.engine import checkpoint
from selfsame.engine.cohort import fused
from selfsame.engine.plan import Start, make_plan
from selfsame.engine.problem import Problem
from selfsame.engine.reference import client_update
from selfsame.engine.rounds import Engine
from selfsame.engine.state import State, begin, join
from selfsame.engine.sums import Sums, noise_spent
from selfsame.errors import SelfsameError
from selfsame.methods.poll import Poll

MASKED, ENCLAVE = {"aggregation": "masked"}, {"aggregation": "enclave"}
GONE = {"size": 5, "dropout": 0.4}  # 12 clients: two groups of 6, three answers needed
NOISY = {"clip": 1.0, "noise": 0.01, "quiet": 0.3, "stand_ins": 1, "least": 2}


@pytest.mark.parametrize("name", ["softmax", "fedaws", "feduv", "fedmetric", "fedhide"])
@pytest.mark.parametrize("kind", ["masked", "enclave"])
def test_engines_agree(name, kind):
    """With drop-outs and stand-ins; then with noise, silence and few stand-ins as well."""
    compare(name, cohort=GONE, sums={"aggregation": kind}, run={"rounds": 6})
    few = {"aggregation": kind, "bits": 16, **NOISY}
    momentum = {"optimiser": "momentum", "weight_decay": 1e-3}
    compare(
        name, cohort={**GONE, "weights": "uniform"}, sums=few, run={"rounds": 6}, local={"steps": 2}, server=momentum
    )


# Written without the engine's sums: every device's update by `client_update`, everything else by hand.


def by_hand(problem: Problem, rounds: int) -> torch.Tensor:
    """Federated averaging of a method that reports nothing, over groups, with all that sums have."""
    part, recipe = problem.recipe.sums, problem.recipe
    plan = make_plan(recipe, 0, rounds, problem.world.clients)
    theta = begin(problem).theta_P
    cap = recipe.cohort.cap or int(problem.federation.count_N.max())
    cap = cap if recipe.cohort.weights == "samples" else 1
    group = 6
    share = part.noise * part.clip / math.sqrt(part.least)
    step = (part.reach + 8 * share) * group / (2 ** (part.bits - 1) - 1 - group)
    last: dict[int, np.ndarray] = {}
    stood = dict.fromkeys(range(problem.world.clients), 0)
    for t in range(rounds):
        answers = {}
        for client in plan.client_TM[t][plan.alive_TM[t]].tolist():
            one = torch.tensor([client])
            who = problem.cohort(one, torch.ones(1, dtype=torch.bool))
            trained, *_ = client_update(problem, theta, Start(who, {}, {}, plan.lr_T[t], t))
            update = (trained - theta).numpy()
            length = math.sqrt(float((update * update).sum()))
            update = update * min(1.0, part.clip / length)
            weight = min(int(problem.federation.count_N[client]), cap) if recipe.cohort.weights == "samples" else 1
            if part.quiet and float(problem.stream("quiet", one, t).uniform(1)) < part.quiet:
                weight = 0
            if part.aggregation == "masked":
                value = np.clip(update, -part.reach, part.reach) * weight / cap
                if part.noise:
                    value = value + share * problem.stream("sum noise", one, t).normal(len(value))[0].double().numpy()
                rounding = problem.stream("rounding", one, t).uniform(len(value))[0].numpy()
                answers[client] = np.append(np.floor(value / step + rounding) * step * cap, weight)
            else:
                answers[client] = np.append(update * weight, weight)
        if len(answers) < part.least:
            continue
        sent = []
        for client in plan.client_TM[t][plan.member_TM[t]].tolist():
            if client in answers:
                last[client] = answers[client]
                sent.append(answers[client])
            elif client in last and (not part.stand_ins or stood[client] < part.stand_ins):
                stood[client] += 1
                sent.append(last[client])
        total = np.sum(sent, axis=0)
        noise = 0.0
        if part.noise and part.aggregation == "enclave":
            drawn = problem.stream("enclave noise", torch.zeros(1, dtype=torch.int64), t).normal(len(total) - 1)
            noise = part.noise * part.clip * drawn[0].double().numpy()
        theta = theta + torch.from_numpy((total[:-1] + noise) / max(total[-1], 1))
    return theta


@pytest.mark.parametrize("kind", ["masked", "enclave"])
@pytest.mark.parametrize(
    ("cohort", "sums"),
    [
        ({**GONE, "cap": 7}, {"clip": 0.7}),
        ({**GONE, "weights": "uniform"}, {"bits": 16, "reach": 0.05, **NOISY}),
        ({"size": 5, "dropout": 0.7}, {"stand_ins": 2, "quiet": 0.2, "least": 1}),
    ],
    ids=["clipped", "noisy", "rare"],
)
def test_rounds_by_hand(kind, cohort, sums):
    problem = build("softmax", cohort=cohort, sums={"aggregation": kind, **sums}, run={"rounds": 12})
    state, _ = train(problem)
    wanted = by_hand(problem, 12)
    assert torch.allclose(state.theta_P, wanted, rtol=0, atol=1e-9)
    assert not torch.allclose(state.theta_P, begin(problem).theta_P, atol=1e-3)


@pytest.mark.parametrize("engine", ["cohort", "reference"])
def test_masked_is_clear_but_for_the_rounding(engine):
    """One round of a whole group, 32 bits: off by less than a step a device, and as far on average as is stated."""
    clear = build("softmax", cohort={"size": 6, "sampling": "groups"}, run={"rounds": 1})
    masked = build("softmax", cohort={"size": 6}, sums={**MASKED, "clip": 50.0}, run={"rounds": 1})
    assert fused(clear) and not fused(masked) and masked.recipe.cohort.sampling == "groups"
    a, b = train(clear, engine)[0], train(masked, engine)[0]
    code = masked.sums.code
    group = make_plan(masked.recipe, 0, 1, 12).client_TM[0]
    unit = code.cap / int(masked.federation.count_N[group].sum())
    off_P = a.theta_P - b.theta_P
    assert float(off_P.abs().max()) < code.step * 6 * unit
    assert 0 < float(off_P.square().mean().sqrt()) < code.error * unit
    sealed, _ = train(build("softmax", cohort={"size": 6}, sums={**ENCLAVE, "clip": 50.0}, run={"rounds": 1}), engine)
    assert torch.allclose(sealed.theta_P, a.theta_P, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["fedhide", "fedaws", "feduv", "softmax", "fedmetric"])
def test_masked_runs_stay_near_clear_ones(name):
    parts = {"cohort": {"size": 4, "sampling": "groups"}, "run": {"rounds": 3}}
    clear, _ = train(build(name, **parts))
    masked, _ = train(build(name, sums={**MASKED, "clip": 50.0}, **parts))
    for field, value in clear.tensors().items():
        assert torch.allclose(value.double(), masked.tensors()[field].double(), rtol=0, atol=1e-4), field


@pytest.mark.parametrize("engine", ["cohort", "reference"])
def test_too_few_answers_change_nothing(engine):
    problem = build("fedhide", cohort={"size": 6, "dropout": 0.4}, sums={**MASKED, "least": 6}, run={"rounds": 4})
    plan = make_plan(problem.recipe, 0, 4, 12)
    assert int(plan.alive_TM.sum(1).max()) < 6
    state, losses = train(problem, engine)
    before = begin(problem).tensors()
    assert all(torch.equal(value, before[name]) for name, value in state.tensors().items())
    assert not losses.any() and state.round == 4


@pytest.mark.parametrize("engine", ["cohort", "reference"])
def test_a_refused_answer_is_no_answer(engine):
    """A device whose samples are not finite is as one that is silent; with too few left nothing is released."""
    federation = people()
    bad = federation.source.rows(torch.tensor([3]), torch.arange(5)[None]).double() * math.nan
    source = federation.source

    class Broken:
        on_host = False

        def rows(self, client_M, index_MB):
            x = source.rows(client_M, index_MB).double()
            x[client_M == 3] = bad[0, 0]
            return x

    federation = replace(federation, source=Broken())
    problem = build("softmax", federation, sums={**MASKED, "least": 11}, cohort={"dropout": 1e-9}, run={"rounds": 2})
    state, _ = train(problem, engine)
    assert int(state.refused) == 2 and not state.last["contribution"][3].any()
    assert not torch.equal(state.theta_P, begin(problem).theta_P) and bool(torch.isfinite(state.theta_P).all())
    few = build("softmax", federation, sums={**MASKED, "least": 12}, run={"rounds": 2})
    state, _ = train(few, engine)
    assert int(state.refused) == 2 and torch.equal(state.theta_P, begin(few).theta_P)


@pytest.mark.parametrize("engine", ["cohort", "reference"])
def test_quiet_devices_train_all_the_same(engine):
    """What stays on the device and what it reports are as without; what it adds to the sum is nothing."""
    parts = {"cohort": {"weights": "uniform"}, "run": {"rounds": 1}}
    loud, _ = train(build("fedhide", sums=ENCLAVE, **parts), engine)
    problem = build("fedhide", sums={**ENCLAVE, "quiet": 0.5}, **parts)
    quiet, _ = train(problem, engine)
    assert torch.allclose(loud.own["prototype"], quiet.own["prototype"], rtol=0, atol=1e-12)
    assert torch.allclose(loud.server["proxies"], quiet.server["proxies"], rtol=0, atol=1e-12)
    silent_M = problem.stream("quiet", torch.arange(12), 0).uniform(1)[:, 0] < 0.5
    assert 0 < int(silent_M.sum()) < 12
    sums = Sums(clip=1.0, least=1, quiet=0.5)
    sent_MP = sums.contributions(
        torch.arange(12),
        torch.ones(12, 3),
        torch.ones(12),
        lambda purpose, client_M: problem.stream(purpose, client_M, 0),
    )
    assert torch.equal(sent_MP.any(1), ~silent_M) and torch.equal(sent_MP[:, -1] > 0, ~silent_M)


def test_long_cohorts_are_added_up_piece_by_piece(monkeypatch):
    problem = build("softmax", cohort=GONE, sums=MASKED, run={"rounds": 4})
    whole, _ = train(problem)
    monkeypatch.setattr("selfsame.engine.sums._AT_ONCE", 3 * problem.model.parameters)
    pieces, _ = train(problem)
    assert_same(whole, pieces, 0)


class NoQuestions(TorchDispatchMode):
    """Refuses what would wait for the device to answer: a captured CUDA graph cannot."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert str(func) not in (
            "aten._local_scalar_dense.default",
            "aten.nonzero.default",
            "aten.masked_select.default",
        )
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", ["masked", "enclave"])
def test_adding_up_asks_the_device_nothing(kind):
    few = {"aggregation": kind, **NOISY}
    problem = build("softmax", cohort={**GONE, "weights": "uniform"}, sums=few)
    last = problem.sums.begin(12, problem.model.first_theta)
    client_M, fresh_M = torch.arange(6), torch.tensor([True, False] * 3)
    update_MP = torch.ones(6, problem.model.parameters, dtype=torch.float64)
    with NoQuestions():
        mean_P = problem.sums.add_up(
            last, client_M, torch.ones_like(fresh_M), fresh_M, update_MP, torch.ones_like(client_M),
            lambda purpose, client_M: problem.stream(purpose, client_M, torch.tensor(3)),
        )  # fmt: skip
    assert bool(torch.isfinite(mean_P).all()) and last["stood"][:6].tolist() == [0, -1] * 3


def test_resumed_bit_for_bit(tmp_path):
    """What stands in for drop-outs is in the checkpoint."""
    problem = build("fedhide", cohort=GONE, sums=MASKED, run={"rounds": 8})
    whole, _ = train(problem)
    half, _ = train(problem, rounds=4)
    assert half.last["contribution"].dtype == torch.int32 and half.last["contribution"].any()
    checkpoint.save_state(half, tmp_path / "state")
    again = begin(problem)
    checkpoint.load_state(again, tmp_path / "state")
    Engine(problem).run(again, make_plan(problem.recipe, 4, 4, 12))
    assert_same(whole, again, 0)


@pytest.mark.parametrize("engine", ["cohort", "reference"])
def test_late_clients_get_rows(engine):
    cohort = {"size": 3, "dropout": 0.3, "late": 0.5, "join_round": 4}
    problem = build("fedhide", cohort=cohort, sums={**MASKED, "least": 1}, run={"rounds": 12})
    state: State = begin(problem, 6)
    Engine(problem, engine).run(state, make_plan(problem.recipe, 0, 4, 6))
    kept = state.last["contribution"].clone()
    join(problem, state)
    assert state.last["contribution"].shape == (12, problem.model.parameters + 1) and kept.any()
    assert torch.equal(state.last["contribution"][:6], kept) and not state.last["contribution"][6:].any()
    Engine(problem, engine).run(state, make_plan(problem.recipe, 4, 8, 12))
    assert state.last["contribution"][6:].any()


def test_no_table_where_nobody_drops_out():
    assert not begin(build("fedhide", cohort={"size": 5}, sums=MASKED)).last
    assert not begin(build("fedhide", cohort=GONE)).last


@pytest.mark.parametrize("steps", [1, 2])
def test_no_more_samples_weigh_than_the_cap(steps):
    compare("fedhide", cohort={"cap": 6}, local={"steps": steps})
    problem = build("softmax", cohort={"cap": 6}, local={"steps": steps}, run={"rounds": 1})
    assert fused(problem) == (steps == 1)
    count_M = problem.federation.count_N.clamp(max=6)
    assert torch.equal(problem.counts(torch.arange(12)), count_M) and len(set(count_M.tolist())) > 1
    sent, theta = [], begin(problem).theta_P
    for client in range(12):
        who = problem.cohort(torch.tensor([client]), torch.ones(1, dtype=torch.bool))
        sent.append(client_update(problem, theta, Start(who, {}, {}, torch.tensor(0.1, dtype=torch.float64), 0))[0])
    wanted = sum(int(n) / int(count_M.sum()) * one for n, one in zip(count_M, sent, strict=True))
    assert torch.allclose(train(problem)[0].theta_P, wanted, rtol=0, atol=1e-12)


def test_the_recipe_says_everything():
    problem = build("softmax", cohort={"size": 5, "sampling": "round-robin"}, sums=MASKED)
    found, length = problem.recipe.sums, float(problem.model.first_theta.norm())
    assert problem.recipe.cohort.sampling == "groups" and found.least == 3
    assert math.isclose(found.clip, length, rel_tol=1e-5) and found.reach == found.clip
    assert problem.sums == Sums.of(problem.recipe, 12, problem.longest) and problem.sums.code.group == 6
    again = build("softmax", cohort={"size": 5}, sums={**MASKED, "clip": found.clip, "reach": found.reach, "least": 3})
    assert again.sums == problem.sums
    assert build("softmax", cohort={"size": 5}).sums is None


@pytest.mark.parametrize(
    ("name", "cohort", "sums", "line"),
    [
        ("fdml", {}, MASKED, r"sums\.aggregation: fdml sends its gradients to the enclave, .*; leave it clear"),
        ("deepsvdd", {}, MASKED, r"sums\.aggregation: deepsvdd sends no updates; leave it clear"),
        ("fedhide", {}, {**MASKED, "noise": 0.1}, r"sums\.noise: .*; set cohort\.weights to uniform"),
        ("fedhide", {}, {"noise": 0.1}, r"sums\.noise: .*; set sums\.aggregation to masked or enclave"),
        ("fedhide", {}, {"quiet": 0.1}, r"sums\.quiet: .*; set sums\.aggregation to masked or enclave"),
        (
            "fedhide",
            {"size": 5},
            {**MASKED, "least": 6},
            r"sums\.least: 6 answers are wanted, a group may have 5; lower",
        ),
        ("fedhide", {"cap": 9000}, {**MASKED, "bits": 16}, r"sums\.bits: 16 bits do not hold the sum of 12 devices"),
        (
            "fedhide",
            {},
            {**MASKED, "clip": 1.0, "reach": 2.0},
            r"sums\.reach: must be above 0 and at most the clip of 1",
        ),
    ],
)
def test_what_does_not_go_together(name, cohort, sums, line):
    with pytest.raises(SelfsameError, match=rf"^{line}"):
        build(name, cohort=cohort, sums=sums)


@pytest.mark.parametrize(
    ("kind", "dropout", "factor"), [("masked", 0, 1), ("enclave", 0.3, 1), ("masked", 0.3, 3**0.5)]
)
def test_what_noise_is_worth(kind, dropout, factor):
    """The closed form of Gaussian noise of `noise` clips on vectors up to 2 clips apart, in a quarter of the rounds."""
    cohort = {"size": 5, "weights": "uniform", "dropout": dropout}
    made = recipe(
        "fedhide", cohort={**cohort, "sampling": "groups"}, sums={"aggregation": kind, "noise": 4.0, "least": 3}
    )
    spent = noise_spent(made, 100, 20)
    assert spent.rounds == 25 and spent.delta == 1e-5
    mu = factor * 2 / 4.0 * math.sqrt(25)

    def phi(x):
        return math.erfc(-x / math.sqrt(2)) / 2

    delta = phi(mu / 2 - spent.epsilon / mu) - math.exp(spent.epsilon) * phi(-mu / 2 - spent.epsilon / mu)
    assert math.isclose(delta, 1e-5, rel_tol=1e-3)
    assert noise_spent(recipe("fedhide"), 100, 20) is None


def test_what_noise_on_polls_and_updates_is_worth_together():
    """One Gaussian mechanism of all ratios' squares: polls of vectors at most 3 / sqrt(2) apart, under their noise."""
    poll = Poll(every=4, least=6, numbers=9, longest=2**0.5, apart=3 / 2**0.5, noise=5.0)
    base = {"size": 5, "weights": "uniform", "sampling": "groups"}
    alone = noise_spent(recipe("fedhide"), 100, 20, poll)
    both = noise_spent(
        recipe("fedhide", cohort=base, sums={"aggregation": "enclave", "noise": 4.0, "least": 3}), 100, 20, poll
    )
    assert alone.why == "polls alone: updates carry no noise" and both.why == ""
    polls = 25 * (1.5 / 5.0) ** 2

    def phi(x):
        return math.erfc(-x / math.sqrt(2)) / 2

    for spent, square in ((alone, polls), (both, polls + 25 * 0.5**2)):
        mu = math.sqrt(square)
        delta = phi(mu / 2 - spent.epsilon / mu) - math.exp(spent.epsilon) * phi(-mu / 2 - spent.epsilon / mu)
        assert math.isclose(delta, 1e-5, rel_tol=1e-3)
    lost = noise_spent(
        recipe("fedhide", cohort={**base, "dropout": 0.3}, sums={"aggregation": "masked", "least": 3}), 100, 20, poll
    )
    assert lost.epsilon > alone.epsilon  # its own share alone
    silent = noise_spent(
        recipe("fedhide", cohort=base, sums={"aggregation": "enclave", "noise": 4.0}), 100, 20, replace(poll, noise=0.0)
    )
    assert silent.epsilon is None and silent.why == "updates carry noise, polls none"


@pytest.mark.parametrize("least", [2, 5, 20])
def test_old_noise_hides_less(least):
    """Two masked sums with the same stand-ins say more of a device than two rounds with fresh noise would.

    docs/design/noise.md has the closed form. Its own share of the noise bounds it.
    """
    share = np.zeros((2, 3 * least))  # whose noise is in which sum: the device's two, the others of either round
    share[0, 0] = share[1, 1] = 1
    share[0, 2 : least + 1] = share[1, 2 : least + 1] = 1  # stand in the second time
    share[1, least + 1 : 2 * least] = 1
    apart = np.array([1.0, -1.0])
    found = apart @ np.linalg.solve(share @ share.T, apart)  # for shares of deviation 1
    assert math.isclose(found, (5 * least - 3) / (least**2 + least - 1), rel_tol=1e-9)
    assert 2 / least < found <= 2
