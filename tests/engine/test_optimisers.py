"""Server optimisers against PyTorch's own and against plain loops."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from selfsame.config.recipe import ServerPart
from selfsame.engine.model import Layout
from selfsame.engine.optimisers import begin, step
from selfsame.errors import SelfsameError

STEPS, SIZE = 7, 11
LAYOUT = Layout(("net.bag.weight", "net.last.weight", "head.bag"), tuple(torch.Size([n]) for n in (4, 5, 2)))


def deltas() -> list[Tensor]:
    draw = torch.Generator().manual_seed(4)
    return [torch.randn(SIZE, generator=draw, dtype=torch.float64) for _ in range(STEPS)]


def first() -> Tensor:
    return torch.linspace(-2, 3, SIZE, dtype=torch.float64)


def ours(part: ServerPart, local_lr: float = 0.1) -> Tensor:
    theta = first()
    optim = begin(part, theta, LAYOUT)
    for delta in deltas():
        given = delta.clone()
        step(part, optim, theta, delta, local_lr, part.lr)
        assert torch.equal(delta, given)  # the caller's update is not touched
    return theta


def theirs(kind: type[torch.optim.Optimizer], **options: Any) -> Tensor:
    theta = first().requires_grad_()
    optimiser = kind([theta], **options)
    for delta in deltas():
        theta.grad = delta.clone()
        optimiser.step()
    return theta.detach()


def close(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a, b, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("decay", [0.0, 0.03])
@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("momentum", [0.9, 0.5])
def test_momentum(momentum, nesterov, decay):
    part = ServerPart("momentum", lr=0.7, momentum=momentum, nesterov=nesterov, weight_decay=decay)
    # our decay acts inside each client's step, so it is multiplied by the local learning rate
    options = {"lr": 0.7, "momentum": momentum, "nesterov": nesterov, "weight_decay": 0.1 * decay}
    assert close(ours(part), theirs(torch.optim.SGD, **options))


@pytest.mark.parametrize("decay", [0.0, 0.03])
def test_average(decay):
    assert close(
        ours(ServerPart("average", lr=0.7, weight_decay=decay)),
        theirs(torch.optim.SGD, lr=0.7, weight_decay=0.1 * decay),
    )


@pytest.mark.parametrize("decay", [0.0, 0.03])
@pytest.mark.parametrize("epsilon", [1e-3, 1e-8])
def test_adam(decay, epsilon):
    """PyTorch too adds epsilon after the bias correction: sqrt(v / (1 - beta^t)) + epsilon."""
    part = ServerPart("adam", lr=0.05, momentum=0.9, beta2=0.99, epsilon=epsilon, weight_decay=decay)
    options = {"lr": 0.05, "betas": (0.9, 0.99), "eps": epsilon, "weight_decay": decay}
    assert close(ours(part), theirs(torch.optim.AdamW, **options))


def test_adam_by_hand():
    theta, m, v = first().tolist(), [0.0] * SIZE, [0.0] * SIZE
    for t, delta in enumerate(deltas(), 1):
        for i, d in enumerate(delta.tolist()):
            m[i] = 0.8 * m[i] + 0.2 * d
            v[i] = 0.95 * v[i] + 0.05 * d * d
            theta[i] -= 0.05 * (m[i] / (1 - 0.8**t)) / (math.sqrt(v[i] / (1 - 0.95**t)) + 0.01)
    part = ServerPart("adam", lr=0.05, momentum=0.8, beta2=0.95, epsilon=0.01)
    assert close(ours(part), torch.tensor(theta, dtype=torch.float64))


def test_adagrad():
    part = ServerPart("adagrad", lr=0.3, epsilon=1e-2)
    assert close(ours(part), theirs(torch.optim.Adagrad, lr=0.3, eps=1e-2))


def test_adagrad_decay_by_hand():
    theta, total = first().tolist(), [0.0] * SIZE
    for delta in deltas():
        for i, d in enumerate(delta.tolist()):
            total[i] += d * d
            theta[i] -= 0.3 * (d / (math.sqrt(total[i]) + 0.01) + 0.2 * theta[i])
    part = ServerPart("adagrad", lr=0.3, epsilon=1e-2, weight_decay=0.2)
    assert close(ours(part), torch.tensor(theta, dtype=torch.float64))


@pytest.mark.parametrize("optimiser", ["average", "momentum", "adam", "adagrad"])
def test_plain_tensors_are_averaged_at_their_own_rate(optimiser):
    """The bag's four numbers by hand, weight decay inside the clients' step; the others as without it."""
    part = ServerPart(optimiser, lr=0.3, weight_decay=0.02, plain=("bag",), plain_lr=2.5)
    theta = first().tolist()
    for delta in deltas():
        for i in range(4):
            theta[i] -= 2.5 * (float(delta[i]) + 0.1 * 0.02 * theta[i])
    found = ours(part)
    assert close(found[:4], torch.tensor(theta[:4], dtype=torch.float64))
    assert torch.equal(found[4:], ours(replace(part, plain=()))[4:])


def test_the_plain_rate_follows_the_schedule():
    part, theta = ServerPart("adagrad", lr=0.4, plain=("b*",), plain_lr=2.0), first()
    step(part, begin(part, theta, LAYOUT), theta, deltas()[0], 0.1, 0.1)  # a quarter of its learning rate
    assert close(theta[:4], first()[:4] - 0.5 * deltas()[0][:4])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"plain": ("bags",)}, "server.plain: nothing fits 'bags'; there are: bag.weight, last.weight"),
        ({"plain": ("bag",), "plain_lr": 0.0}, "server.plain_lr: must be above 0, got 0.0"),
        ({"plain": ("bag",), "lr": 0.0}, "server.lr: must be above 0 beside server.plain, got 0.0"),
    ],
)
def test_bad_plain_options(options, message):
    with pytest.raises(SelfsameError) as caught:
        begin(ServerPart(**options), first(), LAYOUT)
    assert str(caught.value) == message


def test_average_is_federated_averaging():
    draw = torch.Generator().manual_seed(5)
    networks = [torch.randn(SIZE, generator=draw, dtype=torch.float64) for _ in range(4)]
    counts = [3, 1, 7, 5]
    mean = sum(n * network for n, network in zip(counts, networks)) / 16
    theta = first()
    step(ServerPart(), {}, theta, theta - mean, 0.1, 1.0)
    assert close(theta, mean)


@pytest.mark.parametrize("optimiser", ["average", "momentum", "adam", "adagrad"])
def test_rates_may_be_tensors_and_float32_stays(optimiser):
    part = ServerPart(optimiser, weight_decay=0.01)
    one, two = first().float(), first().float()
    for theta, wrap in ((one, float), (two, lambda v: torch.tensor(v, dtype=torch.float64))):
        optim = begin(part, theta, LAYOUT)
        for delta in deltas():
            step(part, optim, theta, delta.float(), wrap(0.1), wrap(0.5))
        assert theta.dtype == torch.float32
        assert all(v.dtype == torch.float32 for name, v in optim.items() if name != "step")
    assert torch.allclose(one, two, rtol=1e-6)
    assert not torch.equal(one, first().float())
