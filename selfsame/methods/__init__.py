"""The methods by name."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from typing import Any

from selfsame.errors import SelfsameError
from selfsame.fields import check_options
from selfsame.methods.base import Cohort, Fields, LocalLoss, World
from selfsame.methods.baselines import FixedEmbedding, PositiveOnly, Softmax
from selfsame.methods.deepsvdd import DeepSVDD
from selfsame.methods.fdml import Fdml, FlTraditional
from selfsame.methods.fedaws import FedAwS
from selfsame.methods.fedhide import FedCS, FedGN, FedHide
from selfsame.methods.fedmetric import FedMetric, FedMetricPos, FedMetricTrue
from selfsame.methods.feduv import FedUV, FedUVNegative
from selfsame.methods.split import SplitLoss

__all__ = [
    "METHODS",
    "Cohort",
    "Fields",
    "LocalLoss",
    "SplitLoss",
    "World",
    "make",
    "method_class",
    "options_of",
    "register",
]

METHODS: dict[str, type[LocalLoss]] = {
    method.name: method
    for method in (
        PositiveOnly,
        FixedEmbedding,
        Softmax,
        DeepSVDD,
        FedAwS,
        FedUV,
        FedUVNegative,
        FedMetric,
        FedMetricPos,
        FedMetricTrue,
        FedHide,
        FedGN,
        FedCS,
        Fdml,
        FlTraditional,
    )
}


def register(method: type[LocalLoss]) -> type[LocalLoss]:
    """Add a method of your own; usable as a decorator."""
    METHODS[method.name] = method
    return method


def method_class(name: str) -> type[LocalLoss]:
    """The method of this name, or one line that says which there are."""
    if name not in METHODS:
        close = difflib.get_close_matches(name, METHODS, 1)
        hint = f"did you mean {close[0]!r}?" if close else f"the methods are: {', '.join(METHODS)}"
        raise SelfsameError(f"unknown method {name!r}; {hint}")
    return METHODS[name]


def options_of(name: str) -> dict[str, Any]:
    """The hyper-parameters of a method and their defaults."""
    return {f.name: f.default for f in dataclasses.fields(method_class(name))}


def make(name: str, options: Mapping[str, Any]) -> LocalLoss:
    """A method with these hyper-parameters, each checked for name and type; the method itself checks the ranges."""
    return method_class(name)(**check_options(name, options, options_of(name)))
