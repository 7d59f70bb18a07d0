"""Oracles by name: what papers set beside federated methods, fitted at once to all rows with all their labels.

They are no methods: they have no clients, no rounds and no wire.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol

from selfsame.errors import SelfsameError
from selfsame.fields import check_options, nearest
from selfsame.methods.sleec import Csr, Floats, Sleec


class Oracle(Protocol):
    """A frozen dataclass of settings that has a name."""

    def scores(self, x_NF: Csr, y_NC: Csr, x_SF: Csr, seed: int) -> Floats:
        """A score for each label of each new row (S, C), higher where it fits better; labels are 0 or 1."""


ORACLES: dict[str, type[Any]] = {oracle.name: oracle for oracle in (Sleec,)}


def make_oracle(name: str, options: Mapping[str, Any]) -> Oracle:
    """An oracle with these settings, each checked for name and type; the oracle itself checks the ranges."""
    if name not in ORACLES:
        raise SelfsameError(f"unknown oracle {name!r}{nearest(name, ORACLES)}")
    defaults = {part.name: part.default for part in dataclasses.fields(ORACLES[name])}
    found: Oracle = ORACLES[name](**check_options(name, options, defaults))
    return found


def settings_of(oracle: Oracle) -> dict[str, Any]:
    """All its settings, those that were left out too."""
    return dataclasses.asdict(oracle)  # type: ignore[call-overload]
