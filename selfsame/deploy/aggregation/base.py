"""What a server does with the updates of a round, whatever it sees of them: one running sum, and never the answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from selfsame.deploy.codec import Field, Json
from selfsame.engine.state import State
from selfsame.methods.base import Fields

NETWORK = "network"


@dataclass(frozen=True)
class Errand:
    """A message to somebody who helps with the sum."""

    node: str
    payload: bytes


@dataclass(frozen=True)
class Outcome:
    """What a round's sum came to."""

    taken: tuple[str, ...]  # the devices whose answers are in it; none: nothing is released
    update_P: Tensor | None = None  # the weighted mean of the updates; none: they weigh nothing
    stood_in: int = 0
    weight: int = 0  # of all that is in the sum


class Totals(ABC):
    """The sum of a round: `open`, `take` for each answer, `close`; then `outcome`, once whoever helps has answered."""

    grouped = False  # whether sums are over whole groups alone
    helpers: tuple[str, ...] = ()  # nodes that are no devices

    def ready(self) -> bool:
        """Whether a round can begin."""
        return True

    @abstractmethod
    def fields(self) -> dict[str, Field]:
        """What a device sends in place of its network, in the round that is open."""

    @abstractmethod
    def open(self, round: int, state: State, group: Sequence[str]) -> dict[str, Json]:
        """Begin a round; what its requests say of the group."""

    @abstractmethod
    def take(self, node: str, weight: int, fields: Fields) -> None:
        """Add an answer, whose own fields are taken out of `fields`; `Refused` changes nothing."""

    @abstractmethod
    def close(self, taken: Sequence[str]) -> None:
        """No more answers come."""

    @abstractmethod
    def outcome(self, now: float) -> Outcome | None:
        """What the round came to; None: not yet known."""

    def done(self) -> None:  # noqa: B027
        """The round is complete and on the disk."""

    def give_up(self) -> None:  # noqa: B027
        """Nothing of the round is released."""

    def left(self, round: int) -> dict[str, Fields] | None:
        """The other fields of each answer in a release that was being asked for when the server stopped."""
        return None

    # Whoever helps

    def errands(self, now: float, there: Sequence[str]) -> list[Errand]:
        """Messages to push now."""
        return []

    def heard(self, node: str, payload: bytes, now: float) -> str:
        """Take a helper's answer; what it is counted as."""
        return ""

    def lost(self, node: str, now: float) -> None:  # noqa: B027
        """Nothing more comes of what a helper was asked."""

    @property
    def waiting_until(self) -> float:
        """Until when there is no errand."""
        return float("inf")


class Clear(Totals):
    """The server sees every update, and adds them up as they come."""

    def __init__(self, parameters: int, dtype: torch.dtype, clip: float, half: bool) -> None:
        self._numbers, self._dtype, self._clip, self._half = parameters, dtype, clip, half
        self._taken: tuple[str, ...] | None = None

    def open(self, round: int, state: State, group: Sequence[str]) -> dict[str, Json]:
        self._theta_P = state.theta_P
        self._sum_P = torch.zeros_like(state.theta_P, dtype=torch.float64)
        self._weight, self._taken = 0, None
        return {"group": ""}

    def fields(self) -> dict[str, Field]:
        """A network no farther from the one that was sent than the clip, with some room for rounding."""
        about = None if self._half else self._theta_P.cpu()
        return {NETWORK: Field((self._numbers,), self._dtype, self._clip * (1 + 1e-3), about, self._half)}

    def take(self, node: str, weight: int, fields: Fields) -> None:
        sent_P = fields.pop(NETWORK).double()
        self._sum_P += weight * (sent_P if self._half else sent_P - self._theta_P.double())
        self._weight += weight

    def close(self, taken: Sequence[str]) -> None:
        self._taken = tuple(taken)

    def outcome(self, now: float) -> Outcome | None:
        if self._taken is None:
            return None
        return Outcome(self._taken, self._sum_P / self._weight if self._weight else None)
