"""What leaves a device and what comes to it, for every method, written out by hand."""

from __future__ import annotations

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
from selfsame.methods.fedhide import FedHide
from selfsame.methods.wire import Sight, Wire, finite_rows

torch.set_num_threads(1)  # the tensors are tiny

SERVER, PUBLIC, DEVICE, ENCLAVE = Sight.SERVER, Sight.PUBLIC, Sight.DEVICE, Sight.ENCLAVE
PROXY = {"up": {"proxy": PUBLIC}, "down": {"proxies": PUBLIC, "proxy_classes": PUBLIC}, "own": {"prototype"}}
CLASS = {"up": {"class_embedding": SERVER}, "down": {"class_embedding": SERVER}}

# Beside the network itself, which goes both ways for everybody but DeepSVDD.
EXPECTED: dict[str, dict] = {
    "positive-only": CLASS,
    "fixed": {"down": {"class_embedding": SERVER}},
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
    for direction in ("up", "down", "head"):
        found = {field: sight for field, (sight, _) in getattr(wire, direction).items()}
        assert found == wanted.get(direction, {}), direction
    assert set(wire.own) == wanted.get("own", set())
    assert wire.model_up == wanted.get("network", SERVER)
    texts = [*wire.own.values(), *(text for part in (wire.up, wire.down, wire.head) for _, text in part.values())]
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
        both = wanted.get(way, {}) | wanted.get("head", {})
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
        ("fdml", "template"),
    ],
)
def test_secrets_stay_on_the_device(name, secret):
    rows = METHODS[name].wire.rows()
    for hidden in (secret, "samples"):
        assert [(way, sight) for field, way, sight, _ in rows if field == hidden] == [("stays", DEVICE)]


WIRE = Wire(own={"prototype": "secret", "other": "secret"}, up={"proxy": (PUBLIC, "shared")}, down={"x": (PUBLIC, "y")})


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

        Watched.wire = Watching(original.own, original.up, original.down, original.model_up, original.head)
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
