"""Residual networks (He et al., 2016) with group norm, for images of about 32x32: 3x3 stem, no max pooling.

ResNet-8/20/32/56 are the paper's CIFAR networks (section 4.2): depth 6n + 2, three stages of n blocks with 16, 32 and
64 channels, shortcuts without parameters. ResNet-18/34 have four stages with 64 to 512 channels, projected shortcuts,
and may have the stem that the paper gives them for larger images (table 1): 7x7 and max pooling, each of stride 2.
"""

from __future__ import annotations

from functools import partial

from torch import Tensor, nn

from selfsame.errors import SelfsameError
from selfsame.nets.norm import StandardConv2d, group_norm

Shape = tuple[int, int, int]


class Thin(nn.Module):
    """The shortcut without parameters (option A): every other pixel, zeros as new channels."""

    def __init__(self, stride: int, grow: int) -> None:
        super().__init__()
        self.stride, self.grow = stride, grow

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.grow))


class Block(nn.Module):
    """Two 3x3 convolutions; where the shape changes, the shortcut is projected by 1x1 (option B) or thinned (A)."""

    def __init__(
        self, before: int, after: int, stride: int, groups: int, project: bool, conv: type[nn.Conv2d] = nn.Conv2d
    ) -> None:
        super().__init__()
        self.conv1 = conv(before, after, 3, stride=stride, padding=1, bias=False)
        self.norm1 = group_norm(after, groups)
        self.conv2 = conv(after, after, 3, padding=1, bias=False)
        self.norm2 = group_norm(after, groups)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            if project:
                into = conv(before, after, 1, stride=stride, bias=False)
                self.shortcut = nn.Sequential(into, group_norm(after, groups))
            else:
                self.shortcut = Thin(stride, after - before)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.conv2(self.norm1(self.conv1(x)).relu()))
        out: Tensor = (y + self.shortcut(x)).relu()
        return out


class ResNet(nn.Module):
    """A stem, stages of basic blocks that halve the image and double the channels, average pooling, linear to R^D.

    The stem is 3x3 and keeps the size ("small"), or 7x7 with max pooling, a quarter of each side being left ("large").
    `groups` is for the norms, see `group_norm`. Convolutions start from He's normal distribution, or from PyTorch's own
    ("torch"), which are 0.4 times as long: before a norm only their direction counts, and shorter ones turn faster.
    With `zero_last` each block starts as its shortcut, its last norm having weight 0 (Goyal et al., 2017, section 5.1).
    With `standardise` the kernels are standardised before use, see `StandardConv2d`.
    """

    def __init__(
        self,
        first: int,
        blocks: tuple[int, ...],
        shape: Shape,
        width: int,
        *,
        groups: int,
        project: bool,
        init: str,
        stem: str = "small",
        zero_last: bool = False,
        standardise: bool = False,
    ) -> None:
        super().__init__()
        if init not in ("kaiming", "torch"):
            raise SelfsameError(f"init must be 'kaiming' or 'torch', got {init!r}")
        if stem not in ("small", "large"):
            raise SelfsameError(f"stem must be 'small' or 'large', got {stem!r}")
        large = stem == "large"
        least = 2 ** (len(blocks) - 1) * (4 if large else 1)
        if min(shape[1:]) < least:
            raise SelfsameError(f"images of {shape[1]}x{shape[2]} are too small, at least {least}x{least} is needed")
        side, stride = (7, 2) if large else (3, 1)
        conv = StandardConv2d if standardise else nn.Conv2d
        self.conv = conv(shape[0], first, side, stride=stride, padding=side // 2, bias=False)
        self.norm = group_norm(first, groups)
        self.pool: nn.Module = nn.MaxPool2d(3, stride=2, padding=1) if large else nn.Identity()
        layers, before = [], first
        for stage, number in enumerate(blocks):
            after = first * 2**stage
            for place in range(number):
                layers.append(Block(before, after, 2 if stage > 0 and place == 0 else 1, groups, project, conv))
                before = after
        self.blocks = nn.Sequential(*layers)
        self.head = nn.Linear(before, width)
        for module in self.modules():
            if isinstance(module, nn.Conv2d) and init == "kaiming":
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if isinstance(module, Block) and zero_last:
                nn.init.zeros_(module.norm2.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Embeddings (n, D) of images (n, C, H, W)."""
        x = self.blocks(self.pool(self.norm(self.conv(x)).relu()))
        out: Tensor = self.head(x.mean((2, 3)))
        return out


def _cifar(
    depth: int,
    shape: Shape,
    width: int,
    *,
    groups: int = 8,
    init: str = "kaiming",
    zero_last: bool = False,
    standardise: bool = False,
) -> nn.Module:
    """A CIFAR residual network of three stages, from 16 to 64 channels.

    `groups` of each norm; `init` "kaiming" or "torch"; `zero_last`: each block starts as its shortcut; `standardise`:
    kernels have mean 0 and variance 1.
    """
    blocks = ((depth - 2) // 6,) * 3
    return ResNet(
        16, blocks, shape, width, groups=groups, project=False, init=init, zero_last=zero_last, standardise=standardise
    )


def _wide(
    blocks: tuple[int, ...],
    shape: Shape,
    width: int,
    *,
    groups: int = 32,
    init: str = "kaiming",
    stem: str = "small",
    zero_last: bool = False,
    standardise: bool = False,
) -> nn.Module:
    """A residual network of four stages, from 64 to 512 channels.

    As the smaller ones, and `stem`: "small" is 3x3 at full size, "large" 7x7 and max pooling. `groups` of each norm;
    `init` "kaiming" or "torch"; `zero_last`: each block starts as its shortcut; `standardise`: kernels have mean 0 and
    variance 1.
    """
    return ResNet(
        64,
        blocks,
        shape,
        width,
        groups=groups,
        project=True,
        init=init,
        stem=stem,
        zero_last=zero_last,
        standardise=standardise,
    )


resnet8 = partial(_cifar, 8)  # 0.08 million parameters
resnet20 = partial(_cifar, 20)  # 0.27
resnet32 = partial(_cifar, 32)  # 0.46
resnet56 = partial(_cifar, 56)  # 0.85
resnet18 = partial(_wide, (2, 2, 2, 2))  # 11.2 before the last layer
resnet34 = partial(_wide, (3, 4, 6, 3))  # 21.3
