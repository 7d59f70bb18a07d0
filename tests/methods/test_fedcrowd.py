"""FedCrowd by hand: the crowd from its members in plain loops, both losses, and what polls refuse."""

import math

import pytest
import torch

from selfsame.errors import SelfsameError
from selfsame.methods import Cohort, World
from selfsame.methods.base import unit
from selfsame.methods.fedcrowd import FedCrowd
from selfsame.methods.moments import APART_SKETCHED, LONGEST, LONGEST_SKETCHED, numbers_of
from selfsame.streams import Stream

N, D, B = 12, 5, 4


def build(**options):
    """(method, own fields, server tables after a poll of everybody, cohort)"""
    method = FedCrowd(**options)
    everyone = torch.arange(N)
    world = World(N, N, D, everyone)
    own = method.begin_own(world, everyone, Stream.named(0, "own", everyone))
    server = method.begin_server(world, Stream.named(0, "server", torch.zeros(1, dtype=torch.int64)))
    own = {name: value.double() for name, value in own.items()}
    server = {name: value.double() if value.is_floating_point() else value for name, value in server.items()}
    own = method.answer_poll(own, server)
    method.take_poll(server, method.contribution(own).sum(0), N)
    return method, own, server, Cohort(everyone, everyone, torch.ones(N, dtype=torch.bool))


def batch():
    emb = torch.randn(N, B, D, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    mask = torch.ones(N, B, dtype=torch.float64)
    mask[1, 2:] = 0
    return emb, mask


def others(own, client):
    """What polls count of everybody else, one by one: the vector, and behind it the sketch."""
    return [own["polled"][other] for other in range(N) if other != client]


def dot(a, b):
    return sum(float(x) * float(y) for x, y in zip(a, b, strict=True))


def mean_and_spread(v, crowd):
    """The mean of v.u over the crowd and its variance, number by number: of whole vectors, and of sketches if any."""
    whole = [dot(v[:D], u[:D]) for u in crowd]
    narrow = [dot(v[D:], u[D:]) for u in crowd] if len(v) > D else whole
    middle = sum(narrow) / len(narrow)
    return sum(whole) / len(whole), sum((product - middle) ** 2 for product in narrow) / len(narrow)


def second_order(v, crowd, scale):
    """log n + s mean + s^2/2 variance."""
    mean, spread = mean_and_spread(v, crowd)
    return math.log(len(crowd)) + scale * mean + scale**2 / 2 * spread


def with_sketch(v, server, sketch):
    return torch.cat([v, unit(server["sketch"] @ v)]) if sketch else v


def softplus(x):
    return math.log1p(math.exp(-abs(x))) + max(x, 0)


@pytest.mark.parametrize("sketch", [0, 3])
@pytest.mark.parametrize("options", [{}, {"scale": 5.0, "margin": 0.2, "prototype_weight": 0.3}])
def test_the_softmax_loss_over_the_members(options, sketch):
    method, own, server, who = build(sketch=sketch, **options)
    emb, mask = batch()
    found = method.loss(emb, mask, own, method.send(server, who), {}, who)
    scale = options.get("scale") or math.sqrt(2 * (sketch or D))
    margin, beta = options.get("margin", 0.0), options.get("prototype_weight", 1.0)

    for client in range(N):
        w, crowd = unit(own["prototype"][client]), others(own, client)
        values = []
        for sample in range(B):
            if mask[client, sample]:
                e = unit(emb[client, sample])
                lead = scale * (dot(e, w) - margin)
                own_term = softplus(second_order(with_sketch(w, server, sketch), crowd, scale) - lead)
                crowd_term = softplus(second_order(with_sketch(e, server, sketch), crowd, scale) - lead)
                values.append(crowd_term + beta * own_term)
        assert float(found[client]) == pytest.approx(sum(values) / len(values), rel=1e-9)


def test_the_quadratic_loss_is_fedhides_over_true_prototypes():
    """(3) of FedHide, its mean over the others written out, with their prototypes for proxies."""
    method, own, server, who = build(loss_kind="quadratic", negative_weight=7.0)
    emb, mask = batch()
    found = method.loss(emb, mask, own, method.send(server, who), {}, who)
    for client in range(N):
        w = unit(own["prototype"][client])
        near = [(1 - dot(unit(emb[client, b]), w)) ** 2 for b in range(B) if mask[client, b]]
        far = [(1 + dot(w, unit(own["prototype"][other]))) ** 2 for other in range(N) if other != client]
        assert float(found[client]) == pytest.approx(sum(near) / len(near) + 7 * sum(far) / len(far), rel=1e-9)


def test_the_quadratic_loss_with_a_sketch_has_the_whole_mean_and_the_spread_of_sketches():
    method, own, server, who = build(loss_kind="quadratic", negative_weight=7.0, sketch=3)
    emb, mask = batch()
    found = method.loss(emb, mask, own, method.send(server, who), {}, who)
    for client in range(N):
        w = unit(own["prototype"][client])
        near = [(1 - dot(unit(emb[client, b]), w)) ** 2 for b in range(B) if mask[client, b]]
        mean, spread = mean_and_spread(with_sketch(w, server, 3), others(own, client))
        assert float(found[client]) == pytest.approx(sum(near) / len(near) + 7 * ((1 + mean) ** 2 + spread), rel=1e-9)


def test_a_crowd_that_points_one_way_cannot_be_left_in_the_sketch_alone():
    """Turned away in the few dimensions of the sketch, a vector is as near to the crowd's mean as before."""
    method, own, server, _ = build(sketch=3)
    same = {**own, "prototype": torch.ones(N, D, dtype=torch.float64) + 0.1 * unit(own["prototype"])}
    same = method.answer_poll(same, server)
    method.take_poll(server, method.contribution(same).sum(0), N)
    v = unit(same["prototype"][0])
    inside = server["sketch"].T @ (server["sketch"] @ v)
    turned = unit(v - 2 * inside)
    crowd = torch.stack([v, turned])[:, None]
    rows = {"polled": torch.zeros(2, D + 3, dtype=torch.float64)}
    near = method.crowd(crowd, rows, server)[:, 0]
    mean = unit(same["prototype"]).mean(0)
    spread = near - math.log(N) - method._scale(3) * (crowd[:, 0] @ mean)
    assert (spread >= -1e-9).all() and (spread < 1).all()


def test_a_gaussian_crowd_has_the_softmax_denominator_itself():
    """log of the mean of exp(s v.u) over many u is what the two moments say where the products are Gaussian."""
    draw = torch.Generator().manual_seed(0)
    u = unit(torch.randn(200_000, 64, generator=draw, dtype=torch.float64))
    v = unit(torch.randn(64, generator=draw, dtype=torch.float64))
    truth = float(torch.logsumexp(8 * u @ v, 0))
    mean, second = u.mean(0), u.T @ u / len(u)
    spread = float(v @ second @ v - (v @ mean) ** 2)
    assert math.log(len(u)) + 8 * float(v @ mean) + 32 * spread == pytest.approx(truth, abs=0.02)


def test_whoever_was_not_polled_takes_nothing_out():
    method, own, server, _ = build()
    before = method.crowd(unit(own["prototype"])[:, None], own, server)
    own = {**own, "polled": own["polled"].clone()}
    own["polled"][0] = 0
    after = method.crowd(unit(own["prototype"])[:, None], own, server)
    assert torch.equal(before[1:], after[1:])
    crowd = [unit(row) for row in own["prototype"]]  # the poll has counted it, unknown to itself
    assert float(after[0, 0]) == pytest.approx(second_order(crowd[0], crowd, math.sqrt(2 * D)))


def test_before_the_first_poll_nobody_is_pushed():
    method, own, server, _ = build()
    nothing = {name: torch.zeros_like(value) for name, value in server.items()}
    own = {**own, "polled": torch.zeros_like(own["polled"])}
    assert not method.crowd(unit(own["prototype"])[:, None], own, nothing).any()


def test_the_loss_has_its_derivative():
    """Down to the clamp, whose side does not change here."""
    method, own, server, who = build()
    emb, mask = batch()
    sent = method.send(server, who)

    def total(emb, w):
        return method.loss(emb, mask, {**own, "prototype": w}, sent, {}, who).sum()

    assert torch.autograd.gradcheck(total, (emb.requires_grad_(), own["prototype"].clone().requires_grad_()))


def test_the_sketch_has_orthonormal_rows_and_is_the_same_everywhere():
    one, two = (build(sketch=3)[2]["sketch"] for _ in range(2))
    assert torch.equal(one, two) and torch.allclose(one @ one.T, torch.eye(3, dtype=torch.float64), atol=1e-6)
    assert build()[2]["sketch"].shape == (0, D)


def test_what_is_open_is_fitted_to_the_federation():
    def fit(clients, cohort, rounds, dim=128, **options):
        method = FedCrowd(**options).fitted(World(clients, clients, dim, torch.arange(clients)), cohort, rounds)
        return method.sketch, method.every, method.scale

    assert fit(964, 64, 8000) == (128, 151, 16.0)  # ten times 964 / 64
    assert fit(964, 64, 400) == (128, 20, 16.0)  # a twentieth of the run
    assert fit(964, 64, 40) == (128, 4, 16.0)  # no more often than 256 have trained
    assert fit(100, 10, 10_000) == (50, 100, 10.0)
    assert fit(100, 10, 10_000, every=7, sketch=20, scale=3.0) == (20, 7, 3.0)


def test_what_would_be_unsafe_is_refused():
    world = World(10, 10, 8, torch.arange(10))
    FedCrowd(sketch=5).check(world)
    with pytest.raises(SelfsameError, match=r"hides nobody among fewer than 12 devices, and there are 10.*at most 5"):
        FedCrowd(sketch=6).check(world)
    with pytest.raises(SelfsameError, match="sketch must not exceed the embedding width 8"):
        FedCrowd(sketch=9).check(World(100, 100, 8, torch.arange(100)))
    terms = FedCrowd(sketch=5, every=3, noise=0.5).poll(8)
    assert (terms.every, terms.least, terms.numbers, terms.noise) == (3, 10, numbers_of(5, beside=8), 0.5)
    assert (terms.longest, terms.apart) == (LONGEST_SKETCHED, APART_SKETCHED)
    assert FedCrowd(sketch=8).poll(8).longest == FedCrowd().poll(8).longest == LONGEST
    assert [terms.due(t) for t in range(4)] == [True, False, False, True] and terms.count(7) == 3
