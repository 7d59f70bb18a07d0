"""C code to a library in the user's cache, by the compiler that is here; the same code is compiled once."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import platform
import shutil
import signal
import stat
import subprocess
import tempfile
from functools import cache
from pathlib import Path

FLAGS = ("-std=gnu11", "-O3", "-fPIC", "-shared", "-fno-math-errno", "-ffp-contract=fast", "-pthread",
         # The code has its vectors already: looking for more takes a compiler as long as all the rest.
         "-fno-tree-vectorize", "-fno-tree-slp-vectorize")  # fmt: skip
_LIMIT = 300.0  # seconds that a compiler may take
_ARM = ("aarch64", "arm64")  # -march is understood there too, but makes code for no processor in particular


class _Failed(Exception):
    """The compiler made nothing of the code, or took too long; it would not do better a second time."""


@cache
def compiler() -> tuple[str, ...]:
    """The command of a C compiler for this very processor; empty where there is none."""
    name = os.environ.get("CC") or next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), "")
    if not name:
        return ()
    ways = ["-march=native", "-mcpu=native"]
    if platform.machine().lower() in _ARM:
        ways.reverse()
    for native in ways:
        command = (*name.split(), native)
        if _ran([*command, "-x", "c", "-E", "-", "-o", os.devnull]) is not None:
            return command
    return ()


@cache
def macros() -> str:
    """What the compiler defines for this processor."""
    return _ran([*compiler(), "-dM", "-x", "c", "-E", "-"]) or ""


def _ran(command: list[str]) -> str | None:
    """What a command without input prints; None where it fails. After its time it is ended with all that it started."""
    quiet = subprocess.DEVNULL
    try:
        with subprocess.Popen(
            command, stdin=quiet, stdout=subprocess.PIPE, stderr=quiet, text=True, start_new_session=True
        ) as begun:
            try:
                said, _ = begun.communicate(timeout=_LIMIT)
            except BaseException:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(begun.pid, signal.SIGKILL)
                raise
    except (OSError, subprocess.TimeoutExpired):
        return None
    return said if begun.returncode == 0 else None


def _folder() -> Path:
    """Where libraries are kept: nobody else may write there, since what lies there is run."""
    base = os.environ.get("XDG_CACHE_HOME") or (Path.home() / ".cache")
    folder = Path(base) / "selfsame" / "passes"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat()
    if found.st_uid != os.getuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise OSError(f"{folder} may be written by others")
    return folder


def library(code: str) -> ctypes.CDLL | None:
    """The compiled code; None where that cannot be had."""
    if not compiler() or platform.system() not in ("Linux", "Darwin"):
        return None
    told = "\n".join((*compiler(), *FLAGS, macros(), code))
    name = f"{hashlib.sha256(told.encode()).hexdigest()}.so"
    try:
        place = _folder() / name
        if not place.is_file():
            _compile(code, place)
        return ctypes.CDLL(str(place))
    except _Failed:
        return None
    except (OSError, RuntimeError):  # no home, or none to write to
        return _for_once(code, name)


def _for_once(code: str, name: str) -> ctypes.CDLL | None:
    """The compiled code for this process alone."""
    try:
        with tempfile.TemporaryDirectory() as place:
            _compile(code, Path(place) / name)
            return ctypes.CDLL(str(Path(place) / name))
    except (OSError, _Failed):
        return None


def _compile(code: str, out: Path) -> None:
    """Write the library; it appears whole or not at all, also where several processes make it at once."""
    with tempfile.TemporaryDirectory(dir=out.parent) as place:
        source, made = Path(place) / "passes.c", Path(place) / out.name
        source.write_text(code, encoding="utf-8")
        if _ran([*compiler(), *FLAGS, str(source), "-o", str(made), "-lm"]) is None:
            raise _Failed
        made.replace(out)
