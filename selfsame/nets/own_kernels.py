"""Convolutions whose derivatives in the kernels are taken client by client as products of matrices.

Under `vmap` PyTorch computes each client's derivatives in shared kernels as a convolution in groups, for which the GPU
has no good routine. Here the input is unfolded, and what remains is a product of matrices for each client.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.grad import conv2d_input
from torch.overrides import TorchFunctionMode

_MOST = 2**32
Pair = tuple[int, int]
Gradients = tuple[Tensor | None, Tensor | None, Tensor | None, None, None, None]


class _Convolution(torch.autograd.Function):
    """A convolution of images in one group."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, kernel: Tensor, bias: Tensor | None, stride: Pair, padding: Pair, dilation: Pair) -> Tensor:
        return F.conv2d(x, kernel, bias, stride, padding, dilation)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, kernel, _, *ctx.terms = inputs
        ctx.save_for_backward(x, kernel)

    @staticmethod
    def backward(ctx: Any, *pulls: Tensor) -> Gradients:
        (pull_BOHW,) = pulls
        x_BIHW, kernel = ctx.saved_tensors
        stride, padding, dilation = ctx.terms
        wanted_x, wanted_kernel, wanted_bias, *_ = ctx.needs_input_grad
        grad_x = grad_kernel = grad_bias = None
        if wanted_x:
            grad_x = conv2d_input(x_BIHW.shape, kernel, pull_BOHW, stride, padding, dilation)
        if wanted_kernel:
            columns_BKL = _columns(x_BIHW, kernel.shape[2:], *ctx.terms)
            grad_kernel = _products(pull_BOHW.flatten(2), columns_BKL).reshape(kernel.shape)
        if wanted_bias:
            grad_bias = pull_BOHW.sum((0, 2, 3))
        return grad_x, grad_kernel, grad_bias, None, None, None


def _columns(x_BIHW: Tensor, size: torch.Size, stride: Pair, padding: Pair, dilation: Pair) -> Tensor:
    """What the kernel meets at each place: as `F.unfold`, which on CUDA takes one image after another."""
    if dilation != (1, 1):
        return F.unfold(x_BIHW, size, dilation, padding, stride)
    (high, wide), (down, along) = padding, stride
    padded = F.pad(x_BIHW, (wide, wide, high, high)) if high or wide else x_BIHW
    seen = padded.unfold(2, size[0], down).unfold(3, size[1], along)  # (B, I, rows, columns, kernel's, kernel's)
    return seen.permute(0, 1, 4, 5, 2, 3).flatten(1, 3).flatten(2)


def _products(pull_BOL: Tensor, columns_BKL: Tensor) -> Tensor:
    """The sum over samples and places of pull times column, (O, K), by whichever way writes less on its way."""
    if columns_BKL.shape[2] < pull_BOL.shape[1]:
        return pull_BOL.transpose(0, 1).flatten(1) @ columns_BKL.transpose(0, 1).flatten(1).T
    return (pull_BOL @ columns_BKL.transpose(1, 2)).sum(0)


class OwnKernels(TorchFunctionMode):
    """Within it, convolutions of images in one group are those of this module, where unfolding takes not too much.

    `clients`: how many `vmap` takes at once; `most`: the bytes that their unfolded inputs may take.
    """

    def __init__(self, clients: int, most: int = _MOST) -> None:
        super().__init__()
        self.clients, self.most = clients, most

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.conv2d:
            terms = _terms(*args, **(kwargs or {}))
            if terms is not None and self.clients * _unfolded(*terms) <= self.most:
                return _Convolution.apply(*terms)
        return func(*args, **(kwargs or {}))


def _terms(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: int | Pair = 1, padding: int | Pair | str = 0,
    dilation: int | Pair = 1, groups: int = 1,
) -> tuple[Any, ...] | None:  # fmt: skip
    """What a convolution is called with, None where it is not one of those that are meant."""
    if input.dim() != 4 or groups != 1 or isinstance(padding, str):
        return None
    return input, weight, bias, _pair(stride), _pair(padding), _pair(dilation)


def _unfolded(x: Tensor, kernel: Tensor, _: Tensor | None, stride: Pair, padding: Pair, dilation: Pair) -> int:
    """The bytes of one client's unfolded input."""
    places = [
        (x.shape[2 + axis] + 2 * padding[axis] - dilation[axis] * (kernel.shape[2 + axis] - 1) - 1) // stride[axis] + 1
        for axis in (0, 1)
    ]
    return len(x) * kernel[0].numel() * places[0] * places[1] * x.element_size()


def _pair(value: int | Pair) -> Pair:
    return (value, value) if isinstance(value, int) else (value[0], value[1])
