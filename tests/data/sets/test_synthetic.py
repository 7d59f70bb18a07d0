"""Generated identities: any number, the same in any order, learnable but not by raw pixels."""

import time

import pytest
import torch

from selfsame.data import load


def test_a_sample_does_not_depend_on_its_company():
    fed = load("synthetic", clients=300, samples=7)
    client_M = torch.randperm(300, generator=torch.Generator().manual_seed(0))
    index_MB = torch.arange(7).expand(300, -1)
    together = fed.source.rows(client_M, index_MB)
    assert together.shape == (300, 7, 1, 8, 8) and together.dtype == torch.float32
    for place in (0, 17, 299):
        for index in (0, 6):
            alone = fed.source.rows(client_M[place : place + 1], torch.tensor([[index]]))
            assert torch.equal(alone[0, 0], together[place, index])


def test_samples_clients_and_seeds_differ():
    fed = load("synthetic", clients=4, samples=3)
    x = fed.source.rows(torch.arange(4), torch.arange(3).expand(4, -1)).flatten(0, 1)
    assert len(torch.unique(x, dim=0)) == 12
    other = load("synthetic", clients=4, samples=3, seed=1)
    assert not torch.equal(x[:1], other.source.rows(torch.tensor([0]), torch.tensor([[0]]))[0])


def test_unit_variance():
    fed = load("synthetic", clients=200)
    x = fed.source.rows(torch.arange(200), torch.arange(20).expand(200, -1))
    assert abs(float(x.mean())) < 0.1 and abs(float(x.std()) - 1) < 0.15


def test_a_million_clients_cost_next_to_nothing():
    load("synthetic", clients=10)
    start = time.perf_counter()
    fed = load("synthetic", clients=1_000_000)
    assert time.perf_counter() - start < 2.0  # about 0.1 s on an idle machine
    assert fed.clients == 1_000_000 and fed.classes == 1_000_000
    assert len(fed.test.y) == 2000 and int(fed.test.y.max()) > 990_000 and int(fed.test.y.min()) == 0
    assert fed.notes and int(fed.unseen.y.min()) == 1_000_000
    last = fed.source.rows(torch.tensor([999_999]), torch.tensor([[19]]))
    assert torch.isfinite(last).all()


def test_unequal_counts_lie_between_half_and_all():
    fed = load("synthetic", clients=500, samples=9, unequal=True)
    assert sorted(fed.count_N.unique().tolist()) == [5, 6, 7, 8, 9]
    assert load("synthetic", samples=1, unequal=True).count_N.unique().tolist() == [1]
    assert load("synthetic", samples=9).count_N.unique().tolist() == [9]


@pytest.mark.parametrize("held_out, each", [(0, 0), (3, 20), (1000, 2)])
def test_unseen_identities(held_out, each):
    fed = load("synthetic", clients=10, held_out=held_out)
    assert torch.bincount(fed.unseen.y, minlength=10)[10:].tolist() == [each] * held_out
    assert fed.unseen.x.shape == (held_out * each, 1, 8, 8)


def test_clients_of_a_class_share_the_identity_but_no_sample():
    fed = load("synthetic", clients=6, clients_per_class=3, noise=0.0, samples=50)
    assert fed.class_of_N.tolist() == [0, 0, 0, 1, 1, 1] and fed.classes == 2
    x = fed.source.rows(torch.arange(6), torch.arange(50).expand(6, -1)).flatten(2)
    assert len(torch.unique(x.flatten(0, 1), dim=0)) == 300
    mean = x.mean(1)  # the nuisance averages out, the identity stays
    apart = torch.cdist(mean, mean)
    assert float(apart[:3, :3].max()) < float(apart[:3, 3:].min())


def test_test_samples_are_not_training_samples():
    fed = load("synthetic", clients=10, samples=5)
    train = fed.source.rows(torch.arange(10), torch.arange(5).expand(10, -1)).flatten(0, 1)
    assert len(torch.unique(torch.cat([train, fed.test.x]), dim=0)) == 50 + 20


def _equal_error(emb, y):
    emb = torch.nn.functional.normalize(emb.flatten(1), dim=1)
    score, same = emb @ emb.T, y[:, None] == y[None]
    pair = torch.ones_like(same).triu(1)
    genuine, impostor = score[pair & same].sort()[0], score[pair & ~same].sort()[0]
    threshold = torch.linspace(-1, 1, 401, dtype=score.dtype)
    missed = torch.searchsorted(genuine, threshold) / len(genuine)
    taken = 1 - torch.searchsorted(impostor, threshold) / len(impostor)
    return float(torch.maximum(missed, taken).min())


def test_raw_pixels_do_not_verify_but_a_fitted_map_does():
    fed = load("synthetic", noise=0.3, held_out=40)
    raw = _equal_error(fed.unseen.x, fed.unseen.y)
    x = fed.source.rows(torch.arange(1000), torch.arange(20).expand(1000, -1)).flatten(2).double()
    within = (x - x.mean(1, keepdim=True)).flatten(0, 1)
    values, vectors = torch.linalg.eigh(within.T @ within / len(within) + 1e-3 * torch.eye(64))
    whitened = fed.unseen.x.flatten(1).double() @ vectors @ torch.diag(values.rsqrt())  # the least a learner can do
    learnt = _equal_error(whitened, fed.unseen.y)
    assert raw > 0.25 and learnt < 0.7 * raw
