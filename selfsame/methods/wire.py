"""What leaves the device is declared: every field on the wire, and who may see it."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from selfsame.errors import SelfsameError


class Sight(enum.IntEnum):
    """Who may see a field; a larger value is seen by more."""

    DEVICE = 0  # never leaves
    ENCLAVE = 1  # sealed to attested code
    SUM = 2  # only as a sum over a whole group of devices
    SERVER = 3
    PUBLIC = 4  # other clients too


@dataclass(frozen=True)
class Wire:
    """The fields of a method. ``own`` stays on the device; ``up`` leaves it; ``down`` comes from the server.

    The network itself (down) and its update (up) are fields of every federated method; `model_up` says who sees them.
    ``head`` names what travels with the network both ways and is averaged like it; reports do not carry it.
    """

    own: Mapping[str, str] = field(default_factory=dict)  # name -> what it is
    up: Mapping[str, tuple[Sight, str]] = field(default_factory=dict)
    down: Mapping[str, tuple[Sight, str]] = field(default_factory=dict)
    model_up: Sight | None = Sight.SERVER  # None: the network never leaves (not federated)
    head: Mapping[str, tuple[Sight, str]] = field(default_factory=dict)

    def rows(self, summed: bool = False) -> list[tuple[str, str, Sight, str]]:
        """(field, direction, who sees it, what it is), for the table that `selfsame wire` prints.

        `summed`: whether updates are masked or sealed on their way, so that nobody sees one of them alone.
        """
        table = [("samples", "stays", Sight.DEVICE, "the owner's data")]
        table += [(name, "stays", Sight.DEVICE, what) for name, what in self.own.items()]
        if self.model_up is None:
            table.append(("network", "stays", Sight.DEVICE, "trained on this device alone"))
        else:
            table.append(("network", "down", Sight.PUBLIC, "the shared embedding network"))
            what = "the gradient" if self.model_up is Sight.ENCLAVE else "the locally trained network"
            table.append(("network update", "up", self._averaged(self.model_up, summed), what))
        table += [(name, "down", sight, what) for name, (sight, what) in {**self.head, **self.down}.items()]
        table += [(name, "up", self._averaged(sight, summed), what) for name, (sight, what) in self.head.items()]
        table += [(name, "up", sight, what) for name, (sight, what) in self.up.items()]
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


def finite_rows(*tensors: Tensor) -> Tensor:
    """Which clients' rows are finite in every one of these tensors: bool of shape (M,)."""
    good = torch.ones(len(tensors[0]), dtype=torch.bool, device=tensors[0].device)
    for tensor in tensors:
        if tensor.is_floating_point():
            good = good & torch.isfinite(tensor[:, None]).flatten(1).all(1)
    return good
