"""Attackers by name, and what each of them found in a run.

An attacker is told of a run as it stands, works on copies of it, and says what it got: the share of owners whose vector
it identifies, beside what a guess would. `register` adds one; `selfsame audit` runs all that fit.

Shapes: M clients attacked, N clients in all, R rows of truth, D width.
"""

from __future__ import annotations

import difflib
import time
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor

from selfsame.audit.leakage import closest, cosine_statistics
from selfsame.audit.lpips import Lpips
from selfsame.audit.split_updates import enrolled
from selfsame.engine.groups import groups_of
from selfsame.engine.plan import cohort_size
from selfsame.engine.problem import Problem
from selfsame.engine.state import State, smaller_world
from selfsame.engine.turnout import needed
from selfsame.errors import SelfsameError
from selfsame.methods import SplitLoss
from selfsame.methods.base import World

ROUNDS = 30
CLEAR, SUMS, ANY = "clear", "sums", "any"  # where an attack is possible; SUMS: masked and enclave alike


@dataclass(frozen=True)
class Finding:
    """What one attacker got, in one way of looking."""

    attacker: str
    did: str
    who: str  # who sees enough for it: "server" or "public"
    under: str  # the aggregation: "clear", "sums" (masked or enclave), "masked", "enclave" or "any"
    identified: float | None  # the share of owners whose vector is identified; None: nothing of the kind is sought
    cosine: float | None
    chance: float  # what a guess gets: 1/N, or a group's share
    rounds: int = 0  # watched
    said: str = ""  # what stops it, or what the figure means
    compared: bool = False  # there to compare with: nothing of the kind is seen in this run
    vectors: bool = True  # whether it seeks the vectors that stand for owners
    seconds: float = 0.0

    def applies(self, aggregation: str) -> bool:
        """Whether this can happen in a run of this aggregation."""
        seen = self.under in (ANY, aggregation) or (self.under == SUMS and aggregation != CLEAR)
        return seen and not self.compared

    @property
    def gain(self) -> float:
        """How far it is above chance."""
        return -1.0 if self.identified is None else self.identified - self.chance


@dataclass(frozen=True)
class Audited:
    """A run as it stands. Attackers work on copies."""

    problem: Problem
    state: State
    rounds: int = ROUNDS  # for which an attacker who watches goes on with a copy
    steps: int = 150  # of an attacker who searches
    seed: int = 0
    judge: Lpips | None = None  # of how alike pictures look

    @property
    def split(self) -> bool:
        """Whether devices show an enclave what they send, which lets out the sum over a round's cohort."""
        return isinstance(self.problem.method, SplitLoss)

    @property
    def aggregation(self) -> str:
        return "enclave" if self.split else self.problem.recipe.sums.aggregation

    @property
    def world(self) -> World:
        """The clients that have registered."""
        return smaller_world(self.problem.world, self.state.present)

    @property
    def everyone(self) -> Tensor:
        return torch.arange(self.state.present, device=self.state.theta_P.device)

    @property
    def going_on(self) -> Problem:
        """The same at the recipe's learning rate without its schedule, at whose end nothing would move.

        And without the end of anybody's privacy budget.
        """
        recipe = self.problem.recipe
        local, server = replace(recipe.local, schedule="constant"), replace(recipe.server, schedule="constant")
        split = replace(recipe.split, most=0)
        return replace(self.problem, recipe=replace(recipe, local=local, server=server, split=split))

    def copy(self) -> State:
        """The run's state, for an attacker to go on with."""
        return deepcopy(self.state)

    @property
    def group(self) -> int:
        """The clients whose updates reach the server as one: 1 where it reads each."""
        if self.aggregation == CLEAR:
            return 1
        if self.split:
            return needed(self.problem.recipe, cohort_size(self.problem.recipe, self.state.present))
        return min(len(group) for group in groups_of(self.problem.recipe, self.state.round, self.state.present))

    def truth(self, state: State | None = None) -> Tensor:
        """The vectors that stand for the clients or classes, (R, D) in double precision.

        In split rounds a device makes its template anew whenever it takes part, of some samples. There the mean over
        all its training samples by the network of now stands for its owner.
        """
        return self._truth_now if state is None else self._truth_of(state)

    @cached_property
    def _truth_now(self) -> Tensor:
        return self._truth_of(self.state)

    def _truth_of(self, state: State) -> Tensor:
        if self.split:
            return enrolled(self.problem, state).double()
        head = self.problem.model.head_views(state.theta_P)
        return self.problem.method.truth(state.own, state.server, head).detach().double()

    def rows(self, client_M: Tensor) -> Tensor:
        """Which row of the truth is whose."""
        return client_M if self.problem.method.row == "client" else self.problem.world.class_of_N[client_M]

    def judged(self, client_M: Tensor, guess_MD: Tensor, truth_RD: Tensor | None = None) -> tuple[float, float]:
        """(the share of guesses closest to their own row, their mean cosine to it); a zero vector is no finding."""
        truth_RD = self.truth() if truth_RD is None else truth_RD.double()
        row_M, guess_MD = self.rows(client_M), guess_MD.double()
        near_M = closest(truth_RD, guess_MD, self.problem.method.by_angle)
        own_M = (near_M == row_M) & (guess_MD != 0).any(1)
        return float(own_M.double().mean()), cosine_statistics(truth_RD[row_M], guess_MD)[0]

    @property
    def chance(self) -> float:
        return 1 / len(self.truth())


class Attacker(Protocol):
    """Somebody who looks at a run in one way or in several."""

    @property
    def name(self) -> str: ...

    def fits(self, case: Audited) -> bool:
        """Whether there is anything for it to look at."""

    def run(self, case: Audited) -> Iterator[Finding]:
        """What it found, one way of looking after the other; the time between them is the attack's."""


ATTACKERS: dict[str, Attacker] = {}


def register(attacker: Attacker) -> None:
    """Add an attacker: `selfsame audit` runs it wherever it fits."""
    ATTACKERS[attacker.name] = attacker


def chosen(names: Sequence[str]) -> list[Attacker]:
    """The attackers of these names; all, where there are none."""
    for name in names:
        if name not in ATTACKERS:
            close = difflib.get_close_matches(name, ATTACKERS, 1)
            hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(ATTACKERS)}"
            raise SelfsameError(f"--attacker {name}: is not known; {hint}")
    return [ATTACKERS[name] for name in dict.fromkeys(names)] or list(ATTACKERS.values())


def findings(case: Audited, attackers: Sequence[Attacker], tell: Callable[[str], None] | None = None) -> list[Finding]:
    """What these attackers found, each with the seconds that it took."""
    found = []
    for attacker in attackers:
        if not attacker.fits(case):
            continue
        if tell is not None:
            tell(attacker.name)
        begun = time.perf_counter()
        for one in attacker.run(case):
            found.append(replace(one, seconds=round(time.perf_counter() - begun, 3)))
            begun = time.perf_counter()
    return found


def strongest(found: Sequence[Finding], aggregation: str) -> Finding | None:
    """Who is farthest above chance under this aggregation, then closest to the vectors; None: nobody found anything."""
    able = [one for one in found if one.applies(aggregation) and one.vectors and one.gain > 0]
    return max(able, key=lambda one: (one.gain, one.cosine or 0.0), default=None)


def audit_record(case: Audited, found: Sequence[Finding], title: str) -> dict[str, Any]:
    """An audit as it is kept in the run's folder."""
    best = strongest(found, case.aggregation)
    return {
        "title": title,
        "round": case.state.round,
        "aggregation": case.aggregation,
        "clients": case.state.present,
        "group": case.group,
        "sends": case.problem.method.federated,
        "findings": [{**asdict(one), "applies": one.applies(case.aggregation)} for one in found],
        "strongest": None if best is None else asdict(best),
    }
