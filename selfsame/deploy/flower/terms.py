"""deploy.toml: how a run on real devices is served, beside the recipe that says what is trained."""

from __future__ import annotations

import json
import shlex
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

from selfsame.config.recipe import Recipe, from_mapping, read_toml
from selfsame.deploy.schedule import Terms
from selfsame.errors import SelfsameError
from selfsame.methods import SplitLoss, method_class

FILE = "deploy.toml"
RUN = "run"  # the server's own folder, beside it
LOCK = "lock"  # held by the ServerApp at work
ROUNDS = "rounds.jsonl"  # a record a round
TROUBLE = "trouble.txt"  # why the last ServerApp stopped


@dataclass(frozen=True)
class Known:
    """What a server that has no samples must know of the devices': the [samples] table."""

    shape: tuple[int, ...]
    raw: str  # uint8, int16 or float32
    clients: int  # the most there can be
    classes: int
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)


@dataclass(frozen=True)
class Serving:
    """Times in seconds. Over-selection, response rate and strategy are the recipe's own (its [split] part)."""

    nodes: int = 1  # no round begins before so many have connected
    answer_wait: float = 60.0
    embedding_wait: float = 60.0
    registration: float = 3600.0
    fewest: int = 2
    transport: str = "exact"  # or half
    seeded: bool = False  # private draws from the recipe's seed: for trying and tests alone
    enclave: str = ""  # the command that starts FDML's enclave; without, a plain process with a simulated quote
    samples: Known | None = None  # without, the recipe's data set is loaded

    def terms(self, recipe: Recipe) -> Terms:
        return Terms.of(
            recipe, recipe.cohort.size or self.nodes, answer_wait=self.answer_wait, embedding_wait=self.embedding_wait,
            registration=self.registration, fewest=self.fewest
        )  # fmt: skip

    @staticmethod
    def read(path: Path) -> Serving:
        try:
            given = tomllib.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return Serving()
        except (OSError, ValueError) as error:
            raise SelfsameError(f"{path}: {error}") from error
        table = given.pop("samples", None)
        _check(path, given, Serving(), {part.name for part in fields(Serving)} - {"samples"})
        if table is None:
            return Serving(**given)
        if not isinstance(table, dict):
            raise SelfsameError(f"{path}: samples is a table")
        table = {name: tuple(value) if isinstance(value, list) else value for name, value in table.items()}
        _check(path, table, Known((1,), "uint8", 1, 1), {part.name for part in fields(Known)})
        missing = [name for name in ("shape", "raw", "clients", "classes") if name not in table]
        if missing:
            raise SelfsameError(f"{path}: [samples] needs {', '.join(missing)}")
        return Serving(**given, samples=Known(**table))

    def write(self, path: Path) -> None:
        lines = [f"{name} = {_toml(value)}\n" for name, value in asdict(self).items() if name != "samples"]
        if self.samples is not None:
            lines.append("\n[samples]\n")
            lines += [f"{name} = {_toml(value)}\n" for name, value in asdict(self.samples).items()]
        path.write_text("".join(lines), encoding="utf-8")


def _check(path: Path, given: dict[str, Any], like: Any, known: set[str]) -> None:
    """Every name is known, and every value of the type that it has in `like`."""
    for name, value in given.items():
        if name not in known:
            raise SelfsameError(f"{path}: unknown {name!r}; it knows {', '.join(sorted(known))}")
        kind = type(getattr(like, name))
        entries = value if kind is tuple and isinstance(value, tuple) else ()
        alike = type(value) is kind or (kind is float and type(value) is int)
        if not alike or not all(type(entry) in (int, float) for entry in entries):
            words = "a list of numbers" if kind is tuple else kind.__name__
            raise SelfsameError(f"{path}: {name} is {value!r}, expected {words}")


def _toml(value: Any) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(repr, value))}]"
    return json.dumps(value) if isinstance(value, str | bool) else repr(value)


@contextmanager
def open_server(folder: Path) -> Iterator[tuple[Any, float, int]]:
    """(the server of a folder, how long a message may take, how many nodes to wait for)."""
    recipe = from_mapping(read_toml(folder / "recipe.toml"))
    serving = Serving.read(folder / FILE)
    terms = serving.terms(recipe)
    patience = max(terms.answer_wait, terms.embedding_wait)
    from selfsame.data import without_samples
    from selfsame.deploy.server import Server

    known = None if serving.samples is None else without_samples(**vars(serving.samples))
    if issubclass(method_class(recipe.method.name), SplitLoss):
        from selfsame.deploy.split.controller import Controller
        from selfsame.deploy.split.server import SplitServer

        start = partial(Controller, limit=terms.answer_wait)
        if serving.enclave:
            start = partial(start, command=shlex.split(serving.enclave))
        with SplitServer(
            folder / RUN, recipe, terms, federation=known, transport=serving.transport, seeded=serving.seeded,
            enclave=start
        ) as split:  # fmt: skip
            yield split, patience, serving.nodes
        return
    server = Server(
        folder / RUN, recipe, terms, federation=known, transport=serving.transport, seeded=serving.seeded
    )  # fmt: skip
    yield server, patience, serving.nodes


def read_records(path: Path) -> list[dict[str, Any]]:
    """The records of a server's file; a line that is being written does not count, of one round the last does."""
    found: dict[int, dict[str, Any]] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        try:
            record = json.loads(line)
            found[int(record["round"])] = record
        except (ValueError, KeyError, TypeError):
            continue
    return [record for _, record in sorted(found.items())]
