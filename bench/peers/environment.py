"""An environment of its own for each simulator, with the PyTorch of this project."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import torch


def python_of(folder: Path) -> Path:
    return folder / "bin" / "python"


def install(folder: Path, package: str, reuse: bool) -> str:
    """Make the environment `folder` with the pinned package; returns why that failed, or nothing."""
    done = folder / ".installed"  # written last: half an environment is made anew
    pin = f"{package} torch=={torch.__version__.split('+')[0]}"
    if reuse and done.is_file() and done.read_text(encoding="utf-8") == pin:
        return ""
    shutil.rmtree(folder, ignore_errors=True)
    for command in (
        [sys.executable, "-m", "venv", str(folder)],
        [str(python_of(folder)), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *pin.split()],
    ):
        ran = subprocess.run(command, capture_output=True, text=True)
        if ran.returncode:
            return last_line(ran.stderr) or f"{command[-1]} could not be installed"
    done.write_text(pin, encoding="utf-8")
    return ""


def last_line(text: str) -> str:
    """The last line that says something: there Python and pip put what went wrong."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")
