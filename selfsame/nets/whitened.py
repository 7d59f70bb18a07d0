"""A layer behind a network that makes the directions short in which one person's embeddings differ from each other.

x -> L'(x / |x| - mu), brought to length one. It holds constants: mu and L are named among the network's parameters,
and never learn. The network's own names stay as they are.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from selfsame.errors import SelfsameError

MEAN, MATRIX = "whitening_mean", "whitening_matrix"
LAYER = (MEAN, MATRIX)


def with_whitening(net: nn.Module, width: int) -> nn.Module:
    """The network, itself, with the layer behind it; until it is given other numbers, that takes lengths alone."""
    if any(hasattr(net, name) for name in LAYER):
        raise SelfsameError(f"has parts named {' or '.join(LAYER)} already, which whitening would add")
    net.register_parameter(MEAN, nn.Parameter(torch.zeros(width), requires_grad=False))
    net.register_parameter(MATRIX, nn.Parameter(torch.eye(width), requires_grad=False))
    net.register_forward_hook(_behind)
    return net


def _behind(net: nn.Module, _given: Any, out: Tensor) -> Tensor:
    return whitened(out, getattr(net, MEAN), getattr(net, MATRIX))


def whitened(emb_SD: Tensor, mean_D: Tensor, matrix_DD: Tensor) -> Tensor:
    """Embeddings behind the layer."""
    with torch.autocast(emb_SD.device.type, enabled=False):
        emb_SD = F.normalize(emb_SD.to(mean_D.dtype), dim=-1)
        return F.normalize((emb_SD - mean_D) @ matrix_DD, dim=-1)
