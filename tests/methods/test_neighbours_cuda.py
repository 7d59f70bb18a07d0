"""The search kernels against the plain search."""

from __future__ import annotations

import pytest
import torch

from selfsame.methods.base import unit
from selfsame.methods.neighbours import nearest as plain

CASES = [(5, 300, 32, 3), (1, 130, 32, 200), (9, 129, 96, 7)]
LARGE = [(70, 1000, 64, 10), (130, 129, 96, 7), (300, 70000, 512, 10)]  # minutes in the interpreter


def check(kernels, case, device: str) -> None:
    queries, rows, wide, k = case
    draw = torch.Generator().manual_seed(rows)
    query = unit(torch.randn(queries, wide, generator=draw)).to(device)
    table = torch.randn(rows, wide, generator=draw).to(device)
    label = torch.randint(0, 7, (rows,), generator=draw).to(device)
    own = torch.randint(0, 7, (queries,), generator=draw).to(device)
    for labels in ({}, {"label_M": own}, {"label_M": own, "label_N": label}):
        for cosine in (False, True):
            value, index = kernels.nearest(query, table, k, cosine=cosine, **labels)
            cpu = {name: part.cpu().long() for name, part in labels.items()}
            right, _ = plain(query.cpu().double(), table.cpu().double(), k, view=unit if cosine else None, **cpu)
            assert value.shape == right.shape
            assert torch.allclose(value.cpu().double(), right, rtol=1e-5, atol=1e-5)
            reached = (query.double() @ (unit(table) if cosine else table).double().T).gather(1, index)
            found = torch.isfinite(value)
            assert torch.allclose(reached[found], value.double()[found], rtol=1e-5, atol=1e-5)
            assert bool((index >= 0).all()) and bool((index < rows).all())
            for row in range(queries):
                mine = index[row][found[row]].tolist()
                assert len(set(mine)) == len(mine)


@pytest.mark.parametrize("case", CASES)
def test_kernels_equal_the_plain_search(kernel_device, case):
    from selfsame.methods import neighbours_cuda

    check(neighbours_cuda, case, kernel_device)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="too large for Triton's interpreter")
@pytest.mark.parametrize("case", LARGE)
def test_kernels_equal_the_plain_search_of_large_tables(case):
    from selfsame.methods import neighbours_cuda

    check(neighbours_cuda, case, "cuda")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="tables are handed over on CUDA alone")
def test_the_plain_search_hands_large_tables_over():
    draw = torch.Generator().manual_seed(0)
    query, table = unit(torch.randn(256, 64, generator=draw)), torch.randn(70000, 64, generator=draw)
    own = torch.randint(0, 70000, (256,), generator=draw)
    subset = torch.randperm(70000, generator=draw)[:66000]
    for chosen in (None, subset):
        want = plain(query.double(), table.double(), 10, label_M=own, subset_S=chosen, view=unit)
        here = None if chosen is None else chosen.cuda()
        got = plain(query.cuda(), table.cuda(), 10, label_M=own.cuda(), subset_S=here, view=unit)
        assert torch.allclose(got[0].cpu().double(), want[0], atol=1e-5)
        assert (got[1].cpu() == want[1]).double().mean() > 0.999
