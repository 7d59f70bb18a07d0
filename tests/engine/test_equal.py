"""One answer from all engines: the cohort engine against the reference, and both against loops written here."""

from __future__ import annotations

import copy
import functools
from dataclasses import replace

import pytest
import torch
from small import assert_same, build, people, recipe, train
from torch import nn

from selfsame import methods, nets
from selfsame.engine.cohort import fused
from selfsame.engine.machine import Machine
from selfsame.engine.model import Model
from selfsame.engine.plan import make_plan
from selfsame.engine.problem import Problem
from selfsame.engine.rounds import Engine
from selfsame.engine.state import State, begin
from selfsame.methods import METHODS, SplitLoss
from selfsame.nets.fast import plain
from selfsame.nets.fast.resnet_cuda import FusedResNet
from selfsame.nets.fast.small.build import compiler
from selfsame.nets.resnet import ResNet
from selfsame.streams import Stream

PART = {"size": 5, "dropout": 0.3}
ONCE = {name for name, kind in METHODS.items() if issubclass(kind, SplitLoss)}  # one exchange a round


def several(steps: list[int]) -> list:
    """Every method with every number of local steps that it can take."""
    return [pytest.param(name, n, id=f"{n}-{name}") for n in steps for name in METHODS if n == 1 or name not in ONCE]


def compare(name: str, federation=None, options=None, wanted=None, **parts) -> None:
    problem = build(name, federation, options, **parts)
    a, losses_a = train(problem, "cohort")
    b, losses_b = wanted or train(problem, "reference")
    assert_same(a, b)
    assert torch.allclose(losses_a, losses_b, rtol=1e-9, atol=0)
    assert a.round == b.round == problem.recipe.run.rounds
    start = begin(problem)
    still = a.theta_P if a.alone_NP is None else a.alone_NP
    first = start.theta_P if start.alone_NP is None else start.alone_NP
    assert not torch.equal(still, first), "nothing was trained"


@functools.cache
def one_by_one(name: str, steps: int) -> tuple[State, torch.Tensor]:
    """The reference's state and losses, for the tests of whole cohorts of seven."""
    return train(build(name, people(clients=7), local={"steps": steps}, run={"rounds": 2}), "reference")


@pytest.mark.parametrize(("name", "steps"), several([1, 3]))
def test_steps_of_all(name, steps):
    wanted = one_by_one(name, steps)
    compare(name, people(clients=7), wanted=wanted, local={"steps": steps}, run={"rounds": 2})


@pytest.mark.parametrize(("name", "steps"), several([1, 3]))
def test_steps_of_some(name, steps):
    server = {"optimiser": "momentum", "weight_decay": 1e-3}
    compare(name, cohort={**PART, "weights": "uniform"}, local={"steps": steps}, server=server, run={"rounds": 3})


COMPILED = {"compile": "on"}  # with passes as C code, whose reference is the module under autograd


@pytest.mark.parametrize(("name", "steps"), several([1, 3]))
def test_compiled_passes(name, steps):
    problem = build(name, people(clients=7), local={"steps": steps}, run={"rounds": 2, **COMPILED})
    if not compiler():
        pytest.skip("there is no C compiler here")
    assert problem.model.passes is not None and not problem.model.compiled
    wanted = one_by_one(name, steps)
    compare(name, people(clients=7), wanted=wanted, local={"steps": steps}, run={"rounds": 2, **COMPILED})


def test_compiled_passes_of_sums():
    """A client's own update is clipped and rounded: the first step shares one network."""
    sums = {"aggregation": "masked", "clip": 0.05}
    compare("fedcrowd", cohort={"size": 5}, sums=sums, run={"rounds": 3, **COMPILED})


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_compiled_passes_go_on_bit_for_bit(precision):
    problem = build("fedhide", local={"steps": 2}, run={"rounds": 4, "precision": precision, **COMPILED})
    (whole, _), state = train(problem), begin(problem)
    for first in (0, 2):
        Engine(problem).run(state, make_plan(problem.recipe, first, 2, state.present))
    assert torch.equal(whole.theta_P, state.theta_P)


@pytest.mark.parametrize("name", [name for name in METHODS if name not in ONCE])
def test_epochs(name):
    """Unequal clients finish their passes at different steps; those that are done must stand still."""
    compare(name, cohort={**PART, "weights": "samples"}, local={"epochs": 2, "batch": 4}, server={"optimiser": "adam"})


@pytest.mark.parametrize(("name", "steps"), several([1, 2]))
def test_several_clients_a_class(name, steps):
    compare(
        name, people(clients_per_class=2), cohort={"size": 8, "dropout": 0.2}, local={"steps": steps}, run={"rounds": 2}
    )


@pytest.mark.parametrize("weights", ["samples", "uniform"])
@pytest.mark.parametrize("optimiser", ["average", "momentum", "adam", "adagrad"])
@pytest.mark.parametrize("steps", [1, 3])
def test_server_optimisers(weights, optimiser, steps):
    compare(
        "fedhide",
        cohort={"weights": weights, "size": 7, "sampling": "round-robin"},
        local={"steps": steps, "schedule": "cosine"},
        server={"optimiser": optimiser, "lr": 0.5, "schedule": "inverse", "plain": ["conv2"] if steps == 3 else []},
    )


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("fedaws", {"spread": "full"}),
        ("fedaws", {"distance": "euclidean", "subset": 5, "server_steps": 2}),
        ("fedmetric", {"radius": "before", "unit_length": True, "squared": False}),
        ("softmax", {"scale": 0.0}),
    ],
)
@pytest.mark.parametrize("steps", [1, 2])
def test_options(name, options, steps):
    compare(name, options=options, cohort=PART, local={"steps": steps, "lr": 0.01})


@pytest.mark.parametrize("name", ["fedmetric", "fedmetric-true"])
def test_report_sees_the_last_batch_that_held_samples(name):
    """Clients that finish their pass early report on a batch of their own, not on the empty ones after it."""
    compare(name, options={"radius": "before"}, local={"epochs": 1, "batch": 3})


def test_augmented():
    change = {"crop": 1, "flip": True, "rotation": 15.0}
    compare("fedhide", cohort=PART, local={"steps": 3}, augment=change)
    compare("fedhide", cohort=PART, local={"steps": 1}, augment=change)


def test_which_path():
    """The comparisons above cover both paths of the cohort engine."""
    assert fused(build("fedhide"))
    assert fused(build("softmax"))
    assert not fused(build("fedhide", local={"steps": 5}))
    assert not fused(build("fedmetric"))  # its radius needs the updated network
    assert not fused(build("deepsvdd"))


def test_blocks_of_rounds_do_not_matter():
    problem = build("fedgn", cohort=PART, run={"rounds": 5})
    whole, losses = train(problem)
    parts, pieces = begin(problem), []
    for first, count in ((0, 2), (2, 1), (3, 2)):
        pieces.append(Engine(problem).run(parts, make_plan(problem.recipe, first, count, parts.present)))
    assert torch.equal(torch.cat(pieces), losses)
    assert torch.equal(whole.theta_P, parts.theta_P)
    with pytest.raises(ValueError, match="round"):
        Engine(problem).run(parts, make_plan(problem.recipe, 0, 1, parts.present))


# Written without the engine. Batches hold all samples, so that it does not matter how they are drawn.


def tiny(name: str, options: dict, lr: float, rounds: int) -> tuple[Problem, nn.Module]:
    torch.manual_seed(3)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 7), nn.Tanh(), nn.Linear(7, 5)).double()
    federation = people()
    order = recipe(name, options, run={"rounds": rounds}, local={"batch": 9, "lr": lr})
    method = methods.make(name, order.method.options)
    world = methods.World(federation.clients, federation.classes, 5, federation.class_of_N)
    head = method.begin_head(world, Stream.named(0, "head", torch.zeros(1, dtype=torch.int64)))
    return Problem.of(
        order, method, Model(copy.deepcopy(net), head, Machine(dtype=torch.float64)), federation, world
    ), net


def all_samples(problem: Problem, client: int) -> torch.Tensor:
    index = torch.arange(int(problem.federation.count_N[client]))[None]
    return problem.federation.source.rows(torch.tensor([client]), index)[0].double()


def local_step(net: nn.Module, vector: torch.Tensor, loss_of, lr: float) -> tuple[list[torch.Tensor], torch.Tensor]:
    """The parameters of a copy of the network, and the client's own vector, after one SGD step."""
    mine = copy.deepcopy(net)
    vector = vector.clone().requires_grad_()
    parameters = list(mine.parameters())
    grads = torch.autograd.grad(loss_of(mine, vector), [*parameters, vector])
    moved = [(p - lr * g).detach() for p, g in zip(parameters, grads)]
    return moved, (vector - lr * grads[-1]).detach()


def average(net: nn.Module, networks: list[list[torch.Tensor]], counts: list[int]) -> None:
    with torch.no_grad():
        for place, p in enumerate(net.parameters()):
            p.copy_(sum(n / sum(counts) * network[place] for network, n in zip(networks, counts)))


def cosine(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a @ b) / (a.norm() * b.norm())


def flat(problem, net: nn.Module) -> torch.Tensor:
    return problem.model.layout.flatten({f"net.{name}": p for name, p in net.named_parameters()})


@pytest.mark.parametrize("engine", ["cohort", "reference"])
def test_federated_averaging_by_hand(engine):
    lr = 0.3
    problem, net = tiny("positive-only", {}, lr, 3)
    table = begin(problem).server["class_embedding"].clone()
    counts = problem.federation.count_N.tolist()
    for _ in range(3):
        networks = []
        for client in range(12):
            x = all_samples(problem, client)

            def loss(net, w, x=x):
                return sum(torch.clamp(0.9 - cosine(e, w), min=0) ** 2 for e in net(x)) / len(x)

            network, table[client] = local_step(net, table[client], loss, lr)
            networks.append(network)
        average(net, networks, counts)
    state, _ = train(problem, engine)
    assert torch.allclose(state.theta_P, flat(problem, net), rtol=0, atol=1e-12)
    assert torch.allclose(state.server["class_embedding"], table, rtol=0, atol=1e-12)


@pytest.mark.parametrize("engine", ["cohort", "reference"])
def test_fedhide_by_hand(engine):
    lr, K, alpha, weight = 0.2, 2, 0.3, 4.0
    problem, net = tiny("fedhide", {"neighbours": K, "alpha": alpha, "negative_weight": weight}, lr, 3)
    first = begin(problem)
    prototype, proxies = first.own["prototype"].clone(), first.server["proxies"].clone()
    counts = problem.federation.count_N.tolist()
    for _ in range(3):
        networks, reported = [], []
        for client in range(12):
            x, others = all_samples(problem, client), [o for o in range(12) if o != client]

            def loss(net, p, x=x, others=others, proxies=proxies):
                positive = sum((1 - cosine(e, p)) ** 2 for e in net(x)) / len(x)
                negative = sum((1 + p @ proxies[o] / p.norm()) ** 2 for o in others) / len(others)
                return positive + weight * negative

            network, prototype[client] = local_step(net, prototype[client], loss, lr)
            networks.append(network)
            near = sorted(others, key=lambda o, c=client: -float(prototype[c] @ proxies[o]))[:K]
            delegate = sum(proxies[o] for o in near)
            mixed = alpha * prototype[client] / prototype[client].norm() + (1 - alpha) * delegate / delegate.norm()
            reported.append(mixed / mixed.norm())
        proxies = torch.stack(reported)
        average(net, networks, counts)
    state, _ = train(problem, engine)
    assert torch.allclose(state.theta_P, flat(problem, net), rtol=0, atol=1e-12)
    assert torch.allclose(state.own["prototype"], prototype, rtol=0, atol=1e-12)
    assert torch.allclose(state.server["proxies"], proxies, rtol=0, atol=1e-12)


def test_reference_uses_only_its_own_client(monkeypatch):
    """The reference asks for the samples of one client at a time, as devices would."""
    problem = build("fedhide", run={"rounds": 1})
    asked = []
    source = problem.federation.source

    class Spy:
        on_host = False

        def rows(self, client_M, index_MB):
            asked.append(client_M.tolist())
            return source.rows(client_M, index_MB)

    train(replace(problem, federation=replace(problem.federation, source=Spy())), "reference")
    assert asked == [[client] for client in range(12)]


@pytest.mark.parametrize(("name", "steps"), several([1, 2]))
def test_network_with_its_passes_written_out(name, steps, monkeypatch):
    """What runs on CUDA, here with plain arithmetic in float64 in place of the kernels."""
    check_written_out(name, steps, monkeypatch)


@pytest.mark.parametrize(("name", "steps"), [("fedaws", 1), ("fedhide", 2), ("softmax", 1)])
def test_standardised_kernels(name, steps, monkeypatch):
    net = {"name": "resnet8", "width": 8, "standardise": True}
    compare(name, people(clients=6), local={"steps": steps}, net=net, run={"rounds": 2})
    check_written_out(name, steps, monkeypatch, standardise=True)


def check_written_out(name: str, steps: int, monkeypatch: pytest.MonkeyPatch, **options: bool) -> None:
    def tiny_residual(shape, width):
        return ResNet(16, (1, 1), shape, width, groups=4, project=True, init="torch", **options)

    monkeypatch.setitem(nets.NETS, "tiny-residual", tiny_residual)
    net = {"name": "tiny-residual", "width": 8}
    problem = build(name, people(clients=6), local={"steps": steps}, net=net, run={"rounds": 2})
    expected, losses = train(problem, "reference")
    model = problem.model
    mine = [(n, s) for n, s in zip(model.layout.names, model.layout.shapes) if n.startswith("net.")]
    shapes = {name.removeprefix("net."): shape for name, shape in mine}
    model.passes = FusedResNet(model.net, shapes, plain, torch.float64)
    got, losses_got = train(problem, "cohort")
    assert_same(got, expected)
    assert torch.allclose(losses_got, losses, rtol=1e-9, atol=0)
