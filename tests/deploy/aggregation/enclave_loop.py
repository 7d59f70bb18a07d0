"""A loopback whose updates are sealed to an enclave: an object in this process, or a process of its own."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import partial
from typing import Any

from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from loopback import Loopback, recipe
from masked_loop import signer

from selfsame.config.recipe import Recipe
from selfsame.deploy.aggregation.enclave import SumController, keeper_of
from selfsame.deploy.device import Device
from selfsame.deploy.process import EnclaveEnded
from selfsame.deploy.split.attest import Policy
from selfsame.enclave.adder import Adder, register_bytes
from selfsame.enclave.mandate import SumPlan
from selfsame.enclave.message import Order

TRUSTING = Policy(allow_simulated=True)


def keys(count: int) -> tuple[bytes, ...]:
    """The public keys of the first devices."""
    public = [signer(number).key.public_key() for number in range(count)]
    return tuple(key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo) for key in public)


def enclave_recipe(name: str, options: dict[str, Any] | None = None, **parts: Any) -> Recipe:
    sums = {"aggregation": "enclave", "clip": 20.0, **parts.pop("sums", {})}
    return recipe(name, options, sums=sums, **parts)


class DirectSums(SumController):
    """A controller whose enclave is an object: quicker than a process, the same frames."""

    def __init__(self, plan: SumPlan, keys: tuple[bytes, ...], **options: Any) -> None:
        self.plan, self.limit, self._lock = plan, None, threading.Lock()
        self.enclave: Adder | None = Adder(plan, **options)
        self.seen: list[bytes] = []
        self._ask(Order.REGISTER, register_bytes(keys))

    @property
    def alive(self) -> bool:
        return self.enclave is not None

    def _exchange(self, body: bytes) -> bytes:
        if self.enclave is None:
            raise EnclaveEnded("enclave: its process has ended")
        self.seen += [body, self.enclave.handle(body)]
        return self.seen[-1]

    def kill(self) -> None:
        self.enclave = None

    def close(self) -> None:
        self.enclave = None


@dataclass
class EnclosedLoopback(Loopback):
    """As `Loopback`, with an enclave; `apart` is whether it is a process of its own.

    It knows the keys of the first `registered` devices; 0: of all.
    """

    apart: bool = False
    registered: int = 0
    policy: Policy = TRUSTING

    def place(self, number: int) -> str:
        return signer(number).name

    def __post_init__(self) -> None:
        self.devices = {}
        for number in range(self.nodes):
            self.reopen_device(self.place(number))
        self.reopen_server()

    def reopen_device(self, node: str) -> None:
        number = next(number for number in range(self.nodes) if signer(number).name == node)
        self.devices[node] = Device(
            self.folder / f"node{number}",
            f"digits:{number}",
            simulate=True,
            signer=signer(number),
            policy=self.policy,
        )

    def reopen_server(self) -> None:
        kind = SumController if self.apart else DirectSums
        known = keys(self.registered or self.nodes)
        self.options["enclave"] = partial(keeper_of, keys=known, start=kind)
        super().reopen_server()

    @property
    def enclave(self) -> Any:
        """The present enclave's controller."""
        return self.server._keeper.process
