"""MobileFaceNet (Chen et al., 2018, Table 1), FedHide's network for 64x64 faces, with group norm."""

from __future__ import annotations

from torch import Tensor, nn

from selfsame.errors import SelfsameError
from selfsame.nets.norm import group_norm

_BOTTLENECKS = ((2, 64, 5, 2), (4, 128, 1, 2), (2, 128, 6, 1), (4, 128, 1, 2), (2, 128, 2, 1))  # t, c, n, s


def _conv(before: int, after: int, kernel: int, groups: int, *, stride: int = 1, deep: bool = False) -> nn.Sequential:
    """A convolution (`deep`: depthwise), norm and PReLU."""
    parts = before if deep else 1
    conv = nn.Conv2d(before, after, kernel, stride=stride, padding=kernel // 2, groups=parts, bias=False)
    return nn.Sequential(conv, group_norm(after, groups), nn.PReLU(after))


class Bottleneck(nn.Module):
    """Wider by 1x1, depthwise 3x3, narrower by 1x1 without activation; a shortcut where the shape stays."""

    def __init__(self, before: int, after: int, expansion: int, stride: int, groups: int) -> None:
        super().__init__()
        inner = before * expansion
        self.widen = _conv(before, inner, 1, groups)
        self.deep = _conv(inner, inner, 3, groups, stride=stride, deep=True)
        self.narrow = nn.Sequential(nn.Conv2d(inner, after, 1, bias=False), group_norm(after, groups))
        self.keeps = stride == 1 and before == after

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.narrow(self.deep(self.widen(x)))
        return x + y if self.keeps else y


class MobileFaceNet(nn.Module):
    """A stem, bottlenecks, 1x1 to 512 channels, a depthwise convolution over all that is left, linear to R^D.

    The global depthwise convolution is as large as its input: 7x7 for faces of 112x112, 4x4 for 64x64. The last layer
    has a bias in place of a norm: a group norm there would fix the length of every embedding. `groups` is for the
    norms, see `group_norm`.
    """

    def __init__(self, shape: tuple[int, int, int], width: int, *, groups: int = 32) -> None:
        super().__init__()
        depth, height, breadth = shape
        if min(height, breadth) < 16:
            raise SelfsameError(f"images of {height}x{breadth} are too small, at least 16x16 is needed")
        self.stem = nn.Sequential(_conv(depth, 64, 3, groups, stride=2), _conv(64, 64, 3, groups, deep=True))
        stages, before = [], 64
        for expansion, channels, number, stride in _BOTTLENECKS:
            layers = []
            for place in range(number):
                layers.append(Bottleneck(before, channels, expansion, stride if place == 0 else 1, groups))
                before = channels
            stages.append(nn.Sequential(*layers))
        self.stages = nn.Sequential(*stages)
        self.last = _conv(before, 512, 1, groups)
        rest = (-(-height // 16), -(-breadth // 16))  # four strides of two, each rounding up
        self.whole = nn.Sequential(nn.Conv2d(512, 512, rest, groups=512, bias=False), group_norm(512, groups))
        self.head = nn.Linear(512, width)

    def forward(self, x: Tensor) -> Tensor:
        """Embeddings (n, D) of faces (n, C, H, W)."""
        out: Tensor = self.head(self.whole(self.last(self.stages(self.stem(x)))).flatten(1))
        return out
