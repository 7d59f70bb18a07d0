"""A federation: which client holds which class, and how to get the samples."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor

from selfsame.errors import SelfsameError


class Source(Protocol):
    """Where the clients' training samples come from."""

    def rows(self, client_M: Tensor, index_MB: Tensor) -> Tensor:
        """Raw samples (M, B, *shape), uint8 or float32; index_MB counts within each client."""
        ...

    def to(self, device: torch.device | str) -> Source: ...


@dataclass(frozen=True)
class Held:
    """All samples in one tensor, client after client."""

    x: Tensor  # (n, *shape)
    start_N: Tensor

    def rows(self, client_M: Tensor, index_MB: Tensor) -> Tensor:
        flat = (self.start_N[client_M][:, None] + index_MB).flatten()
        return self.x[flat].unflatten(0, index_MB.shape)

    def to(self, device: torch.device | str) -> Held:
        return Held(self.x.to(device), self.start_N.to(device))


@dataclass(frozen=True)
class Samples:
    """Labelled samples for evaluation."""

    x: Tensor
    y: Tensor

    def to(self, device: torch.device | str) -> Samples:
        return Samples(self.x.to(device), self.y.to(device))


@dataclass(frozen=True)
class Federation:
    """N clients, each with the samples of one class, and the test samples of seen and unseen classes."""

    name: str
    shape: tuple[int, ...]  # of one sample
    class_of_N: Tensor
    count_N: Tensor
    source: Source
    test: Samples  # y: class of a seen class, 0 .. classes-1
    unseen: Samples  # y: any integers; classes that no client holds
    mean: tuple[float, ...] = (0.0,)  # per channel, after uint8 is divided by 255
    std: tuple[float, ...] = (1.0,)
    notes: tuple[str, ...] = ()  # what a user should know, e.g. skipped people
    class_names: tuple[str, ...] = field(default=(), repr=False)

    @property
    def clients(self) -> int:
        return len(self.class_of_N)

    @property
    def classes(self) -> int:
        return int(self.class_of_N.max()) + 1 if len(self.class_of_N) else 0

    def to(self, device: torch.device | str) -> Federation:
        return replace(
            self,
            class_of_N=self.class_of_N.to(device),
            count_N=self.count_N.to(device),
            source=self.source.to(device),
            test=self.test.to(device),
            unseen=self.unseen.to(device),
        )

    def scale(self, raw: Tensor) -> Tensor:
        """Raw samples (..., *shape) as the network wants them: float, channel-wise standardised."""
        x = raw.to(torch.float32) / 255.0 if raw.dtype == torch.uint8 else raw
        mean, std = (self._channels(values, x) for values in (self.mean, self.std))
        return (x - mean) / std

    def _channels(self, values: tuple[float, ...], like: Tensor) -> Tensor:
        """One number a channel, made on the device: a copy from the CPU could not be captured in a CUDA graph."""
        return torch.cat([like.new_full((1,), value) for value in values]).reshape(-1, *(1 for _ in self.shape[1:]))


def from_classes(
    name: str,
    x: Tensor,
    y: Tensor,
    *,
    test: Samples,
    unseen: Samples,
    clients_per_class: int = 1,
    mean: tuple[float, ...] = (0.0,),
    std: tuple[float, ...] = (1.0,),
    notes: tuple[str, ...] = (),
    class_names: tuple[str, ...] = (),
) -> Federation:
    """Deal the samples of each class (labels 0 .. C-1) out to `clients_per_class` clients of their own.

    Client i holds class i // clients_per_class; shares differ by at most one sample.
    """
    if clients_per_class < 1:
        raise SelfsameError(f"{name}: clients_per_class must be at least 1, got {clients_per_class}")
    if len(y) == 0:
        raise SelfsameError(f"{name}: no training samples")
    order = torch.argsort(y, stable=True)
    per_class = torch.bincount(y)
    if int(per_class.min()) < clients_per_class:
        raise SelfsameError(
            f"{name}: class {int(per_class.argmin())} has {int(per_class.min())} samples, "
            f"too few for {clients_per_class} clients"
        )
    share = per_class[:, None].div(clients_per_class, rounding_mode="floor").repeat(1, clients_per_class)
    share += torch.arange(clients_per_class)[None] < (per_class % clients_per_class)[:, None]
    count_N = share.flatten()
    start_N = torch.cumsum(count_N, 0) - count_N
    return Federation(
        name=name,
        shape=tuple(x.shape[1:]),
        class_of_N=torch.arange(len(per_class)).repeat_interleave(clients_per_class),
        count_N=count_N,
        source=Held(x[order].contiguous(), start_N),
        test=test,
        unseen=unseen,
        mean=mean,
        std=std,
        notes=notes,
        class_names=class_names,
    )
