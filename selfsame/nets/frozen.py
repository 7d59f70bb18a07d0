"""Norms over a batch as what they are at inference: a gain and a shift for each channel, which mix no samples."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parameter import is_lazy

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
    for name, child in net.named_children():
        setattr(net, name, freeze(child, unseen))
    return net


def _frozen_here(module: nn.Module, unseen: bool) -> bool:
    if not isinstance(module, _NormBase) or module.running_mean is None or is_lazy(module.running_mean):
        return False
    return unseen or module.running_mean.is_meta or _has_seen(module)


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


def without_statistics(net: nn.Module, names: Collection[str]) -> list[str]:
    """The statistics of frozen norms that are not among a file's names, where something else of the network is."""
    own = {name for name, _ in net.named_parameters()}
    if own.isdisjoint(names):
        return []
    norms = [f"{name}." if name else "" for name, module in net.named_modules() if isinstance(module, ChannelAffine)]
    return [place + kind for place in norms for kind in (_MEAN, _VARIANCE) if place + kind not in names]
