"""Dealing classes out to clients, and preparing raw samples."""

import pytest
import torch

from selfsame.data import Samples, from_classes
from selfsame.errors import SelfsameError

NONE = Samples(torch.empty(0, 1, 2, 2), torch.empty(0, dtype=torch.long))


def _samples(counts):
    """Image i is filled with i; labels come in a scrambled order."""
    y = torch.cat([torch.full((n,), c) for c, n in enumerate(counts)])
    y = y[torch.randperm(len(y), generator=torch.Generator().manual_seed(0))]
    return torch.arange(len(y), dtype=torch.uint8).reshape(-1, 1, 1, 1).expand(-1, 1, 2, 2).contiguous(), y


@pytest.mark.parametrize("clients_per_class", [1, 2, 3])
def test_every_sample_is_dealt_to_one_client_of_its_class(clients_per_class):
    counts = [7, 4, 9]
    x, y = _samples(counts)
    fed = from_classes("toy", x, y, test=NONE, unseen=NONE, clients_per_class=clients_per_class)
    assert fed.clients == 3 * clients_per_class and fed.classes == 3
    met = []
    for client in range(fed.clients):
        label = client // clients_per_class
        count = int(fed.count_N[client])
        assert int(fed.class_of_N[client]) == label
        assert count in (counts[label] // clients_per_class, -(-counts[label] // clients_per_class))
        rows = fed.source.rows(torch.tensor([client]), torch.arange(count)[None])[0, :, 0, 0, 0].tolist()
        assert all(int(y[row]) == label for row in rows)
        met += rows
    assert sorted(met) == list(range(len(y)))


def test_rows_of_a_cohort_are_each_clients_own():
    x, y = _samples([5, 5])
    fed = from_classes("toy", x, y, test=NONE, unseen=NONE)
    index = torch.tensor([[4, 0], [2, 2]])
    both = fed.source.rows(torch.tensor([1, 0]), index)
    assert both.shape == (2, 2, 1, 2, 2)
    assert torch.equal(both[0], fed.source.rows(torch.tensor([1]), index[:1])[0])
    assert torch.equal(both[1], fed.source.rows(torch.tensor([0]), index[1:])[0])


def test_scale_standardises_each_channel():
    raw = torch.tensor([0, 255, 51, 102], dtype=torch.uint8).reshape(1, 2, 1, 2)
    y = torch.zeros(1, dtype=torch.long)
    fed = from_classes("toy", raw, y, test=NONE, unseen=NONE, mean=(0.5, 0.1), std=(0.25, 0.1))
    expected = torch.tensor([(0 - 0.5) / 0.25, (1 - 0.5) / 0.25, (0.2 - 0.1) / 0.1, (0.4 - 0.1) / 0.1])
    torch.testing.assert_close(fed.scale(raw).flatten(), expected)
    assert fed.scale(raw).dtype == torch.float32


@pytest.mark.parametrize(
    "counts, clients_per_class, line",
    [([3, 2], 3, "class 1 has 2 samples"), ([3], 0, "at least 1"), ([], 1, "no training samples")],
)
def test_what_cannot_be_dealt_is_refused(counts, clients_per_class, line):
    x, y = _samples(counts) if counts else (torch.empty(0, 1, 2, 2), torch.empty(0, dtype=torch.long))
    with pytest.raises(SelfsameError, match=line):
        from_classes("toy", x, y, test=NONE, unseen=NONE, clients_per_class=clients_per_class)
