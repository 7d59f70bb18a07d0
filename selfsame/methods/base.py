"""What a method is: a frozen dataclass of hyper-parameters with functions over tensors whose first axis is the client.

A device is a cohort of one: the simulator calls these functions with M clients, a phone calls them with M = 1. Row m of
every result depends on row m of the private arguments alone; the reference engine, which runs clients one by one, holds
the methods to that.

Shapes: M clients at work, N clients in all, C classes, R table rows, B samples a batch, D embedding width.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from selfsame.methods.wire import Wire
from selfsame.streams import Stream

Fields = dict[str, Tensor]
_SMALL = 2**22  # multiplications in a product of matrices


@dataclass(frozen=True)
class World:
    """What the server knows of the federation before training begins."""

    clients: int
    classes: int
    dim: int
    class_of_N: Tensor

    def to(self, device: torch.device | str) -> World:
        return replace(self, class_of_N=self.class_of_N.to(device))


@dataclass(frozen=True)
class Cohort:
    """The clients at work in a round: who they are, the class each holds, and which of them answer."""

    client_M: Tensor
    class_M: Tensor
    alive_M: Tensor

    def __getitem__(self, rows: slice | Tensor) -> Cohort:
        return Cohort(self.client_M[rows], self.class_M[rows], self.alive_M[rows])


@dataclass(frozen=True)
class LocalLoss(ABC):
    """A method whose loss is computed on the device. Subclasses override what they need."""

    name: ClassVar[str]
    paper: ClassVar[str]
    wire: ClassVar[Wire]
    shared_class: ClassVar[str]  # what happens when several clients hold the same class
    learns: ClassVar[tuple[str, ...]] = ()  # working fields that local SGD updates beside the network
    federated: ClassVar[bool] = True
    row: ClassVar[str] = "client"  # what a row of `truth` and `exposed` stands for: "client" or "class"

    def check(self, world: World) -> None:
        """Raise `SelfsameError` where these hyper-parameters cannot work on this federation."""
        return None

    def width(self, asked: int) -> int:
        """The embedding width the network must have, given the width asked for."""
        return asked

    @property
    def open_secrets(self) -> bool:
        """Whether private draws come from the run's seed, so that whoever knows it can repeat them."""
        return False

    @property
    def needs_final_embedding(self) -> bool:
        """Whether `report` must see the batch embedded by the locally updated network."""
        return False

    def begin_own(self, world: World, client_R: Tensor, stream: Stream, own: Fields | None = None) -> Fields:
        """Private fields of newly registered clients, one row each; `own` holds the rows of those already there."""
        return {}

    def begin_server(self, world: World, stream: Stream) -> Fields:
        """The server's tables for the whole world. Row r must not depend on how many rows there are."""
        return {}

    def begin_head(self, world: World, stream: Stream) -> Fields:
        """Parameters beside the network that are trained by every client and averaged like it."""
        return {}

    def send(self, server: Fields, who: Cohort) -> Fields:
        """What the server sends to each client beside the network: per-client rows (M, ...) or whole tables."""
        return {}

    def packed(self, sent: Fields) -> Fields:
        """The message without the rows that its clients do not read: for the wire, not for a captured graph."""
        return sent

    def down_rows(self) -> frozenset[str]:
        """Fields sent down whose number of rows the device cannot know beforehand."""
        return frozenset()

    def start(self, own: Fields, sent: Fields, who: Cohort, emb_MBD: Tensor, mask_MB: Tensor) -> Fields:
        """The working fields of the round, given the first batch embedded by the network as received."""
        return {name: own[name] for name in self.learns}

    @abstractmethod
    def loss(self, emb_MBD: Tensor, mask_MB: Tensor, mine: Fields, sent: Fields, head: Fields, who: Cohort) -> Tensor:
        """One value a client, shape (M,). Samples with mask 0 do not count."""

    def report(
        self, mine: Fields, sent: Fields, who: Cohort, emb_MBD: Tensor, mask_MB: Tensor, stream: Stream
    ) -> tuple[Fields, Fields]:
        """(what stays on the device, what leaves it beside the network update), rows for the M clients."""
        return {name: mine[name] for name in self.learns if name in self.wire.own}, {}

    def absorb(
        self, server: Fields, leaves: Fields, who: Cohort, weight_M: Tensor, lr: Tensor | float, stream: Stream
    ) -> None:
        """The server's step on its tables, in place (they may hold a million rows); `stream` has one row."""
        return None

    @abstractmethod
    def truth(self, own: Fields, server: Fields, head: Fields) -> Tensor:
        """The vectors that stand for the clients or classes (see `row`), shape (R, D)."""

    def exposed(self, server: Fields, head: Fields) -> Tensor | None:
        """What somebody other than the owner sees in place of each row of `truth`, or None if nothing."""
        return None

    @property
    def by_angle(self) -> bool:
        """Whether vectors are compared by their directions alone."""
        return True

    def place(self, x: Tensor) -> Tensor:
        """A vector where it is compared with others: at unit length, unless the method compares by distance."""
        return unit(x) if self.by_angle else x

    def score(self, emb_SD: Tensor, template_TD: Tensor) -> Tensor:
        """How well each sample fits each template, larger is closer: shape (S, T). Cosine unless overridden."""
        return unit(emb_SD) @ unit(template_TD).T

    def template(self, emb_SD: Tensor) -> Tensor:
        """The vector that stands for a person, from embeddings of their samples: shape (D,)."""
        return unit(emb_SD).mean(0)


def unit(x: Tensor) -> Tensor:
    """x scaled to length one along its last axis; a zero vector stays zero."""
    return F.normalize(x, dim=-1, eps=1e-12)


def products(a_MD: Tensor, b_ND: Tensor) -> Tensor:
    """All inner products, a @ b.T: shape (M, N).

    Small ones on CUDA are written as a sum, which is fused with what surrounds it: a call of the matrix product costs
    50 microseconds there, more than a tenth of a convolutional layer.
    """
    if a_MD.is_cuda and len(a_MD) * b_ND.numel() <= _SMALL:
        return (a_MD[:, None] * b_ND[None]).sum(-1)
    return a_MD @ b_ND.T


def sample_mean(value_MB: Tensor, mask_MB: Tensor) -> Tensor:
    """Mean over the samples that count, one value a client: shape (M,)."""
    return (value_MB * mask_MB).sum(1) / mask_MB.sum(1).clamp(min=1)


def put_rows(table: Tensor, row_M: Tensor, value_M: Tensor, alive_M: Tensor) -> None:
    """Write the rows of the clients that answered; the others keep theirs."""
    keep = alive_M.reshape(-1, *(1 for _ in value_M.shape[1:]))
    table.index_copy_(0, row_M, torch.where(keep, value_M.to(table.dtype), table[row_M]))


def mean_by_class(value_MD: Tensor, weight_M: Tensor, who: Cohort) -> Tensor:
    """Each client's row replaced by the weighted mean over the answering clients of its class (FedAwS, (5))."""
    counts_M1 = (weight_M * who.alive_M)[:, None].to(value_MD.dtype)
    total_M1 = sum_by_class(counts_M1, who)
    mean_MD = sum_by_class(counts_M1 * value_MD, who) / torch.where(total_M1 > 0, total_M1, 1)
    return torch.where(total_M1 > 0, mean_MD, value_MD)


def alive_classes(who: Cohort) -> Tensor:
    """For each client, whether any client of its class answered: then the class row is written for all of them."""
    return sum_by_class(who.alive_M.long(), who) > 0


def sum_by_class(value_M: Tensor, who: Cohort) -> Tensor:
    """Each client's row replaced by the sum over the clients of its class, in O(M log M)."""
    place_M = torch.searchsorted(who.class_M.sort().values, who.class_M)  # one among 0 .. M-1 for each class
    return torch.zeros_like(value_M).index_add_(0, place_M, value_M)[place_M]


def pick(fields: Mapping[str, Tensor], row_M: Tensor) -> Fields:
    """The rows of some clients from tables over all clients."""
    return {name: table[row_M] for name, table in fields.items()}
