"""Files: the one way to write them (whole, privately, line by line) and to read JSON.

A file that is written is the old one or the new one, never half of it, even after a power cut. A private one is
readable by its owner alone. Links are not followed, neither where a file is written nor where a mode is set. JSON has
one reading: no name twice in an object, no NaN or Infinity.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from selfsame.errors import SelfsameError

_BINARY = getattr(os, "O_BINARY", 0)
_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)
_NONBLOCK = getattr(os, "O_NONBLOCK", 0)  # opening a pipe must not wait for somebody to write to it

Record = dict[str, Any]


# Writing


def write(path: Path, data: bytes | str, *, private: bool = False, executable: bool = False) -> None:
    """Put this content at `path`, whose folder is made if need be; when it returns, it is on the disk.

    A private file that is `executable` is so for its owner alone.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700 if private else 0o777)
    content = data.encode() if isinstance(data, str) else data
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    mode = (0o600 if private else 0o666) | (0o100 if executable else 0)  # less the umask
    try:
        with _naming(path):
            with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NOFOLLOW | _BINARY, mode), "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)
    sync_folder(path.parent)


def in_order(file: bytes) -> bytes:
    """A safetensors file with its metadata in order: the library's order changes from call to call."""
    end = 8 + int.from_bytes(file[:8], "little")
    header = json.loads(file[8:end])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + file[end:]


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """An error of a write names the file, which the system does not where the disk is full."""
    try:
        yield
    except OSError as error:
        if error.errno is None or (error.filename is not None and not Path(error.filename).name.startswith(".")):
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def opened(path: Path, *, append: bool = True) -> BinaryIO:
    """A file to be written to piece by piece: at its end, or anew. One that is a link is refused."""
    how = os.O_WRONLY | os.O_CREAT | (os.O_APPEND if append else os.O_TRUNC) | _NOFOLLOW | _BINARY
    try:
        return open(os.open(path, how, 0o666), "ab" if append else "wb")
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise SelfsameError(f"{path}: is a link, and nothing is written through one; remove it") from None


@contextlib.contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """A draft that takes the place of a folder, which is empty or not there, if all goes well; otherwise it is gone."""
    draft = folder.with_name(f".{folder.name}.{secrets.token_hex(8)}")
    draft.mkdir()
    try:
        yield draft
        if os.name != "posix" and folder.is_dir():  # elsewhere nothing takes the place of a folder
            folder.rmdir()
        os.replace(draft, folder)
        sync_folder(folder.parent)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def write_json(path: Path, value: Any, *, private: bool = False) -> None:
    """The value as JSON; NaN and Infinity are refused."""
    write(path, json.dumps(value, allow_nan=False), private=private)


def sync_folder(folder: Path) -> None:
    """Make a renaming or a removal last."""
    if os.name != "posix":  # elsewhere a folder cannot be opened
        return
    place = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(place)
    finally:
        os.close(place)


# Private files and folders


def private_folder(folder: Path, *, close: bool = False) -> Path:
    """The folder, made so that nobody else can look in; one that is there must be so already, or is closed now."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise SelfsameError(f"{folder}: {error.strerror or error}") from None
    if not stat.S_ISDIR(found.st_mode):
        raise SelfsameError(f"{folder}: expected a folder, it is a file or a link")
    if close and os.name == "posix" and found.st_uid == os.geteuid():
        _close(folder)
    else:
        check_private(folder, found, "chmod 700")
    return folder


def _close(folder: Path) -> None:
    """Mode 0700 for the folder itself; a link that has come in its place meanwhile is not followed."""
    try:
        place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | _NOFOLLOW)
    except OSError as error:
        raise SelfsameError(f"{folder}: {error.strerror or error}") from None
    try:
        os.fchmod(place, 0o700)
    finally:
        os.close(place)


def check_private(path: Path, found: os.stat_result, remedy: str = "chmod 600") -> None:
    """Refuse what others may read or change, and what belongs to somebody else."""
    if os.name != "posix":  # permission bits mean nothing elsewhere
        return
    if found.st_mode & 0o077:
        raise SelfsameError(f"{path}: others may read or change it (mode {found.st_mode & 0o777:o}); {remedy} it")
    if found.st_uid != os.geteuid():
        raise SelfsameError(f"{path}: belongs to another account of this machine")


def read_private(path: Path, most: int | None = None) -> bytes:
    """A plain file that nobody else can read; of one longer than `most`, one byte more than that.

    FileNotFoundError where there is none.
    """
    try:
        place = os.open(path, os.O_RDONLY | _BINARY | _NOFOLLOW | _NONBLOCK)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise SelfsameError(f"{path}: cannot be read ({error.strerror or type(error).__name__})") from error
    try:
        found = os.fstat(place)
        if not stat.S_ISREG(found.st_mode):
            raise SelfsameError(f"{path}: expected a plain file")
        check_private(path, found)
        with open(place, "rb", closefd=False) as file:
            return file.read(-1 if most is None else most + 1)
    finally:
        os.close(place)


@contextlib.contextmanager
def locked(path: Path, *, wait: bool = True) -> Iterator[bool]:
    """Hold the lock of this file; gives whether it was to be had, which without `wait` it may not be."""
    try:
        import fcntl
    except ImportError:  # no such locks on this system
        yield True
        return
    handle = os.open(path, os.O_RDWR | os.O_CREAT | _NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        yield True
    finally:
        os.close(handle)


@contextlib.contextmanager
def locked_folder(folder: Path) -> Iterator[bool]:
    """Hold the lock of a folder, which leaves nothing behind; gives whether it was to be had.

    A process that ends lets go. Where a system has no such locks, it is always to be had.
    """
    try:
        import fcntl
    except ImportError:
        yield True
        return
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        except OSError:  # some network drives
            pass
        yield True
    finally:
        os.close(handle)


def lock_holder(folder: Path) -> int | None:
    """The process that holds the lock of a folder, where the system tells."""
    try:
        found = os.stat(folder)
        lines = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError):
        return None
    place = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    held = [words[4] for words in map(str.split, lines) if words[1:2] == ["FLOCK"] and words[5:6] == [place]]
    return int(held[0]) if held and held[0].isdigit() and int(held[0]) else None


# Reading


def read_text(path: Path) -> str:
    """The text of a file, or one clear line."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise SelfsameError(f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise SelfsameError(f"{path}: not UTF-8 text") from None


def parse_json(text: str | bytes) -> Any:
    """What a text says; ValueError where it is not JSON, or where two readers could take it differently."""
    try:
        return json.loads(text, object_pairs_hook=_once, parse_constant=_no_constant)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def read_json(path: Path) -> Any:
    """What a JSON file says, or one clear line."""
    try:
        return parse_json(read_text(path))
    except ValueError as error:
        raise SelfsameError(f"{path}: not JSON ({error})") from None


def _once(pairs: list[tuple[str, Any]]) -> Record:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name stands twice")
    return found


def _no_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not a number")


# Records, one per line


def append_record(path: Path, record: Mapping[str, Any]) -> None:
    """Add a line to a file of records."""
    with _naming(path), opened(path) as file:
        file.write((json.dumps(record) + "\n").encode())


def write_records(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Replace a file of records."""
    write(path, "".join(json.dumps(record) + "\n" for record in records))


def read_records(path: Path, by: str = "round") -> list[Record]:
    """The records of a file in the order of the whole number `by`, of one number the last; no file has none.

    A line that is being written, or was cut off by a crash, does not count.
    """
    found: dict[int, Record] = {}
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    for line in text.splitlines():
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict) and type(record.get(by)) is int:
            found[record[by]] = record
    return [record for _, record in sorted(found.items())]
