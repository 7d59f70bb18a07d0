"""Parameters that several layers share: one tensor under several names, of which the first counts."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from selfsame.errors import SelfsameError


def further_names(net: nn.Module) -> dict[str, str]:
    """Every further name of a shared parameter, and its first: that by which `named_parameters` calls it."""
    first: dict[nn.Parameter, str] = {}
    named = net.named_parameters(remove_duplicate=False)
    return {name: first[value] for name, value in named if first.setdefault(value, name) != name}


def tie(net: nn.Module, further: Mapping[str, str]) -> None:
    """Let these names stand for the same parameters again: moving a network elsewhere takes them apart."""
    for name, first in further.items():
        place, _, own = name.rpartition(".")
        setattr(net.get_submodule(place), own, net.get_parameter(first))


@torch.no_grad()
def fill(net: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copy tensors into the parameters of these names; `load_state_dict` would ask for the further names too."""
    for name, value in net.named_parameters():
        if name in tensors:
            value.copy_(tensors[name])


def under_first_names(net: nn.Module, tensors: Mapping[str, Tensor], where: str) -> dict[str, Tensor]:
    """A file's tensors, each under the first name that the network has for it, also where its layer is shared."""
    layers: dict[nn.Module, str] = {}
    places = {name: layers.setdefault(layer, name) for name, layer in net.named_modules(remove_duplicate=False)}
    further = further_names(net)
    out: dict[str, Tensor] = {}
    found: dict[str, str] = {}
    for name, value in tensors.items():
        place, dot, own = name.rpartition(".")
        first = further.get(name) or places.get(place, place) + dot + own
        other = out.setdefault(first, value)
        if value.shape != other.shape or not bool((value == other).all()):
            raise SelfsameError(f"{where}: {found[first]} and {name} are one tensor in the network, and differ")
        found.setdefault(first, name)
    return out
