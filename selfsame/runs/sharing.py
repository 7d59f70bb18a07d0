"""Runs that several processes share: those with the same file of finished runs do each run once.

A finished run is a line of the file, its key and what was found. Before a run is begun its key is claimed, by a lock on
a file beside it, and looked up once more. A lock is gone with its process, so what a dead one was at is taken up by the
next. What another process is at is passed over. A run that fails is told and passed over too.

No run is begun after SELFSAME_BENCH_UNTIL, in seconds since the epoch.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from hashlib import sha256
from pathlib import Path
from typing import Any

from selfsame.errors import SelfsameError
from selfsame.files import locked, opened

UNTIL = "SELFSAME_BENCH_UNTIL"
Key = dict[str, Any]
Line = dict[str, Any]
Counts = Callable[[Line], bool]  # whether a line is one of a finished run


class OutOfTime(Exception):
    """What a run needs is not there, and there is no time left to make it."""


class RunsFailed(SystemExit):
    """Some runs failed; the script ends with one line and exit code 1."""


def finished(path: Path) -> list[Line]:
    """The runs that a file of lines holds; a line that was cut off is none."""
    found = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else ():
        try:
            read = json.loads(line)
        except (ValueError, RecursionError):
            continue
        found += [read] if isinstance(read, dict) else []
    return found


def look_up(file: Path, key: Key, counts: Counts = lambda _: True) -> Line | None:
    """The finished run of this key."""
    return next((line for line in finished(file) if line.get("key") == key and counts(line)), None)


def share(
    file: Path,
    keys: Iterable[Key],
    do: Callable[[Key], Line],
    *,
    wait: bool = False,
    counts: Counts = lambda _: True,
    heard: Callable[[], object] = lambda: None,
    tell: Callable[[str], object] = print,
) -> list[Key]:
    """Do every run that the file lacks and nobody else is at, and write its line; gives those that are left.

    What others were at is looked at once more in the end, in case they died; with `wait` they are waited for. A line
    that does not count is none; `heard` is called after each line that is written, `tell` with what is left.
    """
    wanted = list(keys)
    known = [line["key"] for line in finished(file) if line.get("key") in wanted and counts(line)]
    left, failed = [key for key in wanted if key not in known], 0
    file.parent.mkdir(parents=True, exist_ok=True)
    for again in (False, True):
        passed = []
        for key in left:
            try:
                ended = not _late() and _done(file, key, do, wait and again, counts, heard)
            except OutOfTime:
                ended = False
            except (Exception, RunsFailed) as error:
                _tell(key, error)
                failed, ended = failed + 1, True
            if not ended:
                passed.append(key)
        left = passed
    if left:
        tell(f"{file}: {len(left)} of {len(wanted)} runs left, {'the time is up' if _late() else 'others are at them'}")
    if failed:
        raise RunsFailed(f"{file}: {failed} of {len(wanted)} runs failed")
    return left


def _late() -> bool:
    return time.time() >= float(os.environ.get(UNTIL) or "inf")


def _done(
    file: Path, key: Key, do: Callable[[Key], Line], wait: bool, counts: Counts, heard: Callable[[], object]
) -> bool:
    """Whether the file has the run now; it has not where another process is at it."""
    name = sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
    claim = file.with_name(f".{file.name}.{name}")
    with locked(claim, wait=wait) as ours:
        if not ours:
            return False
        if look_up(file, key, counts) is None:
            if _late():  # the lock was waited for
                return False
            _append(file, {"key": key, **do(key)})
            heard()
        claim.unlink(missing_ok=True)  # whoever gets this lock or a new one finds the line
    return True


def _append(file: Path, line: Line) -> None:
    """Add a whole line, also after one that was cut off."""
    data = (json.dumps(line) + "\n").encode()
    file.touch()
    with locked(file), opened(file) as out, file.open("rb") as there:
        if out.tell():
            there.seek(-1, os.SEEK_END)
        out.write(data if there.read(1) in (b"", b"\n") else b"\n" + data)


def _tell(key: Key, error: BaseException) -> None:
    """Why a run failed: one line where the input is to blame."""
    print(f"failed: {json.dumps(key)}", file=sys.stderr)
    if isinstance(error, (SelfsameError, RunsFailed)):
        print(f"  {error}", file=sys.stderr, flush=True)
    else:
        traceback.print_exception(error, file=sys.stderr)
