"""The kernel that adds contributions up: to the last bit what the plain code adds up."""

from __future__ import annotations

import pytest
import torch

from selfsame.privacy.fixed import FixedPoint, shortening
from selfsame.streams import Stream


def updates(clients: int, size: int, device: str) -> torch.Tensor:
    """Updates of every length up to several times the clip, zeros among them."""
    who_M = torch.arange(clients)
    length_M1 = Stream.named(0, "length", who_M).uniform(1) * 4 / size**0.5
    length_M1[clients // 2] = 0
    return (Stream.named(0, "update", who_M).normal(size) * length_M1).to(device)


@pytest.mark.parametrize("bits", [16, 32])
@pytest.mark.parametrize(("clients", "size", "cap"), [(1, 1, 1), (6, 1023, 1), (5, 1025, 9), (3, 2500, 7)])
def test_the_kernel_adds_up_what_the_plain_code_sends(kernel_device, bits, clients, size, cap):
    from selfsame.privacy import fixed_cuda

    code = FixedPoint(clip=1.5, reach=0.04, bits=bits, group=6, cap=cap)
    update_MP = updates(clients, size, kernel_device)
    weight_M = torch.tensor([1, 0, 5, 9, 3, 2][:clients], device=kernel_device).clamp(max=cap)
    draw = Stream.named(3, "rounding", torch.arange(clients, device=kernel_device))
    sent_MP = code.contribution(update_MP, weight_M, draw.uniform(size))
    assert fixed_cuda.supported(update_MP)
    found_P = fixed_cuda.add_up(
        update_MP, shortening(update_MP, code.clip)[:, 0], weight_M.double() / cap, draw.key_M, code.reach, code.step
    )
    assert torch.equal(found_P, sent_MP.sum(0)[:-1])
    assert clients == 1 or bool((found_P != 0).any())


def test_a_share_of_zero_adds_nothing_whatever_the_update(kernel_device):
    from selfsame.privacy import fixed_cuda

    update_MP = torch.full((2, 5), float("nan"), device=kernel_device)
    update_MP[1] = 0.5
    share_M = torch.tensor([0.0, 1.0], dtype=torch.float64, device=kernel_device)
    ones_M = torch.ones(2, device=kernel_device)
    key_M = torch.zeros(2, dtype=torch.int64, device=kernel_device)
    assert fixed_cuda.add_up(update_MP, ones_M, share_M, key_M, 1.0, 0.25).tolist() == [2, 2, 2, 2, 2]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="sums are handed to the kernel on CUDA alone")
def test_sums_on_cuda_are_those_of_the_cpu():
    code = FixedPoint(clip=1.5, reach=0.04, bits=32, group=6)
    update_MP, weight_M = updates(6, 100_000, "cpu"), torch.tensor([1, 1, 0, 1, 1, 1])
    draw = Stream.named(3, "rounding", torch.arange(6))
    sent_MP = code.contribution(update_MP, weight_M, draw.uniform(100_000))
    there = Stream.named(3, "rounding", torch.arange(6).cuda())
    found_P = code.summed(update_MP.cuda(), weight_M.cuda(), there)
    assert found_P is not None and code.summed(update_MP, weight_M, draw) is None
    # the lengths are added up in another order, which may move a clipped number over a boundary
    assert int((found_P.cpu() - sent_MP.sum(0)).abs().max()) <= 2
