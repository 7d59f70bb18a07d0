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
from selfsame.device.pictures import ENDINGS, FORMATS, decode_picture
from selfsame.errors import SelfsameError, not_installed, one_line

_MOST_BYTES = 1 << 30
_SHORTEST = 0.1  # seconds of a recording
_NAMED = 5  # columns that an error names


def read_samples(paths: Sequence[Path], card: Card, resize: bool = False) -> list[Raw]:
    """The samples in files, and in the files of folders by name, each of the card's shape and type."""
    return [sample for _, sample in read_named(paths, card, resize)]


def read_named(paths: Sequence[Path], card: Card, resize: bool = False) -> list[tuple[str, Raw]]:
    """The same, each with its file's path, and its number there from 0 on where the file holds several."""
    found: list[tuple[str, Raw]] = []
    for file in (file for path in paths for file in _files(path)):
        reader = _READERS.get(file.suffix.lower())
        if reader is None:
            raise SelfsameError(f"{file}: not a sample by its name; expected {', '.join(_READERS)}")
        size = file.stat().st_size
        if not 0 < size <= _MOST_BYTES:
            raise SelfsameError(f"{file}: empty file" if size == 0 else f"{file}: larger than {_MOST_BYTES >> 20} MiB")
        several = reader(file, card, resize)
        names = [str(file)] if len(several) == 1 else [f"{file}[{number}]" for number in range(len(several))]
        found += [(name, _fit(file, sample, card)) for name, sample in zip(names, several, strict=True)]
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
    """A picture in the channels that the model takes; another size is an error unless it may be resized."""
    if len(card.shape) != 3 or card.shape[0] not in (1, 3) or card.dtype != "uint8":
        raise SelfsameError(f"{file}: an image, the model takes {card.dtype} of shape {_shape(card.shape)}")
    channels, height, width = card.shape
    try:
        return [decode_picture(file, channels, (height, width), FORMATS, resize=resize)]
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
    """A .wav or .flac file of 16 bits and one channel; for a fixed length its middle, or itself repeated."""
    if len(card.shape) != 2 or card.shape[0] != 1 or card.dtype != "int16":
        raise SelfsameError(f"{file}: a recording, the model takes {card.dtype} of shape {_shape(card.shape)}")
    rate, pcm = _flac(file) if file.suffix.lower() == ".flac" else _wav(file)
    if card.rate and rate != card.rate:
        raise SelfsameError(f"{file}: {rate} samples a second, the model takes {card.rate}; it is not resampled here")
    if len(pcm) < max(1.0, _SHORTEST * rate):
        raise SelfsameError(f"{file}: {len(pcm) / max(rate, 1):.4f} s of audio, at least {_SHORTEST} s is needed")
    if int(pcm.min()) == int(pcm.max()):
        raise SelfsameError(f"{file}: silent: all samples are equal")
    length = card.shape[1]
    if length != -1:
        start = max(0, len(pcm) - length) // 2
        pcm = np.take(pcm, np.arange(start, start + length), mode="wrap")
    return [pcm[None]]


def _wav(file: Path) -> tuple[int, Raw]:
    """(rate, samples)."""
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
    return rate, np.frombuffer(raw, "<i2")


def _flac(file: Path) -> tuple[int, Raw]:
    """The same, by soundfile."""
    try:
        import soundfile
    except ModuleNotFoundError as error:
        raise not_installed(error) from error
    try:
        with soundfile.SoundFile(file) as sound:
            channels, rate, kind, number = sound.channels, int(sound.samplerate), sound.subtype, sound.frames
            if not 0 <= number <= _MOST_BYTES // (2 * max(1, channels)):
                raise SelfsameError(f"{number:,} samples are too many")
            pcm = sound.read(dtype="int16", always_2d=True)
    except Exception as error:  # a damaged file makes the library raise anything
        raise SelfsameError(f"{file}: not a FLAC file ({one_line(error, file)})") from error
    if channels != 1 or kind != "PCM_16":
        raise SelfsameError(f"{file}: {channels} channels of {kind}, expected 1 channel of 16 bits")
    return rate, pcm[:, 0]


def _rows(file: Path, card: Card, resize: bool) -> list[Raw]:
    """A .csv file with one sample per row: its columns by the names of training, or in that order if it knows none."""
    if card.dtype != "float32" or -1 in card.shape:
        raise SelfsameError(f"{file}: a table, the model takes {card.dtype} of shape {_shape(card.shape)}")
    try:
        with open(file, encoding="utf-8-sig", newline="") as stream:
            reader = csv.reader(stream, strict=True)
            rows = [(reader.line_num, row) for row in reader if row]
    except (csv.Error, UnicodeDecodeError, OSError) as error:
        raise SelfsameError(f"{file}: not CSV ({one_line(error, file)})") from error
    order: Sequence[int] | None = None
    if rows and not any(_is_number(cell) for cell in rows[0][1]):
        order = _order(file, rows[0][1], card)
        rows = rows[1:]
    elif rows and card.columns:
        raise SelfsameError(
            f"{file}: line 1: expected the names of the columns, by which the model takes them: "
            f"{', '.join(card.columns[:_NAMED])}{', ...' if len(card.columns) > _NAMED else ''}"
        )
    if not rows:
        raise SelfsameError(f"{file}: holds no row of numbers")
    wanted = math.prod(card.shape)
    out: list[Raw] = []
    for line, cells in rows:
        if order is not None and len(cells) <= max(order):
            raise SelfsameError(f"{file}: line {line}: {len(cells)} cells, the header has more")
        row = cells if order is None else [cells[place] for place in order]
        if len(row) != wanted:
            raise SelfsameError(f"{file}: line {line}: {len(row)} cells, the model takes {wanted}")
        odd = next((place for place, cell in enumerate(row, 1) if not _is_number(cell)), None)
        if odd is not None:
            raise SelfsameError(f"{file}: line {line}: cell {odd} is not a finite number")
        out.append(np.array([float(cell) for cell in row]).reshape(card.shape))
    return out


def _order(file: Path, header: Sequence[str], card: Card) -> list[int] | None:
    """Where the model's columns stand; None where it does not know their names and takes them as they come."""
    if not card.columns:
        return None
    names = [name.strip() for name in header]
    for name in card.columns:
        if names.count(name) != 1:
            fault = "no column" if name not in names else "more than one column"
            raise SelfsameError(
                f"{file}: line 1: {fault} {name!r}, the model was trained with {len(card.columns)} columns"
            )
    return [names.index(name) for name in card.columns]


def _is_number(cell: str) -> bool:
    try:
        return math.isfinite(float(cell))
    except ValueError:
        return False


_READERS: dict[str, Callable[[Path, Card, bool], list[Raw]]] = {
    **dict.fromkeys(ENDINGS, _image),
    ".npy": _array,
    ".wav": _recording,
    ".flac": _recording,
    ".csv": _rows,
}
