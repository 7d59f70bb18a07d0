"""What a method is: a frozen dataclass of hyper-parameters with functions over tensors whose first axis is the client.

A device is a cohort of one: the simulator calls these functions with M clients, a phone calls them with M = 1. Row m of
every result depends on row m of the private arguments alone; the reference engine, which runs clients one by one, holds
the methods to that.

Shapes: M clients at work, N clients in all, C classes, R table rows, B samples per batch, D embedding width.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Protocol, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from selfsame.errors import SelfsameError
from selfsame.methods.poll import Poll
from selfsame.methods.update_attack import Seen
from selfsame.methods.wire import Wire
from selfsame.streams import Stream

Fields = dict[str, Tensor]
Rate = Tensor | float  # a tensor where a captured graph reads it anew in every round
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


class Blocks(Protocol):
    """The server's table of classes, of which each process holds a block of rows, in one round of a cohort."""

    rows: int  # of the whole table
    begin: int  # the number of the block's first row
    block_BD: Tensor
    few: Fields  # the table's rows of the round's classes, by its name
    place_M: Tensor  # where in `few` the class of each client lies

    def owned(self, row_X: Tensor) -> tuple[Tensor, Tensor]:
        """Which of these rows lie in this process's block, and where (those of others point anywhere)."""

    def fetch(self, row_M: Tensor) -> Tensor:
        """These rows, from whoever holds them."""

    def put(self) -> None:
        """The rows of `few`, to whoever holds them."""

    def add(self, name: str, value: Tensor) -> Tensor:
        """The sum of all processes' values; `name` is for the count of what crosses."""

    def stack(self, name: str, value: Tensor) -> Tensor:
        """All processes' values, with an axis of processes in front."""


@dataclass(frozen=True)
class Scene:
    """What an attacker works with: a federation as it stands, and up to some hundred of its clients to attack.

    Private fields are there because the reports that the attacker reads are made from them, and no other use is fair.
    """

    own: Fields
    server: Fields
    truth_RD: Tensor
    world: World
    client_M: Tensor
    stream_M: Stream
    reports: int  # that an attacker who averages reads of each client

    def report(self, method: LocalLoss, number: int) -> Fields:
        """What the clients would report now, beside the network; one independent draw for every `number`."""
        class_M = self.world.class_of_N[self.client_M]
        who = Cohort(self.client_M, class_M, torch.ones_like(self.client_M, dtype=torch.bool))
        empty_MBD = self.truth_RD.new_empty(len(self.client_M), 0, self.truth_RD.shape[1])
        sent, mine = method.send(self.server, who), pick(self.own, self.client_M)
        return method.report(mine, sent, who, empty_MBD, empty_MBD[..., 0], self.stream_M.fold(number))[1]


@dataclass(frozen=True)
class Heard:
    """What everybody heard in one round of a real run: the tables before it, and what clients reported."""

    server: Fields
    who: Cohort  # those who reported
    leaves: Fields
    moved: float  # the learning rate times the local steps

    def in_place(self, name: str, clients: int) -> tuple[Tensor, Tensor]:
        """(a field's rows in the place of their clients, zero for the others, who of all clients reported)."""
        value_M = self.leaves[name].double()
        rows = value_M.new_zeros(clients, *value_M.shape[1:]).index_copy(0, self.who.client_M, value_M)
        return rows, value_M.new_zeros(clients).index_fill(0, self.who.client_M, 1.0)


class Comparison:
    """How embeddings are compared: by cosine, unless a method says otherwise."""

    @property
    def by_angle(self) -> bool:
        """Whether vectors are compared by their directions alone."""
        return True

    def place(self, x: Tensor) -> Tensor:
        """A vector where it is compared with others: at unit length, unless the method compares by distance."""
        return unit(x) if self.by_angle else x

    def score(self, emb_SD: Tensor, template_TD: Tensor) -> Tensor:
        """How well each sample fits each template, larger is closer: shape (S, T)."""
        if self.by_angle:
            return unit(emb_SD) @ unit(template_TD).T
        return minus_distance(self.place(emb_SD), template_TD)

    def template(self, emb_SD: Tensor) -> Tensor:
        """The vector that stands for a person, from embeddings of their samples: shape (D,)."""
        return self.place(emb_SD).mean(0)


def option(default: Any, within: str | tuple[str, ...]) -> Any:
    """A hyper-parameter and what it may be: an interval such as "[0, inf)", or one of some words."""
    return field(default=default, metadata={"within": within})


@dataclass(frozen=True)
class LocalLoss(Comparison, ABC):
    """A method whose loss is computed on the device. Subclasses override what they need."""

    name: ClassVar[str]
    paper: ClassVar[str]
    wire: ClassVar[Wire]
    shared_class: ClassVar[str]  # what happens when several clients hold the same class
    learns: ClassVar[tuple[str, ...]] = ()  # working fields that local SGD updates beside the network
    federated: ClassVar[bool] = True
    contrasts: ClassVar[bool] = False  # whether it needs two classes
    row: ClassVar[str] = "client"  # what a row of `truth` and `exposed` stands for: "client" or "class"
    enrols: ClassVar[str] = ""  # the field whose rows may begin as what owners enrol with a network that is given
    poll_reads: ClassVar[tuple[str, ...]] = ()  # the server's tables that a device reads when it is polled
    # The server's table with one row per class of which a client needs its own alone, so that it can be cut in blocks.
    table: ClassVar[str | None] = None

    def __post_init__(self) -> None:
        """Hold every `option` to what it may be."""
        for part in fields(self):
            value, within = getattr(self, part.name), part.metadata.get("within")
            if isinstance(within, tuple):
                self.require(value in within, f"{part.name} must be one of {', '.join(within)}", value)
            elif within:
                low, high = map(float, within[1:-1].split(","))
                inside = (low <= value if within[0] == "[" else low < value) and value <= high
                inside = inside and (within[-1] == "]" or value < high)
                whole = isinstance(value, int) or not isinstance(part.default, int)
                self.require(inside and whole, f"{part.name} must lie in {within}", value)
        bounded = self.wire.of(self)
        if bounded != self.wire:
            object.__setattr__(self, "wire", bounded)

    def require(self, holds: bool, rule: str, got: object) -> None:
        """Raise `SelfsameError` with the rule that a hyper-parameter or a federation breaks."""
        if not holds:
            raise SelfsameError(f"{self.name}: {rule}, got {got!r}")

    def check(self, world: World) -> None:
        """Raise `SelfsameError` where these hyper-parameters cannot work on this federation."""
        enough = world.classes >= 2 or not self.contrasts
        self.require(enough, "there must be 2 classes or more to tell apart", world.classes)

    def fitted(self, world: World, cohort: int, rounds: int) -> Self:
        """The method with what its hyper-parameters leave to the federation, the size of a cohort and the rounds."""
        return self

    def longest(self, way: str, dim: int, classes: int, clients: int) -> dict[str, float]:
        """The most that a row of each field may measure that goes ``up``, ``down``, or with the network: ``head``."""
        return {name: bound.at(dim, classes, clients) for name, bound in self.wire.bounds(way).items()}

    def width(self, asked: int) -> int:
        """The embedding width the network must have, given the width asked for."""
        return asked

    @property
    def open_secrets(self) -> bool:
        """Whether private draws come from the run's seed, so that whoever knows it can repeat them."""
        return False

    def shows(self) -> str:
        """Where others are sent the very vector that stands for the owner: how, in words; empty: they are not."""
        return ""

    @property
    def needs_final_embedding(self) -> bool:
        """Whether `report` must see the batch embedded by the locally updated network."""
        return False

    def begin_own(self, world: World, client_R: Tensor, stream: Stream, own: Fields | None = None) -> Fields:
        """Private fields of newly registered clients, one row each; `own` holds the rows of those already there."""
        return {}

    def enrolled(self, template_RD: Tensor, drawn_RD: Tensor) -> Tensor:
        """Rows of the field `enrols` in place of the drawn ones; where only angles count, as long as these."""
        if not self.by_angle:
            return template_RD
        return unit(template_RD) * torch.linalg.vector_norm(drawn_RD, dim=1, keepdim=True)

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
        """The working fields of the round, given the first batch embedded by the network as received.

        By default the device's own, and those that it learns from what it was sent.
        """
        return {**own, **{name: sent[name] for name in self.learns if name not in own}}

    @abstractmethod
    def loss(self, emb_MBD: Tensor, mask_MB: Tensor, mine: Fields, sent: Fields, head: Fields, who: Cohort) -> Tensor:
        """One value per client, shape (M,). Samples with mask 0 do not count."""

    def report(
        self, mine: Fields, sent: Fields, who: Cohort, emb_MBD: Tensor, mask_MB: Tensor, stream: Stream
    ) -> tuple[Fields, Fields]:
        """(what stays on the device, what leaves it beside the network update), rows for the M clients.

        By default the working fields, each where the wire says that it goes.
        """
        stays = {name: value for name, value in mine.items() if name in self.wire.own}
        return stays, {name: value for name, value in mine.items() if name in self.wire.up}

    def absorb(self, server: Fields, leaves: Fields, who: Cohort, weight_M: Tensor, lr: Rate, stream: Stream) -> None:
        """The server's step on its tables, in place (they may hold a million rows); `stream` has one row."""
        return None

    # Polls: sums over everybody, for methods that have them

    def poll(self, dim: int) -> Poll | None:
        """When everybody is polled, and on what terms; None: never."""
        return None

    def answer_poll(self, own: Fields, server: Fields) -> Fields:
        """The private fields of devices once they have been polled."""
        return own

    def contribution(self, own: Fields) -> Tensor:
        """What devices add to the sum, as they were polled last, (M, numbers); nothing where they never were."""
        raise NotImplementedError(f"{self.name}: has no polls")

    def take_poll(self, server: Fields, sum_V: Tensor, count: int) -> None:
        """The server's step on its tables, in place, with the sum of so many contributions."""
        return None

    def needs_whole(self) -> str:
        """What of these hyper-parameters keeps `table` from being cut into blocks, in words; empty: nothing."""
        return ""

    def absorb_blocks(
        self, blocks: Blocks, leaves: Fields, who: Cohort, weight_M: Tensor, lr: Rate, stream: Stream
    ) -> None:
        """`absorb` where `table` is cut into blocks."""
        raise NotImplementedError(f"{self.name}: has no table to be cut")

    def rounds_used(self, server: Fields) -> Tensor | None:
        """In how many rounds each client's embeddings were used, where privacy is accounted for by them."""
        return None

    @abstractmethod
    def truth(self, own: Fields, server: Fields, head: Fields) -> Tensor:
        """The vectors that stand for the clients or classes (see `row`), shape (R, D)."""

    def exposed(self, server: Fields, head: Fields) -> Tensor | None:
        """What somebody other than the owner sees in place of each row of `truth`, or None if nothing."""
        return None

    def attack(self, scene: Scene) -> tuple[Tensor, str] | None:
        """What somebody who knows the method and reads what it shares takes for the true vectors (M, D), and how.

        None: no more than `exposed`.
        """
        return None

    def attack_reports(self, heard: Sequence[Heard], world: World) -> tuple[Tensor, str] | None:
        """What somebody who heard these rounds takes for the true vectors (N, D) as they are after the last, and how.

        A zero row stands for a client who never reported. None: reports say no more than `exposed`.
        """
        return None

    def attack_updates(self, seen: Seen) -> Tensor | None:
        """What somebody who reads single updates of the last layer takes for the true vectors (M, D).

        None: nobody has found a way.
        """
        return None

    def facts(self, world: World) -> Mapping[str, float]:
        """What a run's report says of the method beside its figures."""
        return {}


def unit(x: Tensor) -> Tensor:
    """x scaled to length one along its last axis; a zero vector stays zero."""
    return F.normalize(x, dim=-1, eps=1e-12)


def minus_distance(emb_SD: Tensor, template_TD: Tensor) -> Tensor:
    """Minus the Euclidean distance of every sample to every template: shape (S, T)."""
    return -torch.cdist(emb_SD, template_TD, compute_mode="donot_use_mm_for_euclid_dist")


def products(a_MD: Tensor, b_ND: Tensor) -> Tensor:
    """All inner products, a @ b.T: shape (M, N).

    Small ones on CUDA are written as a sum, which is fused with what surrounds it: a call of the matrix product costs
    50 microseconds there, more than a tenth of a convolutional layer.
    """
    if a_MD.is_cuda and len(a_MD) * b_ND.numel() <= _SMALL:
        return (a_MD[:, None] * b_ND[None]).sum(-1)
    return a_MD @ b_ND.T


def sample_mean(value_MB: Tensor, mask_MB: Tensor) -> Tensor:
    """Mean over the samples that count, one value per client: shape (M,)."""
    return (value_MB * mask_MB).sum(1) / mask_MB.sum(1).clamp(min=1)


def mean_embedding(emb_MBD: Tensor, mask_MB: Tensor) -> Tensor:
    """Mean over the samples that count, one vector per client: shape (M, D)."""
    return (emb_MBD * mask_MB[..., None]).sum(1) / mask_MB.sum(1, keepdim=True).clamp(min=1)


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


def averaged(reports_TRD: Tensor, directions: bool = True) -> Tensor:
    """The mean of T reports whose noise was drawn independently, as `directions` (unit vectors) or as it is.

    With FedGN (5) the cosine to the prototype grows with T as 1 / sqrt(1 + sigma^2 D / T), while the prototype stands.
    """
    mean_RD = reports_TRD.double().mean(0)
    return unit(mean_RD) if directions else mean_RD


def averaged_reports(heard: Sequence[Heard], name: str, clients: int) -> Tensor:
    """The mean of what each client reported over some rounds, (N, D); zero where it never did."""
    parts = [one.in_place(name, clients) for one in heard]
    total_ND, count_N = (torch.stack(part).sum(0) for part in zip(*parts, strict=True))
    return total_ND / count_N.clamp(min=1)[:, None]


def each_row(stream: Stream, rows: int) -> Stream:
    """A stream for every row of a table, each the same however many there are; `stream` has one row."""
    return Stream(stream.key_M.expand(rows)).fold(torch.arange(rows, device=stream.key_M.device))


def normal_rows(stream: Stream, dim: int, block: int = 65536) -> Tensor:
    """Standard normal rows, one per row of the stream, in blocks: a draw takes several times its result's memory."""
    table_RD = torch.empty(len(stream.key_M), dim, device=stream.key_M.device)
    for part_BD, key_B in zip(table_RD.split(block), stream.key_M.split(block), strict=True):
        part_BD.copy_(Stream(key_B).normal(dim))
    return table_RD
