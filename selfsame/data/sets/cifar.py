"""CIFAR-10 and CIFAR-100 (Krizhevsky, 2009), the binary version or the one of Python pickles.

Binary: records of label bytes, then 3x32x32 pixels. Python: a dict of the pixels, an array, and of lists of labels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from selfsame.data.dataset import DataSet
from selfsame.data.federation import Federation, Samples
from selfsame.data.formats.pickles import as_text, read_pickle
from selfsame.data.images import ClassOptions, federate
from selfsame.errors import SelfsameError

_PIXELS = 3 * 32 * 32


@dataclass(frozen=True)
class _Layout:
    """How one of the two sets is laid out; the last of `labels` (how many values each label has) is the class."""

    name: str
    folder: str
    train: tuple[str, ...]
    test: str
    labels: tuple[int, ...]
    label_keys: tuple[str, ...]  # of the pickles
    pickled_folder: str
    class_names: str
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @property
    def wants(self) -> str:
        trains = self.train[0] if len(self.train) == 1 else f"{self.train[0]} to {self.train[-1]}"
        url = f"https://www.cs.toronto.edu/~kriz/{self.name[:5]}-{self.name[5:]}"
        return (
            f"{trains} and {self.test} in PATH or PATH/{self.folder} (or, without .bin, the pickles in "
            f"PATH/{self.pickled_folder}); unpack {url}-binary.tar.gz or {url}-python.tar.gz"
        )

    def find(self, path: Path) -> tuple[Path, bool]:
        """The folder with the files, and whether they are pickles."""
        for folder in (path / self.folder, path / self.pickled_folder, path):
            for pickled in (False, True):
                if any((folder / self.file(name, pickled)).is_file() for name in (*self.train, self.test)):
                    return folder, pickled
        return (path / self.folder if (path / self.folder).is_dir() else path), False

    @staticmethod
    def file(name: str, pickled: bool) -> str:
        return name.removesuffix(".bin") if pickled else name


_LAYOUT10 = _Layout(
    name="cifar10",
    folder="cifar-10-batches-bin",
    train=tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
    test="test_batch.bin",
    labels=(10,),
    label_keys=("labels",),
    pickled_folder="cifar-10-batches-py",
    class_names="batches.meta.txt",
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2470, 0.2435, 0.2616),
)
_LAYOUT100 = _Layout(
    name="cifar100",
    folder="cifar-100-binary",
    train=("train.bin",),
    test="test.bin",
    labels=(20, 100),
    label_keys=("coarse_labels", "fine_labels"),
    pickled_folder="cifar-100-python",
    class_names="fine_label_names.txt",
    mean=(0.5071, 0.4865, 0.4409),
    std=(0.2673, 0.2564, 0.2762),
)


def load_cifar(layout: _Layout, path: Path, options: ClassOptions) -> Federation:
    """Ten or a hundred classes, of which the last `held_out` are unseen; absent training batches are left out."""
    folder, pickled = layout.find(path)
    train, test = [layout.file(name, pickled) for name in layout.train], layout.file(layout.test, pickled)
    there = [name for name in train if (folder / name).is_file()]
    if not there or not (folder / test).is_file():
        raise SelfsameError(f"{folder}: {test if there else train[0]} not found; wanted: {layout.wants}")
    absent = [name for name in train if name not in there]
    return federate(
        layout.name,
        _read(layout, pickled, *(folder / name for name in there)),
        _read(layout, pickled, folder / test),
        options,
        classes=layout.labels[-1],
        mean=layout.mean,
        std=layout.std,
        notes=(f"trained without the absent {', '.join(absent)}",) if absent else (),
        class_names=_class_names(layout, folder, pickled),
    )


def faults(layout: _Layout, path: Path) -> Iterator[str]:
    """A line for each file that cannot be read."""
    folder, pickled = layout.find(path)
    for name in (*layout.train, layout.test):
        file = folder / layout.file(name, pickled)
        if file.is_file():
            try:
                _records(layout, file, pickled)
            except SelfsameError as error:
                yield str(error)


def _dataset(layout: _Layout, net: str, width: int) -> DataSet:
    loader, probe = partial(load_cifar, layout), partial(faults, layout)
    return DataSet(layout.name, loader, True, layout.wants, net, width, faults=probe, shared=ClassOptions())


CIFAR10 = _dataset(_LAYOUT10, "resnet32", 64)
CIFAR100 = _dataset(_LAYOUT100, "resnet18", 512)


def _read(layout: _Layout, pickled: bool, *files: Path) -> Samples:
    records = [_records(layout, file, pickled) for file in files]
    rows = records[0] if len(records) == 1 else np.concatenate(records)
    width = len(layout.labels)
    x = torch.from_numpy(rows)[:, width:].unflatten(1, (3, 32, 32))  # a view; dealing to the clients copies it once
    return Samples(x, torch.from_numpy(rows[:, width - 1].astype(np.int64)))


def _records(layout: _Layout, file: Path, pickled: bool) -> NDArray[np.uint8]:
    """Rows of labels, then pixels, with labels that exist."""
    rows = _unpickled(layout, file) if pickled else _binary(layout, file)
    for column, values in enumerate(layout.labels):
        if int(rows[:, column].max()) >= values:
            at = int((rows[:, column] >= values).argmax())
            raise SelfsameError(
                f"{file}: label {rows[at, column]} of record {at} is not 0 to {values - 1}; not {layout.name}?"
            )
    return rows


def _binary(layout: _Layout, file: Path) -> NDArray[np.uint8]:
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
    return raw.reshape(-1, length)


def _unpickled(layout: _Layout, file: Path) -> NDArray[np.uint8]:
    """The same rows as in the binary version."""
    found = read_pickle(file)
    pixels = found.get("data")
    if not isinstance(pixels, np.ndarray) or pixels.ndim != 2 or pixels.shape[1] != _PIXELS or not len(pixels):
        raise SelfsameError(f"{file}: expected 'data', images of {_PIXELS} bytes; not {layout.name}?")
    columns = [_labels(file, key, found.get(key), len(pixels)) for key in layout.label_keys]
    return np.concatenate([*columns, pixels], 1)


def _labels(file: Path, key: str, values: Any, images: int) -> NDArray[np.uint8]:
    if not isinstance(values, list) or len(values) != images:
        raise SelfsameError(f"{file}: expected '{key}', a list of {images} labels")
    if not all(type(value) is int and 0 <= value <= 255 for value in values):
        raise SelfsameError(f"{file}: '{key}' holds labels that are not small whole numbers")
    return np.array(values, np.uint8)[:, None]


def _class_names(layout: _Layout, folder: Path, pickled: bool) -> tuple[str, ...]:
    """The names beside the data, or none where that file is absent or odd: nothing depends on them."""
    try:
        if pickled:
            meta = read_pickle(folder / ("batches.meta" if layout is _LAYOUT10 else "meta"))
            listed = meta.get("label_names" if layout is _LAYOUT10 else "fine_label_names")
            names = tuple(as_text(name) for name in listed) if isinstance(listed, list) else ()
        else:
            with (folder / layout.class_names).open(encoding="utf-8") as stream:
                names = tuple(line.strip() for line in stream.read(1 << 16).splitlines() if line.strip())
    except (OSError, UnicodeDecodeError, SelfsameError):
        return ()
    return names if len(names) == layout.labels[-1] and all(name.isprintable() for name in names) else ()
