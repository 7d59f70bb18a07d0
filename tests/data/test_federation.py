"""Dealing classes out to clients, and preparing raw samples."""

import numpy as np
import pytest
import torch

from selfsame.data.federation import Federation, Mapped, Rows, Samples, Trials, from_classes
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


def test_sound_is_scaled_by_its_full_range():
    raw = torch.tensor([-32768, 0, 16384], dtype=torch.int16).reshape(1, 1, 3)
    fed = Federation(
        "toy",
        (1, 3),
        torch.zeros(1).long(),
        torch.ones(1).long(),
        from_classes("t", raw, torch.zeros(1).long(), test=NONE, unseen=NONE).source,
        NONE,
        NONE,
    )
    assert fed.scale(raw).flatten().tolist() == [-1.0, 0.0, 0.5]


def test_validation_and_trials_are_empty_unless_given():
    x, y = _samples([3, 3])
    fed = from_classes("toy", x, y, test=NONE, unseen=NONE).to("cpu")
    assert len(fed.validation.x) == len(fed.validation.y) == len(fed.trials) == 0 and fed.left_out == ()
    assert len(Trials.none().to("cpu")) == 0 and Samples.none((1, 2)).x.shape == (0, 1, 2)


def test_rows_answer_as_a_tensor_does():
    store = np.random.default_rng(0).integers(0, 256, (9, 2, 3)).astype(np.uint8)
    row = np.array([8, 1, 1, 4])
    rows, tensor = Rows(store, row), torch.from_numpy(store[row])
    assert len(rows) == 4 and rows.shape == tuple(tensor.shape) and rows.row_bytes == 6
    mask = torch.tensor([True, False, True, True])
    for which in (slice(None), slice(1, 3), slice(0, 4, 2), slice(0, 0), torch.tensor([3, 0, 0]), mask):
        assert torch.equal(rows[which], tensor[which])
    assert all(torch.equal(a, b) for a, b in zip(rows.split(3), tensor.split(3), strict=True))
    assert torch.equal(rows.pick(np.array([2, 0]))[:], tensor[[2, 0]])
    assert rows[:].dtype == torch.uint8 and rows.to("cpu").device == torch.device("cpu")
    assert rows.to("meta")[:2].device == torch.device(
        "meta"
    )  # what is asked for goes to the device, the store does not


def test_mapped_rows_are_each_clients_own():
    store = np.arange(20, dtype=np.uint8).reshape(10, 2)
    source = Mapped(Rows(store, np.arange(9, -1, -1)), torch.tensor([0, 6]))
    index_MB = torch.tensor([[0, 3, 1], [5, 5, 0]])
    got = source.rows(torch.tensor([1, 0]), index_MB)
    expected = [[[2 * (9 - (6 + i)), 2 * (9 - (6 + i)) + 1] for i in (0, 3, 1)], [[8, 9], [8, 9], [18, 19]]]
    assert got.tolist() == expected and source.on_host and source.to("cpu").on_host
