"""Moments as vectors that can be summed, by hand; and what is left of them under noise."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from selfsame.methods.base import unit
from selfsame.methods.moments import (
    APART,
    APART_SKETCHED,
    LONGEST,
    LONGEST_SKETCHED,
    denoised_mean,
    denoised_second,
    numbers_of,
    on_simplex,
    packed_moments,
    unpacked_moments,
)


def vectors(count, width, seed=0):
    return unit(torch.randn(count, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64))


@pytest.mark.parametrize("width", [1, 2, 5])
def test_the_sum_of_what_is_packed_is_the_sum_of_the_moments(width):
    rows = vectors(7, width)
    packed = packed_moments(rows, width)
    assert packed.shape == (7, numbers_of(width))
    first, second = unpacked_moments(packed.sum(0), width)
    for i in range(width):
        assert float(first[i]) == pytest.approx(sum(float(row[i]) for row in rows))
        for j in range(width):
            assert float(second[i, j]) == pytest.approx(sum(float(row[i] * row[j]) for row in rows))


def test_lengths_and_distances():
    """By the pair (w, w w') itself, and the most that two can be apart."""
    rows = vectors(60, 2)
    packed = packed_moments(rows, 2)
    assert torch.allclose(packed.norm(dim=1), torch.full((60,), LONGEST, dtype=torch.float64))
    found = torch.cdist(packed, packed)
    for a in range(60):
        for b in range(60):
            outer = rows[a][:, None] * rows[a] - rows[b][:, None] * rows[b]
            square = float((rows[a] - rows[b]).square().sum() + outer.square().sum())
            assert float(found[a, b]) == pytest.approx(math.sqrt(max(square, 0)), abs=1e-7)
    third = torch.tensor([[1.0, 0.0], [-0.5, math.sqrt(0.75)]], dtype=torch.float64)  # 120 degrees apart
    assert float((packed_moments(third, 2)[0] - packed_moments(third, 2)[1]).norm()) == pytest.approx(APART)
    assert float(found.max()) <= APART + 1e-12
    assert not packed_moments(torch.zeros(1, 4), 4).any()


def test_with_a_sketch_the_vector_stands_before_it():
    """The products are of the sketch alone; lengths, and the most that two can be apart."""
    whole, narrow = vectors(7, 4), vectors(7, 2, seed=1)
    packed = packed_moments(torch.cat([whole, narrow], 1), 2)
    assert packed.shape == (7, numbers_of(2, beside=4))
    assert torch.allclose(packed.norm(dim=1), torch.full((7,), LONGEST_SKETCHED, dtype=torch.float64))
    first, second = unpacked_moments(packed.sum(0), 2)
    assert torch.allclose(first, torch.cat([whole, narrow], 1).sum(0))
    for i in range(2):
        for j in range(2):
            assert float(second[i, j]) == pytest.approx(sum(float(row[i] * row[j]) for row in narrow))
    apart = torch.tensor([[1.0, 0.0, 1.0, 0.0], [-1.0, 0.0, -0.5, math.sqrt(0.75)]], dtype=torch.float64)
    pair = packed_moments(apart, 2)
    assert float((pair[0] - pair[1]).norm()) == pytest.approx(APART_SKETCHED)
    many = torch.cat([vectors(60, 2, 2).repeat(2, 1), torch.cat([vectors(60, 2, 3), -vectors(60, 2, 3)])], 1)
    assert float(torch.cdist(packed_moments(many, 2), packed_moments(many, 2)).max()) <= APART_SKETCHED + 1e-12


@given(st.lists(st.floats(-3, 3), min_size=1, max_size=8), st.lists(st.floats(0.001, 1), min_size=8, max_size=8))
def test_the_nearest_point_of_the_simplex(values, other):
    value = torch.tensor(values, dtype=torch.float64)
    found = on_simplex(value)
    assert float(found.min()) >= 0 and float(found.sum()) == pytest.approx(1)
    rival = torch.tensor(other[: len(values)], dtype=torch.float64)
    rival = rival / rival.sum()
    # The nearest point of a convex set: no other point of it lies on the value's side.
    assert float(((value - found) * (rival - found)).sum()) <= 1e-9


def test_without_noise_almost_nothing_changes():
    rows = vectors(50, 4)
    mean, second = rows.mean(0), rows.T @ rows / 50
    assert torch.allclose(denoised_mean(mean, 1e-12), mean) and torch.allclose(denoised_second(second, 1e-12), second)


def test_noise_is_taken_off_by_hand():
    deviation = 0.05
    mean = torch.tensor([0.3, -0.4, 0.0], dtype=torch.float64)
    second = torch.diag(torch.tensor([0.9, 0.3, -0.2], dtype=torch.float64))
    found_mean, found_second = denoised_mean(mean, deviation), denoised_second(second, deviation)
    assert torch.allclose(found_mean, mean * (1 - 3 * deviation**2 / 0.25))
    radius = deviation * math.sqrt(6)  # 0.1225: 0.3 lies within it of 1/3
    shrunk = [0.9 - radius, 1 / 3, -0.2 + radius]
    over = (shrunk[0] + shrunk[1] - 1) / 2  # the third is cut off
    want = torch.diag(torch.tensor([shrunk[0] - over, shrunk[1] - over, 0.0], dtype=torch.float64))
    assert torch.allclose(found_second, want)


def test_under_much_noise_the_crowd_is_even_and_under_little_it_is_nearly_right():
    rows = unit(vectors(2000, 8) + torch.tensor([1.0, *[0.0] * 7]))
    width, count = 8, len(rows)
    packed = packed_moments(rows, width).sum(0)
    noise = torch.randn(numbers_of(width), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    truth = rows.T @ rows / count
    for deviation, close in ((1e4, False), (4.0, True)):
        first, second = (part / count for part in unpacked_moments(packed + deviation * noise, width))
        mean, found = denoised_mean(first, deviation / count), denoised_second(second, deviation / count)
        assert float(mean.norm()) <= 1 and float(torch.trace(found)) == pytest.approx(1)
        if close:
            assert float((found - truth).norm()) < 0.1 * float(truth.norm())
            assert float((mean - rows.mean(0)).norm()) < 0.05
        else:
            even = torch.eye(width, dtype=torch.float64) / width
            assert torch.allclose(found, even, atol=0.2)
