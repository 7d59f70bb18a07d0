"""Norms over a batch as what they are at inference: a gain and a shift for each channel, which mix no samples."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parameter import is_lazy

from selfsame.errors import SelfsameError

Tensors = dict[str, Tensor]
_MEAN, _VARIANCE, _COUNT = "running_mean", "running_var", "num_batches_tracked"


class ChannelAffine(nn.Module):
    """Channel c of x as gain_c * x + shift_c; `eps` is that of the norm whose statistics a file of weights may hold."""

    def __init__(self, weight: Tensor, bias: Tensor, eps: float) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(weight), nn.Parameter(bias)
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = (-1, *(1 for _ in x.shape[2:]))
        return x * self.weight.reshape(wide) + self.bias.reshape(wide)

    def extra_repr(self) -> str:
        return str(len(self.weight))


def freeze(net: nn.Module, unseen: bool = False) -> nn.Module:
    """The network with every norm that has running statistics replaced by what it is at inference.

    A norm without statistics of data stays as it is, and couples samples, unless `unseen` says that they come later.
    """
    if _frozen_here(net, unseen):
        return _inference(net)
    made: dict[nn.Module, nn.Module] = {}  # a norm that stands in several places is frozen once
    for module in list(net.modules()):
        for name, child in list(module._modules.items()):
            if child is not None and _frozen_here(child, unseen):
                if child not in made:
                    made[child] = _inference(child)
                setattr(module, name, made[child])
    return net


def _frozen_here(module: nn.Module, unseen: bool) -> bool:
    if not isinstance(module, _NormBase) or module.running_mean is None or is_lazy(module.running_mean):
        return False
    return unseen or module.running_mean.is_meta or _has_seen(module)


def check_norms(net: nn.Module, x: Tensor, unseen: bool = False) -> Any:
    """What the network gives at inference for these samples, if its norms are what freezing takes them for.

    Each is tried with statistics, gains and shifts of every kind, on values as it is given them: one with a forward
    pass of its own, which does more, is refused by name.
    """
    shapes: dict[nn.Module, torch.Size] = {}

    def hear(module: nn.Module, given: tuple[Any, ...]) -> None:
        if given and isinstance(given[0], Tensor):
            shapes[module] = given[0].shape

    norms = {module: name for name, module in net.named_modules() if _frozen_here(module, unseen)}
    hooks = [module.register_forward_pre_hook(hear) for module in norms]
    try:
        with at_inference(net), torch.no_grad():
            out = net(x)
    finally:
        for hook in hooks:
            hook.remove()
    for module, shape in shapes.items():
        if not _frozen_well(module, shape, x.dtype):
            kind = f"{norms[module]} ({type(module).__name__})" if norms[module] else type(module).__name__
            raise SelfsameError(
                f"norm {kind} cannot be frozen: in eval() it is not the gain and the shift for each channel that its "
                "statistics give; replace it by PyTorch's own, or by a layer that mixes no samples"
            )
    return out


@contextmanager
def at_inference(net: nn.Module) -> Iterator[None]:
    """Every layer as `eval()` leaves it, and afterwards as it was."""
    modes = [(module, module.training) for module in net.modules()]
    try:
        for module, _ in modes:
            module.training = False
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def alike(one: Tensor, two: Tensor) -> bool:
    """Whether two outputs are the same but for rounding."""
    close = 1e-3 * float(one.abs().max().nan_to_num()) + 1e-6 if one.numel() else 0.0
    return one.shape == two.shape and torch.allclose(one, two, rtol=0, atol=close, equal_nan=True)


@torch.no_grad()
def _frozen_well(module: nn.Module, shape: torch.Size, dtype: torch.dtype) -> bool:
    """Whether a copy of the norm, with other numbers, gives in eval() what it gives frozen."""
    trial = copy.deepcopy(module).train(False)
    assert isinstance(trial, _NormBase)
    for name, value in trial.state_dict().items():
        wave = _wave(value.numel(), len(name)).reshape(value.shape)
        if value.is_floating_point():  # variances are positive, gains of either sign
            value.copy_(1 + wave / 2 if name == _VARIANCE else 1.5 * wave)
    x = _wave(shape.numel(), 1).reshape(shape).to(dtype)
    found = trial(x.clone())
    return isinstance(found, Tensor) and alike(found, _inference(trial)(x))


def _wave(count: int, pace: int) -> Tensor:
    """Numbers from -1 to 1 that do not repeat."""
    return (torch.arange(count, dtype=torch.float64) * pace + 0.5).sin()


def _has_seen(module: _NormBase) -> bool:
    """Whether the statistics are other than those of a norm that has just been made."""
    assert module.running_mean is not None and module.running_var is not None
    return bool((module.running_mean != 0).any() or (module.running_var != 1).any())


def _inference(module: nn.Module) -> ChannelAffine:
    assert isinstance(module, _NormBase)
    held = {name: value.detach() for name, value in module.state_dict().items()}
    return ChannelAffine(*_folded(held, module.eps), module.eps)


def _folded(held: Mapping[str, Tensor], eps: float) -> tuple[Tensor, Tensor]:
    """(gain, shift) of a norm: gain = weight / sqrt(var + eps), shift = bias - mean * gain."""
    mean, variance = held[_MEAN].double(), held[_VARIANCE].double()
    weight, bias = held.get("weight", torch.ones_like(mean)), held.get("bias", torch.zeros_like(mean))
    gain = weight.double() / (variance + eps).sqrt()
    dtype = held[_MEAN].dtype
    return gain.to(dtype), (bias.double() - mean * gain).to(dtype)


def fold(net: nn.Module, tensors: Mapping[str, Tensor]) -> Tensors:
    """A file's tensors with the statistics of frozen norms folded into gains and shifts."""
    out = dict(tensors)
    for name, module in net.named_modules():
        place = f"{name}." if name else ""
        if not isinstance(module, ChannelAffine) or not {place + _MEAN, place + _VARIANCE} <= set(out):
            continue
        known = ("weight", "bias", _MEAN, _VARIANCE, _COUNT)
        held = {key: out.pop(place + key) for key in known if place + key in out}
        if len({value.shape for key, value in held.items() if key != _COUNT}) > 1:
            out |= {place + key: value for key, value in held.items() if key in ("weight", "bias")}
            continue  # said where shapes are compared
        out[place + "weight"], out[place + "bias"] = _folded(held, module.eps)
    return out


def without_statistics(net: nn.Module, wanted: Collection[str], names: Collection[str]) -> list[str]:
    """The statistics of frozen norms that a file lacks, where it has others of the parameters that are wanted of it."""
    if not any(name in names for name in wanted):
        return []
    norms = [f"{name}." if name else "" for name, module in net.named_modules() if isinstance(module, ChannelAffine)]
    norms = [place for place in norms if place + "weight" in wanted or place + "bias" in wanted]
    return [place + kind for place in norms for kind in (_MEAN, _VARIANCE) if place + kind not in names]
