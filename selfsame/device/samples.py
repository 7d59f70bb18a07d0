"""Samples from files, as the model's card wants them: images, arrays, recordings, rows of a table, or folders of these.

A device has neither torch nor the data sets' loaders: files are read with Pillow, numpy and the standard library.
"""

from __future__ import annotations

import csv
import math
import wave
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from selfsame.device.card import Card, Raw
from selfsame.device.pictures import decode_picture
from selfsame.errors import SelfsameError, one_line

_MOST_BYTES = 1 << 30
_SHORTEST = 0.1  # seconds of a recording


def read_samples(paths: Sequence[Path], card: Card, resize: bool = False) -> list[Raw]:
    """The samples in files, and in the files of folders by name, each of the card's shape and type."""
    found: list[Raw] = []
    for file in (file for path in paths for file in _files(path)):
        reader = _READERS.get(file.suffix.lower())
        if reader is None:
            raise SelfsameError(f"{file}: not a sample by its name; expected {', '.join(_READERS)}")
        size = file.stat().st_size
        if not 0 < size <= _MOST_BYTES:
            raise SelfsameError(f"{file}: empty file" if size == 0 else f"{file}: larger than {_MOST_BYTES >> 20} MiB")
        found += [_fit(file, sample, card) for sample in reader(file, card, resize)]
    if not found:
        raise SelfsameError("samples: name at least one file or folder")
    return found


def _files(path: Path) -> list[Path]:
    """The file itself, or all files of a folder but hidden ones."""
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise SelfsameError(f"{path}: no such file or folder")
    inside = sorted(file for file in path.iterdir() if not file.name.startswith("."))
    if not inside:
        raise SelfsameError(f"{path}: no files in this folder")
    for file in inside:
        if not file.is_file():
            raise SelfsameError(f"{file}: expected a file; folders within a folder are not read")
    return inside


def _fit(file: Path, sample: Raw, card: Card) -> Raw:
    """A sample in the card's type, or a line that says what is wrong with it."""
    if sample.dtype.kind not in "iuf" or (sample.dtype.kind == "f" and card.dtype != "float32"):
        raise SelfsameError(f"{file}: holds {sample.dtype}, the model takes {card.dtype}")
    fits = len(sample.shape) == len(card.shape) and all(
        want in (-1, has) for want, has in zip(card.shape, sample.shape)
    )
    if not fits or not sample.size:
        raise SelfsameError(f"{file}: a sample of shape {_shape(sample.shape)}, the model takes {_shape(card.shape)}")
    if not np.isfinite(sample).all():
        raise SelfsameError(f"{file}: holds values that are not finite")
    low, high = float(sample.min()), float(sample.max())
    if not card.low <= low <= high <= card.high:
        raise SelfsameError(f"{file}: values from {low:g} to {high:g}, the model takes {card.low:g} to {card.high:g}")
    return np.array(sample, dtype=card.dtype, order="C")  # a copy of its own: decoders give memory that is read-only


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join("any" if size == -1 else str(size) for size in shape) or "()"


def _image(file: Path, card: Card, resize: bool) -> list[Raw]:
    """A JPEG or PNG file in the channels that the model takes; another size is an error unless it may be resized."""
    if len(card.shape) != 3 or card.shape[0] not in (1, 3) or card.dtype != "uint8":
        raise SelfsameError(f"{file}: an image, the model takes {card.dtype} of shape {_shape(card.shape)}")
    channels, height, width = card.shape
    try:
        return [decode_picture(file, channels, (height, width), ("JPEG", "PNG"), resize=resize)]
    except SelfsameError as error:
        raise SelfsameError(f"{file}: {error}") from error


def _array(file: Path, card: Card, resize: bool) -> list[Raw]:
    """An .npy file of one sample, or of several along its first axis."""
    try:
        # Mapped, a header that promises more than the file holds is refused before anything is allocated.
        array = np.load(file, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # a damaged header makes the parser raise anything
        raise SelfsameError(f"{file}: not an array file ({one_line(error, file)})") from error
    if not isinstance(array, np.ndarray):
        raise SelfsameError(f"{file}: not an array file, but an archive of them")
    several = array.ndim == len(card.shape) + 1
    if several and not len(array):
        raise SelfsameError(f"{file}: holds no sample")
    return [np.array(one) for one in (array if several else array[None])]


def _recording(file: Path, card: Card, resize: bool) -> list[Raw]:
    """A .wav file of 16 bits and one channel; a model of a fixed length takes its middle, a short one is repeated."""
    if len(card.shape) != 2 or card.shape[0] != 1 or card.dtype != "int16":
        raise SelfsameError(f"{file}: a recording, the model takes {card.dtype} of shape {_shape(card.shape)}")
    try:
        with wave.open(str(file)) as sound:
            channels, width, rate, number = sound.getparams()[:4]
            # No more than the file can hold: a false header must not allocate gigabytes.
            raw = sound.readframes(min(number, file.stat().st_size // (channels * width) + 1))
    except Exception as error:  # a damaged header makes the parser raise anything
        raise SelfsameError(f"{file}: not a PCM wav file ({one_line(error, file)})") from error
    if (channels, width) != (1, 2):
        raise SelfsameError(f"{file}: {channels} channels of {8 * width} bits, expected 1 channel of 16 bits")
    if len(raw) != 2 * number:
        raise SelfsameError(f"{file}: truncated: {len(raw) // 2:,} of {number:,} samples are there")
    if card.rate and rate != card.rate:
        raise SelfsameError(f"{file}: {rate} samples a second, the model takes {card.rate}; it is not resampled here")
    pcm = np.frombuffer(raw, "<i2")
    if len(pcm) < max(1.0, _SHORTEST * rate):
        raise SelfsameError(f"{file}: {len(pcm) / max(rate, 1):.4f} s of audio, at least {_SHORTEST} s is needed")
    if int(pcm.min()) == int(pcm.max()):
        raise SelfsameError(f"{file}: silent: all samples are equal")
    length = card.shape[1]
    if length != -1:
        start = max(0, len(pcm) - length) // 2
        pcm = np.take(pcm, np.arange(start, start + length), mode="wrap")
    return [pcm[None]]


def _rows(file: Path, card: Card, resize: bool) -> list[Raw]:
    """A .csv file with one sample a row, its columns in the order of training; a first row of names is skipped."""
    if card.dtype != "float32" or -1 in card.shape:
        raise SelfsameError(f"{file}: a table, the model takes {card.dtype} of shape {_shape(card.shape)}")
    try:
        with open(file, encoding="utf-8-sig", newline="") as stream:
            reader = csv.reader(stream, strict=True)
            rows = [(reader.line_num, row) for row in reader if row]
    except (csv.Error, UnicodeDecodeError, OSError) as error:
        raise SelfsameError(f"{file}: not CSV ({one_line(error, file)})") from error
    if rows and not any(_is_number(cell) for cell in rows[0][1]):
        rows = rows[1:]
    if not rows:
        raise SelfsameError(f"{file}: holds no row of numbers")
    wanted = math.prod(card.shape)
    out: list[Raw] = []
    for line, row in rows:
        if len(row) != wanted:
            raise SelfsameError(f"{file}: line {line}: {len(row)} cells, the model takes {wanted}")
        odd = next((place for place, cell in enumerate(row, 1) if not _is_number(cell)), None)
        if odd is not None:
            raise SelfsameError(f"{file}: line {line}: cell {odd} is not a finite number")
        out.append(np.array([float(cell) for cell in row]).reshape(card.shape))
    return out


def _is_number(cell: str) -> bool:
    try:
        return math.isfinite(float(cell))
    except ValueError:
        return False


_READERS: dict[str, Callable[[Path, Card, bool], list[Raw]]] = {
    ".png": _image,
    ".jpg": _image,
    ".jpeg": _image,
    ".npy": _array,
    ".wav": _recording,
    ".csv": _rows,
}
