"""Decoded files in a memory-mapped cache: the first load decodes them in parallel, later ones open it at once.

A cache is a folder NAME-KEY of `data.bin` (the rows, one after another), `index.json` (version, dtype, shape, number of
rows, unreadable files) and, for rows of unequal length, `offset.bin` (where each row begins). KEY stands for the names,
sizes and times of the source files, so other files have another cache. A folder appears whole or not at all.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import secrets
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from selfsame.data.listing import shown
from selfsame.errors import SelfsameError
from selfsame.files import parse_json, write, write_json

Decode = Callable[[Path], NDArray[Any]]
Progress = Callable[[str, int, int], None]  # the cache's name, files done, files in all

_VERSION = 1
_CHUNK = 32  # files that a worker decodes before it asks for more
_MOST_WORKERS = 32
_ABANDONED = 3600.0  # seconds without a write after which a half-built cache has no builder any more

_watch: ContextVar[Progress | None] = ContextVar("watch", default=None)


@contextmanager
def watching(progress: Progress | None) -> Iterator[None]:
    """Report the decoding that any load inside does to `progress`, for a command that shows a bar."""
    token = _watch.set(progress)
    try:
        yield
    finally:
        _watch.reset(token)


@dataclass(frozen=True)
class Packed:
    """Rows on disk, mapped into memory: row i comes from file `kept[i]` of the listing."""

    flat: NDArray[Any]  # (rows, *row_shape), or all rows of unequal length end to end
    offset: NDArray[np.int64]  # (rows + 1): row i is flat[offset[i]:offset[i+1]]
    kept: NDArray[np.int64]  # (rows)
    bad: tuple[tuple[str, str], ...]  # files without a row, and why
    notes: tuple[str, ...] = ()  # what a user should know, e.g. that a damaged cache was built again

    def __len__(self) -> int:
        return len(self.kept)

    @property
    def faults(self) -> tuple[str, ...]:
        """A line for each file without a row."""
        return tuple(f"{shown(file)}: {reason}" for file, reason in self.bad)


def pack(
    name: str,
    files: Sequence[str],
    decode: Decode,
    *,
    dtype: DTypeLike,
    row_shape: tuple[int, ...],
    root: Path,
    cache: str = "",
) -> Packed:
    """The decoded `files` (named relative to `root`), from the cache or, the first time, by decoding them all.

    `decode` returns rows of this shape or, where that is (), of any length; where it raises SelfsameError, the file is
    listed in `bad` and the others go on. It runs in threads. `name` must say all that decoding depends on besides the
    files, e.g. "lfw-64x64-colour"; a root has one listing for each name. `cache`: a folder in place of ROOT/.selfsame.
    """
    if not re.fullmatch(r"[A-Za-z0-9._-]+", name):
        raise ValueError(f"{name!r} cannot name a folder")
    form = _Form(np.dtype(dtype), row_shape)
    folder_name = f"{name}-{_key(form, files, root)}"
    places = _places(root, cache)
    notes: list[str] = []
    for place in places:
        if (place / folder_name).is_dir():
            try:
                return _open(place / folder_name, form, files)
            except _Damaged as fault:
                notes.append(f"{place / folder_name}: damaged cache ({fault}), built again")
    rows = _decoded(files, decode, root, min(_MOST_WORKERS, _cores()))
    return replace(_build(_writable(places) / folder_name, name, form, files, rows), notes=tuple(notes))


class _Damaged(Exception):
    """A cache that cannot be what was written."""


@dataclass(frozen=True)
class _Form:
    """What a row is."""

    dtype: np.dtype[Any]
    row_shape: tuple[int, ...]

    @property
    def ragged(self) -> bool:
        """Whether rows are of unequal length."""
        return not self.row_shape

    @property
    def item(self) -> int:
        """Bytes of one row, or of one step of a ragged row."""
        return self.dtype.itemsize * math.prod(self.row_shape)

    def as_json(self) -> dict[str, Any]:
        return {"dtype": self.dtype.str, "row_shape": list(self.row_shape), "ragged": self.ragged}

    def check(self, file: str, row: NDArray[Any]) -> None:
        """A decoder that returns something else is a mistake in the program, not in the file."""
        if row.dtype != self.dtype or (row.ndim != 1 if self.ragged else row.shape != self.row_shape):
            raise TypeError(f"{file}: decoded to {row.dtype} {row.shape}, expected {self}")


def _key(form: _Form, files: Sequence[str], root: Path) -> str:
    """A fingerprint of the form and of every file's name, size and time."""
    digest = hashlib.blake2b(json.dumps([_VERSION, form.as_json()]).encode(), digest_size=8)
    base = os.fspath(root)
    for file in files:
        try:
            found = os.stat(os.path.join(base, file))
            line = f"{file}\0{found.st_size}\0{found.st_mtime_ns}\n"
        except OSError:
            line = f"{file}\0absent\n"
        digest.update(line.encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _places(root: Path, cache: str) -> list[Path]:
    """Where the cache may be, best first; outside of the root each root has a folder of its own."""
    own = f"{root.resolve().name}-{hashlib.blake2b(os.fsencode(root.resolve()), digest_size=8).hexdigest()}"
    if cache:
        return [Path(cache).expanduser() / own]
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())
    return [root / ".selfsame", home / "selfsame" / own]


def _writable(places: Sequence[Path]) -> Path:
    reason = ""
    for place in places:
        probe = place / f".probe-{secrets.token_hex(4)}"
        try:
            place.mkdir(parents=True, exist_ok=True)
            probe.mkdir()
            probe.rmdir()
            return place
        except OSError as error:
            reason = error.strerror or str(error)
    raise SelfsameError(f"{places[-1]}: cannot write the cache ({reason}); name another folder with option cache")


def _open(folder: Path, form: _Form, files: Sequence[str]) -> Packed:
    """Map a cache after checking that it is whole."""
    try:
        index = parse_json((folder / "index.json").read_bytes())
        if index["version"] != _VERSION or {k: index[k] for k in form.as_json()} != form.as_json():
            raise _Damaged("its index is of another version or form")
        rows, total = int(index["rows"]), int(index["total"])
        bad = [(int(number), str(reason)) for number, reason in index["bad"]]
        missing = np.array([number for number, _ in bad], np.int64)
        if rows < 0 or total < 0 or rows + len(bad) != len(files) or (not form.ragged and total != rows):
            raise _Damaged("its index contradicts itself")
        if len(bad) and (missing.min() < 0 or missing.max() >= len(files) or len(np.unique(missing)) != len(bad)):
            raise _Damaged("its index names files that are not there")
        if form.ragged:
            offset = np.fromfile(folder / "offset.bin", "<i8").astype(np.int64, copy=False)
            if len(offset) != rows + 1 or offset[0] != 0 or offset[-1] != total or (np.diff(offset) < 0).any():
                raise _Damaged("offset.bin does not fit the index")
        else:
            offset = np.arange(rows + 1, dtype=np.int64)
        size = (folder / "data.bin").stat().st_size
        if size != total * form.item:
            raise _Damaged(f"data.bin has {size} bytes, expected {total * form.item}")
        shape = (total, *form.row_shape)
        flat: NDArray[Any] = (
            np.memmap(folder / "data.bin", form.dtype, "r", shape=shape) if size else np.empty(shape, form.dtype)
        )
    except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise _Damaged(type(error).__name__) from error
    kept = np.delete(np.arange(len(files)), missing)
    return Packed(flat, offset, kept, tuple((files[number], reason) for number, reason in bad))


def _build(folder: Path, name: str, form: _Form, files: Sequence[str], rows: Iterator[NDArray[Any] | str]) -> Packed:
    """Write the rows into a folder of its own, then give it its name: no other process ever sees half a cache."""
    place = folder.parent
    _sweep(place)
    work = place / f".building-{os.getpid()}-{secrets.token_hex(4)}"
    try:
        work.mkdir()
        _write(work, name, form, files, rows)
        for last in (False, False, False, True):
            if _named(work, folder, last):
                break
            try:
                return _open(folder, form, files)  # another process was quicker
            except _Damaged:
                _discard(folder)
    except OSError as error:
        raise SelfsameError(
            f"{place}: cannot write the cache ({error.strerror or error}); free some space or name another folder "
            "with option cache"
        ) from error
    finally:
        shutil.rmtree(work, ignore_errors=True)
    for old in place.iterdir():
        if old != folder and re.fullmatch(re.escape(name) + "-[0-9a-f]{16}", old.name):
            _discard(old)
    return _open(folder, form, files)


def _named(work: Path, folder: Path, last: bool) -> bool:
    """Give a finished folder its name; False where something has it. To ask first would let others in between."""
    try:
        work.rename(folder)
    except OSError as error:
        if last or error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise
        return False
    return True


def _write(work: Path, name: str, form: _Form, files: Sequence[str], rows: Iterator[NDArray[Any] | str]) -> None:
    """All of it is on the disk before the folder gets its name, so that a crash leaves no named folder with holes."""
    bad: list[tuple[int, str]] = []
    length: list[int] = []
    watch = _watch.get()
    if watch is not None:
        watch(name, 0, len(files))
    with (work / "data.bin").open("wb", buffering=1 << 20) as stream:
        for number, row in enumerate(rows):
            if isinstance(row, str):
                bad.append((number, row))
            else:
                form.check(files[number], row)
                stream.write(np.ascontiguousarray(row).data)
                length.append(len(row) if form.ragged else 1)
            if watch is not None and (number % _CHUNK == _CHUNK - 1 or number == len(files) - 1):
                watch(name, number + 1, len(files))
        stream.flush()
        os.fsync(stream.fileno())
    if form.ragged:
        write(work / "offset.bin", np.cumsum([0, *length], dtype="<i8").tobytes())
    index = {"version": _VERSION, **form.as_json(), "rows": len(length), "total": sum(length), "bad": bad}
    write_json(work / "index.json", index)


def _discard(folder: Path) -> None:
    """Remove a cache; it is renamed first, so that nobody opens it half removed. Maps that are open stay valid."""
    away = folder.with_name(f".building-{os.getpid()}-{secrets.token_hex(4)}")
    try:
        folder.rename(away)
    except OSError:
        return
    shutil.rmtree(away, ignore_errors=True)


def _sweep(place: Path) -> None:
    """Remove what builders that were killed have left."""
    for left in place.glob(".building-*"):
        try:
            latest = max(entry.stat().st_mtime for entry in (left, *left.iterdir()))
        except OSError:
            continue
        if time.time() - latest > _ABANDONED:
            shutil.rmtree(left, ignore_errors=True)


def _decoded(files: Sequence[str], decode: Decode, root: Path, workers: int) -> Iterator[NDArray[Any] | str]:
    """Each file's row, or the reason why it has none, in order; a bounded number of rows waits in memory."""
    parts = (files[at : at + _CHUNK] for at in range(0, len(files), _CHUNK))
    with ThreadPoolExecutor(workers, "selfsame-decode") as pool:
        waiting: deque[Future[list[NDArray[Any] | str]]] = deque()
        for part in parts:
            waiting.append(pool.submit(_decode_part, part, decode, root))
            if len(waiting) > 2 * workers:
                yield from waiting.popleft().result()
        while waiting:
            yield from waiting.popleft().result()


def _decode_part(files: Sequence[str], decode: Decode, root: Path) -> list[NDArray[Any] | str]:
    out: list[NDArray[Any] | str] = []
    for file in files:
        try:
            out.append(decode(root / file))
        except SelfsameError as error:
            out.append(" ".join(str(error).split()))
    return out
