"""The cases of FedHide's Table 2: who is in which group, which network is attacked, and how it is trained."""

import pytest
import torch

from selfsame.config.picture_attacks import PictureSettings, cases
from selfsame.data import load
from selfsame.engine.checkpoint import read_tensors
from selfsame.errors import SelfsameError
from selfsame.runs import inversions
from selfsame.runs.inversions import Inversions

SMALL = PictureSettings(
    data="digits", standardise=False, images="3", iterations=2, rounds=2, cohort=7, sizes=(1, 4), read="softmax"
)


@pytest.fixture
def digits(tmp_path):
    return Inversions(SMALL, load("digits"), tmp_path / "table-2.jsonl", device="cpu")


@pytest.mark.parametrize("seed", [0, 1])
def test_nobody_is_in_two_groups_and_targets_come_first(digits, seed):
    groups = digits.clients(4, seed).reshape(3, 4).tolist()
    assert [group[0] for group in groups] == [0, 1, 2] == digits.clients(1, seed).tolist()
    everybody = [client for group in groups for client in group]
    assert len(set(everybody)) == 12 and max(everybody) < 14
    assert groups == digits.clients(4, seed).reshape(3, 4).tolist() != digits.clients(4, 7).reshape(3, 4).tolist()
    with pytest.raises(SelfsameError, match="too few for groups of 5"):
        digits.clients(5, seed)


def test_a_trained_network_is_that_of_its_run_at_round_0(digits):
    """So that its devices draw the pictures that they draw before training."""
    (key,) = [key for key in cases(SMALL) if (key["method"], key["network"]) == ("softmax", "trained")]
    assert digits.train_networks([key]) == []
    state, right = digits.state(key)
    folder = digits.folder(digits.network_key(key))
    tensors, _ = read_tensors(folder / "model.safetensors")
    views = inversions.prepare(digits.recipe("softmax", 0), digits.federation).model.layout.views(state.theta_P)
    assert state.round == 0 and right is not None
    assert views.keys() == tensors.keys() and all(torch.equal(views[name], tensors[name]) for name in views)
    first, none = digits.state({**key, "network": "untrained"})
    assert none is None and not torch.equal(first.theta_P, state.theta_P)


def test_a_network_is_trained_as_the_kept_ones_were(digits):
    recipe, attacked = digits.recipe("FedHide (0.1, 5)", 3, attacked=False), digits.recipe("FedHide (0.1, 5)", 3)
    assert (recipe.method.name, recipe.method.options) == ("fedhide", {"alpha": 0.1, "neighbours": 5})
    assert (recipe.run.rounds, recipe.run.seed, recipe.cohort.size, recipe.cohort.weights) == (2, 3, 7, "uniform")
    assert (recipe.local.batch, recipe.local.lr, recipe.local.schedule) == (16, 0.1, "cosine")
    assert (recipe.server.optimiser, recipe.server.weight_decay, recipe.server.lr) == ("momentum", 5e-4, 1.0)
    assert (attacked.local.batch, attacked.run.precision, attacked.run.compile) == (1, "float32", "off")
    digits.settings = PictureSettings(data="digits")
    usual = digits.recipe("softmax", 0, attacked=False)
    assert usual.net.options == {"standardise": True, "groups": 2} and usual.server.lr == 2.0
