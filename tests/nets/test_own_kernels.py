"""Derivatives in the kernels client by client: those that PyTorch gives each client alone."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.func import functional_call, vjp, vmap
from torch.nn import functional as F

from selfsame.nets.own_kernels import OwnKernels
from selfsame.streams import Stream

LAYERS = {
    "same": lambda: nn.Conv2d(3, 4, 3, padding=1),
    "no bias": lambda: nn.Conv2d(3, 4, 3, bias=False),
    "many outputs": lambda: nn.Conv2d(3, 40, 3, stride=2),  # more of them than places
    "stride": lambda: nn.Conv2d(3, 5, (3, 2), stride=(2, 1), padding=(0, 1)),
    "dilation": lambda: nn.Conv2d(3, 5, 3, dilation=2, padding=1),
    "points": lambda: nn.Conv2d(3, 5, 1),
    "groups": lambda: nn.Conv2d(3, 6, 3, groups=3),
    "by name": lambda: nn.Conv2d(3, 4, 3, padding="same"),
    "deep": lambda: nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.AvgPool2d(2), nn.Conv2d(4, 6, 2)
    ),
}


@pytest.mark.parametrize("name", LAYERS)
def test_every_client_has_its_own_derivatives(name):
    torch.manual_seed(0)
    net = LAYERS[name]().double()
    theta = {key: value.detach() for key, value in net.named_parameters()}
    x_MB = Stream.named(0, "x", torch.arange(4)).normal(2, 3, 9, 8).double()
    shape = net(x_MB[0]).shape
    pull_MB = Stream.named(0, "pull", torch.arange(4)).normal(*shape).double()

    def one(x_B, pull_B):
        with OwnKernels(4):
            back = vjp(lambda theta: functional_call(net, theta, (x_B,)), theta)[1]
        return back(pull_B)[0]

    found = vmap(one)(x_MB, pull_MB)
    for m in range(4):
        net.zero_grad()
        (net(x_MB[m]) * pull_MB[m]).sum().backward()
        for key, value in net.named_parameters():
            assert torch.allclose(found[key][m], value.grad, rtol=1e-10, atol=1e-10), key


def test_it_is_the_convolution_and_its_derivative_in_the_input():
    torch.manual_seed(0)
    net = LAYERS["stride"]().double()
    x_B = torch.randn(2, 3, 9, 8, dtype=torch.float64, requires_grad=True)
    with OwnKernels(1):
        out = net(x_B)
        assert torch.equal(out, F.conv2d(x_B, net.weight, net.bias, (2, 1), (0, 1)))
        assert torch.autograd.gradcheck(net, (x_B,))
    assert type(out.grad_fn).__name__ == "_ConvolutionBackward"
    assert type(net(x_B).grad_fn).__name__ == "ConvolutionBackward0"


def test_other_convolutions_stay_as_they_are():
    torch.manual_seed(0)
    flat, x = nn.Conv1d(2, 3, 3), torch.randn(1, 2, 7)
    with OwnKernels(1):
        assert torch.equal(flat(x), F.conv1d(x, flat.weight, flat.bias))
        assert type(LAYERS["groups"]()(torch.randn(1, 3, 9, 8)).grad_fn).__name__ == "ConvolutionBackward0"
        alone = nn.Conv2d(3, 4, 3)
        assert alone(torch.randn(3, 9, 8)).shape == (4, 7, 6)  # one image without a batch


def test_inputs_that_would_take_too_much_unfolded_are_left_alone():
    torch.manual_seed(0)
    net, x_B = LAYERS["stride"](), torch.randn(2, 3, 9, 8)
    places = net(x_B).shape[2] * net(x_B).shape[3]
    taken = 2 * 3 * 3 * 2 * places * 4  # samples, channels, kernel, places, bytes
    for most, name in ((7 * taken, "_ConvolutionBackward"), (7 * taken - 1, "ConvolutionBackward0")):
        with OwnKernels(7, most):
            assert type(net(x_B).grad_fn).__name__ == name
