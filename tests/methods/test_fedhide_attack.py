"""The inverse of FedHide's (4), against proxies made independently with plain loops."""

import pytest
import torch

from selfsame.audit.leakage import closest, prototype_leakage
from selfsame.methods import fedhide_attack


def recover_fedhide(proxy, table, row, alpha, neighbours, class_of=None):
    """Every row is of a class of its own, unless said otherwise."""
    class_of = torch.arange(len(table)) if class_of is None else class_of
    return fedhide_attack.recover_fedhide(proxy, table, row, alpha, neighbours, class_of)


def hide(prototype, table, row, alpha, neighbours, skip=()):
    """(4) for one client."""
    likeness = (table @ prototype).tolist()
    near = sorted((r for r in range(len(table)) if r != row and r not in skip), key=lambda r: -likeness[r])
    delegate = sum(table[r] for r in near[:neighbours])
    mixed = alpha * prototype + (1 - alpha) * delegate / delegate.norm()
    return mixed / mixed.norm()


def directions(rows, width, generator):
    x = torch.randn(rows, width, generator=generator)
    return x / x.norm(dim=1, keepdim=True)


def scene(rows, width, alpha, neighbours, updates=0, seed=0):
    """(true prototypes, table before, one new proxy each); after `updates` of a table over related prototypes."""
    generator = torch.Generator().manual_seed(seed)
    truth, table = directions(rows, width, generator), directions(rows, width, generator)
    if updates:
        family = directions(max(2, rows // 5), width, generator)
        truth = truth + family[torch.randint(len(family), (rows,), generator=generator)] + 0.5 * family[0]
        truth = truth / truth.norm(dim=1, keepdim=True)
    for step in range(updates):
        row = step % rows
        table[row] = hide(truth[row], table, row, alpha, neighbours)
    proxy = torch.stack([hide(truth[r], table, r, alpha, neighbours) for r in range(rows)])
    return truth, table, proxy


def attack(truth, table, proxy, alpha, neighbours):
    row = torch.arange(len(truth))
    found = recover_fedhide(proxy, table, row, alpha, neighbours)
    share = float((closest(truth, found) == row).double().mean())
    return share, float((found * truth.double()).sum(1).mean())


@pytest.mark.parametrize("alpha", [0.1, 0.01])
@pytest.mark.parametrize("neighbours", [5, 10, 20])
@pytest.mark.parametrize("updates", [0, 800])
def test_fedhide_hides_nothing(alpha, neighbours, updates):
    truth, table, proxy = scene(100, 512, alpha, neighbours, updates)
    share, cosine = attack(truth, table, proxy, alpha, neighbours)
    assert cosine >= 0.99
    assert share == 1
    if updates and alpha == 0.01:
        assert prototype_leakage(truth, proxy) < 0.35  # while the paper's measure sees little


@pytest.mark.parametrize(("alpha", "neighbours"), [(0.1, 5), (0.1, 20), (0.01, 10)])
def test_more_rows_than_dimensions(alpha, neighbours):
    truth, table, proxy = scene(120, 24, alpha, neighbours, 600)
    share, cosine = attack(truth, table, proxy, alpha, neighbours)
    assert share >= 0.97
    assert cosine >= 0.97


@pytest.mark.parametrize("alpha", [0.3, 0.5, 0.9])
def test_other_mixtures(alpha):
    truth, table, proxy = scene(30, 64, alpha, 4)
    share, cosine = attack(truth, table, proxy, alpha, 4)
    assert (share, cosine) == (1, pytest.approx(1, abs=1e-3))


def test_nothing_to_search_for():
    truth, table, proxy = scene(12, 16, 1.0, 4)
    torch.testing.assert_close(recover_fedhide(proxy, table, torch.arange(12), 1.0, 4).float(), truth)
    proxy = scene(12, 16, 0.0, 4)[2]
    torch.testing.assert_close(recover_fedhide(proxy, table, torch.arange(12), 0.0, 4).float(), proxy)
    alone = recover_fedhide(proxy[:1], table[:1], torch.tensor([0]), 0.1, 4)
    torch.testing.assert_close(alone.float(), proxy[:1])


def up_to_mirror(found, truth, proxy):
    """The worst cosine where the sign of the part along the proxy is forgiven.

    When every other row is a neighbour, both roots of the quadratic explain the proxy: they mirror each other there.
    """
    mirrored = found - 2 * (found * proxy).sum(1, keepdim=True) * proxy
    return float(torch.maximum((found * truth).sum(1), (mirrored * truth).sum(1)).min())


def test_few_rows_clamp_the_neighbours():
    truth, table, proxy = scene(6, 32, 0.1, 20)  # (4) takes all 5 others
    found = recover_fedhide(proxy, table, torch.arange(6), 0.1, 20)
    assert up_to_mirror(found, truth, proxy) == pytest.approx(1, abs=1e-4)
    assert (closest(truth, found) == torch.arange(6)).all()


def test_rows_of_the_same_class_are_no_neighbours():
    truth, table, _ = scene(20, 32, 0.1, 5)
    class_of = torch.tensor([0] * 12 + list(range(1, 9)))
    proxy = torch.stack(
        [hide(truth[r], table, r, 0.1, 9, skip=torch.nonzero(class_of == class_of[r])[:, 0]) for r in range(20)]
    )
    found = recover_fedhide(proxy, table, torch.arange(20), 0.1, 9, class_of)  # class 0 has 8 others, the rest 19
    assert up_to_mirror(found[:12], truth[:12], proxy[:12]) > 0.999
    assert float((found * truth.double()).sum(1)[12:].min()) > 0.999


def test_shortlists_smaller_than_the_table(monkeypatch):
    monkeypatch.setattr(fedhide_attack, "_SHORTLIST", 16)
    monkeypatch.setattr(fedhide_attack, "_MEMORY", 20_000)
    truth, table, proxy = scene(100, 64, 0.05, 5, 300)
    share, cosine = attack(truth, table, proxy, 0.05, 5)
    assert share >= 0.95
    assert cosine >= 0.97


def test_an_unexplainable_proxy_still_gets_a_candidate():
    _, table, _ = scene(20, 16, 0.1, 5)
    strange = directions(20, 16, torch.Generator().manual_seed(9))
    found = recover_fedhide(strange, table, torch.arange(20), 0.1, 5)
    assert torch.isfinite(found).all()
    torch.testing.assert_close(found.norm(dim=1), torch.ones(20, dtype=torch.float64))
