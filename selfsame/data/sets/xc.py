"""Extreme classification: the sparse text format of the Extreme Classification Repository, one client a label.

The first line says how many rows, features and labels there are; each row is `label,label index:value index:value`,
counted from 0. A row without labels begins with a blank. A sample is a float32 tensor (2, L): feature indices above
their values, where a value of 0 is padding.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from selfsame.data.federation import Federation, Samples
from selfsame.errors import SelfsameError
from selfsame.streams import host_generator

Ints = NDArray[np.int64]
# Labels a row, labels, pairs a row, their indices, their values.
Numbers = tuple[Ints, NDArray[np.int32], Ints, NDArray[np.int32], NDArray[np.float32]]

WANTS = (
    "NAME_train.txt and NAME_test.txt (or train.txt and test.txt) in PATH, the sparse text format of "
    "http://manikvarma.org/downloads/XC/XMLRepository.html"
)
_BLOCK = 1 << 22  # bytes of text parsed at a time
_LONGEST_LINE = 1 << 26
_EXACT = 1 << 24  # whole numbers up to here are exact in float32
_MOST = 1 << 31  # labels, so that they fit int32
_MOST_BYTES = 1 << 33  # of the test set, which is padded when it is loaded
_DIGITS = 15  # of an index: exact in float64, and beyond any set


@dataclass(frozen=True)
class Ragged:
    """A list of whole numbers for each row: those of row r are value[offset[r]:offset[r + 1]], ascending."""

    offset: Tensor  # (rows + 1,) int64
    value: Tensor

    def __len__(self) -> int:
        return len(self.offset) - 1

    def to(self, device: torch.device | str) -> Ragged:
        return Ragged(self.offset.to(device), self.value.to(device))


@dataclass(frozen=True)
class MultiLabelled(Samples):
    """Samples with several true labels, of which y is one drawn at random."""

    labels: Ragged = field(kw_only=True)  # classes that a client holds
    missed: int = field(default=0, kw_only=True)  # further samples, none of whose labels has a client: never a hit

    def to(self, device: torch.device | str) -> MultiLabelled:
        return replace(self, x=self.x.to(device), y=self.y.to(device), labels=self.labels.to(device))


@dataclass(frozen=True)
class Bags:
    """Sparse rows in memory as they are; padded samples (2, L) are made when they are asked for."""

    offset: Tensor  # (rows + 1,) int64
    index: Tensor  # int32
    value: Tensor  # float32
    row_S: Tensor  # the row of each client's samples, client after client
    start_N: Tensor
    longest: int  # L
    features: int  # how many different indices there may be

    on_host: ClassVar[bool] = False

    def rows(self, client_M: Tensor, index_MB: Tensor) -> Tensor:
        return self.padded(self.row_S[self.start_N[client_M][:, None] + index_MB])

    def padded(self, row: Tensor) -> Tensor:
        """Rows by number as samples (*row.shape, 2, L)."""
        begin, end = self.offset[row], self.offset[row + 1]
        place = begin[..., None] + torch.arange(self.longest, device=row.device)
        good = place < end[..., None]
        place = torch.where(good, place, 0)
        index, value = self.index[place].to(torch.float32), self.value[place]
        return torch.stack([torch.where(good, index, 0.0), torch.where(good, value, 0.0)], -2)

    def to(self, device: torch.device | str) -> Bags:
        names = ("offset", "index", "value", "row_S", "start_N")
        return replace(self, **{name: getattr(self, name).to(device) for name in names})


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


def load_xc(
    path: Path, *, which: str = "", longest: int = 0, every_label: bool = False, test_rows: int = 0, seed: int = 0
) -> Federation:
    """A client for each label, and in training one label for each row, drawn evenly from those it has (FedAwS, 6.2).

    `which` names the set where PATH holds several. With `every_label` a row goes to the clients of all its labels. Rows
    of more than `longest` features (0: of any number) keep those of largest magnitude. `test_rows` bounds the test set
    by an even selection (0: all of it).
    """
    if longest < 0 or test_rows < 0:
        raise SelfsameError(f"xc: longest and test_rows must be 0 or more, got {min(longest, test_rows)}")
    name, train_file, test_file = _find(path, which)
    train, test = read_xc(train_file), read_xc(test_file)
    if (train.features, train.labels) != (test.features, test.labels):
        raise SelfsameError(
            f"{test_file}: {test.features} features and {test.labels} labels, "
            f"but {train_file.name} has {train.features} and {train.labels}"
        )
    notes: list[str] = []
    bare = int((np.diff(train.label_offset) == 0).sum())
    if bare:
        notes.append(f"{bare} of {len(train)} training rows have no label and are left out")
    row, label = _pairs(train) if every_label else drawn(train, seed, "xc/train")
    if not len(label):
        raise SelfsameError(f"{train_file}: no row has a label")
    order = np.argsort(label, kind="stable")
    held, count = np.unique(label, return_counts=True)
    absent = train.labels - len(np.unique(train.label))
    lost = train.labels - len(held) - absent
    if absent:
        notes.append(f"{absent} of {train.labels} labels have no training row, so no client")
    if lost:
        notes.append(f"{lost} of {train.labels} labels lost all their rows when one label a row was drawn: no client")
    width = _width(train, test, longest, notes)
    bags = Bags(
        torch.from_numpy(train.offset),
        torch.from_numpy(train.index),
        torch.from_numpy(train.value),
        torch.from_numpy(row[order]),
        torch.from_numpy(np.cumsum(count) - count),
        width,
        train.features,
    )
    return Federation(
        name=name,
        shape=(2, width),
        class_of_N=torch.arange(len(held)),
        count_N=torch.from_numpy(count),
        source=_cut(bags),
        test=_tested(test, held, width, test_rows, seed, notes),
        unseen=Samples(torch.empty(0, 2, width), torch.empty(0, dtype=torch.int64)),
        notes=tuple(notes),
        class_names=tuple(map(str, held.tolist())),
    )


def drawn(rows: Sparse, seed: int, purpose: str) -> tuple[Ints, Ints]:
    """(row, label): one label of each row that has any, drawn evenly; the draw depends on the seed alone."""
    count = np.diff(rows.label_offset)
    share = host_generator(seed, purpose).random(len(rows))
    chosen = rows.label_offset[:-1] + (share * count).astype(np.int64)
    row = np.flatnonzero(count)
    return row, rows.label[chosen[row]].astype(np.int64)


def _pairs(rows: Sparse) -> tuple[Ints, Ints]:
    row = np.repeat(np.arange(len(rows)), np.diff(rows.label_offset))
    return row, rows.label.astype(np.int64)


def _width(train: Sparse, test: Sparse, longest: int, notes: list[str]) -> int:
    """L, with a note on the rows that it cuts."""
    sizes = [np.diff(rows.offset) for rows in (train, test)]
    most = max(1, *(int(size.max(initial=0)) for size in sizes))
    width = min(longest or most, most)
    cut = [int((size > width).sum()) for size in sizes]
    if any(cut):
        notes.append(
            f"cut to their {width} largest features: {cut[0]} of {len(train)} training and "
            f"{cut[1]} of {len(test)} test rows (the longest has {most})"
        )
    return width


def _cut(bags: Bags) -> Bags:
    """The rows with at most L features each, those of largest magnitude, in their old order."""
    size = bags.offset.diff()
    long = size > bags.longest
    if not bool(long.any()):
        return bags
    entry = torch.nonzero(long.repeat_interleave(size))[:, 0]  # of the long rows alone: few, where all may be millions
    entry = entry[bags.value[entry].abs().argsort(descending=True, stable=True)]
    row = torch.searchsorted(bags.offset, entry, right=True) - 1
    order = row.argsort(stable=True)  # row after row, each from its largest feature on
    entry, row = entry[order], row[order]
    first = (size * long).cumsum(0) - size * long  # of each long row in this order
    keep = torch.ones(len(bags.index), dtype=torch.bool)
    keep[entry[torch.arange(len(entry)) - first[row] >= bags.longest]] = False
    offset = torch.cat([bags.offset[:1], size.clamp(max=bags.longest).cumsum(0)])
    return replace(bags, offset=offset, index=bags.index[keep], value=bags.value[keep])


def _tested(test: Sparse, held: Ints, width: int, most: int, seed: int, notes: list[str]) -> MultiLabelled:
    """The test rows with all the labels that a client holds, renumbered to its class, and one of them as y."""
    labelled = np.flatnonzero(np.diff(test.label_offset))
    if len(labelled) < len(test):
        notes.append(f"{len(test) - len(labelled)} of {len(test)} test rows have no label and are left out")
    if most and most < len(labelled):
        notes.append(f"tested on {most} of {len(labelled)} labelled test rows")
        labelled = labelled[np.arange(most) * len(labelled) // most]
    row, label = _pairs(test)
    known = np.isin(row, labelled) & np.isin(label, held)
    row, label = row[known], np.searchsorted(held, label[known])
    kept, count = np.unique(row, return_counts=True)
    missed = len(labelled) - len(kept)
    if missed:
        notes.append(f"{missed} of {len(labelled)} test rows have only labels without a client: misses at every k")
    if len(kept) * width * 8 > _MOST_BYTES:
        raise SelfsameError(
            f"xc: {len(kept)} test rows of {width} features need {len(kept) * width * 8 >> 30} GiB; "
            "set longest or test_rows"
        )
    offset = np.append(0, np.cumsum(count))
    share = host_generator(seed, "xc/test").random(len(kept))
    bags = Bags(
        torch.from_numpy(test.offset),
        torch.from_numpy(test.index),
        torch.from_numpy(test.value),
        torch.empty(0, dtype=torch.int64),
        torch.empty(0, dtype=torch.int64),
        width,
        test.features,
    )
    return MultiLabelled(
        _cut(bags).padded(torch.from_numpy(kept)),
        torch.from_numpy(label[offset[:-1] + (share * count).astype(np.int64)]),
        labels=Ragged(torch.from_numpy(offset), torch.from_numpy(label)),
        missed=missed,
    )


def _find(path: Path, which: str) -> tuple[str, Path, Path]:
    """(name, training file, test file) of the set that is meant."""
    there = {}
    for train in sorted(path.glob("*train.txt")):
        stem = train.name[: -len("train.txt")]
        if train.is_file() and (path / f"{stem}test.txt").is_file():
            there[stem.rstrip("_.-") or "xc"] = (train, path / f"{stem}test.txt")
    if not there:
        raise SelfsameError(f"{path}: no training and test file of one set found; wanted: {WANTS}")
    if which not in there and (which or len(there) > 1):
        wrong = f"no set {which!r}" if which else "several sets"
        raise SelfsameError(f"{path}: {wrong}; option which must be one of: {', '.join(there)}")
    name = which or next(iter(there))
    return name, *there[name]


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
