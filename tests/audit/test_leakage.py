"""(17) and its companions recomputed with plain loops."""

import pytest
import torch

from selfsame.audit import leakage
from selfsame.audit.leakage import cosine_statistics, prototype_leakage
from selfsame.errors import SelfsameError


def cosine(a, b):
    return float(a.double() @ b.double() / (a.double().norm() * b.double().norm()))


def tables(rows=23, width=6, noise=1.0):
    generator = torch.Generator().manual_seed(0)
    truth = 3 * torch.randn(rows, width, generator=generator)
    return truth, truth + 3 * noise * torch.randn(rows, width, generator=generator)


@pytest.mark.parametrize("block", [1, 100, 1 << 24])
def test_prototype_leakage_is_equation_17(monkeypatch, block):
    monkeypatch.setattr(leakage, "_BLOCK", block)
    truth, exposed = tables()
    leaks = [max(range(23), key=lambda r: cosine(truth[r], exposed[c])) == c for c in range(23)]
    assert 0 < sum(leaks) < 23
    assert prototype_leakage(truth, exposed) == pytest.approx(sum(leaks) / 23)
    some = torch.tensor([1, 5, 8])
    assert prototype_leakage(truth, exposed, some) == pytest.approx(sum(leaks[r] for r in some.tolist()) / 3)


def test_length_does_not_count_and_zero_rows_expose_nothing():
    truth, exposed = tables()
    assert prototype_leakage(truth, 7 * exposed) == prototype_leakage(truth, exposed)
    stretched = truth * torch.arange(1, 24)[:, None]
    assert prototype_leakage(stretched, exposed) == prototype_leakage(truth, exposed)
    assert prototype_leakage(truth, torch.zeros_like(truth)) == 0
    assert prototype_leakage(torch.zeros_like(truth), torch.zeros_like(truth)) == 0


def test_sharing_the_vectors_leaks_all_even_when_they_coincide():
    truth, _ = tables()
    assert prototype_leakage(truth, truth.clone()) == 1
    same = truth[:1].expand(5, -1).contiguous()
    assert prototype_leakage(same, same.clone()) == 1


def test_cosine_statistics():
    truth, exposed = tables()
    cosines = torch.tensor([cosine(t, e) for t, e in zip(truth, exposed)])
    mean, std = cosine_statistics(truth, exposed)
    assert mean == pytest.approx(float(cosines.mean()), abs=1e-6)
    assert std == pytest.approx(float(cosines.std(correction=0)), abs=1e-6)


def test_tables_of_different_shape_are_refused():
    truth, exposed = tables()
    with pytest.raises(SelfsameError, match="shape"):
        prototype_leakage(truth, exposed[:4])
    with pytest.raises(SelfsameError, match="shape"):
        cosine_statistics(truth[:0], exposed[:0])
