"""What a report is drawn from: plain values, ready for JSON, free of torch.

Rates (``p@1``, ``auroc``, ``eer``, ``leak``, ``recovered``) are fractions from 0 to 1; the report prints per cent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from selfsame.report.words import SIGHTS, finite

Point = tuple[float, float]


@dataclass(frozen=True)
class Picture:
    """The embedding space in two dimensions: S samples, R classes with a true prototype and perhaps a shared proxy."""

    emb: list[Point]
    label: list[int]
    unseen: list[bool]
    truth: list[Point]
    proxy: list[Point] | None = None
    who: list[str] = field(default_factory=list)  # the person of each sample; empty in runs of earlier versions
    owner: list[str] = field(default_factory=list)  # the person of each prototype
    how: str = "pca"  # or "tsne"
    metric: str = "euclidean"  # or "cosine": by what t-SNE tells who is near


@dataclass(frozen=True)
class RunView:
    """One run, as a reader sees it.

    A row of ``wire`` is (field, way, sight, what it is), an entry of ``left`` (field, sight): a sight is "device",
    "enclave", "server" or "public". A warning is a table with its "kind" and the numbers of that kind.
    """

    title: str
    method: str
    history: list[dict[str, Any]] = field(default_factory=list)
    final: dict[str, float | None] = field(default_factory=dict)
    left: list[tuple[str, str]] = field(default_factory=list)
    wire: list[tuple[str, str, str, str]] = field(default_factory=list)
    seconds: float = math.nan
    roc: dict[str, tuple[list[float], list[float]]] = field(default_factory=dict)
    picture: Picture | None = None
    warnings: list[dict[str, Any]] = field(default_factory=list)
    recipe: str = ""
    facts: dict[str, str] = field(default_factory=dict)
    people: list[tuple[str, bool, float]] = field(default_factory=list)  # (name, unseen, share refused), worst first
    audit: dict[str, Any] = field(default_factory=dict)  # what `selfsame audit` found; empty: it was not asked

    def __post_init__(self) -> None:
        """Runs of earlier versions kept words, which become the values that they stood for."""
        object.__setattr__(self, "left", [_pair(entry) for entry in self.left])
        object.__setattr__(self, "wire", [(name, way, _sight(who), what) for name, way, who, what in self.wire])
        object.__setattr__(self, "warnings", [_finding(warning) for warning in self.warnings])

    def figure(self, name: str) -> float | None:
        """A final figure, or None where it is missing or not a finite number."""
        return finite(self.final.get(name))

    def warned(self, kind: str) -> bool:
        """Whether there is a warning of this kind."""
        return any(warning["kind"] == kind for warning in self.warnings)

    @property
    def collapsed(self) -> bool:
        """Whether every class ended at the same place, so that the other figures mean nothing."""
        return self.warned("collapsed")

    @property
    def diverged(self) -> bool:
        """Whether training ran away: the run says so, or its last recorded loss is not a finite number."""
        losses = [record["loss"] for record in self.history if "loss" in record]
        return self.warned("diverged") or (bool(losses) and finite(losses[-1]) is None)

    @property
    def marks(self) -> list[str]:
        """What stands beside the title wherever it is shown."""
        return [mark for mark in ("collapsed", "diverged") if getattr(self, mark)]

    @property
    def shares_class_vector(self) -> bool:
        """Whether the server or other clients receive, in the clear, more about a class than the network update."""
        sent = [(name, sight) for name, way, sight, _ in self.wire if way == "up"] if self.wire else self.left
        return any(name != "network update" and sight not in ("device", "enclave") for name, sight in sent)

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
        rest["roc"] = {name: (list(fpr), list(tpr)) for name, (fpr, tpr) in rest.get("roc", {}).items()}
        rest["seconds"] = math.nan if rest.get("seconds") is None else rest["seconds"]
        if (found := rest.get("picture")) is not None:
            emb, truth, proxy = (_points(found[key] or ()) for key in ("emb", "truth", "proxy"))
            none = found["proxy"] is None
            names = {"who": list(found.get("who", ())), "owner": list(found.get("owner", ()))}
            rest["picture"] = Picture(
                emb,
                found["label"],
                found["unseen"],
                truth,
                None if none else proxy,
                **names,
                how=found.get("how", "pca"),
                metric=found.get("metric", "euclidean"),
            )
        rest["people"] = [(str(name), bool(new), share) for name, new, share in rest.get("people", ())]
        return cls(**rest)


def _points(rows: Sequence[Sequence[float]]) -> list[Point]:
    return [(x, y) for x, y in rows]


def _sight(who: str) -> str:
    """The name of a sight, which earlier versions wrote in words."""
    names = {words: name for name, words in SIGHTS.items()}
    return names.get(who.lower(), who)


def _pair(entry: str | Sequence[str]) -> tuple[str, str]:
    """(field, sight), which earlier versions wrote as 'field -> words'."""
    if isinstance(entry, str):
        name, arrow, who = entry.rpartition(" -> ")
        return (name, _sight(who)) if arrow else (who, "")
    name, sight = entry
    return name, _sight(sight)


def _finding(warning: str | Mapping[str, Any]) -> dict[str, Any]:
    """A warning as a table, which earlier versions wrote as a sentence."""
    if isinstance(warning, str):
        kinds = [kind for kind in ("collapsed", "diverged") if warning.startswith(kind)]
        return {"kind": kinds[0] if kinds else "said", "words": warning}
    if not isinstance(warning["kind"], str):
        raise ValueError("a warning without its kind")
    return dict(warning)


def series(history: Sequence[Mapping[str, Any]], key: str) -> tuple[list[float], list[float]]:
    """(rounds, values) of one key over the records that hold it as a finite number."""
    points = [(finite(record.get("round")), finite(record.get(key))) for record in history]
    kept = [(x, y) for x, y in points if x is not None and y is not None]
    return [x for x, _ in kept], [y for _, y in kept]


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, str | bool | int | None):
        return value
    return finite(value)
