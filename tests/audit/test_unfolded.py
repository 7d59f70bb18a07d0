"""Convolutions as matrix products: the same as PyTorch's, and so are their derivatives, alone and stacked."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn import functional as F

from selfsame.audit.unfolded import Unfolded, convolved

CASES = [(3, 1, 1), (3, 2, 1), (1, 2, 0), (7, 2, 3), (3, (2, 1), (0, 1))]


def pictures_and_kernels(side: int, stacked: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(side)
    shapes = (stacked, 2, 3, 9, 8), (stacked, 4, 3, side, side)
    return tuple(torch.randn(shape, generator=draw, dtype=torch.float64).requires_grad_() for shape in shapes)


def twice(how, x: Tensor, weight: Tensor) -> list[Tensor]:
    """The value, its derivatives, and those of their squared lengths."""
    value = how(x, weight)
    first = torch.autograd.grad(value.pow(3).sum(), (x, weight), create_graph=True)
    return [value, *first, *torch.autograd.grad(sum(one.square().sum() for one in first), (x, weight))]


@pytest.mark.parametrize(("side", "stride", "padding"), CASES)
def test_the_same_as_a_convolution_with_both_derivatives(side, stride, padding):
    x, weight = pictures_and_kernels(side, 3)
    bias = torch.arange(4.0, dtype=torch.float64)

    def usual(x: Tensor, weight: Tensor) -> Tensor:
        return torch.stack([F.conv2d(*pair, bias, stride, padding) for pair in zip(x, weight, strict=True)])

    def stacked(x: Tensor, weight: Tensor) -> Tensor:
        return vmap(lambda x, weight: convolved(x, weight, bias, stride, padding))(x, weight)

    for got, wanted in zip(twice(stacked, x, weight), twice(usual, x, weight), strict=True):
        torch.testing.assert_close(got, wanted)


def test_by_plain_loops():
    (x,), (weight,) = (one.detach() for one in pictures_and_kernels(3, 1))
    out = convolved(x, weight, None, 2, 1)
    padded = F.pad(x, (1, 1, 1, 1))
    for s, o, h, w in ((s, o, h, w) for s in range(2) for o in range(4) for h in range(5) for w in range(4)):
        patch = padded[s, :, 2 * h : 2 * h + 3, 2 * w : 2 * w + 3]
        total = sum(float(a) * float(b) for a, b in zip(patch.flatten(), weight[o].flatten(), strict=True))
        assert float(out[s, o, h, w]) == pytest.approx(total)


def test_only_plain_convolutions_are_taken(monkeypatch):
    calls = []
    monkeypatch.setattr("selfsame.audit.unfolded.convolved", lambda x, *rest: calls.append(len(rest)) or x)
    x = torch.zeros(2, 4, 6, 6)
    with Unfolded():
        nn.Conv2d(4, 4, 3, padding=1)(x)
        vmap(lambda x, weight: F.conv2d(x, weight, None, 1, 1))(x[None], torch.zeros(1, 4, 4, 3, 3))
        assert len(calls) == 2
        for other in (nn.Conv2d(4, 4, 3, groups=2), nn.Conv2d(4, 4, 3, dilation=2), nn.Conv2d(4, 4, 3, padding="same")):
            other(x)
        F.conv2d(input=x, weight=torch.zeros(4, 4, 3, 3))
        nn.Linear(6, 6)(x)
    nn.Conv2d(4, 4, 3, padding=1)(x)
    assert len(calls) == 2
