"""deploy.toml: how a run on real devices is served, beside the recipe that says what is trained."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from selfsame.config.recipe import Recipe, from_mapping, read_toml, tables_to_toml
from selfsame.data import without_samples
from selfsame.deploy.schedule import Terms
from selfsame.fields import read_fields
from selfsame.files import write
from selfsame.methods import SplitLoss, method_class

if TYPE_CHECKING:
    from selfsame.deploy.host import Host

FILE = "deploy.toml"
RUN = "run"  # the server's own folder, beside it
LOCK = "lock"  # held by the ServerApp at work
TROUBLE = "trouble.txt"  # why the last ServerApp stopped


@dataclass(frozen=True)
class SampleForm:
    """What a server that has no samples must know of the devices': the [samples] table."""

    shape: tuple[int, ...]  # of one sample
    raw: str  # uint8, int16 or float32
    clients: int  # the most there can be
    classes: int  # the most people there can be
    mean: tuple[float, ...] = (0.0,)  # of each channel, which is taken off
    std: tuple[float, ...] = (1.0,)  # of each channel, by which it is divided


@dataclass(frozen=True)
class Serving:
    """Times in seconds. Over-selection, response rate and strategy are the recipe's own (its [split] part)."""

    nodes: int = 1  # no round begins before so many have connected
    answer_wait: float = 60.0  # until a round goes on without those who are silent
    embedding_wait: float = 60.0  # the same for the first phase of a split round
    registration: float = 3600.0  # for which a registration is valid
    fewest: int | None = None  # a round goes on with more answers than this; by default 1, in split rounds 2 (FDML)
    transport: str = "exact"  # or half: the network travels in half precision
    seeded: bool = False  # private draws from the recipe's seed: for trying and tests alone
    enclave: str = ""  # the command that starts an enclave; without, a plain process with a simulated quote
    aggregation: str = ""  # clear, masked or enclave; empty: masked where there are helpers, else as the recipe says
    helpers: tuple[str, ...] = ()  # their NAME.helper files; "enclave": the run's own enclave
    register: str = ""  # where an enclave adds up: the folder with the NAME.pub files of its devices
    samples: SampleForm | None = None  # without, the recipe's data set is loaded

    def terms(self, recipe: Recipe) -> Terms:
        required = recipe.cohort.size or self.nodes
        usual = 2 if issubclass(method_class(recipe.method.name), SplitLoss) else 1
        fewest = min(usual, max(required - 1, 0)) if self.fewest is None else self.fewest
        return Terms.of(
            recipe, required, answer_wait=self.answer_wait, embedding_wait=self.embedding_wait,
            registration=self.registration, fewest=fewest
        )  # fmt: skip

    def applied(self, recipe: Recipe) -> Recipe:
        """The recipe with the aggregation that is served, and groups where sums are released."""
        if issubclass(method_class(recipe.method.name), SplitLoss):
            return recipe
        mode = self.aggregation or ("masked" if self.helpers else recipe.sums.aggregation)
        return replace(recipe, sums=replace(recipe.sums, aggregation=mode))

    @staticmethod
    def read(path: Path) -> Serving:
        return read_fields(path.name, read_toml(path) if path.exists() else {}, Serving)

    def write(self, path: Path) -> None:
        given = {name: value for name, value in asdict(self).items() if value is not None}
        write(path, tables_to_toml(given))


@contextmanager
def open_server(folder: Path) -> Iterator[tuple[Host[Any], float, int]]:
    """(the server of a folder, how long a message may take, how many nodes to wait for)."""
    serving = Serving.read(folder / FILE)
    recipe = serving.applied(from_mapping(read_toml(folder / "recipe.toml")))
    terms = serving.terms(recipe)
    patience = max(terms.answer_wait, terms.embedding_wait)
    known = None if serving.samples is None else without_samples(**vars(serving.samples))
    options: dict[str, Any] = {"federation": known, "transport": serving.transport, "seeded": serving.seeded}
    process: dict[str, Any] = {"limit": terms.answer_wait}
    if serving.enclave:
        process["command"] = shlex.split(serving.enclave)
    if issubclass(method_class(recipe.method.name), SplitLoss):
        from selfsame.deploy.split.controller import Controller
        from selfsame.deploy.split.server import SplitServer

        start = partial(Controller, **process)
        with SplitServer(folder / RUN, recipe, terms, enclave=start, **options) as split:
            yield split, patience, serving.nodes
        return
    from selfsame.deploy.aggregation.sum_terms import ENCLAVE, HelperTerms
    from selfsame.deploy.server import Server

    named = serving.helpers if recipe.sums.summed else ()
    helpers = [HelperTerms("", "", "") if path == ENCLAVE else HelperTerms.read(Path(path)) for path in named]
    if recipe.sums.aggregation == "enclave" or ENCLAVE in named:
        from selfsame.deploy.aggregation.enclave import SumController, keeper_of
        from selfsame.deploy.aggregation.signing import read_public

        keys = [read_public(path)[1] for path in sorted(Path(serving.register).glob("*.pub"))]
        options["enclave"] = partial(keeper_of, keys=keys, start=SumController, **process)
    with closing(Server(folder / RUN, recipe, terms, helpers=helpers, **options)) as server:
        yield server, patience, serving.nodes + sum(not helper.enclosed for helper in helpers)
