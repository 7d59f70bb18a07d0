"""Protocols against plain loops over samples and people."""

import numpy as np
import pytest
import torch

from selfsame.config.recipe import from_mapping
from selfsame.data.federation import Samples, from_classes
from selfsame.device.thresholds import balanced
from selfsame.engine.setup import prepare
from selfsame.errors import SelfsameError
from selfsame.measure import protocols as module
from selfsame.measure.protocols import Portions, portioned_accuracy
from selfsame.methods import make

ANGLE, DISTANCE = make("fedhide", {}), make("fedmetric", {})


def plain_score(method, a, b):
    a, b = a.double(), b.double()
    return float(-(a - b).norm() if method is DISTANCE else a @ b / (a.norm() * b.norm()))


@pytest.mark.parametrize("method", [ANGLE, DISTANCE], ids=["angle", "distance"])
def test_fdml_accuracy_takes_every_sample_once_and_no_user_twice(method, monkeypatch):
    need = Portions(template=3, threshold=2, test=2, others=2)
    rng = np.random.default_rng(3)
    person = np.repeat(np.arange(6), [7, 9, 7, 8, 7, 6]) + 40  # the last has too few
    emb = torch.from_numpy(rng.normal(size=(len(person), 4)) + 2 * rng.normal(size=(6, 4))[person - 40]).float()
    seen = []
    monkeypatch.setattr(module, "balanced", lambda *sides: seen.append(sides) or balanced(*sides))
    right = portioned_accuracy(method, emb, person, np.random.default_rng(4), need)
    assert len(right) == 5 and len(seen) == 5
    assert all((len(genuine), len(impostor)) == (2, 4) for genuine, impostor in seen)
    # The same again with plain loops and the generator's own draws.
    again = np.random.default_rng(4)
    places = [again.permutation(np.flatnonzero(person == p))[:7] for p in range(40, 45)]
    for user in range(5):
        others = again.permutation([u for u in range(5) if u != user])[:4]
        own = torch.stack([emb[i] for i in places[user][:3]])
        template = (own / own.norm(dim=1, keepdim=True) if method is ANGLE else own).mean(0)
        genuine = [plain_score(method, emb[i], template) for i in places[user][3:5]]
        impostor = [plain_score(method, emb[i], template) for u in others[:2] for i in places[u][3:5]]
        assert seen[user][0] == pytest.approx(genuine, abs=1e-5)
        assert seen[user][1] == pytest.approx(impostor, abs=1e-5)
        limit = balanced(genuine, impostor).value
        hits = sum(plain_score(method, emb[i], template) >= limit for i in places[user][5:])
        hits += sum(plain_score(method, emb[i], template) < limit for u in others[2:] for i in places[u][5:])
        assert right[user] == pytest.approx(hits / 6)


def test_fdml_accuracy_says_what_it_needs():
    person = np.repeat(np.arange(30), 40)[:-30]  # the last one has ten
    with pytest.raises(SelfsameError, match="21 people with 40 samples are needed, there are 2 of 3"):
        portioned_accuracy(ANGLE, torch.zeros(1, 1), person[-90:], np.random.default_rng(0))


@pytest.mark.parametrize(("most", "said"), [(12, ["96 % of the pairs of one person are person 5's alone"]), (3, [])])
def test_a_person_who_has_most_of_the_pairs_is_named(most, said):
    counts = torch.tensor([2, 2, 2, most])
    drawn = torch.Generator().manual_seed(0)
    label = torch.repeat_interleave(torch.arange(2, 6), counts)
    unseen = Samples(torch.rand(len(label), 3, generator=drawn), label)
    x, y = torch.rand(4, 3, generator=drawn), torch.tensor([0, 0, 1, 1])
    data = from_classes("skewed", x, y, test=Samples(x[:0], y[:0]), unseen=unseen)
    problem = prepare(from_mapping({"method": {"name": "fedhide"}, "net": {"name": "mlp", "width": 3}}), data)
    bench = module.Bench(ANGLE, data, problem.world, torch.empty(0), lambda raw, client=None: raw, False, 0, 1000)
    assert list(module.PROTOCOLS["unseen pairs"](bench).notes) == said
