"""Named randomness: the same numbers for the same name, whoever else is asked, and others for another name."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from selfsame.streams import Stream, host_generator

INT64 = st.integers(-(2**63), 2**63 - 1)
CLIENTS = st.lists(INT64, min_size=1, max_size=8)


@given(INT64, CLIENTS, st.randoms(), st.lists(st.integers(0, 10**6), max_size=3))
def test_rows_do_not_depend_on_the_others(seed, clients, shuffled, rest):
    together = Stream.named(seed, "batch", torch.tensor(clients), *rest)
    order = list(range(len(clients)))
    shuffled.shuffle(order)
    mixed = Stream.named(seed, "batch", torch.tensor([clients[i] for i in order]), *rest)
    limits = torch.tensor([1 + i for i in range(len(clients))])
    for place, i in enumerate(order):
        alone = Stream.named(seed, "batch", torch.tensor([clients[i]]), *rest)
        for draw in (Stream.bits, Stream.uniform, Stream.normal):
            assert torch.equal(draw(together, 3, 2)[i], draw(alone, 3, 2)[0])
            assert torch.equal(draw(mixed, 3, 2)[place], draw(alone, 3, 2)[0])
        assert torch.equal(together.below(limits, 4)[i], alone.below(limits[i : i + 1], 4)[0])


@given(INT64, INT64)
def test_numbers_and_tensors_agree(client, part):
    start = Stream.named(1, "x", torch.tensor([client, 5]))
    by_number = start.fold(part).key_M
    assert torch.equal(by_number, start.fold(torch.tensor(part)).key_M)
    assert torch.equal(by_number, start.fold(torch.tensor([part, part])).key_M)
    assert torch.equal(by_number, Stream.named(1, "x", torch.tensor([client, 5]), part).key_M)


@given(st.integers(-(2**80), 2**80))
def test_numbers_beyond_64_bits_wrap(part):
    start = Stream.named(1, "x", torch.tensor([3]))
    assert torch.equal(start.fold(part).key_M, start.fold(part + 2**64).key_M)


def splitmix(z: int) -> int:
    """The finaliser of splitmix64 in Python's own integers."""
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % 2**64
    return z ^ (z >> 31)


@given(INT64, st.integers(1, 6))
def test_bits_are_splitmix64(key, count):
    drawn = Stream(torch.tensor([key])).bits(count)[0].tolist()
    for i, bits in enumerate(drawn):
        assert bits % 2**64 == splitmix((key + (i ^ 0x5851F42D) * 0x9E3779B97F4A7C15) % 2**64)


@given(CLIENTS, st.integers(1, 9), st.integers(1, 9))
def test_a_longer_draw_begins_with_the_shorter(clients, few, more):
    """A client with fewer samples than the longest gets the same numbers alone as in a cohort."""
    stream = Stream.named(0, "x", torch.tensor(clients))
    assert torch.equal(stream.uniform(few + more)[:, :few], stream.uniform(few))
    assert torch.equal(stream.bits(2, 6).flatten(1), stream.bits(12))
    assert stream.bits().shape == (len(clients),)


def test_names_make_a_difference():
    clients = torch.arange(200)
    streams = [
        Stream.named(seed, purpose, clients, *rest)
        for seed in (0, 1, -1)
        for purpose in ("batch", "augment", "report")
        for rest in ((), (0,), (1,), (0, 0), (0, 1), (1, 0))
    ]
    keys = torch.stack([s.key_M for s in streams]).flatten()
    assert len(torch.unique(keys)) == len(keys)
    numbers = torch.stack([s.bits(2) for s in streams]).flatten()
    assert len(torch.unique(numbers)) == len(numbers)
    assert not torch.equal(Stream.named(1, "1/x", clients).key_M, Stream.named(1, "x", clients).key_M)
    assert not torch.equal(Stream.named(0, "x", clients, 1, 2).key_M, Stream.named(0, "x", clients, 2, 1).key_M)


@given(INT64, st.integers(1, 50))
def test_uniform_lies_in_0_to_1(key, count):
    drawn = Stream(torch.tensor([key])).uniform(count)
    assert drawn.dtype == torch.float32 and ((drawn >= 0) & (drawn < 1)).all()
    assert torch.isfinite(Stream(torch.tensor([key])).normal(count)).all()


# 100,000 draws arranged three ways: many draws of one client, many clients, many rounds.
WAYS = {
    "draws": lambda: [Stream.named(0, "x", torch.tensor([k])) for k in (0, 1)],
    "clients": lambda: [Stream.named(0, p, torch.arange(100_000)) for p in ("x", "y")],
    "rounds": lambda: [Stream.named(0, "x", torch.full((100_000,), k), torch.arange(100_000)) for k in (0, 1)],
}


@pytest.mark.parametrize("way", WAYS)
def test_statistics(way):
    n = 100_000
    shape = (n,) if way == "draws" else ()
    streams = WAYS[way]()
    a, b = (s.uniform(*shape).flatten().double().numpy() for s in streams)
    for u in (a, b):
        assert abs(float(u.mean()) - 0.5) < 5 * (1 / 12 / n) ** 0.5
        assert abs(float(u.var()) - 1 / 12) < 5 * (1 / 180 / n) ** 0.5
        tally = np.histogram(u, 50, (0, 1))[0]
        assert float(((tally - n / 50) ** 2 / (n / 50)).sum()) < 49 + 5 * 98**0.5
        assert abs(float(np.corrcoef(u[:-1], u[1:])[0, 1])) < 5 / n**0.5
    assert abs(float(np.corrcoef(a, b)[0, 1])) < 5 / n**0.5
    g, h = (s.normal(*shape).flatten().double().numpy() for s in streams)
    assert abs(float(g.mean())) < 5 / n**0.5
    assert abs(float(g.var()) - 1) < 5 * (2 / n) ** 0.5
    assert abs(float((g**4).mean()) - 3) < 5 * (96 / n) ** 0.5
    assert abs(float(np.corrcoef(g, h)[0, 1])) < 5 / n**0.5
    drawn = streams[0].bits(*shape).flatten()
    each = torch.stack([((drawn >> k) & 1).double().mean() for k in range(64)])
    assert (each - 0.5).abs().max() < 5 * 0.5 / n**0.5  # every one of the 64 bits is fair


@given(st.lists(st.integers(1, 2**31), min_size=1, max_size=5), INT64)
def test_below_stays_within(limits, seed):
    limit = torch.tensor(limits)
    drawn = Stream.named(seed, "x", torch.arange(len(limits))).below(limit, 20)
    assert drawn.dtype == torch.int64 and (drawn >= 0).all() and (drawn < limit[:, None]).all()


@pytest.mark.parametrize("limit", [1, 2, 7, 10])
def test_below_is_even(limit):
    n = 50_000
    drawn = Stream.named(0, "x", torch.tensor([4])).below(torch.tensor([limit]), n)[0]
    tally = torch.bincount(drawn, minlength=limit)
    assert len(tally) == limit
    assert (tally - n / limit).abs().max() <= 5 * (n / limit * (1 - 1 / limit)) ** 0.5


def test_golden():
    """Pinned: a run that is resumed with a later version must go on with the same numbers."""
    stream = Stream.named(0, "batch", torch.tensor([0, 1, 7]), 3, torch.tensor(5))
    assert stream.key_M.tolist() == [759955946790931580, -3805476945263641637, 5345392933322506259]
    assert stream.bits(2).tolist() == [
        [-7545596318338961535, 322490168307484093],
        [-7156703156899435776, -8159067949288058092],
        [5081908780399425786, -2775718450961564004],
    ]
    assert stream.uniform(2).tolist() == [
        [0.5909523963928223, 0.017482221126556396],
        [0.6120343208312988, 0.5576959848403931],
        [0.27549082040786743, 0.8495279550552368],
    ]
    normal = torch.tensor([[0.7172381, 2.3072968], [-0.7891953, 0.9740936], [1.2329464, 0.090179]])
    assert torch.allclose(stream.normal(2), normal, atol=1e-6)  # logarithm and cosine differ by machine
    assert stream.below(torch.tensor([10, 100, 1000]), 3).tolist() == [[1, 0, 0], [22, 11, 42], [550, 699, 365]]
    assert Stream.named(-3, "é", torch.tensor([2**40])).bits(1).tolist() == [[-3119216189561169984]]
    assert host_generator(0, "cohort", 3).integers(0, 1000, 4).tolist() == [547, 271, 288, 875]
    chosen = host_generator(0, "cohort", 3).choice(10**6, 3, replace=False, shuffle=False)
    assert chosen.tolist() == [547443, 271176, 288613]
    assert host_generator(0, "dropout", 3).random(2).tolist() == [0.9422121473144731, 0.9006284986625724]


@settings(max_examples=30)
@given(INT64, st.integers(0, 10**6))
def test_the_servers_generator(seed, round):
    one, two = (host_generator(seed, "cohort", round).random(4) for _ in range(2))
    assert (one == two).all()
    for other in ((seed + 1, "cohort", round), (seed, "dropout", round), (seed, "cohort", round + 1)):
        assert (one != host_generator(*other).random(4)).any()


@pytest.mark.parametrize("way", ["bits", "uniform", "normal"])
def test_many_numbers_are_drawn_in_blocks_and_are_the_same(way, monkeypatch):
    stream = Stream.named(3, "many", torch.tensor([0, 7]))
    whole = getattr(stream, way)(3, 50)
    monkeypatch.setattr("selfsame.streams._CACHED", 16)
    blocks = getattr(stream, way)(3, 50)
    assert blocks.dtype == whole.dtype
    if way == "normal":  # logarithms may be rounded by where they stand among others
        torch.testing.assert_close(blocks, whole)
    else:
        assert torch.equal(blocks, whole)
