"""A federation: which client holds which class, and how to get the samples."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from selfsame.errors import SelfsameError
from selfsame.files import parse_json
from selfsame.streams import host_generator

_ENOUGH = 5  # people of whom two can be held out
_FULL_SCALE = {torch.uint8: 255.0, torch.int16: 32768.0}  # images and audio as they are stored


class Movable:
    """A frozen dataclass that goes to a device with all of its fields that can."""

    def to(self, device: torch.device | str) -> Self:
        held = {part.name: getattr(self, part.name) for part in fields(self)}  # type: ignore[arg-type]
        moved = {name: value.to(device) for name, value in held.items() if hasattr(value, "to")}
        return replace(self, **moved)  # type: ignore[type-var]


class Source(Protocol):
    """Where the clients' training samples come from."""

    on_host: ClassVar[bool]  # rows are fetched by the host, so a CUDA graph or a compiled function cannot draw them

    def rows(self, client_M: Tensor, index_MB: Tensor) -> Tensor:
        """Raw samples (M, B, *shape), uint8 or float32; index_MB counts within each client."""
        ...

    def to(self, device: torch.device | str) -> Source: ...


@dataclass(frozen=True)
class Held(Movable):
    """All samples in one tensor, client after client."""

    x: Tensor | Rows  # (n, *shape)
    start_N: Tensor

    on_host: ClassVar[bool] = False

    def rows(self, client_M: Tensor, index_MB: Tensor) -> Tensor:
        flat = (self.start_N[client_M][:, None] + index_MB).flatten()
        return self.x[flat].unflatten(0, index_MB.shape)


@dataclass(frozen=True)
class Rows:
    """Samples in a memory-mapped array, read when asked for: as much of a tensor as evaluation needs."""

    store: NDArray[Any]  # (any number, *shape)
    row: NDArray[np.int64]  # which of them, in order
    device: torch.device = torch.device("cpu")  # noqa: RUF009  where the samples that are asked for go

    def __len__(self) -> int:
        return len(self.row)

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.row), *self.store.shape[1:])

    @property
    def row_bytes(self) -> int:
        """What one sample takes."""
        return self.store.itemsize * math.prod(self.store.shape[1:])

    def __getitem__(self, which: slice | Tensor) -> Tensor:
        """The samples of a slice, of indices or of a mask."""
        row = self.row[which] if isinstance(which, slice) else self.row[which.cpu().numpy()]
        return torch.from_numpy(np.take(self.store, row, axis=0)).to(self.device)

    def split(self, size: int) -> Iterator[Tensor]:
        """All samples, `size` at a time."""
        return (self[begin : begin + size] for begin in range(0, len(self), size))

    def pick(self, row: NDArray[np.int64]) -> Rows:
        """Some of the samples, still unread."""
        return replace(self, row=self.row[row])

    def to(self, device: torch.device | str) -> Rows:
        return replace(self, device=torch.device(device))


@dataclass(frozen=True)
class Mapped(Held):
    """Rows that may be more than memory holds; only those of a batch are read and moved. `start_N` stays on the CPU."""

    on_host: ClassVar[bool] = True

    def rows(self, client_M: Tensor, index_MB: Tensor) -> Tensor:
        return super().rows(client_M.cpu(), index_MB.cpu())

    def to(self, device: torch.device | str) -> Self:
        return replace(self, x=self.x.to(device))


@dataclass(frozen=True)
class Samples(Movable):
    """Labelled samples for evaluation."""

    x: Tensor | Rows
    y: Tensor

    def __repr__(self) -> str:
        return f"Samples({len(self.y):,} of {'x'.join(map(str, self.x.shape[1:]))})"

    @staticmethod
    def none(shape: tuple[int, ...] = (), dtype: torch.dtype = torch.uint8) -> Samples:
        """No samples of a shape."""
        return Samples(torch.empty(0, *shape, dtype=dtype), torch.empty(0, dtype=torch.int64))


@dataclass(frozen=True)
class Trials(Movable):
    """Pairs of unseen samples to verify: T pairs of places in `Federation.unseen`."""

    index_a: Tensor
    index_b: Tensor
    same: Tensor  # bool: of one person
    fold: Tensor  # 0 throughout where the publisher defines no folds

    def __len__(self) -> int:
        return len(self.same)

    @staticmethod
    def none() -> Trials:
        """No pairs."""
        empty = torch.empty(0, dtype=torch.int64)
        return Trials(empty, empty, empty.bool(), empty)


@dataclass(frozen=True)
class Federation(Movable):
    """N clients, each with the samples of one class, and the test samples of seen and unseen classes."""

    name: str
    shape: tuple[int, ...]  # of one sample
    class_of_N: Tensor
    count_N: Tensor
    source: Source
    test: Samples  # y: class of a seen class, 0 .. classes-1
    unseen: Samples  # y: any integers; classes that no client holds
    mean: tuple[float, ...] = (0.0,)  # per channel, after integers are divided by their full scale
    std: tuple[float, ...] = (1.0,)
    notes: tuple[str, ...] = ()  # what a user should know, e.g. skipped people
    class_names: tuple[str, ...] = field(default=(), repr=False)
    validation: Samples = field(default_factory=Samples.none)  # of seen classes, for choosing settings
    trials: Trials = field(default_factory=Trials.none)
    columns: tuple[str, ...] = field(default=(), repr=False)  # of a table, in the order of a sample's numbers
    left_out: tuple[str, ...] = field(default=(), repr=False)  # every file and person not used, and why, one line each

    @classmethod
    def from_arrays(
        cls,
        samples: Any,
        people: Sequence[Any],
        *,
        name: str = "arrays",
        test: int = 2,
        unseen_share: float = 0.2,
        seed: int = 0,
    ) -> Federation:
        """One client per person from your own arrays: `samples` (n, *shape), and whose each is.

        Images are (n, channels, height, width) of bytes, or (n, height, width) in grey; recordings (n, 1, samples) of
        16 bits; anything else float32, e.g. (n, features). Of each client `test` samples are kept for evaluation, and
        a share of the people is unseen in training.
        """
        return _of_arrays(name, samples, people, test, unseen_share, seed)

    def __repr__(self) -> str:
        sizes = (
            f"{int(self.count_N.sum()):,} training, {len(self.test.y):,} test, {len(self.unseen.y):,} unseen samples"
        )
        shape = "x".join(map(str, self.shape))
        return f"Federation({self.name}: {self.clients:,} clients, {self.classes:,} classes of {shape}, {sizes})"

    def name_of(self, label: int) -> str:
        """A person in words, seen or unseen."""
        return self.class_names[label] if 0 <= label < len(self.class_names) else f"person {label}"

    @property
    def clients(self) -> int:
        return len(self.class_of_N)

    @property
    def empty(self) -> bool:
        """Whether it only says what samples look like (`without_samples`)."""
        return isinstance(self.source, Held) and not len(self.source.x)

    @property
    def classes(self) -> int:
        return int(self.class_of_N.max()) + 1 if len(self.class_of_N) else 0

    def scale(self, raw: Tensor) -> Tensor:
        """Raw samples (..., *shape) as the network wants them: float, channel-wise standardised."""
        full = _FULL_SCALE.get(raw.dtype)
        x = raw if full is None else raw.to(torch.float32) / full
        mean, std = (self._channels(values, x) for values in (self.mean, self.std))
        return (x - mean) / std

    def full_scale(self) -> Federation:
        """The same data for a network that takes samples as they are, full scale 1, not standardised."""
        return replace(self, mean=(0.0,), std=(1.0,))

    def _channels(self, values: tuple[float, ...], like: Tensor) -> Tensor:
        """One number per channel, made on the device: a copy from the CPU could not be captured in a CUDA graph."""
        return torch.cat([like.new_full((1,), value) for value in values]).reshape(-1, *(1 for _ in self.shape[1:]))


def _of_arrays(name: str, samples: Any, people: Sequence[Any], test: int, unseen_share: float, seed: int) -> Federation:
    x = _raw(name, samples)
    if len(x) != len(people):
        raise SelfsameError(f"{name}: {len(x):,} samples, but {len(people):,} entries of people")
    whose = [str(one) for one in people]
    places: dict[str, list[int]] = {}
    for place, one in enumerate(whose):
        places.setdefault(one, []).append(place)
    everybody = sorted(places)
    row_P = [torch.tensor(places[who]) for who in everybody]
    order = host_generator(seed, "arrays/unseen").permutation(len(everybody))
    count_P = np.array([len(rows) for rows in row_P])
    pool = [int(p) for p in order if count_P[p] >= 2]
    away = set(pool[: share_of(name, count_P, unseen_share)])
    seen = [p for p in range(len(everybody)) if p not in away and len(row_P[p]) > test]
    if len(seen) < 2:
        raise SelfsameError(f"{name}: {len(seen)} people have more than {test} samples, at least 2 are needed")
    few = [everybody[p] for p in range(len(everybody)) if p not in away and len(row_P[p]) <= test]
    mixed = [
        row_P[p][torch.from_numpy(host_generator(seed, "arrays/split", p).permutation(len(row_P[p])))] for p in seen
    ]
    train_C, test_C = [rows[test:] for rows in mixed], [rows[:test] for rows in mixed]
    gone = sorted(away)
    held = torch.cat(train_C)
    mean, std = _scales(x[held])
    return from_classes(
        name,
        x[held],
        _labels(train_C),
        test=Samples(x[torch.cat(test_C)], _labels(test_C)),
        unseen=Samples(x[torch.cat([row_P[p] for p in gone])], _labels([row_P[p] for p in gone], len(seen)))
        if gone
        else Samples.none(tuple(x.shape[1:]), x.dtype),
        mean=mean,
        std=std,
        class_names=tuple(everybody[p] for p in (*seen, *gone)),
        notes=(f"{len(few)} people are no clients, with {test} samples or fewer: {', '.join(few[:5])}",) if few else (),
    )


def _raw(name: str, samples: Any) -> Tensor:
    """Samples as they are stored, checked."""
    x = torch.as_tensor(np.asarray(samples) if not isinstance(samples, Tensor) else samples)
    x = x.to(torch.float32) if x.is_floating_point() else x
    if x.dtype not in RAW.values() or x.dim() < 2:
        raise SelfsameError(f"{name}: samples are {x.dtype} {tuple(x.shape)}, expected (n, ...) of {', '.join(RAW)}")
    if x.is_floating_point() and not bool(x.isfinite().all()):
        raise SelfsameError(f"{name}: some samples hold values that are not finite")
    return x[:, None] if x.dim() == 3 and x.dtype == torch.uint8 else x


def share_of(name: str, count_P: NDArray[np.int64], share: float, least: int = 2) -> int:
    """How many people are a share of those who have `least` samples; of five or more never one alone.

    Nobody can be told apart from one alone.
    """
    if not 0.0 <= share < 1.0:
        raise SelfsameError(f"{name}: unseen_share must be 0 or more and below 1, got {share}")
    there = int((count_P >= least).sum())
    number = int(share * there)
    return 2 if number == 1 and there >= _ENOUGH else number


def _labels(parts: Sequence[Tensor], first: int = 0) -> Tensor:
    return torch.cat([torch.full((len(part),), first + number) for number, part in enumerate(parts)])


def _scales(x: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel, after integers are divided by their full scale."""
    wide = x.double() / _FULL_SCALE.get(x.dtype, 1.0)
    over = [0, *range(2, x.dim())]
    std = wide.std(over, correction=0)
    return tuple(wide.mean(over).tolist()), tuple(torch.where(std > 1e-6, std, torch.ones_like(std)).tolist())


def from_classes(
    name: str,
    x: Tensor,
    y: Tensor,
    *,
    test: Samples,
    unseen: Samples,
    clients_per_class: int = 1,
    **more: Any,
) -> Federation:
    """Deal the samples of each class (labels 0 .. C-1) out to `clients_per_class` clients of their own.

    Client i holds class i // clients_per_class; shares differ by at most one sample. `more`: fields of the federation.
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
        **more,
    )


SAMPLES = "samples.json"  # in the folder of a run on devices
RAW = {"uint8": torch.uint8, "int16": torch.int16, "float32": torch.float32}  # how samples come, by name


def without_samples(
    shape: tuple[int, ...],
    raw: str,
    clients: int,
    classes: int,
    mean: tuple[float, ...] = (0.0,),
    std: tuple[float, ...] = (1.0,),
) -> Federation:
    """A federation as a server knows it that has no data of its own."""
    if raw not in RAW:
        raise SelfsameError(f"samples: {raw!r} is not one of {', '.join(RAW)}")
    if not (clients >= 1 and 1 <= classes <= clients):
        raise SelfsameError(f"clients: needs at least 1, and 1 to {clients} classes, got {clients} and {classes}")
    class_of_N = torch.arange(clients).clamp(max=classes - 1)
    none = Samples.none(shape, RAW[raw])
    source = Held(torch.empty(0, *shape, dtype=RAW[raw]), torch.zeros(clients, dtype=torch.int64))
    count_N = torch.ones(clients, dtype=torch.int64)
    return Federation("devices", shape, class_of_N, count_N, source, none, none, mean, std)


def written_samples(federation: Federation, raw: str) -> dict[str, Any]:
    """The arguments of `without_samples` for this federation, as JSON takes them."""
    return {
        "shape": list(federation.shape),
        "raw": raw,
        "clients": federation.clients,
        "classes": federation.classes,
        "mean": list(federation.mean),
        "std": list(federation.std),
    }


def read_samples(path: Path) -> Federation:
    """What `written_samples` left in a file."""
    try:
        given = parse_json(path.read_bytes())
        tuples = {name: tuple(given[name]) for name in ("shape", "mean", "std")}
        return without_samples(**{**given, **tuples})
    except (OSError, ValueError, TypeError, KeyError, RuntimeError, RecursionError) as error:
        raise SelfsameError(f"{path}: damaged, or not of this version ({error})") from None
