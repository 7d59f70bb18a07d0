"""What FedAwS is compared with in its section 6: two ways of doing without negatives, and the oracle that has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor

from selfsame.methods.base import Cohort, Fields, LocalLoss, World, each_row, normal_rows, option, sample_mean, unit
from selfsame.methods.fedaws import PAPER, ClassEmbedding, class_reach
from selfsame.methods.wire import FREE, Sight, Wire
from selfsame.streams import Stream


@dataclass(frozen=True)
class PositiveOnly(ClassEmbedding):
    """Baseline-1: the positive loss (23) and nothing against collapse; every class ends up in one point.

    A class embedding turns by the gradient over its length, so how far a run collapses depends on the length it starts
    with, which the paper does not give. The default is ours, chosen because it shows the collapse of the
    paper; docs/figures.md has the figures for longer ones, down to none at N(0, I) (first_length 0).
    """

    name: ClassVar[str] = "positive-only"
    paper: ClassVar[str] = f"{PAPER}, Baseline-1"

    first_length: float = option(0.1, "[0, inf)")


@dataclass(frozen=True)
class FixedEmbedding(ClassEmbedding):
    """Baseline-2: the positive loss (23) towards random class embeddings that stay as the server drew them."""

    name: ClassVar[str] = "fixed"
    paper: ClassVar[str] = f"{PAPER}, Baseline-2"
    shared_class: ClassVar[str] = "clients of a class are issued the same embedding"
    learns: ClassVar[tuple[str, ...]] = ()
    wire: ClassVar[Wire] = Wire(
        down={"class_embedding": (Sight.SERVER, "the embedding the server issued to the client's class", class_reach)}
    )


@dataclass(frozen=True)
class Softmax(LocalLoss):
    """The oracle: cross-entropy against the embeddings of all classes, which everybody holds.

    The paper normalises both sides in all its experiments, so the default is cosine logits; it names no scale.
    Scores are cosines throughout. With plain logits (scale 0) that ranks the seen classes without regard to the lengths
    of the class vectors, unlike the loss; held-out people have no trained length, so cosines are right for them.
    """

    name: ClassVar[str] = "softmax"
    paper: ClassVar[str] = f"{PAPER}, Softmax (Oracle)"
    shared_class: ClassVar[str] = "clients of a class train the same row of the shared class matrix"
    row: ClassVar[str] = "class"
    contrasts: ClassVar[bool] = True
    wire: ClassVar[Wire] = Wire(head={"class_matrix": (Sight.PUBLIC, "the embeddings of all classes", FREE)})

    scale: float = option(16.0, "[0, inf)")  # of cosine logits; 0: plain logits (1)

    def begin_head(self, world: World, stream: Stream) -> Fields:
        """Cosine logits: N(0, I), as every vector that a loss normalises. Plain logits: small, nearly even."""
        spread = 1.0 if self.scale > 0 else 0.01
        return {"class_matrix": spread * normal_rows(each_row(stream, world.classes), world.dim)}

    def loss(self, emb_MBD: Tensor, mask_MB: Tensor, mine: Fields, sent: Fields, head: Fields, who: Cohort) -> Tensor:
        """Softmax cross-entropy on the logits (1); the class matrix is shared, or a client's own replica (M, C, D)."""
        matrix_CD = head["class_matrix"]
        if self.scale > 0:
            emb_MBD, matrix_CD = self.scale * unit(emb_MBD), unit(matrix_CD)
        logit_MBC = emb_MBD @ matrix_CD.transpose(-1, -2)
        class_MB = who.class_M[:, None].expand(mask_MB.shape)
        return sample_mean(F.cross_entropy(logit_MBC.transpose(1, 2), class_MB, reduction="none"), mask_MB)

    def shows(self) -> str:
        return f"{self.name}: everybody holds the embedding of the owner's class"

    def truth(self, own: Fields, server: Fields, head: Fields) -> Tensor:
        return head["class_matrix"]

    def exposed(self, server: Fields, head: Fields) -> Tensor:
        """Every client holds every class embedding."""
        return head["class_matrix"]
