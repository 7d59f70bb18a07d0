"""The sparse text format of the Extreme Classification Repository.

The first line says how many rows, features and labels there are; each row is `label,label index:value index:value`,
counted from 0. A row without labels begins with a blank.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from selfsame.errors import SelfsameError

Ints = NDArray[np.int64]
# Labels a row, labels, pairs a row, their indices, their values.
Numbers = tuple[Ints, NDArray[np.int32], Ints, NDArray[np.int32], NDArray[np.float32]]

_BLOCK = 1 << 22  # bytes of text parsed at a time
_LONGEST_LINE = 1 << 26
_EXACT = 1 << 24  # whole numbers up to here are exact in float32
_MOST = 1 << 31  # labels, so that they fit int32
_DIGITS = 15  # of an index: exact in float64, and beyond any set


@dataclass(frozen=True)
class Sparse:
    """The contents of one file: sparse features and labels, each row after row."""

    features: int
    labels: int
    offset: Ints
    index: NDArray[np.int32]
    value: NDArray[np.float32]
    label_offset: Ints
    label: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.offset) - 1


def read_xc(file: Path) -> Sparse:
    """The rows of a file, block by block; what is wrong is said with the line's number."""
    try:
        with file.open("rb") as stream:
            features, labels, promised = _header(file, stream.readline(256))
            parts = [
                part if part is not None else _slow(file, text, line, features, labels)
                for line, text in _blocks(file, stream)
                for part in (_fast(text, features, labels),)
            ]
    except (OSError, MemoryError) as error:
        raise SelfsameError(f"{file}: cannot be read ({type(error).__name__})") from error
    if not parts:
        raise SelfsameError(f"{file}: no rows below the first line, which promises {promised}")
    label_count, label, count, index, value = (np.concatenate(column) for column in zip(*parts, strict=True))
    blank = (label_count == 0) & (count == 0)
    if len(count) < promised or not blank[promised:].all():  # blank lines at the end are no rows
        raise SelfsameError(f"{file}: the first line promises {promised} rows, the file has {len(count)}; complete?")
    if not len(index):
        raise SelfsameError(f"{file}: no row has a feature")
    label_count, count = label_count[:promised], count[:promised]
    label_count, label = _distinct(label_count, label, labels)
    return Sparse(
        features,
        labels,
        np.append(0, np.cumsum(count)),
        index,
        value,
        np.append(0, np.cumsum(label_count)),
        label,
    )


def _distinct(count: Ints, label: NDArray[np.int32], labels: int) -> tuple[Ints, NDArray[np.int32]]:
    """Each row's labels in ascending order, none twice."""
    key = np.unique(np.repeat(np.arange(len(count)), count) * labels + label)
    row, distinct = np.divmod(key, labels)
    return np.bincount(row, minlength=len(count)), distinct.astype(np.int32)


def _header(file: Path, line: bytes) -> tuple[int, int, int]:
    """(features, labels, rows) from the first line."""
    words = line.split()
    if not line:
        raise SelfsameError(f"{file}: empty, expected the numbers of rows, features and labels in the first line")
    if len(words) != 3 or not all(word.isdigit() and len(word) <= _DIGITS for word in words):
        shown = line[:40].decode("ascii", "replace").strip()
        raise SelfsameError(f"{file}: line 1: expected the numbers of rows, features and labels, got {shown!r}")
    rows, features, labels = map(int, words)
    if not (1 <= rows < _MOST and 1 <= features <= _EXACT and 1 <= labels < _MOST):
        raise SelfsameError(
            f"{file}: line 1: expected 1 or more rows, 1 to {_EXACT} features and 1 or more labels, got {rows}, "
            f"{features} and {labels}"
        )
    return features, labels, rows


def _blocks(file: Path, stream: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """(number of the first line, whole lines that end with a newline)."""
    line, rest = 2, b""
    while more := stream.read(_BLOCK):
        whole, newline, tail = more.rpartition(b"\n")
        if newline:
            whole, rest = rest + whole + newline, tail
            yield line, whole
            line += whole.count(b"\n")
        else:
            rest += tail
        if len(rest) > _LONGEST_LINE:
            raise SelfsameError(f"{file}: line {line}: longer than {_LONGEST_LINE} bytes")
    if rest:
        yield line, rest + b"\n"


_DIGIT, _SIGN, _BLANK, _LINE, _COMMA, _COLON, _BAD = range(7)
_KIND = np.full(256, _BAD, np.uint8)
for _kind, _characters in ((_DIGIT, b"0123456789"), (_SIGN, b"+-.eE"), (_BLANK, b" \t\r")):
    _KIND[list(_characters)] = _kind
_KIND[list(b"\n,:")] = _LINE, _COMMA, _COLON
_SPACED = bytes(32 if kind in (_BLANK, _LINE, _COMMA, _COLON) else code for code, kind in enumerate(_KIND.tolist()))


def _fast(text: bytes, features: int, labels: int) -> Numbers | None:
    """All lines of a block at once; None where anything is odd, for `_slow` to find out what."""
    kind = _KIND[np.frombuffer(b"\n" + text, np.uint8)]
    if (kind == _BAD).any():
        return None
    part = kind <= _SIGN
    start, end = (np.flatnonzero(edge) + 1 for edge in (part[1:] & ~part[:-1], part[:-1] & ~part[1:]))
    before, after = kind[start - 1], kind[end]
    is_index, is_value = after == _COLON, before == _COLON
    is_label = ~(is_index | is_value)
    colons, commas = int((kind == _COLON).sum()), int((kind == _COMMA).sum())
    signed = np.searchsorted(start, np.flatnonzero(kind == _SIGN), "right") - 1  # tokens that are not digits alone
    sound = (
        (is_value | (end - start <= _DIGITS))
        & ~(is_index & ((before == _COMMA) | is_value))
        & ~(is_value & (after == _COMMA))
        & ~(is_label & (before == _BLANK))
    )
    if not sound.all() or not is_value[signed].all() or colons != is_index.sum() or colons != is_value.sum():
        return None
    if commas != (is_label & (after == _COMMA)).sum() or commas != (is_label & (before == _COMMA)).sum():
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # text that is no number ends the parse with no more than a warning
        try:
            number: NDArray[np.float64] = np.fromstring(text.translate(_SPACED), np.float64, sep=" ")
        except (DeprecationWarning, ValueError):
            return None
    if len(number) != len(start) or not _within(number, is_index, features) or not _within(number, is_label, labels):
        return None
    with np.errstate(over="ignore"):
        value = number[is_value].astype(np.float32)
    if not np.isfinite(value).all():
        return None
    line_end = np.flatnonzero(kind == _LINE)[1:]
    line = np.searchsorted(line_end, start)
    return (
        np.bincount(line[is_label], minlength=len(line_end)),
        number[is_label].astype(np.int32),
        np.bincount(line[is_index], minlength=len(line_end)),
        number[is_index].astype(np.int32),
        value,
    )


def _within(number: NDArray[np.float64], chosen: NDArray[np.bool_], limit: int) -> bool:
    return bool((number[chosen] < limit).all())


def _slow(file: Path, text: bytes, first: int, features: int, labels: int) -> Numbers:
    """The same, line by line, to name the line that is wrong."""
    columns: tuple[list[Any], ...] = ([], [], [], [], [])
    for number, line in enumerate(text.split(b"\n")[:-1], first):
        where = f"{file}: line {number}"
        words = line.decode("ascii", "replace").split()
        of_row: list[str] = []
        if words and not line[:1].isspace() and ":" not in words[0]:
            of_row = words.pop(0).split(",")
        pairs = [word.partition(":") for word in words]
        columns[0].append(len(of_row))
        columns[1].extend(_whole(where, "label", word, labels) for word in of_row)
        columns[2].append(len(pairs))
        columns[3].extend(_whole(where, "feature", word, features) for word, _, _ in pairs)
        columns[4].extend(_real(where, "".join(pair)) for pair in pairs)
    kinds = (np.int64, np.int32, np.int64, np.int32, np.float32)
    return tuple(np.array(column, kind) for column, kind in zip(columns, kinds))  # type: ignore[return-value]


def _whole(where: str, what: str, word: str, limit: int) -> int:
    if not (word.isascii() and word.isdigit()) or len(word) > 4 * _DIGITS or int(word) >= limit:
        raise SelfsameError(f"{where}: expected a {what} from 0 to {limit - 1}, got {word[:40]!r}")
    return int(word)


def _real(where: str, pair: str) -> float:
    word = pair.partition(":")[2]
    try:
        value = float(word) if set(word) <= set("0123456789+-.eE") else math.nan
    except ValueError:
        value = math.nan
    with np.errstate(over="ignore"):
        if not np.isfinite(np.float32(value)):
            raise SelfsameError(f"{where}: expected index:value with a finite number, got {pair[:40]!r}")
    return value
