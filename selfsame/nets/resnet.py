"""ResNet-18 and ResNet-34 (He et al., 2016) for images of about 32x32: 3x3 stem, no max pooling, group norm."""

from __future__ import annotations

from torch import Tensor, nn

from selfsame.errors import SelfsameError
from selfsame.nets.norm import group_norm


class BasicBlock(nn.Module):
    """Two 3x3 convolutions; where the shape changes, the shortcut is a 1x1 convolution with norm (option B)."""

    def __init__(self, before: int, after: int, stride: int, groups: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False)
        self.norm1 = group_norm(after, groups)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.norm2 = group_norm(after, groups)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            project = nn.Conv2d(before, after, 1, stride=stride, bias=False)
            self.shortcut = nn.Sequential(project, group_norm(after, groups))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.conv2(self.norm1(self.conv1(x)).relu()))
        out: Tensor = (y + self.shortcut(x)).relu()
        return out


class ResNet(nn.Module):
    """Four stages of basic blocks with 64, 128, 256 and 512 channels, average pooling, linear to R^D."""

    def __init__(
        self, blocks: tuple[int, int, int, int], shape: tuple[int, int, int], width: int, *, groups: int = 32
    ) -> None:
        super().__init__()
        if min(shape[1:]) < 8:
            raise SelfsameError(f"images of {shape[1]}x{shape[2]} are too small, at least 8x8 is needed")
        self.conv = nn.Conv2d(shape[0], 64, 3, padding=1, bias=False)
        self.norm = group_norm(64, groups)
        layers, before = [], 64
        for stage, (after, number) in enumerate(zip((64, 128, 256, 512), blocks)):
            for place in range(number):
                layers.append(BasicBlock(before, after, 2 if stage > 0 and place == 0 else 1, groups))
                before = after
        self.blocks = nn.Sequential(*layers)
        self.head = nn.Linear(before, width)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """Embeddings (n, D) of images (n, C, H, W)."""
        x = self.blocks(self.norm(self.conv(x)).relu())
        out: Tensor = self.head(x.mean((2, 3)))
        return out


def resnet18(shape: tuple[int, int, int], width: int, *, groups: int = 32) -> nn.Module:
    """The residual network of 18 layers, 11.2 million parameters before the last layer."""
    return ResNet((2, 2, 2, 2), shape, width, groups=groups)


def resnet34(shape: tuple[int, int, int], width: int, *, groups: int = 32) -> nn.Module:
    """The residual network of 34 layers, 21.3 million parameters before the last layer."""
    return ResNet((3, 4, 6, 3), shape, width, groups=groups)
