"""The attacker that reads the owner's vector off one client's update of the last layer."""

import math
from functools import partial

import pytest
import torch

from selfsame.audit.recovery import audit
from selfsame.audit.transcript import local_updates
from selfsame.audit.updates import can_watch, halved, over_groups, watch
from selfsame.config.recipe import from_mapping
from selfsame.data import load
from selfsame.engine.plan import Start, make_plan
from selfsame.engine.reference import client_update
from selfsame.engine.rounds import Engine
from selfsame.engine.setup import prepare
from selfsame.engine.state import begin
from selfsame.methods import METHODS
from selfsame.methods.base import pick, unit
from selfsame.methods.fedaws import FedAwS
from selfsame.methods.fedhide import FedCS, FedGN, FedHide
from selfsame.methods.fedmetric import FedMetricPos
from selfsame.methods.feduv import FedUV
from selfsame.methods.update_attack import seen_of

DIM, FEATURES = 31, 40
OPTIONS = {
    "feduv": {"code_length": 31, "secrets": "seeded"},
    "feduv-negative": {"code_length": 31, "secrets": "seeded"},
    "fedmetric": {"reduction": "mean"},
    "fedmetric-pos": {"reduction": "mean"},
    "fedmetric-true": {"reduction": "mean"},
}


def problem_of(name, clients=12, **parts):
    tables = {
        "method": {"name": name, **OPTIONS.get(name, {})},
        "data": {"name": "synthetic"},
        "local": {"batch": 4, **parts.pop("local", {})},
        "run": {"device": "cpu", "precision": "float64", "rounds": 40},
        "net": {"name": "lenet", "channels": [4, 4]},
        **parts,
    }
    return prepare(from_mapping(tables), load("synthetic", clients=clients, samples=5, held_out=2))


def trained(problem, rounds):
    state = begin(problem)
    if rounds:
        Engine(problem).run(state, make_plan(problem.recipe, 0, rounds, state.present))
    return state


def found(problem, state, group=1):
    head = problem.model.head_views(state.theta_P)
    stream = problem.server_stream("audit", 0)
    watching = partial(watch, problem, state)
    return audit(problem.method, state.own, state.server, head, problem.world, stream, watch=watching, group=group)


def layer(samples, spread, cosine, bias, seed):
    """(a vector w, a last layer W and b, features h) such that embeddings W h + b lie about this cosine from w."""
    draw = torch.Generator().manual_seed(seed)
    w = unit(torch.randn(DIM, generator=draw, dtype=torch.float64))
    other = torch.randn(DIM, generator=draw, dtype=torch.float64)
    other = unit(other - (other @ w) * w)
    middle = cosine * w + math.sqrt(1 - cosine**2) * other
    z = 3 * unit(middle + spread * unit(torch.randn(samples, DIM, generator=draw, dtype=torch.float64)))
    W = torch.randn(DIM, FEATURES, generator=draw, dtype=torch.float64)
    b = torch.randn(DIM, generator=draw, dtype=torch.float64) if bias else None
    h = (z - (0 if b is None else b)) @ torch.linalg.pinv(W).T
    # What W does not see may be anything: features are positive on the whole, as behind a rectifier.
    blind = torch.ones(FEATURES, dtype=torch.float64)
    blind = blind - torch.linalg.pinv(W) @ (W @ blind)
    return w, W, b, h + 50 * blind


def update(method, mine, W, b, h):
    """One client's update over the learning rate, by autograd."""
    W, b = W.clone().requires_grad_(), None if b is None else b.clone().requires_grad_()
    emb = h @ W.T + (0 if b is None else b)
    mask = torch.ones(1, len(h), dtype=torch.float64)
    loss = method.loss(emb[None], mask, mine, {}, {}, None).sum()
    grads = torch.autograd.grad(loss, [W] if b is None else [W, b])
    return -grads[0][None], None if b is None else -grads[1][None]


class Pull(FedHide):
    """(2) alone: (3) does not reach the embeddings."""

    def negative(self, prototype_MD, sent, who):
        return torch.zeros(len(prototype_MD), dtype=prototype_MD.dtype)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("samples", [1, 2, 16, 64])
@pytest.mark.parametrize("cosine", [0.3, 0.8])
def test_the_vector_of_a_single_update(bias, samples, cosine):
    w, W, b, h = layer(samples, 0.1, cosine, bias, samples)
    for method, mine in (
        (Pull(), {"prototype": 5 * w[None]}),
        (FedAwS(), {"class_embedding": 5 * w[None]}),
    ):
        seen = seen_of(*update(method, mine, W, b, h), W, b)
        assert float(method.attack_updates(seen)[0] @ w) > (0.9999 if samples == 1 else 0.99)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("samples", [1, 16])
def test_every_bit_of_a_codeword(bias, samples):
    method = FedUV(code_length=31, secrets="seeded")
    w, W, b, h = layer(samples, 0.2, 0.6, bias, 3)
    code = w.sign()
    seen = seen_of(*update(method, {"codeword": code[None]}, W, b, h), W, b)
    assert torch.equal(method.attack_updates(seen)[0], code)


def test_a_centre_but_for_its_part_along_the_shift():
    method = FedMetricPos(reduction="mean")
    w, W, b, h = layer(8, 0.5, 0.6, True, 4)
    centre = 2 * w
    weight, bias = update(method, {"centre": centre[None]}, W, b, h)
    gap = method.attack_updates(seen_of(weight, bias, W, b))[0] - centre
    along = unit(bias[0])
    assert float((gap - (gap @ along) * along).norm()) < 1e-9


@pytest.mark.parametrize("method", [FedHide(), FedGN(), FedCS(), FedAwS()], ids=lambda m: m.name)
def test_the_slope_that_the_attack_assumes_is_the_losss(method):
    """Minus the derivative of the loss in the cosine, by autograd, is what lies behind a single sample's update."""
    w, W, b, h = layer(1, 0.0, 0.5, True, 5)
    name = "class_embedding" if method.name == "fedaws" else "prototype"
    sent = {"proxies": unit(torch.ones(2, DIM, dtype=torch.float64)), "proxy_classes": torch.tensor([1, 2])}
    z = (h @ W.T + b).requires_grad_()
    problem = type("Who", (), {"class_M": torch.zeros(1, dtype=torch.long)})
    loss = method.loss(z[None], torch.ones(1, 1, dtype=torch.float64), {name: w[None]}, sent, {}, problem)
    (grad,) = torch.autograd.grad(loss.sum(), z)
    descent = -grad[0]
    seen = seen_of(descent[None, :, None] * h[0], descent[None], W, b)
    assert float(method.attack_updates(seen)[0] @ w) > 0.99999


def test_stacked_updates_are_what_each_device_computes():
    for name in ("fedhide", "feduv", "fedmetric", "softmax"):
        problem = problem_of(name, local={"steps": 2})
        state = trained(problem, 3)
        lr, client_M = torch.tensor(0.1, dtype=torch.float64), torch.tensor([2, 5])
        change_MP, stays, leaves = local_updates(problem, state, client_M, lr)
        for row, client in enumerate(client_M.tolist()):
            who = problem.cohort(torch.tensor([client]), torch.tensor([True]))
            sent = problem.method.send(state.server, who)
            theta, kept, left, _ = client_update(
                problem, state.theta_P, Start(who, pick(state.own, who.client_M), sent, lr, state.round)
            )
            torch.testing.assert_close(change_MP[row], theta - state.theta_P, rtol=1e-7, atol=1e-10)
            for mine, theirs in ((stays, kept), (leaves, left)):
                for field, value in theirs.items():
                    torch.testing.assert_close(mine[field][row], value[0], rtol=1e-7, atol=1e-10)


ATTACKED = ["fedhide", "fedgn", "fedcs", "fedaws", "positive-only", "fixed", "feduv", "fedmetric-pos", "fl-traditional"]


@pytest.mark.parametrize("name", ATTACKED)
def test_every_method_gives_its_owners_away(name):
    problem = problem_of(name)
    leak = found(problem, trained(problem, 0))
    assert leak.group == 1 and leak.updates >= 0.9
    assert leak.recovered == max(leak.updates, leak.recovered)


def test_every_method_is_attacked_or_says_why_not():
    public = {"softmax"}  # everybody holds the vectors themselves
    quiet = {"deepsvdd", "fdml"}  # nothing is sent, or to an enclave alone: tests/audit/test_split_updates.py
    for name in METHODS:
        problem = problem_of(name) if name not in quiet else None
        if problem is None:
            continue
        leak = found(problem, begin(problem))
        assert leak.recovered is not None and (leak.updates is not None or name in public)
    assert not can_watch(problem_of("deepsvdd", net={"bias": False}))


def test_half_precision_and_several_steps_hide_nothing():
    problem = problem_of("feduv", local={"steps": 3})
    state = trained(problem, 8)
    everyone = torch.arange(12)
    guess = problem.method.attack_updates(watch(problem, state, everyone, half=True).seen)
    assert float((guess.sign() == state.own["codeword"]).double().mean()) > 0.99


def test_half_precision_is_that_of_the_wire():
    change = torch.tensor([[1e-6, 3e-7, -2e-6], [0.0, 0.0, 0.0]], dtype=torch.float64)
    short = halved(change)
    assert float((short - change).abs().max()) <= 2e-6 * 2**-11
    assert torch.equal(short[1], change[1])


@pytest.mark.parametrize("name", ["fedhide", "feduv", "fedaws"])
def test_a_sum_gives_one_of_its_members_away_at_most(name):
    problem = problem_of(name)
    state = trained(problem, 5)
    for group in (2, 4, 12):
        leak = found(problem, state, group)
        assert leak.group == group and leak.updates <= 1 / group + 1e-9
    seen = watch(problem, state, torch.arange(12)).seen
    mean = over_groups(seen, 4)
    torch.testing.assert_close(mean.moment_MDD[1], sum(seen.moment_MDD[4:8]) / 4)
    torch.testing.assert_close(mean.shift_MD[2], sum(seen.shift_MD[8:12]) / 4)


def test_what_is_seen_is_the_whole_networks_update():
    """By plain autograd on the whole network the last layer moves by lr times what the moments are made of."""
    problem = problem_of("feduv")
    state = begin(problem)
    who = problem.cohort(torch.tensor([2]), torch.tensor([True]))
    lr = torch.tensor(0.1, dtype=torch.float64)
    start = Start(who, pick(state.own, who.client_M), {}, lr, 0)
    theta, _, _, _ = client_update(problem, state.theta_P, start)
    moved = problem.model.net_views((theta - state.theta_P) / 0.1)
    before = problem.model.net_views(state.theta_P)
    weight, bias = "head.weight", "head.bias"
    moment = moved[weight] @ before[weight].T + moved[bias][:, None] * before[bias]
    seen = watch(problem, state, torch.tensor([2])).seen
    torch.testing.assert_close(seen.moment_MDD[0], moment)
    torch.testing.assert_close(seen.shift_MD[0], moved[bias])
