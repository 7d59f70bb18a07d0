"""FDML: one metric loss over the embeddings of everybody who takes part, computed by trusted code; and its baseline.

The loss is that of `selfsame.enclave.losses`, here as a torch formula that the simulator runs on whatever device it
trains on; a test holds the two together. Every sample has the class of its client. A triplet loss counts how many
triplets each distance is part of, which changes nowhere but where a hinge opens, so that the loss is a sum of distances
times constant counts; these come from sorting, not from a loop over triplets.

The paper trains with an implementation of semi-hard triplets that draws one positive and one negative at random for
each anchor; here all semi-hard triplets count, and their mean is what such draws aim at. It names no margin: 0.2. It
does not bring embeddings to unit length where it prints (1), nor does the default here.

The margin softmax compares samples with a vector of each class, which the enclave keeps and trains and nobody else ever
sees. A class has one from the first round on in which it takes part: the mean of its embeddings there.

Shapes: M clients at work, B samples a batch, D embedding width, S = M B samples together, C classes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from selfsame.methods.base import Cohort, Fields, LocalLoss, World, mean_embedding, option, sample_mean
from selfsame.methods.split import SplitLoss
from selfsame.methods.update_attack import Seen, by_mean
from selfsame.methods.wire import FREE, REACH, Bound, Sight, Wire
from selfsame.privacy.mechanisms import Gaussian, Laplace, Mechanism
from selfsame.streams import Stream

PAPER = "Tian et al., Privacy-Preserving and Robust Federated Deep Metric Learning (2022)"
ON_SPHERE = ("multi-similarity", "supervised-contrastive", "margin-softmax")  # whatever `normalise` says
KINDS = ("batch-all", "semi-hard", "batch-hard", "contrastive", *ON_SPHERE)
_SHARP = ("alpha", "beta", "base", "temperature", "logit_scale", "class_lr")
_LOSS = ("kind", "margin", "squared", "average", "normalise", *_SHARP)
_VECTORS = "class_vectors"
_FEW = 32  # positives of an anchor up to which comparing with each is faster than sorting


@dataclass(frozen=True)
class Fdml(SplitLoss):
    """A loss over the whole cohort, of triplets, pairs or class vectors, as the enclave computes it."""

    name: ClassVar[str] = "fdml"
    paper: ClassVar[str] = PAPER
    contrasts: ClassVar[bool] = True
    shared_class: ClassVar[str] = "samples of all clients of a class are positives of one another"
    wire: ClassVar[Wire] = Wire(
        own={"template": "the mean embedding of the owner's samples"},
        up={"embedding": (Sight.ENCLAVE, "embeddings of the round's samples", FREE)},
        down={
            "derivative": (Sight.ENCLAVE, "the loss's derivatives in the client's own embeddings, for it alone", FREE)
        },
        model_up=Sight.ENCLAVE,
    )

    kind: str = option("semi-hard", KINDS)  # of loss, see docs/design/fdml-losses.md
    margin: float = option(0.2, "(0, 1e6]")  # of triplets, pairs and the margin softmax; the paper names none
    squared: bool = False  # squared Euclidean distances, not the plain ones of (1)
    average: str = option("active", ("active", "all"))  # over the terms above zero, or over all terms
    normalise: bool = False  # embeddings are divided by their lengths first
    alpha: float = option(2.0, "(0, 1e6]")  # multi-similarity: sharpness for positives,
    beta: float = option(50.0, "(0, 1e6]")  # for negatives,
    base: float = option(0.5, "[-1, 1]")  # and the cosine that divides them
    temperature: float = option(0.1, "[0.001, 1000]")  # supervised-contrastive: cosines are divided by it
    logit_scale: float = option(16.0, "(0, 1000]")  # margin-softmax: cosines are multiplied by it,
    class_lr: float = option(1.0, "[0, 1e6]")  # and how fast the enclave's class vectors learn
    noise: str = option("none", ("none", "laplace", "gaussian"))  # on the derivatives; "laplace" as Algorithm 2
    drop: float = 0.0  # r of Algorithm 2: the chance of each embedding to be left out of the loss
    clip: float = 2e-5  # T: of each coordinate (laplace), or of all that a client is sent (gaussian)
    scale: float = 1e-5  # b of Algorithm 2, or the deviation of the Gaussian noise

    def __post_init__(self) -> None:
        super().__post_init__()
        noisy = self.mechanism is not None
        self.require(noisy or not self.drop, "drop goes with noise (laplace or gaussian)", self.drop)
        self.require(
            not (noisy and self._keeps),
            "noise goes with no margin-softmax: its class vectors carry embeddings into rounds that no budget counts",
            self.noise,
        )
        if self._keeps:
            object.__setattr__(self, "wire", replace(self.wire, inside={_VECTORS: "a vector of each class"}))

    @property
    def mechanism(self) -> Mechanism | None:
        """What stands between the derivatives and the devices."""
        if self.noise == "laplace":
            return Laplace(self.clip, self.scale, self.drop)
        return Gaussian(self.clip, self.scale, self.drop) if self.noise == "gaussian" else None

    def enclave_terms(self) -> tuple[dict[str, Any], dict[str, Any]]:
        noise = ("drop", "clip", "scale") if self.mechanism else ()
        privacy = {"kind": self.noise} | {name: getattr(self, name) for name in noise}
        return {name: getattr(self, name) for name in _LOSS}, privacy

    def joint_loss(self, emb_SD: Tensor, label_S: Tensor, mask_S: Tensor) -> Tensor:
        """(1) and its kin; Algorithm 1 is its derivative."""
        if self._keeps:  # nothing was kept: the classes' vectors are those that this round begins
            blank = {_VECTORS: emb_SD.new_zeros(int(label_S.max()) + 1, emb_SD.shape[1])}
            inside = self.enclave_ready(blank, emb_SD.detach(), label_S, mask_S)
            return self.enclave_loss(emb_SD, label_S, mask_S, inside)
        similar = self.kind in ON_SPHERE
        x_SD = on_sphere(emb_SD) if self.normalise or similar else emb_SD
        dist_SS = distances(x_SD, self.squared or similar)
        both_SS = (mask_S[:, None] > 0) & (mask_S[None, :] > 0)
        same_SS = label_S[:, None] == label_S[None, :]
        positive_SS = both_SS & same_SS & ~torch.eye(len(label_S), dtype=torch.bool, device=label_S.device)
        negative_SS = both_SS & ~same_SS
        if self.kind == "supervised-contrastive":
            return self._supervised_contrastive(1 - dist_SS / 2, positive_SS, negative_SS)
        if similar:
            return self._multi_similarity(1 - dist_SS / 2, positive_SS, negative_SS, mask_S)
        if self.kind == "contrastive":
            return self._contrastive(dist_SS, positive_SS, negative_SS)
        if self.kind == "batch-hard":
            return self._batch_hard(dist_SS, positive_SS, negative_SS)
        return self._triplets(dist_SS, positive_SS, negative_SS)

    def _triplets(self, dist_SS: Tensor, positive_SS: Tensor, negative_SS: Tensor) -> Tensor:
        """(1) over all triplets, or over those whose negative is farther than the positive but within the margin."""
        place_SK = places(positive_SS)
        there_SK, pos_SK = positive_SS.gather(1, place_SK), dist_SS.gather(1, place_SK)
        with torch.no_grad():
            negative = torch.where(negative_SS, dist_SS, torch.inf)
            edge_SK = torch.where(there_SK, pos_SK + self.margin, -torch.inf)
            above_SS, below_SK = counts(negative, edge_SK)
            if self.kind == "semi-hard":
                too_near_SK = torch.where(there_SK, torch.nextafter(pos_SK, pos_SK + 1), -torch.inf)
                harder_SS, hard_SK = counts(negative, torch.minimum(too_near_SK, edge_SK))
                above_SS, below_SK = above_SS - harder_SS, below_SK - hard_SK
            above_SS, below_SK = above_SS.to(dist_SS.dtype), below_SK.to(dist_SS.dtype)
            terms = below_SK.sum()
            if self.average == "all":
                terms = (positive_SS.sum(1) * negative_SS.sum(1)).sum().to(dist_SS.dtype)
        total = (below_SK * (pos_SK + self.margin)).sum() - (above_SS * dist_SS).sum()
        return total / terms.clamp(min=1)

    def _batch_hard(self, dist_SS: Tensor, positive_SS: Tensor, negative_SS: Tensor) -> Tensor:
        """(1) over the triplet of each anchor's farthest positive and nearest negative; equals share the derivative."""
        far_S = torch.where(positive_SS, dist_SS, -torch.inf).amax(1)
        near_S = torch.where(negative_SS, dist_SS, torch.inf).amin(1)
        whole_S = positive_SS.any(1) & negative_SS.any(1)
        gap_S = torch.where(whole_S, far_S - near_S + self.margin, 0).relu()
        return self._mean(gap_S, whole_S)

    def _contrastive(self, dist_SS: Tensor, positive_SS: Tensor, negative_SS: Tensor) -> Tensor:
        """The distance of each pair of one class, and max(margin - d, 0) of each pair of two."""
        together = torch.where(positive_SS, dist_SS, 0)
        apart = torch.where(negative_SS, self.margin - dist_SS, 0).relu()
        return self._mean(together, positive_SS) + self._mean(apart, negative_SS)

    def _mean(self, term: Tensor, there: Tensor) -> Tensor:
        counted = there if self.average == "all" else term.detach() > 0
        return term.sum() / counted.sum().clamp(min=1)

    def _multi_similarity(self, cos_SS: Tensor, positive_SS: Tensor, negative_SS: Tensor, mask_S: Tensor) -> Tensor:
        """log(1 + sum exp(-alpha (s - base))) / alpha over positives, log(1 + sum exp(beta (s - base))) / beta over
        negatives, and the mean over anchors."""

        def soft(power_SS: Tensor, sharpness: float) -> Tensor:
            zero_S1 = torch.zeros_like(power_SS[:, :1])
            return torch.logsumexp(torch.cat([zero_S1, power_SS], 1), 1) / sharpness

        pull_S = soft(torch.where(positive_SS, -self.alpha * (cos_SS - self.base), -torch.inf), self.alpha)
        push_S = soft(torch.where(negative_SS, self.beta * (cos_SS - self.base), -torch.inf), self.beta)
        there_S = mask_S > 0
        return torch.where(there_S, pull_S + push_S, 0).sum() / there_S.sum().clamp(min=1)

    def _supervised_contrastive(self, cos_SS: Tensor, positive_SS: Tensor, negative_SS: Tensor) -> Tensor:
        """-log of the share of each positive in the sum of exp(s / temperature) over all other samples: the mean over
        an anchor's positives, and over the anchors that have any."""
        mates_S = positive_SS.sum(1)
        whole_S = mates_S > 0
        power_SS = torch.where(positive_SS | negative_SS, cos_SS / self.temperature, -torch.inf)
        all_S = torch.logsumexp(torch.where(whole_S[:, None], power_SS, 0), 1)
        near_S = torch.where(positive_SS, power_SS, 0).sum(1) / mates_S.clamp(min=1)
        return torch.where(whole_S, all_S - near_S, 0).sum() / whole_S.sum().clamp(min=1)

    # The margin softmax and its class vectors; a row of zeros is a class that has taken no part yet

    @property
    def _keeps(self) -> bool:
        return self.kind == "margin-softmax"

    def begin_enclave(self, world: World) -> Fields:
        if not self._keeps:
            return {}
        return {_VECTORS: torch.zeros(world.classes, world.dim, device=world.class_of_N.device)}

    def enclave_ready(self, inside: Fields, emb_SD: Tensor, label_S: Tensor, mask_S: Tensor) -> Fields:
        """A class without a vector gets the mean of its embeddings on the sphere, at unit length."""
        table_CD = inside[_VECTORS]
        there_SD = torch.where(mask_S[:, None] > 0, on_sphere(emb_SD).to(table_CD.dtype), 0)
        first_CD = on_sphere(torch.zeros_like(table_CD).index_add(0, label_S, there_SD))
        return {_VECTORS: torch.where(known_rows(table_CD)[:, None], table_CD, first_CD)}

    def enclave_loss(self, emb_SD: Tensor, label_S: Tensor, mask_S: Tensor, inside: Fields) -> Tensor:
        """Cross-entropy of logit_scale (cosine - margin at the own class) over all classes that have a vector."""
        table_CD = inside[_VECTORS]
        known_C = known_rows(table_CD.detach())
        counts_S = (mask_S > 0) & known_C[label_S]
        cos_SC = on_sphere(emb_SD).to(table_CD.dtype) @ on_sphere(table_CD).T
        own_S1 = cos_SC.gather(1, label_S[:, None]) - self.margin
        power_SC = self.logit_scale * cos_SC.scatter(1, label_S[:, None], own_S1)
        power_SC = torch.where(known_C, power_SC, -torch.inf)
        all_S = torch.logsumexp(torch.where(counts_S[:, None], power_SC, 0), 1)
        return torch.where(counts_S, all_S - self.logit_scale * own_S1[:, 0], 0).sum() / counts_S.sum().clamp(min=1)

    def enclave_moved(self, inside: Fields, grads: Fields) -> Fields:
        """A step of gradient descent, and back to unit length."""
        return {_VECTORS: on_sphere(inside[_VECTORS] - self.class_lr * grads[_VECTORS])}

    @property
    def by_angle(self) -> bool:
        return self.normalise or self.kind in ON_SPHERE


@dataclass(frozen=True)
class FlTraditional(LocalLoss):
    """What FDML is compared with: cross-entropy over a fully connected layer with an output for every class.

    The layer lies on top of the embeddings and is averaged like the network. Verification is as FDML's, by the distance
    to the mean of some embeddings, and has no use for the layer.
    """

    name: ClassVar[str] = "fl-traditional"
    paper: ClassVar[str] = f"{PAPER}, FL-traditional"
    shared_class: ClassVar[str] = "clients of a class train the same output of the shared layer"
    wire: ClassVar[Wire] = Wire(
        own={"template": "the mean embedding of the owner's samples"},
        head={
            "weight": (Sight.PUBLIC, "the fully connected layer, a row a class", FREE),
            "bias": (Sight.PUBLIC, "its bias, a number a class", Bound(REACH)),
        },
    )
    contrasts: ClassVar[bool] = True
    by_angle = False

    def begin_own(self, world: World, client_R: Tensor, stream: Stream, own: Fields | None = None) -> Fields:
        return {"template": torch.zeros(len(client_R), world.dim, device=client_R.device)}

    def begin_head(self, world: World, stream: Stream) -> Fields:
        """As PyTorch starts a linear layer."""
        bound = world.dim**-0.5
        draw = bound * (2 * stream.uniform(world.classes, world.dim + 1)[0] - 1)
        return {"weight": draw[:, 1:].contiguous(), "bias": draw[:, 0].contiguous()}

    def start(self, own: Fields, sent: Fields, who: Cohort, emb_MBD: Tensor, mask_MB: Tensor) -> Fields:
        return {"template": mean_embedding(emb_MBD, mask_MB).detach()}

    def loss(self, emb_MBD: Tensor, mask_MB: Tensor, mine: Fields, sent: Fields, head: Fields, who: Cohort) -> Tensor:
        """The layer is shared, or a client's own replica with an axis M in front."""
        logit_MBC = emb_MBD @ head["weight"].transpose(-1, -2) + head["bias"].unsqueeze(-2)
        class_MB = who.class_M[:, None].expand(mask_MB.shape)
        return sample_mean(F.cross_entropy(logit_MBC.transpose(1, 2), class_MB, reduction="none"), mask_MB)

    def truth(self, own: Fields, server: Fields, head: Fields) -> Tensor:
        return own["template"]

    def attack_updates(self, seen: Seen) -> Tensor:
        """The template is a mean embedding, and an update is a sum of outer products with embeddings."""
        return by_mean(seen)


def on_sphere(x_SD: Tensor) -> Tensor:
    """x at unit length. A zero vector stays, and so that no derivative is divided by its length, does not move."""
    length_S1 = torch.linalg.vector_norm(x_SD, dim=-1, keepdim=True)
    return x_SD * (length_S1 > 0) / torch.where(length_S1 > 0, length_S1, 1)


def known_rows(table_CD: Tensor) -> Tensor:
    """Which classes have a vector: bool of shape (C,)."""
    return (table_CD != 0).any(1)


def distances(x_SD: Tensor, squared: bool) -> Tensor:
    """The Euclidean distances of all pairs, or their squares; at distance zero no direction is left: no derivative.

    |a - j|^2 = |a|^2 - 2 a.j + |j|^2 about the middle of all; what rounding leaves of zero is zero.
    """
    x_SD = x_SD - x_SD.mean(0).detach()
    square_S = (x_SD**2).sum(1)
    dist_SS = square_S[:, None] - 2 * x_SD @ x_SD.T + square_S[None, :]
    nearest = (x_SD.shape[1] + 8) * torch.finfo(x_SD.dtype).eps * square_S.detach().max()
    apart_SS = dist_SS > nearest
    if squared:
        return torch.where(apart_SS, dist_SS, 0)
    return torch.where(apart_SS, torch.where(apart_SS, dist_SS, 1).sqrt(), 0)


def places(positive_SS: Tensor) -> Tensor:
    """The columns of each row's positives, and others to fill up. On CUDA all: shapes may not depend on data there."""
    if positive_SS.is_cuda:
        return torch.arange(positive_SS.shape[1], device=positive_SS.device).expand(positive_SS.shape)
    most = max(1, int(positive_SS.sum(1).max()))
    return positive_SS.to(torch.uint8).topk(most, 1).indices


def counts(negative_SS: Tensor, edge_SK: Tensor) -> tuple[Tensor, Tensor]:
    """For each negative of a row the number of edges above it, for each edge the number of negatives below it.

    Infinite entries are not there: a negative at +inf, an edge at -inf.
    """
    if edge_SK.shape[1] <= _FEW:
        above_SS, below = torch.zeros_like(negative_SS), []
        for edge_S in edge_SK.unbind(1):
            under_SS = (negative_SS < edge_S[:, None]).to(above_SS.dtype)
            above_SS += under_SS
            below.append(under_SS.sum(1))
        return above_SS, torch.stack(below, 1)
    above_SS = edge_SK.shape[1] - torch.searchsorted(edge_SK.sort(1).values, negative_SS, right=True)
    return above_SS, torch.searchsorted(negative_SS.sort(1).values, edge_SK)
