"""What FedAwS is compared with in its section 6: two ways of doing without negatives, and the oracle that has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor

from selfsame.methods.base import Cohort, Fields, LocalLoss, World, each_row, normal_rows, option, sample_mean, unit
from selfsame.methods.fedaws import PAPER, ClassEmbedding, class_reach
from selfsame.methods.update_attack import Seen, by_angle
from selfsame.methods.wire import FREE, Sight, Wire
from selfsame.streams import Stream


@dataclass(frozen=True)
class PositiveOnly(ClassEmbedding):
    """Baseline-1: the positive loss (23) and nothing against collapse; every class ends up in one point.

    A class embedding turns by the gradient over its length, so how far a run collapses depends on the length it starts
    with, which the paper does not give. The default is ours, chosen because it shows the collapse of the
    paper; docs/results/figures.md has the figures for longer ones, down to none at N(0, I) (first_length 0).
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
    enrols: ClassVar[str] = ""
    wire: ClassVar[Wire] = Wire(
        down={"class_embedding": (Sight.SERVER, "the embedding the server issued to the client's class", class_reach)}
    )


@dataclass(frozen=True)
class OwnEmbedding(LocalLoss):
    """Baseline-2 with embeddings that the devices draw for themselves and tell nobody: the bar for everything private.

    Nothing depends on them but the updates of the network. In enough dimensions random vectors are as far apart as the
    server's.
    """

    name: ClassVar[str] = "fixed-own"
    paper: ClassVar[str] = "ours: Baseline-2 of FedAwS without a server that knows the embeddings"
    shared_class: ClassVar[str] = "clients of a class draw embeddings of their own, and pull its samples apart"
    wire: ClassVar[Wire] = Wire(own={"embedding": "the random vector that stands for the owner"})

    positive_margin: float = option(0.9, "(-1, 1]")  # the cosine from which a sample counts as close enough, (23)

    def begin_own(self, world: World, client_R: Tensor, stream: Stream, own: Fields | None = None) -> Fields:
        return {"embedding": normal_rows(stream, world.dim)}

    def loss(self, emb_MBD: Tensor, mask_MB: Tensor, mine: Fields, sent: Fields, head: Fields, who: Cohort) -> Tensor:
        """The mean over the samples of (23)."""
        cosine_MB = (unit(emb_MBD) * unit(mine["embedding"])[:, None]).sum(-1)
        return sample_mean((self.positive_margin - cosine_MB).clamp(min=0).square(), mask_MB)

    def truth(self, own: Fields, server: Fields, head: Fields) -> Tensor:
        return own["embedding"]

    def attack_updates(self, seen: Seen) -> Tensor:
        """As with FedAwS: (23) pulls by twice what the cosine lacks of the margin."""
        return by_angle(seen, lambda cosine: 2 * (self.positive_margin - cosine).clamp(min=0))


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
    enrols: ClassVar[str] = "class_matrix"
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
