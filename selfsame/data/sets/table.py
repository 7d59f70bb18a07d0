"""A table with one row a sample and one column that says whose it is: any CSV file with a header."""

from __future__ import annotations

import csv
import itertools
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray

from selfsame.data.federation import Federation, Trials
from selfsame.data.people import Ints, Split, by_people, draw_trials, split_people
from selfsame.errors import SelfsameError

Floats = NDArray[np.float64]

WANTS = "a CSV file with a header and a column that says whose each row is (option user), alone in the folder PATH"
_LONGEST_LINE = 1 << 22  # bytes
_SHOWN = 12  # names that an error lists
_MOST_TRIALS = 100_000_000
_MOST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Table:
    """Chosen columns of a CSV file: numbers, and texts as numbers of their distinct values."""

    columns: tuple[str, ...]
    number_SF: Floats  # NaN where a value is missing
    key_S: dict[str, Ints]
    names: dict[str, tuple[str, ...]]  # the texts of each key, whole numbers by size and before other texts
    line_S: Ints  # where each row stands in the file
    dropped: int = 0  # rows left out because a value was missing


def load_table(
    path: Path,
    *,
    user: str = "user",
    columns: str = "*",
    without: str = "",
    missing: str = "error",
    standardise: bool = True,
    people: int = 0,
    held_out: int = 0,
    train: int = 0,
    validation: int = 0,
    test: int = 5,
    least: int = 0,
    unseen_samples: int = 200,
    trials: int = 20_000,
    seed: int = 0,
) -> Federation:
    """Rows of numbers, one client a value of the column `user`.

    `columns` and `without` are names, or patterns such as sensor_*, with commas between them. A cell that is empty, NaN
    or infinite is `missing`: an error, a reason to drop its row, or the mean of its column. Means, and the standard
    deviations by which columns are divided, are those of the clients' training rows. Of each unseen person at most
    `unseen_samples` rows are kept, and `trials` pairs of them are drawn.
    """
    return federate_table(
        "table",
        find_csv(path, WANTS),
        user=user,
        columns=columns,
        without=without,
        missing=missing,
        standardise=standardise,
        people=people,
        held_out=held_out,
        train=train,
        validation=validation,
        test=test,
        least=least,
        unseen_samples=unseen_samples,
        trials=trials,
        seed=seed,
    )


def federate_table(
    name: str,
    file: Path,
    *,
    user: str,
    columns: str,
    without: str,
    missing: str,
    standardise: bool,
    trials: int,
    seed: int,
    **split: Any,
) -> Federation:
    """The federation of a CSV file; `split` is what `split_people` takes."""
    if missing not in ("error", "drop", "mean"):
        raise SelfsameError(f"{name}: missing must be error, drop or mean, got {missing!r}")

    def choose(header: Sequence[str]) -> list[str]:
        return matching(name, [column for column in header if column != user], columns, without)

    table = read_csv(file, (user,), choose, missing="keep" if missing == "mean" else missing)
    names = table.names[user]
    parts = split_people(name, table.key_S[user], names, seed=seed, **split)
    x, mean, std, notes = prepared(file, table, parts, standardise)
    pairs = drawn_trials(name, parts.unseen.label, trials, seed)
    return by_people(name, torch.from_numpy(x), parts, names, mean=mean, std=std, trials=pairs, notes=notes)


def drawn_trials(name: str, label_U: Ints, number: int, seed: int) -> Trials:
    """Pairs of unseen samples, none where nobody is unseen or none are wanted."""
    if not 0 <= number <= _MOST_TRIALS:
        raise SelfsameError(f"{name}: trials must be 0 to {_MOST_TRIALS}, got {number}")
    return draw_trials(label_U, number, seed) if number and len(label_U) else Trials.none()


def prepared(
    file: Path, table: Table, split: Split, standardise: bool
) -> tuple[NDArray[np.float32], tuple[float, ...], tuple[float, ...], tuple[str, ...]]:
    """(rows without gaps, mean and standard deviation of each column, notes): means are those of the training rows."""
    own = table.number_SF[split.train.row]
    there = np.isfinite(own)
    count = there.sum(0)
    if not count.all():
        bare = table.columns[int(count.argmin())]
        raise SelfsameError(f"{file}: column {bare!r} has no value in any training row; leave it out (option without)")
    mean = np.where(there, own, 0.0).sum(0) / count
    std = np.sqrt((np.where(there, own - mean, 0.0) ** 2).sum(0) / count)
    gap = ~np.isfinite(table.number_SF)
    notes = []
    if table.dropped:
        notes.append(f"{table.dropped} rows are left out, with missing values")
    if gap.any():
        notes.append(f"{int(gap.sum())} of {gap.size} cells are missing and hold their column's mean")
    flat = std <= 1e-7 * np.maximum(np.abs(mean), 1e-30)
    if standardise and flat.any():
        notes.append(f"columns of one value in all training rows: {_listed(table.columns, np.flatnonzero(flat))}")
    x = np.where(gap, mean, table.number_SF).astype(np.float32)
    if not standardise:
        return x, (0.0,), (1.0,), tuple(notes)
    return x, tuple(mean.tolist()), tuple(np.where(flat, 1.0, std).tolist()), tuple(notes)


def matching(name: str, header: Sequence[str], columns: str, without: str) -> list[str]:
    """The columns that are asked for and not left out, in the header's order; a name that matches none is refused."""
    wanted, unwanted = ([part.strip() for part in text.split(",") if part.strip()] for text in (columns, without))
    for option, patterns in (("columns", wanted), ("without", unwanted)):
        for pattern in patterns:
            if not any(_matches(column, pattern) for column in header):
                raise SelfsameError(f"{name}: {option}: no column {pattern!r}; the columns are: {_listed(header)}")
    chosen = [
        column
        for column in header
        if any(_matches(column, pattern) for pattern in wanted)
        and not any(_matches(column, pattern) for pattern in unwanted)
    ]
    if not chosen:
        raise SelfsameError(f"{name}: columns and without leave no column of: {_listed(header)}")
    return chosen


def _matches(column: str, pattern: str) -> bool:
    return column == pattern or fnmatchcase(column, pattern)


def _listed(names: Sequence[str], which: Ints | None = None) -> str:
    chosen = list(names) if which is None else [names[place] for place in which.tolist()]
    more = f" and {len(chosen) - _SHOWN} more" if len(chosen) > _SHOWN else ""
    return ", ".join(repr(name[:40]) for name in chosen[:_SHOWN]) + more


def find_csv(path: Path, wants: str, name: str = "*.csv") -> Path:
    """The file itself, or the only one of that name in the folder."""
    found = [path] if path.is_file() else sorted(file for file in path.glob(name) if file.is_file())
    if len(found) != 1:
        fault = f"{len(found)} files {name}" if found else f"no file {name}"
        raise SelfsameError(f"{path}: {fault}; wanted: {wants}")
    return found[0]


def read_csv(
    file: Path, keys: Sequence[str], choose: Callable[[Sequence[str]], list[str]], *, missing: str = "error"
) -> Table:
    """The `keys` as texts and the columns that `choose` picks from the header as numbers, read line by line.

    What is `missing` (empty, NaN, infinite or too large for float32) is an error, drops the row, or is kept as NaN.
    """
    with _records(file) as reader:
        return _read(file, reader, keys, choose, missing)


def read_header(file: Path, keys: Sequence[str]) -> list[str]:
    """The names of the columns, among them all `keys`."""
    with _records(file) as reader:
        return _header(file, next(reader, None), keys)


@contextmanager
def _records(file: Path) -> Iterator[Any]:
    """The file as a reader of CSV; what fails while it is used is said in one line."""
    try:
        with file.open("rb") as stream:
            reader = csv.reader(_lines(file, stream), strict=True)
            try:
                yield reader
            except csv.Error as error:
                fault = " ".join(str(error).split())
                raise SelfsameError(f"{file}: line {max(reader.line_num, 1)}: not CSV ({fault})") from error
    except (OSError, MemoryError) as error:
        raise SelfsameError(f"{file}: cannot be read ({type(error).__name__})") from error


def _lines(file: Path, stream: BinaryIO) -> Iterator[str]:
    for number in itertools.count(1):
        raw = stream.readline(_LONGEST_LINE)
        if not raw:
            return
        if len(raw) == _LONGEST_LINE:
            raise SelfsameError(f"{file}: line {number}: longer than {_LONGEST_LINE} bytes")
        if number == 1:
            raw = raw.removeprefix(b"\xef\xbb\xbf")
        try:
            yield raw.decode("utf-8")
        except UnicodeDecodeError:
            raise SelfsameError(f"{file}: line {number}: not UTF-8 text") from None


def _read(
    file: Path, reader: Any, keys: Sequence[str], choose: Callable[[Sequence[str]], list[str]], missing: str
) -> Table:
    header = _header(file, next(reader, None), keys)
    columns = choose(header)
    place = [header.index(column) for column in columns]
    places = [header.index(key) for key in keys]
    codes: list[dict[str, int]] = [{} for _ in keys]
    texts, lines, cells = [array("q") for _ in keys], array("q"), array("d")
    for row in reader:
        if not row:
            continue
        if len(row) != len(header):
            raise SelfsameError(
                f"{file}: line {reader.line_num}: {len(row)} cells, but the header has {len(header)} columns"
            )
        for text, code, at, key in zip(texts, codes, places, keys):
            word = row[at].strip()
            if not word:
                raise SelfsameError(f"{file}: line {reader.line_num}: column {key!r} is empty")
            text.append(code.setdefault(word, len(code)))
        cells.extend(_numbers(file, reader.line_num, [row[at] for at in place], columns))
        lines.append(reader.line_num)
    if not lines:
        raise SelfsameError(f"{file}: no rows below the header")
    number_SF = np.frombuffer(cells, np.float64).reshape(-1, len(columns))
    number_SF[~(np.abs(number_SF) <= _MOST)] = np.nan
    line_S, bad_S = np.array(lines, np.int64), np.isnan(number_SF).any(1)
    if missing == "error" and bad_S.any():
        at = int(bad_S.argmax())
        column = columns[int(np.isnan(number_SF[at]).argmax())]
        raise SelfsameError(
            f"{file}: line {lines[at]}: {column!r} is empty or not finite; "
            "fill it, or say what is to be done with missing values (option missing)"
        )
    keep = ~bad_S if missing == "drop" else np.ones_like(bad_S)
    if not keep.any():
        raise SelfsameError(f"{file}: every row has a missing value; choose other columns (option columns)")
    key_S, names = {}, {}
    for key, code, text in zip(keys, codes, texts):
        key_S[key], names[key] = _ordered(code, np.array(text, np.int64)[keep])
    return Table(tuple(columns), number_SF[keep], key_S, names, line_S[keep], int((~keep).sum()))


def _header(file: Path, row: list[str] | None, keys: Sequence[str]) -> list[str]:
    if not row or not any(cell.strip() for cell in row):
        raise SelfsameError(f"{file}: line 1: empty, expected a header with the names of the columns")
    header = [cell.strip() for cell in row]
    absent = [key for key in keys if key not in header]
    if absent and all(_is_number(cell) for cell in header):
        raise SelfsameError(f"{file}: line 1: only numbers, expected a header with the names of the columns")
    if absent:
        raise SelfsameError(f"{file}: line 1: no column {absent[0]!r}; the columns are: {_listed(header)}")
    if "" in header:
        raise SelfsameError(f"{file}: line 1: column {header.index('') + 1} has no name")
    if len(set(header)) < len(header):
        twice = next(name for name in header if header.count(name) > 1)
        raise SelfsameError(f"{file}: line 1: two columns are named {twice[:40]!r}")
    return header


def _numbers(file: Path, line: int, cells: list[str], columns: Sequence[str]) -> list[float]:
    """The cells as numbers, NaN where empty; what Python alone takes for a number (1_000) is refused."""
    try:
        if "_" not in "".join(cells):
            return [float(cell) if cell else np.nan for cell in cells]
    except ValueError:
        pass
    for cell, column in zip(cells, columns):
        if cell.strip() and not _is_number(cell):
            raise SelfsameError(f"{file}: line {line}: {column!r} is not a number: {cell[:40]!r}")
    return [float(cell) if cell.strip() else np.nan for cell in cells]


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell


def _ordered(code: dict[str, int], text_S: Ints) -> tuple[Ints, tuple[str, ...]]:
    """Texts renumbered in the order of their names, so that it does not matter which comes first in the file."""
    met = np.unique(text_S)
    words = list(code)
    names = sorted((words[place] for place in met.tolist()), key=_by_size)
    new = np.zeros(len(words), np.int64)
    new[[code[name] for name in names]] = np.arange(len(names))
    return new[text_S], tuple(names)


def _by_size(name: str) -> tuple[int, int, str]:
    whole = name.isascii() and name.isdigit() and len(name) <= 18
    return (0, int(name), name) if whole else (1, 0, name)
