"""The idx format of MNIST: two zero bytes, a type, the number of dimensions, their sizes, then the values."""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import torch
from numpy.typing import NDArray

from selfsame.data.federation import Samples
from selfsame.errors import SelfsameError, one_line

_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_MOST_BYTES = 1 << 30  # EMNIST, the largest set published as idx, needs 0.6 GB
_GZIP_RATIO = 1032  # deflate cannot shrink more than this


def read_idx(path: Path) -> NDArray[Any]:
    """The array in an idx file, plain or (by its name) gzipped; nothing is allocated on the header's word alone."""
    try:
        size = path.stat().st_size
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as stream:
            return _read(path, cast(BinaryIO, stream), size * _GZIP_RATIO if path.suffix == ".gz" else size)
    except (OSError, EOFError, zlib.error, MemoryError) as error:
        reason = getattr(error, "strerror", None) or one_line(error)
        raise SelfsameError(f"{path}: cannot be read ({reason}); fetch the file again") from error


def _read(path: Path, stream: BinaryIO, most: int) -> NDArray[Any]:
    magic = stream.read(4)
    if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] not in _TYPES or not 1 <= magic[3] <= 8:
        raise SelfsameError(f"{path}: not an idx file, it begins with {magic.hex() or 'nothing'}")
    dims = stream.read(4 * magic[3])
    if len(dims) < 4 * magic[3]:
        raise SelfsameError(f"{path}: truncated within the header")
    shape = tuple(int.from_bytes(dims[at : at + 4], "big") for at in range(0, len(dims), 4))
    dtype = np.dtype(_TYPES[magic[2]])
    expected = math.prod(shape) * dtype.itemsize
    if expected == 0:
        raise SelfsameError(f"{path}: empty, the header says {_sizes(shape)} values")
    if expected > min(most, _MOST_BYTES):
        raise SelfsameError(f"{path}: the header promises {_sizes(shape)} values, more than the file can hold")
    body = stream.read(expected + 1)  # one more than expected, never all of what may be a gzip bomb
    if len(body) != expected:
        fault = "truncated" if len(body) < expected else "longer than its header says"
        raise SelfsameError(f"{path}: {fault}, expected {_sizes(shape)} values")
    values = np.frombuffer(bytearray(body), dtype).reshape(shape)
    if dtype.kind == "f" and not np.isfinite(values).all():
        raise SelfsameError(f"{path}: holds values that are not finite")
    return values


def read_labelled(images_file: Path, labels_file: Path, classes: int, first: int = 0) -> Samples:
    """Images (n, 1, H, W) and their classes 0 .. classes-1, which the file numbers from `first` on."""
    images, labels = read_images(images_file), read_idx(labels_file)
    if labels.ndim != 1 or labels.dtype != np.uint8:
        raise SelfsameError(f"{labels_file}: expected bytes in 1 dimension, got {labels.dtype} in {labels.ndim}")
    if len(images) != len(labels):
        raise SelfsameError(f"{labels_file}: {len(labels)} labels for the {len(images)} images of {images_file.name}")
    odd = (labels < first) | (labels >= first + classes)
    if odd.any():
        at = int(odd.argmax())
        raise SelfsameError(
            f"{labels_file}: label {int(labels[at])} of image {at} is not {first} to {first + classes - 1}"
        )
    return Samples(torch.from_numpy(images)[:, None], torch.from_numpy(labels).long() - first)


def read_images(file: Path) -> NDArray[np.uint8]:
    """Images (n, H, W) of bytes."""
    images = read_idx(file)
    if images.ndim != 3 or images.dtype != np.uint8:
        raise SelfsameError(f"{file}: expected bytes in 3 dimensions, got {images.dtype} in {images.ndim}")
    return images


@dataclass(frozen=True)
class IdxFolder:
    """Where the files of a set may lie: the first of the inner folders of `path` that has one, plain or gzipped."""

    path: Path
    inner: Sequence[str]

    def find(self, name: str) -> Path | None:
        places = (self.path / folder for folder in self.inner)
        return next((f for place in places for f in (place / name, place / f"{name}.gz") if f.is_file()), None)

    def read_part(self, stem: str, wants: str, classes: int, first: int = 0) -> Samples:
        """The labelled images of STEM-images-idx3-ubyte and STEM-labels-idx1-ubyte."""
        files = []
        for name in part_files(stem):
            file = self.find(name)
            if file is None:
                raise SelfsameError(f"{self.path}: {name} not found; wanted: {wants}")
            files.append(file)
        return read_labelled(files[0], files[1], classes, first)


def idx_faults(inner: Sequence[str], names: Iterable[str], path: Path) -> Iterator[str]:
    """A line for each of the files that is there and cannot be read."""
    for file in map(IdxFolder(path, inner).find, names):
        try:
            if file is not None:
                read_idx(file)
        except SelfsameError as error:
            yield str(error)


def part_files(stem: str) -> tuple[str, str]:
    """The names of the files of images and of labels."""
    return f"{stem}-images-idx3-ubyte", f"{stem}-labels-idx1-ubyte"


def _sizes(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))
