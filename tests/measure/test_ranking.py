"""Precision at k against plain loops, whatever the blocks, with equal scores in a fixed order."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from selfsame.data.sets.xc import MultiLabelled, Ragged
from selfsame.errors import SelfsameError
from selfsame.measure.ranking import (
    best_classes,
    label_precision,
    matrix_precision,
    places,
    places_in,
    precision,
    score_blocks,
)
from selfsame.methods import make


def ragged(lists):
    offset = np.cumsum([0, *map(len, lists)])
    return Ragged(torch.tensor(offset), torch.tensor([label for one in lists for label in one], dtype=torch.int64))


class Given:
    """A method whose embeddings are the scores of all classes, and whose templates are the numbers of the classes."""

    def score(self, emb_SC, template_T):
        return emb_SC[:, template_T]


def found_precision(score, lists, ks, missed=0):
    samples = MultiLabelled(score, score[:, 0], labels=ragged(lists), missed=missed)
    return label_precision(Given(), score, torch.arange(score.shape[1]), samples, ks)


def whole(score):
    return [(0, 0, score)]


def ranked(score, k):
    """The k best columns of each row by sorting all of them: higher scores first, then lower columns."""
    return [sorted(range(len(row)), key=lambda c: (-row[c], c))[:k] for row in score]


def plain(score, lists, k, missed=0):
    total = 0.0
    for best, true in zip(ranked(score, k), lists):
        for column in best:
            if column in true:
                total += 1.0 / k
    return total / (len(lists) + missed)


def cut(score, rows, columns):
    for row in range(0, len(score), rows):
        for column in range(0, score.shape[1], columns):
            yield row, column, score[row : row + rows, column : column + columns]


@settings(max_examples=60)
@given(data=st.data(), samples=st.integers(1, 7), classes=st.integers(1, 200), k=st.integers(1, 6))
def test_precision_and_ranking_by_plain_loops(data, samples, classes, k):
    k = min(k, classes)
    few = data.draw(st.booleans())
    seed = data.draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    pool = np.array([-np.inf, -2.5, -0.0, 0.0, 1e-30, 3.0, np.inf], np.float32)  # many ties, and zeros of both signs
    score = rng.choice(pool, (samples, classes)) if few else rng.normal(size=(samples, classes)).astype(np.float32)
    lists = [sorted(rng.choice(classes, rng.integers(0, min(classes, 9) + 1), replace=False)) for _ in range(samples)]
    missed = data.draw(st.integers(0, 3))
    table = torch.from_numpy(score)
    blocks = cut(table, data.draw(st.integers(1, 8)), data.draw(st.integers(1, 210)))
    expected = ranked(score.tolist(), k)
    assert best_classes(whole(table), k).tolist() == expected
    assert best_classes(blocks, k).tolist() == expected
    found = found_precision(table, lists, (1, k), missed)
    for at in (1, k):
        assert found[at] == pytest.approx(plain(score.tolist(), lists, at, missed), abs=1e-12)


@settings(max_examples=60)
@given(st.integers(0, 2**32 - 1), st.integers(1, 9), st.integers(1, 12), st.integers(1, 4))
def test_the_place_of_one_label_by_plain_loops(seed, samples, classes, rows):
    """The same P@k as with a list of one label, also in double precision, where float32 would see ties."""
    rng = np.random.default_rng(seed)
    score = rng.integers(-2, 3, (samples, classes)) / 2 + 1e-12 * rng.integers(0, 2, (samples, classes))
    label = rng.integers(classes, size=samples)
    expected = [ranked(score.tolist(), classes)[s].index(label[s]) for s in range(samples)]
    found = places_in(torch.from_numpy(score).split(rows), torch.from_numpy(label))
    assert found.tolist() == expected
    for place_S in (found, found.numpy()):
        for k, value in precision(place_S, samples, (1, 3)).items():
            assert value == pytest.approx(plain(score.tolist(), [[one] for one in label], k), abs=1e-12)


def test_what_is_not_a_number_is_no_hit():
    score = torch.tensor([[torch.nan, 1.0, 0.0], [torch.nan, 1.0, 0.0], [2.0, 1.0, 0.0]])
    assert places(score, torch.tensor([0, 1, 0])).tolist() == [3, 1, 0]


def test_by_hand():
    score = torch.tensor([[0.9, 0.1, 0.5, 0.5], [0.2, 0.3, 0.8, -1.0], [0.0, 0.0, 0.0, 0.0]])
    lists = [[0, 3], [1], []]
    assert best_classes(whole(score), 3).tolist() == [[0, 2, 3], [2, 1, 0], [0, 1, 2]]
    assert found_precision(score, lists, (1, 2, 3)) == pytest.approx({1: 1 / 3, 2: 2 / 6, 3: 3 / 9})
    assert found_precision(score, lists, (1, 5), missed=1) == {1: 0.25}  # there are no five classes


def test_blocks_narrower_than_k_add_no_classes():
    low = -torch.inf
    score = torch.tensor([[low, low, 5.0, low]])
    assert best_classes(cut(score, 1, 2), 4).tolist() == [[2, 0, 1, 3]]


@pytest.mark.parametrize("most", [7, 300, 1 << 20])
def test_blocks_cover_every_score_once_and_stay_small(most):
    emb, template = torch.randn(270, 4), torch.randn(9, 4)
    full = torch.full((270, 9), torch.nan)
    for row, column, part in score_blocks(make("fedhide", {}), emb, template, most):
        assert part.numel() <= most
        place = full[row : row + part.shape[0], column : column + part.shape[1]]
        assert place.shape == part.shape and bool(place.isnan().all())
        place.copy_(part)
    units = [x / x.norm(dim=1, keepdim=True) for x in (emb, template)]
    torch.testing.assert_close(full, units[0] @ units[1].T)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_precisions_are_ranked_too(dtype):
    score = torch.arange(100.0).flip(0)[None].to(dtype)
    assert best_classes(whole(score), 2).tolist() == [[0, 1]]


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("place", [0, 130])
def test_nan_is_refused(sign, place):
    score = torch.zeros(3, 140)
    score[1, place] = torch.copysign(torch.tensor(torch.nan), torch.tensor(sign))
    with pytest.raises(SelfsameError, match="NaN"):
        best_classes(whole(score), 5)


@pytest.mark.parametrize("labels", [3, 7])
def test_precision_of_matrices_is_that_of_a_loop(labels):
    """Of equal scores the lower label comes first; there is no P@k for more places than labels."""
    rng = np.random.default_rng(labels)
    score = rng.integers(0, 4, (30, labels)).astype(np.float32)
    true = (rng.random((30, labels)) < 0.4).astype(np.float32)
    expected = {}
    for k in (k for k in (1, 3, 5) if k <= labels):
        hits = 0
        for row in range(30):
            best = sorted(range(labels), key=lambda label: (-score[row, label], label))[:k]
            hits += sum(true[row, label] for label in best)
        expected[k] = hits / (30 * k)
    assert matrix_precision(score, sparse.csr_array(true)) == pytest.approx(expected)
    assert [*expected] == ([1, 3] if labels == 3 else [1, 3, 5])
