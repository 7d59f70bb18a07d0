"""Whitening by sums: the layer by plain loops, summands of bounded length, sums in any order, and too few devices."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from selfsame.errors import SelfsameError
from selfsame.methods.moments import numbers_of
from selfsame.methods.within import LONGEST, least_devices, summand, whitening
from selfsame.nets.whitened import whitened

WIDTH, SHARE = 4, 0.7


def people(number=6, samples=5, width=WIDTH, seed=0):
    draw = torch.Generator().manual_seed(seed)
    loud = torch.tensor([3.0, 1.0, 0.3, 2.0][:width])
    middle_ND = torch.randn(number, 1, width, generator=draw) * 2
    return list(middle_ND + torch.randn(number, samples, width, generator=draw) * loud)


def length(row):
    return math.sqrt(sum(x * x for x in row))


def by_loops(clients):
    """mu and W in plain float64."""
    mean, within = [0.0] * WIDTH, [[0.0] * WIDTH for _ in range(WIDTH)]
    for emb in clients:
        rows = [[x / length(row) for x in row] for row in emb.double().tolist()]
        own = [sum(row[d] for row in rows) / len(rows) for d in range(WIDTH)]
        for a in range(WIDTH):
            mean[a] += own[a] / len(clients)
            for b in range(WIDTH):
                found = sum((row[a] - own[a]) * (row[b] - own[b]) for row in rows) / len(rows)
                within[a][b] += found / len(clients)
    return mean, within


def test_the_layer_by_plain_loops():
    clients = [*people(), *people(2, 3, seed=5)]  # some have fewer samples, and count the same
    total = torch.stack([summand(emb) for emb in clients]).sum(0)
    assert total.shape == (numbers_of(WIDTH),) and total.dtype == torch.float64
    mean_D, matrix_DD = whitening(total, WIDTH, len(clients), SHARE)
    mean, within = by_loops(clients)
    even = sum(within[d][d] for d in range(WIDTH)) / WIDTH
    assert mean_D.tolist() == pytest.approx(mean)
    for a in range(WIDTH):  # L L' (W / w + share I) = I
        for b in range(WIDTH):
            product = 0.0
            for c in range(WIDTH):
                inverse = sum(float(matrix_DD[a, d] * matrix_DD[c, d]) for d in range(WIDTH))
                product += inverse * (within[c][b] / even + (SHARE if c == b else 0.0))
            assert product == pytest.approx(float(a == b), abs=1e-9)
    for row in clients[0].double().tolist():
        off = [x / length(row) - m for x, m in zip(row, mean, strict=True)]
        out = [sum(off[d] * float(matrix_DD[d, e]) for d in range(WIDTH)) for e in range(WIDTH)]
        got = whitened(torch.tensor([row], dtype=torch.float64), mean_D, matrix_DD)[0]
        assert got.tolist() == pytest.approx([x / length(out) for x in out])


def test_what_people_differ_in_is_made_short():
    clients = people(40, 20)
    mean_D, matrix_DD = whitening(torch.stack([summand(emb) for emb in clients]).sum(0), WIDTH, 40, 1e-6)
    away = []
    for emb in clients:
        moved_SD = (emb.double() / emb.double().norm(dim=1, keepdim=True) - mean_D) @ matrix_DD
        away.append(moved_SD - moved_SD.mean(0))
    within_DD = sum(one.T @ one / len(one) for one in away) / len(away)
    even = float(within_DD.trace()) / WIDTH
    torch.testing.assert_close(within_DD / even, torch.eye(WIDTH, dtype=torch.float64), atol=1e-4, rtol=0)


ROWS = st.lists(
    st.lists(st.floats(-1e6, 1e6, width=32), min_size=3, max_size=3),
    min_size=1,
    max_size=5,
)


@given(st.lists(ROWS, min_size=2, max_size=6), st.randoms(use_true_random=False))
def test_summands_are_bounded_and_their_order_makes_no_difference(clients, shuffle):
    sent = [summand(torch.tensor(rows)) for rows in clients]
    assert all(float(one.norm()) <= LONGEST + 1e-12 for one in sent)
    total_V = torch.stack(sent).sum(0)
    shuffle.shuffle(sent)
    other_V = torch.stack(sent).sum(0)
    torch.testing.assert_close(total_V, other_V, rtol=0, atol=1e-12)
    try:
        one = whitening(total_V, 3, len(sent), SHARE)
    except SelfsameError as error:
        assert "nobody's embeddings differ" in str(error)
        return
    two = whitening(other_V, 3, len(sent), SHARE)
    if float(total_V[3:].norm()) > 1e-6:  # of next to nothing, rounding is a part
        for left, right in zip(one, two, strict=True):
            torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-4)


def test_the_longest_summand():
    """One sample, or samples that cancel: a length of one, and no more."""
    row = torch.tensor([[3.0, 4.0, 0.0]])
    assert float(summand(row).norm()) == pytest.approx(1)
    assert float(summand(torch.cat([row, -row])).norm()) == pytest.approx(1)
    assert float(summand(torch.zeros(2, 3)).norm()) == 0


@pytest.mark.parametrize(
    ("width", "counts", "least"),
    [
        (8, [17] * 10, 2),  # 16 directions of one device, and that without any other
        (8, [1000] * 10, 2),
        (256, [90] * 48, 33),  # 512 / 16, and one more
        (320, [90] * 48, 41),
        (8, [5] * 10, 5),  # 16 / 4, and one more
        (8, [5] * 4, 5),  # one is missing
        (8, [1] * 6 + [5] * 6, 11),  # whoever they are: those with one sample bring nothing
        (8, [2] * 3, 17),
        (8, [1] * 9, 0),  # nobody brings anything
    ],
)
def test_the_fewest_devices(width, counts, least):
    assert least_devices(width, torch.tensor(counts)) == least


@given(st.integers(1, 40), st.lists(st.integers(1, 40), min_size=1, max_size=30), st.randoms(use_true_random=False))
def test_any_devices_of_that_number_bring_enough_without_one_of_them(width, counts, shuffle):
    least = least_devices(width, torch.tensor(counts))
    if not 0 < least <= len(counts):
        return
    shuffle.shuffle(counts)
    brought = sorted(min(count - 1, 16) for count in counts[:least])
    assert least >= 2 and sum(brought[:-1]) >= 2 * width


@pytest.mark.parametrize("share", [0.0, -1.0, math.nan, math.inf])
def test_shares_that_make_no_layer(share):
    with pytest.raises(SelfsameError, match="--share: must be above 0"):
        whitening(summand(people()[0]), WIDTH, 1, share)


def test_people_whose_samples_are_all_alike():
    with pytest.raises(SelfsameError, match="nobody's embeddings differ"):
        whitening(summand(torch.ones(4, WIDTH)), WIDTH, 1, 1.0)
