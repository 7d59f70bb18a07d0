"""The residual network on CUDA in bfloat16: theta in, embeddings out, and its backward pass written out by hand.

The module in resnet.py under autocast is the definition, and the oracle of the tests. Here one cast turns theta into
weights, each norm is one kernel (see kernels.py), sums of derivatives are taken where they are read, and derivatives in
the weights, on which nothing waits until the end, run on a second stream beside those in the activations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from selfsame.nets.fast.plain import Norm, Normed
from selfsame.nets.norm import TINY, StandardConv2d
from selfsame.nets.resnet import Block, ResNet, Thin

_STEM = 8  # input channels with zeros added: tensor cores want a multiple of 8
_LANES = 4  # streams on which several networks run

Found = TypeVar("Found")


@dataclass(frozen=True)
class _Norm:
    weight: str
    bias: str
    groups: int
    eps: float
    at: int  # where its pair of vectors lies among all vectors


@dataclass(frozen=True)
class _Run:
    """Kernels of convolutions that follow one another in theta and have equally many numbers in each output channel."""

    place: slice
    long: int


@dataclass
class _Pass:
    """What one forward pass leaves for the backward pass."""

    weights: dict[str, Tensor] = field(default_factory=dict)
    vectors: dict[str, Tensor] = field(default_factory=dict)
    standard: list[tuple[Tensor, Tensor, Tensor]] = field(default_factory=list)  # kernels, their mean and 1 / deviation
    inputs: dict[str, Tensor] = field(default_factory=dict)  # of each convolution
    normed: dict[str, Normed] = field(default_factory=dict)
    largest: Tensor | None = None  # where the stem's pooling found its values
    pooled: Tensor | None = None
    pixels: int = 0


class FusedResNet:
    """Runs a `ResNet` whose parameters lie in theta: matrices first, then vectors, kernels channels-last."""

    kind = "written out, Triton kernels"
    shares = False  # kernels read rows one after another

    def __init__(
        self, net: ResNet, shapes: dict[str, torch.Size], ops: Any = None, low: torch.dtype = torch.bfloat16
    ) -> None:
        """`ops` has the functions of plain.py, the Triton kernels unless given; `low` is the arithmetic's."""
        if ops is None:
            from selfsame.nets.fast import kernels

            ops = kernels
        self.net, self.ops, self.low = net, ops, low
        large = isinstance(net.pool, nn.MaxPool2d)
        self.stem = (2, 3) if large else (1, 1)  # stride and padding
        self.pool = ([3, 3], [2, 2], [1, 1]) if large else None  # sides, strides, paddings
        self.matrices = {name: shape for name, shape in shapes.items() if len(shape) > 1}
        self.vectors = {name: shape for name, shape in shapes.items() if len(shape) == 1}
        assert list(shapes) == [*self.matrices, *self.vectors], "matrices first, then vectors"
        self.matrix_sizes = [s.numel() for s in self.matrices.values()]
        self.vector_sizes = [s.numel() for s in self.vectors.values()]
        starts = dict(zip(self.vectors, torch.tensor([0, *self.vector_sizes]).cumsum(0).tolist(), strict=False))
        self.norms = {
            name: _Norm(f"{name}.weight", f"{name}.bias", module.num_groups, module.eps, starts[f"{name}.weight"])
            for name, module in net.named_modules()
            if isinstance(module, nn.GroupNorm)
        }
        self.runs, self.rest = self._runs() if isinstance(net.conv, StandardConv2d) else ([], [])

    def _runs(self) -> tuple[list[_Run], list[slice]]:
        """The kernels, in as few pieces as can be, each to be standardised by one call; and where the rest lies."""
        runs: list[_Run] = []
        rest: list[slice] = []
        at = 0
        for shape in self.matrices.values():
            size, long = shape.numel(), shape[1:].numel()
            if len(shape) == 2:
                rest.append(slice(at, at + size))
            elif runs and runs[-1].long == long and runs[-1].place.stop == at:
                runs[-1] = _Run(slice(runs[-1].place.start, at + size), long)
            else:
                runs.append(_Run(slice(at, at + size), long))
            at += size
        return runs, rest

    @staticmethod
    def fits(net: nn.Module) -> bool:
        """Whether this network can be run here: a `ResNet`, and with Triton."""
        if type(net) is not ResNet:
            return False
        try:
            from selfsame.nets.fast.kernels import supported
        except ImportError:
            return False
        norms = [m for m in net.modules() if isinstance(m, nn.GroupNorm)]
        return all(m.affine and supported(m.num_channels, m.num_groups) for m in norms)

    def takes(self, theta_P: Tensor, x: Tensor) -> bool:
        """Images of any size."""
        return True

    def embed(self, theta_MP: Tensor, x_MB: Tensor) -> Tensor:
        """Embeddings (M, B, D) alone."""
        return self.forward(theta_MP, x_MB)[0]

    def forward(self, theta_MP: Tensor, x_MB: Tensor) -> tuple[Tensor, list[_Pass]]:
        """Embeddings (M, B, D) of images (M, B, C, H, W), and what the backward pass needs of each network."""
        each = zip(theta_MP.unbind(), x_MB.unbind(), strict=True)
        found = _side_by_side(theta_MP.device, [partial(self._forward, theta_P, x_B) for theta_P, x_B in each])
        emb_MBD = found[0][0][None] if len(found) == 1 else torch.stack([emb_BD for emb_BD, _ in found])
        return emb_MBD, [done for _, done in found]

    def backward(self, done: list[_Pass], pull_MBD: Tensor) -> list[Tensor]:
        """The derivatives in the matrices of each theta, and in its vectors."""
        alone = len(done) == 1  # several networks fill the gaps of one another
        work = [partial(self._backward, one, pull, alone) for one, pull in zip(done, pull_MBD.unbind(), strict=True)]
        found = _side_by_side(pull_MBD.device, work)
        return [parts[0][None] if alone else torch.stack(parts) for parts in zip(*found, strict=True)]

    def _forward(self, theta_P: Tensor, x: Tensor) -> tuple[Tensor, _Pass]:
        done = _Pass()
        done.weights = self._matrix_views(self._kernels(done, theta_P[: sum(self.matrix_sizes)]))
        high = theta_P[sum(self.matrix_sizes) :][: sum(self.vector_sizes)]
        done.vectors = dict(zip(self.vectors, high.split(self.vector_sizes), strict=True))
        stem = done.weights["conv.weight"]
        wide = -(-x.shape[1] // _STEM) * _STEM - x.shape[1]
        x = self._widened(x, wide)
        done.weights["conv.weight"] = F.pad(stem, (0, 0, 0, 0, 0, wide)).contiguous(memory_format=torch.channels_last)
        x = self._normed(done, "norm", self._conv(done, "conv", x, *self.stem))
        if self.pool is not None:
            x, done.largest = torch.ops.aten.max_pool2d_with_indices(x, *self.pool)
        for place, block in enumerate(self.net.blocks):
            assert isinstance(block, Block)
            at, stride = f"blocks.{place}", _stride(block)
            inner = self._normed(done, f"{at}.norm1", self._conv(done, f"{at}.conv1", x, stride, 1))
            outer = self._conv(done, f"{at}.conv2", inner, 1, 1)
            if _projects(block):
                x = self._conv(done, f"{at}.shortcut.0", x, stride, 0)
                x = self._normed(done, f"{at}.shortcut.1", x, relu=False)
            x = self._normed(done, f"{at}.norm2", outer, add=x, thin=_thin(block))
        done.pixels = x.shape[2] * x.shape[3]
        done.pooled = x.mean((2, 3))
        out = F.linear(done.pooled, done.weights["head.weight"], done.vectors["head.bias"].to(self.low))
        return out.to(theta_P.dtype), done

    def _backward(self, done: _Pass, out_grad: Tensor, overlap: bool) -> list[Tensor]:
        """The derivative in theta, as pieces in theta's order: all matrices, then all vectors."""
        assert done.pooled is not None
        device = out_grad.device
        streams = (torch.cuda.current_stream(device), _stream(device, 0)) if overlap and device.type == "cuda" else None
        matrices = torch.empty(sum(self.matrix_sizes), device=device, dtype=self.low)
        place = self._matrix_views(matrices)
        held: list[Tensor] = []  # what the side stream still reads: freed only after both streams have met

        def weight_grad(name: str, grad: Tensor, stride: int, padding: int) -> None:
            held.extend((grad, done.inputs[name]))
            if streams is not None:
                streams[1].wait_stream(streams[0])
            with torch.cuda.stream(streams[1]) if streams is not None else nullcontext():
                found = _convolution_backward(
                    grad, done.inputs[name], done.weights[f"{name}.weight"], stride, padding, (False, True, False)
                )[1]
                place[f"{name}.weight"].copy_(found[:, : place[f"{name}.weight"].shape[1]])

        def input_grad(name: str, grad: Tensor, stride: int, padding: int) -> Tensor:
            out: Tensor = _convolution_backward(
                grad, done.inputs[name], done.weights[f"{name}.weight"], stride, padding, (True, False, False)
            )[0]
            return out

        parts = torch.empty(len(out_grad), sum(self.vector_sizes), device=device, dtype=out_grad.dtype)
        low = out_grad.to(self.low)
        torch.mm(low.T, done.pooled, out=place["head.weight"])
        parts[:, sum(self.vector_sizes) - out_grad.shape[1] :] = out_grad
        grad = ((low @ done.weights["head.weight"]) / done.pixels)[:, :, None, None]
        last = done.normed[f"blocks.{len(self.net.blocks) - 1}.norm2"].out
        grad = grad.expand(last.shape).contiguous(memory_format=torch.channels_last)
        more: Tensor | None = None
        thin = 0
        for number in reversed(range(len(self.net.blocks))):
            block = self.net.blocks[number]
            assert isinstance(block, Block)
            at, stride = f"blocks.{number}", _stride(block)
            outer, short = self._norm_grad(done, f"{at}.norm2", grad, more, parts, thin)
            assert short is not None
            weight_grad(f"{at}.conv2", outer, 1, 1)
            inner, _ = self._norm_grad(done, f"{at}.norm1", input_grad(f"{at}.conv2", outer, 1, 1), None, parts)
            weight_grad(f"{at}.conv1", inner, stride, 1)
            grad, more, thin = input_grad(f"{at}.conv1", inner, stride, 1), short, _thin(block)
            if _projects(block):
                short, _ = self._norm_grad(done, f"{at}.shortcut.1", short, None, parts)
                weight_grad(f"{at}.shortcut.0", short, stride, 0)
                more = input_grad(f"{at}.shortcut.0", short, stride, 0)
        if self.pool is not None:
            assert more is not None and not thin, "the first block adds its input as it is"
            before = done.normed["norm"].out
            grad = torch.ops.aten.max_pool2d_with_indices_backward(
                grad + more, before, *self.pool, [1, 1], False, done.largest
            )
            more = None
        grad, _ = self._norm_grad(done, "norm", grad, more, parts, thin)
        weight_grad("conv", grad, *self.stem)
        if streams is not None:
            streams[0].wait_stream(streams[1])
        return [self._kernel_grads(done, matrices, out_grad.dtype), parts.sum(0)]

    def _kernels(self, done: _Pass, flat: Tensor) -> Tensor:
        """The matrices as the passes use them."""
        if not self.runs:
            return flat.to(self.low)
        low = torch.empty_like(flat, dtype=self.low)
        for run in self.runs:
            rows = flat[run.place].view(-1, run.long)
            done.standard.append((rows, *self.ops.standard_forward(rows, TINY, low[run.place].view_as(rows))))
        for rest in self.rest:
            low[rest] = flat[rest]
        return low

    def _kernel_grads(self, done: _Pass, flat: Tensor, high: torch.dtype) -> Tensor:
        """From the derivative in the matrices as the passes used them, that in those of theta."""
        if not self.runs:
            return flat
        out = torch.empty_like(flat, dtype=high)
        for run, (rows, mean, scale) in zip(self.runs, done.standard, strict=True):
            grad = flat[run.place].view_as(rows)
            self.ops.standard_backward(grad, rows, mean, scale, out[run.place].view_as(rows))
        for rest in self.rest:
            out[rest] = flat[rest]
        return out

    def _matrix_views(self, flat: Tensor) -> dict[str, Tensor]:
        """The matrices that lie in one piece, kernels of convolutions channels-last."""
        parts = zip(self.matrices.items(), flat.split(self.matrix_sizes), strict=True)
        return {
            name: part.view(shape[0], *shape[2:], shape[1]).movedim(-1, 1) if len(shape) > 2 else part.view(shape)
            for (name, shape), part in parts
        }

    def _widened(self, x: Tensor, by: int) -> Tensor:
        """Images in the arithmetic's precision, channels-last, with `by` channels of zeros added."""
        images, channels, height, width = x.shape
        out = torch.zeros(images, height, width, channels + by, device=x.device, dtype=self.low).movedim(-1, 1)
        out[:, :channels] = x
        return out

    def _conv(self, done: _Pass, name: str, x: Tensor, stride: int, padding: int) -> Tensor:
        done.inputs[name] = x
        return F.conv2d(x, done.weights[f"{name}.weight"], stride=stride, padding=padding)

    def _normed(
        self, done: _Pass, name: str, x: Tensor, add: Tensor | None = None, relu: bool = True, thin: int = 0
    ) -> Tensor:
        at = self.norms[name]
        norm = Norm(done.vectors[at.weight], done.vectors[at.bias], at.groups, at.eps)
        done.normed[name] = self.ops.norm_forward(x, norm, add, relu, thin)
        return done.normed[name].out

    def _norm_grad(
        self, done: _Pass, name: str, grad: Tensor, more: Tensor | None, parts: Tensor, thin: int = 0
    ) -> tuple[Tensor, Tensor | None]:
        first, saved = self.norms[name].at, done.normed[name]
        part = parts[:, first : first + 2 * len(saved.norm.weight)]
        out: tuple[Tensor, Tensor | None] = self.ops.norm_backward(saved, grad, more, part, thin)
        return out


def _side_by_side(device: torch.device, work: Sequence[Callable[[], Found]]) -> list[Found]:
    """What each piece of work finds; on CUDA several run on a few streams that the caller's then waits for."""
    if len(work) == 1 or device.type != "cuda":
        return [one() for one in work]
    main, found = torch.cuda.current_stream(device), []
    for place, one in enumerate(work):
        lane = _stream(device, 1 + place % _LANES)
        lane.wait_stream(main)
        with torch.cuda.stream(lane):
            found.append(one())
    for place in range(min(_LANES, len(work))):
        main.wait_stream(_stream(device, 1 + place))
    return found


_STREAMS: dict[tuple[int, int], torch.cuda.Stream] = {}


def _stream(device: torch.device, number: int) -> torch.cuda.Stream:
    """A further stream of a device, made once: 0 for the derivatives in the weights, the others for networks."""
    index = device.index if device.index is not None else torch.cuda.current_device()
    if (index, number) not in _STREAMS:
        _STREAMS[index, number] = torch.cuda.Stream(index)
    return _STREAMS[index, number]


def _convolution_backward(
    grad: Tensor, x: Tensor, weight: Tensor, stride: int, padding: int, wanted: tuple[bool, bool, bool]
) -> tuple[Tensor, Tensor, Tensor]:
    out: tuple[Tensor, Tensor, Tensor] = torch.ops.aten.convolution_backward(
        grad, x, weight, None, [stride] * 2, [padding] * 2, [1, 1], False, [0, 0], 1, list(wanted)
    )
    return out


def _stride(block: Block) -> int:
    stride: int = block.conv1.stride[0]
    return stride


def _projects(block: Block) -> bool:
    return isinstance(block.shortcut, nn.Sequential)


def _thin(block: Block) -> int:
    """The stride of a shortcut without parameters; 0 where what is added has the norm's own shape."""
    return block.shortcut.stride if isinstance(block.shortcut, Thin) else 0
