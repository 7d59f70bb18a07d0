"""LeNet on the CPU: a theta for each of M clients in, embeddings out, and its backward pass written out by hand.

The module in lenet.py is the definition, and the oracle of the tests. Here a convolution of small images is one product
of matrices a client, norm and pooling share their work, and nothing is recorded for autograd. One network for everybody
is the case M = 1. Shapes: M networks, B samples each, H x W pixels, I channels in, O channels out, K numbers that a
product sums over.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import accumulate

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from selfsame.nets.lenet import LeNet

_SIDE, _REACH = 5, 2  # of the kernels, and how far they reach from their middle
_SLOPE = 0.01  # of the leaky ReLU below zero
_WIDE = 8  # pixels of a row whose convolution is one product; wider rows are cut
_WHOLE = 16  # pixels of an image whose convolution may be one product
_MANY = 64  # samples a network that pay for writing its kernel out as a matrix over whole images
_CACHED = 2**18  # outputs of a convolution at a time
# Bytes. The C library of Linux gives freed memory back to the system and asks for it again page by page, until a block
# of about this size has been freed once. With 64 replicas a fifth of a step went there. The block is never touched.
_FREED = 2**25 - 2**16

Fields = dict[str, Tensor]
_Part = tuple[slice, slice] | None  # of the networks and of their samples; None: all


def _at(t: Tensor, part: _Part) -> Tensor:
    return t if part is None else t[part]


def _nets(t: Tensor, part: _Part) -> Tensor:
    return t if part is None else t[part[0]]


@dataclass(frozen=True)
class _Window:
    """How far a patch of outputs and the inputs that it reads extend along one axis."""

    patch: int
    reads: int
    padded: bool  # by `_REACH` zeros on both sides; not if one patch is the whole axis

    @staticmethod
    def over(size: int, patch: int) -> _Window:
        whole = size == patch
        return _Window(patch, size if whole else patch + 2 * _REACH, not whole)

    def taps(self) -> Iterator[tuple[int, slice, slice]]:
        """(an output, where among what is read, where in the kernel its taps lie) for each output of a patch."""
        for place in range(self.patch):
            first = place if self.padded else place - _REACH
            low, high = max(0, first), min(self.reads, first + _SIDE)
            yield place, slice(low, high), slice(low - first, high - first)


@cache
def _blocks(high: _Window, wide: _Window, channels: int) -> Tensor:
    """For each output of a patch, channel and pixel read: the number of the kernel's tap, in all channels' order."""
    taps = torch.arange(channels * _SIDE * _SIDE).view(channels, _SIDE, _SIDE)
    out = torch.full((high.patch, wide.patch, channels, high.reads, wide.reads), taps.numel())
    for row, rows, down in high.taps():
        for column, columns, across in wide.taps():
            out[row, column, :, rows, columns] = taps[:, down, across]
    return out.flatten()


@cache
def _bags(high: _Window, wide: _Window, channels: int, nets: int) -> tuple[Tensor, Tensor]:
    """Where each tap of each network occurs in what was written out, and where its places begin in that list."""
    taps = _blocks(high, wide, channels)
    count = channels * _SIDE * _SIDE
    places = taps.argsort(stable=True)[: int((taps < count).sum())]
    sizes = taps.bincount(minlength=count)[:count]
    net = torch.arange(nets)[:, None]
    begin = net * len(places) + sizes.cumsum(0) - sizes
    return (net * len(taps) + places).flatten(), begin.flatten()


@cache
def _mix(channels: int, groups: int, pixels: int, dtype: torch.dtype) -> Tensor:
    """Sums over the pixels times this: for each channel the mean over its group and the pixels."""
    group = torch.arange(channels) // (channels // groups)
    return (group[:, None] == group).to(dtype) * (groups / (pixels * channels))


@dataclass(frozen=True)
class _Product:
    """A convolution as a product of matrices: patches of the images times the kernel written out for a patch.

    A patch is a piece of a row or the whole image, so that the product comes out in the order of the pixels.
    """

    kernel: Tensor  # (M, outputs of a patch, K)
    read: Tensor  # (M, B, patches of an image, K)
    high: _Window
    wide: _Window

    @staticmethod
    def of(x: Tensor, kernel: Tensor) -> _Product:
        """For images (M, B, H, W, I) and kernels (M, O, 5, 5, I)."""
        nets, batch, height, width, depth = x.shape
        channels = kernel.shape[1]
        whole = height * width <= _WHOLE and batch >= _MANY
        high = _Window.over(height, height if whole else 1)
        wide = _Window.over(width, max(n for n in range(1, _WIDE + 1) if width % n == 0))
        up, left = (_REACH * window.padded for window in (high, wide))
        padded = F.pad(x, (0, 0, left, left, up, up)) if up or left else x.contiguous()
        line = padded.shape[3] * depth
        read = padded.as_strided(
            (nets, batch, height // high.patch, width // wide.patch, high.reads, wide.reads * depth),
            (padded[0].numel(), padded[0, 0].numel(), high.patch * line, wide.patch * depth, line, 1),
        )
        size = high.reads * wide.reads * depth
        blocks = F.pad(
            kernel.reshape(nets, -1, depth), (0, 0, 0, 1)
        )  # and one of zeros where the kernel does not reach
        full = blocks.index_select(1, _blocks(high, wide, channels)).view(nets, -1, size)
        return _Product(full, read.contiguous().view(nets, batch, -1, size), high, wide)

    def out(self, part: _Part, into: Tensor) -> None:
        kernel = _nets(self.kernel, part)
        nets, outputs, _ = kernel.shape
        torch.bmm(_at(self.read, part).flatten(1, 2), kernel.mT, out=_at(into, part).view(nets, -1, outputs))

    def grads(self, part: _Part, grad: Tensor, found: Tensor, x_grad: Tensor | None) -> None:
        """The derivatives in the written-out kernels, summed over parts, and in the images, whose rows are not cut."""
        kernel = _nets(self.kernel, part)
        nets, outputs, size = kernel.shape
        grad = grad.view(nets, -1, outputs)
        _nets(found, part).baddbmm_(grad.mT, _at(self.read, part).flatten(1, 2), beta=_later(part))
        if x_grad is None:
            return
        out = _at(x_grad, part)
        if not self.high.padded:
            torch.bmm(grad, kernel, out=out.view(nets, -1, size))
            return
        each = torch.bmm(grad, kernel).view(*out.shape[:3], self.high.reads, *out.shape[3:])
        out.copy_(each[:, :, :, _REACH])
        height = out.shape[2]
        for tap in (0, 1, 3, 4):
            low, high = max(0, _REACH - tap), min(height, height + _REACH - tap)
            out[:, :, low + tap - _REACH : high + tap - _REACH] += each[:, :, low:high, tap]

    def kernel_grad(self, found: Tensor, into: Tensor) -> None:
        """The derivative in the kernels (M, O, 5, 5, I) from that in what was written out."""
        nets, channels, _, _, depth = into.shape
        index, begin = _bags(self.high, self.wide, channels, nets)
        into.copy_(F.embedding_bag(index, found.view(-1, depth), begin, mode="sum").view(into.shape))


def _parts(shape: torch.Size) -> list[_Part]:
    """Networks, or samples of the only one, few enough that what is computed for them stays in the cache."""
    nets, samples = shape[:2]
    if shape.numel() <= _CACHED:
        return [None]
    numbers = shape.numel() // (nets * samples)
    if nets == 1:
        few = max(1, _CACHED // numbers)
        return [(slice(0, 1), slice(low, low + few)) for low in range(0, samples, few)]
    few = max(1, _CACHED // (numbers * samples))
    return [(slice(low, low + few), slice(None)) for low in range(0, nets, few)]


def _later(part: _Part) -> int:
    """Whether the sums over samples have begun: 0 or 1."""
    return int(part is not None and bool(part[1].start))


@dataclass(frozen=True)
class _Layer:
    """One pass through convolution, norm, pooling and leaky ReLU, and what its backward pass needs.

    Pooling comes first: the norm and its weights are an affine map of each channel, and where a channel's weight is
    negative its kernel changes sign, so that the map keeps the order and the largest output stays the largest.
    """

    conv: _Product
    shape: torch.Size  # of the images
    sign: Tensor | None  # of the norm's weights, (M, 1, O); None: all positive
    weight: Tensor | None  # the norm's, (M, 1, O)
    z: Tensor  # the convolution, (M, B, H, W, O)
    top: Tensor  # its largest of four
    sum_MBO: Tensor  # of z over the pixels
    offset_MBO: Tensor  # the convolution's bias less the mean of the group
    scale_MBO: Tensor  # 1 / standard deviation of the group
    gain_MBO: Tensor  # what the norm multiplies z by
    normed: Tensor
    mix_OO: Tensor  # averages over groups, over all pixels

    @staticmethod
    def of(x: Tensor, views: Fields, norm: nn.GroupNorm, number: int) -> _Layer:
        kernel = views[f"conv{number}.weight"]
        weight, bias, shift = (
            views[name][:, None] if name in views else None
            for name in (f"norm{number}.weight", f"conv{number}.bias", f"norm{number}.bias")
        )
        sign = None
        if weight is not None and float(weight.min()) < 0:
            sign = torch.where(weight < 0, -1, 1).to(weight.dtype)
            kernel = kernel * sign.movedim(1, 2)[..., None, None]
        conv = _Product.of(x, kernel)
        nets, batch, height, width, _ = x.shape
        channels, pixels = kernel.shape[1], height * width
        z = x.new_empty(nets, batch, height, width, channels)
        top = x.new_empty(nets, batch, height // 2, width // 2, channels)
        sums = x.new_empty(2, nets, batch, channels)
        sum_MBO, square_MBO = sums.unbind()
        for part in _parts(z.shape):
            conv.out(part, z)
            here = _at(z, part).flatten(2, 3)
            torch.sum(here, 2, out=_at(sum_MBO, part))
            torch.sum(here * here, 2, out=_at(square_MBO, part))
            torch.maximum(*_halves(_pairs(_at(z, part)), 2), out=_at(top, part))
        # The convolution's bias is not added to all pixels, but to the sums over them.
        real_MBO = sum_MBO if sign is None else sum_MBO * sign
        if bias is not None:
            without, real_MBO = real_MBO, torch.add(real_MBO, bias, alpha=pixels)
            square_MBO = torch.addcmul(square_MBO, bias, without + real_MBO)
        if bias is not None or sign is not None:
            sums = torch.stack((real_MBO, square_MBO))
        mix_OO = _mix(channels, norm.num_groups, pixels, z.dtype)
        mean_MBO, spread_MBO = _mixed(sums, mix_OO)
        spread_MBO.addcmul_(mean_MBO, mean_MBO, value=-1)
        scale_MBO = spread_MBO.clamp_(min=0).add_(norm.eps).rsqrt_()
        offset_MBO = -mean_MBO if bias is None else bias - mean_MBO
        gain_MBO = steep_MBO = scale_MBO if weight is None else scale_MBO * weight
        if sign is not None:
            gain_MBO = steep_MBO * sign
        lift_MBO = offset_MBO * steep_MBO
        if shift is not None:
            lift_MBO += shift
        normed = torch.addcmul(lift_MBO[:, :, None, None], top, gain_MBO[:, :, None, None])
        return _Layer(
            conv, x.shape, sign, weight, z, top, sum_MBO, offset_MBO, scale_MBO, gain_MBO, normed, mix_OO
        )  # fmt: skip

    def out(self) -> Tensor:
        return F.leaky_relu(self.normed, _SLOPE)

    def backward(self, grad: Tensor, into: Fields, number: int, further: bool) -> Tensor | None:
        """Write the derivatives in the parameters; returns that in the images, if it is to go `further`."""
        grad = torch.ops.aten.leaky_relu_backward(grad, self.normed, _SLOPE, False)
        flat = grad.flatten(2, 3)
        grad_MBO = flat.sum(2)
        top_MBO = (flat * self.top.flatten(2, 3)).sum(2)
        if self.sign is not None:
            top_MBO *= self.sign
        hat_MBO = torch.addcmul(top_MBO, self.offset_MBO, grad_MBO).mul_(self.scale_MBO)  # times what the norm gave
        each, other = (grad_MBO, hat_MBO) if self.weight is None else (grad_MBO * self.weight, hat_MBO * self.weight)
        # The derivative in z: what comes through the largest of four, and through mean and deviation steep * z + level.
        level_MBO, steep_MBO = _mixed(torch.stack((each, other)), self.mix_OO)
        steep_MBO.mul_(self.scale_MBO).mul_(self.scale_MBO).neg_()
        level_MBO = torch.addcmul(self.offset_MBO * steep_MBO, level_MBO, self.scale_MBO, value=-1)
        if self.sign is not None:
            level_MBO *= self.sign
        if self.weight is not None:
            into[f"norm{number}.weight"].copy_(hat_MBO.sum(1))
            into[f"norm{number}.bias"].copy_(grad_MBO.sum(1))
        if f"conv{number}.bias" in into:
            total_MBO = torch.addcmul(grad_MBO * self.gain_MBO, self.sum_MBO, steep_MBO)
            total_MBO.add_(level_MBO, alpha=self.shape[2] * self.shape[3])
            into[f"conv{number}.bias"].copy_((total_MBO if self.sign is None else total_MBO * self.sign).sum(1))
        steep, level, gain = (t[:, :, None, None] for t in (steep_MBO, level_MBO, self.gain_MBO))
        found = torch.empty_like(self.conv.kernel)
        x_grad = grad.new_empty(self.shape) if further else None
        grad *= gain
        for part in _parts(self.z.shape):
            z_grad = torch.addcmul(_at(level, part), _at(self.z, part), _at(steep, part))
            _unpool(_at(self.z, part), _at(grad, part), z_grad)
            self.conv.grads(part, z_grad, found, x_grad)
        kernel_grad = into[f"conv{number}.weight"]
        self.conv.kernel_grad(found, kernel_grad)
        if self.sign is not None:
            kernel_grad *= self.sign.movedim(1, 2)[..., None, None]
        return x_grad


def _mixed(two: Tensor, mix_OO: Tensor) -> tuple[Tensor, Tensor]:
    """The averages over groups of two tensors."""
    first, second = torch.mm(two.view(-1, two.shape[-1]), mix_OO).view(two.shape).unbind()
    return first, second


def _halves(t: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    """The even and the odd places along an axis."""
    shape = t.shape
    even, odd = t.view(*shape[:axis], shape[axis] // 2, 2, *shape[axis + 1 :]).unbind(axis + 1)
    return even, odd


def _pairs(z: Tensor) -> Tensor:
    """The larger of two neighbours in a row."""
    return torch.maximum(*_halves(z, 3))


def _unpool(z: Tensor, grad: Tensor, into: Tensor) -> None:
    """Add the derivative in the largest of four to that of the first of them that is the largest."""
    pair = _pairs(z)
    pair_grad = torch.empty_like(pair)
    first, second = _halves(pair_grad, 2)
    torch.mul(grad, torch.ge(*_halves(pair, 2), out=torch.empty_like(grad)), out=first)
    torch.sub(grad, first, out=second)
    chosen = torch.ge(*_halves(z, 3), out=pair).mul_(pair_grad)
    left, right = _halves(into, 3)
    left += chosen
    right += pair_grad.sub_(chosen)


@dataclass(frozen=True)
class Pass:
    """What one forward pass leaves for the backward pass."""

    layers: tuple[_Layer, _Layer]
    flat: Tensor
    head: Tensor


def _inner(head: Tensor, shape: torch.Size) -> Tensor:
    """The last layer's weights with their channels innermost, as in activations of this shape."""
    _, _, height, width, channels = shape
    return head.view(*head.shape[:2], channels, height, width).movedim(2, -1)


class WrittenLeNet:
    """Runs a `LeNet` whose parameters lie in theta in the order of `shapes`, kernels channels-last."""

    everywhere = False  # evaluation is the module's: the same figures for any size of image

    def __init__(self, net: LeNet, shapes: dict[str, torch.Size]) -> None:
        torch.empty(_FREED, dtype=torch.uint8)
        self.norms = (net.norm1, net.norm2)
        self.size = sum(shape.numel() for shape in shapes.values())
        ends = accumulate(shape.numel() for shape in shapes.values())
        inner = [torch.empty((s[0], *s[2:], s[1]) if len(s) > 2 else s, device="meta") for s in shapes.values()]
        # Shape, strides and place of each tensor in theta.
        self.places = {
            name: (tuple(t.shape), t.stride(), end - t.numel())
            for name, t, end in zip(shapes, inner, ends, strict=True)
        }

    @staticmethod
    def fits(net: nn.Module) -> bool:
        """Whether this network can be run here."""
        return type(net) is LeNet

    def takes(self, x_MB: Tensor, nets: int) -> bool:
        """Whether so many networks should run these images here: pooling leaves no pixel out, and they are small.

        Measured: on wider images the library's convolutions are faster, for one network sooner than for several.
        """
        height, width = x_MB.shape[-2:]
        return height % 4 == 0 and width % 4 == 0 and width <= (_WIDE if nets == 1 else 2 * _WIDE)

    def _views(self, flat_MQ: Tensor) -> Fields:
        nets, (row, _), begin = flat_MQ.shape[0], flat_MQ.stride(), flat_MQ.storage_offset()
        return {
            name: flat_MQ.as_strided((nets, *shape), (row, *strides), begin + at)
            for name, (shape, strides, at) in self.places.items()
        }

    def forward(self, theta_MP: Tensor, x_MB: Tensor) -> tuple[Tensor, Pass]:
        """Embeddings (M, B, D) of images (M, B, C, H, W)."""
        width = self.places["head.weight"][0][0]
        out = theta_MP.new_empty(*x_MB.shape[:2], width)
        with torch.inference_mode():  # a good part of a small pass is what autograd does for each call
            views = self._views(theta_MP)
            first = _Layer.of(x_MB.movedim(2, -1), views, self.norms[0], 1)
            second = _Layer.of(first.out(), views, self.norms[1], 2)
            flat = second.out().flatten(2)
            head = _inner(views["head.weight"], second.top.shape).flatten(2)
            torch.bmm(flat, head.mT, out=out)
            if "head.bias" in views:
                out += views["head.bias"][:, None]
        return out, Pass((first, second), flat, head)

    def backward(self, done: Pass, pull_MBD: Tensor) -> list[Tensor]:
        """The derivative in the network's part of each theta, in one piece."""
        grad_MQ = pull_MBD.new_empty(pull_MBD.shape[0], self.size)
        with torch.inference_mode():
            into = self._views(grad_MQ)
            first, second = done.layers
            place = _inner(into["head.weight"], second.top.shape)
            place.copy_(torch.bmm(pull_MBD.mT, done.flat).view(place.shape))
            if "head.bias" in into:
                torch.sum(pull_MBD, 1, out=into["head.bias"])
            grad = torch.bmm(pull_MBD, done.head).view(second.top.shape)
            inner = second.backward(grad, into, 2, True)
            assert inner is not None
            first.backward(inner, into, 1, False)
        return [grad_MQ]
