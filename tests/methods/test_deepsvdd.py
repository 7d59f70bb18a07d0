"""DeepSVDD against (1) of the FedMetric paper, recomputed with plain loops."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from selfsame.methods.base import Cohort, World
from selfsame.methods.deepsvdd import DeepSVDD
from selfsame.streams import Stream

DIM = 5
METHOD = DeepSVDD()
WORLD = World(4, 4, DIM, torch.arange(4))
CLIENTS = torch.tensor([2, 0, 3])
WHO = Cohort(CLIENTS, CLIENTS, torch.ones(3, dtype=torch.bool))
STREAM = Stream.named(1, "report", CLIENTS)


def batch(purpose: str = "emb") -> tuple[torch.Tensor, torch.Tensor]:
    mask = torch.ones(3, 4, dtype=torch.float64)
    mask[0, 2:] = 0
    return Stream.named(1, purpose, CLIENTS).normal(4, DIM).double(), mask


def fresh() -> dict[str, torch.Tensor]:
    own = METHOD.begin_own(WORLD, CLIENTS, STREAM)
    return {name: t.double() if t.is_floating_point() else t for name, t in own.items()}


def test_loss_follows_equation_1() -> None:
    emb, mask = batch()
    mine = METHOD.start(fresh(), {}, WHO, emb, mask)
    other, _ = batch("other")
    got = METHOD.loss(other, mask, mine, {}, {}, WHO)
    for m in range(3):
        kept = [b for b in range(4) if mask[m, b]]
        centre = [sum(emb[m, b, i].item() for b in kept) / len(kept) for i in range(DIM)]
        want = sum((other[m, b, i].item() - centre[i]) ** 2 for b in kept for i in range(DIM)) / len(kept)
        assert got[m].item() == pytest.approx(want, rel=1e-12)


def test_centre_is_fixed_at_the_first_forward_pass() -> None:
    emb, mask = batch()
    own = fresh()
    stays, leaves = METHOD.report(METHOD.start(own, {}, WHO, emb, mask), {}, WHO, emb, mask, STREAM)
    assert stays["started"].all() and not leaves
    later, _ = batch("later")
    again = METHOD.start(stays, {}, WHO, later, mask)
    assert torch.equal(again["centre"], stays["centre"])
    stays["started"][1] = False
    again = METHOD.start(stays, {}, WHO, later, mask)
    torch.testing.assert_close(again["centre"][1], later[1].mean(0))
    assert torch.equal(METHOD.truth(stays, {}, {}), stays["centre"])


def test_a_batch_without_samples_does_not_set_the_centre() -> None:
    emb, mask = batch()
    mask[1] = 0
    mine = METHOD.start(fresh(), {}, WHO, emb, mask)
    assert mine["started"].tolist() == [True, False, True]
    assert METHOD.loss(emb, mask, mine, {}, {}, WHO)[1] == 0


def test_centre_is_a_constant_of_the_gradient() -> None:
    emb, mask = batch()
    emb.requires_grad_()
    mine = METHOD.start(fresh(), {}, WHO, emb, mask)
    assert not mine["centre"].requires_grad
    (got,) = torch.autograd.grad(METHOD.loss(emb, mask, mine, {}, {}, WHO).sum(), emb)
    want = 2 * (emb - mine["centre"][:, None]) * (mask / mask.sum(1, keepdim=True))[..., None]
    torch.testing.assert_close(got, want.detach())


def test_nothing_leaves_the_device() -> None:
    emb, mask = batch()
    own = fresh()
    mine = METHOD.start(own, {}, WHO, emb, mask)
    stays, leaves = METHOD.report(mine, {}, WHO, emb, mask, STREAM)
    METHOD.wire.check_up(leaves, {**own, **mine})
    METHOD.wire.check_down(METHOD.send({}, WHO))
    assert set(stays) == set(own) == set(METHOD.wire.own)
    assert not METHOD.federated and METHOD.wire.model_up is None and METHOD.exposed({}, {}) is None
    assert all(direction == "stays" for _, direction, _, _ in METHOD.wire.rows())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_cohort_equals_its_clients_one_by_one(dtype: torch.dtype) -> None:
    emb, mask = (t.to(dtype) for t in batch())
    own = {name: t.to(dtype) if t.is_floating_point() else t for name, t in fresh().items()}
    mine = METHOD.start(own, {}, WHO, emb, mask)
    loss = METHOD.loss(emb, mask, mine, {}, {}, WHO)
    assert loss.dtype == mine["centre"].dtype == dtype
    for m in range(3):
        one = slice(m, m + 1)
        alone = METHOD.start({name: t[one] for name, t in own.items()}, {}, WHO[one], emb[one], mask[one])
        torch.testing.assert_close(alone["centre"], mine["centre"][one])
        torch.testing.assert_close(METHOD.loss(emb[one], mask[one], alone, {}, {}, WHO[one]), loss[one])


def test_score_is_the_negative_squared_distance() -> None:
    emb = torch.tensor([[0.0, 0.0], [3.0, 4.0]])
    torch.testing.assert_close(METHOD.score(emb, emb[:1]), torch.tensor([[0.0], [-25.0]]))
    assert METHOD.template(emb).tolist() == [1.5, 2.0]


def test_no_step_depends_on_values() -> None:
    """Fake tensors have no values, so anything that a CUDA graph could not capture fails here."""
    emb, mask = batch()
    own = fresh()
    with FakeTensorMode() as mode:
        own = {name: mode.from_tensor(t) for name, t in own.items()}
        emb, mask = mode.from_tensor(emb), mode.from_tensor(mask)
        who = Cohort(*(mode.from_tensor(t) for t in (WHO.client_M, WHO.class_M, WHO.alive_M)))
        mine = METHOD.start(own, {}, who, emb, mask)
        assert METHOD.loss(emb, mask, mine, {}, {}, who).shape == (3,)
        METHOD.report(mine, {}, who, emb, mask, STREAM)
