"""What the machine is: device, precision and versions, chosen once and written into every report."""

from __future__ import annotations

import ctypes
import os
import platform
import warnings
from dataclasses import dataclass
from functools import cache

import torch

from selfsame.config.recipe import RunPart
from selfsame.errors import SelfsameError

_CPU = torch.device("cpu")
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # names of glibc's options
_FREE = 2**28  # bytes at the end of the heap that a process keeps for the next round
_LARGEST = 2**25  # bytes of a tensor that comes from the heap; glibc allows no more


@dataclass(frozen=True)
class Machine:
    """Where and how the arithmetic runs."""

    device: torch.device = _CPU
    dtype: torch.dtype = torch.float32
    autocast: torch.dtype | None = None
    compile: bool = False
    graphs: bool = False


def choose_machine(run: RunPart) -> Machine:
    """The automatic choices: CUDA if there is one, bfloat16 autocast, compilation and graphs there; else plain CPU."""
    name = run.device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise SelfsameError(f"run.device: {name!r} is not a device; try cpu, cuda or cuda:1") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise SelfsameError(
            "run.device: cuda asked for, but this PyTorch sees no CUDA device; name another with --device"
        )
    if device.type == "cuda" and device.index is not None and device.index >= torch.cuda.device_count():
        raise SelfsameError(f"run.device: {name} asked for, there are {torch.cuda.device_count()} CUDA devices")
    if device.type not in ("cpu", "cuda"):
        raise SelfsameError(f"run.device: {device.type!r} is not supported; use cpu or cuda")
    gpu = device.type == "cuda"
    precision = run.precision
    if precision == "auto":
        precision = "bfloat16" if gpu else "float32"
    dtype = torch.float64 if precision == "float64" else torch.float32
    autocast = torch.bfloat16 if precision == "bfloat16" else None
    compile = run.compile == "on" or (run.compile == "auto" and gpu)
    if compile:  # precision is chosen above; what compiles has an opinion on what is left in float32
        warnings.filterwarnings("ignore", "TensorFloat32 tensor cores", UserWarning)
    return Machine(device, dtype, autocast, compile, compile or run.compile == "graphs")


@cache
def keep_freed_memory() -> bool:
    """Let glibc keep what a round frees, up to 256 MiB; gives whether it does.

    Given back, pages come anew and cleared in the next round: thousands of faults, up to a sixth of its processor time.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    option = ctypes.CDLL(None).mallopt
    return bool(option(_MMAP_THRESHOLD, _LARGEST)) and bool(option(_TRIM_THRESHOLD, _FREE))


def facts(device: torch.device) -> dict[str, str]:
    """Versions and hardware, for reports and benchmarks."""
    from selfsame import __version__

    out = {
        "selfsame": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads",
    }
    if device.type == "cuda":
        out["gpu"] = torch.cuda.get_device_name(device)
    return out
