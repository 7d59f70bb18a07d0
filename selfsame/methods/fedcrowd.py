"""FedCrowd: a client is pushed away from the whole crowd, of which nobody ever sees more than two sums.

What keeps classes apart needs no member of the crowd, only its mean mu and its second moment S. The mean of FedHide's
(1 + w.u)^2 over all u is exactly 1 + 2 w.mu + w'Sw. The log of a softmax denominator over n vectors u is to second
order (exactly for a Gaussian crowd)
    A(v) = log n + s v.mu + s^2/2 (v'Sv - (v.mu)^2).
Now and then everybody is polled for w and w w', which leave the device as part of a sum alone. Of a crowd too small to
hide in so many products they are those of a public sketch of w. The mean stays whole: it is what a crowd in which
everybody points the same way is told apart by, and a sketch would let a network turn away in the sketch alone.

A prototype is a free vector, normalised wherever it is used and never where it is stored. Each client takes its own
share out of the sums. Of clients that hold the same class nobody can: these push each other away.

Shapes: M clients at work, B samples per batch, D embedding width, K width of products, W = D, or D + K with a sketch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from selfsame.methods.base import Cohort, Fields, LocalLoss, World, normal_rows, option, sample_mean, unit
from selfsame.methods.moments import (
    APART,
    APART_SKETCHED,
    LONGEST,
    LONGEST_SKETCHED,
    denoised_mean,
    denoised_second,
    numbers_of,
    packed_moments,
    unpacked_moments,
)
from selfsame.methods.poll import Poll
from selfsame.methods.update_attack import Seen, by_angle
from selfsame.methods.wire import CLIENTS, UNIT, Bound, Sight, Wire
from selfsame.streams import Stream

_PARTS = 10  # a client takes part so often from one poll to the next
_POLLS = 20  # but a run has so many at least
_SKETCHED = 0x6A09E667  # names the stream of the public sketch


@dataclass(frozen=True)
class FedCrowd(LocalLoss):
    """Repulsion from the moments of all prototypes; see the module."""

    loss_kind: str = option("softmax", ("softmax", "quadratic"))  # the second order of a softmax, or FedHide's (3)
    # s; 0: sqrt(2K), at which an even crowd adds 1 to A. Far above, the second order exceeds every real crowd.
    scale: float = option(0.0, "[0, inf)")
    margin: float = option(0.0, "[-2, 2]")  # m, on the cosine of a sample with its prototype
    prototype_weight: float = option(1.0, "[0, inf)")  # beta: of the term that pushes the prototype, not the samples
    negative_weight: float = option(10.0, "[0, inf)")  # lambda of the quadratic loss
    # Rounds from one poll to the next; 0: ten times as many as it takes to ask everybody, or a twentieth of the run.
    every: int = option(0, "[0, inf)")
    # K: the width that products are brought to, by a public matrix; 0: D, or as much as there are clients for.
    sketch: int = option(0, "[0, inf)")
    noise: float = option(0.0, "[0, inf)")  # deviation on every number of a poll's sum, in lengths of a contribution
    # Of each prototype before training; 0: as drawn from N(0, I), about sqrt(D).
    first_length: float = option(0.0, "[0, inf)")

    name: ClassVar[str] = "fedcrowd"
    paper: ClassVar[str] = "ours: docs/design/fedcrowd.md"
    shared_class: ClassVar[str] = "clients of a class push each other away: nobody can be told apart in a sum"
    learns: ClassVar[tuple[str, ...]] = ("prototype",)
    enrols: ClassVar[str] = "prototype"
    contrasts: ClassVar[bool] = True
    poll_reads: ClassVar[tuple[str, ...]] = ("sketch",)
    wire: ClassVar[Wire] = Wire(
        own={
            "prototype": "the vector that stands for the owner, before normalisation",
            "polled": "what the last poll counted for this device: the vector, and its sketch if there is one",
        },
        polled={
            "moments": (Sight.SUM, "the prototype and its products with itself, in polls", Bound(LONGEST_SKETCHED)),
        },
        down={
            "crowd_mean": (Sight.PUBLIC, "the mean of what the last poll counted for everybody", Bound(LONGEST)),
            "crowd_second": (Sight.PUBLIC, "the mean of everybody's products", UNIT),
            "crowd_count": (Sight.PUBLIC, "how many were counted", CLIENTS),
            "sketch": (Sight.PUBLIC, "the matrix that brings vectors to the width of products", UNIT),
        },
    )

    # Polls

    def fitted(self, world: World, cohort: int, rounds: int) -> Self:
        """`scale`, `every` and `sketch` as they are where the recipe leaves them open."""
        width = self.sketch or min(world.dim, world.clients // 2)
        most = max(1, rounds // _POLLS)
        every = self.every or min(most, -(-_PARTS * world.clients // cohort))
        fewest = -(-min(2 * width, world.clients) // cohort)
        scale = self.scale or float(f"{self._scale(width):.6g}")
        return replace(self, scale=scale, sketch=width, every=self.every or max(every, fewest))

    def check(self, world: World) -> None:
        super().check(world)
        width = self.sketch or 1  # what is open is fitted to as many as there are
        self.require(width <= world.dim, f"sketch must not exceed the embedding width {world.dim}", self.sketch)
        self.require(
            2 * width <= world.clients,
            f"a poll of width {width} hides nobody among fewer than {2 * width} devices, and there are "
            f"{world.clients}; set sketch to at most {world.clients // 2}",
            self.sketch,
        )

    def poll(self, dim: int) -> Poll | None:
        width, every = self.sketch or dim, max(1, self.every)
        if width < dim:
            return Poll(every, 2 * width, numbers_of(width, dim), LONGEST_SKETCHED, APART_SKETCHED, self.noise)
        return Poll(every, 2 * width, numbers_of(width), LONGEST, APART, self.noise)

    def answer_poll(self, own: Fields, server: Fields) -> Fields:
        return {**own, "polled": self._widened(unit(own["prototype"]), server)}

    def contribution(self, own: Fields) -> Tensor:
        return packed_moments(own["polled"], self.sketch or own["polled"].shape[1])

    def take_poll(self, server: Fields, sum_V: Tensor, count: int) -> None:
        dim, width = server["sketch"].shape[1], len(server["crowd_second"])
        mean_W, second_KK = (part / count for part in unpacked_moments(sum_V, width))
        if self.noise:
            terms = self.poll(dim)
            assert terms is not None
            deviation = self.noise * terms.longest / count
            mean_W = torch.cat([denoised_mean(part, deviation) for part in mean_W.split(dim)])
            second_KK = denoised_second(second_KK, deviation)
        server["crowd_mean"].copy_(mean_W[None])
        server["crowd_second"].copy_(second_KK)
        server["crowd_count"].fill_(count)

    def _widened(self, unit_D: Tensor, sent: Fields) -> Tensor:
        """Unit vectors as polls see them: with their sketch behind, if there is one, of length one again."""
        sketch_KD = sent["sketch"]
        return torch.cat([unit_D, unit(unit_D @ sketch_KD.T)], -1) if len(sketch_KD) else unit_D

    # Training

    def begin_own(self, world: World, client_R: Tensor, stream: Stream, own: Fields | None = None) -> Fields:
        rows_RD = normal_rows(stream, world.dim)
        first_RD = self.first_length * unit(rows_RD) if self.first_length else rows_RD
        return {"prototype": first_RD, "polled": rows_RD.new_zeros(len(rows_RD), self._polled_width(world.dim))}

    def begin_server(self, world: World, stream: Stream) -> Fields:
        width, device = self.sketch or world.dim, stream.key_M.device
        sketch_KD = torch.zeros(0, world.dim, device=device)
        if width < world.dim:
            named = Stream(torch.full_like(stream.key_M, _SKETCHED))
            square_DK = named.normal(world.dim, width)[0].double()
            sketch_KD = torch.linalg.qr(square_DK).Q.T.to(sketch_KD.dtype)
        return {
            "crowd_mean": torch.zeros(1, self._polled_width(world.dim), device=device),
            "crowd_second": torch.zeros(width, width, device=device),
            "crowd_count": torch.zeros(1, dtype=torch.int64, device=device),
            "sketch": sketch_KD,
        }

    def _polled_width(self, dim: int) -> int:
        return dim + self.sketch if 0 < self.sketch < dim else dim

    def send(self, server: Fields, who: Cohort) -> Fields:
        return dict(server)

    def loss(self, emb_MBD: Tensor, mask_MB: Tensor, mine: Fields, sent: Fields, head: Fields, who: Cohort) -> Tensor:
        """Samples are drawn to the prototype, and both are driven from the crowd."""
        prototype_MD, emb_MBD = unit(mine["prototype"]), unit(emb_MBD)
        fit_MB = (emb_MBD * prototype_MD[:, None]).sum(-1)
        own_M1 = self.crowd(prototype_MD[:, None], mine, sent)
        if self.loss_kind == "quadratic":
            return sample_mean((1 - fit_MB) ** 2, mask_MB) + self.negative_weight * own_M1[:, 0]
        lead_MB = self._scale(len(sent["crowd_second"])) * (fit_MB - self.margin)
        sample_MB = F.softplus(self.crowd(emb_MBD, mine, sent) - lead_MB)
        return sample_mean(sample_MB + self.prototype_weight * F.softplus(own_M1 - lead_MB), mask_MB)

    def crowd(self, v_MBD: Tensor, mine: Fields, sent: Fields) -> Tensor:
        """How near unit vectors are to the crowd without their own client: A(v), or the mean of (1 + v.u)^2."""
        v_MBW, own_MW, second_KK = self._widened(v_MBD, sent), mine["polled"], sent["crowd_second"]
        dim, width = v_MBD.shape[2], len(second_KK)
        counted_M1 = (own_MW != 0).any(1, keepdim=True).to(v_MBW.dtype)
        count = sent["crowd_count"].to(v_MBW.dtype)
        others_M1 = (count - counted_M1).clamp(min=1)

        def first(part: slice) -> tuple[Tensor, Tensor]:
            v_MBP = v_MBW[..., part]
            own_MB = (v_MBP * own_MW[:, None, part]).sum(-1)
            return (count * (v_MBP * sent["crowd_mean"][:, part]).sum(-1) - own_MB) / others_M1, own_MB

        last = slice(own_MW.shape[1] - width, None)
        narrow_MB, own_MB = first(last)
        first_MB = first(slice(0, dim))[0] if own_MW.shape[1] > dim else narrow_MB
        v_MBK = v_MBW[..., last]
        second_MB = (count * ((v_MBK @ second_KK) * v_MBK).sum(-1) - own_MB.square()) / others_M1
        spread_MB = second_MB - narrow_MB.square()
        if self.loss_kind == "quadratic":
            return (1 + first_MB).square() + spread_MB
        scale = self._scale(width)
        return others_M1.log() + scale * first_MB + scale**2 / 2 * spread_MB.clamp(min=0)

    def _scale(self, width: int) -> float:
        return self.scale or math.sqrt(2 * width)

    def report(
        self, mine: Fields, sent: Fields, who: Cohort, emb_MBD: Tensor, mask_MB: Tensor, stream: Stream
    ) -> tuple[Fields, Fields]:
        return {"prototype": mine["prototype"]}, {}

    # What there is to find

    def truth(self, own: Fields, server: Fields, head: Fields) -> Tensor:
        return unit(own["prototype"])

    def attack_updates(self, seen: Seen) -> Tensor:
        """An even crowd turns nobody: what is left is a pull towards the prototype, strong until it is near."""
        if self.loss_kind == "quadratic":
            return by_angle(seen, lambda cosine: 2 * (1 - cosine))
        width = self.sketch or seen.shift_MD.shape[1]
        scale = self._scale(width)
        crowd = math.log(2 * width) + scale**2 / (2 * width)  # A(v) of as few as there may be
        most = scale * (1 + self.prototype_weight)
        return by_angle(seen, lambda cosine: most * torch.sigmoid(crowd - scale * (cosine - self.margin)))
