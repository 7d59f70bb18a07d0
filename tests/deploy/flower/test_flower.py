"""Flower on loopback with TLS and authentication: one small federation, equal to the simulator's."""

import importlib.util
import os
import stat

import pytest

pytest.importorskip("flwr")
if importlib.util.find_spec("fcntl") is None:
    pytest.skip("needs a POSIX system", allow_module_level=True)

from flower_harness import Drill, order


def test_two_nodes_and_a_round(tmp_path):
    drill = Drill(tmp_path / "cluster", order("fedhide", 2, 1, neighbours=1), 2, wait=60)
    (record,) = drill.run()
    assert (record["round"], record["asked"], record["taken"]) == (1, 2, 2)
    assert record["counts"] == {"registered": 2, "taken": 2}
    assert drill.apart() <= 1e-6
    for number in range(2):
        place = next((tmp_path / "cluster" / "nodes" / f"node-{number}" / "state").iterdir())
        assert stat.S_IMODE(os.stat(place).st_mode) == 0o700
        assert stat.S_IMODE(os.stat(place / "state.safetensors").st_mode) == 0o600
    assert stat.S_IMODE(os.stat(tmp_path / "cluster" / "keys" / "node-0.key").st_mode) == 0o600
