"""What leaves a device and what comes to it, for every method, written out by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from selfsame.config.recipe import from_mapping
from selfsame.data import load
from selfsame.engine import cohort, reference
from selfsame.engine.plan import Turn, make_plan
from selfsame.engine.problem import Problem, Tools
from selfsame.engine.rounds import Engine
from selfsame.engine.setup import prepare
from selfsame.engine.state import begin
from selfsame.errors import SelfsameError
from selfsame.methods import METHODS, SplitLoss
from selfsame.methods.base import Cohort, World
from selfsame.methods.fedhide import FedHide
from selfsame.methods.wire import REACH, UNIT, Bound, Sight, Wire, finite_rows, too_long, within
from selfsame.streams import Stream

SERVER, PUBLIC, DEVICE, ENCLAVE = Sight.SERVER, Sight.PUBLIC, Sight.DEVICE, Sight.ENCLAVE
PROXY = {"up": {"proxy": PUBLIC}, "down": {"proxies": PUBLIC, "proxy_classes": PUBLIC}, "own": {"prototype"}}
CLASS = {"up": {"class_embedding": SERVER}, "down": {"class_embedding": SERVER}}

# Beside the network itself, which goes both ways for everybody but DeepSVDD.
EXPECTED: dict[str, dict] = {
    "positive-only": CLASS,
    "fixed": {"down": {"class_embedding": SERVER}},
    "fixed-own": {"own": {"embedding"}},
    "softmax": {"head": {"class_matrix": PUBLIC}},
    "deepsvdd": {"own": {"centre", "started"}, "network": None},
    "fedaws": CLASS,
    "feduv": {"own": {"codeword"}},
    "feduv-negative": {"up": {"codeword": PUBLIC}, "down": {"codewords": PUBLIC}, "own": {"codeword"}},
    "fedmetric": {
        "up": {"proxy_centre": PUBLIC, "margin": PUBLIC},
        "down": {"proxy_centres": PUBLIC, "margins": PUBLIC, "proxy_classes": PUBLIC},
        "own": {"centre", "radius"},
    },
    "fedmetric-pos": {"own": {"centre"}},
    "fedmetric-true": {
        "up": {"true_centre": PUBLIC, "true_radius": PUBLIC},
        "down": {"true_centres": PUBLIC, "true_radii": PUBLIC, "centre_classes": PUBLIC},
    },
    "fedhide": PROXY,
    "fedgn": PROXY,
    "fedcs": PROXY,
    "fedcrowd": {
        "down": {"crowd_mean": PUBLIC, "crowd_second": PUBLIC, "crowd_count": PUBLIC, "sketch": PUBLIC},
        "polled": {"moments": Sight.SUM},
        "own": {"prototype", "polled"},
    },
    "fdml": {
        "up": {"embedding": ENCLAVE},
        "down": {"derivative": ENCLAVE},
        "own": {"template"},
        "network": ENCLAVE,
    },
    "fl-traditional": {"head": {"weight": PUBLIC, "bias": PUBLIC}, "own": {"template"}},
}
# A split round has other steps: tests/engine/test_split.py.
LOCAL = [name for name, kind in METHODS.items() if not issubclass(kind, SplitLoss)]
OPTIONS = {name: {"secrets": "seeded", "code_length": 31} for name in ("feduv", "feduv-negative")}


def build(name: str, steps: int = 1, **cohort) -> Problem:
    tables = {
        "method": {"name": name, **OPTIONS.get(name, {})},
        "data": {"name": "synthetic"},
        "net": {"name": "lenet", "width": 8, "channels": [4, 4]},
        "run": {"rounds": 2, "device": "cpu", "precision": "float64"},
        "local": {"steps": steps, "batch": 4, "lr": 0.01},
        "cohort": cohort,
    }
    return prepare(from_mapping(tables), load("synthetic", clients=6, samples=5, held_out=4))


def test_every_method_is_listed():
    assert set(EXPECTED) == set(METHODS)


@pytest.mark.parametrize("name", METHODS)
def test_declared_fields(name):
    wire, wanted = METHODS[name].wire, EXPECTED[name]
    for direction in ("up", "down", "head", "polled"):
        found = {field: sight for field, (sight, _, _) in getattr(wire, direction).items()}
        assert found == wanted.get(direction, {}), direction
    assert set(wire.own) == wanted.get("own", set())
    assert wire.model_up == wanted.get("network", SERVER)
    texts = [*wire.own.values(), *(text for part in (wire.up, wire.down, wire.head) for _, text, _ in part.values())]
    assert all(texts)


@pytest.mark.parametrize("name", METHODS)
def test_the_printed_table(name):
    wanted = EXPECTED[name]
    rows = {(field, way, sight) for field, way, sight, _ in METHODS[name].wire.rows()}
    expected = {("samples", "stays", DEVICE)} | {(field, "stays", DEVICE) for field in wanted.get("own", ())}
    if wanted.get("network", SERVER) is None:
        expected |= {("network", "stays", DEVICE)}
    else:
        expected |= {("network", "down", PUBLIC), ("network update", "up", wanted.get("network", SERVER))}
    for way in ("up", "down"):
        both = wanted.get(way, {}) | wanted.get("head", {}) | (wanted.get("polled", {}) if way == "up" else {})
        expected |= {(field, way, sight) for field, sight in both.items()}
    assert rows == expected


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("feduv", "codeword"),
        ("fedhide", "prototype"),
        ("fedgn", "prototype"),
        ("fedcs", "prototype"),
        ("fedmetric", "centre"),
        ("fedmetric", "radius"),
        ("fedmetric-pos", "centre"),
        ("deepsvdd", "centre"),
        ("fedcrowd", "prototype"),
        ("fedcrowd", "polled"),
        ("fixed-own", "embedding"),
        ("fdml", "template"),
    ],
)
def test_secrets_stay_on_the_device(name, secret):
    rows = METHODS[name].wire.rows()
    for hidden in (secret, "samples"):
        assert [(way, sight) for field, way, sight, _ in rows if field == hidden] == [("stays", DEVICE)]


WIRE = Wire(
    own={"prototype": "secret", "other": "secret"},
    up={"proxy": (PUBLIC, "shared", UNIT)},
    down={"x": (PUBLIC, "y", UNIT)},
)


def test_undeclared_and_missing_fields():
    proxy, private = torch.ones(2, 3), {"prototype": torch.ones(2, 3)}
    WIRE.check_up({"proxy": proxy}, private)
    for wrong in ({"proxy": proxy, "extra": proxy}, {}, {"prototype": proxy}, {"Proxy": proxy}):
        with pytest.raises(SelfsameError, match=r"wire: a report may hold \['proxy'\] and nothing else"):
            WIRE.check_up(wrong, private)
    WIRE.check_down({"x": proxy})
    for wrong in ({"x": proxy, "extra": proxy}, {}, {"y": proxy}):
        with pytest.raises(SelfsameError, match=r"wire: a client may be sent \['x'\] and nothing else"):
            WIRE.check_down(wrong)


@pytest.mark.parametrize(
    "alias",
    [
        lambda t: t,
        lambda t: t[1:],
        lambda t: t.T,
        lambda t: t.view(-1),
        lambda t: t.detach(),
        lambda t: t[:1].expand(4, 3),
    ],
)
def test_a_private_tensor_under_a_declared_name(alias):
    secret = torch.arange(6.0).reshape(2, 3)
    private = {"other": torch.zeros(1), "prototype": secret, "public": torch.zeros(2)}
    with pytest.raises(SelfsameError, match=r"wire: field 'proxy' is the private field 'prototype'"):
        WIRE.check_up({"proxy": alias(secret)}, private)
    WIRE.check_up({"proxy": alias(secret).clone()}, private)
    WIRE.check_up({"proxy": private["public"]}, private)  # not declared as private


def test_a_private_tensor_that_has_been_replaced_since():
    """The rows before the round, during it and after it are all private, though they have one name."""
    before, during, after = torch.zeros(2, 3), torch.ones(2, 3), torch.full((2, 3), 2.0)
    stages = [{"prototype": t} for t in (before, during, after)]
    for leak in (before, during, after):
        with pytest.raises(SelfsameError, match="private field 'prototype'"):
            WIRE.check_up({"proxy": leak}, *stages)
    WIRE.check_up({"proxy": torch.zeros(2, 3)}, *stages)


def test_nothing_is_not_a_leak():
    WIRE.check_up({"proxy": torch.zeros(0, 3)}, {"prototype": torch.zeros(0, 3)})


class Spy:
    """Records what a method is told to send, report and absorb, and what it hands over."""

    def __init__(self, problem: Problem, engine: str) -> None:
        self.up: list[set[str]] = []
        self.down: list[set[str]] = []
        self.absorbed: list[dict[str, Tensor]] = []
        self.checked: list[set[str]] = []
        self.seen_by_device: list[set[str]] = []
        spy, kind = self, type(problem.method)
        original = kind.wire

        class Watched(kind):
            def send(self, server, who):
                sent = super().send(server, who)
                spy.down.append(set(sent))
                return sent

            def loss(self, emb, mask, mine, sent, head, who):
                spy.seen_by_device.append(set(sent))
                return super().loss(emb, mask, mine, sent, head, who)

            def report(self, mine, sent, who, emb, mask, stream):
                stays, leaves = super().report(mine, sent, who, emb, mask, stream)
                assert set(stays) <= set(self.wire.own)
                spy.up.append(set(leaves))
                return stays, leaves

            def absorb(self, server, leaves, who, weight_M, lr, stream):
                spy.absorbed.append(dict(leaves))
                super().absorb(server, leaves, who, weight_M, lr, stream)

        class Watching(Wire):
            def check_up(self, leaves, *private):
                spy.checked.append(set(leaves))
                return super().check_up(leaves, *private)

        Watched.wire = Watching(**vars(original))
        method = Watched(**problem.recipe.method.options)
        problem = replace(problem, method=method, tools=Tools.of(method, False))
        self.state = begin(problem)
        Engine(problem, engine).run(self.state, make_plan(problem.recipe, 0, 2, 6))


@pytest.mark.parametrize("engine", ["cohort", "reference"])
@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("name", LOCAL)
def test_a_round_moves_the_declared_fields_only(name, steps, engine):
    problem = build(name, steps, dropout=0.3)
    spy = Spy(problem, engine)
    up, down = set(EXPECTED[name].get("up", ())), set(EXPECTED[name].get("down", ()))
    calls = int(make_plan(problem.recipe, 0, 2, 6).alive_TM.sum()) if engine == "reference" else 2
    assert spy.up == spy.checked == [up] * calls
    assert spy.down == [down] * calls
    assert [set(leaves) for leaves in spy.absorbed] == [up] * 2
    assert {frozenset(sent) for sent in spy.seen_by_device} == {frozenset(down)}
    # what the server keeps comes from declared fields, and holds no private tensor
    hidden = {t.untyped_storage().data_ptr() for t in spy.state.own.values()}
    assert not any(t.untyped_storage().data_ptr() in hidden for t in spy.state.server.values())


def leaky(problem: Problem, report=None, send=None) -> Problem:
    """The problem with a FedHide that reports or sends something else."""

    class Leaky(FedHide):
        def report(self, mine, sent, who, emb, mask, stream):
            stays, leaves = super().report(mine, sent, who, emb, mask, stream)
            return report(mine, stays, leaves, emb) if report else (stays, leaves)

        def send(self, server, who):
            return {**super().send(server, who), **(send or {})}

    method = Leaky()
    return replace(problem, method=method, tools=Tools.of(method, False))


LEAKS = {
    "an extra field": lambda mine, stays, leaves, emb: (stays, {**leaves, "prototype": leaves["proxy"]}),
    "embeddings": lambda mine, stays, leaves, emb: (stays, {**leaves, "embedding": emb}),
    "nothing": lambda mine, stays, leaves, emb: (stays, {}),
    "the prototype as proxy": lambda mine, stays, leaves, emb: (stays, {"proxy": stays["prototype"]}),
    "the working prototype": lambda mine, stays, leaves, emb: (
        {"prototype": mine["prototype"].clone()},
        {"proxy": mine["prototype"]},
    ),
}


@pytest.mark.parametrize("engine", [cohort, reference], ids=["cohort", "reference"])
@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("leak", LEAKS)
def test_engines_stop_a_method_that_leaks(leak, steps, engine):
    problem = leaky(build("fedhide", steps), LEAKS[leak])
    state = begin(problem)
    before = {name: value.clone() for name, value in state.tensors().items()}
    rate = torch.tensor(0.1)
    with pytest.raises(SelfsameError, match=r"^wire: "):
        engine.run_round(problem, state, Turn(torch.arange(3), torch.ones(3, dtype=torch.bool), rate, rate, 0))
    assert all(torch.equal(value, before[name]) for name, value in state.tensors().items())


@pytest.mark.parametrize("engine", [cohort, reference], ids=["cohort", "reference"])
def test_engines_stop_a_server_that_sends_more(engine):
    problem = leaky(build("fedhide"), send={"prototypes": torch.zeros(6, 8)})
    rate = torch.tensor(0.1)
    with pytest.raises(SelfsameError, match=r"^wire: a client may be sent"):
        engine.run_round(problem, begin(problem), Turn(torch.arange(3), torch.ones(3, dtype=torch.bool), rate, rate, 0))


def test_finite_rows():
    nan, inf = float("nan"), float("inf")
    a = torch.tensor([1.0, nan, 2.0, 3.0, 4.0])
    b = torch.zeros(5, 2, 2)
    b[3, 1, 0] = inf
    whole = torch.tensor([0, 1, 2, 3, 4])
    c = torch.tensor([[0.0], [0.0], [0.0], [0.0], [-inf]])
    assert finite_rows(a, b, whole, c).tolist() == [True, False, True, False, False]
    assert finite_rows(whole).tolist() == [True] * 5


# The longest row of each field that moves, written out by hand, in a world of 16 dimensions, 5 classes and 7 clients.
LONGEST = {
    "positive-only": ({"class_embedding": 40}, {"class_embedding": 40}),
    "fixed": ({}, {"class_embedding": 40}),
    "fixed-own": ({}, {}),
    "softmax": ({}, {}),
    "deepsvdd": ({}, {}),
    "fedaws": ({"class_embedding": 40}, {"class_embedding": 40}),
    "feduv": ({}, {}),
    "feduv-negative": ({"codeword": 4}, {"codewords": 4}),
    "fedmetric": (
        {"proxy_centre": 40 + 1.5 * 12, "margin": 2.5 * 12},
        {"proxy_centres": 40 + 1.5 * 12, "margins": 2.5 * 12, "proxy_classes": 5},
    ),
    "fedmetric-pos": ({}, {}),
    "fedmetric-true": (
        {"true_centre": 40, "true_radius": 12},
        {"true_centres": 40, "true_radii": 12, "centre_classes": 5},
    ),
    "fedhide": ({"proxy": 1}, {"proxies": 1, "proxy_classes": 5}),
    "fedgn": ({"proxy": 1}, {"proxies": 1, "proxy_classes": 5}),
    "fedcs": ({"proxy": 1}, {"proxies": 1, "proxy_classes": 5}),
    "fedcrowd": ({}, {"crowd_mean": math.sqrt(2), "crowd_second": 1, "crowd_count": 7, "sketch": 1}),
    "fdml": ({"embedding": 40}, {"derivative": 40}),
    "fl-traditional": ({}, {}),
}


@pytest.mark.parametrize("name", METHODS)
def test_every_field_that_moves_has_a_bound(name):
    method = METHODS[name]()
    assert (method.longest("up", 16, 5, 7), method.longest("down", 16, 5, 7)) == LONGEST[name]
    assert set(method.longest("head", 16, 5, 7)) == set(method.wire.head)
    moved = [(field, way) for field, way, *_ in method.wire.rows() if way != "stays" and "network" not in field]
    assert all(method.wire.bound_words(field, way) for field, way in moved)


def test_bounds_follow_from_the_options():
    ball = METHODS["fedmetric"](unit_length=True, scale=3.0).longest("down", 16, 5, 7)
    assert ball == {"proxy_centres": 1 + 3 * 2, "margins": 4 * 2, "proxy_classes": 5}
    assert METHODS["fedaws"](first_length=5.0).longest("up", 16, 5, 7) == {"class_embedding": 200}
    both = FedHide(search="clustered", negatives=3).longest("down", 16, 5, 7)
    assert both == {"proxies": 1, "proxy_classes": 5, "near_rows": 7, "drawn_rows": 7}


def test_a_field_without_a_bound_is_no_declaration():
    with pytest.raises(SelfsameError, match=r"wire: field 'x' needs \(who sees it, what it is, its Bound\)"):
        Wire(up={"x": (PUBLIC, "y")})
    with pytest.raises(SelfsameError, match="field 'x' of a poll is seen as a sum alone"):
        Wire(polled={"x": (SERVER, "y", UNIT)})
    with pytest.raises(SelfsameError, match="positive factor"):
        Bound(0.0)
    assert [str(Bound(*b)) for b in ((1.0,), (2.5, "sqrt(D)"), (1.0, "classes"))] == ["1", "2.5 sqrt(D)", "classes"]


def test_rows_beyond_their_bound():
    rows = torch.tensor([[3.0, 4.0], [0.0, 1.0], [0.0, 0.0]])
    assert torch.equal(within(rows, 2.5), torch.tensor([[1.5, 2.0], [0.0, 1.0], [0.0, 0.0]]))
    assert within(rows, 5.0) is not rows and torch.equal(within(rows, 5.0), rows)
    assert too_long(rows, 4.9) and not too_long(rows, 5.0)
    assert too_long(torch.tensor([1.0, -3.0]), 2.0) and not too_long(torch.tensor([1.0, -2.0, 2.0]), 2.0)
    assert too_long(torch.tensor([4]), 3) and too_long(torch.tensor([-2]), 3) and not too_long(torch.tensor([-1, 3]), 3)
    assert not too_long(torch.zeros(0, 3), 1.0)


@pytest.mark.parametrize("name", [name for name in LOCAL if METHODS[name].wire.up])
def test_what_an_honest_device_reports_is_within_its_bound(name):
    """Whatever its embeddings and its working fields are."""
    method, many = METHODS[name](**OPTIONS.get(name, {})), torch.arange(3)
    dim = method.width(8)
    world = World(3, 3, dim, many)
    who, stream = Cohort(many, many, many >= 0), Stream.named(0, "bounds", many)
    server = method.begin_server(world, Stream.named(0, "server", many[:1]))
    for size in (1e-9, 1.0, 1e6):
        sent = method.send({k: size * v if v.is_floating_point() else v for k, v in server.items()}, who)
        if "class_embedding" in sent:
            assert not too_long(sent["class_embedding"], REACH * dim**0.5)
        emb_MBD = size * stream.normal(4, dim)
        mask_MB = torch.ones(3, 4)
        mine = method.start(method.begin_own(world, many, stream), sent, who, emb_MBD, mask_MB)
        mine = {k: size * v if k in method.learns else v for k, v in mine.items()}
        _, leaves = method.report(mine, sent, who, 3 * emb_MBD, mask_MB, stream.fold(1))
        for field, longest in method.longest("up", dim, 3, 3).items():
            assert not too_long(leaves[field], longest), (field, size)


def test_a_method_that_breaks_its_own_bound_is_stopped():
    double = lambda mine, stays, leaves, emb: (stays, {"proxy": 2 * leaves["proxy"]})  # noqa: E731
    rate = torch.tensor(0.1)
    with pytest.raises(SelfsameError, match="wire: field 'proxy' is longer than the 1 that fedhide declares"):
        problem = leaky(build("fedhide"), double)
        turn = Turn(torch.arange(3), torch.ones(3, dtype=torch.bool), rate, rate, 0)
        reference.run_round(problem, begin(problem), turn)


def test_the_server_keeps_proxies_at_unit_length():
    """Were one of another length absorbed after all, it would weigh no more than the others."""
    method, many = FedHide(), torch.arange(2)
    server = {"proxies": torch.zeros(2, 4), "proxy_classes": many}
    rows_MD = torch.tensor([[999.0, 0, 0, 0], [0, 0, 0, 0]])
    who = Cohort(many, many, many >= 0)
    method.absorb(server, {"proxy": rows_MD}, who, torch.ones(2), 0.1, Stream.named(0, "absorb", many[:1]))
    assert server["proxies"].tolist() == [[1, 0, 0, 0], [0, 0, 0, 0]]
