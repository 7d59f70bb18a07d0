"""What a round needs and never changes: recipe, method, network, data, and the pieces that may be compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from selfsame.config.recipe import Recipe
from selfsame.data.federation import Federation
from selfsame.engine import optimisers
from selfsame.engine.batches import Batch, Sampler, draw_ahead, local_batches, step_batch
from selfsame.engine.model import Model
from selfsame.engine.ranks.group import ALONE, Ranks
from selfsame.engine.settle import Kept, LocalWork, settle
from selfsame.engine.sums import Sums
from selfsame.methods.base import Cohort, Fields, LocalLoss, World, unit
from selfsame.methods.poll import Poll
from selfsame.streams import Stream


@dataclass(frozen=True)
class Tools:
    """The pure pieces of a round that gain from compilation: as they are, or compiled."""

    draw: Callable[..., Batch]
    settle: Callable[..., tuple[LocalWork, Tensor, list[Tensor]]]
    loss: Callable[..., Tensor]
    report: Callable[..., tuple[Fields, Fields]]
    server_step: Callable[..., None]

    @staticmethod
    def of(method: LocalLoss, compile: bool, on_host: bool = False) -> Tools:
        """`on_host`: samples are fetched by the host, which cannot be compiled."""
        plain = Tools(step_batch, settle, method.loss, method.report, optimisers.apply)
        if not compile:
            return plain
        names = [one.name for one in fields(plain) if not (on_host and one.name == "draw")]
        return replace(plain, **{name: torch.compile(getattr(plain, name), dynamic=False) for name in names})


@dataclass(frozen=True)
class Problem:
    """What a round needs and never changes."""

    recipe: Recipe
    method: LocalLoss
    model: Model
    federation: Federation
    world: World
    longest: int  # samples of the client with most
    tools: Tools
    zero_1: Tensor  # the server's own number among the clients
    ranks: Ranks = ALONE
    sums: Sums | None = None  # None: the server sees every update

    @staticmethod
    def of(
        recipe: Recipe, method: LocalLoss, model: Model, federation: Federation, world: World, ranks: Ranks = ALONE
    ) -> Problem:
        longest = int(federation.count_N.max())
        tools = Tools.of(method, model.compiled, federation.source.on_host)
        here = federation.to(model.device), world.to(model.device)
        zero_1 = torch.zeros(1, dtype=torch.int64, device=model.device)
        sums = Sums.of(recipe, world.clients, longest)
        return Problem(recipe, method, model, *here, longest, tools, zero_1, ranks, sums)

    def __repr__(self) -> str:
        return f"Problem({self.recipe.method.name}, {self.federation!r}, {self.model.parameters:,} parameters)"

    @property
    def poll(self) -> Poll | None:
        """When everybody is polled, and on what terms."""
        return self.method.poll(self.world.dim)

    def cohort(self, client_M: Tensor, alive_M: Tensor) -> Cohort:
        return Cohort(client_M, self.world.class_of_N[client_M], alive_M)

    def counts(self, client_M: Tensor) -> Tensor | None:
        """What weighs the clients' updates: their numbers of samples up to the cap; None: all weigh the same."""
        part = self.recipe.cohort
        if part.weights != "samples":
            return None
        count_M = self.federation.count_N[client_M]
        return count_M.clamp(max=part.cap) if part.cap else count_M

    def stream(self, purpose: str, client_M: Tensor, *rest: int | Tensor) -> Stream:
        return Stream.later(self.recipe.run.seed, purpose, client_M, *rest)

    def server_stream(self, purpose: str, *rest: int | Tensor) -> Stream:
        """A stream with a single row, for the server's own draws."""
        return self.stream(purpose, self.zero_1, *rest)

    def kept(self, x_MB: Tensor) -> Kept | None:
        """What pulls the embeddings of a batch back to those of the first network; None: nothing does."""
        weight = self.recipe.net.keep
        return Kept(weight, unit(self.model.embed_first(x_MB))) if weight else None

    @property
    def sampler(self) -> Sampler:
        recipe = self.recipe
        return Sampler(self.federation, recipe.local, recipe.augment, recipe.run.seed, self.longest, self.model.dtype)

    def batches(self, client_M: Tensor, number: int | Tensor) -> Iterator[Batch]:
        """The clients' local batches of a round, one for each step."""
        # A plain number would have a compiled draw compiled anew for every round.
        draw = step_batch if isinstance(number, int) else self.tools.draw
        return local_batches(self.sampler, client_M, number, draw)

    def batches_alone(self, client_1: Tensor, number: int) -> Iterator[Batch]:
        """The same for one client as its device draws them, which knows of nobody who has more samples."""
        alone = replace(self.sampler, longest=int(self.federation.count_N[client_1]))
        return local_batches(alone, client_1, number)

    def batches_ahead(self, client_AM: Tensor, first: int) -> list[Batch]:
        """The batches of A rounds from number `first` on, one for each local step, with an axis A in front."""
        return draw_ahead(self.sampler, client_AM, first, self.tools.draw)
