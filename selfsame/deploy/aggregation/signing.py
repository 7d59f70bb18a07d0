"""A device's registered key, with which it signs what only it can have sent."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from selfsame.errors import SelfsameError
from selfsame.files import read_private

_NEEDS = "masked and sealed updates need cryptography 47 or newer: pip install 'selfsame[enclave]'"


@dataclass(frozen=True)
class Signer:
    """A private key on P-384 and the name that goes with it."""

    key: Any
    name: str

    @staticmethod
    def of(key: Any) -> Signer:
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

        try:
            from selfsame.enclave.records import node_name
        except ImportError as error:
            raise SelfsameError(_NEEDS) from error
        return Signer(key, node_name(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)))

    @staticmethod
    def read(path: Path) -> Signer:
        """The key of a NAME.key file, as `selfsame cluster keys` writes it."""
        try:
            from cryptography.hazmat.primitives.asymmetric import ec
            from cryptography.hazmat.primitives.serialization import load_ssh_private_key
        except ImportError as error:
            raise SelfsameError(_NEEDS) from error
        try:
            key = load_ssh_private_key(read_private(path), None)
        except (OSError, ValueError, TypeError) as error:
            raise SelfsameError(f"{path}: not a private key as `selfsame cluster keys` writes it") from error
        if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP384R1):
            raise SelfsameError(f"{path}: not a key on P-384, as `selfsame cluster keys` writes it")
        return Signer.of(key)


def read_public(path: Path) -> tuple[str, bytes]:
    """(the name, the key in PEM) of a NAME.pub file."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key

    from selfsame.enclave.records import node_name

    try:
        pem = load_ssh_public_key(path.read_bytes()).public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise SelfsameError(f"{path}: not a public key as `selfsame cluster keys` writes it") from error
    return node_name(pem), pem
