"""Which layers stop a network from being trained one client at a time and all together with the same result."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm

_RANDOM_BY_NAME = ("DropPath", "StochasticDepth")  # of timm and torchvision, which need not be installed


def batch_coupled(net: nn.Module) -> str | None:
    """The name and type of the first layer that couples samples or is random in training, or None.

    Such a layer makes a sample's embedding depend on more than the sample and the parameters.
    """
    for name, module in net.named_modules():
        if _couples(module) or _random(module):
            kind = type(module).__name__
            return f"{name} ({kind})" if name else kind
    return None


def _couples(module: nn.Module) -> bool:
    if isinstance(module, _InstanceNorm):
        return bool(module.track_running_stats)
    return isinstance(module, _BatchNorm)  # SyncBatchNorm and the lazy ones are among its kinds


def _random(module: nn.Module) -> bool:
    if isinstance(module, _DropoutNd):
        return module.p > 0
    if isinstance(module, nn.RNNBase | nn.MultiheadAttention):
        return module.dropout > 0
    if isinstance(module, nn.RReLU):
        return module.lower != module.upper
    return isinstance(module, nn.FractionalMaxPool2d | nn.FractionalMaxPool3d) or (
        type(module).__name__ in _RANDOM_BY_NAME
    )
