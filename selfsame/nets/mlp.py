"""A plain perceptron for rows of features."""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn

from selfsame.errors import SelfsameError


class Perceptron(nn.Module):
    """Fully connected layers of `hidden` sizes with layer norm and ReLU, then linear to R^D."""

    def __init__(self, shape: tuple[int], width: int, *, hidden: tuple[int, ...] = (256, 256)) -> None:
        super().__init__()
        if any(size < 1 for size in hidden):
            raise SelfsameError(f"option hidden must list sizes of at least 1, got {hidden}")
        sizes = (shape[0], *hidden)
        steps = (nn.Sequential(nn.Linear(a, b), nn.LayerNorm(b), nn.ReLU()) for a, b in pairwise(sizes))
        self.layers = nn.Sequential(*steps)
        self.head = nn.Linear(sizes[-1], width)

    def forward(self, x: Tensor) -> Tensor:
        """Embeddings (n, D) of rows (n, F)."""
        out: Tensor = self.head(self.layers(x))
        return out
