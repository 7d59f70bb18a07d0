"""The training plan: what a device agrees to, and what the enclave holds itself to."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

_TAG = b"selfsame plan 1\n"
LONGEST = 1 << 16  # bytes of JSON
_LEAST = {"participants": 2, "gradients": 2, "most": 0}


@dataclass(frozen=True)
class Mandate:
    """Network, loss, privacy and numbers of one training; its hash stands in the enclave's quote."""

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
        for name in ("dim", "parameters", "participants", "gradients", "samples", "rounds", "most"):
            value = getattr(self, name)
            least = _LEAST.get(name, 1)
            if type(value) is not int or not least <= value < 1 << 31:
                raise ValueError(f"plan: {name} is a whole number of at least {least}")
        for name in ("embedding_clip", "gradient_clip"):
            value = getattr(self, name)
            if type(value) is not float or not 0 < value < 1e15:
                raise ValueError(f"plan: {name} is a positive number with a decimal point, below 1e15")
        if self.gradients > self.participants:
            raise ValueError("plan: gradients is at most participants")
        if not isinstance(self.network, str) or not self.network:
            raise ValueError("plan: network is a name")
        for name in ("loss", "privacy"):
            part = getattr(self, name)
            if not isinstance(part, Mapping) or not all(isinstance(k, str) and _plain(v) for k, v in part.items()):
                raise ValueError(f"plan: {name} is a table of names with finite numbers, texts or truth values")

    def canonical(self) -> bytes:
        """The one way to write this plan: JSON, keys sorted, no spaces, ASCII."""
        whole = asdict(self) | {"loss": dict(self.loss), "privacy": dict(self.privacy)}
        return json.dumps(whole, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")

    def digest(self) -> bytes:
        """What stands for the plan in a quote and in every key."""
        return hashlib.sha256(_TAG + self.canonical()).digest()

    @staticmethod
    def read(data: bytes) -> Mandate:
        """The plan that `canonical` wrote; any other bytes are a ValueError."""
        if len(data) > LONGEST:
            raise ValueError(f"plan: longer than {LONGEST} bytes")
        try:
            whole = json.loads(data.decode("ascii"))
        except RecursionError as error:
            raise ValueError("plan: nested too deeply") from error
        names = [field.name for field in fields(Mandate)]
        if not isinstance(whole, dict) or sorted(whole) != sorted(names):
            raise ValueError(f"plan: a JSON object with exactly {', '.join(names)}")
        plan = Mandate(**whole)
        if plan.canonical() != data:
            raise ValueError("plan: not in canonical form (sorted keys, no spaces, no key twice)")
        return plan


def _plain(value: object) -> bool:
    return type(value) in (bool, str, int) or (type(value) is float and math.isfinite(value))
