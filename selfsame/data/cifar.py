"""CIFAR-10 and CIFAR-100 (Krizhevsky, 2009), the binary version: records of label bytes, then 3x32x32 pixels."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from selfsame.data.federation import Federation, Samples
from selfsame.data.images import federate
from selfsame.errors import SelfsameError

_PIXELS = 3 * 32 * 32


@dataclass(frozen=True)
class _Layout:
    """How one of the two sets is laid out; the last of `labels` (how many values each label byte has) is the class."""

    name: str
    folder: str
    train: tuple[str, ...]
    test: str
    labels: tuple[int, ...]
    class_names: str
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @property
    def wants(self) -> str:
        trains = self.train[0] if len(self.train) == 1 else f"{self.train[0]} to {self.train[-1]}"
        return (
            f"{trains} and {self.test} in PATH or PATH/{self.folder}; "
            f"unpack https://www.cs.toronto.edu/~kriz/{self.name[:5]}-{self.name[5:]}-binary.tar.gz"
        )


CIFAR10 = _Layout(
    name="cifar10",
    folder="cifar-10-batches-bin",
    train=tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
    test="test_batch.bin",
    labels=(10,),
    class_names="batches.meta.txt",
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2470, 0.2435, 0.2616),
)
CIFAR100 = _Layout(
    name="cifar100",
    folder="cifar-100-binary",
    train=("train.bin",),
    test="test.bin",
    labels=(20, 100),
    class_names="fine_label_names.txt",
    mean=(0.5071, 0.4865, 0.4409),
    std=(0.2673, 0.2564, 0.2762),
)


def load_cifar10(path: Path, *, held_out: int = 0, clients_per_class: int = 1) -> Federation:
    """Ten classes, of which the last `held_out` are unseen; training batches that are absent are left out."""
    return _load(CIFAR10, path, held_out, clients_per_class)


def load_cifar100(path: Path, *, held_out: int = 0, clients_per_class: int = 1) -> Federation:
    """A hundred fine classes, of which the last `held_out` are unseen."""
    return _load(CIFAR100, path, held_out, clients_per_class)


def _load(layout: _Layout, path: Path, held_out: int, clients_per_class: int) -> Federation:
    folder = path / layout.folder if (path / layout.folder).is_dir() else path
    there = [name for name in layout.train if (folder / name).is_file()]
    if not there or not (folder / layout.test).is_file():
        missing = layout.test if there else layout.train[0]
        raise SelfsameError(f"{folder}: {missing} not found; wanted: {layout.wants}")
    absent = [name for name in layout.train if name not in there]
    return federate(
        layout.name,
        _read(layout, *(folder / name for name in there)),
        _read(layout, folder / layout.test),
        classes=layout.labels[-1],
        held_out=held_out,
        clients_per_class=clients_per_class,
        mean=layout.mean,
        std=layout.std,
        notes=(f"trained without the absent {', '.join(absent)}",) if absent else (),
        class_names=_class_names(layout, folder / layout.class_names),
    )


def _read(layout: _Layout, *files: Path) -> Samples:
    records = [_records(layout, file) for file in files]
    rows = records[0] if len(records) == 1 else np.concatenate(records)
    width = len(layout.labels)
    x = torch.from_numpy(rows)[:, width:].unflatten(1, (3, 32, 32))  # a view; dealing to the clients copies it once
    return Samples(x, torch.from_numpy(rows[:, width - 1].astype(np.int64)))


def _records(layout: _Layout, file: Path) -> NDArray[np.uint8]:
    length = len(layout.labels) + _PIXELS
    try:
        size = file.stat().st_size
        raw = np.fromfile(file, np.uint8) if size and size % length == 0 else None
    except (OSError, MemoryError) as error:
        raise SelfsameError(f"{file}: cannot be read ({type(error).__name__})") from error
    if size == 0:
        raise SelfsameError(f"{file}: empty, expected records of {length} bytes")
    if raw is None or len(raw) != size:
        raise SelfsameError(f"{file}: {size} bytes are not whole records of {length}; truncated or not {layout.name}")
    rows = raw.reshape(-1, length)
    for column, values in enumerate(layout.labels):
        if int(rows[:, column].max()) >= values:
            at = int((rows[:, column] >= values).argmax())
            raise SelfsameError(
                f"{file}: label {rows[at, column]} of record {at} is not 0 to {values - 1}; not {layout.name}?"
            )
    return rows


def _class_names(layout: _Layout, file: Path) -> tuple[str, ...]:
    """The names beside the data, or none where that file is absent or odd: nothing depends on them."""
    try:
        with file.open(encoding="utf-8") as stream:
            names = tuple(line.strip() for line in stream.read(1 << 16).splitlines() if line.strip())
    except (OSError, UnicodeDecodeError):
        return ()
    return names if len(names) == layout.labels[-1] and all(name.isprintable() for name in names) else ()
