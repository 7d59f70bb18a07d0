"""FedUV recomputed from the paper with plain loops, and what must stay secret."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from selfsame.errors import SelfsameError
from selfsame.methods.base import Cohort, World
from selfsame.methods.bch import bch_code
from selfsame.methods.feduv import FedUV, FedUVNegative, base_vectors, scaled
from selfsame.methods.wire import Sight
from selfsame.streams import Stream

SMALL = {"code_length": 31, "secrets": "seeded"}


def world_of(classes: list[int], dim: int = 31) -> World:
    return World(clients=len(classes), classes=max(classes) + 1, dim=dim, class_of_N=torch.tensor(classes))


def register(method: FedUV, world: World, ids: list[int] | None = None, own=None, seed: int = 0) -> torch.Tensor:
    client_R = torch.arange(world.clients) if ids is None else torch.tensor(ids)
    return method.begin_own(world, client_R, Stream.named(seed, "own", client_R), own)["codeword"]


def cohort(world: World, alive: list[bool] | None = None) -> Cohort:
    client_M = torch.arange(world.clients)
    return Cohort(client_M, world.class_of_N, torch.tensor(alive or [True] * world.clients))


def distances(v_RD: torch.Tensor) -> list[int]:
    rows = v_RD.tolist()
    return [sum(a != b for a, b in zip(rows[i], rows[j])) for i in range(len(rows)) for j in range(i)]


def correlation(v: list[float], z: list[float]) -> float:
    """(1/c) v . sigma(z), number by number."""
    norm = math.sqrt(sum(value * value for value in z))
    return sum(a * b * math.sqrt(len(z)) / norm for a, b in zip(v, z)) / len(z)


def batch(world: World, samples: int = 3, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    emb = torch.randn(world.clients, samples, world.dim, dtype=torch.float64, generator=generator)
    mask = torch.ones(world.clients, samples, dtype=torch.float64)
    mask[0, -1] = 0
    return emb, mask


# --- base vectors and codewords


@given(
    st.integers(1, 64).flatmap(lambda bits: st.tuples(st.just(bits), st.sets(st.integers(0, 2**bits - 1), max_size=50)))
)
def test_base_vectors_are_unique(case):
    bits, ids = case
    rows = base_vectors(np.array(sorted(ids), dtype=np.uint64), bits)
    assert rows.shape == (len(ids), bits)
    assert len({tuple(row) for row in rows.tolist()}) == len(ids)


def test_base_vectors_use_up_a_short_space():
    assert len({tuple(row) for row in base_vectors(np.arange(256), 8).tolist()}) == 256


def test_a_base_vector_does_not_depend_on_who_else_is_there():
    assert (base_vectors(np.arange(100), 32)[[7, 93]] == base_vectors(np.array([7, 93]), 32)).all()


@pytest.mark.parametrize(
    ("length", "k", "issued"),
    [(7, 4, 2), (15, 11, 5), (31, 16, 8), (63, 36, 18), (127, 64, 32), (255, 71, 32), (511, 67, 32)],
)
def test_the_code_chosen_for_each_length(length, k, issued):
    method = FedUV(code_length=length)
    assert (method.code.n, method.code.k, method.issued_bits) == (length, k, issued)
    assert method.width(64) == length


@pytest.mark.parametrize("secrets", ["system", "seeded"])
@pytest.mark.parametrize("length", [31, 127])
def test_codewords_are_signs_in_the_code_and_far_apart(secrets, length):
    method = FedUV(code_length=length, secrets=secrets)
    v = register(method, world_of(list(range(20)), length))
    assert v.shape == (20, length)
    assert v.dtype == torch.float32
    assert set(v.unique().tolist()) == {-1.0, 1.0}
    bits = (v.numpy() > 0).astype(np.uint8)
    assert (method.code.encode(bits[:, : method.code.k]) == bits).all()
    assert (bits[:, : method.issued_bits] == base_vectors(np.arange(20), method.issued_bits)).all()
    assert min(distances(v)) >= method.code.designed_distance


def test_the_full_space_of_bases_still_gives_distinct_codewords():
    v = register(FedUV(**SMALL), world_of(list(range(256))))
    assert len(v.unique(dim=0)) == 256


def test_the_secret_part_is_balanced_and_differs_between_owners():
    v = register(FedUV(), world_of(list(range(400)), 127))
    secret = v[:, 32:64]
    assert secret.mean().abs() < 0.05
    assert len(secret.unique(dim=0)) == 400


def test_system_secrets_never_repeat_and_seeded_ones_do():
    world = world_of(list(range(5)), 127)
    a, b = (register(FedUV(secrets="system"), world) for _ in range(2))
    assert (a[:, :32] == b[:, :32]).all()  # the server's part
    assert all((a[row] != b[row]).any() for row in range(5))
    a, b = (register(FedUV(secrets="seeded"), world) for _ in range(2))
    assert (a == b).all()
    assert (register(FedUV(secrets="seeded"), world, seed=1) != a).any(1).all()


def test_seeded_codewords_depend_on_neither_order_nor_company():
    world = world_of([0, 1, 2, 1, 3, 0])
    everybody = register(FedUV(**SMALL), world)
    order = [4, 0, 5, 2, 3, 1]
    assert (register(FedUV(**SMALL), world, order) == everybody[order]).all()
    for alone in (0, 1, 2, 4):
        assert (register(FedUV(**SMALL), world, [alone]) == everybody[alone]).all()


@pytest.mark.parametrize("secrets", ["system", "seeded"])
def test_joining_keeps_the_old_codewords_and_copies_the_owners(secrets):
    method = FedUV(code_length=31, secrets=secrets)
    old = register(method, world_of([0, 1, 0]))
    kept = old.clone()
    grown = world_of([0, 1, 0, 2, 1, 2])
    new = register(method, grown, [3, 4, 5], {"codeword": old})
    assert (old == kept).all()
    assert (old[0] == old[2]).all()  # one owner, two devices
    assert (new[1] == old[1]).all()
    assert (new[0] == new[2]).all()
    assert min(distances(torch.stack([old[0], old[1], new[0]]))) >= method.code.designed_distance
    assert (register(method, grown, [3], {"codeword": old[:0]}) != 0).all()


# --- the loss


def test_loss_is_equation_4():
    world = world_of([0, 1, 2, 1])
    method = FedUV(**SMALL)
    v, (emb, mask) = register(method, world), batch(world)
    got = method.loss(emb, mask, {"codeword": v}, {}, {}, cohort(world))
    for m in range(world.clients):
        terms = [max(0.0, 1 - correlation(v[m].tolist(), emb[m, b].tolist())) for b in range(3) if mask[m, b]]
        assert got[m].item() == pytest.approx(sum(terms) / len(terms), rel=1e-12)


@pytest.mark.parametrize("negative_weight", [0.0, 0.5, 3.0])
def test_negative_loss_is_equation_3(negative_weight):
    classes, reported = [0, 1, 2, 1, 3], [True, True, False, True, True]
    world = world_of(classes)
    method = FedUVNegative(**SMALL, negative_weight=negative_weight)
    v, (emb, mask) = register(method, world), batch(world)
    server = method.begin_server(world, Stream.named(0, "server", torch.arange(1)))
    leaves = method.report({"codeword": v}, {}, cohort(world), emb, mask, Stream.named(0, "r", torch.arange(5)))[1]
    method.absorb(server, leaves, cohort(world, reported), torch.ones(5), 0.1, Stream.named(0, "a", torch.arange(1)))
    got = method.loss(emb, mask, {"codeword": v}, method.send(server, cohort(world)), {}, cohort(world))
    for m in range(5):
        total, count = 0.0, 0
        for b in range(3):
            if not mask[m, b]:
                continue
            z = emb[m, b].tolist()
            others = [correlation(v[u].tolist(), z) for u in range(5) if reported[u] and classes[u] != classes[m]]
            total += max(0.0, 1 - correlation(v[m].tolist(), z)) + negative_weight * max(others)
            count += 1
        assert got[m].item() == pytest.approx(total / count, rel=1e-12)


@pytest.mark.parametrize("reporting", [[], [0], [0, 2]])
def test_without_other_owners_codewords_there_is_no_negative_term(reporting):
    """Nobody has reported, or only the owner, or only the owner's two devices."""
    world = world_of([0, 1, 0])
    plain, method = FedUV(**SMALL), FedUVNegative(**SMALL)
    v, (emb, mask) = register(plain, world), batch(world)
    table = torch.zeros_like(v)
    table[reporting] = v[reporting]
    emb.requires_grad_()
    fields = ({"codeword": v}, {"codewords": table}, {}, cohort(world))
    both = [one.loss(emb, mask, *fields)[[0, 2]] for one in (plain, method)]
    assert torch.equal(*both)
    gradients = [torch.autograd.grad(value.sum(), emb)[0] for value in both]
    assert torch.equal(*gradients)
    assert gradients[1].isfinite().all()


@pytest.mark.parametrize("method", [FedUV(**SMALL), FedUVNegative(**SMALL, negative_weight=0.7)])
def test_gradient_by_finite_differences(method):
    world = world_of([0, 1, 2])
    v, (emb, mask) = register(method, world), batch(world)
    sent = {"codewords": v}

    def total(z: torch.Tensor) -> torch.Tensor:
        return method.loss(z, mask, {"codeword": v}, sent, {}, cohort(world)).sum()

    assert torch.autograd.gradcheck(total, emb.requires_grad_())


def test_gradient_of_the_positive_term_in_closed_form():
    """d/dz of -(1/c) v . sigma(z) is -(v - (v.z/|z|^2) z) / (sqrt(c) |z|), where the hinge is active."""
    world = world_of([0])
    v, (emb, _) = register(FedUV(**SMALL), world), batch(world, samples=1)
    emb.requires_grad_()
    FedUV(**SMALL).loss(emb, torch.ones(1, 1), {"codeword": v}, {}, {}, cohort(world)).sum().backward()
    z, v0 = emb[0, 0].detach(), v[0].double()
    want = -(v0 - (v0 @ z) / (z @ z) * z) / (math.sqrt(31) * z.norm())
    torch.testing.assert_close(emb.grad[0, 0], want)


@given(st.floats(0.01, 100), st.integers(0, 30), st.floats(0.1, 2))
def test_lemma_1_zero_loss_only_along_the_codeword(length, place, push):
    world = world_of([0])
    method = FedUV(**SMALL)
    v = register(method, world).double()

    def loss(z: torch.Tensor) -> float:
        return method.loss(z[None, None], torch.ones(1, 1), {"codeword": v}, {}, {}, cohort(world)).item()

    assert loss(length * v[0]) == pytest.approx(0, abs=1e-12)
    bent = v[0].clone()
    bent[place] -= push * bent[place]
    assert loss(length * bent) > 1e-5
    assert loss(-length * v[0]) == pytest.approx(2)


def test_theorem_1_at_zero_loss_others_are_as_far_as_the_code_says():
    world = world_of(list(range(12)))
    method = FedUVNegative(**SMALL)
    v = register(method, world).double()
    loss = method.loss(v[:, None], torch.ones(12, 1), {"codeword": v}, {"codewords": v}, {}, cohort(world))
    assert loss.max().item() <= 1 - 2 * method.code.designed_distance / 31 + 1e-12


@pytest.mark.parametrize("weight", [0.1, 1.0])
def test_theorem_1_fails_off_the_codewords(weight):
    """At z = v the positive term is flat along the sphere and the negative one is not: beside v their sum is less."""
    world = world_of([0, 1])
    method = FedUVNegative(**SMALL, negative_weight=weight)
    v, w = register(method, world).double().tolist()
    agree = correlation(v, w)
    assert -1 < agree < 1
    away = [a - 0.1 * weight * (b - agree * a) for a, b in zip(v, w)]  # from w, along the sphere

    def loss(z):
        return max(0.0, 1 - correlation(v, z)) + weight * correlation(w, z)

    assert loss(away) < loss(v) - 1e-4 * weight and correlation(v, away) < 1
    table = torch.tensor([v, w], dtype=torch.float64)
    emb = torch.tensor([[away], [v]], dtype=torch.float64)  # the second owner's sample is of no interest
    got = method.loss(emb, torch.ones(2, 1), {"codeword": table}, {"codewords": table}, {}, cohort(world))
    assert got[0].item() == pytest.approx(loss(away), rel=1e-12)


def test_a_zero_embedding_and_an_empty_batch_do_no_harm():
    world = world_of([0, 1])
    for method in (FedUV(**SMALL), FedUVNegative(**SMALL)):
        v, emb = register(method, world), torch.zeros(2, 2, 31, requires_grad=True)
        loss = method.loss(
            emb, torch.tensor([[1.0, 1.0], [0, 0]]), {"codeword": v}, {"codewords": v}, {}, cohort(world)
        )
        assert loss.tolist() == [1.0, 0.0]
        loss.sum().backward()
        assert emb.grad.isfinite().all()


@pytest.mark.parametrize("method", [FedUV(**SMALL), FedUVNegative(**SMALL)])
def test_a_device_is_a_cohort_of_one(method):
    world = world_of([0, 1, 2, 1])
    who, v, (emb, mask) = cohort(world), register(method, world), batch(world)
    server = {"codewords": v}
    together = method.loss(emb, mask, {"codeword": v}, method.send(server, who), {}, who)
    stream = Stream.named(0, "report", who.client_M)
    leaves = method.report({"codeword": v}, server, who, emb, mask, stream)[1]
    for m in range(4):
        rows = slice(m, m + 1)
        mine = method.start({"codeword": v[rows]}, server, who[rows], emb[rows], mask[rows])
        alone = method.loss(emb[rows], mask[rows], mine, method.send(server, who[rows]), {}, who[rows])
        torch.testing.assert_close(alone, together[rows])
        sole = method.report(mine, server, who[rows], emb[rows], mask[rows], Stream(stream.key_M[rows]))[1]
        assert sole.keys() == leaves.keys()
        assert all(torch.equal(sole[name], leaves[name][rows]) for name in leaves)


# --- verification


def test_score_is_equation_5():
    world = world_of([0, 1, 2])
    method = FedUV(**SMALL)
    v, (emb, _) = register(method, world), batch(world)
    got = method.score(emb[0], v.double())
    for s in range(3):
        for t in range(3):
            assert got[s, t].item() == pytest.approx(correlation(v[t].tolist(), emb[0, s].tolist()), rel=1e-12)
    assert torch.equal(method.truth({"codeword": v}, {}, {}), v)


def test_sigma_scales_to_the_root_of_the_length():
    assert scaled(torch.randn(4, 31, dtype=torch.float64)).norm(dim=-1).tolist() == pytest.approx([math.sqrt(31)] * 4)


# --- what leaves the device


def test_nothing_of_feduv_leaves():
    world = world_of([0, 1, 2])
    method = FedUV(**SMALL)
    own, (emb, mask) = {"codeword": register(method, world)}, batch(world)
    before = own["codeword"].clone()
    who, stream = cohort(world), Stream.named(0, "report", torch.arange(3))
    assert method.send({}, who) == {} == method.begin_server(world, stream) == method.begin_head(world, stream)
    mine = method.start(own, {}, who, emb, mask)
    stays, leaves = method.report(mine, {}, who, emb, mask, stream)
    method.wire.check_up(leaves, {**own, **stays})
    assert leaves == {}
    assert method.exposed({}, {}) is None
    assert torch.equal(own["codeword"], before)
    assert {name for name, _, sight, _ in method.wire.rows() if sight > Sight.DEVICE} == {"network", "network update"}
    assert ("codeword", "stays", Sight.DEVICE) in [row[:3] for row in method.wire.rows()]


def test_the_negative_term_is_declared_to_publish_codewords():
    world = world_of([0, 1, 2])
    method = FedUVNegative(**SMALL)
    own, (emb, mask) = {"codeword": register(method, world)}, batch(world)
    who, stream = cohort(world, [True, False, True]), Stream.named(0, "report", torch.arange(3))
    server = method.begin_server(world, stream)
    assert not server["codewords"].any()
    method.wire.check_down(method.send(server, who))
    stays, leaves = method.report(own, method.send(server, who), who, emb, mask, stream)
    method.wire.check_up(leaves, {**own, **stays})
    method.absorb(server, leaves, who, torch.ones(3), 0.1, stream)
    assert torch.equal(method.exposed(server, {})[[0, 2]], own["codeword"][[0, 2]])
    assert not method.exposed(server, {})[1].any()
    assert {row[:3] for row in method.wire.rows()} >= {
        ("codeword", "up", Sight.PUBLIC),
        ("codewords", "down", Sight.PUBLIC),
    }


def test_an_inflated_report_weighs_no_more_than_a_codeword():
    world = world_of([0, 1])
    method = FedUVNegative(**SMALL)
    server, stream = (
        method.begin_server(world, Stream.named(0, "s", torch.arange(1))),
        Stream.named(0, "a", torch.arange(1)),
    )
    method.absorb(server, {"codeword": register(method, world) * 1e6}, cohort(world), torch.ones(2), 0.1, stream)
    assert server["codewords"].abs().max() == 1


# --- bad input


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"secrets": "guess"}, "secrets must be one of system, seeded, got 'guess'"),
        ({"code_length": 128}, "code length must be one of"),
        ({"code_length": 127, "message_length": 65}, "nearest has 64"),
        ({"base_bits": 0}, r"base_bits must lie in \[1, 64\]"),
        ({"base_bits": 65}, r"base_bits must lie in \[1, 64\]"),
    ],
)
def test_bad_options_get_one_line(options, says):
    for method in (FedUV, FedUVNegative):
        with pytest.raises(SelfsameError, match=says) as error:
            method(**options)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf")])
def test_bad_negative_weight(weight):
    with pytest.raises(SelfsameError, match="negative_weight"):
        FedUVNegative(negative_weight=weight)


def test_too_many_classes_for_the_base_vectors():
    with pytest.raises(SelfsameError, match=r"257 classes need more than 8 base bits .*: raise code_length"):
        FedUV(**SMALL).check(world_of(list(range(257))))
    with pytest.raises(SelfsameError, match="raise base_bits"):
        register(FedUV(**SMALL, base_bits=2), world_of(list(range(5))))
    FedUV(**SMALL).check(world_of(list(range(256))))


def test_hyper_parameters_are_plain_values():
    assert dataclasses.asdict(FedUV()) == {
        "code_length": 127,
        "message_length": 0,
        "base_bits": 32,
        "secrets": "system",
    }
    assert FedUV(message_length=50).code == bch_code(127, 50)
    assert dataclasses.replace(FedUV(), code_length=255).code.k == 71
    assert "negative_weight" not in {field.name for field in dataclasses.fields(FedUV)}
