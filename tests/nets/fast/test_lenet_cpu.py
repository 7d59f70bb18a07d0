"""LeNet with its passes written out for the CPU, held to the module and autograd; its parts to plain loops."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

from selfsame.engine.machine import Machine
from selfsame.engine.model import Layout, Model
from selfsame.nets.fast import lenet_cpu
from selfsame.nets.fast.lenet_cpu import WrittenLeNet
from selfsame.nets.lenet import LeNet

SHAPES = [(1, 4, 4), (1, 8, 8), (3, 8, 12), (3, 16, 16), (2, 28, 8)]
WIDTH = 7


def case(
    shape: tuple[int, int, int], nets: int, batch: int, bias: bool = True, groups: int = 2
) -> tuple[LeNet, Layout, Tensor, Tensor, Tensor]:
    """A network, where its parameters lie, and a theta, images and derivatives in the embeddings for each client."""
    torch.manual_seed(3)
    net = LeNet(shape, WIDTH, channels=(4, 6), bias=bias, groups=groups).double()
    named = sorted(net.named_parameters(), key=lambda pair: pair[1].dim() < 2)
    layout = Layout.of({name: p.detach() for name, p in named})
    theta = layout.flatten(dict(named))
    theta_MP = theta + 0.2 * torch.randn(nets, len(theta), dtype=torch.float64)
    x_MB = torch.randn(nets, batch, *shape, dtype=torch.float64)
    return net, layout, theta_MP, x_MB, torch.randn(nets, batch, WIDTH, dtype=torch.float64)


def by_autograd(net: LeNet, layout: Layout, theta_MP: Tensor, x_MB: Tensor, pull_MBD: Tensor) -> tuple[Tensor, Tensor]:
    embs, grads = [], []
    for theta_P, x_B, pull_BD in zip(theta_MP, x_MB, pull_MBD, strict=True):
        theta = theta_P.clone().requires_grad_()
        emb = functional_call(net, layout.views(theta), (x_B,))
        grads += torch.autograd.grad(emb, theta, pull_BD)
        embs.append(emb.detach())
    return torch.stack(embs), torch.stack(grads)


def written_out(net: LeNet, layout: Layout, theta_MP: Tensor, x_MB: Tensor, pull_MBD: Tensor) -> tuple[Tensor, Tensor]:
    written = WrittenLeNet(net, dict(zip(layout.names, layout.shapes)))
    emb, done = written.forward(theta_MP, x_MB)
    (grad,) = written.backward(done, pull_MBD)
    return emb, grad


def close(mine: Tensor, right: Tensor, tolerance: float) -> bool:
    return float((mine.double() - right).abs().max()) <= tolerance * float(right.abs().max())


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("nets", "batch"), [(1, 65), (3, 5)])
@pytest.mark.parametrize("shape", SHAPES)
def test_equals_autograd(shape, nets, batch, bias, groups):
    given = case(shape, nets, batch, bias, groups)
    if bias:  # where a weight of a norm is negative, pooling takes the smallest
        views = given[1].views(given[2])
        views["norm1.weight"][:, ::2] *= -1
        views["norm2.weight"][0, 1::3] *= -1
    emb, grad = written_out(*given)
    expected, expected_grad = by_autograd(*given)
    assert close(emb, expected, 1e-12)
    for name, right in given[1].views(expected_grad).items():
        assert right.any(), name  # all of the network takes part
        assert close(given[1].views(grad)[name], right, 1e-10), name


@pytest.mark.parametrize(("nets", "batch"), [(1, 70), (3, 5)])
@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 16, 16)])
def test_single_precision(shape, nets, batch):
    net, layout, *tensors = case(shape, nets, batch)
    expected, expected_grad = by_autograd(net, layout, *tensors)
    emb, grad = written_out(net, layout, *(t.float() for t in tensors))
    assert emb.dtype == grad.dtype == torch.float32
    assert close(emb, expected, 1e-5) and close(grad, expected_grad, 1e-4)


@pytest.mark.parametrize(("nets", "batch"), [(1, 70), (5, 3)])
@pytest.mark.parametrize("shape", [(1, 8, 8), (2, 12, 12)])
def test_parts_do_not_matter(shape, nets, batch, monkeypatch):
    given = case(shape, nets, batch)
    whole = written_out(*given)
    monkeypatch.setattr(lenet_cpu, "_CACHED", 2 * batch * shape[1] * shape[2])
    for mine, right in zip(written_out(*given), whole, strict=True):
        assert close(mine, right, 1e-12)


def test_the_same_bits_again():
    given = case((1, 8, 8), 3, 16)
    first, second = written_out(*given), written_out(*given)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert not any(t.is_inference() for t in first)  # what comes out may enter autograd


@pytest.mark.parametrize(("height", "width", "batch"), [(4, 4, 64), (4, 4, 2), (2, 8, 2), (3, 10, 1)])
def test_convolution_by_plain_loops(height, width, batch):
    torch.manual_seed(5)
    depth, channels = 2, 3
    x = torch.randn(1, batch, height, width, depth, dtype=torch.float64)
    kernel = torch.randn(1, channels, 5, 5, depth, dtype=torch.float64)
    grad = torch.zeros(1, batch, height, width, channels, dtype=torch.float64)
    pulls = {(batch - 1, 0, 0, 1): 2.0, (0, height - 1, width - 2, 2): -1.0}
    for place, value in pulls.items():
        grad[(0, *place)] = value
    conv = lenet_cpu._Product.of(x, kernel)
    out = torch.empty_like(grad)
    conv.out(None, out)
    found, kernel_grad, x_grad = torch.empty_like(conv.kernel), torch.empty_like(kernel), torch.empty_like(x)
    one_row = not conv.wide.padded
    conv.grads(None, grad, found, x_grad if one_row else None)
    conv.kernel_grad(found, kernel_grad)
    right_kernel, right_x = torch.zeros_like(kernel), torch.zeros_like(x)
    for (sample, v, u, o), pull in pulls.items():
        total = 0.0
        for down in range(5):
            for across in range(5):
                y, z = v + down - 2, u + across - 2
                if 0 <= y < height and 0 <= z < width:
                    for c in range(depth):
                        total += float(x[0, sample, y, z, c] * kernel[0, o, down, across, c])
                        right_kernel[0, o, down, across, c] += pull * x[0, sample, y, z, c]
                        right_x[0, sample, y, z, c] += pull * kernel[0, o, down, across, c]
        assert abs(float(out[0, sample, v, u, o]) - total) < 1e-12
    assert torch.allclose(kernel_grad, right_kernel, rtol=0, atol=1e-12)
    assert not one_row or torch.allclose(x_grad, right_x, rtol=0, atol=1e-12)


def test_the_first_of_equals_takes_the_derivative():
    torch.manual_seed(6)
    z = torch.randint(0, 3, (2, 3, 4, 6, 5)).double()  # most windows have several largest values
    grad = torch.randn(2, 3, 2, 3, 5, dtype=torch.float64)
    into = torch.ones_like(z)
    lenet_cpu._unpool(z, grad, into)
    images = z.flatten(0, 1).movedim(-1, 1).requires_grad_()
    (right,) = torch.autograd.grad(F.max_pool2d(images, 2), images, grad.flatten(0, 1).movedim(-1, 1))
    assert torch.equal(into - 1, (right.movedim(1, -1).unflatten(0, (2, 3)) + 1) - 1)


@pytest.mark.parametrize("side", [8, 6, 12, 20])
def test_the_model_uses_it(side):
    """With parameters beside the network; images of which pooling leaves pixels out, and wide ones, use the module."""
    torch.manual_seed(4)
    net = LeNet((1, side, side), WIDTH, channels=(4, 6)).double()
    model = Model(net, {"w": torch.ones(3)}, Machine(dtype=torch.float64))
    assert model.passes is not None
    taken = [model.passes.takes(torch.zeros(3, 2, 1, side, side), nets) for nets in (1, 3)]
    assert taken == {8: [True, True], 6: [False, False], 12: [False, True], 20: [False, False]}[side]
    theta_MP = model.first_theta + 0.1 * torch.randn(3, model.parameters, dtype=torch.float64)
    x_MB = torch.randn(3, 4, 1, side, side, dtype=torch.float64)
    pull_MBD = torch.randn(3, 4, WIDTH, dtype=torch.float64)

    def both() -> list[Tensor]:
        emb, back = model.embed_and_back(theta_MP[0], x_MB)
        each, back_each = model.embed_each_and_back(theta_MP, x_MB)
        return [emb, torch.cat(back(pull_MBD)), each, back_each(pull_MBD), model.embed_each(theta_MP, x_MB)]

    mine = both()
    model.passes = None
    for got, right in zip(mine, both(), strict=True):
        assert got.shape == right.shape and close(got, right, 1e-11)
    assert mine[1].shape == (model.parameters - 3,) and mine[3].shape == (3, model.parameters - 3)


def test_where_it_is_not_used():
    def net() -> LeNet:
        return LeNet((1, 8, 8), WIDTH)

    assert Model(net(), {}, Machine(autocast=torch.bfloat16)).passes is None
    assert Model(torch.nn.Sequential(net()), {}).passes is None
