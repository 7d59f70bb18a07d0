"""FedHide, FedGN and FedCS against the equations, recomputed with plain loops."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from selfsame.errors import SelfsameError
from selfsame.methods.base import Cohort, Fields, World, unit
from selfsame.methods.fedhide import FedCS, FedGN, FedHide, ProxyPrototypes
from selfsame.methods.wire import Sight
from selfsame.streams import Stream

DIM = 6
SPARING = FedHide(neighbours=3, search="clustered", clusters=3, probes=2, negatives=4)
METHODS = [FedHide(neighbours=3), SPARING, FedGN(), FedCS()]
NAMES = ["fedhide", "fedhide-sparing", "fedgn", "fedcs"]


def make_world(class_of: list[int], dim: int = DIM) -> World:
    return World(len(class_of), max(class_of) + 1, dim, torch.tensor(class_of))


def cohort(world: World, clients: list[int], dead: tuple[int, ...] = ()) -> Cohort:
    client_M = torch.tensor(clients)
    return Cohort(client_M, world.class_of_N[client_M], torch.tensor([c not in dead for c in clients]))


def streams(client_M: torch.Tensor, purpose: str = "report") -> Stream:
    return Stream.named(7, purpose, client_M)


def double(fields: Fields) -> Fields:
    return {name: t.double() if t.is_floating_point() else t for name, t in fields.items()}


def tables(method: ProxyPrototypes, world: World) -> Fields:
    return double(method.begin_server(world, streams(torch.zeros(1, dtype=torch.int64), "server")))


def setting(method: ProxyPrototypes, world: World, who: Cohort) -> tuple[Fields, Fields, torch.Tensor, torch.Tensor]:
    """(own rows of the cohort, what is sent, embeddings, mask), float64."""
    own = double(method.begin_own(world, who.client_M, streams(who.client_M, "own")))
    sent = method.send(tables(method, world), who)
    emb = streams(who.client_M, "emb").normal(4, world.dim).double()
    mask = torch.ones(len(who.client_M), 4, dtype=torch.float64)
    mask[0, 2:] = 0
    return own, sent, emb, mask


def dot(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b))


def scaled(a: list[float]) -> list[float]:
    return [x / math.sqrt(dot(a, a)) for x in a]


def loops_loss(
    lam: float,
    emb: list[list[float]],
    mask: list[float],
    w: list[float],
    proxies: list[list[float]],
    classes: list[int],
    mine: int,
) -> float:
    w = scaled(w)
    used = [scaled(e) for e, keep in zip(emb, mask) if keep]
    positive = sum((1 - dot(w, e)) ** 2 for e in used) / len(used)
    others = [p for p, c in zip(proxies, classes) if c != mine]
    return positive + lam * sum((1 + dot(w, p)) ** 2 for p in others) / len(others)


@pytest.mark.parametrize("class_of", [[0, 1, 2, 3, 4], [0, 1, 0, 2, 1, 0]])
def test_loss_follows_equations_1_to_3(class_of: list[int]) -> None:
    world = make_world(class_of)
    who = cohort(world, [2, 0, 4])
    method = FedHide(negative_weight=3.0)
    own, sent, emb, mask = setting(method, world, who)
    got = method.loss(emb, mask, own, sent, {}, who)
    for m in range(3):
        want = loops_loss(
            3.0,
            emb[m].tolist(),
            mask[m].tolist(),
            own["prototype"][m].tolist(),
            sent["proxies"].tolist(),
            class_of,
            class_of[int(who.client_M[m])],
        )
        assert got[m].item() == pytest.approx(want, rel=1e-12)


def test_the_negative_term_over_drawn_proxies_has_equation_3_as_its_mean() -> None:
    """Over all 7^2 draws that give a client another class, each as likely as the next."""
    class_of = [0, 1, 0, 2, 1, 0, 3, 2]
    world = make_world(class_of)
    method, who = FedHide(negatives=2), cohort(world, [2])
    proxies = tables(method, world)["proxies"]
    w = scaled(streams(who.client_M, "w").normal(DIM)[0].double().tolist())
    values = []
    for draw in itertools.product([row for row in range(8) if row != 2], repeat=2):
        sent = {"proxies": proxies, "proxy_classes": world.class_of_N, "drawn_rows": torch.tensor([draw])}
        value = method.negative(torch.tensor([w], dtype=torch.float64), sent, who).item()
        others = [(1 + dot(w, proxies[row].tolist())) ** 2 for row in draw if class_of[row] != 0]
        assert value == pytest.approx(sum(others) / len(others) if others else 0.0, rel=1e-12)
        if others:
            values.append(value)
    assert len(values) == 7**2 - 2**2
    others = [(1 + dot(w, proxies[row].tolist())) ** 2 for row in range(8) if class_of[row] != 0]
    assert sum(values) / len(values) == pytest.approx(sum(others) / len(others), rel=1e-12)


def test_drawn_proxies_are_uniform_among_the_others_and_new_each_round() -> None:
    world = make_world([0, 1, 2, 0, 3])
    method, who = FedHide(negatives=1000), cohort(world, [3, 0, 4])
    server = tables(method, world)
    drawn = []
    for number in range(2):
        rows = method.send(server, who)["drawn_rows"]
        for m, client in enumerate([3, 0, 4]):
            share = torch.bincount(rows[m], minlength=5) / 1000
            assert share[client] == 0
            assert (share[[row for row in range(5) if row != client]] - 0.25).abs().max() < 0.05
        drawn.append(rows)
        leaves = {"proxy": server["proxies"][who.client_M]}
        method.absorb(server, leaves, who, torch.ones(3), 0.1, Stream.named(0, "absorb", who.client_M[:1], number))
    for one, other in ((drawn[0], drawn[1]), (drawn[0][0], drawn[0][1])):
        assert (one != other).double().mean() > 0.5


def test_one_client_a_class_divides_by_classes_less_one() -> None:
    world = make_world(list(range(5)))
    who = cohort(world, [1])
    method = FedHide(negative_weight=1.0)
    own, sent, emb, mask = setting(method, world, who)
    sent["proxies"] = torch.zeros_like(sent["proxies"])  # every term of (3) is then 1
    emb = own["prototype"][:, None].expand(1, 4, DIM)  # and (2) is 0
    assert method.loss(emb, mask, own, sent, {}, who).item() == pytest.approx(1.0)


@pytest.mark.parametrize("method", [FedHide(), FedHide(negatives=3)], ids=["all", "drawn"])
def test_gradients(method: FedHide) -> None:
    world = make_world([0, 1, 2, 0])
    who = cohort(world, [0, 1])
    own, sent, emb, mask = setting(method, world, who)
    emb.requires_grad_()
    own["prototype"].requires_grad_()

    def value(e: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return method.loss(e, mask, {"prototype": w}, sent, {}, who)

    assert torch.autograd.gradcheck(value, (emb, own["prototype"]))


def loops_hide(
    alpha: float, k: int, w: list[float], proxies: list[list[float]], classes: list[int], mine: int
) -> list[float]:
    w = scaled(w)
    others = [p for p, c in zip(proxies, classes) if c != mine]
    close = sorted(others, key=lambda p: -dot(w, p))[:k]
    delegate = scaled([sum(p[i] for p in close) for i in range(len(w))])
    return scaled([alpha * a + (1 - alpha) * b for a, b in zip(w, delegate)])


@settings(max_examples=30)
@given(alpha=st.floats(0, 1), k=st.integers(1, 12), seed=st.integers(0, 10**6))
def test_fedhide_proxy_follows_equation_4(alpha: float, k: int, seed: int) -> None:
    class_of = [0, 1, 2, 0, 3, 1, 4]
    world = make_world(class_of)
    who = cohort(world, [3, 1])
    method = FedHide(alpha=alpha, neighbours=k)
    sent = {"proxies": unit(Stream.named(seed, "p", torch.arange(7)).normal(DIM).double())}
    sent["proxy_classes"] = world.class_of_N
    prototype = Stream.named(seed, "w", who.client_M).normal(DIM).double()
    _, leaves = method.report(
        {"prototype": prototype}, sent, who, prototype[:, None], torch.ones(2, 1), streams(who.client_M)
    )
    for m, client in enumerate([3, 1]):
        want = loops_hide(alpha, k, prototype[m].tolist(), sent["proxies"].tolist(), class_of, class_of[client])
        torch.testing.assert_close(leaves["proxy"][m], torch.tensor(want, dtype=torch.float64), rtol=0, atol=1e-9)


@settings(max_examples=30)
@given(k=st.integers(1, 12), probes=st.integers(1, 4), seed=st.integers(0, 10**6))
def test_clustered_proxy_follows_equation_4_among_the_near(k: int, probes: int, seed: int) -> None:
    """Near are the members of the clusters whose centres are nearest to the client's last proxy."""
    class_of = [0, 1, 2, 0, 3, 1, 4, 5, 6, 3, 2]
    world = make_world(class_of)
    who = cohort(world, [3, 1])
    method = FedHide(alpha=0.3, neighbours=k, search="clustered", clusters=4, probes=probes)
    server = tables(method, world) | {"proxies": unit(Stream.named(seed, "p", torch.arange(11)).normal(DIM).double())}
    for number in range(seed % 3):
        leaves = {"proxy": server["proxies"][who.client_M]}
        method.absorb(server, leaves, who, torch.ones(2), 0.1, Stream.named(seed, "a", who.client_M[:1], number))
    prototype = Stream.named(seed, "w", who.client_M).normal(DIM).double()
    sent = method.send(server, who)
    got = method.proxy(unit(prototype), sent, who, streams(who.client_M))
    centres, proxies = server["cluster_centres"].tolist(), server["proxies"].tolist()
    for m, client in enumerate([3, 1]):
        near = sorted(range(4), key=lambda c: -dot(proxies[client], centres[c]))[:probes]
        rows = [row for row in range(11) if int(server["cluster_seats"][row]) % 4 in near]
        if all(class_of[row] == class_of[client] for row in rows):
            assert not got[m].any(), "nobody to hide behind"
            continue
        classes = [class_of[row] for row in rows]
        want = loops_hide(0.3, k, prototype[m].tolist(), [proxies[r] for r in rows], classes, class_of[client])
        torch.testing.assert_close(got[m], torch.tensor(want, dtype=torch.float64), rtol=0, atol=1e-9)


def test_fedhide_neighbours_exclude_the_own_class() -> None:
    """A proxy of the own class on top of the prototype must not be chosen, however near it is."""
    world = make_world([0, 0, 1, 2], dim=3)
    who = cohort(world, [0])
    prototype = torch.tensor([[1.0, 0.0, 0.0]])
    proxies = torch.tensor([[1.0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]])
    sent = {"proxies": proxies, "proxy_classes": world.class_of_N}
    proxy = FedHide(alpha=0.0, neighbours=9).proxy(prototype, sent, who, streams(who.client_M))
    torch.testing.assert_close(proxy, torch.tensor([[0.0, 1.0, 1.0]]) / math.sqrt(2))


def test_fedhide_without_a_neighbour_does_not_hand_out_the_prototype() -> None:
    world = make_world([0, 0])
    who = cohort(world, [0])
    own, sent, _, _ = setting(FedHide(), world, who)
    proxy = FedHide(neighbours=2).proxy(unit(own["prototype"]), sent, who, streams(who.client_M))
    assert not proxy.any()
    zeros = sent | {"proxies": torch.zeros(2, DIM, dtype=torch.float64), "proxy_classes": torch.tensor([1, 2])}
    assert not FedHide(neighbours=2).proxy(unit(own["prototype"]), zeros, who, streams(who.client_M)).any()


@pytest.mark.parametrize("method", [FedHide(alpha=1.0), FedGN(sigma=0.0), FedCS(cosine=1.0)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_hiding_shares_the_direction_of_the_prototype(method: ProxyPrototypes, dtype: torch.dtype) -> None:
    world = make_world(list(range(5)))
    who = cohort(world, [0, 3])
    own, sent, emb, mask = setting(method, world, who)
    own = {"prototype": own["prototype"].to(dtype)}
    sent = sent | {"proxies": sent["proxies"].to(dtype)}
    _, leaves = method.report(own, sent, who, emb, mask, streams(who.client_M))
    assert leaves["proxy"].dtype == dtype
    torch.testing.assert_close(leaves["proxy"], unit(own["prototype"]))


def test_fedgn_adds_noise_of_deviation_sigma() -> None:
    client_M = torch.arange(4)
    world = make_world([0, 1, 2, 3])
    who = cohort(world, [0, 1, 2, 3])
    prototype = unit(streams(client_M, "w").normal(DIM).double())
    got = FedGN(sigma=0.3).proxy(prototype, {}, who, streams(client_M))
    noise = streams(client_M).normal(DIM).double()
    for m in range(4):
        want = scaled([w + 0.3 * n for w, n in zip(prototype[m].tolist(), noise[m].tolist())])
        torch.testing.assert_close(got[m], torch.tensor(want, dtype=torch.float64))


@settings(max_examples=30)
@given(cosine=st.floats(-1, 1), dim=st.integers(8, 512), seed=st.integers(0, 10**6))
def test_fedcs_cosine_is_exact(cosine: float, dim: int, seed: int) -> None:
    client_M = torch.arange(8)
    who = Cohort(client_M, client_M, torch.ones(8, dtype=torch.bool))
    for dtype, close in ((torch.float32, 1e-6), (torch.float64, 1e-12)):
        prototype = unit(Stream.named(seed, "w", client_M).normal(dim).to(dtype))
        proxy = FedCS(cosine=cosine).proxy(prototype, {}, who, Stream.named(seed, "r", client_M))
        assert ((proxy * prototype).sum(1) - cosine).abs().max() < close
        assert (proxy.norm(dim=1) - 1).abs().max() < close


def test_fedcs_is_uniform_around_the_prototype() -> None:
    """Mean cos w; covariance (1 - cos^2) / (D - 1) on the directions orthogonal to w."""
    count, dim, cosine = 40_000, 5, 0.5
    client_M = torch.arange(count)
    who = Cohort(client_M, client_M, torch.ones(count, dtype=torch.bool))
    w = unit(torch.tensor([1.0, -2.0, 0.5, 0.0, 3.0]).double())
    proxy = FedCS(cosine=cosine).proxy(w.expand(count, dim), {}, who, streams(client_M))
    torch.testing.assert_close(proxy.mean(0), cosine * w, rtol=0, atol=0.01)
    across = proxy - cosine * w
    want = (1 - cosine**2) / (dim - 1) * (torch.eye(dim).double() - torch.outer(w, w))
    torch.testing.assert_close(across.T @ across / count, want, rtol=0, atol=0.01)


@pytest.mark.parametrize("method", METHODS, ids=NAMES)
def test_the_wire_carries_the_proxy_and_nothing_else(method: ProxyPrototypes) -> None:
    world = make_world(list(range(5)))
    who = cohort(world, [0, 3])
    own, sent, emb, mask = setting(method, world, who)
    method.wire.check_down(sent)
    before = own["prototype"].clone()
    mine = method.start(own, sent, who, emb, mask)
    assert set(mine) == set(method.learns) == {"prototype"}
    stays, leaves = method.report(mine, sent, who, emb, mask, streams(who.client_M))
    method.wire.check_up(leaves, {**own, **mine})
    assert set(stays) == set(method.wire.own)
    assert torch.equal(stays["prototype"], before), "stored as it is, never normalised"
    torch.testing.assert_close(leaves["proxy"].norm(dim=1), torch.ones(2).double())
    assert (unit(own["prototype"]) * leaves["proxy"]).sum(1).max() < 0.9999
    assert ("prototype", "stays", Sight.DEVICE) in [row[:3] for row in method.wire.rows()]


@pytest.mark.parametrize("method", METHODS, ids=NAMES)
def test_a_cohort_equals_its_clients_one_by_one(method: ProxyPrototypes) -> None:
    world = make_world([0, 1, 2, 0, 3, 1])
    who = cohort(world, [4, 0, 3])
    own, sent, emb, mask = setting(method, world, who)
    server = tables(method, world)
    loss = method.loss(emb, mask, own, sent, {}, who)
    _, leaves = method.report(own, sent, who, emb, mask, streams(who.client_M))
    for m in range(3):
        one = slice(m, m + 1)
        alone, sent = {"prototype": own["prototype"][one]}, method.send(server, who[one])
        torch.testing.assert_close(method.loss(emb[one], mask[one], alone, sent, {}, who[one]), loss[one])
        _, left = method.report(alone, sent, who[one], emb[one], mask[one], streams(who.client_M[one]))
        torch.testing.assert_close(left["proxy"], leaves["proxy"][one])


def test_absorb_replaces_the_rows_of_the_living() -> None:
    method = FedGN()
    world = make_world(list(range(5)))
    who = cohort(world, [3, 1], dead=(1,))
    server = method.begin_server(world, streams(torch.zeros(1, dtype=torch.int64)))
    before = server["proxies"].clone()
    proxy = unit(streams(who.client_M, "p").normal(DIM))
    method.absorb(server, {"proxy": 3 * proxy}, who, torch.ones(2), 0.1, streams(torch.zeros(1, dtype=torch.int64)))
    before[3] = proxy[0]
    torch.testing.assert_close(server["proxies"], before)
    assert torch.equal(server["proxy_classes"], world.class_of_N)
    assert method.exposed(server, {}) is server["proxies"]


def test_tables_begin_as_documented() -> None:
    """Unit proxies whose rows do not depend on how many there are, N(0, I) prototypes."""
    method = FedHide()
    one = streams(torch.zeros(1, dtype=torch.int64), "server")
    small, large = make_world(list(range(5)), 64), make_world(list(range(50)), 64)
    proxies = method.begin_server(large, one)["proxies"]
    assert torch.equal(method.begin_server(small, one)["proxies"], proxies[:5])
    torch.testing.assert_close(proxies.norm(dim=1), torch.ones(50))
    assert (proxies @ proxies.T - torch.eye(50)).abs().max() < 0.7, "rows differ"
    client_R = torch.arange(50)
    prototype = method.begin_own(large, client_R, streams(client_R, "own"))["prototype"]
    assert abs(prototype.std().item() - 1) < 0.05
    torch.testing.assert_close(method.truth({"prototype": prototype}, {}, {}), unit(prototype))
    short = FedGN(first_length=0.25).begin_own(large, client_R, streams(client_R, "own"))["prototype"]
    torch.testing.assert_close(short, 0.25 * unit(prototype))


@pytest.mark.parametrize("method", METHODS, ids=NAMES)
def test_no_step_depends_on_values(method: ProxyPrototypes) -> None:
    """Fake tensors have no values, so anything that a CUDA graph could not capture fails here."""
    world = make_world([0, 1, 2, 0, 3, 1])
    who = cohort(world, [4, 0, 3])
    own, sent, emb, mask = setting(method, world, who)
    server, key = tables(method, world), streams(who.client_M[:1]).key_M
    with FakeTensorMode() as mode:

        def fake(fields: Fields) -> Fields:
            return {name: mode.from_tensor(t) for name, t in fields.items()}

        who = Cohort(*(mode.from_tensor(t) for t in (who.client_M, who.class_M, who.alive_M)))
        own, server, emb, mask = fake(own), fake(server), mode.from_tensor(emb), mode.from_tensor(mask)
        sent = method.send(server, who)
        mine = method.start(own, sent, who, emb, mask)
        assert method.loss(emb, mask, mine, sent, {}, who).shape == (3,)
        _, leaves = method.report(mine, sent, who, emb, mask, streams(who.client_M))
        method.absorb(server, leaves, who, who.alive_M.double(), 0.1, Stream(mode.from_tensor(key)))


@pytest.mark.parametrize(
    "make",
    [
        lambda: FedHide(alpha=1.5),
        lambda: FedHide(alpha=-0.1),
        lambda: FedHide(alpha=math.nan),
        lambda: FedHide(neighbours=0),
        lambda: FedHide(neighbours=2.5),  # type: ignore[arg-type]
        lambda: FedHide(negative_weight=-1.0),
        lambda: FedHide(search="some"),
        lambda: FedHide(clusters=-1),
        lambda: FedHide(probes=0),
        lambda: FedHide(refresh=0),
        lambda: FedHide(negatives=-1),
        lambda: FedHide(clusters=3).check(make_world([0, 1])),
        lambda: FedGN(sigma=-1.0),
        lambda: FedGN(sigma=math.inf),
        lambda: FedCS(cosine=1.1),
        lambda: FedCS(negative_weight=math.nan),
        lambda: FedHide().check(make_world([1, 1])),
    ],
)
def test_bad_options_are_refused_in_one_line(make: object) -> None:
    with pytest.raises(SelfsameError) as error:
        make()  # type: ignore[operator]
    assert "\n" not in str(error.value) and str(error.value).startswith("fed")


def test_more_neighbours_than_clients_is_allowed() -> None:
    FedHide(neighbours=1000).check(make_world([0, 1]))
