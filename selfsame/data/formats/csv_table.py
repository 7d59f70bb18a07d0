"""CSV files with a header: some columns as texts, some as numbers."""

from __future__ import annotations

import csv
import itertools
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from selfsame.errors import SelfsameError, one_line

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_LONGEST_LINE = 1 << 22  # bytes
_SHOWN = 12  # names that an error lists
_MOST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class CsvTable:
    """Chosen columns of a CSV file: numbers, and texts as numbers of their distinct values."""

    columns: tuple[str, ...]
    number_SF: Floats  # NaN where a value is missing
    key_S: dict[str, Ints]
    names: dict[str, tuple[str, ...]]  # the texts of each key, whole numbers by size and before other texts
    line_S: Ints  # where each row stands in the file
    dropped: int = 0  # rows left out because a value was missing

    def __getitem__(self, column: str) -> Floats:
        """The numbers of a column."""
        return self.number_SF[:, self.columns.index(column)]

    def refuse(self, file: Path, bad: NDArray[np.bool_], fault: str) -> None:
        """Say what is wrong with the first bad line of the file."""
        if bad.any():
            raise SelfsameError(f"{file}: line {int(self.line_S[bad].min())}: {fault}")

    def pick(self, row: Ints) -> CsvTable:
        """Some of the rows, in this order."""
        keyed = {key: column[row] for key, column in self.key_S.items()}
        return replace(self, number_SF=self.number_SF[row], key_S=keyed, line_S=self.line_S[row])


def find_csv(path: Path, wants: str, name: str = "*.csv") -> Path:
    """The file itself, or the only one of that name in the folder."""
    found = [path] if path.is_file() else sorted(file for file in path.glob(name) if file.is_file())
    if len(found) != 1:
        fault = f"{len(found)} files {name}" if found else f"no file {name}"
        raise SelfsameError(f"{path}: {fault}; wanted: {wants}")
    return found[0]


def find_features(path: Path, name: str, wants: str) -> Path:
    """features.csv in the folder of that name, or in the folder itself."""
    return find_csv(path / name if (path / name).is_dir() else path, wants, "features.csv")


def needed_columns(file: Path, there: Sequence[str], needed: Sequence[str]) -> list[str]:
    """The columns that a reader needs, all of which must be there."""
    absent = [name for name in needed if name not in there]
    if absent:
        raise SelfsameError(f"{file}: line 1: no column {absent[0]!r}; needed: {', '.join(needed)}")
    return list(needed)


def read_csv(
    file: Path, keys: Sequence[str], choose: Callable[[Sequence[str]], list[str]], *, missing: str = "error"
) -> CsvTable:
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
            reader = csv.reader(_lines(file, stream), strict=True, delimiter=_delimiter(stream))
            try:
                yield reader
            except csv.Error as error:
                raise SelfsameError(f"{file}: line {max(reader.line_num, 1)}: not CSV ({one_line(error)})") from error
    except (OSError, MemoryError) as error:
        raise SelfsameError(f"{file}: cannot be read ({type(error).__name__})") from error


def _delimiter(stream: BinaryIO) -> str:
    """A comma, unless the header has none and more of another: what spreadsheets write where commas are decimal."""
    header = stream.readline(_LONGEST_LINE)
    stream.seek(0)
    counts = {mark: header.count(mark.encode()) for mark in ",;\t"}
    best = max(counts, key=lambda mark: counts[mark])
    return best if counts[best] and not counts[","] else ","


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
) -> CsvTable:
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
    return CsvTable(tuple(columns), number_SF[keep], key_S, names, line_S[keep], int((~keep).sum()))


def _header(file: Path, row: list[str] | None, keys: Sequence[str]) -> list[str]:
    if not row or not any(cell.strip() for cell in row):
        raise SelfsameError(f"{file}: line 1: empty, expected a header with the names of the columns")
    header = [cell.strip() for cell in row]
    absent = [key for key in keys if key not in header]
    if absent and all(_is_number(cell) for cell in header):
        raise SelfsameError(f"{file}: line 1: only numbers, expected a header with the names of the columns")
    if absent:
        raise SelfsameError(f"{file}: line 1: no column {absent[0]!r}; the columns are: {listed(header)}")
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


def listed(names: Sequence[str], which: Ints | None = None) -> str:
    """The first of the names, and how many more there are."""
    chosen = list(names) if which is None else [names[place] for place in which.tolist()]
    more = f" and {len(chosen) - _SHOWN} more" if len(chosen) > _SHOWN else ""
    return ", ".join(repr(name[:40]) for name in chosen[:_SHOWN]) + more
