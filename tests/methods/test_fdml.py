"""FDML's losses against plain loops and against the enclave's, in float64; its noise, its scores, and its baseline."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from selfsame.enclave import losses
from selfsame.enclave.losses import Loss, value_and_derivatives
from selfsame.errors import SelfsameError
from selfsame.methods import Cohort, World, fdml, make
from selfsame.methods.fdml import KINDS, Fdml, FlTraditional
from selfsame.methods.split import SplitLoss, enclave_step, joint_derivatives
from selfsame.methods.wire import Sight
from selfsame.streams import Stream

LABEL_M = torch.tensor([0, 1, 2, 2, 3, 4])  # two clients of one class
CASES = [
    {"kind": kind, "normalise": normalise, "squared": squared, "average": average}
    for kind in KINDS
    for normalise in (False, True)
    for squared in (False, True)
    for average in ("active", "all")
]


def cohort(seed: int = 0, spread: float = 1.0) -> tuple[Tensor, Tensor]:
    """Embeddings of six clients, of which one has two samples and one has none."""
    generator = torch.Generator().manual_seed(seed)
    emb_MBD = spread * torch.randn(6, 3, 4, generator=generator, dtype=torch.float64)
    mask_MB = torch.ones(6, 3, dtype=torch.float64)
    mask_MB[1, 2:] = 0
    mask_MB[4] = 0
    return emb_MBD, mask_MB


def there(emb_MBD: Tensor, mask_MB: Tensor) -> tuple[Tensor, list[int]]:
    keep = mask_MB.flatten() > 0
    return emb_MBD.flatten(0, 1)[keep], LABEL_M[:, None].expand(mask_MB.shape).flatten()[keep].tolist()


def softmax_by_loops(method: Fdml, emb: list[Tensor], label: list[int], vectors: dict[int, Tensor]) -> Tensor:
    """CosFace's (4): unit embeddings and unit class vectors, the margin off the own cosine, the mean over samples."""
    total = torch.zeros(())
    for e, own in zip(emb, label):
        e = e / (e * e).sum().sqrt()
        power = {c: torch.exp(method.logit_scale * (e @ v - method.margin * (c == own))) for c, v in vectors.items()}
        total = total - torch.log(power[own] / sum(power.values()))
    return total / len(emb)


def by_loops(method: Fdml, emb: list[Tensor], label: list[int]) -> Tensor:
    """The loss from its definition, one pair or triplet after another."""
    if method.normalise or method.kind in fdml.ON_SPHERE:
        emb = [e / (e * e).sum().sqrt() for e in emb]

    def distance(a: int, b: int) -> Tensor:
        square = ((emb[a] - emb[b]) ** 2).sum()
        return square if method.squared else square.sqrt()

    everybody = range(len(emb))
    mates = {a: [p for p in everybody if p != a and label[p] == label[a]] for a in everybody}
    others = {a: [n for n in everybody if label[n] != label[a]] for a in everybody}

    def mean(terms: list[Tensor]) -> Tensor:
        counted = [t for t in terms if method.average == "all" or t > 0]
        return sum(terms, torch.zeros(())) / max(1, len(counted))

    def hinge(a: int, p: int, n: int) -> Tensor:
        return torch.clamp(distance(a, p) - distance(a, n) + method.margin, min=0)

    if method.kind == "multi-similarity":
        total = torch.zeros(())
        for a in everybody:
            pull = sum((torch.exp(-method.alpha * (emb[a] @ emb[p] - method.base)) for p in mates[a]), torch.zeros(()))
            push = sum((torch.exp(method.beta * (emb[a] @ emb[n] - method.base)) for n in others[a]), torch.zeros(()))
            total = total + torch.log(1 + pull) / method.alpha + torch.log(1 + push) / method.beta
        return total / len(emb)
    if method.kind == "supervised-contrastive":
        shares = []
        for a in everybody:
            whole = sum((torch.exp(emb[a] @ emb[j] / method.temperature) for j in everybody if j != a), torch.zeros(()))
            logs = [torch.log(torch.exp(emb[a] @ emb[p] / method.temperature) / whole) for p in mates[a]]
            shares += [-sum(logs, torch.zeros(())) / len(logs)] if logs else []
        return sum(shares, torch.zeros(())) / len(shares)
    if method.kind == "margin-softmax":
        vectors = {c: sum(emb[j].detach() for j in everybody if label[j] == c) for c in set(label)}
        return softmax_by_loops(method, emb, label, {c: v / (v * v).sum().sqrt() for c, v in vectors.items()})
    if method.kind == "contrastive":
        together = [distance(a, p) for a in everybody for p in mates[a]]
        apart = [torch.clamp(method.margin - distance(a, n), min=0) for a in everybody for n in others[a]]
        return mean(together) + mean(apart)
    if method.kind == "batch-hard":
        hard = []
        for a in everybody:
            if mates[a] and others[a]:
                p = max(mates[a], key=lambda p, a=a: distance(a, p).item())
                n = min(others[a], key=lambda n, a=a: distance(a, n).item())
                hard.append(hinge(a, p, n))
        return mean(hard)
    terms = [(a, p, n) for a in everybody for p in mates[a] for n in others[a]]
    if method.kind == "semi-hard":
        return mean([hinge(*t) if distance(t[0], t[2]) > distance(t[0], t[1]) else torch.zeros(()) for t in terms])
    return mean([hinge(*t) for t in terms])


@pytest.mark.parametrize("options", CASES, ids=lambda o: "-".join(map(str, o.values())))
@pytest.mark.parametrize("few", [32, 0], ids=["compared", "sorted"])
def test_loss_and_derivatives_by_loops(options, few, monkeypatch):
    monkeypatch.setattr(fdml, "_FEW", few)
    method = make("fdml", {**options, "margin": 0.7, "beta": 5.0})
    emb_MBD, mask_MB = cohort()
    value, grad_MBD = joint_derivatives(method, emb_MBD, mask_MB, LABEL_M)
    emb_SD, label = there(emb_MBD, mask_MB)
    rows = [row.clone().requires_grad_() for row in emb_SD]
    wanted = by_loops(method, rows, label)
    grads = torch.stack(torch.autograd.grad(wanted, rows))
    assert wanted > 0 and float(grads.abs().max()) > 0.01
    assert float(value) == pytest.approx(wanted.item(), rel=1e-12)
    torch.testing.assert_close(there(grad_MBD, mask_MB)[0], grads, rtol=1e-10, atol=1e-13)
    assert not grad_MBD[mask_MB == 0].any()


@pytest.mark.parametrize("options", CASES, ids=lambda o: "-".join(map(str, o.values())))
@pytest.mark.parametrize("spread", [0.05, 1.0, 20.0])
def test_the_enclave_computes_the_same(options, spread):
    method = make("fdml", options)
    emb_MBD, mask_MB = cohort(1, spread)
    value, grad_MBD = joint_derivatives(method, emb_MBD, mask_MB, LABEL_M)
    emb_SD, label = there(emb_MBD, mask_MB)
    wanted, grad_SD = value_and_derivatives(emb_SD.numpy(), np.array(label), Loss(**options))
    assert float(value) == pytest.approx(wanted, rel=1e-10, abs=1e-12)
    np.testing.assert_allclose(there(grad_MBD, mask_MB)[0], grad_SD, rtol=1e-8, atol=1e-11)


def test_the_enclaves_loss_has_the_same_options():
    for option in Loss.__dataclass_fields__:
        assert option in Fdml.__dataclass_fields__
        assert Fdml.__dataclass_fields__[option].default == Loss.__dataclass_fields__[option].default


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_there_changes_nothing(kind):
    method = make("fdml", {"kind": kind})
    emb_MBD, mask_MB = cohort()
    value, grad = joint_derivatives(method, emb_MBD, mask_MB, LABEL_M)
    other = torch.where(mask_MB[..., None] > 0, emb_MBD, 1e3)
    again, grad_again = joint_derivatives(method, other, mask_MB, LABEL_M)
    assert float(again) == pytest.approx(float(value), rel=1e-9)
    torch.testing.assert_close(grad_again, grad, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("normalise", [False, True])
def test_the_order_of_clients_does_not_matter(kind, normalise):
    method = make("fdml", {"kind": kind, "normalise": normalise})
    emb_MBD, mask_MB = cohort()
    order = torch.tensor([3, 5, 0, 1, 4, 2])
    value, grad = joint_derivatives(method, emb_MBD, mask_MB, LABEL_M)
    again, moved = joint_derivatives(method, emb_MBD[order], mask_MB[order], LABEL_M[order])
    assert float(again) == pytest.approx(float(value), rel=1e-12)
    torch.testing.assert_close(moved, grad[order], rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_and_zero_embeddings_have_finite_derivatives(kind, normalise, dtype):
    method = make("fdml", {"kind": kind, "normalise": normalise})
    emb_MBD = torch.ones(4, 3, 5, dtype=dtype)
    emb_MBD[1] = 0
    emb_MBD[2, 1:] = 2.5
    value, grad = joint_derivatives(method, emb_MBD, torch.ones(4, 3, dtype=dtype), torch.arange(4))
    assert torch.isfinite(value) and torch.isfinite(grad).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("clients", [0, 1])
def test_nobody_to_compare_with(kind, clients):
    """One client alone has no negatives, and no client has nothing; neither is an error."""
    emb_MBD, _ = cohort()
    mask_MB = torch.zeros(6, 3, dtype=torch.float64)
    mask_MB[:clients] = 1
    value, grad = joint_derivatives(make("fdml", {"kind": kind}), emb_MBD, mask_MB, LABEL_M)
    assert torch.isfinite(value) and torch.isfinite(grad).all()
    if kind in ("batch-all", "semi-hard", "batch-hard"):
        assert float(value) == 0 and not grad.any()


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"kind": "triplet"}, "kind must be one of batch-all, semi-hard"),
        ({"average": "some"}, "average must be one of"),
        ({"noise": "uniform"}, "noise must be one of"),
        ({"margin": 0.0}, r"margin must lie in \(0, 1e6\]"),
        ({"margin": 1e7}, "margin"),
        ({"alpha": -1.0}, "alpha"),
        ({"beta": 0.0}, "beta"),
        ({"base": 1.5}, "base must lie in"),
        ({"temperature": 0.0}, r"temperature must lie in \[0.001, 1000\]"),
        ({"logit_scale": 0.0}, "logit_scale must lie in"),
        ({"class_lr": -1.0}, "class_lr must lie in"),
        ({"kind": "margin-softmax", "noise": "laplace"}, "noise goes with no margin-softmax"),
        ({"drop": 0.2}, "drop goes with noise"),
        ({"noise": "laplace", "drop": 1.0}, "drop"),
        ({"noise": "laplace", "scale": 0.0}, "scale"),
        ({"noise": "gaussian", "clip": -1.0}, "clip"),
        ({"margins": 1.0}, "unknown option 'margins'"),
    ],
)
def test_options_are_checked(options, word):
    with pytest.raises(SelfsameError, match=word) as caught:
        make("fdml", options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["fdml", "fl-traditional"])
def test_one_class_is_not_enough(name):
    with pytest.raises(SelfsameError, match="2 classes or more"):
        make(name, {}).check(World(3, 1, 4, torch.zeros(3, dtype=torch.int64)))


def test_what_leaves_the_device():
    rows = {(field, way): sight for field, way, sight, _ in Fdml.wire.rows()}
    assert rows == {
        ("samples", "stays"): Sight.DEVICE,
        ("template", "stays"): Sight.DEVICE,
        ("network", "down"): Sight.PUBLIC,
        ("network update", "up"): Sight.ENCLAVE,
        ("embedding", "up"): Sight.ENCLAVE,
        ("derivative", "down"): Sight.ENCLAVE,
    }
    assert Fdml().exposed({}, {}) is None


def test_class_vectors_stay_in_the_enclave():
    wire = make("fdml", {"kind": "margin-softmax"}).wire
    moved = set(wire.rows()) - set(Fdml.wire.rows())
    assert moved == {("class_vectors", "stays", Sight.ENCLAVE, "a vector of each class")}
    assert not {"class_vectors"} & {*wire.own, *wire.up, *wire.down, *wire.head}
    assert set(make("fdml", {"kind": "margin-softmax"}).begin_enclave(World(6, 5, 4, LABEL_M))) == {"class_vectors"}
    assert Fdml().begin_enclave(World(6, 5, 4, LABEL_M)) == {}


def test_no_device_has_the_loss():
    emb_MBD, mask_MB = cohort()
    who = Cohort(torch.arange(6), LABEL_M, torch.ones(6, dtype=torch.bool))
    with pytest.raises(NotImplementedError, match="joint_loss"):
        Fdml().loss(emb_MBD, mask_MB, {}, {}, {}, who)


# The enclave's class vectors


def kept_table(seed: int = 5) -> Tensor:
    """Vectors of nine classes, of which 1 and 3 (nobody's samples) and 7 have none; 5, 6 and 8 are not in the round."""
    table_CD = torch.randn(9, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    table_CD[[1, 3, 7]] = 0
    return fdml.on_sphere(table_CD)


def test_a_round_with_class_vectors_by_loops():
    """Absent classes are negatives, new ones begin at their mean, and all of them take a step and stay unit vectors."""
    method = make("fdml", {"kind": "margin-softmax", "logit_scale": 5.0, "margin": 0.3, "class_lr": 2.5})
    emb_MBD, mask_MB = cohort()
    value, grad_MBD, after = enclave_step(method, {"class_vectors": kept_table()}, emb_MBD, mask_MB, LABEL_M)
    emb_SD, label = there(emb_MBD, mask_MB)
    vectors = {c: v.clone() for c, v in enumerate(kept_table()) if v.any()}
    mean_D = sum(e / e.norm() for e, own in zip(emb_SD, label) if own == 1)
    vectors[1] = mean_D / mean_D.norm()
    assert set(vectors) == {0, 1, 2, 4, 5, 6, 8} and set(label) == {0, 1, 2, 4}
    rows = [row.clone().requires_grad_() for row in emb_SD]
    free = {c: v.requires_grad_() for c, v in vectors.items()}
    wanted = softmax_by_loops(method, rows, label, {c: v / (v * v).sum().sqrt() for c, v in free.items()})
    grads = torch.autograd.grad(wanted, [*rows, *free.values()])
    assert float(value) == pytest.approx(wanted.item(), rel=1e-12)
    torch.testing.assert_close(there(grad_MBD, mask_MB)[0], torch.stack(grads[: len(rows)]), rtol=1e-10, atol=1e-13)
    for c, got in enumerate(after["class_vectors"]):
        if c not in free:
            assert not got.any()
            continue
        moved = (free[c] - 2.5 * grads[len(rows) + [*free].index(c)]).detach()
        torch.testing.assert_close(got, moved / moved.norm(), rtol=1e-10, atol=1e-13)
        assert not torch.equal(got, vectors[c].detach())


def test_the_enclave_keeps_and_moves_the_same_class_vectors():
    options = {"kind": "margin-softmax", "class_lr": 2.5}
    emb_MBD, mask_MB = cohort()
    table = {"class_vectors": kept_table()}
    value, grad_MBD, after = enclave_step(make("fdml", options), table, emb_MBD, mask_MB, LABEL_M)
    emb_SD, label = there(emb_MBD, mask_MB)
    emb_SD, label_S, loss = emb_SD.numpy(), np.array(label), Loss(**options)
    table_CD = losses.first_vectors(emb_SD, label_S, kept_table().numpy())
    wanted, grad_SD, grad_CD = losses.margin_softmax(emb_SD, label_S, table_CD, loss)
    assert float(value) == pytest.approx(wanted, rel=1e-12)
    np.testing.assert_allclose(there(grad_MBD, mask_MB)[0], grad_SD, rtol=1e-10, atol=1e-13)
    moved_CD = losses.moved_vectors(table_CD, grad_CD, loss)
    np.testing.assert_allclose(after["class_vectors"], moved_CD, rtol=1e-10, atol=1e-13)


# Algorithm 2


def stream(clients: int = 6, seed: int = 0) -> Stream:
    return Stream.named(seed, "privacy", torch.arange(clients), 3)


def test_without_noise_nothing_is_touched():
    emb_MBD, mask_MB = cohort()
    assert Fdml().used(mask_MB, stream()) is mask_MB
    assert Fdml().released(emb_MBD, mask_MB, stream()) is emb_MBD


@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
def test_dropped_embeddings_do_not_enter_the_loss(noise):
    method = Fdml(noise=noise, drop=0.4, clip=1.0, scale=0.1)
    mask_MB = torch.ones(400, 8, dtype=torch.float64)
    mask_MB[:, 6:] = 0
    used_MB = method.used(mask_MB, stream(400))
    assert used_MB.dtype == mask_MB.dtype and not used_MB[:, 6:].any()
    assert float(used_MB[:, :6].mean()) == pytest.approx(0.6, abs=0.03)
    assert torch.equal(used_MB[:7], method.used(mask_MB[:7], stream(7)))  # a client alone draws the same
    small, alone = mask_MB[:6, :3], used_MB[:6, :3]
    emb_MBD = cohort()[0]
    _, grad = joint_derivatives(method, emb_MBD, small * alone, LABEL_M)
    assert not grad[alone == 0].any() and grad[alone > 0].any()


def test_laplace_clips_each_coordinate_and_adds_noise_of_the_scale():
    method = Fdml(noise="laplace", clip=0.5, scale=0.01)
    grad_MBD = torch.linspace(-2, 2, 200 * 8 * 16, dtype=torch.float64).reshape(200, 8, 16)
    mask_MB = torch.ones(200, 8, dtype=torch.float64)
    mask_MB[:, 7] = 0
    out = method.released(grad_MBD, mask_MB, stream(200))
    assert not out[:, 7].any()
    noise = (out - grad_MBD.clamp(-0.5, 0.5))[:, :7].flatten()
    assert float(noise.abs().mean()) == pytest.approx(0.01, rel=0.03)  # the mean size of Laplace noise is its scale
    assert float(noise.mean()) == pytest.approx(0, abs=3e-4)


def test_gaussian_clips_all_that_a_client_is_sent():
    method = Fdml(noise="gaussian", clip=1.0, scale=1e-3)
    grad_MBD = torch.randn(50, 8, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    grad_MBD[25:] *= 1e-3
    out = method.released(grad_MBD, torch.ones(50, 8, dtype=torch.float64), stream(50))
    length_M = grad_MBD.flatten(1).norm(dim=1)
    clipped = grad_MBD / length_M.clamp(min=1.0)[:, None, None]
    assert float((out - clipped).std()) == pytest.approx(1e-3, rel=0.03)
    assert (length_M > 1).sum() == 25


# Verification


def distance(a: list[float], b: list[float]) -> float:
    return math.sqrt(sum((x - y) ** 2 for x, y in zip(a, b)))


@pytest.mark.parametrize("method", [Fdml(), FlTraditional()], ids=lambda m: m.name)
def test_scores_are_distances_to_the_mean(method):
    emb = torch.randn(5, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    template = method.template(emb[:3])
    assert template.tolist() == pytest.approx([sum(column) / 3 for column in zip(*emb[:3].tolist())])
    got = method.score(emb, torch.stack([template, emb[4]]))
    for s, t in itertools.product(range(5), range(2)):
        wanted = -distance(emb[s].tolist(), [template, emb[4]][t].tolist())
        assert float(got[s, t]) == pytest.approx(wanted, abs=1e-12)
    assert not method.by_angle and method.place(emb) is emb


@pytest.mark.parametrize("options", [{"normalise": True}, *({"kind": kind} for kind in fdml.ON_SPHERE)])
def test_on_the_sphere_the_cosine_orders_as_the_distance_does(options):
    method = make("fdml", options)
    emb = torch.randn(40, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    template = method.template(emb[:5])
    unit = [[x / math.hypot(*row) for x in row] for row in emb.tolist()]
    assert template.tolist() == pytest.approx([sum(column) / 5 for column in zip(*unit[:5])])
    near = sorted(range(40), key=lambda s: distance(unit[s], template.tolist()))
    assert method.score(emb, template[None])[:, 0].argsort(descending=True).tolist() == near
    assert method.by_angle


def test_the_device_keeps_its_own_template():
    emb_MBD, mask_MB = cohort()
    who = Cohort(torch.arange(6), LABEL_M, torch.ones(6, dtype=torch.bool))
    method = Fdml()
    assert isinstance(method, SplitLoss)
    stays, leaves = method.report({}, {}, who, emb_MBD, mask_MB, stream())
    assert leaves == {"embedding": emb_MBD}
    torch.testing.assert_close(stays["template"][1], emb_MBD[1, :2].mean(0))
    assert not stays["template"][4].any()
    assert method.truth(stays, {}, {}) is stays["template"]


# FL-traditional


@pytest.mark.parametrize("replicas", [False, True])
def test_cross_entropy_by_loops(replicas):
    method = FlTraditional()
    emb_MBD, mask_MB = cohort()
    world = World(6, 5, 4, LABEL_M)
    head = {
        name: t.double() for name, t in method.begin_head(world, Stream.named(0, "head", torch.zeros(1).long())).items()
    }
    assert head["weight"].shape == (5, 4) and head["bias"].shape == (5,)
    flat = torch.cat([head["weight"].flatten(), head["bias"]])
    assert 0.3 < float(flat.abs().max()) <= 0.5 and flat.unique().numel() == 25
    who = Cohort(torch.arange(6), LABEL_M, torch.ones(6, dtype=torch.bool))
    each = {name: t.expand(6, *t.shape) for name, t in head.items()} if replicas else head
    got = method.loss(emb_MBD, mask_MB, {}, {}, each, who)
    for m in range(6):
        losses = []
        for b in range(int(mask_MB[m].sum())):
            logit = [float(head["weight"][c] @ emb_MBD[m, b] + head["bias"][c]) for c in range(5)]
            losses.append(math.log(sum(map(math.exp, logit))) - logit[int(LABEL_M[m])])
        assert float(got[m]) == pytest.approx(sum(losses) / max(1, len(losses)), abs=1e-12)


def test_the_enclave_is_told_the_whole_loss():
    loss, privacy = Fdml(margin=0.3, noise="laplace", drop=0.2).enclave_terms()
    assert loss == {part.name: getattr(Fdml(margin=0.3), part.name) for part in dataclasses.fields(Loss)}
    assert privacy == {"kind": "laplace", "drop": 0.2, "clip": 2e-5, "scale": 1e-5}
    assert Fdml().enclave_terms()[1] == {"kind": "none"}
