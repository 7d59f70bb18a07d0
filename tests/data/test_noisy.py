"""Samples in noise, recomputed in plain loops."""

import pytest
import torch

from selfsame.data.noisy import in_noise
from selfsame.errors import SelfsameError


def drawn(seed=3):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("decibels", [6.0, 20.0, 40.0])
def test_each_sample_by_its_own_loudest_value(decibels):
    raw = torch.tensor([[0.5, -2.0, 0.25], [0.01, 0.0, 0.002]])
    normal = torch.randn(2, 3, generator=drawn()).tolist()
    for sample, noise, found in zip(raw.tolist(), normal, in_noise(raw, decibels, drawn()).tolist(), strict=True):
        deviation = max(abs(value) for value in sample) / 10 ** (decibels / 20)
        for value, more, heard in zip(sample, noise, found, strict=True):
            assert abs(heard - (value + more * deviation)) < 1e-6


@pytest.mark.parametrize(("dtype", "least", "most"), [(torch.uint8, 0, 255), (torch.int16, -32768, 32767)])
def test_whole_numbers_stay_whole_and_in_range(dtype, least, most):
    raw = torch.tensor([[[least, most], [0, most // 2]]], dtype=dtype).expand(50, 2, 2)
    found = in_noise(raw, 6.0, drawn())
    assert found.dtype == dtype and found.shape == raw.shape
    assert {least, most} <= set(found.flatten().tolist())  # half of the loudest is pushed beyond what the type holds
    normal = torch.randn(50, 4, generator=drawn()).double()
    loudest = max(abs(least), most)
    wanted = raw.flatten(1).double() + normal * loudest * 10 ** (-6 / 20)
    assert (found.flatten(1).double() - wanted.clamp(least, most)).abs().max() < 0.51  # rounding


def test_the_generator_alone_decides():
    raw = torch.ones(4, 8)
    assert torch.equal(in_noise(raw, 10.0, drawn()), in_noise(raw, 10.0, drawn()))
    draw = drawn()
    assert not torch.equal(in_noise(raw, 10.0, draw), in_noise(raw, 10.0, draw))
    assert torch.equal(raw, torch.ones(4, 8))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.bool])
def test_names_of_features_have_no_loudness(dtype):
    with pytest.raises(SelfsameError, match="have no loudness"):
        in_noise(torch.ones(2, 5, dtype=dtype), 10.0, drawn())


def test_silence_stays_silent():
    assert not in_noise(torch.zeros(2, 5, dtype=torch.int16), 10.0, drawn()).any()
