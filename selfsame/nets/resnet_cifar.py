"""The small residual networks for CIFAR (He et al., 2016, section 4.2), with group norm in place of batch norm."""

from __future__ import annotations

from torch import Tensor, nn

from selfsame.errors import SelfsameError
from selfsame.nets.norm import group_norm


class Block(nn.Module):
    """Two 3x3 convolutions and a shortcut without parameters (option A): every other pixel, zeros as new channels."""

    def __init__(self, before: int, after: int, stride: int, groups: int) -> None:
        super().__init__()
        self.stride = stride
        self.grow = after - before
        self.conv1 = nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False)
        self.norm1 = group_norm(after, groups)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.norm2 = group_norm(after, groups)

    def forward(self, x: Tensor) -> Tensor:
        shortcut = nn.functional.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.grow))
        y = self.norm2(self.conv2(self.norm1(self.conv1(x)).relu()))
        return (y + shortcut).relu()


class CifarResNet(nn.Module):
    """Depth 6n + 2: a 3x3 stem, three stages of n blocks with 16, 32 and 64 channels, average pooling, linear to R^D.

    `groups` is for the norms, see `group_norm`: 8 make groups of 2, 4 and 8 channels in the three stages.
    """

    def __init__(self, depth: int, shape: tuple[int, int, int], width: int, *, groups: int = 8) -> None:
        super().__init__()
        if min(shape[1:]) < 4:
            raise SelfsameError(f"images of {shape[1]}x{shape[2]} are too small, at least 4x4 is needed")
        self.conv = nn.Conv2d(shape[0], 16, 3, padding=1, bias=False)
        self.norm = group_norm(16, groups)
        blocks, before = [], 16
        for stage, after in enumerate((16, 32, 64)):
            for number in range((depth - 2) // 6):
                blocks.append(Block(before, after, 2 if stage > 0 and number == 0 else 1, groups))
                before = after
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(before, width)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """Embeddings (n, D) of images (n, C, H, W)."""
        x = self.blocks(self.norm(self.conv(x)).relu())
        out: Tensor = self.head(x.mean((2, 3)))
        return out


def resnet8(shape: tuple[int, int, int], width: int, *, groups: int = 8) -> nn.Module:
    """The CIFAR residual network of 8 layers, 0.08 million parameters."""
    return CifarResNet(8, shape, width, groups=groups)


def resnet20(shape: tuple[int, int, int], width: int, *, groups: int = 8) -> nn.Module:
    """The CIFAR residual network of 20 layers, 0.27 million parameters."""
    return CifarResNet(20, shape, width, groups=groups)


def resnet32(shape: tuple[int, int, int], width: int, *, groups: int = 8) -> nn.Module:
    """The CIFAR residual network of 32 layers, 0.46 million parameters."""
    return CifarResNet(32, shape, width, groups=groups)


def resnet56(shape: tuple[int, int, int], width: int, *, groups: int = 8) -> nn.Module:
    """The CIFAR residual network of 56 layers, 0.85 million parameters."""
    return CifarResNet(56, shape, width, groups=groups)
