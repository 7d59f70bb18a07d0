"""A network of a user's own: named in a recipe by where Python finds it, and tried out before a run begins."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from selfsame.errors import SelfsameError
from selfsame.fields import imported, in_one_line, short_name
from selfsame.nets.coupling import batch_coupled
from selfsame.nets.frozen import alike, check_norms, freeze
from selfsame.nets.probing import probe

Factory = Callable[..., nn.Module]  # factory(shape, width, **options)


def imported_factory(path: str) -> Factory:
    """The factory at "package.module:Name"; importing runs the module."""
    factory: Factory = imported(path, "network")
    if not callable(factory):
        name = short_name(path)
        raise SelfsameError(f"must be callable as {name}(shape, width, **options), got a {type(factory).__name__}")
    return factory


def make(
    factory: Factory, shape: tuple[int, ...], width: int, options: dict[str, Any], started: bool = False
) -> nn.Module:
    """The factory's network, after a forward pass that shows whether it can be trained here.

    Its batch norms are frozen, if they have seen data or, where the network is `started`, will have.
    """
    _check_signature(factory, options)
    try:
        net = factory(shape, width, **options)
    except SelfsameError:
        raise
    except Exception as error:
        raise SelfsameError(f"fails to build for samples of shape {shape}: {in_one_line(error)}") from error
    if not isinstance(net, nn.Module):
        raise SelfsameError(f"the factory must return an nn.Module, got {type(net).__name__}")
    if next(net.parameters(), None) is None:
        raise SelfsameError("has no parameters to train")
    x = probe(net, shape)
    wanted = _tried(lambda: check_norms(net, x, started), x)
    net = freeze(net, started)
    _check_structure(net)
    _check_output(net, x, width, wanted)
    return net


def _check_signature(factory: Factory, options: dict[str, Any]) -> None:
    """Whether the factory takes these options; their types are its own affair."""
    try:
        signature = inspect.signature(factory)
    except ValueError:
        return  # some functions written in C do not say what they take
    try:
        signature.bind(None, None, **options)
    except TypeError as error:
        raise SelfsameError(f"called as factory(shape, width, **options), but {error}") from error


def _check_structure(net: nn.Module) -> None:
    coupled = batch_coupled(net)
    if coupled is not None:
        raise SelfsameError(
            f"layer {coupled} makes samples depend on one another or on chance; use group norm and no dropout, or, for "
            "a batch norm, weights to start from (net.start), with which it is frozen"
        )
    buffer = next((name for name, _ in net.named_buffers()), None)
    if buffer is not None:
        raise SelfsameError(f"buffer {buffer!r} would be lost, parameters alone are kept; compute it in forward")


def _check_output(net: nn.Module, x: Tensor, width: int, wanted: Any) -> None:
    """Two samples together and one by one, so that a wrong width or a hidden coupling is found before a run.

    `wanted` is what the factory's network gives for them in eval().
    """
    before = torch.get_rng_state()
    together = _embed(net, x)
    if not isinstance(together, Tensor) or tuple(together.shape) != (2, width):
        got = tuple(together.shape) if isinstance(together, Tensor) else type(together).__name__
        raise SelfsameError(f"two samples must give a tensor of shape (2, {width}), got {got}")
    if not torch.equal(torch.get_rng_state(), before):
        raise SelfsameError("draws at random in its forward pass, as dropout does in training; leave that out")
    if not alike(together, torch.cat([_embed(net, x[:1]), _embed(net, x[1:])])):
        raise SelfsameError("a sample's embedding changes with the other samples of its batch, or from call to call")
    if not isinstance(wanted, Tensor) or not alike(wanted, together):
        raise SelfsameError("gives something else in training than in eval(), and it is trained and used as one thing")


def _embed(net: nn.Module, x: Tensor) -> Any:
    with torch.no_grad():
        return _tried(lambda: net(x), x)


def _tried(work: Callable[[], Any], x: Tensor) -> Any:
    try:
        return work()
    except SelfsameError:
        raise
    except Exception as error:
        raise SelfsameError(f"fails on samples of shape {tuple(x.shape[1:])}: {in_one_line(error)}") from error
