"""Several runs at a time, each in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from selfsame.errors import SelfsameError
from selfsame.files import opened
from selfsame.runs.stopping import Stop, never

_LOOK = 0.2  # seconds between looks at the processes
_ENDED = (0, 1)  # trained, or diverged


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
    the first ones are trained while the others still wait for that.

    What a process prints is kept in `output.txt` beside the run. One that fails stops the others, which can be resumed;
    so does `stop`. A process that is told to end finishes its round and writes a checkpoint, and so does one whose
    parent has gone.
    """
    waiting, running = list(folders), dict[Path, subprocess.Popen[bytes]]()
    try:
        while (waiting or running) and not stop():
            while waiting and len(running) < at_once:
                folder = waiting.pop(0)
                ready(folder)
                running[folder] = _begin(folder, until)
            for folder, process in list(running.items()):
                code = process.poll()
                if code is None:
                    continue
                del running[folder]
                if code not in _ENDED or not (folder / "result.json").is_file():  # Python itself also ends with 1
                    said = _last_line(folder / "output.txt").removeprefix(f"{folder}: ")
                    raise SelfsameError(f"{folder}: {said or f'ended with code {code}'}")
                ended(folder)
            time.sleep(_LOOK)
    finally:
        for process in running.values():
            process.terminate()
        for process in running.values():
            process.wait()


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


def _last_line(file: Path) -> str:
    lines = file.read_text(encoding="utf-8", errors="replace").split("\n")
    return next((line.removeprefix("selfsame: ") for line in reversed(lines) if line.strip()), "")
