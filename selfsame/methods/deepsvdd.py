"""DeepSVDD: the baseline in which every client trains a one-class network of its own and nothing is shared.

The network must have no bias terms and no bounded activation: with either it can map everything to the centre. The
recipe chooses such a network, this file does not check it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from selfsame.methods.base import Cohort, Fields, LocalLoss, World, mean_embedding, minus_distance, sample_mean
from selfsame.methods.wire import Wire
from selfsame.streams import Stream


@dataclass(frozen=True)
class DeepSVDD(LocalLoss):
    """Pulls the owner's samples to a centre that is fixed at the first forward pass."""

    name: ClassVar[str] = "deepsvdd"
    paper: ClassVar[str] = (
        "Ruff et al., Deep One-Class Classification (ICML 2018), as (1) of Park, Hosseini and Yun (FL-ICML 2021)"
    )
    shared_class: ClassVar[str] = "clients of a class know nothing of each other, each trains a network of its own"
    federated: ClassVar[bool] = False
    by_angle = False
    wire: ClassVar[Wire] = Wire(
        own={
            "centre": "the mean embedding of the first batch under the untrained network",
            "started": "whether the centre has been set",
        },
        model_up=None,
    )

    def begin_own(self, world: World, client_R: Tensor, stream: Stream, own: Fields | None = None) -> Fields:
        return {
            "centre": torch.zeros(len(client_R), world.dim, device=client_R.device),
            "started": torch.zeros(len(client_R), dtype=torch.bool, device=client_R.device),
        }

    def start(self, own: Fields, sent: Fields, who: Cohort, emb_MBD: Tensor, mask_MB: Tensor) -> Fields:
        mean_MD = mean_embedding(emb_MBD, mask_MB)
        centre_MD = torch.where(own["started"][:, None], own["centre"], mean_MD.to(own["centre"].dtype))
        return {"centre": centre_MD.detach(), "started": own["started"] | (mask_MB.sum(1) > 0)}

    def loss(self, emb_MBD: Tensor, mask_MB: Tensor, mine: Fields, sent: Fields, head: Fields, who: Cohort) -> Tensor:
        """(1), the mean over the batch."""
        return sample_mean(((emb_MBD - mine["centre"][:, None]) ** 2).sum(-1), mask_MB)

    def truth(self, own: Fields, server: Fields, head: Fields) -> Tensor:
        return own["centre"]

    def score(self, emb_SD: Tensor, template_TD: Tensor) -> Tensor:
        return -(minus_distance(emb_SD, template_TD) ** 2)
