"""A loopback with registered keys and helpers: nodes are named by their keys, as over a real transport."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from loopback import Loopback, recipe

from selfsame.config.recipe import Recipe
from selfsame.deploy.aggregation.helper import Helper
from selfsame.deploy.aggregation.signing import Signer
from selfsame.deploy.aggregation.sum_terms import HelperTerms
from selfsame.deploy.device import Device


@functools.cache
def signer(number: int) -> Signer:
    """The same keys in every test: a number decides the key."""
    return Signer.of(ec.derive_private_key(1000 + number, ec.SECP384R1()))


@functools.cache
def sealing(number: int) -> X25519PrivateKey:
    return X25519PrivateKey.from_private_bytes(bytes([number]) * 32)


def helper_terms(number: int) -> HelperTerms:
    """Helper 0, 1, ..; each has a registered key and one that seeds are sealed to."""
    return HelperTerms.signed(signer(100 + number).key, sealing(number).public_key().public_bytes_raw())


def register(folder: Path, numbers: range) -> Path:
    """The folder of public keys that a helper is given."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in numbers:
        public = signer(number).key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
        (folder / f"device-{number}.pub").write_bytes(public + b"\n")
    return folder


def masked_recipe(name: str, options: dict[str, Any] | None = None, **parts: Any) -> Recipe:
    sums = {"aggregation": "masked", "clip": 20.0, **parts.pop("sums", {})}
    return recipe(name, options, sums=sums, **parts)


@dataclass
class MaskedLoopback(Loopback):
    """As `Loopback`, with `helpers` helpers beside the devices."""

    helpers: int = 1
    helped: list[Any] = field(default_factory=list)

    def place(self, number: int) -> str:
        return signer(number).name

    def __post_init__(self) -> None:
        self.terms_of_helpers = tuple(helper_terms(number) for number in range(self.helpers))
        self.register = register(self.folder / "register", range(self.nodes))
        self.devices = {}
        for number in range(self.nodes):
            self.reopen_device(self.place(number))
        for number in range(self.helpers):
            self.reopen_helper(number)
        self.reopen_server()

    def reopen_device(self, node: str) -> None:
        number = next(number for number in range(self.nodes) if signer(number).name == node)
        start = self.folder / "server" / "start.safetensors"  # there where devices need it
        self.devices[node] = Device(
            self.folder / f"node{number}", f"digits:{number}", simulate=True, signer=signer(number), start=start
        )

    def reopen_helper(self, number: int) -> None:
        name = self.terms_of_helpers[number].name
        self.devices[name] = Helper(self.folder / f"helper{number}", sealing(number), self.register)

    def reopen_server(self) -> None:
        self.options["helpers"] = self.terms_of_helpers
        super().reopen_server()
