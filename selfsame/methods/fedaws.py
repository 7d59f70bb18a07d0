"""FedAwS: clients pull their samples to their class embedding, the server pushes the class embeddings apart.

Yu, Rawat, Menon, Kumar: Federated Learning with Only Positive Labels, ICML 2020. Equation numbers are that paper's.
The class embeddings W are free vectors started from N(0, I); whatever needs unit length normalises inside the loss.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from selfsame.methods.base import (
    Blocks,
    Cohort,
    Fields,
    LocalLoss,
    Rate,
    World,
    alive_classes,
    each_row,
    mean_by_class,
    normal_rows,
    option,
    put_rows,
    sample_mean,
    sum_by_class,
    unit,
)
from selfsame.methods.neighbours import nearest
from selfsame.methods.update_attack import Seen, by_angle, by_distance
from selfsame.methods.wire import REACH, Bound, Sight, Wire, within
from selfsame.streams import Stream

PAPER = "Yu, Rawat, Menon, Kumar: Federated Learning with Only Positive Labels (FedAwS), ICML 2020"
ROWS = 1024  # rows of W compared with all of W at once in (7)
GATHERED = 2**18  # rows of W gathered at once in (8)
WORKED = 2**13  # of these, how many are differentiated at once


def class_reach(method: ClassEmbedding) -> Bound:
    """A class embedding starts at about sqrt(D) or `first_length`; one that grows far beyond is shortened on its way.

    The cosine does not see its length, and with Euclidean distances only a run that diverges comes to that.
    """
    return Bound(method.reach, "sqrt(D)")


@dataclass(frozen=True)
class ClassEmbedding(LocalLoss):
    """A server's table of class embeddings and the positive loss on the clients: FedAwS without Step 14."""

    paper: ClassVar[str] = PAPER
    shared_class: ClassVar[str] = "clients of a class share its embedding, the server takes their weighted mean"
    row: ClassVar[str] = "class"
    table: ClassVar[str] = "class_embedding"
    learns: ClassVar[tuple[str, ...]] = ("class_embedding",)
    enrols: ClassVar[str] = "class_embedding"
    wire: ClassVar[Wire] = Wire(
        down={"class_embedding": (Sight.SERVER, "the embedding of the client's own class", class_reach)},
        up={"class_embedding": (Sight.SERVER, "the same, trained on the client's samples", class_reach)},
    )

    # The cosine from which a sample counts as close enough, (23); cosine only.
    positive_margin: float = option(0.9, "(-1, 1]")
    distance: str = option("cosine", ("cosine", "euclidean"))  # (11) on unit vectors, or on vectors as they are
    # Of each class embedding before training; 0: as drawn from N(0, I), about sqrt(D).
    first_length: float = option(0.0, "[0, inf)")

    @property
    def reach(self) -> float:
        """The longest class embedding that is sent, in sqrt(D)."""
        return REACH * max(1.0, self.first_length)

    def begin_server(self, world: World, stream: Stream) -> Fields:
        rows_CD = normal_rows(each_row(stream, world.classes), world.dim)
        return {"class_embedding": self.first_length * unit(rows_CD) if self.first_length else rows_CD}

    def send(self, server: Fields, who: Cohort) -> Fields:
        """Step 4: each client gets the embedding of its own class and of no other."""
        return {"class_embedding": self._shortened(server["class_embedding"][who.class_M])}

    def _shortened(self, rows_MD: Tensor) -> Tensor:
        return within(rows_MD, self.reach * rows_MD.shape[1] ** 0.5)

    def report(
        self, mine: Fields, sent: Fields, who: Cohort, emb_MBD: Tensor, mask_MB: Tensor, stream: Stream
    ) -> tuple[Fields, Fields]:
        return {}, {name: self._shortened(mine[name]) for name in self.learns}

    def loss(self, emb_MBD: Tensor, mask_MB: Tensor, mine: Fields, sent: Fields, head: Fields, who: Cohort) -> Tensor:
        """The mean over the samples of (23), or of the positive part of (6) for the Euclidean distance."""
        w_MD = (mine if self.learns else sent)["class_embedding"]
        if self.distance == "euclidean":
            return sample_mean((emb_MBD - w_MD[:, None]).square().sum(-1), mask_MB)
        cosine_MB = (unit(emb_MBD) * unit(w_MD)[:, None]).sum(-1)
        return sample_mean((self.positive_margin - cosine_MB).clamp(min=0).square(), mask_MB)

    @torch.no_grad()
    def absorb(self, server: Fields, leaves: Fields, who: Cohort, weight_M: Tensor, lr: Rate, stream: Stream) -> None:
        """Step 13 with the clients that answered (Remark 1), averaged within a class as in (5)."""
        for name in self.learns:
            # The mean multiplies silent clients by 0, which would let a NaN of theirs through.
            heard_MD = torch.where(who.alive_M[:, None], leaves[name], 0)
            put_rows(server[name], who.class_M, mean_by_class(heard_MD, weight_M, who), alive_classes(who))

    def absorb_blocks(
        self, blocks: Blocks, leaves: Fields, who: Cohort, weight_M: Tensor, lr: Rate, stream: Stream
    ) -> None:
        """Step 13 on the rows of the round's classes alone."""
        few = replace(who, class_M=blocks.place_M)
        ClassEmbedding.absorb(self, blocks.few, leaves, few, weight_M, lr, stream)
        blocks.put()

    def shows(self) -> str:
        return f"{self.name}: the server keeps the embedding of the owner's class"

    def truth(self, own: Fields, server: Fields, head: Fields) -> Tensor:
        return server["class_embedding"]

    def exposed(self, server: Fields, head: Fields) -> Tensor:
        """The server sees every class embedding as it is."""
        return server["class_embedding"]

    def attack_updates(self, seen: Seen) -> Tensor:
        """(23) pulls by twice what the cosine lacks of the margin, the positive part of (6) to a centre."""
        if self.distance == "euclidean":
            return by_distance(seen)
        return by_angle(seen, lambda cosine: 2 * (self.positive_margin - cosine).clamp(min=0))

    @property
    def by_angle(self) -> bool:
        return self.distance == "cosine"

    def score(self, emb_SD: Tensor, template_TD: Tensor) -> Tensor:
        if self.distance == "euclidean":
            return -torch.cdist(emb_SD, template_TD)
        return super().score(emb_SD, template_TD)


@dataclass(frozen=True)
class FedAwS(ClassEmbedding):
    """Algorithm 1, with the spread-out regulariser (7) or its stochastic negative mining (8)."""

    name: ClassVar[str] = "fedaws"
    contrasts: ClassVar[bool] = True

    spread: str = option("mining", ("full", "mining"))  # (8), or "full" for (7)
    # nu of (7): the middle of the interval (1, 2) of the analysis. Lemma 1 bounds the error by 2(nu - 1)^2, which says
    # nothing at nu = 1; at nu = 2 every pair is pushed, however far apart it is.
    margin: float = option(1.5, "(0, inf)")
    neighbours: int = option(10, "[1, inf)")  # k of (8); the paper's AmazonCat figures need 100 (Table 4)
    subset: int = option(0, "[0, inf)")  # how many classes C' of (8) holds; 0: all of them
    spread_weight: float = option(10.0, "[0, inf)")  # lambda of Step 14
    server_steps: int = option(1, "[1, inf)")  # repetitions of Step 14 a round (Remark 1)

    @torch.no_grad()
    def absorb(self, server: Fields, leaves: Fields, who: Cohort, weight_M: Tensor, lr: Rate, stream: Stream) -> None:
        """Steps 13 and 14."""
        super().absorb(server, leaves, who, weight_M, lr, stream)
        table_CD, rate = server["class_embedding"], self.spread_weight * lr
        for step in range(self.server_steps):
            if self.spread == "full":
                table_CD.sub_(rate * spread_gradient(table_CD, self.margin, self.distance))
            else:
                subset_S = draw_subset(len(table_CD), self.subset, stream.fold(step))
                mining_step(table_CD, who, self.neighbours, subset_S, rate, self.distance)

    def needs_whole(self) -> str:
        return "spread = 'full' compares all classes with all; use spread = 'mining'" if self.spread == "full" else ""

    @torch.no_grad()
    def absorb_blocks(
        self, blocks: Blocks, leaves: Fields, who: Cohort, weight_M: Tensor, lr: Rate, stream: Stream
    ) -> None:
        """Steps 13 and 14: the neighbours of the round's classes lie in all blocks."""
        super().absorb_blocks(blocks, leaves, who, weight_M, lr, stream)
        w_MD = blocks.few[self.table][blocks.place_M]
        for step in range(self.server_steps):
            if step:
                w_MD = blocks.fetch(who.class_M)
            subset_S = draw_subset(blocks.rows, self.subset, stream.fold(step))
            self._mine_blocks(blocks, w_MD, who, subset_S, self.spread_weight * lr)

    def _mine_blocks(self, blocks: Blocks, w_MD: Tensor, who: Cohort, subset_S: Tensor | None, rate: Rate) -> None:
        """`mining_step` over blocks: each searches its own, and whoever holds a neighbour computes what moves it."""
        table_BD, begin, k = blocks.block_BD, blocks.begin, self.neighbours
        share_M, query_MD, view = _queries(w_MD, who, self.distance)
        here_S = None
        if subset_S is not None:
            here_S = (subset_S - begin)[(subset_S >= begin) & (subset_S < begin + len(table_BD))]
        value_MK, index_MK = nearest(query_MD, table_BD, k, label_M=who.class_M - begin, subset_S=here_S, view=view)
        short = k - value_MK.shape[1]
        value_RMK = blocks.stack("neighbours' products", F.pad(value_MK, (0, short), value=-torch.inf))
        index_RMK = blocks.stack("neighbours", F.pad(index_MK + begin, (0, short)))
        value_MK, at_MK = value_RMK.movedim(0, 1).flatten(1).topk(k, 1)
        index_MK = index_RMK.movedim(0, 1).flatten(1).gather(1, at_MK)

        mine_MK, row_MK = blocks.owned(index_MK)
        mine_MK = mine_MK & torch.isfinite(value_MK)
        client_P, row_P = mine_MK.nonzero()[:, 0], row_MK[mine_MK]  # P pairs of a class and one of its neighbours
        in_w_MD = torch.zeros_like(w_MD)
        change_BD = table_BD if len(row_P) <= GATHERED else torch.zeros_like(table_BD)
        for client_Q, row_Q in zip(client_P.split(GATHERED), row_P.split(GATHERED), strict=True):
            w_QD, y_Q1D = w_MD[client_Q], table_BD[row_Q][:, None]
            pull_QD, push_Q1D = mining_gradient(w_QD, y_Q1D, share_M[client_Q][:, None], self.distance)
            in_w_MD.index_add_(0, client_Q, pull_QD)
            change_BD.index_add_(0, row_Q, -rate * push_Q1D[:, 0])
        if change_BD is not table_BD:
            table_BD.add_(change_BD)
        in_w_MD = blocks.add("what moves the classes", in_w_MD)
        mine_M, at_M = blocks.owned(who.class_M)
        table_BD.index_add_(0, at_M[mine_M], -rate * in_w_MD[mine_M])


def draw_subset(classes: int, size: int, stream: Stream) -> Tensor | None:
    """C' of (8), uniform without replacement: the classes of the largest random keys, O(C). None: all of them."""
    if size == 0 or size >= classes:
        return None
    return stream.bits(classes)[0].topk(size, sorted=False).indices


def spread_gradient(table_CD: Tensor, margin: float, distance: str, rows: int = ROWS) -> Tensor:
    """The gradient of (7) in W, some rows of the C x C distances at a time.

    Each pair stands twice in (7), so the gradient in one row is twice that of the row's own sum.
    """
    gradient_CD = torch.empty_like(table_CD)
    all_CD = table_CD if distance == "euclidean" else unit(table_CD)
    for first in range(0, len(table_CD), rows):
        w_BD = table_CD[first : first + rows]
        own_BC = torch.arange(first, first + len(w_BD), device=w_BD.device)[:, None] == torch.arange(
            len(table_CD), device=w_BD.device
        )
        if distance == "euclidean":
            # The exact form: differences of squares lose the close pairs, which are the ones that matter.
            d_BC = torch.cdist(w_BD, table_CD, compute_mode="donot_use_mm_for_euclid_dist")
            pull_BC = 4 * (margin - d_BC).clamp(min=0) / d_BC
            pull_BC = pull_BC.masked_fill(own_BC | (d_BC == 0), 0)  # where two coincide no direction leads apart
            gradient_CD[first : first + rows] = pull_BC @ all_CD - pull_BC.sum(1, keepdim=True) * w_BD
        else:
            u_BD = all_CD[first : first + rows]
            cosine_BC = u_BD @ all_CD.T
            pull_BC = (4 * (margin - 1 + cosine_BC).clamp(min=0)).masked_fill(own_BC, 0)
            along_B1 = (pull_BC * cosine_BC).sum(1, keepdim=True)
            gradient_CD[first : first + rows] = (pull_BC @ all_CD - along_B1 * u_BD) * over_length(w_BD)
    return gradient_CD


def mining_step(
    table_CD: Tensor,
    who: Cohort,
    k: int,
    subset_S: Tensor | None,
    rate: Rate,
    distance: str,
    gathered: int = GATHERED,
    worked: int = WORKED,
) -> None:
    """One gradient step on (8), in place: only the cohort's classes and their neighbours move.

    N_k(c) is taken within C', as stochastic negative mining does: the k nearest of all classes would rarely meet a
    small C'. A class counts once, however many of its clients answered.

    Gathered neighbours take M * K rows. Where that is more than both `gathered` and the table itself, the clients are
    taken in pieces and their gradients collected in a table of their own, which then is the smaller of the two. The
    arithmetic, which takes several times its result, is done for fewer of them at a time.
    """
    w_MD = table_CD[who.class_M]
    share_M, query_MD, view = _queries(w_MD, who, distance)
    value_MK, index_MK = nearest(query_MD, table_CD, k, label_M=who.class_M, subset_S=subset_S, view=view)
    weight_MK = share_M[:, None] * torch.isfinite(value_MK)

    at_once = max(1, max(len(table_CD), gathered) // index_MK.shape[1])
    change_CD = table_CD if len(w_MD) <= at_once else torch.zeros_like(table_CD)
    for first in range(0, len(w_MD), at_once):
        rows = slice(first, first + at_once)
        y_MKD = table_CD[index_MK[rows]]
        few = max(1, worked // index_MK.shape[1])
        parts = (w_MD[rows], y_MKD, weight_MK[rows], who.class_M[rows], index_MK[rows])
        for w, y, weight, at, index in zip(*(part.split(few) for part in parts), strict=True):
            in_w_MD, in_y_MKD = mining_gradient(w, y, weight, distance)
            change_CD.index_add_(0, at, -rate * in_w_MD)
            change_CD.index_add_(0, index.flatten(), -rate * in_y_MKD.flatten(0, 1))
    if change_CD is not table_CD:
        table_CD.add_(change_CD)


def _queries(w_MD: Tensor, who: Cohort, distance: str) -> tuple[Tensor, Tensor, Callable[[Tensor], Tensor]]:
    """(what each client counts, its class as it is compared, how the table's rows are)."""
    # Each answering client of a class carries an equal part of it.
    share_M = who.alive_M.to(w_MD.dtype) / sum_by_class(who.alive_M.long(), who).clamp(min=1)
    if distance == "euclidean":  # |w - y|^2 is smallest where w.y - |y|^2 / 2 is largest
        return share_M, F.pad(w_MD, (0, 1), value=1.0), with_square
    return share_M, unit(w_MD), unit


def mining_gradient(w_MD: Tensor, y_MKD: Tensor, weight_MK: Tensor, distance: str) -> tuple[Tensor, Tensor]:
    """The gradient of (8), the sum of -weight d^2(w_c, w_y), in each w_c and each w_y."""
    if distance == "euclidean":
        apart_MKD = 2 * weight_MK[..., None] * (y_MKD - w_MD[:, None])
        return apart_MKD.sum(1), -apart_MKD
    u_M1D, v_MKD = unit(w_MD)[:, None], unit(y_MKD)
    cosine_MK1 = (u_M1D * v_MKD).sum(-1, keepdim=True)
    slope_MK1 = 2 * weight_MK[..., None] * (1 - cosine_MK1)
    in_w_MD = (slope_MK1 * (v_MKD - cosine_MK1 * u_M1D)).sum(1) * over_length(w_MD)
    in_y_MKD = slope_MK1 * (u_M1D - cosine_MK1 * v_MKD) * over_length(y_MKD)
    return in_w_MD, in_y_MKD


def over_length(x: Tensor) -> Tensor:
    """1 / |x|, the factor of the derivative of x / |x|; 0 for a zero vector, which has no direction to turn."""
    length = x.norm(dim=-1, keepdim=True)
    return torch.where(length > 1e-12, 1 / length, 0)


def with_square(rows_BD: Tensor) -> Tensor:
    """Each row y with -|y|^2 / 2 appended."""
    return torch.cat([rows_BD, -0.5 * rows_BD.square().sum(-1, keepdim=True)], 1)
