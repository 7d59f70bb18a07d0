"""Extreme classification: the sets of the Extreme Classification Repository, one client per label.

A sample is a float32 tensor (2, L): feature indices above their values, where a value of 0 is padding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from selfsame.data.dataset import DataSet
from selfsame.data.federation import Federation, Movable, Samples
from selfsame.data.formats.xc_text import Sparse, read_xc
from selfsame.data.people import Ints
from selfsame.errors import SelfsameError
from selfsame.streams import host_generator

WANTS = (
    "NAME_train.txt and NAME_test.txt (or train.txt and test.txt) in PATH, the sparse text format of "
    "http://manikvarma.org/downloads/XC/XMLRepository.html"
)
_MOST_BYTES = 1 << 33  # of the test set, which is padded when it is loaded


@dataclass(frozen=True)
class Ragged(Movable):
    """A list of whole numbers for each row: those of row r are value[offset[r]:offset[r + 1]], ascending."""

    offset: Tensor  # (rows + 1,) int64
    value: Tensor

    def __len__(self) -> int:
        return len(self.offset) - 1


@dataclass(frozen=True)
class MultiLabelled(Samples):
    """Samples with several true labels, of which y is one drawn at random."""

    labels: Ragged = field(kw_only=True)  # classes that a client holds
    missed: int = field(default=0, kw_only=True)  # further samples, none of whose labels has a client: never a hit


@dataclass(frozen=True)
class WholeRows:
    """Rows with all their labels, as sparse matrices of SciPy: what an oracle sees and no federation has."""

    x_SF: Any
    y_SC: Any  # 1 where the row has the label


@dataclass(frozen=True)
class Bags(Movable):
    """Sparse rows in memory as they are; padded samples (2, L) are made when they are asked for."""

    offset: Tensor  # (rows + 1,) int64
    index: Tensor  # int32
    value: Tensor  # float32
    row_S: Tensor  # the row of each client's samples, client after client
    start_N: Tensor
    longest: int  # L
    features: int  # how many different indices there may be

    on_host: ClassVar[bool] = False

    @staticmethod
    def of(rows: Sparse, longest: int, row_S: Ints, start_N: Ints) -> Bags:
        """The rows of a file, with at most `longest` features each."""
        offset, index, value = map(torch.from_numpy, (rows.offset, rows.index, rows.value))
        own, start = torch.from_numpy(row_S), torch.from_numpy(start_N)
        return _cut(Bags(offset, index, value, own, start, longest, rows.features))

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


def load_xc(
    path: Path,
    *,
    which: str = "",
    longest: int = 0,
    every_label: bool = False,
    test_rows: int = 0,
    rows_apart: float = 0.0,
    seed: int = 0,
) -> Federation:
    """A client for each label, and in training one label for each row, drawn evenly from those it has (FedAwS, 6.2).

    `which` names the set where PATH holds several. With `every_label` a row goes to the clients of all its labels. Rows
    of more than `longest` features (0: of any number) keep those of largest magnitude. `test_rows` bounds the test set
    by an even selection (0: all of it). With `rows_apart` this share of the training rows, with all their labels, takes
    the place of the test, whose file is not read: for choosing settings. `seed` draws the labels.
    """
    _in_range(longest, test_rows, rows_apart)
    name, train_file, test_file = _find(path, which)
    notes: list[str] = []
    train, test = _both(train_file, test_file, rows_apart, seed)
    if rows_apart:
        notes.append(f"for choosing settings: {len(test)} of {len(train) + len(test)} training rows set apart")
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
        notes.append(f"{lost} of {train.labels} labels lost all their rows when one label per row was drawn: no client")
    width = _width(train, test, longest, notes)
    return Federation(
        name=name,
        shape=(2, width),
        class_of_N=torch.arange(len(held)),
        count_N=torch.from_numpy(count),
        source=Bags.of(train, width, row[order], np.cumsum(count) - count),
        test=_tested(test, held, width, test_rows, seed, notes),
        unseen=Samples(torch.empty(0, 2, width), torch.empty(0, dtype=torch.int64)),
        notes=tuple(notes),
        class_names=tuple(map(str, held.tolist())),
    )


def whole_xc(path: Path, options: Mapping[str, Any]) -> tuple[WholeRows, WholeRows]:
    """The training and the test rows of the same options that have a label, with all their labels.

    What the loader says of clients and of the labels that it draws does not matter here.
    """
    longest, test_rows = options.get("longest", 0), options.get("test_rows", 0)
    share, seed = options.get("rows_apart", 0.0), options.get("seed", 0)
    _in_range(longest, test_rows, share)
    _, train_file, test_file = _find(path, options.get("which", ""))
    train, test = _both(train_file, test_file, share, seed)
    found = whole_rows(train, longest), whole_rows(test, longest, test_rows)
    for file, rows in zip((train_file, test_file), found, strict=True):
        if not rows.x_SF.shape[0]:
            raise SelfsameError(f"{file}: no row has a label")
    return found


XC = DataSet("xc", load_xc, True, WANTS, "embedding-bag", 512, whole=whole_xc, apart="rows_apart")


def whole_rows(rows: Sparse, longest: int = 0, most: int = 0) -> WholeRows:
    """Those that have a label, or `most` of them evenly selected, with all features or their `longest` largest."""
    nobody = np.empty(0, np.int64)
    bags = Bags.of(rows, longest or int(np.diff(rows.offset).max(initial=0)), nobody, nobody)
    value, index, offset = (part.numpy() for part in (bags.value, bags.index, bags.offset))
    ones = np.ones(len(rows.label), np.float32)
    kept = _even(np.flatnonzero(np.diff(rows.label_offset)), most)
    x_SF = sparse.csr_array((value, index, offset), shape=(len(rows), rows.features))
    y_SC = sparse.csr_array((ones, rows.label, rows.label_offset), shape=(len(rows), rows.labels))
    return WholeRows(x_SF[kept], y_SC[kept])


def _in_range(longest: int, test_rows: int, rows_apart: float) -> None:
    if not 0 <= rows_apart < 1:
        raise SelfsameError(f"xc: rows_apart must be 0 or more and below 1, got {rows_apart}")
    if longest < 0 or test_rows < 0:
        raise SelfsameError(f"xc: longest and test_rows must be 0 or more, got {min(longest, test_rows)}")


def _both(train_file: Path, test_file: Path, rows_apart: float, seed: int) -> tuple[Sparse, Sparse]:
    """(training rows, test rows); with a share set apart, the test's file is not read."""
    train = read_xc(train_file)
    train, test = _apart(train, rows_apart, seed) if rows_apart else (train, read_xc(test_file))
    if (train.features, train.labels) != (test.features, test.labels):
        raise SelfsameError(
            f"{test_file}: {test.features} features and {test.labels} labels, "
            f"but {train_file.name} has {train.features} and {train.labels}"
        )
    return train, test


def _even(rows: Ints, most: int) -> Ints:
    """As many of the rows, evenly selected; 0: all of them."""
    return rows[np.arange(most) * len(rows) // most] if most and most < len(rows) else rows


def _apart(rows: Sparse, share: float, seed: int) -> tuple[Sparse, Sparse]:
    """(those that stay, those set apart), each in their order; at least one on either side."""
    if len(rows) < 2:
        raise SelfsameError("xc: fewer than two training rows, none of which can be set apart")
    count = min(max(round(share * len(rows)), 1), len(rows) - 1)
    drawn_rows = host_generator(seed, "xc/apart").permutation(len(rows))
    return _picked(rows, np.sort(drawn_rows[count:])), _picked(rows, np.sort(drawn_rows[:count]))


def _picked(rows: Sparse, kept: Ints) -> Sparse:
    """Some of the rows."""

    def places(offset: Ints) -> tuple[Ints, Ints]:
        size = np.diff(offset)[kept]
        ends = np.cumsum(size)
        return np.append(0, ends), np.repeat(offset[kept] - (ends - size), size) + np.arange(size.sum())

    offset, entry = places(rows.offset)
    label_offset, label = places(rows.label_offset)
    return replace(
        rows,
        offset=offset,
        index=rows.index[entry],
        value=rows.value[entry],
        label_offset=label_offset,
        label=rows.label[label],
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
        labelled = _even(labelled, most)
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
    nobody = np.empty(0, np.int64)
    return MultiLabelled(
        Bags.of(test, width, nobody, nobody).padded(torch.from_numpy(kept)),
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
