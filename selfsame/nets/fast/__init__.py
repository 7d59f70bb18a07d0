"""Networks whose passes are written out, where that is faster than the module under autograd."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from selfsame.nets.fast.resnet_cuda import FusedResNet
from selfsame.nets.fast.small import small_passes
from selfsame.nets.resnet import ResNet


class Passes(Protocol):
    """The two passes of M networks, each with its own samples; nothing is recorded for autograd.

    The module is the definition, and the oracle of the tests.
    """

    kind: str  # what they are, in words
    shares: bool  # whether the networks may be one row of memory, where they are the same

    def takes(self, theta_P: Tensor, x: Tensor) -> bool:
        """Whether they were made for samples and numbers of this kind."""

    def embed(self, theta_MP: Tensor, x_MB: Tensor) -> Tensor:
        """Embeddings (M, B, D) alone."""

    def forward(self, theta_MP: Tensor, x_MB: Tensor) -> tuple[Tensor, Any]:
        """Embeddings (M, B, D), and what `backward` needs."""

    def backward(self, done: Any, pull_MBD: Tensor) -> list[Tensor]:
        """The derivatives in the network's part of each theta: pieces (M, ...) in theta's order.

        Some may have the lower precision in which they were computed.
        """


@dataclass(frozen=True)
class Load:
    """What is asked of a network: samples of one shape, so many of them in training, as far as that is known."""

    shape: tuple[int, ...]
    samples: int | None = None


def passes_for(
    net: nn.Module,
    shapes: dict[str, torch.Size],
    device: torch.device,
    dtype: torch.dtype,
    autocast: torch.dtype | None,
    load: Load | None,
) -> Passes | None:
    """The written-out passes of a network on a device, if there are any.

    `shapes` are those of the network's tensors, in the order in which they lie in theta.
    """
    if device.type == "cpu" and load is not None and autocast is None:
        return small_passes(net, load.shape, shapes, dtype, load.samples)
    low = device.type == "cuda" and autocast == torch.bfloat16
    if low and isinstance(net, ResNet) and FusedResNet.fits(net):
        return FusedResNet(net, shapes)
    return None
