"""Group norm, the sum with a shortcut and the activation in one pass over channels-last images, forward and backward;
and rows of kernels standardised.

A residual network spends more time moving activations through its norms than on their arithmetic. The kernels read each
activation once forward and once backward. The functions of the same names in plain.py are their definition; they are
used where they give the same result faster: on CUDA, for channels and group sizes that are powers of two. A shortcut
without parameters (`Thin` in resnet.py) is never written out: the kernels read every other pixel, and zeros beside.

Shapes: N images, S = H*W pixels, C channels in G groups of R = C/G.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from selfsame.nets.fast.plain import Norm, Normed

_TILE = 32768  # elements of one image that a program holds in registers, at most


@triton.jit
def _by_group(column_C, WIDE: tl.constexpr, SIZE: tl.constexpr):
    """Each channel's number replaced by the sum over its group."""
    sum_G = tl.sum(tl.reshape(column_C, (WIDE // SIZE, SIZE)), axis=1)
    return tl.reshape(tl.broadcast_to(sum_G[:, None], (WIDE // SIZE, SIZE)), (WIDE,))


@triton.jit
def _place(image, first, channel_C, PIXELS: tl.constexpr, CHANNELS: tl.constexpr, TALL: tl.constexpr):
    """Where a tile of one image lies, and which of its pixels exist."""
    pixel_S = first + tl.arange(0, TALL)
    return image * (PIXELS * CHANNELS) + pixel_S[:, None] * CHANNELS + channel_C[None, :], (pixel_S < PIXELS)[:, None]


@triton.jit
def _thinned(
    place, inside, image, first, channel_C, WIDTH: tl.constexpr, TALL: tl.constexpr, THIN: tl.constexpr,
    FROM_PIXELS: tl.constexpr, FROM_WIDTH: tl.constexpr, FROM_CHANNELS: tl.constexpr,
):  # fmt: skip
    """Where the numbers of a tile lie in the image that is thinned, and which of them do."""
    if THIN > 0:
        pixel_S = first + tl.arange(0, TALL)
        from_S = (pixel_S // WIDTH * FROM_WIDTH + pixel_S % WIDTH) * THIN
        place = image * (FROM_PIXELS * FROM_CHANNELS) + from_S[:, None] * FROM_CHANNELS + channel_C[None, :]
        inside = inside & (channel_C < FROM_CHANNELS)[None, :]
    return place, inside


@triton.jit
def _spread(
    place, inside, image, first, channel_C, WIDTH: tl.constexpr, TALL: tl.constexpr, THIN: tl.constexpr,
    FROM_PIXELS: tl.constexpr, FROM_WIDTH: tl.constexpr, FROM_CHANNELS: tl.constexpr,
):  # fmt: skip
    """Where the numbers of a tile lie in its thin image, and which of them do."""
    if THIN > 0:
        pixel_S = first + tl.arange(0, TALL)
        row_S, column_S = pixel_S // WIDTH, pixel_S % WIDTH
        from_S = row_S // THIN * FROM_WIDTH + column_S // THIN
        place = image * (FROM_PIXELS * FROM_CHANNELS) + from_S[:, None] * FROM_CHANNELS + channel_C[None, :]
        inside = inside & ((row_S % THIN == 0) & (column_S % THIN == 0))[:, None]
    return place, inside


@triton.jit
def _finish(
    x, add_ptr, out_ptr, place, inside, add_place, add_inside, weight_C, bias_C, ADD: tl.constexpr, RELU: tl.constexpr
):
    y = x * weight_C[None, :] + bias_C[None, :]
    if ADD:
        y += tl.load(add_ptr + add_place, mask=add_inside, other=0.0).to(tl.float32)
    if RELU:
        y = tl.maximum(y, 0.0)
    tl.store(out_ptr + place, y.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _forward(
    x_ptr, add_ptr, weight_ptr, bias_ptr, out_ptr, mean_ptr, scale_ptr, eps,
    PIXELS: tl.constexpr, CHANNELS: tl.constexpr, SIZE: tl.constexpr, WIDE: tl.constexpr, TALL: tl.constexpr,
    ADD: tl.constexpr, RELU: tl.constexpr, WIDTH: tl.constexpr, THIN: tl.constexpr,
    FROM_PIXELS: tl.constexpr, FROM_WIDTH: tl.constexpr, FROM_CHANNELS: tl.constexpr,
):  # fmt: skip
    image = tl.program_id(0).to(tl.int64)
    channel_C = tl.program_id(1) * WIDE + tl.arange(0, WIDE)
    COUNT: tl.constexpr = PIXELS * SIZE
    weight_C = tl.load(weight_ptr + channel_C).to(tl.float32)
    bias_C = tl.load(bias_ptr + channel_C).to(tl.float32)
    if TALL >= PIXELS:  # the whole image stays in registers
        place, inside = _place(image, 0, channel_C, PIXELS, CHANNELS, TALL)
        x = tl.load(x_ptr + place, mask=inside, other=0.0).to(tl.float32)
        mean_C = _by_group(tl.sum(x, axis=0), WIDE, SIZE) / COUNT
        off = tl.where(inside, x - mean_C[None, :], 0.0)
        scale_C = tl.rsqrt(_by_group(tl.sum(off * off, axis=0), WIDE, SIZE) / COUNT + eps)
        add_place, add_inside = _thinned(
            place, inside, image, 0, channel_C, WIDTH, TALL, THIN, FROM_PIXELS, FROM_WIDTH, FROM_CHANNELS
        )
        _finish(off, add_ptr, out_ptr, place, inside, add_place, add_inside, weight_C * scale_C, bias_C, ADD, RELU)
    else:
        sum_C = tl.zeros((WIDE,), tl.float32)
        for first in range(0, PIXELS, TALL):
            place, inside = _place(image, first, channel_C, PIXELS, CHANNELS, TALL)
            sum_C += tl.sum(tl.load(x_ptr + place, mask=inside, other=0.0).to(tl.float32), axis=0)
        mean_C = _by_group(sum_C, WIDE, SIZE) / COUNT
        square_C = tl.zeros((WIDE,), tl.float32)
        for first in range(0, PIXELS, TALL):
            place, inside = _place(image, first, channel_C, PIXELS, CHANNELS, TALL)
            x = tl.load(x_ptr + place, mask=inside, other=0.0).to(tl.float32)
            off = tl.where(inside, x - mean_C[None, :], 0.0)
            square_C += tl.sum(off * off, axis=0)
        scale_C = tl.rsqrt(_by_group(square_C, WIDE, SIZE) / COUNT + eps)
        for first in range(0, PIXELS, TALL):
            place, inside = _place(image, first, channel_C, PIXELS, CHANNELS, TALL)
            off = tl.load(x_ptr + place, mask=inside, other=0.0).to(tl.float32) - mean_C[None, :]
            add_place, add_inside = _thinned(
                place, inside, image, first, channel_C, WIDTH, TALL, THIN, FROM_PIXELS, FROM_WIDTH, FROM_CHANNELS
            )
            _finish(off, add_ptr, out_ptr, place, inside, add_place, add_inside, weight_C * scale_C, bias_C, ADD, RELU)
    tl.store(mean_ptr + image * CHANNELS + channel_C, mean_C)
    tl.store(scale_ptr + image * CHANNELS + channel_C, scale_C)


@triton.jit
def _incoming(
    x_ptr, out_ptr, grad_ptr, more_ptr, place, inside, more_place, more_inside, mean_C, scale_C, weight_C, bias_C,
    MORE: tl.constexpr, ADD: tl.constexpr, RELU: tl.constexpr,
):  # fmt: skip
    """The derivative before the activation, and the normalised input."""
    grad = tl.load(grad_ptr + place, mask=inside, other=0.0).to(tl.float32)
    if MORE:
        grad += tl.load(more_ptr + more_place, mask=more_inside, other=0.0).to(tl.float32)
    x = tl.load(x_ptr + place, mask=inside, other=0.0).to(tl.float32)
    hat = (x - mean_C[None, :]) * scale_C[None, :]
    if RELU:
        if ADD:
            live = tl.load(out_ptr + place, mask=inside, other=0.0).to(tl.float32) > 0.0
        else:  # cheaper to compute again than to read
            live = hat * weight_C[None, :] + bias_C[None, :] > 0.0
        grad = tl.where(live & inside, grad, 0.0)
    return grad, hat


@triton.jit
def _outgoing(
    grad, hat, x_grad_ptr, add_grad_ptr, place, inside, weight_C, scale_C, shift_C, slope_C, ADD: tl.constexpr
):
    if ADD:
        tl.store(add_grad_ptr + place, grad.to(add_grad_ptr.dtype.element_ty), mask=inside)
    x_grad = scale_C[None, :] * (weight_C[None, :] * grad - shift_C[None, :] - hat * slope_C[None, :])
    tl.store(x_grad_ptr + place, x_grad.to(x_grad_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _backward(
    x_ptr, out_ptr, grad_ptr, more_ptr, weight_ptr, bias_ptr, mean_ptr, scale_ptr, x_grad_ptr, add_grad_ptr, part_ptr,
    part_step,
    PIXELS: tl.constexpr, CHANNELS: tl.constexpr, SIZE: tl.constexpr, WIDE: tl.constexpr, TALL: tl.constexpr,
    MORE: tl.constexpr, ADD: tl.constexpr, RELU: tl.constexpr, WIDTH: tl.constexpr, THIN: tl.constexpr,
    FROM_PIXELS: tl.constexpr, FROM_WIDTH: tl.constexpr, FROM_CHANNELS: tl.constexpr,
):  # fmt: skip
    image = tl.program_id(0).to(tl.int64)
    channel_C = tl.program_id(1) * WIDE + tl.arange(0, WIDE)
    COUNT: tl.constexpr = PIXELS * SIZE
    mean_C = tl.load(mean_ptr + image * CHANNELS + channel_C)
    scale_C = tl.load(scale_ptr + image * CHANNELS + channel_C)
    weight_C = tl.load(weight_ptr + channel_C).to(tl.float32)
    bias_C = tl.load(bias_ptr + channel_C).to(tl.float32)
    if TALL >= PIXELS:
        place, inside = _place(image, 0, channel_C, PIXELS, CHANNELS, TALL)
        more_place, more_inside = _spread(
            place, inside, image, 0, channel_C, WIDTH, TALL, THIN, FROM_PIXELS, FROM_WIDTH, FROM_CHANNELS
        )
        grad, hat = _incoming(
            x_ptr, out_ptr, grad_ptr, more_ptr, place, inside, more_place, more_inside, mean_C, scale_C,
            weight_C, bias_C, MORE, ADD, RELU,
        )  # fmt: skip
        bias_grad_C = tl.sum(grad, axis=0)
        weight_grad_C = tl.sum(grad * hat, axis=0)
        shift_C = _by_group(weight_C * bias_grad_C, WIDE, SIZE) / COUNT
        slope_C = _by_group(weight_C * weight_grad_C, WIDE, SIZE) / COUNT
        _outgoing(grad, hat, x_grad_ptr, add_grad_ptr, place, inside, weight_C, scale_C, shift_C, slope_C, ADD)
    else:
        bias_grad_C = tl.zeros((WIDE,), tl.float32)
        weight_grad_C = tl.zeros((WIDE,), tl.float32)
        for first in range(0, PIXELS, TALL):
            place, inside = _place(image, first, channel_C, PIXELS, CHANNELS, TALL)
            more_place, more_inside = _spread(
                place, inside, image, first, channel_C, WIDTH, TALL, THIN, FROM_PIXELS, FROM_WIDTH, FROM_CHANNELS
            )
            grad, hat = _incoming(
                x_ptr, out_ptr, grad_ptr, more_ptr, place, inside, more_place, more_inside, mean_C, scale_C,
                weight_C, bias_C, MORE, ADD, RELU,
            )  # fmt: skip
            bias_grad_C += tl.sum(grad, axis=0)
            weight_grad_C += tl.sum(grad * hat, axis=0)
        shift_C = _by_group(weight_C * bias_grad_C, WIDE, SIZE) / COUNT
        slope_C = _by_group(weight_C * weight_grad_C, WIDE, SIZE) / COUNT
        for first in range(0, PIXELS, TALL):
            place, inside = _place(image, first, channel_C, PIXELS, CHANNELS, TALL)
            more_place, more_inside = _spread(
                place, inside, image, first, channel_C, WIDTH, TALL, THIN, FROM_PIXELS, FROM_WIDTH, FROM_CHANNELS
            )
            grad, hat = _incoming(
                x_ptr, out_ptr, grad_ptr, more_ptr, place, inside, more_place, more_inside, mean_C, scale_C,
                weight_C, bias_C, MORE, ADD, RELU,
            )  # fmt: skip
            _outgoing(grad, hat, x_grad_ptr, add_grad_ptr, place, inside, weight_C, scale_C, shift_C, slope_C, ADD)
    tl.store(part_ptr + image * part_step + channel_C, weight_grad_C)
    tl.store(part_ptr + image * part_step + CHANNELS + channel_C, bias_grad_C)


@triton.jit
def _row(LONG: tl.constexpr, WIDE: tl.constexpr):
    """Where the numbers of this program's row lie, and which of them exist."""
    column = tl.arange(0, WIDE)
    return tl.program_id(0).to(tl.int64) * LONG + column, column < LONG


@triton.jit
def _standard_forward(x_ptr, out_ptr, mean_ptr, scale_ptr, eps, LONG: tl.constexpr, WIDE: tl.constexpr):
    place, inside = _row(LONG, WIDE)
    x = tl.load(x_ptr + place, mask=inside, other=0.0)
    mean = tl.sum(x, axis=0) / LONG
    off = tl.where(inside, x - mean, 0.0)
    scale = tl.rsqrt(tl.sum(off * off, axis=0) / LONG + eps)
    tl.store(out_ptr + place, (off * scale).to(out_ptr.dtype.element_ty), mask=inside)
    tl.store(mean_ptr + tl.program_id(0), mean)
    tl.store(scale_ptr + tl.program_id(0), scale)


@triton.jit
def _standard_backward(
    grad_ptr, x_ptr, mean_ptr, scale_ptr, out_ptr, LONG: tl.constexpr, WIDE: tl.constexpr
):  # fmt: skip
    place, inside = _row(LONG, WIDE)
    mean, scale = tl.load(mean_ptr + tl.program_id(0)), tl.load(scale_ptr + tl.program_id(0))
    grad = tl.load(grad_ptr + place, mask=inside, other=0.0).to(tl.float32)
    hat = tl.where(inside, (tl.load(x_ptr + place, mask=inside, other=0.0) - mean) * scale, 0.0)
    shift, slope = tl.sum(grad, axis=0) / LONG, tl.sum(grad * hat, axis=0) / LONG
    tl.store(out_ptr + place, scale * (grad - shift - hat * slope), mask=inside)


def _tile(pixels: int, channels: int, size: int) -> tuple[int, int, int]:
    """(channels a program, pixels at a time, warps): from 64 channels on measured on an H200, 160 images, 32 groups.

    Of fewer there is one program an image, hardly one a multiprocessor: more warps are to fill it. With half or a
    quarter of the channels or of the warps a step of ResNet-32 took from 1 % less to 6 % more.
    """
    wide = max(size, min(32 if pixels >= 256 or pixels <= 16 else 64, channels))
    tall = min(triton.next_power_of_2(pixels), max(1, _TILE // wide))
    if channels <= 32:
        return wide, tall, min(16, max(4, wide * tall // 1024))
    return wide, tall, 8 if wide * tall >= 32768 else 4


def _from(thin: int, other: Tensor | None) -> dict[str, int]:
    """The shape of the shortcut's tensor where it is not the norm's own."""
    if other is None or thin == 0:
        return {"THIN": 0, "FROM_PIXELS": 0, "FROM_WIDTH": 0, "FROM_CHANNELS": 0}
    channels, height, width = other.shape[1:]
    return {"THIN": thin, "FROM_PIXELS": height * width, "FROM_WIDTH": width, "FROM_CHANNELS": channels}


def supported(channels: int, groups: int) -> bool:
    """Whether the kernels take this many channels in this many groups."""
    size = channels // groups
    return channels >= 16 and channels & (channels - 1) == 0 and size & (size - 1) == 0 and size <= 256


def norm_forward(x: Tensor, norm: Norm, add: Tensor | None = None, relu: bool = True, thin: int = 0) -> Normed:
    """`plain.norm_forward` of channels-last images, in one kernel."""
    images, channels, height, width = x.shape
    size, pixels = channels // norm.groups, height * width
    wide, tall, warps = _tile(pixels, channels, size)
    if wide * tall == _TILE:  # forward there is less to hold: 31 us instead of 49 with 160 images of 32x32, 64 channels
        warps *= 2
    out = torch.empty_like(x)
    mean, scale = x.new_empty(2, images, channels, dtype=torch.float32).unbind()
    _forward[(images, channels // wide)](
        x, add, norm.weight, norm.bias, out, mean, scale, norm.eps, PIXELS=pixels, CHANNELS=channels,
        SIZE=size, WIDE=wide, TALL=tall, ADD=add is not None, RELU=relu, WIDTH=width, num_warps=warps,
        **_from(thin, add),
    )  # fmt: skip
    return Normed(norm, x, out, mean, scale, relu, add is not None)


def norm_backward(
    saved: Normed, grad: Tensor, more: Tensor | None, part: Tensor, thin: int = 0
) -> tuple[Tensor, Tensor | None]:
    """`plain.norm_backward` of channels-last images, in one kernel."""
    x, norm = saved.x, saved.norm
    images, channels, height, width = x.shape
    size, pixels = channels // norm.groups, height * width
    wide, tall, warps = _tile(pixels, channels, size)
    x_grad = torch.empty_like(x)
    add_grad = torch.empty_like(x) if saved.added else None
    _backward[(images, channels // wide)](
        x, saved.out, grad, more, norm.weight, norm.bias, saved.mean, saved.scale, x_grad, add_grad, part,
        part.stride(0), PIXELS=pixels, CHANNELS=channels, SIZE=size, WIDE=wide, TALL=tall,
        MORE=more is not None, ADD=saved.added, RELU=saved.relu, WIDTH=width, num_warps=warps,
        **_from(thin, more),
    )  # fmt: skip
    return x_grad, add_grad


def standard_forward(rows: Tensor, eps: float, out: Tensor) -> tuple[Tensor, Tensor]:
    """`plain.standard_forward`, in one kernel."""
    count, long = rows.shape
    mean, scale = rows.new_empty(2, count, 1).unbind()
    wide = triton.next_power_of_2(long)
    _standard_forward[(count,)](rows, out, mean, scale, eps, LONG=long, WIDE=wide, num_warps=_warps(wide))
    return mean, scale


def standard_backward(grad: Tensor, rows: Tensor, mean: Tensor, scale: Tensor, out: Tensor) -> None:
    """`plain.standard_backward`, in one kernel."""
    count, long = rows.shape
    wide = triton.next_power_of_2(long)
    _standard_backward[(count,)](grad, rows, mean, scale, out, LONG=long, WIDE=wide, num_warps=_warps(wide))


def _warps(wide: int) -> int:
    """Of a program that holds a row of so many numbers."""
    return min(16, max(1, wide // 256))
