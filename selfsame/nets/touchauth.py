"""The network of TouchAuth (FDML, appendix): sequences of touch events on a screen, without any norm."""

from __future__ import annotations

from torch import Tensor, nn

from selfsame.errors import SelfsameError


class TouchAuth(nn.Module):
    """A convolution over the features of each event, three over its channels, one pooling over time, linear to R^D.

    The paper's samples are (1, 30, 10): 30 events of 10 features.
    """

    def __init__(self, shape: tuple[int, int, int], width: int) -> None:
        super().__init__()
        depth, events, features = shape
        if events < 3:
            raise SelfsameError(f"a sample of {events} events is too short, at least 3 are needed")
        self.conv1 = nn.Conv2d(depth, 64, (1, features))
        self.conv2 = nn.Conv2d(64, 128, 1)
        self.conv3 = nn.Conv2d(128, 256, 1)
        self.conv4 = nn.Conv2d(256, 256, 1)
        self.head = nn.Linear(256 * ((events - 3) // 2 + 1), width)

    def forward(self, x: Tensor) -> Tensor:
        """Embeddings (n, D) of touches (n, C, events, features)."""
        x = self.conv2(self.conv1(x).relu()).relu()
        x = nn.functional.max_pool2d(x, (3, 1), (2, 1))
        x = self.conv4(self.conv3(x).relu()).relu()
        out: Tensor = self.head(x.flatten(1))
        return out
