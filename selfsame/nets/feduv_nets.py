"""The three networks of FedUV (its Table 2): handwriting, faces and voices, group norm as printed there.

Each has five stages of convolution, ReLU, max pooling and group norm, then one linear layer: the W of its equation (4),
which has no additive part. FedUV's scaling to the norm sqrt(c) belongs to the method.
"""

from __future__ import annotations

from torch import Tensor, nn

from selfsame.errors import SelfsameError
from selfsame.nets.norm import group_norm

_CHANNELS = (64, 128, 256, 512, 1024)


class FedUVNet(nn.Module):
    """Five stages with the given kernels, paddings and pools, one or two-dimensional as the samples are."""

    def __init__(
        self,
        shape: tuple[int, ...],
        width: int,
        kernels: tuple[int, ...],
        paddings: tuple[int, ...],
        pools: tuple[int, ...],
        groups: int,
    ) -> None:
        super().__init__()
        flat = len(shape) == 2
        least = 1
        for kernel, padding, pool in zip(reversed(kernels), reversed(paddings), reversed(pools), strict=True):
            least = least * pool + kernel - 1 - 2 * padding
        if min(shape[1:]) < least:
            got, wanted = "x".join(map(str, shape[1:])), "x".join([str(least)] * (len(shape) - 1))
            raise SelfsameError(
                f"{'recordings' if flat else 'images'} of {got} are too small, at least {wanted} is needed"
            )
        conv, pooling = (nn.Conv1d, nn.MaxPool1d) if flat else (nn.Conv2d, nn.MaxPool2d)
        stages, before, size = [], shape[0], list(shape[1:])
        for after, kernel, padding, pool in zip(_CHANNELS, kernels, paddings, pools, strict=True):
            layer = conv(before, after, kernel, padding=padding)
            stages.append(nn.Sequential(layer, nn.ReLU(), pooling(pool), group_norm(after, groups)))
            before, size = after, [(one + 2 * padding - kernel + 1) // pool for one in size]
        for one in size:
            before *= one
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(before, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Embeddings (n, D) of images (n, C, H, W) or recordings (n, C, L)."""
        out: Tensor = self.head(self.stages(x).flatten(1))
        return out


def feduv_mnist(shape: tuple[int, int, int], width: int, *, groups: int = 2) -> nn.Module:
    """For MNIST-UV, 28x28 with the digits 2 to 5 as channels: 6.3 million parameters before the last layer.

    `groups` of norms.
    """
    return FedUVNet(shape, width, (3,) * 5, (3, 1, 1, 1, 1), (2,) * 5, groups)


def feduv_celeba(shape: tuple[int, int, int], width: int, *, groups: int = 2) -> nn.Module:
    """For CelebA at 64x64: 6.3 million parameters before the last layer. `groups` of norms."""
    return FedUVNet(shape, width, (3,) * 5, (1,) * 5, (2, 2, 2, 2, 4), groups)


def feduv_voxceleb(shape: tuple[int, int], width: int, *, groups: int = 2) -> nn.Module:
    """For VoxCeleb, 2^14 samples at 8 kHz: 2.5 million parameters before the last layer.

    The padding keeps the length. With the padding of 1 that the table names as its default, seven places would reach
    the last pooling over eight, and the layer FC(1024, c) would have no input. `groups` of norms.
    """
    kernels = (15, 9, 7, 5, 3)
    return FedUVNet(shape, width, kernels, tuple(kernel // 2 for kernel in kernels), (4, 8, 8, 8, 8), groups)
