"""What a report is drawn from: plain numbers and words, ready for JSON, free of torch.

Rates (``p@1``, ``auroc``, ``eer``, ``leak``, ``recovered``) are fractions from 0 to 1; the report prints per cent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

Point = tuple[float, float]

COLLAPSED_SPREAD = 0.95  # mean cosine between different classes' vectors, above which they are one vector


@dataclass(frozen=True)
class Picture:
    """The embedding space in two dimensions: S samples, R classes with a true prototype and perhaps a shared proxy."""

    emb: list[Point]
    label: list[int]
    unseen: list[bool]
    truth: list[Point]
    proxy: list[Point] | None = None
    how: str = "pca"


@dataclass(frozen=True)
class RunView:
    """One run, as a reader sees it."""

    title: str
    method: str
    history: list[dict[str, Any]] = field(default_factory=list)
    final: dict[str, float | None] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)
    wire: list[tuple[str, str, str, str]] = field(default_factory=list)
    seconds: float = math.nan
    roc: dict[str, tuple[list[float], list[float]]] = field(default_factory=dict)
    picture: Picture | None = None
    warnings: list[str] = field(default_factory=list)
    recipe: str = ""
    facts: dict[str, str] = field(default_factory=dict)

    def figure(self, name: str) -> float | None:
        """A final figure, or None where it is missing or not a finite number."""
        return finite(self.final.get(name))

    @property
    def collapsed(self) -> bool:
        """Whether every class ended at the same place, so that the other figures mean nothing."""
        spread = self.figure("spread")
        return (spread is not None and spread >= COLLAPSED_SPREAD) or any("collaps" in w.lower() for w in self.warnings)

    @property
    def diverged(self) -> bool:
        """Whether training ran away: the run says so, or its last recorded loss is not a finite number."""
        if any(w.startswith("diverged") for w in self.warnings):
            return True
        losses = [record["loss"] for record in self.history if "loss" in record]
        return bool(losses) and finite(losses[-1]) is None

    @property
    def shares_class_vector(self) -> bool:
        """Whether the server or other clients receive, in the clear, more about a class than the network update."""
        if self.wire:
            return any(
                way == "up"
                and name != "network update"
                and not any(word in who.lower() for word in ("device", "enclave"))
                for name, way, who, _ in self.wire
            )
        return any(not what.startswith("network update") and "enclave" not in what.lower() for what in self.left)

    def exposed(self) -> tuple[float | None, float | None]:
        """(measure (17), adaptive attacker's share): zero where no class vector is shared, None where not measured."""
        leak, recovered = self.figure("leak"), self.figure("recovered")
        if leak is None and recovered is None and not self.shares_class_vector:
            return 0.0, 0.0
        return leak, recovered

    def to_dict(self) -> dict[str, Any]:
        """Plain types only; numbers that JSON cannot hold become None."""
        return _plain(asdict(self))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RunView:
        """The inverse of `to_dict`."""
        rest = dict(data)
        rest["wire"] = [tuple(row) for row in rest.get("wire", [])]
        rest["roc"] = {name: (list(fpr), list(tpr)) for name, (fpr, tpr) in rest.get("roc", {}).items()}
        rest["seconds"] = math.nan if rest.get("seconds") is None else rest["seconds"]
        picture = rest.get("picture")
        if picture is not None:
            points = {key: [tuple(p) for p in picture[key]] for key in ("emb", "truth")}
            proxy = None if picture.get("proxy") is None else [tuple(p) for p in picture["proxy"]]
            rest["picture"] = Picture(**{**picture, **points, "proxy": proxy})
        return cls(**rest)


def finite(value: Any) -> float | None:
    """The value as a finite float, or None."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def series(history: Sequence[Mapping[str, Any]], key: str) -> tuple[list[float], list[float]]:
    """(rounds, values) of one key over the records that hold it as a finite number."""
    points = [(finite(record.get("round")), finite(record.get(key))) for record in history]
    kept = [(x, y) for x, y in points if x is not None and y is not None]
    return [x for x, _ in kept], [y for _, y in kept]


def percent(value: float | None, digits: int = 1) -> str:
    """A fraction as per cent without the sign, and a dash for what is not known."""
    value = finite(value)
    return "–" if value is None else f"{100 * value:.{digits}f}"


def duration(seconds: float) -> str:
    """Seconds with the precision that matters."""
    value = finite(seconds)
    return "–" if value is None else f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, str | bool | int | None):
        return value
    return finite(value)
