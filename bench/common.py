"""What the benchmark scripts share: a random federation of a given shape, timing with spread, one table."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from selfsame.config.recipe import from_mapping
from selfsame.data import Federation, Held, Samples
from selfsame.engine.machine import choose_machine, facts
from selfsame.engine.plan import make_plan
from selfsame.engine.ranks.group import ALONE, Ranks
from selfsame.engine.rounds import Engine
from selfsame.engine.setup import prepare
from selfsame.engine.state import State, begin


def random_federation(clients: int, samples: int, shape: tuple[int, ...], seed: int = 0) -> Federation:
    """Random uint8 images: the arithmetic of a round does not depend on what they show."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.randint(0, 256, (clients * samples, *shape), dtype=torch.uint8, generator=draw)
    none = Samples(x[:0], torch.zeros(0, dtype=torch.int64))
    return Federation(
        "random", shape, torch.arange(clients), torch.full((clients,), samples),
        Held(x, torch.arange(clients) * samples), none, none, (0.5,) * shape[0], (0.25,) * shape[0],
    )  # fmt: skip


class Case:
    """A recipe on a federation, ready to run rounds with either engine."""

    def __init__(
        self, tables: dict, federation: Federation, engine: str, graphs: bool | None = None, ranks: Ranks = ALONE
    ) -> None:
        recipe = from_mapping(tables)
        self.problem = prepare(recipe, federation, ranks=ranks)
        machine = choose_machine(recipe.run)
        self.engine = Engine(self.problem, engine, graphs=machine.graphs if graphs is None else graphs)
        self.state: State = begin(self.problem)
        self.device = machine.device

    def rounds(self, count: int) -> float:
        """Seconds for the next `count` rounds."""
        plan = make_plan(self.problem.recipe, self.state.round, count, self.state.present)
        self.wait()
        begun = time.perf_counter()
        self.engine.run(self.state, plan)
        self.wait()
        return time.perf_counter() - begun

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def timed(run: Callable[[int], float], count: int, repeats: int) -> tuple[float, float]:
    """(median, half the range) of milliseconds per round over `repeats` blocks of `count` rounds."""
    times = [1000 * run(count) / count for _ in range(repeats)]
    return statistics.median(times), (max(times) - min(times)) / 2


def header(device: torch.device) -> str:
    return "; ".join(f"{k} {v}" for k, v in facts(device).items())
