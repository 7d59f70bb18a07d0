"""Embedding networks by name: samples (n, *shape) to vectors (n, D)."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from selfsame.errors import SelfsameError
from selfsame.fields import check_options, options_of
from selfsame.nets.bag import EmbeddingBag
from selfsame.nets.coupling import batch_coupled
from selfsame.nets.dlib_face import DlibFace
from selfsame.nets.fastresnet import FastResNet34
from selfsame.nets.feduv_nets import feduv_celeba, feduv_mnist, feduv_voxceleb
from selfsame.nets.frozen import freeze
from selfsame.nets.ge2e_voice import GE2EVoice
from selfsame.nets.lenet import LeNet
from selfsame.nets.mel import mel_lenet, mel_resnet34
from selfsame.nets.mlp import Perceptron
from selfsame.nets.mobilefacenet import MobileFaceNet
from selfsame.nets.own import Factory, imported_factory, make
from selfsame.nets.resnet import resnet8, resnet18, resnet20, resnet32, resnet34, resnet56
from selfsame.nets.touchauth import TouchAuth
from selfsame.nets.whitened import with_whitening

__all__ = [
    "NETS",
    "Factory",
    "batch_coupled",
    "build",
    "own_distance",
    "own_rate",
    "own_width",
    "register",
    "takes_full_scale",
]

NETS: dict[str, Factory] = {
    "lenet": LeNet,
    "resnet8": resnet8,
    "resnet20": resnet20,
    "resnet32": resnet32,
    "resnet56": resnet56,
    "resnet18": resnet18,
    "resnet34": resnet34,
    "mobilefacenet": MobileFaceNet,
    "feduv-mnist": feduv_mnist,
    "feduv-celeba": feduv_celeba,
    "feduv-voxceleb": feduv_voxceleb,
    "fast-resnet34": FastResNet34,
    "fast-resnet34-mel": mel_resnet34,
    "lenet-mel": mel_lenet,
    "touchauth": TouchAuth,
    "embedding-bag": EmbeddingBag,
    "mlp": Perceptron,
    "dlib-face": DlibFace,
    "ge2e-voice": GE2EVoice,
}
_OURS = frozenset(NETS)
_IMAGES = "images", ("channels", "height", "width")
_SAMPLES = {  # where they are not images
    "feduv-voxceleb": ("recordings", ("channels", "samples")),
    "fast-resnet34": ("spectrograms", ("1", "mels", "frames")),
    "fast-resnet34-mel": ("recordings", ("1", "samples")),
    "lenet-mel": ("recordings", ("1", "samples")),
    "touchauth": ("touches", ("channels", "events", "features")),
    "embedding-bag": ("sparse rows", ("2", "length")),
    "mlp": ("rows", ("features",)),
    "ge2e-voice": ("recordings", ("1", "samples")),
}


def register(name: str, factory: Factory) -> None:
    """Add a network of your own: ``register("mine", lambda shape, width: MyNet(shape, width))``."""
    if name in _OURS:
        raise SelfsameError(f"network {name!r} is built in; register yours under another name")
    NETS[name] = factory


def takes_full_scale(name: str) -> bool:
    """Whether the network wants samples as they are, full scale 1, and no others: its factory says `full_scale`."""
    return bool(_said(name, "full_scale", False))


def own_width(name: str) -> int:
    """The width that a network's published weights have, as its factory says in `own_width`; 0: any."""
    return int(_said(name, "own_width", 0))


def own_distance(name: str) -> str:
    """How embeddings by a network's published weights are compared: its factory's `own_distance`, or by cosine."""
    return str(_said(name, "own_distance", "cosine"))


def own_rate(name: str) -> int:
    """The samples a second that a network of recordings expects unless its option `rate` says others; 0: has none.

    One of ours has it as the default of that option, another says it in `own_rate`.
    """
    return int(options_of(NETS[name]).get("rate", 0) if name in _OURS else _said(name, "own_rate", 0))


def _said(name: str, what: str, otherwise: Any) -> Any:
    """What the factory of a network says of it, as an attribute."""
    try:
        factory = imported_factory(name) if ":" in name and name not in NETS else NETS.get(name)
    except SelfsameError:
        return otherwise  # said where it is built
    return getattr(factory, what, otherwise)


def size(name: str, shape: tuple[int, ...], width: int, **options: Any) -> int:
    """How many parameters the network has; one of ours is not made for that, however large it would be."""
    place = "meta" if name in _OURS else "cpu"
    return sum(value.numel() for value in build(name, shape, width, place=place, **options).parameters())


def build(
    name: str,
    shape: tuple[int, ...],
    width: int,
    seed: int = 0,
    *,
    place: str = "cpu",
    started: bool = False,
    whitened: bool = False,
    **options: Any,
) -> nn.Module:
    """The network `name` for samples of `shape`, with embeddings of `width` dimensions.

    A name with a colon is an import path, "package.module:Name": a factory(shape, width, **options) of the user's own.
    The parameters depend on the arguments alone: drawn on the CPU, with the caller's generator left as it was; in the
    `place` "meta" they have shapes and no numbers. Batch norms are frozen to what they are at inference; with `started`
    also those that have seen nothing, since their statistics come with the weights to start from. With `whitened` a
    layer of constants stands behind the network, whose numbers come with its weights.
    """
    if name not in NETS and ":" not in name:
        raise SelfsameError(
            f"unknown network {name!r}; the networks are: {', '.join(NETS)}, or package.module:Name for your own"
        )
    if name in _OURS:
        kind, axes = _SAMPLES.get(name, _IMAGES)
        if len(shape) != len(axes) or min(shape) < 1:
            raise SelfsameError(f"{name}: needs {kind} of shape ({', '.join(axes)}), got {tuple(shape)}")
        options = check_options(name, options, options_of(NETS[name]))
    if width < 1:
        raise SelfsameError(f"{name}: the embedding width must be at least 1, got {width}")
    before = torch.get_rng_state()
    try:
        with torch.device(place):
            factory = NETS[name] if name in NETS else imported_factory(name)
            torch.default_generator.manual_seed(seed % 2**63)
            if name in _OURS:
                net = freeze(factory(tuple(shape), width, **options), started)
            else:
                net = make(factory, tuple(shape), width, options, started)
            return with_whitening(net, width) if whitened else net
    except SelfsameError as error:
        raise SelfsameError(f"{name}: {error}") from error
    finally:
        torch.set_rng_state(before)
