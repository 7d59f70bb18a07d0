"""Which of a network's parameters learn: all, some by name, or matrices through adapters of low rank."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.instancenorm import _InstanceNorm

from selfsame.errors import SelfsameError
from selfsame.nets.frozen import ChannelAffine
from selfsame.nets.probing import last_used
from selfsame.nets.tied import further_names
from selfsame.nets.whitened import LAYER

PRESETS = ("all", "last", "norms")
UP, DOWN = ".up", ".down"  # of the matrix that an adapter belongs to
_NORMS = (nn.GroupNorm, nn.LayerNorm, nn.RMSNorm, _InstanceNorm, ChannelAffine)
_ADAPTED = (nn.Linear, _ConvNd, nn.RNNBase)
_NAMED = 6  # parameters that an error names


@dataclass(frozen=True)
class Learned:
    """What learns of a network; the rest is constant."""

    names: tuple[str, ...]  # parameters that learn themselves
    ranks: dict[str, int] = field(default_factory=dict)  # matrices that learn through an adapter, and its rank
    seed: int = 0  # of the adapters' first numbers

    def adapters(self, net: nn.Module) -> dict[str, Tensor]:
        """The adapters' first numbers: a product of zero, so that the network is the one that it starts from."""
        draw = torch.Generator().manual_seed(self.seed % 2**63)
        parameters = dict(net.named_parameters())
        out = {}
        for name, rank in self.ranks.items():
            rows, columns = _sides(parameters[name])
            out[name + UP] = torch.zeros(rows, rank)
            out[name + DOWN] = torch.randn(rank, columns, generator=draw) / math.sqrt(columns)
        return out


def choose_learned(
    net: nn.Module, patterns: tuple[str, ...], rank: int, shape: tuple[int, ...], seed: int = 0
) -> Learned:
    """The parameters that these patterns and presets name, and adapters of `rank` for the other matrices.

    No pattern means all parameters, or, with adapters, none. `shape` is that of a sample. A parameter that several
    layers share has its first name.
    """
    names = [name for name, _ in net.named_parameters() if name not in LAYER]
    patterns = patterns or (() if rank else ("all",))
    chosen = {name for pattern in patterns for name in _fitting(net, names, pattern, shape)}
    ranks = _ranks(net, chosen, rank) if rank else {}
    if rank and not ranks:
        raise SelfsameError("net.adapters: no matrix of a linear, convolution or recurrent layer is left to adapt")
    matrices = {name: value for name, value in net.named_parameters() if name in ranks}
    held = sum(ranks[name] * sum(_sides(value)) for name, value in matrices.items())
    whole = sum(value.numel() for value in matrices.values())
    if ranks and held >= whole:
        raise SelfsameError(
            f"net.adapters: of rank {rank} they hold {held:,} numbers and their matrices {whole:,}; take a smaller "
            "rank, or let the matrices learn (net.train)"
        )
    return Learned(tuple(name for name in names if name in chosen), ranks, seed)


def fits(name: str, pattern: str) -> bool:
    """Whether a parameter's name fits a pattern, or belongs to the layer of that name."""
    return fnmatchcase(name, pattern) or name.startswith(f"{pattern}.")


def _fitting(net: nn.Module, names: list[str], pattern: str, shape: tuple[int, ...]) -> list[str]:
    if pattern == "all":
        return names
    if pattern == "last":
        found = _last(net, shape)
    elif pattern == "norms":
        found = [name for module, name, _ in _owned(net) if _normalises(module, name)]
    else:
        further = further_names(net)
        found = [further.get(name, name) for name in (*names, *further) if fits(name, pattern)]
    if not found:
        few = ", ".join(names[:_NAMED]) + (", ..." if len(names) > _NAMED else "")
        raise SelfsameError(f"net.train: nothing fits {pattern!r}; known: {', '.join(PRESETS)}, and names: {few}")
    return found


def _owned(net: nn.Module) -> Iterator[tuple[nn.Module, str, Tensor]]:
    """Every parameter that may learn, with each module that holds it."""
    further = further_names(net)
    for place, module in net.named_modules():
        for own, value in module.named_parameters(recurse=False):
            name = f"{place}.{own}" if place else own
            if name not in LAYER:
                yield module, further.get(name, name), value


def _normalises(module: nn.Module, name: str) -> bool:
    """Whether this parameter is a gain or a shift of a norm: PyTorch's, or one that is called so and has no matrix."""
    if isinstance(module, _NORMS) or name.rpartition(".")[2] in getattr(module, "frozen_norm", ()):
        return True
    named = "norm" in type(module).__name__.lower()
    return named and all(value.dim() < 2 for value in module.parameters(recurse=False))


def _last(net: nn.Module, shape: tuple[int, ...]) -> list[str]:
    """The parameters of the layer whose matrix a pass uses last, and those that it uses from there on.

    Of a recurrent layer those of its top; of a module that holds other layers too, not what it uses before them.
    """
    owned = list(_owned(net))
    when = last_used(net, shape)
    if not when:  # compiled modules do not show what they do: in the order in which layers are declared
        when = {value: place for place, (*_, value) in enumerate(owned)}
    matrices = [
        (when[value], place)
        for place, (module, name, value) in enumerate(owned)
        if value.dim() > 1 and value in when and not _normalises(module, name)
    ]
    begin, place = max(matrices, default=(0, 0))
    final = owned[place][0]
    whole = not any(True for child in final.children() for _ in child.parameters())

    def learns(module: nn.Module, name: str, value: Tensor) -> bool:
        if module is final and isinstance(module, nn.RNNBase):
            return name.removesuffix("_reverse").endswith(f"_l{module.num_layers - 1}")
        return when.get(value, -1) >= begin or (module is final and whole)

    return [name for module, name, value in owned if learns(module, name, value)]


def _ranks(net: nn.Module, chosen: set[str], rank: int) -> dict[str, int]:
    matrices = {name: value for module, name, value in _owned(net) if isinstance(module, _ADAPTED) and value.dim() > 1}
    return {name: min(rank, *_sides(value)) for name, value in matrices.items() if name not in chosen}


def _sides(value: Tensor) -> tuple[int, int]:
    """A matrix, or kernels (O, I, *K) as one of O rows."""
    return value.shape[0], value[0].numel()
