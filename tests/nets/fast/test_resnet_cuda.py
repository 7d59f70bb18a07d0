"""The residual network with its backward pass written out, held to the module and autograd; the kernels to torch."""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec

import pytest
import torch
import torch.nn.functional as F
from torch.func import functional_call

from selfsame.engine.model import Layout
from selfsame.nets.fast import plain
from selfsame.nets.fast.plain import Norm
from selfsame.nets.fast.resnet_cuda import FusedResNet
from selfsame.nets.resnet import ResNet, resnet8, resnet18, resnet20, resnet32, resnet56


def small(groups: int, first: int = 16, blocks: tuple[int, ...] = (1, 2, 1)) -> tuple[ResNet, Layout, torch.Tensor]:
    torch.manual_seed(3)
    return flat(ResNet(first, blocks, (3, 8, 8), 5, groups=groups, project=True, init="torch"))


def thin(make, shape: tuple[int, int, int] = (3, 8, 8)) -> tuple[ResNet, Layout, torch.Tensor]:
    torch.manual_seed(3)
    return flat(make(shape, 5, init="torch"))


def flat(net: ResNet) -> tuple[ResNet, Layout, torch.Tensor]:
    net = net.double()
    with torch.no_grad():
        for p in net.parameters():
            p.add_(0.1 * torch.randn_like(p))  # norms away from weight 1 and bias 0
    named = sorted(net.named_parameters(), key=lambda pair: pair[1].dim() < 2)
    layout = Layout.of({name: p.detach() for name, p in named})
    return net, layout, layout.flatten(dict(named))


@pytest.mark.parametrize("groups", [4, 16])
def test_written_out_pass_equals_autograd(groups):
    check_passes(*small(groups), (3, 8, 8))


@pytest.mark.parametrize("shape", [(3, 8, 8), (1, 7, 10)])
@pytest.mark.parametrize("make", [resnet8, resnet20])
def test_written_out_pass_with_thin_shortcuts_equals_autograd(make, shape):
    check_passes(*thin(make, shape), shape)


@pytest.mark.parametrize("name", ["thin", "projected", "large stem"])
def test_written_out_pass_with_standardised_kernels_equals_autograd(name):
    torch.manual_seed(3)
    shape = (3, 16, 16) if name == "large stem" else (3, 8, 8)
    make = {
        "thin": partial(resnet20, init="torch"),
        "projected": partial(ResNet, 16, (1, 2, 1), groups=4, project=True, init="torch"),
        "large stem": partial(ResNet, 8, (1, 1), groups=4, project=True, init="kaiming", stem="large"),
    }[name]
    check_passes(*flat(make(shape=shape, width=5, standardise=True)), shape)


def written_out(net: ResNet, layout: Layout, *how) -> FusedResNet:
    return FusedResNet(net, dict(zip(layout.names, layout.shapes)), *how)


def both_ways(fused: FusedResNet, theta_MP, x_MB, pull_MBD) -> tuple[torch.Tensor, torch.Tensor]:
    """Embeddings, and the derivatives in each theta."""
    out, done = fused.forward(theta_MP, x_MB)
    return out, torch.cat([piece.to(theta_MP.dtype) for piece in fused.backward(done, pull_MBD)], 1)


def check_passes(net: ResNet, layout: Layout, theta: torch.Tensor, shape: tuple[int, int, int]) -> None:
    fused = written_out(net, layout, plain, torch.float64)
    x, pull = torch.randn(6, *shape, dtype=torch.float64), torch.randn(6, 5, dtype=torch.float64)
    want = theta.clone().requires_grad_()
    (out,), (grad,) = both_ways(fused, theta[None], x[None], pull[None])
    expected = functional_call(net, layout.views(want), (x,))
    assert torch.allclose(out, expected, rtol=0, atol=1e-12)
    (expected_grad,) = torch.autograd.grad(expected, want, pull)
    assert (expected_grad != 0).double().mean() > 0.9  # the whole network takes part
    assert torch.allclose(grad, expected_grad, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("shape", [(3, 16, 16), (1, 19, 24)])
def test_written_out_pass_with_the_large_stem_equals_autograd(shape):
    check_passes(*flat(ResNet(8, (1, 1), shape, 5, groups=4, project=True, init="kaiming", stem="large")), shape)


EVERY = [resnet8, resnet32, resnet56, resnet18, partial(resnet18, stem="large")]


@pytest.mark.parametrize("make", [*EVERY, partial(resnet18, standardise=True, groups=2)])
def test_every_residual_network_fits(make):
    assert FusedResNet.fits(make((3, 32, 32), 8)) == (find_spec("triton") is not None)


def test_several_networks_and_parameters_beside_them():
    """Each network as if it were alone; what lies in theta behind it gets no derivative."""
    net, layout, theta = small(4)
    fused = written_out(net, layout, plain, torch.float64)
    theta_MP = torch.stack([theta, theta + 0.1 * torch.randn_like(theta), theta.flip(0)])
    longer_MP = torch.cat([theta_MP, torch.ones(3, 7, dtype=torch.float64)], 1)
    x_MB, pull_MBD = torch.randn(3, 2, 3, 8, 8, dtype=torch.float64), torch.randn(3, 2, 5, dtype=torch.float64)
    out, grad = both_ways(fused, longer_MP, x_MB, pull_MBD)
    assert grad.shape == theta_MP.shape
    for m in range(3):
        (alone,), (alone_grad,) = both_ways(fused, *(t[m : m + 1] for t in (theta_MP, x_MB, pull_MBD)))
        assert torch.equal(out[m], alone) and torch.equal(grad[m], alone_grad)


CASES = [
    (2, 16, 5, 8),
    (2, 16, 32, 8),
    (3, 32, 16, 8),
    (3, 64, 7, 8),
    (2, 16, 8, 16),
    (2, 16, 57, 2),
    (3, 64, 32, 32),
    (2, 128, 16, 32),
    (2, 512, 4, 2),
    (2, 256, 8, 32),
    (2, 512, 4, 32),
    (1, 64, 56, 2),
]


def by_torch(x, weight, bias, groups, add, relu):
    y = F.group_norm(x, groups, weight, bias, 1e-5)
    if add is not None:
        y = y + add
    return y.relu() if relu else y


def check_norm(ops, case, relu: bool, added: bool, more: bool, device: str, dtype: torch.dtype, tolerance: float):
    images, channels, side, groups = case
    torch.manual_seed(1)

    def draw():
        x = torch.randn(images, channels, side, side, device=device).to(dtype)
        return x.contiguous(memory_format=torch.channels_last)

    x, add, grad, extra = draw(), draw() if added else None, draw(), draw() if more else None
    high = torch.float64 if dtype == torch.float64 else torch.float32
    weight, bias = torch.randn(2, channels, device=device, dtype=high).unbind()
    saved = ops.norm_forward(x, Norm(weight, bias, groups), add, relu)
    wide = torch.full((images, 2 * channels + 3), 9.0, device=device, dtype=high)
    x_grad, add_grad = ops.norm_backward(saved, grad, extra, wide[:, 1 : 2 * channels + 1])
    inputs = [t.double().requires_grad_() for t in (x, weight, bias, *((add,) if added else ()))]
    each_weight, each_bias = (t.expand(images, -1) for t in inputs[1:3])
    rows = [
        by_torch(
            inputs[0][n : n + 1], each_weight[n], each_bias[n], groups, inputs[3][n : n + 1] if added else None, relu
        )
        for n in range(images)
    ]
    pull = grad.double() + (extra.double() if more else 0)
    want = torch.autograd.grad(torch.cat(rows), [inputs[0], each_weight, each_bias, *inputs[3:]], pull)
    got = [x_grad, wide[:, 1 : channels + 1], wide[:, channels + 1 : 2 * channels + 1], *([add_grad] if added else [])]
    for mine, right in zip([saved.out, *got], [torch.cat(rows), *want], strict=True):
        assert (mine.double() - right).abs().max() <= tolerance * right.abs().max()
    assert bool((wide[:, 0] == 9).all()) and bool((wide[:, 2 * channels + 1 :] == 9).all())  # no more than its slice


WAYS = [(True, True, True), (True, False, False), (False, True, False)]


@pytest.mark.parametrize(("relu", "added", "more"), WAYS)
def test_plain_norm_equals_torch(relu, added, more):
    check_norm(plain, CASES[0], relu, added, more, "cpu", torch.float64, 1e-12)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("relu", "added", "more"), WAYS)
def test_kernels_equal_torch(kernel_device, case, relu, added, more):
    from selfsame.nets.fast import kernels

    check_norm(kernels, case, relu, added, more, kernel_device, torch.float32, 1e-5)
    if kernel_device == "cuda" or (relu and added and more):  # the interpreter is slow
        check_norm(kernels, case, relu, added, more, kernel_device, torch.bfloat16, 2e-2)


THIN = [(16, 32, 32, 8), (32, 16, 16, 8), (16, 5, 5, 8), (16, 7, 10, 16), (16, 68, 66, 2)]  # C, H, W, G before it


def check_thin(ops, case, device: str, dtype: torch.dtype, tolerance: float):
    """The norm after a thin shortcut, and the one before it, against the same with the shortcut written out."""
    channels, height, width, groups = case
    torch.manual_seed(1)
    images, low, wide = 2, ((height + 1) // 2, (width + 1) // 2), 2 * channels

    def draw(*shape):
        return torch.randn(*shape, device=device).to(dtype).contiguous(memory_format=torch.channels_last)

    full, grad = draw(images, channels, height, width), draw(images, channels, height, width)
    y, pull = draw(images, wide, *low), draw(images, wide, *low)
    weight, bias = torch.randn(2, wide, device=device).unbind()
    saved = ops.norm_forward(y, Norm(weight, bias, groups), full, True, 2)
    spread = F.pad(full[:, :, ::2, ::2], (0, 0, 0, 0, 0, channels)).contiguous(memory_format=torch.channels_last)
    right = plain.norm_forward(y, Norm(weight, bias, groups), spread, True)
    assert (saved.out.double() - right.out.double()).abs().max() <= tolerance * right.out.abs().max()

    weight, bias = torch.randn(2, channels, device=device).unbind()
    part, right_part = torch.zeros(2, images, 2 * channels, device=device).unbind()
    saved = ops.norm_forward(full, Norm(weight, bias, groups), grad, True)
    more = torch.zeros_like(full)
    more[:, :, ::2, ::2] = pull[:, :channels]
    got = ops.norm_backward(saved, grad, pull, part, 2)
    want = plain.norm_backward(saved, grad, more, right_part)
    for mine, exact in zip((*got, part), (*want, right_part), strict=True):
        assert (mine.double() - exact.double()).abs().max() <= tolerance * exact.abs().max()


@pytest.mark.parametrize("case", THIN)
def test_kernels_read_thin_shortcuts(kernel_device, case):
    from selfsame.nets.fast import kernels

    check_thin(kernels, case, kernel_device, torch.float32, 1e-5)
    check_thin(kernels, case, kernel_device, torch.bfloat16, 2e-2)


def check_standard(ops, count: int, long: int, device: str, low: torch.dtype, tolerance: float):
    """Rows and their derivative, by autograd in float64."""
    torch.manual_seed(1)
    high = torch.float64 if low == torch.float64 else torch.float32
    rows = (0.05 * torch.randn(count, long, device=device) + 0.01).to(high)
    grad = torch.randn(count, long, device=device).to(low)
    out, rows_grad = torch.full((2, count, long), 9.0, device=device).to(low).unbind()
    rows_grad = rows_grad.to(high)
    mean, scale = ops.standard_forward(rows, 1e-10, out)
    ops.standard_backward(grad, rows, mean, scale, rows_grad)
    exact = rows.double().requires_grad_()
    centred = exact - exact.mean(1, keepdim=True)
    right = centred * (centred.square().mean(1, keepdim=True) + 1e-10).rsqrt()
    (right_grad,) = torch.autograd.grad(right, exact, grad.double())
    for mine, want in ((out, right), (rows_grad, right_grad)):
        assert (mine.double() - want).abs().max() <= tolerance * want.abs().max()


ROWS = [(5, 27), (3, 64), (2, 147), (3, 4608)]


@pytest.mark.parametrize(("count", "long"), ROWS)
def test_plain_standard_rows_equal_autograd(count, long):
    check_standard(plain, count, long, "cpu", torch.float64, 1e-12)


@pytest.mark.parametrize(("count", "long"), ROWS)
def test_kernels_standardise_rows(kernel_device, count, long):
    from selfsame.nets.fast import kernels

    check_standard(kernels, count, long, kernel_device, torch.float32, 1e-5)
    check_standard(kernels, count, long, kernel_device, torch.bfloat16, 2e-2)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="bfloat16 on CUDA against the module")
@pytest.mark.parametrize("kind", ["projected", "thin", "large stem", "standardised"])
@pytest.mark.parametrize("nets", [1, 3])
def test_network_on_cuda_equals_the_module(nets, kind):
    side = 32 if kind == "large stem" else 8
    if kind == "large stem":
        torch.manual_seed(3)
        whole = ResNet(64, (2, 2, 2), (3, side, side), 5, groups=16, project=True, init="torch", stem="large")
        net, layout, theta = flat(whole)
    elif kind == "standardised":
        net, layout, theta = thin(partial(resnet20, standardise=True))
    else:
        net, layout, theta = thin(resnet20) if kind == "thin" else small(16, first=64, blocks=(2, 2, 2))
    fused = written_out(net, layout)
    x, pull = torch.randn(64, 3, side, side).double(), torch.randn(64, 5).double()
    want = theta.clone().requires_grad_()
    expected = functional_call(net, layout.views(want), (x,))
    (right,) = torch.autograd.grad(expected, want, pull)
    got = theta.float().cuda().requires_grad_()
    here, pull = x.float().cuda(), pull.float().cuda()
    with torch.autocast("cuda", torch.bfloat16):
        usual = functional_call(net.float(), layout.views(got), (here,))
    (usual_grad,) = torch.autograd.grad(usual, got, pull)

    def off(mine, exact):
        return float((mine.detach().double().cpu() - exact.detach()).norm() / exact.norm())

    for _ in range(3):  # a second stream that ran ahead would show sooner or later
        for out, grad in zip(*both_ways(fused, *(t.detach().expand(nets, *t.shape) for t in (got, here, pull)))):
            assert off(out, expected) < 1.5 * off(usual, expected)  # no further from the truth than autocast is
            assert off(grad, right) < 1.5 * off(usual_grad, right)
