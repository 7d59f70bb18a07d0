"""onnxruntime, without its telemetry and with a bound on its memory: the one place that imports it."""

from __future__ import annotations

import importlib
import os
from functools import cache
from typing import Any

MOST_MEMORY = 2**30  # bytes for what all networks of this process compute at a time


def onnxruntime(part: str = "") -> Any:
    """The package, or a module of it.

    Imported by itself it leaves a number for this machine in the home folder and calls its maker.
    """
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # it is read at the import: the call below would come too late
    found = importlib.import_module("onnxruntime")
    found.disable_telemetry_events()
    return importlib.import_module(f"onnxruntime.{part}") if part else found


def session_options() -> Any:
    """For one thread, ONNX files and no other format, and a bounded memory.

    The library would take a file for one of its own format by four bytes in it, and so run another graph than the one
    that was looked through. A graph of a few hundred bytes may ask for any amount of memory; beyond the bound it fails.
    """
    options = onnxruntime().SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4  # what goes wrong is raised, and said once
    options.add_session_config_entry("session.load_model_format", "ONNX")
    _bound_memory()
    options.add_session_config_entry("session.use_env_allocators", "1")
    return options


@cache
def _bound_memory() -> None:
    """The one memory that sessions of this process share, registered once; it grows as it is asked to."""
    ort = onnxruntime()
    place = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
    as_asked = 1
    ort.create_and_register_allocator(
        place, ort.OrtArenaCfg({"max_mem": MOST_MEMORY, "arena_extend_strategy": as_asked})
    )
