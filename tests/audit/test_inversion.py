"""The pictures behind updates: every formula by plain loops, and the attack on small networks."""

import math

import pytest
import torch
from torch import nn

from selfsame.audit import inversion
from selfsame.audit.attackers import Audited
from selfsame.audit.inversion import Inversion, invert, mismatch, tensor_weights, total_variation
from selfsame.audit.picture_reader import PictureReader
from selfsame.audit.transcript import local_updates
from selfsame.config.recipe import from_mapping
from selfsame.data.federation import Samples, from_classes
from selfsame.engine.setup import prepare
from selfsame.engine.state import begin
from selfsame.errors import SelfsameError
from selfsame.methods.base import unit
from selfsame.nets import NETS

OPTIONS = {
    "feduv": {"code_length": 31, "secrets": "seeded"},
    "feduv-negative": {"code_length": 31, "secrets": "seeded"},
    "fedmetric-pos": {"reduction": "mean"},
}
SIZES = [6, 2, 4]


def problem_of(name="fedhide", precision="float64", net=None, **local):
    tables = {
        "method": {"name": name, **OPTIONS.get(name, {})},
        "data": {"name": "digits"},
        "net": net or {"name": "lenet", "channels": [6, 6]},
        "local": {"batch": 1, **local},
        "run": {"device": "cpu", "precision": precision, "compile": "off", "rounds": 4},
        "cohort": {"weights": "uniform"},
    }
    return prepare(from_mapping(tables))


class Tiny(nn.Module):
    """Two layers, of which the first shows a single picture to whoever has its gradient."""

    def __init__(self, shape, width):
        super().__init__()
        self.first, self.last = nn.Linear(math.prod(shape), 24), nn.Linear(24, width)

    def forward(self, x):
        return self.last(nn.functional.softplus(self.first(x.flatten(1))))


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setitem(NETS, "tiny", Tiny)
    return lambda name: problem_of(name, precision="float32", net={"name": "tiny", "width": 16})


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_total_variation_by_plain_loops():
    x = draw(2, 3, 2, 4, 5)
    for q in range(2):
        down, across = [], []
        for s in range(3):
            for c in range(2):
                for i in range(4):
                    for j in range(5):
                        down += [abs(float(x[q, s, c, i + 1, j] - x[q, s, c, i, j]))] if i < 3 else []
                        across += [abs(float(x[q, s, c, i, j + 1] - x[q, s, c, i, j]))] if j < 4 else []
        expected = sum(down) / len(down) + sum(across) / len(across)
        assert float(total_variation(x)[q]) == pytest.approx(expected)


@pytest.mark.parametrize("how", ["equal", "linear", "layers"])
def test_the_mismatch_by_plain_loops(how):
    grad, target = draw(2, 12, seed=1), draw(2, 12, seed=2)
    got = mismatch(grad, target, SIZES, tensor_weights(how, target, SIZES))
    for q in range(2):
        begin, product, one, other = 0, 0.0, 0.0, 0.0
        for place, size in enumerate(SIZES):
            rows = [(float(grad[q, p]), float(target[q, p])) for p in range(begin, begin + size)]
            square = sum(b * b for _, b in rows)
            weight = {"equal": 1.0, "linear": (3 - place) / 3, "layers": 1 / square}[how]
            product += weight * sum(a * b for a, b in rows)
            one += weight * sum(a * a for a, _ in rows)
            other += weight * square
            begin += size
        assert float(got[q]) == pytest.approx(1 - product / math.sqrt(one * other))
    torch.testing.assert_close(
        mismatch(3 * target, target, SIZES, tensor_weights(how, target, SIZES)), torch.zeros(2, dtype=torch.float64)
    )


def test_a_tensor_that_does_not_move_does_not_count():
    target = draw(1, 12)
    target[:, 6:8] = 0
    weight = tensor_weights("layers", target, SIZES)
    assert weight[0, 1] == 0 and bool(torch.isfinite(weight).all())


@pytest.mark.parametrize("name", ["fedhide", "fedaws", "fixed", "feduv", "feduv-negative", "fedmetric-pos", "softmax"])
@pytest.mark.parametrize(("size", "steps"), [(1, 1), (2, 1), (2, 3)])
def test_the_truth_matches_and_nothing_else_does(name, size, steps):
    """The gradient that the attacker computes of the true pictures and vectors is what the devices sent.

    Of several small steps it is all but that.
    """
    problem = problem_of(name, batch=2, steps=steps, lr=0.1 if steps == 1 else 1e-5)
    state, client_M = begin(problem), torch.arange(2 * size)
    case, x_MB = inversion._case(problem, state, client_M, size, Inversion(), {})
    who = problem.cohort(client_M, torch.ones_like(client_M, dtype=torch.bool))
    sent = problem.method.send(state.server, who)
    first = next(problem.batches(client_M, 0))
    emb = torch.stack([problem.model.embed_eager(state.theta_P, x_B) for x_B in first.x_MB])
    mine = problem.method.start({k: v[client_M] for k, v in state.own.items()}, sent, who, emb, first.mask_MB)
    unknown = {field: mine[field] for field in case.first}
    assert set(unknown) == {"prototype", "codeword", "centre"} & set(mine)
    x_QS = x_MB.unflatten(0, (2, size)).flatten(1, 2).requires_grad_()

    def gap(x_QS):
        grad_QP = inversion._gradients(problem, state.theta_P, case, sent, x_QS, unknown, size)
        return mismatch(grad_QP, case.target_QP, problem.model.layout.sizes, case.weight_QL).detach()

    assert float(gap(x_QS).max()) < (1e-9 if steps == 1 else 1e-3)
    assert float(gap(x_QS.flip(0)).min()) > 0.01


def test_the_search_begins_at_what_the_update_tells():
    problem = problem_of()
    state = begin(problem)
    case, _ = inversion._case(problem, state, torch.arange(4), 1, Inversion(restarts=2), {})
    truth = unit(state.own["prototype"][:4]).repeat_interleave(2, 0)
    assert case.first["prototype"].shape == truth.shape
    assert float((unit(case.first["prototype"]) * truth).sum(1).min()) > 0.9
    pair, _ = inversion._case(problem, state, torch.arange(4), 2, Inversion(), {})
    apart = (unit(pair.first["prototype"])[0] * unit(pair.first["prototype"])[1]).sum()
    assert 0.1 < float(apart) < 0.9  # members begin around one vector, not at it


def test_one_picture_is_seen_and_one_of_four_hardly(tiny, random_lpips):
    """The whole attack: nothing is known but the network, and the mean update of one device or of four."""
    problem = tiny("fedhide")
    state, terms = begin(problem), Inversion(iterations=60)
    alone = invert(problem, state, torch.arange(4), 1, terms, random_lpips)
    among = invert(problem, state, torch.arange(4), 4, terms, random_lpips)
    assert alone.original_GS.shape == alone.found_GS.shape == (4, 1, 1, 8, 8)
    assert among.found_GS.shape == (1, 4, 1, 8, 8)
    assert torch.equal(alone.original_GS.flatten(0, 1), among.original_GS.flatten(0, 1))
    assert alone.found.psnr > max(alone.chance.psnr, alone.unrelated.psnr, alone.blank.psnr) + 10
    assert among.found.psnr < alone.found.psnr - 8
    assert alone.found.lpips < 0.5 * alone.unrelated.lpips
    assert among.found.lpips > 1.5 * alone.found.lpips
    assert alone.chance.psnr == pytest.approx(alone.unrelated.psnr)
    assert among.chance.psnr > among.unrelated.psnr
    gaps = (alone.original_GS - alone.matched()).square().flatten(2).mean(2)
    torch.testing.assert_close(alone.found.psnr_GS, -10 * gaps.double().log10(), rtol=1e-4, atol=1e-4)


def test_a_proxy_hides_the_picture_from_those_alone_who_believe_it(tiny):
    problem = tiny("fedcs")
    state, client_M, terms = begin(problem), torch.arange(4), Inversion(iterations=60)
    proxy = local_updates(problem, state, client_M, torch.tensor(0.1, dtype=torch.float64))[2]["proxy"]
    read, believed, told = (
        invert(problem, state, client_M, 1, terms, taken=taken)
        for taken in ({}, {"prototype": proxy}, {"prototype": state.own["prototype"][:4]})
    )
    assert float(believed.mismatch_G.min()) > 20 * float(torch.cat([read.mismatch_G, told.mismatch_G]).max())
    assert min(read.found.psnr, told.found.psnr) > believed.found.psnr + 8


def test_the_others_are_of_other_classes():
    problem = problem_of()
    got = invert(problem, begin(problem), torch.tensor([0, 3]), 2, Inversion(iterations=1))
    federation = problem.federation
    rest = [client for client in range(federation.clients) if client not in (0, 3)]
    assert len(got.other_T) == 64
    for place in (0, 1, 12, 63):
        client, index = rest[place % len(rest)], place // len(rest)
        raw = federation.source.rows(torch.tensor([client]), torch.tensor([[index]]))[0, 0]
        torch.testing.assert_close(got.other_T[place], raw.double() / 255, rtol=1e-6, atol=1e-6)


def test_the_seed_decides():
    problem = problem_of()
    state, client_M = begin(problem), torch.arange(2)
    first, again, other = (
        invert(problem, state, client_M, 2, Inversion(iterations=4, seed=seed)).found_GS for seed in (0, 0, 1)
    )
    assert torch.equal(first, again)
    assert not torch.allclose(first, other, atol=1e-2)


@pytest.mark.parametrize("name", ["fedhide", "fedmetric-pos"])
def test_searches_do_not_meet(name):
    """What one finds is the same alone and among others, and the best restart is kept."""
    problem = problem_of(name, batch=2)
    state, client_M = begin(problem), torch.arange(2)
    one, two, every = (
        invert(problem, state, client_M, 1, Inversion(iterations=3, restarts=restarts, together=together))
        for restarts, together in ((1, 1), (3, 1), (3, 0))
    )
    torch.testing.assert_close(two.found_GS, every.found_GS)
    torch.testing.assert_close(two.mismatch_G, every.mismatch_G)
    assert float(two.mismatch_G[0]) <= float(one.mismatch_G[0]) + 1e-12  # its first search is among the three
    case, _ = inversion._case(problem, state, client_M, 1, Inversion(restarts=3), {})
    _, all_Q = inversion._search(problem, state, case, 1, Inversion(iterations=3), {})
    torch.testing.assert_close(every.mismatch_G, all_Q.reshape(2, 3).min(1).values)


def test_compiled_derivatives_find_the_same(tiny):
    """Two searches one after another, for which it is compiled once; the second must not find the first's pictures."""
    problem = tiny("fedhide")
    state, client_M = begin(problem), torch.arange(2)
    usual, compiled = (
        invert(problem, state, client_M, 1, Inversion(iterations=4, together=1, compile=how)) for how in ("", "eager")
    )
    torch.testing.assert_close(compiled.found_GS, usual.found_GS)
    torch.testing.assert_close(compiled.mismatch_G, usual.mismatch_G)


def test_pictures_lie_within_what_pixels_can_be():
    problem = problem_of()
    state = begin(problem)
    case, _ = inversion._case(problem, state, torch.arange(2), 1, Inversion(), {})
    x_QS, _ = inversion._search(problem, state, case, 1, Inversion(iterations=2, step=50.0), {})
    raw = x_QS * problem.federation.std[0] + problem.federation.mean[0]
    assert float(raw.min()) > -1e-6 and float(raw.max()) < 1 + 1e-6
    assert float(raw.max() - raw.min()) > 0.99


@pytest.mark.parametrize("bad", [{"iterations": 0}, {"restarts": 0}, {"variation": -1}, {"weights": "none"}])
def test_terms_are_held_to_what_they_may_be(bad):
    with pytest.raises(SelfsameError, match=f"inversion: {next(iter(bad))}"):
        Inversion(**bad)


def test_what_cannot_be_attacked_is_refused():
    problem = problem_of()
    state = begin(problem)
    with pytest.raises(SelfsameError, match="groups must be of 1 to 14"):
        invert(problem, state, size=15)
    with pytest.raises(SelfsameError, match="a group needs 3 clients"):
        invert(problem, state, torch.arange(2), 3)
    with pytest.raises(SelfsameError, match="other classes"):
        invert(problem, state, torch.arange(14), 1, Inversion(iterations=1))
    with pytest.raises(SelfsameError, match="fedhide works with prototype, not centre"):
        invert(problem, state, taken={"centre": torch.zeros(4, 32)})
    alone = problem_of("deepsvdd", net={"name": "lenet", "bias": False})
    with pytest.raises(SelfsameError, match="deepsvdd sends no updates"):
        invert(alone, begin(alone))
    tables = {"method": {"name": "fedhide"}, "data": {"name": "synthetic"}, "run": {"device": "cpu"}}
    none = Samples.none((5,), torch.float32)
    table = from_classes("rows", torch.randn(8, 5), torch.arange(8) // 2, test=none, unseen=none)
    rows = prepare(from_mapping({**tables, "net": {"name": "mlp"}}), table)
    with pytest.raises(SelfsameError, match="needs pictures"):
        invert(rows, begin(rows))


def test_groups_of_the_first_clients_by_default():
    problem = problem_of()
    got = invert(problem, begin(problem), size=3, terms=Inversion(iterations=1))
    assert got.original_GS.shape == (4, 3, 1, 8, 8) and got.found.lpips is None and got.seconds > 0


def test_the_audits_own_attacker_says_how_near_it_came():
    """Without the weights of LPIPS it judges by PSNR, of one device and of a sum."""
    problem = problem_of("fixed-own")
    case = Audited(problem, begin(problem), steps=5)
    assert PictureReader().fits(case)
    one, several = PictureReader().run(case)
    assert (one.did, one.under, several.did, several.under) == ("one update", "clear", "a sum of 4", "sums")
    assert one.identified is None and not one.vectors and "dB to the pictures" in one.said
    alone = problem_of("deepsvdd", net={"name": "lenet", "channels": [6, 6], "bias": False})
    assert not PictureReader().fits(Audited(alone, begin(alone)))  # it sends nothing
