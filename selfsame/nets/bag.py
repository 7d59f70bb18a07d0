"""FedAwS's network for extreme classification (its section 6.2): sparse vectors, averaged embeddings, three layers."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from selfsame.errors import SelfsameError

_EXACT = 2**24  # float32 holds every whole number up to here, and indices travel as float32


class EmbeddingBag(nn.Module):
    """Features are embedded in R^512, weighed by their values and averaged; layers of 1024, 1024 and D follow.

    A sample is (2, L): feature indices 0 .. `features` - 1, and their values. The value 0 marks padding; an index
    outside the vocabulary counts as padding too, so that a word met after training is passed over.
    """

    def __init__(self, shape: tuple[int, int], width: int, *, features: int = 0) -> None:
        super().__init__()
        if shape[0] != 2:
            raise SelfsameError(f"a sample is two rows, indices and values: expected shape (2, L), got {tuple(shape)}")
        if not 1 <= features <= _EXACT:
            raise SelfsameError(
                f"option features must be the size of the vocabulary, from 1 to {_EXACT}, got {features}"
            )
        self.features = features
        self.embedding = nn.Embedding(features, 512)
        self.hidden1 = nn.Linear(512, 1024)
        self.hidden2 = nn.Linear(1024, 1024)
        self.head = nn.Linear(1024, width)

    def forward(self, x: Tensor) -> Tensor:
        """Embeddings (n, D) of rows (n, 2, L)."""
        index_nL, value_nL = x.unbind(1)
        # Decided before the conversion: what becomes of NaN as a whole number depends on the processor.
        known_nL = (index_nL >= 0) & (index_nL < self.features) & (value_nL != 0)
        index_nL, value_nL = (torch.where(known_nL, part, 0) for part in (index_nL, value_nL))
        bag_nE = self._sum(index_nL.long(), value_nL)
        bag_nE = bag_nE / known_nL.sum(1, keepdim=True).clamp(min=1)
        out: Tensor = self.head(self.hidden2(self.hidden1(bag_nE).relu()).relu())
        return out

    def _sum(self, index_nL: Tensor, value_nL: Tensor) -> Tensor:
        """The weighted sum of each row's embeddings; in training without the (n, L, 512) tensor of them."""
        weight = self.embedding.weight
        transformed = torch._C._functorch.maybe_current_level() is not None  # vmap knows no rule for bags
        if self.training and not transformed and weight.dtype == value_nL.dtype:
            return F.embedding_bag(index_nL, weight, per_sample_weights=value_nL, mode="sum")
        return (value_nL[:, None] @ self.embedding(index_nL))[:, 0]
