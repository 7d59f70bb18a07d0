"""Which settings give away no more than somebody will bear: each is trained at small scale and attacked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from selfsame.audit.attackers import Audited, Finding, findings
from selfsame.audit.readers import ReportReader, SumReader, UpdateReader
from selfsame.audit.spans import PollReader
from selfsame.config.presets import make_recipe
from selfsame.config.recipe import merged, option_words
from selfsame.data import Federation
from selfsame.engine.sums import check_sums
from selfsame.methods import make
from selfsame.runs.loop import Trainer
from selfsame.runs.run import start

# What is tried of each method; one that is not named here is tried as its preset has it.
GRID: dict[str, dict[str, tuple[Any, ...]]] = {
    "fedhide": {"alpha": (0.0, 0.01), "neighbours": (5, 10)},
    "fedgn": {"sigma": (0.3, 1.0)},
    "fedcs": {"cosine": (0.05, 0.5)},
}
TRIED = ("fedaws", "feduv", "fedmetric", "fedgn", "fedcs", "fedhide", "fedcrowd")
NEEDS = {"clear": "nothing", "masked": "a helper", "enclave": "an enclave"}
_PASSIVE = (ReportReader(), UpdateReader(), SumReader(), PollReader())


@dataclass(frozen=True)
class Candidate:
    """A method with its options, and how its updates are added up."""

    method: str
    aggregation: str
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def words(self) -> str:
        return option_words(self.method, self.options)


@dataclass(frozen=True)
class Tried:
    """A candidate and what came of it."""

    candidate: Candidate
    leaks: float  # the largest share of owners that an attacker identified
    by: str
    eer: float | None
    right: float | None  # P@1
    seconds: float  # of training


def candidates(methods: Sequence[str], aggregations: Sequence[str]) -> Iterator[Candidate]:
    """Every setting to be tried."""
    for method, aggregation in product(methods, aggregations):
        grid = GRID.get(method, {})
        for values in product(*grid.values()):
            yield Candidate(method, aggregation, dict(zip(grid, values, strict=True)))


def try_out(candidate: Candidate, given: Mapping[str, Any], size: int, watched: int, federation: Federation) -> Tried:
    """Train a candidate by its preset and attack it; `size`: devices in a round, and in a group where sums are."""
    own = {
        "method": {"name": candidate.method, **candidate.options},
        "sums": {"aggregation": candidate.aggregation},
        "cohort": {"size": size},
    }
    recipe = make_recipe(candidate.method, None, merged(given, own))
    check_sums(recipe, make(candidate.method, recipe.method.options))
    run = start(recipe, None, federation)
    Trainer(run, None).until(recipe.run.rounds)
    case = Audited(run.problem, run.state, watched)
    seen = [one for one in findings(case, _PASSIVE) if one.applies(case.aggregation) and one.identified is not None]
    worst: Finding | None = max(seen, key=lambda one: one.identified or 0.0, default=None)
    figures = run.evaluate().figures
    leaks, by = (0.0, "nobody") if worst is None else (worst.identified or 0.0, f"{worst.attacker}, {worst.did}")
    return Tried(candidate, leaks, by, figures.get("eer"), figures.get("p@1"), run.seconds)


def kept_within(tried: Sequence[Tried], most: float) -> list[Tried]:
    """Those that leak no more, the smallest EER first; P@1 where there is none."""
    good = [one for one in tried if one.leaks <= most]
    return sorted(good, key=lambda one: (1.0 if one.eer is None else one.eer, -(one.right or 0.0)))


def choose(
    methods: Sequence[str], aggregations: Sequence[str], given: Mapping[str, Any], size: int, watched: int,
    federation: Federation, tell: Callable[[str], None],
) -> list[Tried]:  # fmt: skip
    """Every candidate, trained and attacked."""
    found = []
    for candidate in candidates(methods, aggregations):
        tell(f"{candidate.words}, {candidate.aggregation}")
        found.append(try_out(candidate, given, size, watched, federation))
    return found
