"""The audit: each method's own attack, set on a federation and judged."""

import math
from dataclasses import dataclass

import pytest
import torch

from selfsame.audit.recovery import audit
from selfsame.methods.base import LocalLoss, World, averaged
from selfsame.methods.fedhide import FedCS, FedGN, FedHide
from selfsame.methods.fedmetric import FedMetric
from selfsame.methods.wire import Wire
from selfsame.report.words import attacker_words
from selfsame.streams import Stream


def test_averaging_approaches_the_prototype_as_predicted():
    generator = torch.Generator().manual_seed(0)
    truth, sigma = torch.nn.functional.normalize(torch.randn(20, 512, generator=generator)), 0.1
    reports = truth + sigma * torch.randn(100, 20, 512, generator=generator)
    reports = reports / reports.norm(dim=2, keepdim=True)  # (5)
    cosines = {}
    for count in (1, 4, 16, 100):
        cosines[count] = float((averaged(reports[:count]) * truth.double()).sum(1).mean())
        assert cosines[count] == pytest.approx(1 / math.sqrt(1 + sigma**2 * 512 / count), abs=0.02)
    assert cosines[1] < 0.45 < 0.97 < cosines[100]
    torch.testing.assert_close(averaged(reports, directions=False), reports.double().mean(0))


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


@dataclass(frozen=True)
class Bare(LocalLoss):
    """As much of a method as an audit of the plain cases needs."""

    table: torch.Tensor | None = None
    row = "class"
    wire = Wire()

    def loss(self, *parts):
        raise NotImplementedError

    def exposed(self, server, head):
        return self.table

    def truth(self, own, server, head):
        return torch.eye(5)


def test_audit_where_there_is_nothing_to_attack():
    of = world(5, 5)
    shown = audit(Bare(torch.eye(5)), {}, {}, {}, of, one("audit"))
    assert (shown.paper, shown.recovered, shown.recovered_cosine, shown.cosine_mean) == (1, 1, 1, 1)
    assert "themselves" in attacker_words(shown.how, shown.paper is not None)
    hidden = audit(Bare(None), {}, {}, {}, of, one("audit"))
    assert (hidden.paper, hidden.recovered, hidden.cosine_mean) == (None, None, None)
    assert "nothing" in attacker_words(hidden.how, hidden.paper is not None)


@dataclass(frozen=True)
class Guessed(Bare):
    """A method whose file holds its own attack; it compares by distance."""

    by_angle = False

    def attack(self, scene):
        return torch.eye(5)[scene.client_M] * torch.tensor([3.0, 1, 1, 1, 0])[:, None], "guessed"


def test_a_method_brings_its_own_attack():
    for table, leak in ((None, None), (torch.eye(5), 1)):
        found = audit(Guessed(table), {}, {}, {}, world(5, 5), one("audit"))
        assert (found.paper, found.how) == (leak, "guessed")
        assert found.recovered == 0.8  # a zero vector is no finding
