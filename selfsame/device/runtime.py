"""onnxruntime, without its telemetry: the one place that imports it."""

from __future__ import annotations

import importlib
import os
from typing import Any


def onnxruntime(part: str = "") -> Any:
    """The package, or a module of it.

    Imported by itself it leaves a number for this machine in the home folder and calls its maker.
    """
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # it is read at the import: the call below would come too late
    found = importlib.import_module("onnxruntime")
    found.disable_telemetry_events()
    return importlib.import_module(f"onnxruntime.{part}") if part else found
