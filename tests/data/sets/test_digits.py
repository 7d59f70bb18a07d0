"""scikit-learn's digits, turned and dealt out."""

import pytest
import torch
from sklearn.datasets import load_digits

from selfsame.data import load
from selfsame.data.sets import digits


def test_the_file_is_the_one_that_scikit_learn_reads(monkeypatch):
    images, targets = load_digits(return_X_y=True)
    table = digits._table()
    assert (table[:, :-1] == images).all() and (table[:, -1] == targets).all()
    monkeypatch.setattr(digits.Path, "is_file", lambda self: False)
    assert (digits._table() == table).all()


def _all_rows(fed, client):
    return fed.source.rows(torch.tensor([client]), torch.arange(int(fed.count_N[client]))[None])[0]


def test_the_default_has_fourteen_clients_and_six_unseen_identities():
    fed = load("digits")
    assert fed.clients == fed.classes == 14 and fed.shape == (1, 8, 8)
    assert sorted(fed.unseen.y.unique().tolist()) == list(range(14, 20))
    assert sorted(fed.test.y.unique().tolist()) == list(range(14))
    assert len(fed.class_names) == 20 and fed.class_names[7] == "0 turned 90" and fed.class_names[14] == "7"
    assert fed.test.x.dtype == torch.uint8 and int(fed.test.x.max()) == 255


def test_identities_are_the_right_digits_in_the_right_turn():
    images, targets = load_digits(return_X_y=True)
    known = {}
    for image, target in zip(torch.from_numpy(images).mul(255 / 16).round().byte().reshape(-1, 8, 8), targets):
        for turn in range(2):
            known.setdefault(torch.rot90(image, turn, (0, 1)).contiguous().numpy().tobytes(), set()).add((turn, target))
    fed = load("digits", held_out=4)
    for client in range(fed.clients):
        for row in _all_rows(fed, client):
            assert (client // 6, client % 6) in known[row[0].contiguous().numpy().tobytes()]
    for row, label in zip(fed.unseen.x, (fed.unseen.y - 12).tolist()):
        assert (label // 4, 6 + label % 4) in known[row[0].contiguous().numpy().tobytes()]


def test_no_image_is_both_trained_and_tested_on_in_any_turn():
    fed = load("digits", held_out=0, turns=4)
    train = {tuple(row.flatten().tolist()) for client in range(fed.clients) for row in _all_rows(fed, client)}
    test = {tuple(row.flatten().tolist()) for row in fed.test.x}
    total = int(fed.count_N.sum()) + len(fed.test.y)
    assert total == 4 * 1797 and not train & test
    assert len(fed.unseen.x) == len(fed.unseen.y) == 0 and fed.unseen.x.shape[1:] == fed.shape


@pytest.mark.parametrize("share", [0.1, 0.25, 0.5])
def test_the_test_share_holds_in_each_class(share):
    fed = load("digits", test_share=share, turns=1, held_out=0)
    tested = torch.bincount(fed.test.y)
    for label in range(10):
        total = int(tested[label] + fed.count_N[label])
        assert abs(int(tested[label]) - share * total) <= 0.5


def test_the_split_follows_its_seed():
    one, same, other = load("digits", seed=1), load("digits", seed=1), load("digits", seed=2)
    assert torch.equal(one.test.x, same.test.x)
    assert not torch.equal(one.test.x, other.test.x)


def test_mean_and_std_standardise_the_training_samples():
    fed = load("digits", clients_per_class=2)
    assert fed.clients == 28
    x = fed.scale(torch.cat([_all_rows(fed, client) for client in range(fed.clients)]))
    assert abs(float(x.mean())) < 1e-4 and abs(float(x.std(unbiased=False)) - 1) < 1e-4
