"""Who is asked and how long a round waits (FDML, Algorithm 3), for real devices: the clock is passed in.

Every method uses it. A method whose devices train alone has one phase, that of the answers (lines 9 to 13); a split
round has the embeddings before (lines 2 to 6). `selfsame.engine.turnout` is the same for simulated devices.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from selfsame.config.recipe import Recipe
from selfsame.errors import SelfsameError
from selfsame.fields import at_least, one_of, read_fields
from selfsame.files import read_json
from selfsame.streams import host_generator


@dataclass(frozen=True)
class Conditions:
    """What a device says of itself; it takes part only while all three hold (section IV)."""

    charging: bool
    unmetered: bool
    idle: bool

    @property
    def ready(self) -> bool:
        return self.charging and self.unmetered and self.idle

    @staticmethod
    def now(file: Path | None) -> Conditions:
        """What the device's JSON file says of it; ready where there is none, not ready where it cannot be read."""
        try:
            if file is None or not file.exists():
                return READY
            return read_fields("conditions", read_json(file), Conditions)
        except (OSError, SelfsameError):
            return Conditions(False, False, False)


READY = Conditions(True, True, True)


@dataclass(frozen=True)
class Terms:
    """Algorithm 3's numbers. Times are in seconds."""

    required: int  # num_required
    over: float = 1.0  # k: so many times num_required are asked
    response: float = 1.0  # rate_p: the share of num_required whose answers end a round
    strategy: str = "uc"  # when time is up before these are there: "uc" goes on without, "as" abandons the round
    embedding_wait: float = 60.0  # time-out of lines 4 and 5
    answer_wait: float = 60.0  # time-out of lines 11 and 12
    registration: float = 3600.0  # how long a registration is valid
    fewest: int = 2  # "uc" goes on with more than so many
    tries: int = 3  # selections in one round before it is given up: the listing has no end, a server must
    sampling: str = "uniform"  # or "round-robin", or "all"

    def __post_init__(self) -> None:
        for name, least in {"required": 1, "tries": 1, "fewest": 0, "over": 1}.items():
            at_least(f"schedule: {name}", getattr(self, name), least)
        for name in ("embedding_wait", "answer_wait", "registration", "response"):
            at_least(f"schedule: {name}", getattr(self, name), 0, strict=True)
        if self.response > 1:
            raise SelfsameError(f"schedule: response is at most 1, got {self.response}")
        one_of("schedule: strategy", self.strategy, ("uc", "as"))

    @staticmethod
    def of(recipe: Recipe, required: int, **rest: Any) -> Terms:
        """The recipe's numbers; its waits and registrations are in simulated time, so real ones are given here."""
        part = recipe.split
        return Terms(required, part.over, part.response, part.strategy, sampling=recipe.cohort.sampling, **rest)

    @property
    def asked(self) -> int:
        """num_required * k, line 2."""
        return times(self.required, self.over)

    @property
    def needed(self) -> int:
        """The answers that end a round, num_required * rate_p of line 9."""
        return times(self.required, self.response)

    @property
    def longest(self) -> float:
        """No split round lasts longer than this, no other round longer than `answer_wait`."""
        return self.tries * self.embedding_wait + self.answer_wait


def times(count: int, factor: float) -> int:
    """count * factor, rounded up."""
    return math.ceil(count * factor - 1e-9)


@dataclass
class _Entry:
    rank: int
    until: float
    conditions: Conditions
    held: float = -math.inf  # it is at work until then at the latest


class Registry:
    """Who may be asked: registered, ready, not at work, and with privacy budget left."""

    def __init__(self, valid: float) -> None:
        self.valid = valid
        self.spent: set[str] = set()  # for good, also where the device registers again
        self._entry: dict[str, _Entry] = {}

    def __contains__(self, node: str) -> bool:
        return node in self._entry

    def register(self, node: str, now: float, rank: int, conditions: Conditions = READY) -> None:
        """Step 1, at any time and as often as the device likes; the last word counts.

        `rank` is the node's place in the order from which devices are drawn: its client number.
        """
        held = self._entry[node].held if node in self._entry else -math.inf
        self._entry[node] = _Entry(rank, now + self.valid, conditions, held)

    def forget(self, node: str) -> None:
        """It has left, or its time is up."""
        self._entry.pop(node, None)

    def hold(self, node: str, until: float) -> None:
        """It was asked for something and has until then; -inf: nobody waits for it any longer."""
        if node in self._entry:
            self._entry[node].held = until

    def expired(self, now: float) -> list[str]:
        """Whose registration has run out."""
        return [node for node, entry in self._entry.items() if now >= entry.until]

    def eligible(self, now: float, besides: Collection[str] = ()) -> list[str]:
        """Whom a round may ask now, in the order of their ranks, leaving out `besides`."""
        found = [
            (entry.rank, node)
            for node, entry in self._entry.items()
            if now < entry.until and now >= entry.held and entry.conditions.ready
        ]
        return [node for _, node in sorted(found) if node not in self.spent and node not in besides]


def select(terms: Terms, seed: int, round: int, attempt: int, nodes: Sequence[str], count: int) -> list[str]:
    """`count` of the nodes by a named stream, in their order; all, where they are too few to choose."""
    if count >= len(nodes) or terms.sampling == "all":
        return list(nodes)
    if terms.sampling == "round-robin":
        place_M = (round * terms.required + np.arange(count)) % len(nodes)
    else:
        again = (attempt,) if attempt else ()
        draw = host_generator(seed, "cohort", round, *again)
        place_M = draw.choice(len(nodes), count, replace=False, shuffle=False)
    return [nodes[place] for place in sorted(place_M.tolist())]


@dataclass
class Phase:
    """One wait: who was asked, until when, how many answers end it, and who has answered."""

    asked: list[str]
    needed: int
    deadline: float
    answered: list[str] = field(default_factory=list)  # in the order of arrival
    gone: set[str] = field(default_factory=set)  # of whom nothing more is to be expected

    def take(self, node: str, now: float) -> bool:
        """An answer has come; whether it counts."""
        if self.refusal(node, now):
            return False
        self.answered.append(node)
        self.gone.discard(node)
        return True

    def refusal(self, node: str, now: float) -> str:
        """Why an answer would not count; empty: it would."""
        if node not in self.asked:
            return "not asked"
        if node in self.answered or self.enough(now):
            return "not needed"
        return "late" if now > self.deadline else ""

    def lose(self, node: str) -> None:
        """The transport says that it is gone, or it refused."""
        if node in self.asked and node not in self.answered:
            self.gone.add(node)

    def enough(self, now: float) -> bool:
        """Whether the answers that end the wait are there."""
        return len(self.answered) >= self.needed

    def expired(self, now: float) -> bool:
        """Whether time is up."""
        return now >= self.deadline

    def waiting(self) -> list[str]:
        """Who was asked and may still answer."""
        return [node for node in self.asked if node not in self.answered and node not in self.gone]

    def over(self, now: float) -> bool:
        """Whether there is nothing left to wait for: enough, time is up, or nobody is left who could answer."""
        return self.enough(now) or self.expired(now) or not self.waiting()


class Decision(enum.Enum):
    """What the server does now."""

    WAIT = "wait"
    GO_ON = "go on"
    AGAIN = "select again"
    GIVE_UP = "give up"


class Round:
    """Algorithm 3 for one round: `open_embeddings` (split rounds only), then `open_answers`, each until it is over.

    `embeddings` and `answers` are the two phases; the caller reports what arrives with `Phase.take` and `Phase.lose`,
    and asks `embeddings_decision` or `answers_decision` what to do.
    """

    def __init__(self, terms: Terms, registry: Registry, seed: int, number: int) -> None:
        self.terms, self.registry, self.seed, self.number = terms, registry, seed, number
        self.attempt = 0
        self.embeddings: Phase | None = None
        self.answers: Phase | None = None

    def open_embeddings(self, now: float) -> list[str]:
        """Line 2: whom to send the network. Again, after `Decision.AGAIN`, in place of those who are missing.

        What is in stays in, as the listing goes back behind the line that sets its counter to zero. Nodes that were not
        asked before come first; then those that were silent, whose answers count now as before.
        """
        terms, phase = self.terms, self.embeddings
        if phase is None:
            chosen = select(terms, self.seed, self.number, 0, self.registry.eligible(now), terms.asked)
            self.embeddings = Phase(chosen, terms.required, now + terms.embedding_wait)
        else:
            self.attempt += 1
            count = times(terms.required - len(phase.answered), terms.over)
            fresh = self.registry.eligible(now, phase.asked)
            chosen = select(terms, self.seed, self.number, self.attempt, fresh, count)
            silent = [node for node in self.registry.eligible(now, phase.answered) if node in phase.asked]
            chosen += select(terms, self.seed, self.number, self.attempt, silent, count - len(chosen))
            phase.asked += [node for node in chosen if node not in phase.asked]
            phase.gone -= set(chosen)
            phase.deadline = now + terms.embedding_wait
        return self._held(chosen, now + terms.embedding_wait)

    def embeddings_decision(self, now: float) -> Decision:
        """Lines 3 to 6; before time is up, others are selected only where nobody is left who could answer."""
        phase = self.embeddings
        assert phase is not None
        if phase.enough(now):
            return Decision.GO_ON
        if not phase.over(now) or not (phase.expired(now) or self.registry.eligible(now, phase.answered)):
            return Decision.WAIT
        return Decision.AGAIN if self.attempt + 1 < self.terms.tries else Decision.GIVE_UP

    def open_answers(self, now: float, nodes: Iterable[str] | None = None, whole: bool = False) -> list[str]:
        """Line 8, with those whose embeddings are in the loss; without `nodes`, line 2 of a round of one phase.

        `whole`: all of them are waited for.
        """
        terms = self.terms
        if nodes is None:
            nodes = select(terms, self.seed, self.number, 0, self.registry.eligible(now), terms.asked)
        asked = list(nodes)
        self.answers = Phase(asked, len(asked) if whole else terms.needed, now + terms.answer_wait)
        return self._held(self.answers.asked, self.answers.deadline)

    def answers_decision(self, now: float) -> Decision:
        """Lines 9 to 13: UC goes on with more than two where time is up, AS starts a new round."""
        assert self.answers is not None
        if self.answers.enough(now):
            return Decision.GO_ON
        if not self.answers.over(now):
            return Decision.WAIT
        going = self.terms.strategy == "uc" and len(self.answers.answered) > self.terms.fewest
        return Decision.GO_ON if going else Decision.GIVE_UP

    def phase_of(self, first: bool) -> Phase | None:
        """The phase of the embeddings, or that of the answers."""
        return self.embeddings if first else self.answers

    @property
    def phase(self) -> Phase | None:
        """The phase that is open."""
        return self.answers or self.embeddings

    @property
    def waiting_until(self) -> float:
        """The deadline of the phase that is open."""
        return -math.inf if self.phase is None else self.phase.deadline

    def close(self) -> None:
        """The round is over, one way or the other: nobody is at work for it any longer."""
        for phase in (self.embeddings, self.answers):
            for node in phase.asked if phase else ():
                self.registry.hold(node, -math.inf)

    def _held(self, nodes: Sequence[str], until: float) -> list[str]:
        for node in nodes:
            self.registry.hold(node, until)
        return list(nodes)
