"""Contributions as whole numbers: against plain loops, and what a sum of them may be off by."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from selfsame.errors import SelfsameError
from selfsame.privacy.fixed import FixedPoint, shortened
from selfsame.streams import Stream

TOP = 1 - 2.0**-24  # the largest number that a stream draws


def by_loops(code: FixedPoint, update: list[float], weight: int, uniform: list[float], normal: list[float] | None):
    """One device's contribution in exact integers and doubles."""
    length = math.sqrt(math.fsum(x * x for x in update))
    factor = min(1.0, code.clip / length) if length else 1.0
    whole = []
    for place, x in enumerate(update):
        value = max(-code.reach, min(code.reach, x * factor)) * weight / code.cap
        if normal is not None:
            value += max(-8.0, min(8.0, normal[place])) * code.noise
        whole.append(math.floor(value / code.step + uniform[place]))
    return [*whole, weight]


@pytest.mark.parametrize("bits", [16, 32])
@pytest.mark.parametrize(("cap", "noise"), [(1, 0.0), (9, 0.0), (1, 0.02)])
def test_contributions_by_loops(bits, cap, noise):
    code = FixedPoint(clip=1.5, reach=0.4, bits=bits, group=6, cap=cap, noise=noise)
    client_M = torch.arange(6)
    update_MP = (
        Stream.named(0, "update", client_M).normal(40).double() * torch.tensor([0.01, 0.1, 0.3, 1, 5, 0])[:, None]
    )
    weight_M = torch.arange(1, 7).clamp(max=cap)
    uniform_MP = Stream.named(0, "rounding", client_M).uniform(40)
    normal_MP = Stream.named(0, "noise", client_M).normal(40) if noise else None
    sent_MP = code.contribution(update_MP, weight_M, uniform_MP, normal_MP)
    assert sent_MP.dtype == torch.int64 and sent_MP.shape == (6, 41)
    for row in range(6):
        normal = None if normal_MP is None else normal_MP[row].tolist()
        wanted = by_loops(code, update_MP[row].tolist(), int(weight_M[row]), uniform_MP[row].tolist(), normal)
        # a value that falls on a boundary may be rounded to either side of it
        off = [abs(a - b) for a, b in zip(sent_MP[row].tolist(), wanted, strict=True)]
        assert max(off) <= 1 and sum(off) <= 1 and off[-1] == 0
    modulus = 2**bits
    sum_P = sent_MP.sum(0) % modulus
    mean_P, weight = code.mean(sum_P)
    assert weight == int(weight_M.sum())
    for place in range(40):
        whole = sum(int(sent_MP[row, place]) for row in range(6))
        assert math.isclose(float(mean_P[place]), whole * code.step * cap / weight, rel_tol=1e-12, abs_tol=1e-300)


@given(
    bits=st.sampled_from([16, 32]),
    group=st.integers(1, 60),
    cap=st.integers(1, 400),
    clip=st.floats(1e-3, 1e3),
    share=st.floats(1e-3, 1),
    data=st.data(),
)
def test_a_sum_is_off_by_its_rounding_alone(bits, group, cap, clip, share, data):
    """Whatever devices send: the sum never wraps, and decodes to the weighted mean within one step for each of them."""
    code = FixedPoint(clip, share * clip, bits, group, cap)
    count = data.draw(st.integers(1, group))
    row = st.lists(st.floats(-10, 10), min_size=3, max_size=3)
    update_MP = clip * torch.tensor(data.draw(st.lists(row, min_size=count, max_size=count)), dtype=torch.float64)
    weight_M = torch.tensor(data.draw(st.lists(st.integers(0, cap), min_size=count, max_size=count)))
    numbers = st.lists(st.sampled_from([0.0, 0.25, 0.5, TOP]), min_size=3, max_size=3)
    uniform_MP = torch.tensor(data.draw(st.lists(numbers, min_size=count, max_size=count)))
    sent_MP = code.contribution(update_MP, weight_M, uniform_MP)
    assert int(sent_MP.sum(0).abs().max()) <= code.half
    mean_P, weight = code.mean(sent_MP.sum(0) % 2**bits)
    assert weight == int(weight_M.sum())
    exact_P = (shortened(update_MP, code.clip).clamp(-code.reach, code.reach) * weight_M[:, None]).sum(0)
    assert bool(((mean_P * max(weight, 1) - exact_P).abs() <= count * code.step * cap * (1 + 1e-9)).all())


@pytest.mark.parametrize("bits", [16, 32])
@pytest.mark.parametrize("sign", [-1.0, 1.0])
@pytest.mark.parametrize(("group", "noise"), [(1, 0.0), (7, 0.0), (1000, 0.0), (20, 0.5)])
def test_the_largest_sums_fit(bits, sign, group, noise):
    code = FixedPoint(clip=2.0, reach=2.0, bits=bits, group=group, cap=3, noise=noise)
    normal_MP = torch.full((group, 1), sign * 100) if noise else None
    for uniform in (0.0, TOP):
        largest_MP = torch.full((group, 1), sign * 99.0, dtype=torch.float64)
        sent_MP = code.contribution(largest_MP, torch.full((group,), 3), torch.full((group, 1), uniform), normal_MP)
        total = int(sent_MP[:, 0].sum())
        assert 0 < sign * total <= code.half
        mean_P, _ = code.mean(sent_MP.sum(0) % 2**bits)
        assert abs(float(mean_P[0]) - sign * (2.0 + 8 * noise)) <= code.step * 1.01


@pytest.mark.parametrize("bits", [16, 32])
def test_rounding_is_right_on_average_and_deviates_as_stated(bits):
    code = FixedPoint(clip=1.0, reach=0.1, bits=bits, group=16)
    client_M = torch.arange(16)
    update_MP = (Stream.named(1, "update", client_M).uniform(4000).double() - 0.5) * 0.02
    uniform_MP = Stream.named(1, "rounding", client_M).uniform(4000)
    mean_P, _ = code.mean(code.contribution(update_MP, torch.ones(16), uniform_MP).sum(0) % 2**bits)
    off_P = 16 * mean_P - shortened(update_MP, code.clip).clamp(-code.reach, code.reach).sum(0)
    deviation = float(off_P.square().mean().sqrt())
    # of a uniform fraction f(1-f) is a sixth on average, a quarter at most
    assert 0.9 * (2 / 3) ** 0.5 * code.error < deviation < 0.9 * code.error
    assert abs(float(off_P.mean())) < 5 * code.error / 4000**0.5


def test_shortened_by_loops():
    update_MP = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]], dtype=torch.float64)
    assert torch.allclose(
        shortened(update_MP, 2.0), torch.tensor([[1.2, 1.6], [0.3, 0.4], [0, 0]]).double(), atol=1e-15
    )


def test_nobody_weighs_anything():
    code = FixedPoint(1.0, 1.0, 32, 4)
    sent_MP = code.contribution(torch.ones(4, 2), torch.zeros(4), torch.zeros(4, 2))
    assert not sent_MP.any()
    mean_P, weight = code.mean(sent_MP.sum(0))
    assert weight == 0 and not mean_P.any()


def test_what_does_not_fit_is_refused():
    with pytest.raises(SelfsameError, match=r"^sums\.reach: must be above 0 and at most the clip of 1, got 2"):
        FixedPoint(1.0, 2.0, 32, 4)
    with pytest.raises(SelfsameError, match=r"^sums\.bits: 16 bits do not hold the sum of 40 devices that weigh up to"):
        FixedPoint(1.0, 1.0, 16, 40, cap=1000)
    FixedPoint(1.0, 1.0, 32, 40, cap=1000)


@pytest.mark.parametrize("noise", [0.0, 0.02])
def test_contributions_in_blocks_are_the_same(noise, monkeypatch):
    code = FixedPoint(clip=1.5, reach=0.4, bits=32, group=3, noise=noise)
    client_M = torch.arange(3)
    update_MP = Stream.named(0, "update", client_M).normal(40)
    drawn = Stream.named(0, "rounding", client_M).uniform(40), Stream.named(0, "noise", client_M).normal(40)
    whole = code.contribution(update_MP, torch.ones(3), *drawn)
    monkeypatch.setattr("selfsame.privacy.fixed._CACHED", 7)
    assert torch.equal(code.contribution(update_MP, torch.ones(3), *drawn), whole)
