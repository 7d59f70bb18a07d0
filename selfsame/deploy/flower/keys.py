"""Certificates and keys of a federation: an authority of its own, a server certificate, one key pair a device.

Every private file is 0600 in a 0700 folder. Only `ca.pem` and a device's own private key go to that device; the
authority's key is needed again only for another server certificate and is best kept off line.
"""

from __future__ import annotations

import hashlib
import ipaddress
import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from selfsame.errors import SelfsameError
from selfsame.files import private_folder, write

AUTHORITY, SERVER = "ca", "server"
_AUTHORITY_DAYS, _SERVER_DAYS = 3650, 397  # what TLS libraries take from a server without complaint


def _library() -> Any:
    try:
        from cryptography import x509
    except ImportError as error:
        raise SelfsameError("keys need cryptography: pip install 'selfsame[deploy]'") from error
    return x509


def _write(path: Path, content: bytes, private: bool = False) -> None:
    if os.path.lexists(path):
        raise SelfsameError(f"{path}: is there already; keys are never written over, name another folder")
    write(path, content, private=private)


def _pair(folder: Path, name: str, ssh: bool = False) -> Any:
    """A new P-384 key in NAME.key; Flower reads the devices' in OpenSSH's form."""
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    key = ec.generate_private_key(ec.SECP384R1())
    text = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH if ssh else PrivateFormat.PKCS8, NoEncryption())
    _write(folder / f"{name}.key", text, private=True)
    return key


def _certificate(
    subject: str, key: Any, issuer: str, signer: Any, days: int, hosts: Sequence[str], authority: bool
) -> bytes:
    x509 = _library()
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.serialization import Encoding
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    def name(text: str) -> Any:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    now = datetime.now(UTC)
    flags = {"content_commitment": False, "data_encipherment": False, "encipher_only": False, "decipher_only": False}
    usage = x509.KeyUsage(
        digital_signature=not authority, key_encipherment=False, key_agreement=not authority,
        key_cert_sign=authority, crl_sign=authority, **flags
    )  # fmt: skip
    parent = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    made = (
        x509.CertificateBuilder()
        .subject_name(name(subject))
        .issuer_name(name(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=authority, path_length=0 if authority else None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(parent, critical=False)
    )
    if not authority:
        made = made.add_extension(x509.SubjectAlternativeName([_host(x509, host) for host in hosts]), critical=False)
        made = made.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    return made.sign(signer, hashes.SHA384()).public_bytes(Encoding.PEM)


def _host(x509: Any, host: str) -> Any:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        return x509.DNSName(host)
    except ValueError as error:
        raise SelfsameError(f"host {host!r}: expected a host name or an address") from error


def make_server(folder: Path, hosts: Sequence[str]) -> None:
    """ca.pem, ca.key, server.pem and server.key; the certificate is for these host names and addresses."""
    _library()
    if not hosts:
        raise SelfsameError("keys: name at least one host by which devices reach the server")
    private_folder(folder, close=True)
    authority = _pair(folder, AUTHORITY)
    ours = f"selfsame authority {os.urandom(4).hex()}"
    _write(folder / f"{AUTHORITY}.pem", _certificate(ours, authority, ours, authority, _AUTHORITY_DAYS, (), True))
    server = _pair(folder, SERVER)
    signed = _certificate(hosts[0], server, ours, authority, _SERVER_DAYS, hosts, False)
    _write(folder / f"{SERVER}.pem", signed)


def make_node(folder: Path, name: str) -> None:
    """NAME.key, which stays on the device, and NAME.pub, which the server's owner registers."""
    _library()
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    if not name or not all(part.isalnum() or part in "-_" for part in name) or name in (AUTHORITY, SERVER):
        raise SelfsameError(f"device name {name!r}: letters, digits, - and _ only, and not {AUTHORITY} or {SERVER}")
    key = _pair(private_folder(folder, close=True), name, ssh=True)
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    _write(folder / f"{name}.pub", public + b"\n")


def make_helper(folder: Path, name: str) -> None:
    """A node's keys for one that takes masks off: NAME.seal, which stays there too, and NAME.helper for the server."""
    from selfsame.deploy.aggregation.helper import make_keys
    from selfsame.deploy.aggregation.signing import Signer
    from selfsame.deploy.aggregation.sum_terms import HelperTerms

    make_node(folder, name)
    public = make_keys(folder / f"{name}.seal")
    HelperTerms.signed(Signer.read(folder / f"{name}.key").key, public).write(folder / f"{name}.helper")


def fingerprint(public: bytes) -> str:
    """The node's name everywhere: a hash of its public key as Flower carries it (PEM)."""
    return hashlib.sha256(public).hexdigest()[:32]


def read_fingerprint(path: Path) -> str:
    """The name that belongs to a NAME.pub file."""
    _library()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key

    try:
        key = load_ssh_public_key(path.read_bytes())
        return fingerprint(key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise SelfsameError(f"{path}: not a public key as `selfsame cluster keys` writes it") from error
