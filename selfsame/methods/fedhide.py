"""FedHide, FedGN and FedCS: clients repel each other's proxy prototypes and keep their own prototype to themselves.

The three share the loss (1)-(3) and Algorithm 1, and differ in how a proxy is made from the prototype: (4), (5) or (6).
A prototype is a free vector, normalised wherever it is used and never where it is stored.

Shapes: M clients at work, N clients in all, B samples a batch, D embedding width, K neighbours.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from selfsame.errors import SelfsameError
from selfsame.methods.base import Cohort, Fields, LocalLoss, World, put_rows, sample_mean, unit
from selfsame.methods.neighbours import nearest
from selfsame.streams import Stream
from selfsame.wire import Sight, Wire

_ROWS_AT_ONCE = 65536  # a draw needs several times the memory of its result


@dataclass(frozen=True, kw_only=True)
class ProxyPrototypes(LocalLoss):
    """Algorithm 1, for any way of making a proxy."""

    negative_weight: float = 10.0  # lambda of (1)

    paper: ClassVar[str] = "Park and Yun, FedHide: Federated Learning by Hiding in the Neighbors (ECCV 2024)"
    shared_class: ClassVar[str] = (
        "every client keeps a prototype and a proxy of its own; proxies of the same class neither repel nor hide it"
    )
    wire: ClassVar[Wire] = Wire(
        own={"prototype": "the vector that stands for the owner, before normalisation"},
        up={"proxy": (Sight.PUBLIC, "a unit vector shared in place of the prototype")},
        down={
            "proxies": (Sight.PUBLIC, "the latest proxy of every client"),
            "proxy_classes": (Sight.PUBLIC, "the class of each proxy"),
        },
    )
    learns: ClassVar[tuple[str, ...]] = ("prototype",)

    def __post_init__(self) -> None:
        _require(
            _weight(self.negative_weight), f"{self.name}: negative_weight must be >= 0, got {self.negative_weight}"
        )

    def check(self, world: World) -> None:
        held = len(torch.unique(world.class_of_N))
        _require(held >= 2, f"{self.name}: needs clients of at least 2 classes to tell apart, got {held}")

    def begin_own(self, world: World, client_R: Tensor, stream: Stream, own: Fields | None = None) -> Fields:
        return {"prototype": _gaussian_rows(stream, world.dim)}

    def begin_server(self, world: World, stream: Stream) -> Fields:
        row_N = torch.arange(world.clients, device=world.class_of_N.device)
        rows = Stream(stream.key_M.expand(world.clients)).fold(row_N)
        return {"proxies": unit(_gaussian_rows(rows, world.dim)), "proxy_classes": world.class_of_N.clone()}

    def send(self, server: Fields, who: Cohort) -> Fields:
        return {"proxies": server["proxies"], "proxy_classes": server["proxy_classes"]}

    def loss(self, emb_MBD: Tensor, mask_MB: Tensor, mine: Fields, sent: Fields, head: Fields, who: Cohort) -> Tensor:
        """(1): the positive term (2) plus lambda times the negative term (3)."""
        prototype_MD = unit(mine["prototype"])
        fit_MB = (unit(emb_MBD) * prototype_MD[:, None]).sum(-1)
        positive_M = sample_mean((1 - fit_MB) ** 2, mask_MB)
        same_MN = who.class_M[:, None] == sent["proxy_classes"][None, :]
        # A cosine of -1 adds nothing to (3): that leaves the own class out. The square is written out because the table
        # may hold a million rows, and every temporary of this size costs as much as the product itself.
        cosine_MN = (prototype_MD @ sent["proxies"].T).masked_fill_(same_MN, -1.0)
        total_M = cosine_MN.shape[1] + 2 * cosine_MN.sum(1) + torch.linalg.vecdot(cosine_MN, cosine_MN)
        negative_M = total_M / (cosine_MN.shape[1] - same_MN.sum(1)).clamp(min=1)
        return positive_M + self.negative_weight * negative_M

    def report(
        self, mine: Fields, sent: Fields, who: Cohort, emb_MBD: Tensor, mask_MB: Tensor, stream: Stream
    ) -> tuple[Fields, Fields]:
        proxy_MD = self.proxy(unit(mine["prototype"]), sent, who, stream)
        return {"prototype": mine["prototype"]}, {"proxy": proxy_MD}

    @abstractmethod
    def proxy(self, prototype_MD: Tensor, sent: Fields, who: Cohort, stream: Stream) -> Tensor:
        """The unit vectors (M, D) shared in place of these unit prototypes."""

    def absorb(
        self, server: Fields, leaves: Fields, who: Cohort, weight_M: Tensor, lr: Tensor | float, stream: Stream
    ) -> None:
        put_rows(server["proxies"], who.client_M, leaves["proxy"], who.alive_M)

    def truth(self, own: Fields, server: Fields, head: Fields) -> Tensor:
        return unit(own["prototype"])

    def exposed(self, server: Fields, head: Fields) -> Tensor:
        return server["proxies"]


@dataclass(frozen=True)
class FedHide(ProxyPrototypes):
    """The proxy leans on the nearest proxies of other classes, with a little of the prototype mixed in (4)."""

    alpha: float = 0.01  # how much of the prototype the proxy carries
    neighbours: int = 10  # K

    name: ClassVar[str] = "fedhide"

    def __post_init__(self) -> None:
        super().__post_init__()
        _require(0 <= self.alpha <= 1, f"{self.name}: alpha must lie in [0, 1], got {self.alpha}")
        whole = isinstance(self.neighbours, int) and self.neighbours >= 1
        _require(whole, f"{self.name}: neighbours must be a whole number >= 1, got {self.neighbours}")

    def proxy(self, prototype_MD: Tensor, sent: Fields, who: Cohort, stream: Stream) -> Tensor:
        """(4). Neighbours are proxies: a client never sees another's prototype.

        Without a neighbour (4) would hand out the prototype itself, so such a client sends the zero vector.
        """
        proxies_ND = sent["proxies"]
        value_MK, index_MK = nearest(
            prototype_MD,
            proxies_ND,
            self.neighbours,
            label_N=sent["proxy_classes"],
            label_M=who.class_M,
        )
        found_MK = torch.isfinite(value_MK)
        delegate_MD = unit((proxies_ND[index_MK] * found_MK[..., None]).sum(1))
        hidden_M = (delegate_MD != 0).any(1)
        return unit(self.alpha * prototype_MD + (1 - self.alpha) * delegate_MD) * hidden_M[:, None]


@dataclass(frozen=True)
class FedGN(ProxyPrototypes):
    """The proxy is the prototype with Gaussian noise (5)."""

    sigma: float = 0.1  # deviation of each coordinate

    name: ClassVar[str] = "fedgn"

    def __post_init__(self) -> None:
        super().__post_init__()
        _require(_weight(self.sigma), f"{self.name}: sigma must be >= 0, got {self.sigma}")

    def proxy(self, prototype_MD: Tensor, sent: Fields, who: Cohort, stream: Stream) -> Tensor:
        """(5)"""
        noise_MD = stream.normal(prototype_MD.shape[1]).to(prototype_MD.dtype)
        return unit(prototype_MD + self.sigma * noise_MD)


@dataclass(frozen=True)
class FedCS(ProxyPrototypes):
    """The proxy is uniform among the unit vectors at a given cosine to the prototype (6)."""

    cosine: float = 0.5

    name: ClassVar[str] = "fedcs"

    def __post_init__(self) -> None:
        super().__post_init__()
        _require(-1 <= self.cosine <= 1, f"{self.name}: cosine must lie in [-1, 1], got {self.cosine}")

    def proxy(self, prototype_MD: Tensor, sent: Fields, who: Cohort, stream: Stream) -> Tensor:
        """(6): a Gaussian without its part along the prototype has a uniform direction among those orthogonal to it."""
        noise_MD = stream.normal(prototype_MD.shape[1]).to(prototype_MD.dtype)
        along_M1 = (noise_MD * prototype_MD).sum(1, keepdim=True)
        across_MD = unit(noise_MD - along_M1 * prototype_MD)
        return self.cosine * prototype_MD + math.sqrt(1 - self.cosine**2) * across_MD


def _gaussian_rows(stream: Stream, dim: int) -> Tensor:
    """Standard normal rows, one a key, drawn in blocks."""
    return torch.cat([Stream(key).normal(dim) for key in stream.key_M.split(_ROWS_AT_ONCE)])


def _weight(value: float) -> bool:
    return math.isfinite(value) and value >= 0


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise SelfsameError(otherwise)
