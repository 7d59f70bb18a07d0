"""Tables of numbers by person: one row per sample, in a federation of one client per person."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from selfsame.data.federation import Federation, share_of
from selfsame.data.formats.csv_table import CsvTable, listed, read_csv, read_header
from selfsame.data.people import Division, Ints, SplitOptions, by_people, split_people
from selfsame.data.trial_lists import draw_trials
from selfsame.errors import SelfsameError
from selfsame.fields import one_of


@dataclass(frozen=True)
class TableOptions(SplitOptions):
    """The options of all tables."""

    user: str = "user"  # the column that says whose a row is
    columns: str = "*"  # those that are used: names or patterns, with commas between them
    without: str = ""  # those that are left out, likewise
    missing: str = "error"  # what a cell without a number is: error, drop (its row) or mean (of its column)
    standardise: bool = True  # columns to mean 0 and variance 1, or left as they are


def federate_table(name: str, file: Path, options: TableOptions, unseen_share: float = 0.0) -> Federation:
    """The federation of a CSV file; a share of the people is unseen unless `held_out` says how many."""
    one_of(f"{name}: missing", options.missing, ("error", "drop", "mean"))
    user = options.user

    def choose(header: Sequence[str]) -> list[str]:
        return matching(name, [column for column in header if column != user], options.columns, options.without)

    _check_user(file, user)
    table = read_csv(file, (user,), choose, missing="keep" if options.missing == "mean" else options.missing)
    names = table.names[user]
    if unseen_share and not options.held_out:
        counts = np.bincount(table.key_S[user], minlength=len(names))
        options = replace(options, held_out=share_of(name, counts, unseen_share))
    split = split_people(name, table.key_S[user], names, options)
    x, mean, std, notes = prepared(file, table, split, options.standardise)
    trials = draw_trials(split.unseen.label, options.trials, options.seed)
    shape = tuple(x.shape[1:])

    def rows(row: Ints) -> Tensor:
        return x[torch.from_numpy(row)]

    found = by_people(name, shape, split, names, rows, mean=mean, std=std, trials=trials, notes=notes)
    return replace(found, columns=table.columns)


def _check_user(file: Path, user: str) -> None:
    """The column that says whose a row is has a name that a user may not have thought of."""
    try:
        read_header(file, (user,))
    except SelfsameError as error:
        if "no column" not in str(error):
            raise
        raise SelfsameError(f"{error}; name the one that says whose a row is with --set data.user=NAME") from None


def prepared(
    file: Path, table: CsvTable, split: Division, standardise: bool
) -> tuple[Tensor, tuple[float, ...], tuple[float, ...], tuple[str, ...]]:
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
        notes.append(f"columns of one value in all training rows: {listed(table.columns, np.flatnonzero(flat))}")
    x = torch.from_numpy(np.where(gap, mean, table.number_SF).astype(np.float32))
    if not standardise:
        return x, (0.0,), (1.0,), tuple(notes)
    return x, tuple(mean.tolist()), tuple(np.where(flat, 1.0, std).tolist()), tuple(notes)


def matching(name: str, header: Sequence[str], columns: str, without: str) -> list[str]:
    """The columns that are asked for and not left out, in the header's order; a name that matches none is refused."""
    wanted, unwanted = ([part.strip() for part in text.split(",") if part.strip()] for text in (columns, without))

    def met(pattern: str) -> set[str]:
        return {column for column in header if column == pattern or fnmatchcase(column, pattern)}

    for option, patterns in (("columns", wanted), ("without", unwanted)):
        for pattern in patterns:
            if not met(pattern):
                raise SelfsameError(f"{name}: {option}: no column {pattern!r}; the columns are: {listed(header)}")
    chosen = set().union(*map(met, wanted)).difference(*map(met, unwanted))
    if not chosen:
        raise SelfsameError(f"{name}: columns and without leave no column of: {listed(header)}")
    return [column for column in header if column in chosen]
