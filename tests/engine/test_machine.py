"""The machine: what is asked of the C library, and of the compiler."""

from __future__ import annotations

import ctypes
import platform
import warnings
from dataclasses import replace

import pytest

from selfsame.config.recipe import RunPart
from selfsame.engine.machine import choose_machine, keep_freed_memory


def test_glibc_keeps_what_is_freed():
    assert keep_freed_memory() == (platform.libc_ver()[0] == "glibc")


def test_another_c_library_is_left_alone(monkeypatch):
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    monkeypatch.setattr(ctypes, "CDLL", None)
    assert keep_freed_memory.__wrapped__() is False


@pytest.mark.parametrize(("compile", "heard"), [("on", 1), ("off", 2)])
def test_the_compiler_says_nothing_of_the_precision_that_was_chosen(compile, heard):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        choose_machine(replace(RunPart(), device="cpu", compile=compile))
        warnings.warn("TensorFloat32 tensor cores for float32 matrix multiplication available", stacklevel=1)
        warnings.warn("another", stacklevel=1)
    assert len(found) == heard
