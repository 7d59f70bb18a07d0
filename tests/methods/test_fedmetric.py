"""FedMetric and its variants against the equations, recomputed with plain loops."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from selfsame.errors import SelfsameError
from selfsame.methods.base import Cohort, Fields, LocalLoss, World
from selfsame.methods.fedmetric import (
    FedMetric,
    FedMetricPos,
    FedMetricTrue,
    length,
    pairwise,
)
from selfsame.methods.wire import Sight
from selfsame.streams import Stream

DIM = 5
BATCH = 4
METHODS = [FedMetric(), FedMetricTrue(), FedMetricPos()]
SERVER_KEY = torch.zeros(1, dtype=torch.int64)


def make_world(class_of: list[int]) -> World:
    return World(len(class_of), max(class_of) + 1, DIM, torch.tensor(class_of))


def cohort(world: World, clients: list[int], dead: tuple[int, ...] = ()) -> Cohort:
    client_M = torch.tensor(clients)
    return Cohort(client_M, world.class_of_N[client_M], torch.tensor([c not in dead for c in clients]))


def streams(client_M: torch.Tensor, purpose: str = "report", seed: int = 3) -> Stream:
    return Stream.named(seed, purpose, client_M)


def double(fields: Fields) -> Fields:
    return {name: t.double() if t.is_floating_point() else t for name, t in fields.items()}


def batch(who: Cohort, purpose: str = "emb") -> tuple[torch.Tensor, torch.Tensor]:
    emb = streams(who.client_M, purpose).normal(BATCH, DIM).double()
    mask = torch.ones(len(who.client_M), BATCH, dtype=torch.float64)
    mask[0, 3] = 0
    return emb, mask


def filled(method: LocalLoss, world: World) -> Fields:
    """Server tables after every client but the last has reported, float64."""
    server = double(method.begin_server(world, streams(SERVER_KEY)))
    row_N = torch.arange(world.clients)
    for name, table in server.items():
        if table.is_floating_point():
            value = streams(row_N, name).normal(DIM).double()
            table.copy_(value if table.dim() == 2 else 1 + value[:, 0].abs())
            table[-1] = 0
    return server


def distance(a: list[float], b: list[float]) -> float:
    return math.sqrt(sum((x - y) ** 2 for x, y in zip(a, b)))


def loops_loss(
    emb: list[list[float]],
    mask: list[float],
    centre: list[float],
    table: tuple[list[list[float]], list[float], list[int]] | None,
    mine: int,
    lam: float,
    power: int,
    mean: bool,
) -> float:
    total, count = 0.0, 0
    for sample, keep in zip(emb, mask):
        if not keep:
            continue
        count += 1
        total += distance(sample, centre)
        for a, m, c in zip(*table) if table else ():
            if c != mine:
                total += lam * max(0.0, m - distance(sample, a)) ** power
    return total / count if mean else total


@pytest.mark.parametrize("class_of", [[0, 1, 2, 3, 4], [0, 1, 0, 2, 1, 0]])
@pytest.mark.parametrize("squared", [True, False])
@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("kind", [FedMetric, FedMetricTrue])
def test_loss_follows_equations_4_to_6(kind: type, reduction: str, squared: bool, class_of: list[int]) -> None:
    world = make_world(class_of)
    who = cohort(world, [2, 0, 4])
    method = kind(negative_weight=0.7, squared=squared, reduction=reduction)
    sent = method.send(filled(method, world), who)
    emb, mask = batch(who)
    mine = method.start({}, sent, who, emb, mask)
    got = method.loss(emb, mask, mine, sent, {}, who)
    table = tuple(sent[name].tolist() for name in method.wire.down)
    for m in range(3):
        used = [e for e, keep in zip(emb[m].tolist(), mask[m].tolist()) if keep]
        centre = [sum(e[i] for e in used) / len(used) for i in range(DIM)]
        torch.testing.assert_close(mine["centre"][m], torch.tensor(centre, dtype=torch.float64))
        mean, power = reduction == "mean", 2 if squared else 1
        mine_class = class_of[int(who.client_M[m])]
        want = loops_loss(emb[m].tolist(), mask[m].tolist(), centre, table, mine_class, 0.7, power, mean)
        assert got[m].item() == pytest.approx(want, rel=1e-9)


@pytest.mark.parametrize("kind", [FedMetric, FedMetricTrue, FedMetricPos])
@pytest.mark.parametrize(
    ("rate", "words"), [(1.0, "latest batch"), (0.0, "first batch, which stays"), (0.1, "drawn to the latest")]
)
def test_the_wire_tells_whose_mean_the_centre_is(kind: type, rate: float, words: str) -> None:
    method = kind(centre_rate=rate)
    told = {name: what for name, _, _, what in method.wire.rows()}
    assert words in told["true_centre" if kind is FedMetricTrue else "centre"]
    assert rate == 1 or "latest batch" not in " ".join(told.values())
    assert method.wire.of(method).bounds("up") == kind.wire.of(method).bounds("up")


def test_pos_is_equation_5_alone() -> None:
    world = make_world([0, 1, 2])
    who = cohort(world, [1, 2])
    method = FedMetricPos()
    emb, mask = batch(who)
    mine = method.start({}, {}, who, emb, mask)
    got = method.loss(emb, mask, mine, {}, {}, who)
    for m in range(2):
        want = loops_loss(emb[m].tolist(), mask[m].tolist(), mine["centre"][m].tolist(), None, 0, 0.0, 1, False)
        assert got[m].item() == pytest.approx(want, rel=1e-12)


@pytest.mark.parametrize("kind", [FedMetric, FedMetricTrue])
@pytest.mark.parametrize("squared", [True, False])
def test_clients_that_have_not_reported_repel_nobody(kind: type, squared: bool) -> None:
    """Even a sample that lies on the zero row of a client that has not reported."""
    world = make_world([0, 1, 2])
    who = cohort(world, [1])
    method = kind(squared=squared)
    emb, mask = batch(who)
    emb[0, 0] = 0
    emb.requires_grad_()
    sent = method.send(double(method.begin_server(world, streams(SERVER_KEY))), who)
    mine = method.start({}, sent, who, emb, mask)
    assert not mine["centre"].requires_grad
    loss = method.loss(emb, mask, mine, sent, {}, who)
    alone = FedMetricPos().loss(emb, mask, mine, {}, {}, who)
    assert loss.item() == alone.item()
    (got,) = torch.autograd.grad(loss.sum(), emb)
    (want,) = torch.autograd.grad(alone.sum(), emb)
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("squared", [True, False])
def test_gradients(squared: bool) -> None:
    world = make_world([0, 1, 2, 0])
    who = cohort(world, [0, 1])
    method = FedMetric(squared=squared)
    sent = method.send(filled(method, world), who)
    emb, mask = batch(who)
    mine = method.start({}, sent, who, emb, mask)
    emb.requires_grad_()
    assert torch.autograd.gradcheck(lambda e: method.loss(e, mask, mine, sent, {}, who), (emb,))


def test_gradient_is_finite_at_the_centre() -> None:
    x = torch.zeros(2, 3, requires_grad=True)
    length(x).sum().backward()
    assert x.grad is not None and not x.grad.any()
    y = torch.randn(1, 2, 3, requires_grad=True)
    pairwise(y, y.detach()[0]).sum().backward()
    assert y.grad is not None and torch.isfinite(y.grad).all()


def test_pairwise_keeps_its_digits_far_from_the_origin() -> None:
    """float32 distances of about 1 between points that are 1,000 away from zero."""
    x = streams(torch.arange(3), "x").normal(4, DIM).double()
    y = streams(torch.arange(6), "y").normal(DIM).double()
    want = (x[:, :, None] - y).norm(dim=-1)
    torch.testing.assert_close(pairwise((x + 1000).float(), (y + 1000).float()).double(), want, rtol=0, atol=1e-3)


@settings(max_examples=30)
@given(scale=st.floats(0.01, 10), seed=st.integers(0, 10**6))
def test_report_follows_algorithm_1(scale: float, seed: int) -> None:
    world = make_world([0, 1, 2])
    who = cohort(world, [2, 0])
    method = FedMetric(scale=scale)
    emb, mask = batch(who)
    final, _ = batch(who, "after")
    mine = method.start({}, {}, who, emb, mask)
    stays, leaves = method.report(mine, {}, who, final, mask, streams(who.client_M, seed=seed))
    for m in range(2):
        centre = mine["centre"][m].tolist()
        used = [e for e, keep in zip(final[m].tolist(), mask[m].tolist()) if keep]
        radius = max(distance(e, centre) for e in used)
        assert stays["radius"][m].item() == pytest.approx(radius)
        assert leaves["margin"][m].item() == pytest.approx(radius + scale * radius)
        proxy = leaves["proxy_centre"][m].tolist()
        assert distance(proxy, centre) == pytest.approx(scale * radius)
        assert all(distance(e, proxy) <= leaves["margin"][m].item() + 1e-9 for e in used), (
            "the proxy contains the true one"
        )


def test_offsets_are_uniform_on_the_sphere() -> None:
    count = 40_000
    client_M = torch.arange(count)
    who = Cohort(client_M, client_M, torch.ones(count, dtype=torch.bool))
    centre = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]).double().expand(count, DIM)
    emb = centre[:, None] + torch.tensor([1.0, 0, 0, 0, 0]).double()
    _, leaves = FedMetric(scale=2.0).report({"centre": centre}, {}, who, emb, torch.ones(count, 1), streams(client_M))
    offset = leaves["proxy_centre"] - centre
    torch.testing.assert_close(offset.mean(0), torch.zeros(DIM).double(), rtol=0, atol=0.03)
    torch.testing.assert_close(offset.T @ offset / count, 4 / DIM * torch.eye(DIM).double(), rtol=0, atol=0.03)


def test_radius_zero_does_not_hand_out_the_centre() -> None:
    who = cohort(make_world([0, 1]), [0])
    emb = torch.ones(1, 1, DIM)
    mine = FedMetric().start({}, {}, who, emb, torch.ones(1, 1))
    stays, leaves = FedMetric().report(mine, {}, who, emb, torch.ones(1, 1), streams(who.client_M))
    assert stays["centre"].any() and not leaves["proxy_centre"].any() and not leaves["margin"].any()


def test_true_shares_the_centre_and_its_wire_says_so() -> None:
    who = cohort(make_world([0, 1, 2]), [2, 0])
    method = FedMetricTrue()
    emb, mask = batch(who)
    mine = method.start({}, {}, who, emb, mask)
    stays, leaves = method.report(mine, {}, who, emb, mask, streams(who.client_M))
    assert not stays and not method.wire.own
    assert torch.equal(leaves["true_centre"], mine["centre"])
    worst = max(distance(e, mine["centre"][1].tolist()) for e in emb[1].tolist())
    assert leaves["true_radius"][1].item() == pytest.approx(worst)
    assert method.wire.up["true_centre"][0] == Sight.PUBLIC


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_wire_carries_what_is_declared(method: LocalLoss, dtype: torch.dtype) -> None:
    world = make_world([0, 1, 2])
    who = cohort(world, [2, 0])
    emb, mask = (t.to(dtype) for t in batch(who))
    own = method.begin_own(world, who.client_M, streams(who.client_M))
    sent = method.send(method.begin_server(world, streams(SERVER_KEY)), who)
    method.wire.check_down(sent)
    mine = method.start(own, sent, who, emb, mask)
    stays, leaves = method.report(mine, sent, who, emb, mask, streams(who.client_M))
    method.wire.check_up(leaves, {**own, **mine, **stays})
    assert set(own) == set(stays) == set(method.wire.own)
    assert all(value.dtype == dtype for value in (*stays.values(), *leaves.values()))
    assert method.loss(emb, mask, mine, sent, {}, who).dtype == dtype


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
def test_a_cohort_equals_its_clients_one_by_one(method: LocalLoss) -> None:
    world = make_world([0, 1, 2, 0, 3])
    who = cohort(world, [3, 1, 4])
    emb, mask = batch(who)
    sent = method.send(filled(method, world), who)
    mine = method.start({}, sent, who, emb, mask)
    loss = method.loss(emb, mask, mine, sent, {}, who)
    stays, leaves = method.report(mine, sent, who, emb, mask, streams(who.client_M))
    for m in range(3):
        one = slice(m, m + 1)
        alone = method.start({}, sent, who[one], emb[one], mask[one])
        torch.testing.assert_close(method.loss(emb[one], mask[one], alone, sent, {}, who[one]), loss[one])
        kept, left = method.report(alone, sent, who[one], emb[one], mask[one], streams(who.client_M[one]))
        for name, value in {**kept, **left}.items():
            torch.testing.assert_close(value, {**stays, **leaves}[name][one])


@pytest.mark.parametrize("method", [FedMetric(), FedMetricTrue()], ids=lambda m: m.name)
def test_absorb_replaces_the_rows_of_the_living(method: LocalLoss) -> None:
    world = make_world([0, 1, 2, 3])
    who = cohort(world, [3, 1], dead=(1,))
    server = filled(method, world)
    before = {name: table.clone() for name, table in server.items()}
    emb, mask = batch(who)
    _, leaves = method.report(method.start({}, {}, who, emb, mask), {}, who, emb, mask, streams(who.client_M))
    method.absorb(server, leaves, who, torch.ones(2), 0.1, streams(SERVER_KEY))
    for name, field in zip(list(method.wire.down)[:2], method.wire.up):
        before[name][3] = leaves[field][0]
    for name, table in server.items():
        assert torch.equal(table, before[name])
    assert method.exposed(server, {}) is server[next(iter(method.wire.down))]


def test_only_the_radius_after_training_needs_another_pass() -> None:
    assert FedMetric().needs_final_embedding and FedMetricTrue().needs_final_embedding
    assert not FedMetric(radius="before").needs_final_embedding
    assert not FedMetricPos().needs_final_embedding


def test_verification_is_euclidean() -> None:
    method = FedMetricPos()
    emb = torch.tensor([[0.0, 0.0], [3.0, 4.0]])
    template = method.template(emb)
    assert template.tolist() == [1.5, 2.0]
    torch.testing.assert_close(method.score(emb, emb), torch.tensor([[0.0, -5.0], [-5.0, 0.0]]))


def test_exposure_ratio_of_section_3_2() -> None:
    def log10(scale: float, dim: int) -> float:
        (found,) = FedMetric(scale=scale).facts(World(2, 2, dim, torch.arange(2))).values()
        return found

    assert 10 ** log10(1.0, 128) == pytest.approx(2.9e-39, rel=0.02)
    assert log10(1.0, 100_000) == pytest.approx(-100_000 * math.log10(2))
    assert log10(1e16, 100_000) == pytest.approx(-1_600_000)
    assert FedMetricTrue().facts(World(2, 2, 3, torch.arange(2))) == {}


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
def test_no_step_depends_on_values(method: LocalLoss) -> None:
    """Fake tensors have no values, so anything that a CUDA graph could not capture fails here."""
    world = make_world([0, 1, 2, 0, 3])
    who = cohort(world, [3, 1, 4])
    emb, mask = batch(who)
    server = filled(method, world)
    with FakeTensorMode() as mode:
        who = Cohort(*(mode.from_tensor(t) for t in (who.client_M, who.class_M, who.alive_M)))
        server = {name: mode.from_tensor(t) for name, t in server.items()}
        emb, mask = mode.from_tensor(emb), mode.from_tensor(mask)
        sent = method.send(server, who)
        mine = method.start({}, sent, who, emb, mask)
        assert method.loss(emb, mask, mine, sent, {}, who).shape == (3,)
        _, leaves = method.report(mine, sent, who, emb, mask, streams(who.client_M))
        method.absorb(server, leaves, who, who.alive_M.double(), 0.1, streams(who.client_M[:1]))


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (FedMetric, {"scale": 0.0}),
        (FedMetric, {"scale": math.nan}),
        (FedMetric, {"negative_weight": -0.1}),
        (FedMetric, {"radius": "later"}),
        (FedMetricTrue, {"negative_weight": math.inf}),
        (FedMetricPos, {"reduction": "max"}),
    ],
)
def test_bad_options_are_refused_in_one_line(kind: type, options: dict[str, object]) -> None:
    with pytest.raises(SelfsameError, match=next(iter(options))) as error:
        kind(**options)
    assert "\n" not in str(error.value)
