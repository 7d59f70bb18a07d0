"""One driver in a process of its own: its times, its parameters, and the memory of all its processes together."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from environment import last_line

_EVERY = 0.2  # seconds between two looks at the memory


@dataclass(frozen=True)
class Setting:
    """How a simulator uses the cores: `workers` processes of `threads` threads each."""

    threads: int
    workers: int = 1

    def __str__(self) -> str:
        return f"{self.workers}x{self.threads}"


@dataclass(frozen=True)
class Outcome:
    """What a driver left behind, or why it left nothing."""

    setting: Setting
    seconds: tuple[float, ...] = ()  # of each timed block
    version: str = ""
    peak_mib: float = 0.0
    parameters: dict[str, np.ndarray] = field(default_factory=dict)
    failed: str = ""


def run(command: list[str], out: Path, setting: Setting, environment: dict[str, str], limit: float) -> Outcome:
    """Run a driver to its end, or for `limit` seconds; `out` is the file it writes its times to."""
    out.unlink(missing_ok=True)
    log = out.with_suffix(".log")
    with log.open("wb") as stream:
        process = subprocess.Popen(
            command, stdout=stream, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
        peak, end = 0.0, time.monotonic() + limit
        try:
            while process.poll() is None and time.monotonic() < end:
                peak = max(peak, tree_mib(process.pid))
                time.sleep(_EVERY)
        finally:
            late = process.poll() is None
            if late:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    if late:
        return Outcome(setting, failed=f"did not finish within {limit:.0f} s")
    if process.returncode or not out.is_file():
        said = last_line(log.read_text(encoding="utf-8", errors="replace"))
        return Outcome(setting, failed=said or f"ended with {process.returncode}")
    told = json.loads(out.read_text(encoding="utf-8"))
    with np.load(out.with_suffix(".npz")) as arrays:
        parameters = {name: arrays[name] for name in arrays.files}
    return Outcome(setting, tuple(told["seconds"]), told["version"], peak, parameters)


def tree_mib(root: int) -> float:
    """Memory of a process and all below it; pages of files and shared memory are counted once, for the largest holder.

    Every process maps the same PyTorch, so that adding up resident sizes would count it once a worker.
    """
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            children.setdefault(parent_of(entry), []).append(int(entry.name))
    own, files, shared, waiting = 0, 0, 0, [root]
    while waiting:
        pid = waiting.pop()
        waiting += children.get(pid, [])
        kib = resident_kib(pid)
        own += kib.get("RssAnon", 0)
        files, shared = max(files, kib.get("RssFile", 0)), max(shared, kib.get("RssShmem", 0))
    return (own + files + shared) / 1024


def parent_of(entry: Path) -> int:
    """The parent of a process, from the field after the name; a process that has just ended has none."""
    try:
        return int((entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
    except (OSError, IndexError):
        return -1


def resident_kib(pid: int) -> dict[str, int]:
    """The resident sizes in /proc/PID/status, in KiB."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
    except OSError:
        return {}
    fields = (line.split() for line in lines if line.startswith("Rss"))
    return {name.rstrip(":"): int(size) for name, size, *_ in fields}
