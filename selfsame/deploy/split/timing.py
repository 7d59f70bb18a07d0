"""How long the enclave takes for the derivatives of a round, as in FDML's Table V."""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Iterable
from typing import Any

import numpy as np

from selfsame.enclave.losses import Loss, value_and_derivatives

SAMPLES, DIM = 8, 64  # of a participant; of an embedding


def derivative_seconds(participants: Iterable[int], repeats: int = 5) -> list[dict[str, Any]]:
    """Processor seconds (median and half the range) for batch-all triplets of so many participants.

    Embeddings are standard normal: more than half of the triplets are active, as before training.
    """
    loss, found = Loss("batch-all"), []
    for number in participants:
        emb_SD = np.random.default_rng(number).normal(size=(number * SAMPLES, DIM))
        label_S = np.repeat(np.arange(number), SAMPLES)
        value_and_derivatives(emb_SD, label_S, loss)
        spent = []
        for _ in range(repeats):
            begun = time.process_time()
            value_and_derivatives(emb_SD, label_S, loss)
            spent.append(time.process_time() - begun)
        half = (max(spent) - min(spent)) / 2
        found.append({"participants": number, "seconds": statistics.median(spent), "half_range": half})
    return found


def timing_words(repeats: int = 5) -> list[str]:
    """What the seconds are of, and where they were measured."""
    return [
        f"{SAMPLES} samples a participant in {DIM} dimensions, float64; processor seconds of the enclave's code, all "
        f"threads together: median of {repeats} ± half the range. Run with numpy {np.__version__} on "
        f"{platform.machine()}. The paper's seconds are those of its laptop."
    ]
