"""Clients whose numbers are not finite are dropped and counted; the others' round is as if they had not been asked."""

from __future__ import annotations

import functools
from dataclasses import fields, replace

import pytest
import torch
from small import assert_same, build, people

from selfsame.data import Federation
from selfsame.engine import settle
from selfsame.engine.plan import Plan
from selfsame.engine.problem import Problem, Tools
from selfsame.engine.rounds import Engine
from selfsame.engine.state import State, begin
from selfsame.methods import METHODS, SplitLoss

BAD = [2, 7]
PARTS = {"local": {"steps": 1}, "server": {"optimiser": "momentum", "weight_decay": 1e-3}}


def rounds(problem: Problem, engine: str, client: list[int], dead: tuple[int, ...] = (), count: int = 2) -> State:
    state = begin(problem)
    client_TM = torch.tensor([client] * count)
    alive_TM = torch.tensor([[c not in dead for c in client]] * count)
    rate = torch.full((count,), problem.recipe.local.lr, dtype=torch.float64)
    losses = Engine(problem, engine).run(state, Plan(0, client_TM, alive_TM, rate, torch.ones_like(rate)))
    assert torch.isfinite(losses).all()
    return state


class Poisoned:
    """Samples, with those of some clients replaced by a value."""

    on_host = False

    def __init__(self, source, clients: list[int], value: float) -> None:
        self.source, self.clients, self.value = source, torch.tensor(clients), value

    def rows(self, client_M, index_MB):
        x = self.source.rows(client_M, index_MB)
        bad_M = torch.isin(client_M, self.clients)
        x[bad_M, 0, 0, 3, 3] = self.value  # one pixel of one sample
        return x

    def to(self, device):
        return self


def poisoned(federation: Federation, value: float, clients: list[int] = BAD) -> Federation:
    return replace(federation, source=Poisoned(federation.source, clients, value))


def same_without_the_count(a: State, b: State) -> None:
    assert_same(replace(a, refused=torch.zeros(())), replace(b, refused=torch.zeros(())))


@pytest.mark.parametrize("engine", ["cohort", "reference"])
@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("name", [name for name, kind in METHODS.items() if not issubclass(kind, SplitLoss)])
def test_bad_samples(name, steps, engine):
    parts = {**PARTS, "local": {"steps": steps, "batch": 9}}
    federation = people(samples=9, unequal=True)
    with_bad = rounds(build(name, poisoned(federation, float("nan")), **parts), engine, [1, 2, 4, 7, 9])
    without = rounds(build(name, federation, **parts), engine, [1, 4, 9])
    assert int(with_bad.refused) == 4 and int(without.refused) == 0
    same_without_the_count(with_bad, without)
    for value in with_bad.tensors().values():
        assert not value.is_floating_point() or torch.isfinite(value).all()


@pytest.mark.parametrize("engine", ["cohort", "reference"])
@pytest.mark.parametrize("value", [float("inf"), -float("inf")])
def test_infinite_samples(value, engine):
    federation = people()
    parts = {"local": {"batch": 9}}
    state = rounds(build("softmax", poisoned(federation, value), **parts), engine, [1, 2, 4, 7, 9])
    assert int(state.refused) == 4
    same_without_the_count(state, rounds(build("softmax", federation, **parts), engine, [1, 4, 9]))


def spoil(problem: Problem, piece: str, bad: float) -> Problem:
    """The problem with a method whose loss or report goes wrong for the BAD clients."""
    kind = type(problem.method)
    clients = torch.tensor(BAD)

    class Broken(kind):
        def loss(self, emb, mask, mine, sent, head, who):
            value = super().loss(emb, mask, mine, sent, head, who)
            # adds a constant: the derivatives stay as they are
            return torch.where(torch.isin(who.client_M, clients), value + bad, value) if piece == "loss" else value

        def report(self, mine, sent, who, emb, mask, stream):
            stays, leaves = super().report(mine, sent, who, emb, mask, stream)
            if piece in ("stays", "leaves"):
                spoilt = stays if piece == "stays" else leaves
                name = next(n for n, v in spoilt.items() if v.is_floating_point())
                spoilt[name] = spoilt[name].clone()
                spoilt[name][torch.isin(who.client_M, clients)] = bad
            return stays, leaves

    method = Broken(**{f.name: getattr(problem.method, f.name) for f in fields(problem.method)})
    return replace(problem, method=method, tools=Tools.of(method, False))


@functools.cache
def without_them(name: str, steps: int, engine: str) -> State:
    """What the others make of it, whichever piece of the BAD clients' answers is spoilt, and how."""
    return rounds(build(name, **{**PARTS, "local": {"steps": steps}}), engine, [1, 4, 9])


@pytest.mark.parametrize("engine", ["cohort", "reference"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize(
    ("name", "piece"),
    [
        ("fedhide", "leaves"),
        ("fedhide", "stays"),
        ("fedhide", "loss"),
        ("fedaws", "leaves"),
        ("feduv-negative", "leaves"),
        ("fedmetric", "leaves"),
        ("fedmetric-true", "leaves"),
        ("deepsvdd", "stays"),
        ("softmax", "loss"),
    ],
)
def test_bad_reports(name, piece, steps, bad, engine):
    parts = {**PARTS, "local": {"steps": steps}}
    problem = build(name, **parts)
    state = rounds(spoil(problem, piece, bad), engine, [1, 2, 4, 7, 9])
    assert int(state.refused) == 4
    same_without_the_count(state, without_them(name, steps, engine))


@pytest.mark.parametrize("engine", ["cohort", "reference"])
@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("name", ["fedhide", "softmax"])
def test_a_derivative_that_is_not_finite(name, steps, engine):
    """The loss is a number, its derivative is not (the root of zero): in the embedding, or in the class matrix."""
    problem = build(name, **{**PARTS, "local": {"steps": steps}})
    kind, clients = type(problem.method), torch.tensor(BAD)

    class Broken(kind):
        def loss(self, emb, mask, mine, sent, head, who):
            value = super().loss(emb, mask, mine, sent, head, who)
            rows = torch.isin(who.client_M, clients).nonzero()[:, 0]
            spoilt = head["class_matrix"].expand(len(value), -1, -1) if name == "softmax" else emb
            return value.index_add(0, rows, (spoilt[rows, 0, 0] * 0).abs().sqrt())

    method = Broken(**{f.name: getattr(problem.method, f.name) for f in fields(problem.method)})
    broken = replace(problem, method=method, tools=Tools.of(method, False))
    state = rounds(broken, engine, [1, 2, 4, 7, 9])
    assert int(state.refused) == 4
    same_without_the_count(state, rounds(problem, engine, [1, 4, 9]))


@pytest.mark.parametrize("value", [0.5, float("nan")])
def test_a_shared_head_has_no_replicas(monkeypatch, value):
    """Clients x classes x dimensions are many numbers; softmax does without, unless derivatives are not finite."""
    monkeypatch.setattr(settle, "derivatives", None)
    problem = build("softmax", poisoned(people(), value), local={"batch": 9})
    assert int(rounds(problem, "cohort", [1, 2, 4, 7, 9]).refused) == (0 if value == 0.5 else 4)


@pytest.mark.parametrize("engine", ["cohort", "reference"])
@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("name", ["fedhide", "fedaws", "deepsvdd"])
def test_when_all_are_bad_nothing_changes(name, steps, engine):
    federation = people()
    parts = {**PARTS, "local": {"steps": steps, "batch": 9}}
    options = {"spread": "full"} if name == "fedaws" else {}
    problem = build(name, poisoned(federation, float("nan")), options, **parts)
    state = begin(problem)
    healthy = Plan(0, torch.tensor([[0, 1]]), torch.ones(1, 2, dtype=torch.bool), *torch.full((2, 1), 0.1).double())
    runner = Engine(problem, engine)
    runner.run(state, healthy)
    before = {key: value.clone() for key, value in state.tensors().items()}
    runner.run(state, Plan(1, torch.tensor([BAD]), healthy.alive_TM, healthy.lr_T, healthy.server_lr_T))
    assert int(state.refused) == 2
    for key, value in state.tensors().items():
        assert key == "refused" or torch.equal(value, before[key]), key


@pytest.mark.parametrize("engine", ["cohort", "reference"])
def test_clients_that_do_not_answer_are_not_refused(engine):
    federation = people()
    problem = build("fedaws", poisoned(federation, float("nan")), local={"batch": 9})
    state = rounds(problem, engine, [1, 2, 4, 7, 9], dead=(2, 7, 9))
    assert int(state.refused) == 0
    assert_same(state, rounds(build("fedaws", federation, local={"batch": 9}), engine, [1, 4]))
