"""The network as one vector."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from selfsame import nets
from selfsame.engine.machine import Machine
from selfsame.engine.model import Layout, Model
from selfsame.errors import SelfsameError


def tensors() -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(6)
    shapes = {"a": (2, 3), "b": (), "c": (4,), "d": (3, 2, 2, 2)}
    return {name: torch.randn(shape, generator=draw) for name, shape in shapes.items()}


def test_round_trip():
    given = tensors()
    layout = Layout.of(given)
    assert layout.sizes == [6, 1, 4, 24]
    theta = layout.flatten(given)
    in_order = [*(given[name] for name in "abc"), given["d"].permute(0, 2, 3, 1)]  # convolutions lie channels-last
    assert theta.tolist() == [v for t in in_order for v in t.flatten().tolist()]
    back = layout.views(theta)
    assert list(back) == list(given)
    assert all(torch.equal(back[name], given[name]) for name in given)
    assert torch.equal(layout.flatten(back), theta)
    assert torch.equal(layout.flatten(dict(reversed(given.items()))), theta)  # the layout's order, not the argument's
    back["c"][1] = 99  # views, not copies
    assert theta[8] == 99
    with pytest.raises(RuntimeError):
        layout.views(theta[:-1])


@pytest.mark.parametrize("lead", [(3,), (2, 5)])
def test_views_keep_a_leading_axis(lead):
    given = tensors()
    layout = Layout.of(given)
    theta = torch.arange(35.0) + 100 * torch.arange(torch.Size(lead).numel()).reshape(*lead, 1)
    views = layout.views(theta)
    for name, value in given.items():
        assert views[name].shape == (*lead, *value.shape)
    for place in torch.cartesian_prod(*(torch.arange(n) for n in lead)).reshape(-1, len(lead)).tolist():
        alone = layout.views(theta[tuple(place)])
        assert all(torch.equal(views[name][tuple(place)], alone[name]) for name in given)


def lenet(head: dict[str, torch.Tensor] | None = None) -> tuple[Model, nn.Module]:
    net = nets.build("lenet", (1, 8, 8), 6).double()
    keep = nets.build("lenet", (1, 8, 8), 6).double()
    return Model(net, head or {}, Machine(dtype=torch.float64)), keep


def test_embedding_is_the_module():
    model, net = lenet({"w": torch.arange(6.0).reshape(2, 3)})
    x = torch.randn(5, 1, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(7))
    assert torch.allclose(model.embed_eager(model.first_theta, x), net(x), rtol=0, atol=1e-12)
    assert model.parameters == sum(p.numel() for p in net.parameters()) + 6
    assert model.head_views(model.first_theta)["w"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert set(model.net_views(model.first_theta)) == {name for name, _ in net.named_parameters()}
    assert model.first_theta.dtype == torch.float64
    assert torch.equal(model.first_theta[-6:], torch.arange(6.0, dtype=torch.float64))  # the head lies last


def test_many_networks_at_once():
    model, _ = lenet()
    draw = torch.Generator().manual_seed(8)
    theta_MP = model.first_theta + 0.1 * torch.randn(4, model.parameters, generator=draw, dtype=torch.float64)
    x_MB = torch.randn(4, 3, 1, 8, 8, generator=draw, dtype=torch.float64)
    each = model.embed_each(theta_MP, x_MB)
    assert each.shape == (4, 3, 6)
    for m in range(4):
        assert torch.allclose(each[m], model.embed_eager(theta_MP[m], x_MB[m]), rtol=0, atol=1e-12)
    one, _ = model.embed_and_back(model.first_theta, x_MB)
    for m in range(4):
        assert torch.allclose(one[m], model.embed_eager(model.first_theta, x_MB[m]), rtol=0, atol=1e-12)


@pytest.mark.parametrize("alone", [False, True])
def test_one_network_and_the_derivatives_of_each_client(alone, monkeypatch):
    """Client by client by autograd; stacked, and one after another."""
    monkeypatch.setattr("selfsame.engine.model._ALONE", 1 if alone else 2**60)
    model, _ = lenet({"w": torch.arange(6.0).reshape(2, 3)})
    draw = torch.Generator().manual_seed(9)
    x_MB = torch.randn(4, 3, 1, 8, 8, generator=draw, dtype=torch.float64)
    pull_MBD = torch.randn(4, 3, 6, generator=draw, dtype=torch.float64)
    emb_MBD, back = model.embed_same_and_back(model.first_theta, x_MB)
    grad_MP = back(pull_MBD)
    assert not emb_MBD.requires_grad and grad_MP.shape == (4, model.size) and not grad_MP.requires_grad
    for m in range(4):
        theta = model.first_theta.clone().requires_grad_()
        emb = model.embed_eager(theta, x_MB[m])
        torch.testing.assert_close(emb_MBD[m], emb.detach(), rtol=0, atol=1e-12)
        (emb * pull_MBD[m]).sum().backward()
        assert theta.grad is not None
        torch.testing.assert_close(grad_MP[m], theta.grad[: model.size], rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "layer",
    [nn.BatchNorm1d(4), nn.Dropout(0.1), nn.SyncBatchNorm(4), nn.AlphaDropout(0.5), nn.RReLU()],
    ids=lambda layer: type(layer).__name__,
)
def test_coupled_networks_are_refused(layer):
    net = nn.Sequential(nn.Linear(3, 4), nn.Sequential(nn.ReLU(), layer), nn.Linear(4, 2))
    with pytest.raises(SelfsameError) as caught:
        Model(net, {})
    message = str(caught.value)
    assert "\n" not in message and message.startswith("net: ")
    assert f"1.1 ({type(layer).__name__})" in message and "group norm" in message


@pytest.mark.parametrize("layer", [nn.GroupNorm(2, 4), nn.LayerNorm(4), nn.Dropout(0.0)])
def test_uncoupled_networks_are_taken(layer):
    Model(nn.Sequential(nn.Linear(3, 4), layer), {})


def test_the_network_keeps_nothing():
    model, _ = lenet()
    assert all(p.device.type == "meta" for p in model.net.parameters())
