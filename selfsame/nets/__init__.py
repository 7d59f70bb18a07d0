"""Embedding networks by name: images (n, C, H, W) to vectors (n, D)."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from selfsame.errors import SelfsameError
from selfsame.nets.check import batch_coupled
from selfsame.nets.lenet import LeNet
from selfsame.nets.resnet import resnet8, resnet18, resnet20, resnet32, resnet34, resnet56
from selfsame.options import check_options, options_of

__all__ = ["NETS", "Factory", "batch_coupled", "build", "register"]

Factory = Callable[..., nn.Module]  # factory(shape, width, **options)

NETS: dict[str, Factory] = {
    "lenet": LeNet,
    "resnet8": resnet8,
    "resnet20": resnet20,
    "resnet32": resnet32,
    "resnet56": resnet56,
    "resnet18": resnet18,
    "resnet34": resnet34,
}
_OURS = frozenset(NETS)


def register(name: str, factory: Factory) -> None:
    """Add a network of your own: ``register("mine", lambda shape, width: MyNet(shape, width))``."""
    if name in _OURS:
        raise SelfsameError(f"network {name!r} is built in; register yours under another name")
    NETS[name] = factory


def build(name: str, shape: tuple[int, ...], width: int, seed: int = 0, **options: Any) -> nn.Module:
    """The network `name` for samples of `shape`, with embeddings of `width` dimensions.

    Its parameters depend on the arguments alone: drawn on the CPU, with the caller's generator left as it was.
    """
    if name not in NETS:
        raise SelfsameError(f"unknown network {name!r}; the networks are: {', '.join(NETS)}")
    if name in _OURS and (len(shape) != 3 or min(shape) < 1):
        raise SelfsameError(f"{name}: needs images of shape (channels, height, width), got {tuple(shape)}")
    if width < 1:
        raise SelfsameError(f"{name}: the embedding width must be at least 1, got {width}")
    factory = NETS[name]
    if name in _OURS:
        options = check_options(name, options, options_of(factory))
    else:
        _check_names(name, factory, options)
    before = torch.get_rng_state()
    try:
        torch.default_generator.manual_seed(seed % 2**63)
        with torch.device("cpu"):
            net = factory(tuple(shape), width, **options)
            if name not in _OURS:
                _check_output(name, net, shape, width)
    except SelfsameError as error:
        raise SelfsameError(f"{name}: {error}") from error
    finally:
        torch.set_rng_state(before)
    return net


def _check_names(name: str, factory: Factory, options: dict[str, Any]) -> None:
    """Whether a registered factory takes these options; their types are its own affair."""
    try:
        inspect.signature(factory).bind(None, None, **options)
    except TypeError as error:
        raise SelfsameError(f"{name}: called as factory(shape, width, **options), but {error}") from error


def _check_output(name: str, net: object, shape: tuple[int, ...], width: int) -> None:
    """One forward pass, so that a wrong width is found here and not in the middle of a run."""
    if not isinstance(net, nn.Module):
        raise SelfsameError(f"the registered factory must return an nn.Module, got {type(net).__name__}")
    like = next(net.parameters(), torch.empty(0))
    try:
        with torch.no_grad():
            out = net(torch.zeros(2, *shape, dtype=like.dtype))
    except Exception as error:
        raise SelfsameError(
            f"fails on samples of shape {tuple(shape)}: {' '.join(str(error).split())[:200]}"
        ) from error
    if not isinstance(out, torch.Tensor) or tuple(out.shape) != (2, width):
        got = tuple(out.shape) if isinstance(out, torch.Tensor) else type(out).__name__
        raise SelfsameError(f"two samples must give a tensor of shape (2, {width}), got {got}")
