"""LeNet as in Deep SVDD (Ruff et al., 2018) and FedMetric, with group norm in place of batch norm."""

from __future__ import annotations

from torch import Tensor, nn

from selfsame.errors import SelfsameError
from selfsame.nets.norm import group_norm


class LeNet(nn.Module):
    """Two 5x5 convolutions, each with norm, leaky ReLU and 2x2 max pooling, then one linear layer to R^D.

    `channels` are those of the two. Without `bias` there is no additive parameter anywhere, as Deep SVDD needs: with
    one, the network could map everything to the centre. `groups` is for the norms, see `group_norm`; two
    leave each channel its own strength.
    """

    def __init__(
        self,
        shape: tuple[int, int, int],
        width: int,
        *,
        channels: tuple[int, ...] = (8, 4),
        bias: bool = True,
        groups: int = 2,
    ) -> None:
        super().__init__()
        if len(channels) != 2 or min(channels) < 1:
            raise SelfsameError(f"channels must be two positive whole numbers, got {list(channels)}")
        depth, height, breadth = shape
        if min(height, breadth) < 4:
            raise SelfsameError(f"images of {height}x{breadth} are too small, at least 4x4 is needed")
        first, second = channels
        self.conv1 = nn.Conv2d(depth, first, 5, padding=2, bias=bias)
        self.norm1 = group_norm(first, groups, affine=bias)
        self.conv2 = nn.Conv2d(first, second, 5, padding=2, bias=bias)
        self.norm2 = group_norm(second, groups, affine=bias)
        self.head = nn.Linear(second * (height // 4) * (breadth // 4), width, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """Embeddings (n, D) of images (n, C, H, W)."""
        # Leaky ReLU keeps the order, so pooling first gives the same with a quarter of the work.
        x = nn.functional.leaky_relu(nn.functional.max_pool2d(self.norm1(self.conv1(x)), 2))
        x = nn.functional.leaky_relu(nn.functional.max_pool2d(self.norm2(self.conv2(x)), 2))
        out: Tensor = self.head(x.flatten(1))
        return out
