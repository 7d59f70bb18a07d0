"""Quotes: what ties the enclave's key to its code, to a device's question and to the training plan."""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path

_TAG = b"selfsame enclave 1\n"
_SIMULATED = b"SIMULATED QUOTE, NO HARDWARE PROTECTS THIS ENCLAVE\n"
GRAMINE = Path("/dev/attestation")  # SGX under Gramine
TSM = Path("/sys/kernel/config/tsm/report")  # a TDX guest under Linux 6.7 or newer


def report_data(key: bytes, nonce: bytes, plan: bytes) -> bytes:
    """H(tag || enclave key || client nonce || hash of the plan), H being SHA-512: the 64 bytes of a quote."""
    if not len(key) == len(nonce) == len(plan) == 32:
        raise ValueError("report data: key, nonce and the plan's digest are of 32 bytes each")
    return hashlib.sha512(_TAG + key + nonce + plan).digest()


def take(data: bytes, gramine: Path = GRAMINE, tsm: Path = TSM) -> bytes:
    """The hardware's quote over these 64 bytes; without SGX and TDX a simulated one, marked as such."""
    if (gramine / "quote").exists():
        (gramine / "user_report_data").write_bytes(data)
        return (gramine / "quote").read_bytes()
    if tsm.is_dir():
        entry = tsm / f"selfsame-{os.getpid()}"
        with contextlib.suppress(FileExistsError):
            entry.mkdir()
        (entry / "inblob").write_bytes(data)
        return (entry / "outblob").read_bytes()
    return _SIMULATED + data


def simulated_data(raw: bytes) -> bytes | None:
    """The report data of a simulated quote; None if this is not one."""
    if len(raw) == len(_SIMULATED) + 64 and raw.startswith(_SIMULATED):
        return raw[len(_SIMULATED) :]
    return None
