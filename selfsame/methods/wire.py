"""What leaves the device is declared: every field on the wire, who may see it, and how long its rows may be."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from selfsame.errors import SelfsameError


class Sight(enum.IntEnum):
    """Who may see a field; a larger value is seen by more."""

    DEVICE = 0  # never leaves
    ENCLAVE = 1  # sealed to attested code
    SUM = 2  # only as a sum over a whole group of devices
    SERVER = 3  # the server alone
    PUBLIC = 4  # other clients too


REACH = 10.0  # of a vector without a length of its own, in lengths of a draw from N(0, I): sqrt(D)
_SIZES = ("1", "sqrt(D)", "classes", "clients")
_ROUNDING = 1e-4  # what arithmetic in single precision may add to a length


@dataclass(frozen=True)
class Bound:
    """The most that a row of a field may measure: its length, or the size of each of its whole numbers (-1: none)."""

    factor: float
    size: str = "1"

    def __post_init__(self) -> None:
        if self.size not in _SIZES or not self.factor > 0:
            raise SelfsameError(f"wire: a bound is a positive factor of one of {', '.join(_SIZES)}")

    def at(self, dim: int, classes: int = 0, clients: int = 0) -> float:
        """The bound in a federation of this width and these numbers of classes and clients."""
        return self.factor * (1.0, math.sqrt(dim), classes, clients)[_SIZES.index(self.size)]

    def __str__(self) -> str:
        if self.size == "1":
            return f"{self.factor:g}"
        return self.size if self.factor == 1 else f"{self.factor:g} {self.size}"


UNIT = Bound(1.0)
FREE = Bound(REACH, "sqrt(D)")
CLASSES, CLIENTS = Bound(1.0, "classes"), Bound(1.0, "clients")

# Who sees a field, what it is, and its bound, which may follow from the method's hyper-parameters.
Declared = tuple[Sight, str, Bound | Callable[[Any], Bound]]


@dataclass(frozen=True)
class Wire:
    """The fields of a method. ``own`` stays on the device; ``up`` leaves it; ``down`` comes from the server.

    The network itself (down) and its update (up) are fields of every federated method; `model_up` says who sees them.
    ``head`` names what travels with the network both ways and is averaged like it; reports do not carry it.
    ``polled`` leaves the device in polls, as part of a sum over everybody.
    ``inside`` is what an enclave makes of what it was sent, and keeps: it leaves it no more.
    """

    own: Mapping[str, str] = field(default_factory=dict)  # name -> what it is
    up: Mapping[str, Declared] = field(default_factory=dict)
    down: Mapping[str, Declared] = field(default_factory=dict)
    model_up: Sight | None = Sight.SERVER  # None: the network never leaves (not federated)
    head: Mapping[str, Declared] = field(default_factory=dict)
    polled: Mapping[str, Declared] = field(default_factory=dict)
    inside: Mapping[str, str] = field(default_factory=dict)  # name -> what it is

    def __post_init__(self) -> None:
        for _, name, declared in self._moved():
            if len(declared) != 3 or not (isinstance(declared[2], Bound) or callable(declared[2])):
                raise SelfsameError(f"wire: field {name!r} needs (who sees it, what it is, its Bound)")
        for name, (sight, *_) in self.polled.items():
            if sight > Sight.SUM:
                raise SelfsameError(f"wire: field {name!r} of a poll is seen as a sum alone")

    def _ways(self) -> tuple[tuple[str, Mapping[str, Declared]], ...]:
        return ("up", self.up), ("down", self.down), ("head", self.head), ("polled", self.polled)

    def _moved(self) -> Iterator[tuple[str, str, Declared]]:
        for way, part in self._ways():
            yield from ((way, name, declared) for name, declared in part.items())

    def of(self, method: Any) -> Wire:
        """The same wire with the bounds that a method's hyper-parameters give."""

        def bounded(part: Mapping[str, Declared]) -> dict[str, Declared]:
            return {
                name: (sight, what, bound if isinstance(bound, Bound) else bound(method))
                for name, (sight, what, bound) in part.items()
            }

        parts: dict[str, Any] = {way: bounded(part) for way, part in self._ways()}
        return replace(self, **parts)

    def bounds(self, way: str) -> dict[str, Bound]:
        """The bounds of the fields that go ``up``, ``down``, with the network (``head``), or in polls (``polled``)."""
        found = {name: bound for direction, name, (_, _, bound) in self._moved() if direction == way}
        return {name: bound for name, bound in found.items() if isinstance(bound, Bound)}

    def bound_words(self, name: str, way: str) -> str:
        """The bound of a row of the table; empty for what stays and for the network itself."""
        if way == "stays":
            return ""
        found = self.bounds("polled") | self.bounds("head") | self.bounds(way)
        return str(found.get(name, ""))

    def rows(self, summed: bool = False) -> list[tuple[str, str, Sight, str]]:
        """(field, direction, who sees it, what it is), for the table that `selfsame wire` prints.

        `summed`: whether updates are masked or sealed on their way, so that nobody sees one of them alone.
        """
        table = [("samples", "stays", Sight.DEVICE, "the owner's data")]
        table += [(name, "stays", Sight.DEVICE, what) for name, what in self.own.items()]
        table += [(name, "stays", Sight.ENCLAVE, what) for name, what in self.inside.items()]
        if self.model_up is None:
            table.append(("network", "stays", Sight.DEVICE, "trained on this device alone"))
        else:
            table.append(("network", "down", Sight.PUBLIC, "the shared embedding network"))
            what = "the gradient" if self.model_up is Sight.ENCLAVE else "the locally trained network"
            table.append(("network update", "up", self._averaged(self.model_up, summed), what))
        table += [(name, "down", sight, what) for name, (sight, what, _) in {**self.head, **self.down}.items()]
        table += [(name, "up", self._averaged(sight, summed), what) for name, (sight, what, _) in self.head.items()]
        table += [(name, "up", sight, what) for name, (sight, what, _) in {**self.up, **self.polled}.items()]
        return table

    @staticmethod
    def _averaged(sight: Sight, summed: bool) -> Sight:
        """Who sees what is averaged."""
        return min(sight, Sight.SUM) if summed else sight

    def check_up(self, leaves: Mapping[str, Tensor], *private: Mapping[str, Tensor]) -> None:
        """Refuse a report that carries an undeclared field, lacks a declared one, or aliases a private tensor.

        `private` are the device's fields before, during and after the round: of one name, each has its own tensor.
        """
        if set(leaves) != set(self.up):
            raise SelfsameError(f"wire: a report may hold {sorted(self.up)} and nothing else, got {sorted(leaves)}")
        own = [(name, t) for fields in private for name, t in fields.items() if name in self.own]
        hidden = {t.untyped_storage().data_ptr(): name for name, t in own}
        for name, value in leaves.items():
            where = hidden.get(value.untyped_storage().data_ptr())
            if where is not None and value.numel():
                raise SelfsameError(
                    f"wire: field {name!r} is the private field {where!r}, which never leaves the device"
                )

    def check_down(self, sent: Mapping[str, Tensor]) -> None:
        """Refuse a message to a client that carries anything but the declared fields."""
        if set(sent) != set(self.down):
            raise SelfsameError(f"wire: a client may be sent {sorted(self.down)} and nothing else, got {sorted(sent)}")


def within(x: Tensor, longest: float) -> Tensor:
    """x with every row (along the last axis) that is longer brought to this length; the others as they are."""
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return torch.where(length > longest, x * (longest / length), x)


def too_long(value: Tensor, longest: float) -> bool:
    """Whether a row of a field is beyond its bound, beside what rounding adds."""
    if not value.numel():
        return False
    if not value.is_floating_point():
        return bool((value < -1).any() or (value > longest).any())
    row = value.double()
    length = row.abs() if row.dim() < 2 else row.norm(dim=-1)
    return bool((length > longest * (1 + _ROUNDING)).any())


def finite_rows(*tensors: Tensor) -> Tensor:
    """Which clients' rows are finite in every one of these tensors: bool of shape (M,)."""
    good = torch.ones(len(tensors[0]), dtype=torch.bool, device=tensors[0].device)
    for tensor in tensors:
        if tensor.is_floating_point() and tensor.numel():  # the largest and the smallest tell, and NaN is both
            rows = tensor.reshape(len(tensor), -1)
            good = good & torch.isfinite(rows.amax(1)) & torch.isfinite(rows.amin(1))
    return good
