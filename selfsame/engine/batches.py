"""The local batches of a cohort, the same for a client whoever else is in it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from selfsame.config.recipe import AugmentPart, LocalPart
from selfsame.data.clips import HeldClips, MappedClips
from selfsame.data.federation import Federation
from selfsame.engine.augment import augment
from selfsame.methods.wire import finite_rows
from selfsame.streams import Stream

_TOP = 2**62
_CROP = 4  # the part of the stream that cuts recordings; augment takes 0 to 3
# Beyond this many samples a client, a batch is drawn with replacement: sorting them all would cost more than training.
_SORT_LIMIT = 16384


@dataclass(frozen=True)
class Batch:
    """Scaled samples of M clients and which of them count (a client may have fewer than B).

    A client with a sample that is not finite is not sound, and its samples here are zeros: in a backward pass that all
    clients share, a NaN of one would reach everybody, whatever its weight, since 0 * NaN is NaN.
    """

    x_MB: Tensor
    mask_MB: Tensor
    sound_M: Tensor

    def parts(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.x_MB, self.mask_MB, self.sound_M

    def each(self, change: Callable[[Tensor], Tensor]) -> Batch:
        """The same change of all three."""
        return Batch(*(change(part) for part in self.parts()))


@dataclass(frozen=True)
class Sampler:
    """Where local batches come from."""

    federation: Federation
    local: LocalPart
    change: AugmentPart
    seed: int
    longest: int  # bounds the samples of every client that is asked for
    dtype: torch.dtype

    @property
    def size(self) -> int:
        """Samples in a batch, at most."""
        return min(self.local.batch, self.longest)


def _order(count_M: Tensor, longest: int, stream: Stream, take: int) -> tuple[Tensor, Tensor]:
    """The first `take` places of a random order of each client's samples, and which of them exist."""
    width = min(longest, _SORT_LIMIT)
    key = stream.bits(width) & (_TOP - 1)
    key = torch.where(torch.arange(width, device=key.device) < count_M[:, None], key, _TOP)
    key, index = key.topk(take, dim=1, largest=False) if take < width else key.sort(dim=1)
    good = key < _TOP
    if longest <= _SORT_LIMIT:
        return index, good
    # Each client by its own count: what it draws does not depend on who else is there.
    place = torch.arange(take, device=key.device)
    index, good = (F.pad(part, (0, take - part.shape[1])) for part in (index, good))
    large_M1 = count_M[:, None] > _SORT_LIMIT
    return torch.where(large_M1, stream.below(count_M, take), index), torch.where(
        large_M1, place < count_M[:, None], good
    )


def _fetch(sampler: Sampler, client_M: Tensor, index: Tensor, good: Tensor, stream: Stream) -> Batch:
    index = torch.where(good, index, 0)
    source = sampler.federation.source
    if isinstance(source, HeldClips | MappedClips):
        raw = source.crops(client_M, index, stream.fold(_CROP))
    else:
        raw = source.rows(client_M, index)
    x = augment(sampler.federation.scale(raw), sampler.change, stream).to(sampler.dtype)
    sound_M = torch.ones_like(client_M, dtype=torch.bool)
    if raw.is_floating_point():
        sound_M = finite_rows(raw)
        x = torch.where(sound_M.reshape(-1, *(1 for _ in x.shape[1:])), x, 0)
    return Batch(x, good.to(sampler.dtype), sound_M)


def step_batch(sampler: Sampler, client_M: Tensor, round: int | Tensor, step: int | Tensor) -> Batch:
    """The batch of one local step: different samples of each client, drawn at random.

    `round` may hold one number per row, for clients of several rounds at once.
    """
    count_M = sampler.federation.count_N[client_M]
    stream = Stream.named(sampler.seed, "batch", client_M, round, step)
    index_MB, good_MB = _order(count_M, sampler.longest, stream, sampler.size)
    noise = Stream.named(sampler.seed, "augment", client_M, round, step)
    return _fetch(sampler, client_M, index_MB, good_MB, noise)


def steps_a_round(local: LocalPart, longest: int) -> int:
    """Local SGD steps in a round, for the client with most samples."""
    if local.epochs:
        return local.epochs * -(-longest // min(local.batch, longest))
    return local.steps


def local_batches(
    sampler: Sampler, client_M: Tensor, round: int | Tensor, draw: Callable[..., Batch] = step_batch
) -> Iterator[Batch]:
    """One batch for each local step.

    Steps: see `step_batch`, of which `draw` may be a compiled copy. Epochs: passes in random order; the last batch of a
    pass may be short, and a client that has finished its pass gets empty batches until the others have.
    """
    local, longest, seed = sampler.local, sampler.longest, sampler.seed
    if not local.epochs:
        for step in range(local.steps):
            # A number among the arguments of a compiled function would have it compiled anew for every step.
            at = step if isinstance(round, int) else torch.tensor(step, device=client_M.device)
            yield draw(sampler, client_M, round, at)
        return
    count_M = sampler.federation.count_N[client_M]
    step = 0
    for epoch in range(local.epochs):
        stream = Stream.named(seed, "epoch", client_M, round, epoch)
        index_ML, good_ML = _order(count_M, longest, stream, longest)
        for begin in range(0, longest, sampler.size):
            part = slice(begin, begin + sampler.size)
            noise = Stream.named(seed, "augment", client_M, round, step)
            yield _fetch(sampler, client_M, index_ML[:, part], good_ML[:, part], noise)
            step += 1


def rounds_ahead(sampler: Sampler, size: int, most: int, memory: int) -> int:
    """For how many rounds of `size` clients batches are drawn at once, within so many bytes: `most`, or fewer.

    The many small steps of a draw take as long for one round as for many, and a draw is a function of the seed, the
    client and the round alone, so how many rounds are drawn together changes nothing. It also happens outside a
    captured CUDA graph, so that samples may come from the host. 0: passes over the data are not drawn so.
    """
    samples = sampler.local.steps * size * sampler.size
    each = samples * math.prod(sampler.federation.shape) * sampler.dtype.itemsize
    return 0 if sampler.local.epochs else max(1, min(most, memory // max(1, each)))


def draw_ahead(sampler: Sampler, client_AM: Tensor, first: int, draw: Callable[..., Batch]) -> list[Batch]:
    """The batches of A rounds from number `first` on, one for each local step, with an axis A in front."""
    device, (rounds, size) = client_AM.device, client_AM.shape
    number_AM = torch.arange(first, first + rounds, device=device).repeat_interleave(size)
    steps = [torch.full((), step, dtype=torch.int64, device=device) for step in range(sampler.local.steps)]
    drawn = [draw(sampler, client_AM.flatten(), number_AM, step) for step in steps]
    return [batch.each(lambda part: part.unflatten(0, (rounds, size))) for batch in drawn]
