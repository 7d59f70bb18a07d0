"""FedMetric: clients pull their samples to a centre and push them out of hyperspheres that stand for the others.

Distances are Euclidean. Three variants, as the paper compares them: `FedMetric` shares a proxy
hypersphere that contains the true one, `FedMetricTrue` shares the true one (the upper bound, not private), and
`FedMetricPos` shares nothing beside the network.

The loss has no scale of its own: margins grow and shrink with the radii. With the hinge of (6) squared, a large scale
runs away and a small one shrinks; with the plain hinge of Algorithm 1 both terms are proportional to the scale and the
embeddings shrink towards a point while their order, all that AUROC sees, keeps improving. Presets choose that.

What a proxy hides is less than section 3.2 suggests. Whoever knows s reads R = M / (1 + s) from the margin, and then
the centre lies on a sphere of known radius around the proxy centre, not anywhere in the ball; and every round draws a
new offset, so that the mean of a client's proxy centres over many rounds approaches its centre.

Shapes: M clients at work, N clients in all, B samples per batch, D embedding width.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

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
    mean_embedding,
    option,
    put_rows,
    unit,
)
from selfsame.methods.update_attack import Seen, by_angle, by_distance
from selfsame.methods.wire import CLASSES, REACH, Bound, Sight, Wire, within
from selfsame.streams import Stream

_LATEST = "the mean embedding of the owner's latest batch"  # of the default, centre_rate = 1
_FIRST = "the mean embedding of the owner's first batch, which stays"
_DRAWN = "a mean of the owner's batch embeddings, drawn to the latest by centre_rate"


@dataclass(frozen=True, kw_only=True)
class _Hyperspheres(LocalLoss):
    """The centre, the positive loss (5) and the verification of all three variants."""

    reduction: str = option("sum", ("sum", "mean"))  # over the samples of a batch: "sum" as (5) and (6) print it
    unit_length: bool = False  # whether embeddings are brought to unit length first; the text does not say
    centre_rate: float = option(1.0, "[0, 1]")  # how far the centre goes to a batch's mean: 1 as Algorithm 1 prints it

    by_angle = False
    paper: ClassVar[str] = "Park, Hosseini and Yun, Federated Learning with Metric Loss (FL-ICML 2021)"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.centre_rate != 1:
            object.__setattr__(self, "wire", _told(self.wire, _DRAWN if self.centre_rate else _FIRST))

    def start(self, own: Fields, sent: Fields, who: Cohort, emb_MBD: Tensor, mask_MB: Tensor) -> Fields:
        """The centre C^k: the mean embedding of the first batch under the received network, constant in the loss.

        With `centre_rate` below 1 the last centre goes only a part of the way there: section 3.1 says that it is
        updated iteratively.
        """
        mean_MD = mean_embedding(self.place(emb_MBD), mask_MB).detach()
        if self.centre_rate == 1:
            return {"centre": mean_MD}
        last_MD = self._last_centre(own, sent, who).to(mean_MD.dtype)
        new_M = (last_MD == 0).all(1)  # of a client that has not reported yet
        return {"centre": torch.where(new_M[:, None], mean_MD, last_MD + self.centre_rate * (mean_MD - last_MD))}

    def _last_centre(self, own: Fields, sent: Fields, who: Cohort) -> Tensor:
        return own["centre"]

    def loss(self, emb_MBD: Tensor, mask_MB: Tensor, mine: Fields, sent: Fields, head: Fields, who: Cohort) -> Tensor:
        """(5)"""
        return self._over_samples(length(self.place(emb_MBD) - mine["centre"][:, None]), mask_MB)

    @property
    def reach(self) -> tuple[float, float]:
        """The longest centre and the largest radius that are shared, in `_unit`.

        On the unit sphere a mean has at most length 1, and no distance is above 2. Elsewhere both are cut beyond where
        the embeddings of a sane run lie, a cloud of N(0, I) among them. (6) pushes others by what a radius exceeds
        their distance, so that a wide sphere is what does them harm.
        """
        return (1.0, 2.0) if self.unit_length else (REACH, 3.0)

    def _unit(self, dim: int) -> float:
        return 1.0 if self.unit_length else dim**0.5

    def shared(self, factor: float) -> Bound:
        """So many of `_unit`, as the wire declares it."""
        return Bound(factor) if self.unit_length else Bound(factor, "sqrt(D)")

    def _over_samples(self, value_MB: Tensor, mask_MB: Tensor) -> Tensor:
        total_M = (value_MB * mask_MB).sum(1)
        return total_M if self.reduction == "sum" else total_M / mask_MB.sum(1).clamp(min=1)

    def place(self, x: Tensor) -> Tensor:
        return unit(x) if self.unit_length else x

    def attack_updates(self, seen: Seen) -> Tensor:
        """(5) pulls to the centre, on the sphere along the chord; what (6) adds to that is taken for noise."""
        if self.unit_length:
            return by_angle(seen, lambda cosine: (2 - 2 * cosine).clamp(min=1e-6).rsqrt())
        return by_distance(seen)


@dataclass(frozen=True, kw_only=True)
class _Repelling(_Hyperspheres):
    """The negative loss (6), for the two variants that share hyperspheres.

    Their wires name what is sent down in one order: the centres, the radii and the classes of the server's tables; and
    what is sent up: a centre and a radius.
    """

    # lambda of (4); Fig. 2 tries 0.1 to 1.0, the text does not name the one of Table 2
    negative_weight: float = option(0.5, "[0, inf)")
    squared: bool = True  # the hinge of (6); False: the hinge of Algorithm 1, which is not squared
    # R from the batch embedded "after" the local update (Algorithm 1), or "before": one pass less.
    radius: str = option("after", ("after", "before"))

    @property
    def needs_final_embedding(self) -> bool:
        return self.radius == "after"

    def begin_server(self, world: World, stream: Stream) -> Fields:
        device = world.class_of_N.device
        centre_ND = torch.zeros(world.clients, world.dim, device=device)
        rows = centre_ND, torch.zeros(world.clients, device=device), world.class_of_N.clone()
        return dict(zip(self.wire.down, rows, strict=True))

    def send(self, server: Fields, who: Cohort) -> Fields:
        return {name: server[name] for name in self.wire.down}

    def loss(self, emb_MBD: Tensor, mask_MB: Tensor, mine: Fields, sent: Fields, head: Fields, who: Cohort) -> Tensor:
        """(4)"""
        positive_M = super().loss(emb_MBD, mask_MB, mine, sent, head, who)
        return positive_M + self.negative_weight * self._negative(emb_MBD, mask_MB, sent, who)

    def _negative(self, emb_MBD: Tensor, mask_MB: Tensor, sent: Fields, who: Cohort) -> Tensor:
        """(6). A client that has not reported has margin 0, and max(0, 0 - d) is 0: no other test is needed."""
        centre_ND, margin_N, class_N = (sent[name] for name in self.wire.down)
        hinge_MBN = (margin_N.to(emb_MBD.dtype) - pairwise(self.place(emb_MBD), centre_ND.to(emb_MBD.dtype))).clamp(
            min=0
        )
        if self.squared:
            hinge_MBN = hinge_MBN**2
        other_MN = who.class_M[:, None] != class_N[None, :]
        return self._over_samples((hinge_MBN * other_MN[:, None]).sum(2), mask_MB)

    def _true_radius(self, mine: Fields, emb_MBD: Tensor, mask_MB: Tensor) -> Tensor:
        """R^k of Algorithm 1: the largest distance of a sample to the centre, up to what may be shared."""
        radius_M = (length(self.place(emb_MBD) - mine["centre"][:, None]) * mask_MB).amax(1)
        return radius_M.clamp(max=self.reach[1] * self._unit(emb_MBD.shape[2]))

    def absorb(self, server: Fields, leaves: Fields, who: Cohort, weight_M: Tensor, lr: Rate, stream: Stream) -> None:
        for table, name in zip(self.wire.down, self.wire.up, strict=False):  # classes are not reported
            put_rows(server[table], who.client_M, leaves[name], who.alive_M)

    def exposed(self, server: Fields, head: Fields) -> Tensor:
        return server[next(iter(self.wire.down))]


def _told(wire: Wire, centre: str) -> Wire:
    """The same wire with these words for the centre."""
    own = {name: what.replace(_LATEST, centre) for name, what in wire.own.items()}
    up = {name: (sight, what.replace(_LATEST, centre), bound) for name, (sight, what, bound) in wire.up.items()}
    return replace(wire, own=own, up=up)


def _centre_bound(method: _Hyperspheres) -> Bound:
    return method.shared(method.reach[0])


def _radius_bound(method: _Hyperspheres) -> Bound:
    return method.shared(method.reach[1])


def _margin_bound(method: FedMetric) -> Bound:
    """(1 + s) R"""
    return method.shared((1 + method.scale) * method.reach[1])


def _proxy_bound(method: FedMetric) -> Bound:
    """|C| + s R"""
    return method.shared(method.reach[0] + method.scale * method.reach[1])


@dataclass(frozen=True)
class FedMetric(_Repelling):
    """pos+neg(proxy): a hypersphere around a random point at distance D = s R from the centre is shared."""

    # s; up to 1 the proxy centre lies inside the true hypersphere (Fig. 3 tries that too); for 0: fedmetric-true
    scale: float = option(1.5, "(0, inf)")

    name: ClassVar[str] = "fedmetric"
    shared_class: ClassVar[str] = (
        "every client keeps a centre and shares a proxy hypersphere of its own; those of the same class do not repel it"
    )
    wire: ClassVar[Wire] = Wire(
        own={
            "centre": _LATEST,
            "radius": "the largest distance of a sample to the centre",
        },
        up={
            "proxy_centre": (Sight.PUBLIC, "a random point at distance s R from the centre", _proxy_bound),
            "margin": (Sight.PUBLIC, "the radius (1 + s) R of the proxy hypersphere", _margin_bound),
        },
        down={
            "proxy_centres": (Sight.PUBLIC, "the latest proxy centre of every client", _proxy_bound),
            "margins": (
                Sight.PUBLIC,
                "the radius of each proxy hypersphere, 0 until its client has reported",
                _margin_bound,
            ),
            "proxy_classes": (Sight.PUBLIC, "the class of each proxy hypersphere", CLASSES),
        },
    )

    def begin_own(self, world: World, client_R: Tensor, stream: Stream, own: Fields | None = None) -> Fields:
        return {
            "centre": torch.zeros(len(client_R), world.dim, device=client_R.device),
            "radius": torch.zeros(len(client_R), device=client_R.device),
        }

    def report(
        self, mine: Fields, sent: Fields, who: Cohort, emb_MBD: Tensor, mask_MB: Tensor, stream: Stream
    ) -> tuple[Fields, Fields]:
        """Algorithm 1: A = C + X with X uniform on the sphere of radius D = s R, and the margin R + D.

        With R = 0 (one sample) A would be the centre itself, for a margin that repels nobody: the zero vector is sent.
        """
        centre_MD = mine["centre"]
        radius_M = self._true_radius(mine, emb_MBD, mask_MB)
        distance_M = self.scale * radius_M
        shared_MD = within(centre_MD, self.reach[0] * self._unit(centre_MD.shape[1]))
        offset_MD = unit(stream.normal(centre_MD.shape[1]).to(centre_MD.dtype)) * distance_M[:, None]
        proxy_MD = (shared_MD + offset_MD) * (radius_M > 0)[:, None]
        stays = {"centre": centre_MD, "radius": radius_M}
        return stays, {"proxy_centre": proxy_MD, "margin": radius_M + distance_M}

    def truth(self, own: Fields, server: Fields, head: Fields) -> Tensor:
        return own["centre"]

    def attack(self, scene: Scene) -> tuple[Tensor, str]:
        """The offset X of a proxy centre A = C + X, |X| = D = s R, is drawn anew in every round and averages away."""
        centre_MD, radius_M = scene.own["centre"][scene.client_M], scene.own["radius"][scene.client_M]
        dim, reports = centre_MD.shape[1], scene.reports
        shift_TMD = torch.stack([unit(scene.stream_M.fold(number).normal(dim)) for number in range(reports)])
        found_MD = averaged(centre_MD + self.scale * radius_M[:, None] * shift_TMD, directions=False)
        return found_MD, f"averaged {reports} proxy centres made while the centre stood"

    def attack_reports(self, heard: Sequence[Heard], world: World) -> tuple[Tensor, str]:
        """The same with the reports of a real run, whose centres move on."""
        return averaged_reports(heard, "proxy_centre", world.clients), "averaged its real reports"

    def facts(self, world: World) -> Mapping[str, float]:
        """(R / (R + D))^d, the share of the proxy hypersphere that the true one fills (section 3.2)."""
        return {"exposure_ratio_log10": -world.dim * math.log1p(self.scale) / math.log(10)}


@dataclass(frozen=True)
class FedMetricTrue(_Repelling):
    """pos+neg(true): the true hypersphere is shared with everybody: (4) with A = C and margin R, for D = 0."""

    name: ClassVar[str] = "fedmetric-true"
    shared_class: ClassVar[str] = (
        "every client shares a hypersphere of its own; those of the same class do not repel it"
    )
    wire: ClassVar[Wire] = Wire(
        up={
            "true_centre": (Sight.PUBLIC, f"{_LATEST}, as it is", _centre_bound),
            "true_radius": (Sight.PUBLIC, "the largest distance of a sample to the centre", _radius_bound),
        },
        down={
            "true_centres": (Sight.PUBLIC, "the latest centre of every client", _centre_bound),
            "true_radii": (
                Sight.PUBLIC,
                "the radius around each centre, 0 until its client has reported",
                _radius_bound,
            ),
            "centre_classes": (Sight.PUBLIC, "the class of each centre", CLASSES),
        },
    )

    def _last_centre(self, own: Fields, sent: Fields, who: Cohort) -> Tensor:
        return sent["true_centres"][who.client_M]

    def report(
        self, mine: Fields, sent: Fields, who: Cohort, emb_MBD: Tensor, mask_MB: Tensor, stream: Stream
    ) -> tuple[Fields, Fields]:
        centre_MD = within(mine["centre"], self.reach[0] * self._unit(emb_MBD.shape[2]))
        return {}, {"true_centre": centre_MD, "true_radius": self._true_radius(mine, emb_MBD, mask_MB)}

    def shows(self) -> str:
        return f"{self.name}: the true centre is published"

    def truth(self, own: Fields, server: Fields, head: Fields) -> Tensor:
        return server["true_centres"]


@dataclass(frozen=True)
class FedMetricPos(_Hyperspheres):
    """pos: the positive loss alone, nothing shared beside the network."""

    name: ClassVar[str] = "fedmetric-pos"
    shared_class: ClassVar[str] = "clients of a class know nothing of each other, each keeps a centre of its own"
    wire: ClassVar[Wire] = Wire(own={"centre": _LATEST})

    def begin_own(self, world: World, client_R: Tensor, stream: Stream, own: Fields | None = None) -> Fields:
        return {"centre": torch.zeros(len(client_R), world.dim, device=client_R.device)}

    def truth(self, own: Fields, server: Fields, head: Fields) -> Tensor:
        return own["centre"]


def length(x: Tensor) -> Tensor:
    """Euclidean norm along the last axis, with gradient 0 at the zero vector."""
    return _root((x * x).sum(-1))


def pairwise(x_MBD: Tensor, y_ND: Tensor) -> Tensor:
    """Distances (M, B, N) by one matrix product; taking off the mean of y first keeps the digits of near points."""
    origin_D = y_ND.mean(0)
    x_MBD, y_ND = x_MBD - origin_D, y_ND - origin_D
    square_MBN = (x_MBD**2).sum(-1)[..., None] + (y_ND**2).sum(-1) - 2 * x_MBD @ y_ND.T
    return _root(square_MBN)


def _root(square: Tensor) -> Tensor:
    """Square root with value and gradient 0 where the square is not positive."""
    positive = square > 0
    return torch.sqrt(torch.where(positive, square, 1)) * positive
