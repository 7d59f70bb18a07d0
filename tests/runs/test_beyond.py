"""What a page tells of a run beyond its records: measured once, kept beside it, refused where data are too few."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from selfsame.data.federation import Samples
from selfsame.measure.protocols import Portions
from selfsame.methods import make
from selfsame.runs.beyond import FILE, beyond, drawn_accuracies


def run_of(x, y, alone=None):
    """A run whose network changes nothing."""
    unseen = Samples(torch.tensor(x, dtype=torch.float32), torch.from_numpy(y))
    federation = SimpleNamespace(unseen=unseen, class_names=())
    problem = SimpleNamespace(method=make("fixed", {}), federation=federation, world=SimpleNamespace(dim=x.shape[1]))
    return SimpleNamespace(problem=problem, state=SimpleNamespace(alone_NP=alone), embed=lambda part: part)


def apart(people, samples, noise=0.0):
    """Everybody at a right angle to everybody else."""
    x = np.eye(people).repeat(samples, 0)
    return x + noise * np.random.default_rng(0).normal(size=x.shape), np.repeat(np.arange(people), samples)


def test_people_far_apart_are_all_told_apart_and_scattered_ones_are_not():
    need = Portions(2, 2, 1, 3)
    assert drawn_accuracies(run_of(*apart(9, 5)), need, 4).tolist() == [1.0] * 4
    blurred = drawn_accuracies(run_of(*apart(9, 5, noise=10.0)), need, 20)
    assert len(blurred) == 20 and 0.2 < blurred.mean() < 0.9 and blurred.std() > 0


def test_each_is_measured_once(tmp_path):
    opened = []

    def open_it():
        opened.append(1)
        return run_of(*apart(9, 5))

    found = beyond(tmp_path, 7, open_it, (2, 2, 1, 3))
    assert found == {"curves": {}, "drawn": {}, "left": [], "vii_c": {"value": 1.0, "deviation": 0.0, "draws": 20}}
    assert beyond(tmp_path, 7, lambda: pytest.fail("opened again"), (2, 2, 1, 3)) == found
    assert json.loads((tmp_path / FILE).read_text())["round"] == 7
    beyond(tmp_path, 7, open_it, (1, 1, 1, 3))  # other portions
    beyond(tmp_path, 8, open_it, (2, 2, 1, 3))  # the run has gone on
    assert len(opened) == 3
    kept = beyond(tmp_path, 8, None, (2, 2, 1, 3), drawn=("vii_c",), count=9)  # what is there, and nothing else
    assert kept["vii_c"]["draws"] == 20 and kept["drawn"] == {} and kept["left"] == ["drawn 9 vii_c 2 2 1 3"]


@pytest.mark.parametrize(
    ("run", "said"),
    [
        (run_of(*apart(3, 5)), "7 people with 5 samples are needed, there are 3 of 3"),
        (run_of(np.zeros((0, 2)), np.zeros(0, np.int64)), "are needed, there are 0 of 0"),
        (run_of(*apart(9, 5), alone=torch.zeros(1)), "a network of its own"),
    ],
)
def test_what_cannot_be_measured_says_why(run, said, tmp_path):
    found = beyond(tmp_path, 1, lambda: run, (2, 2, 1, 3))["vii_c"]
    assert said in found["refused"] and "value" not in found


def test_users_are_drawn_again(tmp_path):
    x, y = apart(12, 5, noise=1.0)
    found = beyond(tmp_path, 1, lambda: run_of(x, y), (2, 2, 1, 3), drawn=("vii_c",), count=30)
    drawn = found["drawn"]["vii_c"]["figures"]["vii_c"]
    assert len(drawn) == 30 and min(drawn) < found["vii_c"]["value"] < max(drawn)
    few = beyond(tmp_path, 2, lambda: run_of(*apart(9, 5)), (2, 2, 1, 3), drawn=("vii_c",), count=30)
    assert few["drawn"]["vii_c"] == {"refused": "9 people have genuine trials, 10 are needed"}
