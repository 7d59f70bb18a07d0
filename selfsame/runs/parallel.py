"""Several runs at a time, each in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from selfsame.errors import SelfsameError
from selfsame.files import opened
from selfsame.runs.stopping import Stop, never

_LOOK = 0.2  # seconds between looks at the processes
_ENDED = (0, 1)  # trained, or diverged
Version = tuple[int, int, int] | None


def resume_all(
    folders: Sequence[Path],
    at_once: int,
    ended: Callable[[Path], None],
    stop: Stop = never,
    until: int = 0,
    ready: Callable[[Path], object] = lambda _folder: None,
) -> None:
    """Resume the runs of these folders, at most `at_once` at a time; `ended` hears of each that has ended.

    With `until` a run ends there after that round. `ready` is called before a run is begun, to write what it lacks:
    the first ones are trained while the others still wait for that. A place that is free is taken before `ended` hears
    of the run that was there, which may take a while.

    What a process prints is kept in `output.txt` beside the run. One that fails stops the others, which can be resumed;
    so does `stop`. A process that is told to end finishes its round and writes a checkpoint, and so does one whose
    parent has gone.
    """
    waiting, over = deque(folders), deque[Path]()
    running = dict[Path, tuple[subprocess.Popen[bytes], Version]]()
    try:
        while (waiting or running or over) and not stop():
            for folder, (process, before) in list(running.items()):
                if (code := process.poll()) is not None:
                    del running[folder]
                    _check_ended(folder, code, before)
                    over.append(folder)
            if waiting and len(running) < at_once:
                folder = waiting.popleft()
                ready(folder)
                running[folder] = _begin(folder, until), _version(folder)
            elif over:
                ended(over.popleft())
            else:
                time.sleep(_LOOK)
    finally:
        for process, _ in running.values():
            process.terminate()
        for process, _ in running.values():
            process.wait()


def _version(folder: Path) -> Version:
    """What tells the result that lies there from one that is written later; None: there is none."""
    try:
        found = (folder / "result.json").stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def _check_ended(folder: Path, code: int, before: Version) -> None:
    """Raise unless the process has left a result. Python itself also ends with 1, beside that of an earlier rung."""
    now = _version(folder)
    if code not in _ENDED or now is None or (code and now == before):
        said = _reason(folder / "output.txt").removeprefix(f"{folder}: ")
        raise SelfsameError(f"{folder}: {said or f'ended with code {code}'}")


def _begin(folder: Path, until: int) -> subprocess.Popen[bytes]:
    with opened(folder / "output.txt", append=False) as out:
        command = [sys.executable, "-m", "selfsame", "resume", str(folder), "--quiet", "--trust-code"]
        command += ["--parent", str(os.getpid())]
        command += ["--until", str(until)] if until else []
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # a terminal's Ctrl-C reaches this process alone, which tells the others once
        )


def _reason(file: Path) -> str:
    """What a process said last; of an error that nobody caught the first line of its words, which may be many."""
    lines = [line for line in file.read_text(encoding="utf-8", errors="replace").split("\n") if line.strip()]
    last = lines[-1] if lines else ""
    traced = [number for number, line in enumerate(lines) if line.startswith("Traceback (")]
    if not traced or last.startswith("selfsame: "):
        return last.removeprefix("selfsame: ")
    return next((line for line in lines[traced[-1] + 1 :] if not line[0].isspace()), last)
