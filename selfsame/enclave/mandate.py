"""The plans: what a device agrees to, and what an enclave holds itself to."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Self

_TAG = b"selfsame plan 1\n"
LONGEST = 1 << 16  # bytes of JSON
POLLED = ("parameters", "clip", "noise", "group", "least")
_LEAST = {"participants": 2, "gradients": 2, "most": 0, "group": 2, "least": 2, "stand_ins": 0}


@dataclass(frozen=True)
class WrittenPlan:
    """A plan can be written in one way alone; its hash stands in the enclave's quote."""

    def canonical(self) -> bytes:
        """The one way to write this plan: JSON, keys sorted, no spaces, ASCII."""
        return json.dumps(self._tables(), sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")

    def _tables(self) -> dict[str, Any]:
        return asdict(self)

    def digest(self) -> bytes:
        """What stands for the plan in a quote and in every key."""
        return hashlib.sha256(_TAG + self.canonical()).digest()

    @classmethod
    def names(cls) -> list[str]:
        return [part.name for part in fields(cls)]

    @classmethod
    def read(cls, data: bytes) -> Self:
        """The plan that `canonical` wrote; any other bytes are a ValueError."""
        whole = _parsed(data)
        if sorted(whole) != sorted(cls.names()):
            raise ValueError(f"plan: a JSON object with exactly {', '.join(cls.names())}")
        plan = cls(**whole)
        if plan.canonical() != data:
            raise ValueError("plan: not in canonical form (sorted keys, no spaces, no key twice)")
        return plan

    def _check_whole(self, *names: str) -> None:
        for name in names:
            value, least = getattr(self, name), _LEAST.get(name, 1)
            if type(value) is not int or not least <= value < 1 << 31:
                raise ValueError(f"plan: {name} is a whole number of at least {least}")

    def _check_positive(self, *names: str) -> None:
        for name in names:
            value = getattr(self, name)
            if type(value) is not float or not 0 < value < 1e15:
                raise ValueError(f"plan: {name} is a positive number with a decimal point, below 1e15")


@dataclass(frozen=True)
class Mandate(WrittenPlan):
    """Network, loss, privacy and numbers of one training in split rounds."""

    network: str  # the embedding network, in words that server and devices agree on
    dim: int  # coordinates of an embedding
    parameters: int  # coordinates of a gradient
    loss: Mapping[str, Any]  # fields of selfsame.enclave.losses.Loss
    privacy: Mapping[str, Any]  # fields of selfsame.enclave.noise.Mechanism
    participants: int  # num_required of Algorithm 3: embeddings of so many before derivatives are computed
    gradients: int  # no aggregate leaves with fewer: num_required x rate_p, or 3 where UC goes on without the others
    samples: int  # most samples of one participant in a round
    embedding_clip: float  # the longest embedding; a longer one is scaled down
    gradient_clip: float  # the longest gradient
    rounds: int  # most rounds that one enclave runs
    most: int  # most rounds in which one device's embeddings are used; 0: any

    def __post_init__(self) -> None:
        self._check_whole("dim", "parameters", "participants", "gradients", "samples", "rounds", "most")
        self._check_positive("embedding_clip", "gradient_clip")
        if self.gradients > self.participants:
            raise ValueError("plan: gradients is at most participants")
        if not isinstance(self.network, str) or not self.network:
            raise ValueError("plan: network is a name")
        for name in ("loss", "privacy"):
            part = getattr(self, name)
            if not isinstance(part, Mapping) or not all(isinstance(k, str) and _plain(v) for k, v in part.items()):
                raise ValueError(f"plan: {name} is a table of names with finite numbers, texts or truth values")

    def _tables(self) -> dict[str, Any]:
        return asdict(self) | {"loss": dict(self.loss), "privacy": dict(self.privacy)}


@dataclass(frozen=True)
class SumPlan(WrittenPlan):
    """Whose updates are added up, how long each may be, and which sums are released."""

    run: str
    terms: str  # digest of what the devices agreed to, in hexadecimal digits
    register: str  # and of the public keys of the devices that are registered
    parameters: int  # coordinates of an update
    clip: float  # the longest update; a longer one is scaled down
    cap: int  # the largest weight of an update
    noise: float  # deviation of the Gaussian noise on a sum, in clips
    group: int  # the least members of a group
    least: int  # of whom so many must have answered
    stand_ins: int  # the most rounds in which an old update stands in for a device; 0: any
    rounds: int
    polls: Mapping[str, Any] = field(default_factory=dict)  # the same of polls, as far as it differs; empty: none

    def __post_init__(self) -> None:
        self._check_whole("parameters", "cap", "group", "least", "stand_ins", "rounds")
        self._check_positive("clip")
        if type(self.noise) is not float or not 0 <= self.noise < 1e15:
            raise ValueError("plan: noise is a number with a decimal point, 0 or above")
        if self.least > self.group:
            raise ValueError("plan: least is at most group")
        if not isinstance(self.polls, Mapping) or (self.polls and sorted(self.polls) != sorted(POLLED)):
            raise ValueError(f"plan: polls is empty, or a table of {', '.join(POLLED)}")
        if self.polls:
            _ = self.of_polls
        if self.noise and self.cap > 1:
            raise ValueError("plan: noise hides no weights; cap is 1 with it")
        if not isinstance(self.run, str) or not self.run:
            raise ValueError("plan: run is a name")
        for name in ("terms", "register"):
            value = getattr(self, name)
            if type(value) is not str or len(value) != 64 or not set(value) <= set("0123456789abcdef"):
                raise ValueError(f"plan: {name} is a SHA-256 in hexadecimal digits")

    def _tables(self) -> dict[str, Any]:
        return asdict(self) | {"polls": dict(self.polls)}

    @cached_property
    def of_polls(self) -> SumPlan:
        """What holds for polls."""
        if not self.polls:
            raise ValueError("plan: has no polls")
        return replace(self, **self.polls, cap=1, polls={})


def read_plan(data: bytes) -> Mandate | SumPlan:
    """The plan of either kind that these bytes are."""
    return SumPlan.read(data) if "register" in _parsed(data) else Mandate.read(data)


def _parsed(data: bytes) -> dict[str, Any]:
    if len(data) > LONGEST:
        raise ValueError(f"plan: longer than {LONGEST} bytes")
    try:
        whole = json.loads(data.decode("ascii"))
    except RecursionError as error:
        raise ValueError("plan: nested too deeply") from error
    if not isinstance(whole, dict):
        raise ValueError("plan: not a JSON object")
    return whole


def _plain(value: object) -> bool:
    return type(value) in (bool, str, int) or (type(value) is float and math.isfinite(value))
