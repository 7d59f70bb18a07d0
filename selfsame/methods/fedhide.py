"""FedHide, FedGN and FedCS: clients repel each other's proxy prototypes and keep their own prototype to themselves.

The three share the loss (1)-(3) and Algorithm 1, and differ in how a proxy is made from the prototype: (4), (5) or (6).
A prototype is a free vector, normalised wherever it is used and never where it is stored.

Shapes: M clients at work, N clients in all, B samples per batch, D embedding width, K neighbours, L proxies near a
client, S proxies drawn at random.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from selfsame.methods import clusters
from selfsame.methods.base import (
    Cohort,
    Fields,
    Heard,
    LocalLoss,
    Rate,
    Scene,
    World,
    averaged,
    averaged_reports,
    each_row,
    normal_rows,
    option,
    products,
    put_rows,
    sample_mean,
    unit,
)
from selfsame.methods.fedhide_attack import mirrored, recover_fedhide, told_apart
from selfsame.methods.neighbours import nearest
from selfsame.methods.update_attack import Seen, by_angle
from selfsame.methods.wire import CLASSES, CLIENTS, UNIT, Declared, Sight, Wire
from selfsame.streams import Stream


@dataclass(frozen=True, kw_only=True)
class ProxyPrototypes(LocalLoss):
    """Algorithm 1, for any way of making a proxy."""

    negative_weight: float = option(10.0, "[0, inf)")  # lambda of (1)
    # Of each prototype before training; 0: as drawn from N(0, I), about sqrt(D).
    first_length: float = option(0.0, "[0, inf)")

    paper: ClassVar[str] = "Park and Yun, FedHide: Federated Learning by Hiding in the Neighbors (ECCV 2024)"
    shared_class: ClassVar[str] = (
        "every client keeps a prototype and a proxy of its own; proxies of the same class neither repel nor hide it"
    )
    wire: ClassVar[Wire] = Wire(
        own={"prototype": "the vector that stands for the owner, before normalisation"},
        up={"proxy": (Sight.PUBLIC, "a unit vector shared in place of the prototype", UNIT)},
        down={
            "proxies": (Sight.PUBLIC, "the latest proxy of every client", UNIT),
            "proxy_classes": (Sight.PUBLIC, "the class of each proxy", CLASSES),
        },
    )
    learns: ClassVar[tuple[str, ...]] = ("prototype",)
    enrols: ClassVar[str] = "prototype"

    def check(self, world: World) -> None:
        held = len(torch.unique(world.class_of_N))
        self.require(held >= 2, "needs clients of at least 2 classes to tell apart", held)

    def begin_own(self, world: World, client_R: Tensor, stream: Stream, own: Fields | None = None) -> Fields:
        rows_RD = normal_rows(stream, world.dim)
        return {"prototype": self.first_length * unit(rows_RD) if self.first_length else rows_RD}

    def begin_server(self, world: World, stream: Stream) -> Fields:
        rows_ND = normal_rows(each_row(stream, world.clients), world.dim)
        return {"proxies": unit(rows_ND), "proxy_classes": world.class_of_N.clone()}

    def send(self, server: Fields, who: Cohort) -> Fields:
        return {"proxies": server["proxies"], "proxy_classes": server["proxy_classes"]}

    def loss(self, emb_MBD: Tensor, mask_MB: Tensor, mine: Fields, sent: Fields, head: Fields, who: Cohort) -> Tensor:
        """(1): the positive term (2) plus lambda times the negative term (3)."""
        prototype_MD = unit(mine["prototype"])
        fit_MB = (unit(emb_MBD) * prototype_MD[:, None]).sum(-1)
        positive_M = sample_mean((1 - fit_MB) ** 2, mask_MB)
        return positive_M + self.negative_weight * self.negative(prototype_MD, sent, who)

    def negative(self, prototype_MD: Tensor, sent: Fields, who: Cohort) -> Tensor:
        """(3), over all proxies of other classes."""
        same_MN = who.class_M[:, None] == sent["proxy_classes"][None, :]
        return _repulsion(products(prototype_MD, sent["proxies"]), same_MN)

    def report(
        self, mine: Fields, sent: Fields, who: Cohort, emb_MBD: Tensor, mask_MB: Tensor, stream: Stream
    ) -> tuple[Fields, Fields]:
        proxy_MD = self.proxy(unit(mine["prototype"]), sent, who, stream)
        return {"prototype": mine["prototype"]}, {"proxy": proxy_MD}

    @abstractmethod
    def proxy(self, prototype_MD: Tensor, sent: Fields, who: Cohort, stream: Stream) -> Tensor:
        """The unit vectors (M, D) shared in place of these unit prototypes."""

    def absorb(self, server: Fields, leaves: Fields, who: Cohort, weight_M: Tensor, lr: Rate, stream: Stream) -> None:
        put_rows(server["proxies"], who.client_M, unit(leaves["proxy"]), who.alive_M)

    def truth(self, own: Fields, server: Fields, head: Fields) -> Tensor:
        return unit(own["prototype"])

    def exposed(self, server: Fields, head: Fields) -> Tensor:
        return server["proxies"]

    def attack(self, scene: Scene) -> tuple[Tensor, str]:
        """Independent noise, (5) and (6), is averaged away."""
        report_TMD = torch.stack([scene.report(self, number)["proxy"] for number in range(scene.reports)])
        return averaged(report_TMD), f"averaged {scene.reports} reports made while the prototype stood"

    def attack_reports(self, heard: Sequence[Heard], world: World) -> tuple[Tensor, str]:
        """The same with the reports of a real run, whose prototypes move on."""
        return unit(averaged_reports(heard, "proxy", world.clients)), "averaged its real reports"

    def attack_updates(self, seen: Seen) -> Tensor:
        """(2) pulls by twice what the cosine lacks of 1; (3) does not reach the embeddings."""
        return by_angle(seen, lambda cosine: 2 * (1 - cosine))


@dataclass(frozen=True)
class FedHide(ProxyPrototypes):
    """The proxy leans on the nearest proxies of other classes, with a little of the prototype mixed in (4).

    With both ``search = "clustered"`` and ``negatives`` a client reads a part of the table only, and need be sent no
    more (`packed`). The clusters it looks into are those nearest to the proxy it reported last. Anybody can tell which
    they are, so nothing of the prototype leaves with the choice; a client that has yet to report searches around a
    random vector.
    """

    alpha: float = option(0.01, "[0, 1]")  # how much of the prototype the proxy carries
    neighbours: int = option(10, "[1, inf)")  # K: how many proxies of others it leans on
    # Where the neighbours are searched: in the whole table, or in "clustered" proxies near the last.
    search: str = option("all", ("all", "clustered"))
    clusters: int = option(0, "[0, inf)")  # how many; 0: about sqrt(N)
    probes: int = option(8, "[1, inf)")  # clusters a client looks into
    # Rounds in which every proxy is assigned to its cluster once, beside those that change.
    refresh: int = option(1000, "[1, inf)")
    negatives: int = option(0, "[0, inf)")  # S, proxies drawn for the negative term, new each round; 0: all of them

    name: ClassVar[str] = "fedhide"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.search == "clustered" or self.negatives:
            object.__setattr__(self, "wire", replace(self.wire, down=self._down()))

    def _down(self) -> dict[str, Declared]:
        """What is sent under these options."""
        down, public = dict(self.wire.down), Sight.PUBLIC
        if self.search == "clustered":
            down["near_rows"] = (public, "whose proxies are in the clusters nearest to the client's last one", CLIENTS)
        if self.negatives:
            down["drawn_rows"] = (public, "other clients, drawn at random for the negative term", CLIENTS)
        if self.search == "clustered" and self.negatives:
            down["proxies"] = (public, "the latest proxies of the clients named in near_rows and drawn_rows", UNIT)
        return down

    def check(self, world: World) -> None:
        super().check(world)
        few = self.clusters <= world.clients
        self.require(few, f"clusters must not exceed the {world.clients} clients", self.clusters)

    def begin_server(self, world: World, stream: Stream) -> Fields:
        tables = super().begin_server(world, stream)
        if self.search == "clustered":
            tables |= clusters.begin(world.clients, world.dim, self.clusters, stream.fold(1))
        if self.negatives:
            tables["draw_key"] = stream.fold(2).key_M
        return tables

    def send(self, server: Fields, who: Cohort) -> Fields:
        """Rows are named by number and the table is handed over as it is: a copy for each client would be larger."""
        sent = super().send(server, who)
        if self.search == "clustered":
            last_MD = server["proxies"][who.client_M]
            sent["near_rows"] = clusters.candidates(server, last_MD, self.probes)
        if self.negatives:
            # One of the N - 1 others, for each of S places: the own row is skipped by counting past it.
            stream = Stream(server["draw_key"].expand(len(who.client_M))).fold(who.client_M)
            row_MS = stream.below(torch.full_like(who.client_M, len(sent["proxies"]) - 1), self.negatives)
            sent["drawn_rows"] = row_MS + (row_MS >= who.client_M[:, None])
        return sent

    def packed(self, sent: Fields) -> Fields:
        if not self.down_rows():
            return sent
        named_M = torch.cat([sent["near_rows"], sent["drawn_rows"]], 1)
        row_R, number_M = torch.unique(named_M.clamp(min=0), return_inverse=True)
        near_M, drawn_M = number_M.where(named_M >= 0, -1).split([sent["near_rows"].shape[1], self.negatives], 1)
        return {
            "proxies": sent["proxies"][row_R],
            "proxy_classes": sent["proxy_classes"][row_R],
            "near_rows": near_M,
            "drawn_rows": drawn_M,
        }

    def shows(self) -> str:
        return f"{self.name}: with alpha = 1 the proxy is the prototype" if self.alpha == 1 else ""

    def down_rows(self) -> frozenset[str]:
        """Where both terms name the rows they read, the tables hold these alone."""
        return frozenset({"proxies", "proxy_classes"} if self.search == "clustered" and self.negatives else ())

    def negative(self, prototype_MD: Tensor, sent: Fields, who: Cohort) -> Tensor:
        """(3), or its mean over the proxies drawn, less those of the own class.

        Each proxy of another class is as likely as the next, so the mean is unbiased, provided that one was drawn at
        all; with n clients of a class among N, all S are of the own class with probability ((n - 1) / (N - 1))^S.
        """
        if not self.negatives:
            return super().negative(prototype_MD, sent, who)
        row_MS = sent["drawn_rows"]
        same_MS = who.class_M[:, None] == clusters.select(sent["proxy_classes"], row_MS)
        return _repulsion((clusters.select(sent["proxies"], row_MS) @ prototype_MD[..., None])[..., 0], same_MS)

    def proxy(self, prototype_MD: Tensor, sent: Fields, who: Cohort, stream: Stream) -> Tensor:
        """(4). Neighbours are proxies: a client never sees another's prototype.

        Without a neighbour (4) would hand out the prototype itself, so such a client sends the zero vector.
        """
        proxies_ND, label_N, count = sent["proxies"], sent["proxy_classes"], self.neighbours
        if self.search == "clustered":
            value_MK, index_MK = clusters.nearest_listed(
                prototype_MD, proxies_ND, sent["near_rows"], count, label_N=label_N, label_M=who.class_M
            )
        else:
            value_MK, index_MK = nearest(prototype_MD, proxies_ND, count, label_N=label_N, label_M=who.class_M)
        found_MK = torch.isfinite(value_MK)
        delegate_MD = unit((proxies_ND[index_MK] * found_MK[..., None]).sum(1))
        hidden_M = (delegate_MD != 0).any(1)
        return unit(self.alpha * prototype_MD + (1 - self.alpha) * delegate_MD) * hidden_M[:, None]

    def absorb(self, server: Fields, leaves: Fields, who: Cohort, weight_M: Tensor, lr: Rate, stream: Stream) -> None:
        super().absorb(server, leaves, who, weight_M, lr, stream)
        if self.search == "clustered":
            clusters.update(server, server["proxies"], who.client_M, who.alive_M, self.refresh, stream.fold(1))
        if self.negatives:
            server["draw_key"].copy_(stream.fold(2).key_M)

    def attack(self, scene: Scene) -> tuple[Tensor, str]:
        """(4) is inverted: proxies are made without noise, from a table that everybody has; two reports settle it."""
        first_MD = scene.report(self, 0)["proxy"]
        who_M, alive_M = scene.client_M, torch.ones_like(scene.client_M, dtype=torch.bool)
        after = {**scene.server, "proxies": scene.server["proxies"].clone()}
        put_rows(after["proxies"], who_M, unit(first_MD), alive_M)
        second_MD = replace(scene, server=after).report(self, 0)["proxy"]
        root_2MD = self.roots(first_MD, scene.server["proxies"], who_M, scene.world.class_of_N)
        later_2MD = self.roots(second_MD, after["proxies"], who_M, scene.world.class_of_N)
        found_MD = told_apart(root_2MD, later_2MD, None, self.alpha)
        return (
            found_MD,
            "solved (4) for the prototype, given alpha, K and the public table before and after two reports",
        )

    def attack_reports(self, heard: Sequence[Heard], world: World) -> tuple[Tensor, str]:
        """(4) is inverted for the last report of each client, and the one before it settles which root is right."""
        device = heard[0].server["proxies"].device
        found_ND = torch.zeros(world.clients, world.dim, dtype=torch.float64, device=device)
        last_2ND = found_ND.new_zeros(2, *found_ND.shape)  # both roots of the report before the last
        left_N = torch.zeros(world.clients, dtype=torch.int64, device=device)  # reports to come
        for one in heard:
            left_N[one.who.client_M] += 1
        known_N = torch.zeros_like(left_N, dtype=torch.bool)
        for one in heard:
            here_M = left_N[one.who.client_M] <= 2
            left_N[one.who.client_M] -= 1
            who = one.who[here_M]
            if not len(who.client_M):
                continue
            root_2MD = self.roots(one.leaves["proxy"][here_M], one.server["proxies"], who.client_M, world.class_of_N)
            found_ND[who.client_M] = root_2MD[0]
            again_M = known_N[who.client_M]
            if again_M.any():
                before_2AD = last_2ND[:, who.client_M[again_M]]
                drift_2AD = self._repelled(before_2AD, one.server, who[again_M], one.moved)
                settled_AD = told_apart(before_2AD, root_2MD[:, again_M], drift_2AD, self.alpha)
                found_ND[who.client_M[again_M]] = settled_AD
            last_2ND[:, who.client_M], known_N[who.client_M] = root_2MD, True
        return found_ND, "solved (4) for its last two real reports"

    def _repelled(self, prototype_2MD: Tensor, server: Fields, who: Cohort, moved: float) -> Tensor:
        """How (3) moves prototypes at unit length; stored, they are about as long as when they began."""
        square = self.first_length**2 or prototype_2MD.shape[2]
        sent = {**self.send(server, who), "proxies": server["proxies"].double()}
        with torch.enable_grad():
            free_2MD = prototype_2MD.detach().requires_grad_()
            total = torch.stack([self.negative(unit(one_MD), sent, who).sum() for one_MD in free_2MD]).sum()
            (grad_2MD,) = torch.autograd.grad(total, free_2MD)
        return -moved * self.negative_weight / square * grad_2MD

    def roots(self, proxy_MD: Tensor, before_ND: Tensor, client_M: Tensor, class_of_N: Tensor) -> Tensor:
        """Both prototypes that these proxies can have been made of, with the table that they were made with."""
        found_MD = recover_fedhide(proxy_MD, before_ND, client_M, self.alpha, self.neighbours, class_of_N)
        if self.alpha in (0, 1):
            return torch.stack([found_MD, found_MD])
        return torch.stack([found_MD, mirrored(found_MD, unit(proxy_MD.double()))])


@dataclass(frozen=True)
class FedGN(ProxyPrototypes):
    """The proxy is the prototype with Gaussian noise (5)."""

    sigma: float = option(0.1, "[0, inf)")  # deviation of each coordinate

    name: ClassVar[str] = "fedgn"

    def shows(self) -> str:
        return f"{self.name}: with sigma = 0 the proxy is the prototype" if self.sigma == 0 else ""

    def proxy(self, prototype_MD: Tensor, sent: Fields, who: Cohort, stream: Stream) -> Tensor:
        """(5)"""
        noise_MD = stream.normal(prototype_MD.shape[1]).to(prototype_MD.dtype)
        return unit(prototype_MD + self.sigma * noise_MD)


@dataclass(frozen=True)
class FedCS(ProxyPrototypes):
    """The proxy is uniform among the unit vectors at a given cosine to the prototype (6)."""

    cosine: float = option(0.5, "[-1, 1]")  # of the proxy and the prototype

    name: ClassVar[str] = "fedcs"

    def shows(self) -> str:
        return f"{self.name}: with cosine = {self.cosine:g} the proxy is the prototype" if abs(self.cosine) == 1 else ""

    def proxy(self, prototype_MD: Tensor, sent: Fields, who: Cohort, stream: Stream) -> Tensor:
        """(6): a Gaussian without its part along the prototype has a uniform direction among those orthogonal to it."""
        noise_MD = stream.normal(prototype_MD.shape[1]).to(prototype_MD.dtype)
        along_M1 = (noise_MD * prototype_MD).sum(1, keepdim=True)
        across_MD = unit(noise_MD - along_M1 * prototype_MD)
        return self.cosine * prototype_MD + math.sqrt(1 - self.cosine**2) * across_MD


def _repulsion(cosine_MN: Tensor, same_MN: Tensor) -> Tensor:
    """The mean of (1 + cosine)^2 over the columns of other classes (3).

    A cosine of -1 adds nothing: that leaves the own class out. The square is written out because the table may hold a
    million rows, and every temporary of this size costs as much as the product itself.
    """
    cosine_MN = cosine_MN.masked_fill_(same_MN, -1.0)
    total_M = cosine_MN.shape[1] + 2 * cosine_MN.sum(1) + torch.linalg.vecdot(cosine_MN, cosine_MN)
    return total_M / (cosine_MN.shape[1] - same_MN.sum(1)).clamp(min=1)
