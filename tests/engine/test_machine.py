"""The machine: what is asked of the C library."""

from __future__ import annotations

import ctypes
import platform

from selfsame.engine.machine import keep_freed_memory


def test_glibc_keeps_what_is_freed():
    assert keep_freed_memory() == (platform.libc_ver()[0] == "glibc")


def test_another_c_library_is_left_alone(monkeypatch):
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    monkeypatch.setattr(ctypes, "CDLL", None)
    assert keep_freed_memory.__wrapped__() is False
