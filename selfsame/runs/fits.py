"""An oracle beside the runs of a recipe: fitted at once, without rounds, and kept as a file in a folder of its own."""

from __future__ import annotations

import hashlib
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy
import torch

from selfsame.config.experiment import FIGURES, deciding
from selfsame.config.recipe import DataPart, Recipe
from selfsame.data import WholeRows, load_whole
from selfsame.engine.machine import facts
from selfsame.errors import SelfsameError
from selfsame.fields import read_fields
from selfsame.files import read_json, write_json
from selfsame.measure.ranking import matrix_precision
from selfsame.methods.oracles import make_oracle, settings_of
from selfsame.report.view import RunView

FILE = "oracle.json"
FORMAT = 1


@dataclass(frozen=True)
class Fit:
    """An oracle that has been fitted: what it was, to which rows, and what came of it."""

    format: int
    method: dict[str, Any]  # its name and all its settings
    data: dict[str, Any]  # the data set and its options, without its place
    seed: int
    rows: str  # SHA-256 of the rows that it was fitted to and judged by
    figures: dict[str, float]
    seconds: float  # of processor time
    facts: dict[str, str]  # versions and machine

    @property
    def view(self) -> RunView:
        """As the tables take it."""
        return RunView("", self.method["name"], final=dict(self.figures), seconds=self.seconds, facts=self.facts)

    def differs(self, recipe: Recipe) -> tuple[str, ...]:
        """The keys in which it is another one than the recipe says."""
        mine, wanted = {"method": self.method, "data": self.data, "run": {"seed": self.seed}}, asked(recipe)
        return tuple(
            f"{part}.{key}"
            for part in wanted
            for key in dict.fromkeys((*mine[part], *wanted[part]))
            if deciding(mine[part].get(key)) != deciding(wanted[part].get(key))
        )


def asked(recipe: Recipe) -> dict[str, dict[str, Any]]:
    """What decides the figures of an oracle, in plain types; what is wrong with its settings is said."""
    method = settings_of(make_oracle(recipe.method.name, recipe.method.options))
    return {
        "method": {"name": recipe.method.name, **method},
        "data": {"name": recipe.data.name, **recipe.data.options},
        "run": {"seed": recipe.run.seed},
    }


def read_fit(folder: Path) -> Fit | None:
    """What lies there, or nothing."""
    file = folder / FILE
    if not file.is_file():
        return None
    try:
        found = read_fields("oracle", read_json(file), Fit)
    except SelfsameError as error:
        raise _damaged(file, error) from None
    if found.format != FORMAT or "name" not in found.method or found.seconds < 0:
        raise _damaged(file, "it is not of this version")
    if not found.figures or any(key not in FIGURES or not 0 <= value <= 1 for key, value in found.figures.items()):
        raise _damaged(file, "it has figures that are none")
    return found


def _damaged(file: Path, why: object) -> SelfsameError:
    return SelfsameError(f"{file}: damaged ({why}); delete it, and the oracle is fitted again")


def rows_of(part: DataPart) -> tuple[WholeRows, WholeRows]:
    """The training and the test rows of an oracle's data."""
    return load_whole(part.name, part.path or None, **part.options)


def rows_digest(rows: tuple[WholeRows, WholeRows]) -> str:
    """SHA-256 of rows and their labels."""
    found = hashlib.sha256()
    for matrix in (matrix for one in rows for matrix in (one.x_SF, one.y_SC)):
        found.update(repr(matrix.shape).encode())
        for part, kind in ((matrix.indptr, "<i8"), (matrix.indices, "<i8"), (matrix.data, "<f4")):
            found.update(part.astype(kind).tobytes())
    return found.hexdigest()


def fit(recipe: Recipe, rows: tuple[WholeRows, WholeRows]) -> Fit:
    """Fit the oracle to the training rows and judge it by the test rows."""
    train, test = rows
    told = asked(recipe)
    begun = time.process_time()
    oracle = make_oracle(recipe.method.name, recipe.method.options)
    score_SC = oracle.scores(train.x_SF, train.y_SC, test.x_SF, recipe.run.seed)
    figures = {f"p@{k}": value for k, value in matrix_precision(score_SC, test.y_SC).items()}
    spent = round(time.process_time() - begun, 3)
    versions = {"numpy": np.__version__, "scipy": scipy.__version__}
    about = {key: value for key, value in facts(torch.device("cpu")).items() if key != "torch"}
    return Fit(
        FORMAT, told["method"], told["data"], recipe.run.seed, rows_digest(rows), figures, spent, versions | about
    )


def keep_fit(found: Fit, folder: Path) -> None:
    """Write it, whole or not at all."""
    write_json(folder / FILE, asdict(found))


def held_to(found: Fit, rows: tuple[WholeRows, WholeRows], folder: Path) -> None:
    """Refuse a fit to other rows: figures of both would stand in one table."""
    if found.rows != rows_digest(rows):
        raise SelfsameError(f"{folder}: was fitted to other data; delete it, or name another folder with --out")
