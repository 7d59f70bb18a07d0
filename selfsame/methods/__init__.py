"""The methods by name, or by where Python finds them."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
from collections.abc import Mapping
from typing import Any

from selfsame.errors import SelfsameError
from selfsame.fields import check_options, imported
from selfsame.methods.base import Cohort, Fields, LocalLoss, World
from selfsame.methods.baselines import FixedEmbedding, OwnEmbedding, PositiveOnly, Softmax
from selfsame.methods.deepsvdd import DeepSVDD
from selfsame.methods.fdml import Fdml, FlTraditional
from selfsame.methods.fedaws import FedAwS
from selfsame.methods.fedcrowd import FedCrowd
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
        OwnEmbedding,
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
        FedCrowd,
        Fdml,
        FlTraditional,
    )
}


def register(method: type[LocalLoss]) -> type[LocalLoss]:
    """Add a method of your own; usable as a decorator."""
    METHODS[method.name] = method
    return method


def method_class(name: str, loaded: bool = False) -> type[LocalLoss]:
    """The method of this name, or one line that says which there are.

    A name with a colon is an import path, "package.module:Class": a method of the user's own. Importing it runs its
    code; with `loaded` it is not imported, and must be there already.
    """
    if name not in METHODS and ":" in name:
        try:
            return _own(imported(name, "method", loaded))
        except SelfsameError as error:
            raise SelfsameError(f"{name}: {error}") from error
    if name not in METHODS:
        close = difflib.get_close_matches(name, METHODS, 1)
        known = f"the methods are: {', '.join(METHODS)}, or package.module:Class for your own"
        hint = f"did you mean {close[0]!r}?" if close else known
        raise SelfsameError(f"unknown method {name!r}; {hint}")
    return METHODS[name]


def _own(found: Any) -> type[LocalLoss]:
    """A class that can be trained, or one line that says what it lacks."""
    if not (isinstance(found, type) and issubclass(found, LocalLoss)):
        raise SelfsameError("must be a class derived from selfsame.methods.LocalLoss or SplitLoss")
    if inspect.isabstract(found):
        raise SelfsameError(f"lacks {', '.join(sorted(found.__abstractmethods__))}")
    missing = [name for name in ("name", "paper", "shared_class", "wire") if not hasattr(found, name)]
    if missing:
        raise SelfsameError(f"lacks the class variables {', '.join(missing)}")
    if not found.__dict__.get("__dataclass_params__") or not found.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        raise SelfsameError("must be decorated with @dataclass(frozen=True)")
    bare = [f.name for f in dataclasses.fields(found) if f.default is dataclasses.MISSING]
    if bare:
        raise SelfsameError(f"every hyper-parameter needs a default value: {', '.join(bare)}")
    return found


def options_of(name: str, loaded: bool = False) -> dict[str, Any]:
    """The hyper-parameters of a method and their defaults."""
    return {f.name: f.default for f in dataclasses.fields(method_class(name, loaded))}


def make(name: str, options: Mapping[str, Any], loaded: bool = False) -> LocalLoss:
    """A method with these hyper-parameters, each checked for name and type; the method itself checks the ranges."""
    return method_class(name, loaded)(**check_options(name, options, options_of(name, loaded)))
