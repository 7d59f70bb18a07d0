"""Sealed files on the device, one per user: encrypted, bound to user and model, replaced as a whole or not at all.

A file is a header that anybody may read (how the key is made, which enrolment, which model) and a text sealed with
AES-256-GCM. The header and the user's name are authenticated with the text: a changed byte, a file under another
user's name, or one with the model's digest exchanged does not open.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import struct
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from selfsame.errors import SelfsameError, not_installed, one_line
from selfsame.files import check_private, read_private, sync_folder, write

MAGIC = b"selfsam1"  # eight bytes, the last of which counts the format
_HEADER = struct.Struct(">8s4B16s16s12s32s")
_TAG = 16
_MOST_BYTES = 1 << 22
_LONGEST_NAME = 60  # bytes: twice that, in a file's name, is within every file system's limit
_SHORTEST_PASSPHRASE, _LONGEST_PASSPHRASE = 12, 1024
_FEWEST_KINDS = 5  # of characters in a passphrase
_ENDING = ".enrolment"
_REVOKED = "revoked"
_SERVICE = "selfsame"

AskPassphrase = Callable[[], str]


@dataclass(frozen=True)
class ScryptWork:
    """The work that scrypt puts between a passphrase and its key: 128 MiB of memory, under a second."""

    log_n: int = 17
    r: int = 8
    p: int = 1

    @property
    def bearable(self) -> bool:
        """Whether it is neither nothing nor, in a hostile file's header, more than a device can do."""
        return 10 <= self.log_n <= 24 and self.r >= 1 and 1 <= self.p <= 4 and 128 * self.r << self.log_n <= 1 << 28


STANDARD = ScryptWork()


@dataclass(frozen=True)
class Header:
    """What stands before the sealed text, in the clear."""

    work: ScryptWork | None  # None: the key is in the platform's keyring
    enrolment: bytes  # 16 random bytes that stay the same until the user enrols anew
    salt: bytes
    nonce: bytes
    digest: str  # of the model, 64 hexadecimal digits

    def to_bytes(self) -> bytes:
        how = (0, 0, 0, 0) if self.work is None else (1, self.work.log_n, self.work.r, self.work.p)
        return _HEADER.pack(MAGIC, *how, self.enrolment, self.salt, self.nonce, bytes.fromhex(self.digest))

    @staticmethod
    def of(file: bytes) -> Header | None:
        """The header of a file, or None where there is no sound one."""
        if not _HEADER.size + _TAG <= len(file) <= _MOST_BYTES:
            return None
        magic, kind, log_n, r, p, enrolment, salt, nonce, digest = _HEADER.unpack_from(file)
        work = ScryptWork(log_n, r, p) if kind == 1 else None
        sound = work.bearable if work is not None else (kind, log_n, r, p) == (0, 0, 0, 0)
        if magic != MAGIC or not sound:
            return None
        return Header(work, enrolment, salt, nonce, digest.hex())


def derive(passphrase: str, header: Header) -> bytes:
    """The key of a passphrase (scrypt)."""
    assert header.work is not None
    work, kdf = header.work, _crypto().Scrypt
    text = unicodedata.normalize("NFKC", passphrase).encode("utf-8", "surrogateescape")
    key: bytes = kdf(salt=header.salt, length=32, n=1 << work.log_n, r=work.r, p=work.p).derive(text)
    return key


def strong(passphrase: str) -> str:
    """A new passphrase that is not guessed at once: who copies the file may try as many as they have time for."""
    shortest, longest = _SHORTEST_PASSPHRASE, _LONGEST_PASSPHRASE
    if not shortest <= len(passphrase) <= longest or len(set(passphrase)) < _FEWEST_KINDS:
        raise SelfsameError(
            f"passphrase: expected {shortest} to {longest} characters, {_FEWEST_KINDS} different ones among them; "
            f"got {len(passphrase)}. One that nobody guesses: {secrets.token_urlsafe(15)}"
        )
    return passphrase


def seal(plain: bytes, key: bytes, user: str, header: Header) -> bytes:
    """A whole file."""
    first = header.to_bytes()
    out: bytes = first + _crypto().AESGCM(key).encrypt(header.nonce, plain, first + user.encode())
    return out


def unseal(file: bytes, key: bytes, user: str) -> bytes | None:
    """The text of a file, or None where key, user or any byte of it is not the one it was sealed with."""
    header = Header.of(file)
    if header is None:
        return None
    first, rest = file[: _HEADER.size], file[_HEADER.size :]
    try:
        plain: bytes = _crypto().AESGCM(key).decrypt(header.nonce, rest, first + user.encode())
    except _crypto().InvalidTag:
        return None
    return plain


def check_user(user: str) -> str:
    """A name that can be a user's, in one spelling."""
    name = unicodedata.normalize("NFC", user)
    fit = name == name.strip() and name.isprintable() and 0 < len(name.encode("utf-8", "replace")) <= _LONGEST_NAME
    if not fit:
        raise SelfsameError(
            f"user {user!r}: expected 1 to {_LONGEST_NAME} bytes of printable text, no space at its ends"
        )
    return name


@dataclass(frozen=True)
class Stored:
    """A user's file as anybody can see it."""

    user: str
    digest: str  # of the model; empty where the file is damaged
    key: str  # "passphrase", "keyring", or "damaged"


@dataclass(frozen=True)
class Vault:
    """A folder of sealed files that only its owner may read."""

    folder: Path
    passphrase: AskPassphrase | None = None  # asked when one is needed; None: new files take the platform's keyring
    work: ScryptWork = field(default_factory=lambda: STANDARD)

    def path(self, user: str) -> Path:
        """A user's file. Its name is the user's in hexadecimal digits: no name is a path or collides with another."""
        return self.folder / f"{check_user(user).encode().hex()}{_ENDING}"

    def holds(self, user: str) -> bool:
        """Whether there is a file for the user, sound or not."""
        self._check_folder()
        return self.path(user).exists()

    def check_new(self, user: str, replacing: bool) -> None:
        """Refuse a user who is enrolled already, unless that enrolment is to be replaced."""
        if self.holds(user) and not replacing:
            raise SelfsameError(f"{user}: is enrolled already; --replace makes a new enrolment of it")

    def write(self, user: str, digest: str, plain: bytes, *, replacing: bool = False) -> None:
        """Seal a new enrolment; an earlier one of the user is in the way, or replaced and with that revoked."""
        self.check_new(user, replacing)
        before = self._find(user) if self.holds(user) else None
        work = None if self.passphrase is None else self.work
        header = Header(work, secrets.token_bytes(16), secrets.token_bytes(16), secrets.token_bytes(12), digest)
        self._seal(user, header, self._new_key(header), plain)
        if before is not None:
            self._forget(before)

    def read(self, user: str, digest: str | None = None) -> bytes:
        """What was sealed for the user and, where its digest is given, for this model."""
        return self._open(user, digest)[2]

    def mark(self, user: str) -> bytes:
        """What changes whenever the user's file does; nothing is opened."""
        if not self.holds(user):
            raise SelfsameError(f"{user}: is not enrolled in {self.folder}")
        header = self._find(user)
        if header is None or header.enrolment.hex() in self._revoked():
            raise _shut(self.path(user)) if header is None else self._gone(user)
        return header.enrolment + header.nonce

    def change(self, user: str, digest: str, edit: Callable[[bytes], bytes]) -> None:
        """Seal what `edit` makes of the text there, with the same key, for the same enrolment."""
        header, key, plain = self._open(user, digest)
        self._seal(user, replace(header, nonce=secrets.token_bytes(12)), key, edit(plain))

    def rekey(self, user: str, new: AskPassphrase | None) -> None:
        """Seal the same text with a key from another passphrase, or with a new one from the keyring."""
        header, _, plain = self._open(user, None)
        work = None if new is None else self.work
        fresh = replace(header, work=work, salt=secrets.token_bytes(16), nonce=secrets.token_bytes(12))
        key = replace(self, passphrase=new)._new_key(fresh)
        self._seal(user, fresh, key, plain)
        if header.work is None:
            _keyring_delete(header)

    def remove(self, user: str) -> None:
        """Revoke an enrolment: remember that it is, destroy its key and its file, and what a crash has left of it."""
        if not self.holds(user):
            raise SelfsameError(f"{user}: is not enrolled in {self.folder}")
        header = None
        with contextlib.suppress(SelfsameError):  # a file that must not be read can still be destroyed
            header = self._find(user)
        if header is not None:
            self._forget(header)
        path = self.path(user)
        for file in (path, *self.folder.glob(f".{path.name}.*")):
            _destroy(file)
        sync_folder(self.folder)

    def users(self) -> list[Stored]:
        """Everybody with a file, by name; nothing is opened."""
        self._check_folder()
        found = []
        for path in sorted(self.folder.glob(f"*{_ENDING}")):
            try:
                user = bytes.fromhex(path.stem).decode()
                path_again = self.path(user)
            except (ValueError, SelfsameError):  # not a file of ours
                continue
            if path_again != path:
                continue
            header = self._find(user)
            key = "damaged" if header is None else "keyring" if header.work is None else "passphrase"
            found.append(Stored(user, "" if header is None else header.digest, key))
        return sorted(found, key=lambda kept: kept.user)

    def _gone(self, user: str) -> SelfsameError:
        return SelfsameError(f"{self.path(user)}: this enrolment was revoked; enrol {user} anew with --replace")

    def _find(self, user: str) -> Header | None:
        return Header.of(read_private(self.path(user), _MOST_BYTES))

    def _open(self, user: str, digest: str | None) -> tuple[Header, bytes, bytes]:
        """(header, key, text) of a user's file."""
        path = self.path(user)
        if not self.holds(user):
            raise SelfsameError(f"{user}: is not enrolled in {self.folder}")
        file = read_private(path, _MOST_BYTES)
        header = Header.of(file)
        if header is None:
            raise _shut(path)
        if header.enrolment.hex() in self._revoked():
            raise self._gone(user)
        if digest is not None and header.digest != digest:
            raise SelfsameError(
                f"{path}: {user} was enrolled with another model ({header.digest[:12]}), this one is {digest[:12]}"
            )
        key = self._key(path, header)
        plain = None if key is None else unseal(file, key, check_user(user))
        if key is None or plain is None:
            raise _shut(path)
        return header, key, plain

    def _key(self, path: Path, header: Header) -> bytes | None:
        if header.work is None:
            return _keyring_get(header)
        if self.passphrase is None:
            raise SelfsameError(f"{path}: takes a passphrase, none was given")
        return derive(self.passphrase(), header)

    def _new_key(self, header: Header) -> bytes:
        if header.work is None:
            return _keyring_new(header)
        assert self.passphrase is not None
        return derive(strong(self.passphrase()), header)

    def _seal(self, user: str, header: Header, key: bytes, plain: bytes) -> None:
        file = seal(plain, key, check_user(user), header)
        if len(file) > _MOST_BYTES:
            raise SelfsameError(f"{user}: the enrolment takes {len(file):,} bytes, at most {_MOST_BYTES:,} fit")
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._check_folder()
        write(self.path(user), file, private=True)

    def _revoked(self) -> set[str]:
        try:
            return set(read_private(self.folder / _REVOKED, _MOST_BYTES).decode("ascii", "replace").split())
        except FileNotFoundError:
            return set()

    def _forget(self, header: Header) -> None:
        """Put an enrolment on the list of those that no longer open, should a copy of its file come back."""
        gone = sorted({*self._revoked(), header.enrolment.hex()})
        write(self.folder / _REVOKED, "".join(f"{name}\n" for name in gone), private=True)
        if header.work is None:
            _keyring_delete(header)

    def _check_folder(self) -> None:
        if self.folder.exists():
            if not self.folder.is_dir():
                raise SelfsameError(f"{self.folder}: expected a folder, it is a file")
            check_private(self.folder, self.folder.stat(), "chmod 700")


def _destroy(path: Path) -> None:
    """Overwrite a file with noise and unlink it."""
    with contextlib.suppress(OSError):  # one that cannot be written to can still be unlinked
        size = path.lstat().st_size
        with open(os.open(path, os.O_WRONLY | getattr(os, "O_NOFOLLOW", 0)), "wb") as file:
            file.write(secrets.token_bytes(min(size, _MOST_BYTES)))
            file.flush()
            os.fsync(file.fileno())
    path.unlink(missing_ok=True)


def _shut(path: Path) -> SelfsameError:
    """One line for a wrong passphrase and for a damaged file: which of them it is cannot be told."""
    return SelfsameError(f"{path}: cannot be opened: wrong passphrase or damaged file")


def _crypto() -> Any:
    """The parts of cryptography that are used here."""
    try:
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        from cryptography.hazmat.primitives.kdf.scrypt import Scrypt
    except ModuleNotFoundError as error:
        raise not_installed(error) from error
    return SimpleNamespace(AESGCM=AESGCM, Scrypt=Scrypt, InvalidTag=InvalidTag)


def _keyring(action: str, header: Header, *key: str) -> str | None:
    """Set, get or delete a key in the platform's keyring, by a name that no other key ever has."""
    try:
        import keyring
        from keyring.errors import KeyringError
    except ModuleNotFoundError as error:
        raise not_installed(error) from error
    name = f"{header.enrolment.hex()}-{header.salt.hex()}"
    try:
        found: str | None = getattr(keyring, f"{action}_password")(_SERVICE, name, *key)
    except (KeyringError, OSError, RuntimeError) as error:  # backends raise their own beside the library's
        raise SelfsameError(f"keyring: {one_line(error)}; use a passphrase in its place") from error
    return found


def _keyring_new(header: Header) -> bytes:
    key = secrets.token_bytes(32)
    _keyring("set", header, key.hex())
    if _keyring_get(header) != key:
        raise SelfsameError("keyring: it does not keep what it is given; use a passphrase in its place")
    return key


def _keyring_get(header: Header) -> bytes | None:
    try:
        key = bytes.fromhex(_keyring("get", header) or "")
    except ValueError:
        return None
    return key if len(key) == 32 else None


def _keyring_delete(header: Header) -> None:
    with contextlib.suppress(SelfsameError):  # gone already, or no keyring here: the file is revoked all the same
        _keyring("delete", header)
