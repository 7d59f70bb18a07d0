"""The sum of a group's contributions on CUDA in one pass over their updates, to the last bit what `fixed` adds up.

A program takes some parameters and goes through the clients: it draws the rounding, rounds, adds. Nothing of a client's
whole numbers is written.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from selfsame.streams import GOLDEN, MIX1, MIX2, SALT

_BLOCK = 1024  # parameters of a program

_GOLDEN, _SALT = tl.constexpr(GOLDEN), tl.constexpr(SALT)
_MIX1, _MIX2 = tl.constexpr(MIX1), tl.constexpr(MIX2)


@triton.jit
def _uniform(key, place):
    """What `Stream.uniform` draws at a place."""
    z = key + (place ^ _SALT) * _GOLDEN
    z = (z ^ ((z >> 30) & 0x3FFFFFFFF)) * _MIX1
    z = (z ^ ((z >> 27) & 0x1FFFFFFFFF)) * _MIX2
    z = z ^ ((z >> 31) & 0x1FFFFFFFF)
    return ((z >> 40) & 0xFFFFFF).to(tl.float32) * 5.9604644775390625e-08


@triton.jit
def _add_up(
    update_ptr, shorter_ptr, share_ptr, key_ptr, step_ptr, sum_ptr, reach, clients, size, row, BLOCK: tl.constexpr
):  # fmt: skip
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = place < size
    step = tl.load(step_ptr)
    total = tl.zeros((BLOCK,), tl.int64)
    for client in range(clients):
        share = tl.load(share_ptr + client)
        value = tl.load(update_ptr + place, mask=there, other=0.0)
        value = tl.where(share != 0, value * tl.load(shorter_ptr + client), 0.0)
        value = tl.minimum(tl.maximum(value, -reach), reach).to(tl.float64) * share / step
        uniform = _uniform(tl.load(key_ptr + client), place).to(tl.float64)
        total += tl.floor(value + uniform).to(tl.int64)
        update_ptr += row
    tl.store(sum_ptr + place, total, mask=there)


def supported(update_MP: Tensor) -> bool:
    """Whether the kernel takes these updates."""
    return update_MP.dtype == torch.float32 and update_MP.stride(1) == 1 and update_MP.shape[1] > 0


def add_up(
    update_MP: Tensor, shorter_M: Tensor, share_M: Tensor, key_M: Tensor, reach: float, step: float
) -> Tensor:  # fmt: skip
    """The sum (P,) of floor(clamp(update * shorter, reach) * share / step + uniform).

    `shorter_M` is in the updates' precision, `share_M` in double; a share of 0 adds zero, whatever the update.
    """
    clients, size = update_MP.shape
    sum_P = torch.empty(size, dtype=torch.int64, device=update_MP.device)
    step_1 = torch.full((1,), step, dtype=torch.float64, device=update_MP.device)  # a plain number would be rounded
    _add_up[(triton.cdiv(size, _BLOCK),)](
        update_MP, shorter_M.contiguous(), share_M.contiguous(), key_M.contiguous(), step_1, sum_P, reach,
        clients, size, update_MP.stride(0), BLOCK=_BLOCK, num_warps=4,
    )  # fmt: skip
    return sum_P
