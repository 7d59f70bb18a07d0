"""What all tests share: one thread, property tests that draw the same cases in every run, and where kernels can run."""

from __future__ import annotations

import os

import pytest
import torch
from hypothesis import HealthCheck, settings

# The tests are many and small, and the machine is shared. Processes that tests start have one thread too: sums over
# other numbers of threads round differently.
torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"

# `make test` draws the same cases everywhere and times nothing; `make fuzz` draws new ones.
_UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("suite", _UNTIMED, derandomize=True, database=None, max_examples=50)
settings.register_profile("fuzz", _UNTIMED, print_blob=True)
settings.load_profile(os.environ.get("SELFSAME_CASES", "suite"))


if not torch.cuda.is_available():  # read where a kernel is defined, Triton's own among them: before its first import
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture(scope="session")
def kernel_device() -> str:
    """Where Triton's kernels run: on CUDA, and without it on the CPU, in Triton's interpreter."""
    if torch.cuda.is_available():
        return "cuda"
    pytest.importorskip("triton", reason="neither CUDA nor Triton is here to run the kernels")
    return "cpu"
