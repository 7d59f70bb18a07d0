"""What several tests of attackers need."""

import numpy as np
import pytest

from selfsame.audit.lpips import Lpips


@pytest.fixture
def random_lpips(tmp_path):
    """LPIPS with weights that nobody trained."""
    draw, depth, found = np.random.default_rng(0), 3, {}
    for place, (width, side) in enumerate(((8, 11), (8, 5), (8, 3), (8, 3), (8, 3))):
        found[f"conv{place}_weight"] = draw.normal(size=(width, depth, side, side)) / side
        found[f"conv{place}_bias"] = 0.1 * draw.normal(size=width)
        found[f"lin{place}_weight"] = draw.uniform(size=width)
        depth = width
    np.savez(tmp_path / "lpips.npz", **found)
    return Lpips.read(tmp_path / "lpips.npz")
