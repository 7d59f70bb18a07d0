"""The adaptive attacker against (4)-(6), made independently with plain loops."""

import math
from dataclasses import dataclass

import pytest
import torch

from selfsame.audit import recovery
from selfsame.audit.leakage import closest, prototype_leakage
from selfsame.audit.recovery import audit, recover_by_averaging, recover_fedhide
from selfsame.errors import SelfsameError
from selfsame.methods.base import World
from selfsame.methods.fedhide import FedCS, FedGN, FedHide
from selfsame.methods.fedmetric import FedMetric
from selfsame.streams import Stream


def hide(prototype, table, row, alpha, neighbours, skip=()):
    """(4) for one client."""
    near = sorted(
        (r for r in range(len(table)) if r != row and r not in skip), key=lambda r: -float(prototype @ table[r])
    )
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
    monkeypatch.setattr(recovery, "_SHORTLIST", 16)
    monkeypatch.setattr(recovery, "_MEMORY", 20_000)
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


@pytest.mark.parametrize(("alpha", "neighbours"), [(-0.1, 5), (1.1, 5), (0.1, 0)])
def test_bad_options_are_refused(alpha, neighbours):
    with pytest.raises(SelfsameError, match="alpha"):
        recover_fedhide(torch.eye(4), torch.eye(4), torch.arange(4), alpha, neighbours)


def test_averaging_approaches_the_prototype_as_predicted():
    generator = torch.Generator().manual_seed(0)
    truth, sigma = directions(20, 512, generator), 0.1
    reports = truth + sigma * torch.randn(100, 20, 512, generator=generator)
    reports = reports / reports.norm(dim=2, keepdim=True)  # (5)
    cosines = {}
    for count in (1, 4, 16, 100):
        cosines[count] = float((recover_by_averaging(reports[:count]) * truth.double()).sum(1).mean())
        assert cosines[count] == pytest.approx(1 / math.sqrt(1 + sigma**2 * 512 / count), abs=0.02)
    assert cosines[1] < 0.45 < 0.97 < cosines[100]
    torch.testing.assert_close(recover_by_averaging(reports, directions=False), reports.double().mean(0))
    with pytest.raises(SelfsameError, match="shape"):
        recover_by_averaging(truth)


def world(clients, dim, class_of=None):
    class_of = torch.arange(clients) if class_of is None else class_of
    return World(clients, int(class_of.max()) + 1, dim, class_of)


def one(purpose):
    return Stream.named(0, purpose, torch.zeros(1, dtype=torch.long))


def begin(method, of):
    everyone = torch.arange(of.clients)
    own = method.begin_own(of, everyone, Stream.named(0, "own", everyone))
    return own, method.begin_server(of, one("server")), method.begin_head(of, one("head"))


def test_audit_of_fedhide():
    method, of = FedHide(alpha=0.01, neighbours=5), world(60, 128, torch.arange(60) // 2)
    result = audit(method, *begin(method, of), of, one("audit"))
    assert result.paper is not None and result.paper < 0.1  # the first table is random
    assert result.recovered == 1
    assert result.recovered_cosine == pytest.approx(1, abs=0.01)
    assert "alpha" in result.how
    some = audit(method, *begin(method, of), of, one("audit"), sample=7)
    assert (some.paper, some.recovered) == (result.paper, 1)


@pytest.mark.parametrize(("method", "single"), [(FedGN(sigma=0.3), 0.21), (FedCS(cosine=0.2), 0.2)])
def test_audit_of_noise(method, single):
    of = world(40, 256)
    cosines = [audit(method, *begin(method, of), of, one("audit"), reports=t).recovered_cosine for t in (1, 32)]
    assert cosines[0] == pytest.approx(single, abs=0.03)
    assert cosines[1] > 0.7


def test_audit_of_fedmetric():
    method, of = FedMetric(scale=2.0), world(20, 32)
    own, server, head = begin(method, of)
    before = audit(method, own, server, head, of, one("audit"))
    assert (before.paper, before.recovered) == (0, 0)  # nobody has reported
    own = {"centre": 5 + Stream.named(0, "c", torch.arange(20)).normal(32), "radius": torch.full((20,), 8.0)}
    few, many = (audit(method, own, server, head, of, one("audit"), reports=t) for t in (1, 200))
    assert few.recovered is not None and few.recovered < 1  # the offset is 16 long, centres are about 8 apart
    assert many.recovered == 1
    assert "200" in many.how


@dataclass
class Bare:
    """As much of a method as an audit of the plain cases needs."""

    table: torch.Tensor | None
    name: str = "bare"
    row: str = "class"

    def exposed(self, server, head):
        return self.table

    def truth(self, own, server, head):
        return torch.eye(5)


def test_audit_where_there_is_nothing_to_attack():
    of = world(5, 5)
    shown = audit(Bare(torch.eye(5)), {}, {}, {}, of, one("audit"))
    assert (shown.paper, shown.recovered, shown.recovered_cosine, shown.cosine_mean) == (1, 1, 1, 1)
    assert "themselves" in shown.how
    hidden = audit(Bare(None), {}, {}, {}, of, one("audit"))
    assert (hidden.paper, hidden.recovered, hidden.cosine_mean) == (None, None, None)
    assert "nothing" in hidden.how
