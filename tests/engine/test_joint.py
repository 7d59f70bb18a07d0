"""Split rounds: both engines alike, both as written out here, and Algorithm 3 with its time-outs and strategies."""

from __future__ import annotations

import copy
import tomllib
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small import assert_same, bits, build, people, recipe, train
from torch import nn

from selfsame import methods
from selfsame.config.recipe import Recipe, SplitPart, from_mapping, to_mapping, to_toml
from selfsame.engine import joint
from selfsame.engine.checkpoint import load_state, save_state
from selfsame.engine.machine import Machine
from selfsame.engine.model import Model
from selfsame.engine.plan import Plan, Turn, choose, make_plan
from selfsame.engine.problem import Problem
from selfsame.engine.rounds import Engine
from selfsame.engine.state import State, begin, join
from selfsame.engine.turnout import asked, needed, registered_clients, turnout
from selfsame.errors import SelfsameError
from selfsame.methods.fdml import KINDS, Fdml
from selfsame.privacy.accountant import Exchange, composed_epsilon
from selfsame.privacy.mechanisms import Gaussian
from selfsame.runs.loop import carry_on
from selfsame.runs.run import start
from selfsame.runs.summary import view

ADAM = {"optimiser": "adam", "lr": 1e-3, "beta2": 0.999, "epsilon": 1e-8}
LAPLACE = {"noise": "laplace", "drop": 0.3, "clip": 1e-2, "scale": 1e-3}


def order(rounds: int = 40, seed: int = 0, cohort: dict | None = None, **part) -> Recipe:
    return recipe("fdml", run={"rounds": rounds, "seed": seed}, cohort=cohort or {"size": 6}, split=part)


# One answer from both engines


@pytest.mark.parametrize(
    "options",
    [
        *({"kind": kind} for kind in KINDS),
        {"kind": "batch-all", "normalise": True, "squared": True, "average": "all"},
        LAPLACE,
        {"noise": "gaussian", "drop": 0.2, "clip": 0.5, "scale": 0.01},
    ],
    ids=lambda o: "-".join(str(v) for v in o.values()),
)
@pytest.mark.parametrize("weights", ["samples", "uniform"])
def test_the_cohort_is_the_devices_one_by_one(options, weights):
    part = {"size": 7, "dropout": 0.3, "weights": weights}
    problem = build("fdml", options=options, cohort=part, local={"batch": 6}, server=ADAM, split={"over": 1.5})
    a, losses_a = train(problem, "cohort")
    b, losses_b = train(problem, "reference")
    assert_same(a, b)
    assert torch.allclose(losses_a, losses_b, rtol=1e-9, atol=0)
    assert not torch.equal(a.theta_P, begin(problem).theta_P)


@pytest.mark.parametrize("optimiser", ["average", "momentum", "adam", "adagrad"])
def test_several_clients_a_class_and_every_server(optimiser):
    problem = build("fdml", people(clients_per_class=2), server={"optimiser": optimiser, "weight_decay": 1e-3})
    assert_same(train(problem, "cohort")[0], train(problem, "reference")[0])


@pytest.mark.parametrize("kind", ["semi-hard", "margin-softmax"])
def test_late_clients(kind):
    states = []
    for engine in ("cohort", "reference"):
        cohort = {"late": 0.5, "join_round": 2, "size": 5}
        problem = build("fdml", options={"kind": kind}, cohort=cohort, run={"rounds": 4})
        state = begin(problem, 6)
        Engine(problem, engine).run(state, make_plan(problem.recipe, 0, 2, 6))
        join(problem, state)
        Engine(problem, engine).run(state, make_plan(problem.recipe, 2, 2, 12))
        states.append(state)
    assert_same(*states)
    assert states[0].server["taken"].tolist()[:6] != [0] * 6 and int(states[0].server["taken"].sum()) == 20


def test_class_vectors_begin_with_a_class_and_stay_unit_vectors():
    """Of five of twelve clients a round; whoever has not been there has none."""
    problem = build("fdml", options={"kind": "margin-softmax"}, cohort={"size": 5}, run={"rounds": 2})
    state, _ = train(problem)
    seen = make_plan(problem.recipe, 0, 2, 12).client_TM.flatten().unique()
    length_C = state.enclave["class_vectors"].norm(dim=1)
    wanted_C = torch.zeros(12, dtype=torch.float64).index_fill(0, seen, 1.0)
    assert 5 < len(seen) < 12
    torch.testing.assert_close(length_C, wanted_C, rtol=0, atol=1e-12)
    assert build("fdml").method.begin_enclave(problem.world) == {} and "class_vectors" not in state.server


def tiny(lr: float, weights: str, server: dict, dropout: float = 0.0) -> tuple[Problem, nn.Module]:
    """A problem whose batches hold all samples, so that it does not matter how they are drawn."""
    torch.manual_seed(3)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 7), nn.Tanh(), nn.Linear(7, 5)).double()
    federation = people()
    cohort = {"weights": weights, "dropout": dropout}
    plan = recipe("fdml", {"kind": "batch-all"}, local={"batch": 9, "lr": lr}, server=server, cohort=cohort)
    method = methods.make("fdml", plan.method.options)
    world = methods.World(federation.clients, federation.classes, 5, federation.class_of_N)
    return Problem.of(plan, method, Model(copy.deepcopy(net), {}, Machine(dtype=torch.float64)), federation, world), net


def all_samples(problem: Problem, client: int) -> torch.Tensor:
    index = torch.arange(int(problem.federation.count_N[client]))[None]
    return problem.federation.source.rows(torch.tensor([client]), index)[0].double()


@pytest.mark.parametrize("engine", ["cohort", "reference"])
@pytest.mark.parametrize("weights", ["samples", "uniform"])
def test_two_rounds_by_hand(engine, weights):
    """Triplets over everybody's embeddings, each client's part of the gradient, (2), and Adam."""
    problem, net = tiny(1.0, weights, {**ADAM, "momentum": 0.9}, dropout=0.3)
    plan = make_plan(problem.recipe, 0, 2, 12)
    mean, square = ([torch.zeros_like(p) for p in net.parameters()] for _ in range(2))
    counts = problem.federation.count_N.tolist()
    template = torch.zeros(12, 5, dtype=torch.float64)
    assert not plan.alive_TM.all() and plan.alive_TM.any(1).all()
    losses = []
    for number, alive in enumerate(plan.alive_TM.tolist(), 1):
        x = [all_samples(problem, client) for client in range(12)]
        emb = torch.cat([net(part) for part in x])
        leaf = emb.detach().requires_grad_()
        label = [client for client in range(12) for _ in range(counts[client])]
        hinges = []
        for a, p in ((a, p) for a in range(len(label)) for p in range(len(label)) if a != p and label[a] == label[p]):
            other = torch.tensor([n for n in range(len(label)) if label[n] != label[a]])
            positive = (leaf[a] - leaf[p]).norm()
            hinges.append((positive - (leaf[a] - leaf[other]).norm(dim=1) + 0.2).clamp(min=0))
        active = torch.cat(hinges)
        loss = active.sum() / (active > 0).sum()
        losses.append(loss.item())
        parts = torch.autograd.grad(loss, leaf)[0].split(counts)
        answered = [client for client in range(12) if alive[client]]
        size = {client: counts[client] if weights == "samples" else 1 for client in answered}
        net.zero_grad()
        for client in answered:
            share = size[client] / sum(size.values())
            out = net(x[client])
            template[client] = out.detach().mean(0)
            (share * out).backward(parts[client])
        with torch.no_grad():
            for place, p in enumerate(net.parameters()):
                mean[place] = 0.9 * mean[place] + 0.1 * p.grad
                square[place] = 0.999 * square[place] + 0.001 * p.grad**2
                p -= 1e-3 * (mean[place] / (1 - 0.9**number)) / ((square[place] / (1 - 0.999**number)).sqrt() + 1e-8)
    state = begin(problem)
    got = Engine(problem, engine).run(state, plan)
    wanted = problem.model.layout.flatten({f"net.{name}": p for name, p in net.named_parameters()})
    torch.testing.assert_close(state.theta_P, wanted.detach(), rtol=0, atol=1e-10)
    torch.testing.assert_close(state.own["template"], template, rtol=0, atol=1e-10)
    assert got.tolist() == pytest.approx(losses, rel=1e-9)


def test_one_forward_and_one_backward_for_everybody(monkeypatch):
    problem = build("fdml", run={"rounds": 1})
    passes = []
    real = Model.embed_and_back

    def spy(self, theta_P, x_MB):
        emb_MBD, back = real(self, theta_P, x_MB)
        passes.append(("forward", len(x_MB)))

        def counted(pull_MBD):
            passes.append(("backward", len(pull_MBD)))
            return back(pull_MBD)

        return emb_MBD, counted

    monkeypatch.setattr(Model, "embed_and_back", spy)
    train(problem, "cohort")
    assert passes == [("forward", 12), ("backward", 12)]


def test_devices_one_by_one_ask_for_their_own_samples_alone():
    problem = build("fdml", run={"rounds": 1})
    seen = []
    source = problem.federation.source

    class Spy:
        on_host = False

        def rows(self, client_M, index_MB):
            seen.append(client_M.tolist())
            return source.rows(client_M, index_MB)

    train(replace(problem, federation=replace(problem.federation, source=Spy())), "reference")
    assert seen == [[client] for client in range(12)]


@pytest.mark.parametrize("engine", ["cohort", "reference"])
@pytest.mark.parametrize("options", [LAPLACE, {"kind": "margin-softmax"}], ids=["laplace", "class vectors"])
def test_blocks_of_rounds_and_a_checkpoint_do_not_matter(engine, options, tmp_path):
    part = {"over": 1.5, "most": 4, "lost": 0.2}
    problem = build("fdml", options=options, cohort={"size": 4}, run={"rounds": 6}, server=ADAM, split=part)
    whole, losses = train(problem, engine)
    parts, pieces = begin(problem), []
    for first, count in ((0, 2), (2, 1), (3, 3)):
        plan = make_plan(problem.recipe, first, count, 12, parts.server["taken"])
        pieces.append(Engine(problem, engine).run(parts, plan))
        save_state(parts, tmp_path / "state")
        parts = begin(problem)
        load_state(parts, tmp_path / "state")
    assert torch.equal(torch.cat(pieces), losses)
    for name, value in whole.tensors().items():
        assert bits(value) == bits(parts.tensors()[name]), name


# Who is in it


def planned(problem: Problem, engine: str, client: list[int], dead: tuple[int, ...] = (), count: int = 2) -> State:
    state = begin(problem)
    alive_TM = torch.tensor([[c not in dead for c in client]] * count)
    rate = torch.full((count,), problem.recipe.local.lr, dtype=torch.float64)
    plan = Plan(0, torch.tensor([client] * count), alive_TM, rate, torch.ones_like(rate))
    losses = Engine(problem, engine).run(state, plan)
    assert torch.isfinite(losses).all()
    return state


class Poisoned:
    """Samples, with one number of some clients' replaced."""

    on_host = False

    def __init__(self, source, clients: list[int], value: float) -> None:
        self.source, self.clients, self.value = source, torch.tensor(clients), value

    def rows(self, client_M, index_MB):
        x = self.source.rows(client_M, index_MB)
        x[torch.isin(client_M, self.clients), 0, 0, 3, 3] = self.value
        return x

    def to(self, device):
        return self


@pytest.mark.parametrize("engine", ["cohort", "reference"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("kind", ["semi-hard", "margin-softmax"])
def test_embeddings_that_are_not_finite_are_refused_and_reach_nobody(engine, value, kind):
    federation = people()
    bad = replace(federation, source=Poisoned(federation.source, [2, 7], value))
    with_bad = planned(build("fdml", bad, {"kind": kind}, local={"batch": 9}), engine, [1, 2, 4, 7, 9])
    without = planned(build("fdml", federation, {"kind": kind}, local={"batch": 9}), engine, [1, 4, 9])
    assert int(with_bad.refused) == 4 and int(without.refused) == 0
    for state in (with_bad, without):
        state.refused, state.server = torch.zeros(()), {}
    assert_same(with_bad, without)


@pytest.mark.parametrize("engine", ["cohort", "reference"])
def test_a_round_of_refused_clients_changes_nothing(engine):
    federation = people()
    bad = replace(federation, source=Poisoned(federation.source, list(range(12)), float("nan")))
    problem = build("fdml", bad, {"kind": "margin-softmax"}, server=ADAM)
    state = planned(problem, engine, [1, 2, 4])
    first = begin(problem)
    assert int(state.refused) == 6 and not state.enclave["class_vectors"].any()
    assert torch.equal(state.theta_P, first.theta_P) and torch.equal(state.own["template"], first.own["template"])


@pytest.mark.parametrize("engine", ["cohort", "reference"])
def test_who_is_lost_after_embedding_still_shapes_the_others_derivatives(engine):
    problem = build("fdml", local={"batch": 9})
    lost = planned(problem, engine, [1, 2, 4, 7], dead=(7,), count=1)
    never = planned(problem, engine, [1, 2, 4], count=1)
    assert not torch.equal(lost.theta_P, never.theta_P)
    assert not lost.own["template"][7].any() and lost.own["template"][4].any()
    assert lost.server["taken"].nonzero().flatten().tolist() == [1, 2, 4, 7]


def test_an_abandoned_round_changes_nothing_but_is_counted():
    """The derivatives have left by then: it costs privacy."""
    problem = build("fdml", options={"kind": "margin-softmax"}, server=ADAM)
    state = planned(problem, "cohort", [1, 2, 4], dead=(1, 2, 4))
    first = begin(problem)
    assert not state.enclave["class_vectors"].any()
    assert torch.equal(state.theta_P, first.theta_P) and float(state.optim["step"]) == 0
    assert state.server["taken"].tolist() == [0, 2, 2, 0, 2] + 7 * [0]


class Leaky(Fdml):
    def report(self, mine, sent, who, emb_MBD, mask_MB, stream):
        stays, leaves = super().report(mine, sent, who, emb_MBD, mask_MB, stream)
        return stays, {**leaves, "template": stays["template"].clone()}


@pytest.mark.parametrize("run", [joint.run_round, joint.run_alone])
def test_nothing_undeclared_leaves(run):
    problem = replace(build("fdml"), method=Leaky())
    state = begin(problem)
    one = torch.ones((), dtype=torch.float64)
    with pytest.raises(SelfsameError, match="wire: a report may hold"):
        run(problem, state, Turn(torch.arange(3), torch.ones(3, dtype=torch.bool), one, one, 0))
    assert torch.equal(state.theta_P, begin(problem).theta_P)


# Algorithm 3


def test_without_exceptions_the_plan_is_that_of_every_method():
    plain = order(cohort={"size": 6})
    plan = make_plan(plain, 3, 5, 12)
    assert plan.alive_TM.all()
    for row, t in enumerate(range(3, 8)):
        assert plan.client_TM[row].tolist() == choose(plain, t, 6, 12).tolist()
    robin = order(cohort={"size": 5, "sampling": "round-robin"})
    assert [sorted(row) for row in make_plan(robin, 0, 3, 12).client_TM.tolist()] == [
        sorted(choose(robin, t, 5, 12).tolist()) for t in range(3)
    ]


@given(
    st.integers(0, 10**6),
    st.integers(1, 30),
    st.floats(1, 3),
    st.floats(0.05, 1),
    st.floats(0, 0.9),
    st.sampled_from(["uc", "as"]),
    st.floats(0, 3),
)
def test_any_turnout(round, size, over, response, dropout, strategy, wait):
    part = {"over": over, "response": response, "strategy": strategy, "gradient_wait": wait}
    chosen = order(cohort={"size": size, "dropout": dropout}, **part)
    found = turnout(chosen, round, size, 100)
    assert found.client_M.tolist() == sorted({*found.client_M.tolist()}) and len(found.client_M) == size
    assert found.client_M.min() >= 0 and found.client_M.max() < 100 and found.selections == 1
    count, wanted = int(found.alive_M.sum()), needed(chosen, size)
    assert asked(chosen, size) >= size and size * response <= wanted + 1e-6 <= size * response + 1
    if strategy == "as":
        assert count in (0, wanted)
    else:
        assert count == 0 or count == wanted or 2 < count < wanted
    again = turnout(chosen, round, size, 100)
    assert np.array_equal(again.client_M, found.client_M) and np.array_equal(again.alive_M, found.alive_M)


def test_how_many_are_asked_and_waited_for():
    """64 participants: k 1.25 asks 80; rate_p 0.8 waits while there are fewer than 51.2."""
    chosen = recipe("fdml", split={"over": 1.25, "response": 0.8})
    assert (asked(chosen, 64), needed(chosen, 64)) == (80, 52)
    assert (asked(recipe("fdml"), 64), needed(recipe("fdml"), 64)) == (64, 64)
    assert needed(recipe("fdml", split={"response": 0.6}), 5) == 3  # 5 * 0.6 is a little more than 3


def alive(rounds: int = 400, size: int = 8, dropout: float = 0.0, **part) -> np.ndarray:
    chosen = order(cohort={"size": size, "dropout": dropout}, **part)
    return np.stack([turnout(chosen, t, size, 60).alive_M for t in range(rounds)])


def test_strategies():
    """At 0.2, all of 8 gradients arrive in 0.8^8 = 17 % of the rounds."""
    both = {strategy: alive(dropout=0.2, strategy=strategy) for strategy in ("uc", "as")}
    whole = both["as"].any(1)
    assert whole.mean() == pytest.approx(0.8**8, abs=0.06)
    assert both["as"][whole].all()
    assert both["uc"].mean() == pytest.approx(0.8, abs=0.02)
    assert np.array_equal(both["uc"][whole], both["as"][whole])


def test_no_round_goes_on_with_two():
    kept = alive(dropout=0.7).sum(1)
    assert set(kept) & {1, 2} == set() and 0 in kept and 3 in kept


def test_the_response_rate_leaves_out_those_who_come_last():
    kept = alive(response=0.5)
    assert (kept.sum(1) == 4).all()
    assert kept.mean(0) == pytest.approx(0.5, abs=0.1)  # anybody may be among them
    # an abandoned round needs fewer than half of the gradients, 4 of 8, in time: P(Bin(8, 0.8) < 4) = 1 %
    assert (alive(response=0.5, dropout=0.2, strategy="as").any(1)).mean() == pytest.approx(0.99, abs=0.02)


def test_gradients_after_the_time_out_do_not_count():
    """Answers take an exponential time, so 1 - e^-wait of them come in time."""
    assert alive(size=30, gradient_wait=0.7).mean() == pytest.approx(1 - np.exp(-0.7), abs=0.02)
    assert alive(gradient_wait=50.0).all()


def selections(rounds: int = 300, present: int = 60, size: int = 8, **part) -> tuple[float, np.ndarray]:
    chosen = order(cohort={"size": size}, **part)
    found = [turnout(chosen, t, size, present) for t in range(rounds)]
    return float(np.mean([one.selections for one in found])), np.stack([one.client_M for one in found])


def test_lost_embeddings_have_others_selected():
    """Without reserve all of 8 must answer, once in 1 / 0.9^8 = 2.3 selections; with half as many again they do."""
    mean, client = selections(lost=0.1)
    assert mean == pytest.approx(0.9**-8, abs=0.35)
    assert len(np.unique(client)) == 60
    assert selections(lost=0.1, over=1.5)[0] < 1.05


def test_late_embeddings_are_as_good_as_lost():
    wait = -np.log(0.1)  # a tenth comes later
    assert selections(embedding_wait=float(wait))[0] == pytest.approx(0.9**-8, abs=0.35)


def test_the_first_to_answer_are_used():
    """All 60 are asked and the first 8 stay: any of them, not the first numbers."""
    _, client = selections(over=7.5)
    assert np.bincount(client.ravel(), minlength=60).min() > 15


def test_settings_that_can_never_work():
    with pytest.raises(SelfsameError, match=r"split.over: in round 0 1000 selections of 8 devices never brought 8"):
        turnout(order(cohort={"size": 8}, lost=0.95), 0, 8, 60)


def test_registration_and_readiness():
    chosen = order(cohort={"size": 4}, ready=0.3, registration=3)
    ready = np.stack([registered_clients(order(ready=0.3), t, 0, 500)[1] for t in range(6)])
    assert ready.mean() == pytest.approx(0.3, abs=0.03)
    for t in range(6):
        registered, now = registered_clients(chosen, t, 0, 500)
        assert np.array_equal(now, ready[t])
        assert np.array_equal(registered, np.flatnonzero(ready[max(0, t - 2) : t + 1].any(0)))
        found = turnout(chosen, t, 4, 500)
        if found.selections == 1:
            assert ready[t, found.client_M].all()  # who is not ready any more does not answer
    mean, _ = selections(ready=0.5, registration=4, over=4.0, rounds=50)
    assert mean < 1.2


def test_a_spent_budget_ends_a_devices_part():
    chosen = order(cohort={"size": 4}, most=2)
    plan = make_plan(chosen, 0, 5, 12)
    assert np.bincount(plan.client_TM.flatten().numpy(), minlength=12).max() == 2
    free = make_plan(order(cohort={"size": 4}), 0, 5, 12)
    assert np.bincount(free.client_TM.flatten().numpy(), minlength=12).max() > 2
    with pytest.raises(SelfsameError, match=r"split.most: in round \d . of 12 devices have privacy budget left, 4"):
        make_plan(chosen, 0, 7, 12)
    taken_N = torch.zeros(12, dtype=torch.int64)
    taken_N[:7] = 2
    later = make_plan(chosen, 5, 2, 12, taken_N)
    assert int(later.client_TM.min()) >= 7 and taken_N.sum() == 14
    with pytest.raises(ValueError, match="rounds that every client has spent"):
        make_plan(chosen, 5, 1, 12)
    with pytest.raises(SelfsameError, match=r"split.most: 7 rounds of 4 devices need 2.3 rounds of each"):
        build("fdml", cohort={"size": 4}, split={"most": 2}, run={"rounds": 7})


def test_other_methods_plans_know_nothing_of_it():
    plan = make_plan(recipe("fedhide", cohort={"size": 4, "dropout": 0.9}, run={"rounds": 200}), 0, 200, 12)
    assert {1, 2} <= set(plan.alive_TM.sum(1).tolist())


# The recipe


@pytest.mark.parametrize(
    ("part", "word"),
    [
        ({"over": 0.9}, "split.over: must be at least 1"),
        ({"over": float("inf")}, "split.over"),
        ({"response": 0.0}, r"split.response: must be in \(0, 1\]"),
        ({"response": 1.1}, "split.response"),
        ({"ready": 0.0}, "split.ready"),
        ({"registration": 0}, "split.registration"),
        ({"lost": 1.0}, r"split.lost: must be in \[0, 1\)"),
        ({"strategy": "ac"}, "split.strategy: 'ac' is not one of uc, as"),
        ({"gradient_wait": -1.0}, "split.gradient_wait"),
        ({"embedding_wait": float("nan")}, "split.embedding_wait"),
        ({"most": -1}, "split.most"),
        ({"most": 1.5}, "split.most: expected a whole number"),
        ({"overs": 2.0}, "split.overs: unknown option; did you mean 'over'"),
    ],
)
def test_settings_are_checked(part, word):
    with pytest.raises(SelfsameError, match=word) as caught:
        from_mapping({"split": part})
    assert "\n" not in str(caught.value)


def test_settings_survive_toml():
    chosen = order(over=1.25, response=0.8, strategy="as", lost=0.1, most=7)
    again = from_mapping(tomllib.loads(to_toml(chosen)))
    assert again == chosen and again.split == SplitPart(1.25, 0.8, "as", lost=0.1, most=7)
    assert to_mapping(chosen)["split"]["strategy"] == "as"


@pytest.mark.parametrize("local", [{"steps": 2}, {"epochs": 1}])
def test_one_exchange_a_round(local):
    with pytest.raises(SelfsameError, match=r"local.steps: fdml exchanges embeddings and derivatives once a round"):
        build("fdml", local=local)


def test_other_methods_have_no_split_rounds():
    with pytest.raises(SelfsameError, match=r"\[split\]: fedhide computes its loss on the device"):
        build("fedhide", split={"response": 0.5})


def test_more_than_there_are():
    with pytest.raises(SelfsameError, match=r"split.over: 20 clients asked for, the federation has 12"):
        build("fdml", cohort={"size": 10}, split={"over": 2.0})


def test_it_learns():
    """The digits' classes are told apart; with AS at 0.4 not one round is whole, and nothing is learned."""
    tables = {
        "data": {"name": "digits"},
        "run": {"rounds": 50, "eval_every": 50, "device": "cpu"},
        "local": {"batch": 8, "lr": 1.0},
        "server": {**ADAM, "lr": 3e-3},
    }
    right = {}
    for strategy in ("uc", "as"):
        whole = {"cohort": {"dropout": 0.4}, "split": {"strategy": strategy}, **tables}
        run = carry_on(start(from_mapping({"method": {"name": "fdml"}, **whole})))
        right[strategy] = run.final["p@1"]
    assert right["uc"] > 0.7 and right["as"] < 0.3


def budget(**split):
    return {
        "method": {"name": "fdml", "noise": "gaussian", "clip": 1.0, "scale": 20.0},
        "data": {"name": "digits"},
        "run": {"rounds": 5},
        "cohort": {"sampling": "all"},
        "local": {"batch": 4, "lr": 1.0},
        "split": split,
    }


def test_a_budget_says_how_many_rounds_and_the_report_how_much_was_spent():
    recipe = from_mapping(budget(epsilon=2.0, delta=1e-5))
    run = carry_on(start(recipe))
    most = run.problem.recipe.split.most
    mechanism, exchange = Gaussian(1.0, 20.0), Exchange(4, run.problem.world.dim)
    assert (
        composed_epsilon(mechanism, exchange, most, 1e-5) <= 2 < composed_epsilon(mechanism, exchange, most + 1, 1e-5)
    )
    spent = composed_epsilon(mechanism, exchange, 5, 1e-5)
    assert f"epsilon {spent:.4g} at delta 1e-05 over the 5 rounds" in view(run).facts["privacy"]


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"method": {"name": "fdml"}}, "needs noise"),
        ({"split": {"epsilon": 1e-3}}, "does not suffice for one round"),
        ({"run": {"rounds": 1000}}, "split.most: 1000 rounds"),
    ],
)
def test_budgets_that_cannot_be_kept_are_refused(change, line):
    with pytest.raises(SelfsameError, match=line):
        start(from_mapping({**budget(epsilon=2.0), **change}))


def test_a_trained_run_is_reported_without_its_accountant(monkeypatch):
    run = carry_on(start(from_mapping(budget())))

    def missing(*_):
        raise SelfsameError("privacy: composition needs dp-accounting")

    monkeypatch.setattr("selfsame.engine.joint.composed_epsilon", missing)
    said = view(run).facts["privacy"]
    assert said.startswith("epsilon not known (privacy: composition needs dp-accounting) at delta")
