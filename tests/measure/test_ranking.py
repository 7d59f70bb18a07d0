"""Precision at k against plain loops, whatever the blocks, with equal scores in a fixed order."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from selfsame.data.sets.xc import Ragged
from selfsame.errors import SelfsameError
from selfsame.measure.ranking import best_classes, precision_at_k, score_blocks


def ragged(lists):
    offset = np.cumsum([0, *map(len, lists)])
    return Ragged(torch.tensor(offset), torch.tensor([label for one in lists for label in one], dtype=torch.int64))


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


@settings(max_examples=100, deadline=None)
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
    whole = torch.from_numpy(score)
    blocks = cut(whole, data.draw(st.integers(1, 8)), data.draw(st.integers(1, 210)))
    expected = ranked(score.tolist(), k)
    assert best_classes(whole, k).tolist() == expected
    assert best_classes(blocks, k).tolist() == expected
    found = precision_at_k(whole, ragged(lists), (1, k), missed)
    for at in (1, k):
        assert found[at] == pytest.approx(plain(score.tolist(), lists, at, missed), abs=1e-12)


def test_by_hand():
    score = torch.tensor([[0.9, 0.1, 0.5, 0.5], [0.2, 0.3, 0.8, -1.0], [0.0, 0.0, 0.0, 0.0]])
    labels = ragged([[0, 3], [1], []])
    assert best_classes(score, 3).tolist() == [[0, 2, 3], [2, 1, 0], [0, 1, 2]]
    assert precision_at_k(score, labels, (1, 2, 3)) == pytest.approx({1: 1 / 3, 2: 2 / 6, 3: 3 / 9})
    assert precision_at_k(score, labels, (1,), missed=1) == {1: 0.25}


def test_blocks_narrower_than_k_add_no_classes():
    low = -torch.inf
    score = torch.tensor([[low, low, 5.0, low]])
    assert best_classes(cut(score, 1, 2), 4).tolist() == [[2, 0, 1, 3]]


@pytest.mark.parametrize("most", [7, 300, 1 << 20])
def test_blocks_cover_every_score_once_and_stay_small(most):
    emb, template = torch.randn(270, 4), torch.randn(9, 4)
    full = torch.full((270, 9), torch.nan)
    for row, column, part in score_blocks(lambda a, b: a @ b.T, emb, template, most):
        assert part.numel() <= most
        place = full[row : row + part.shape[0], column : column + part.shape[1]]
        assert place.shape == part.shape and bool(place.isnan().all())
        place.copy_(part)
    torch.testing.assert_close(full, emb @ template.T)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_precisions_are_ranked_too(dtype):
    score = torch.arange(100.0).flip(0)[None].to(dtype)
    assert best_classes(score, 2).tolist() == [[0, 1]]


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("place", [0, 130])
def test_nan_is_refused(sign, place):
    score = torch.zeros(3, 140)
    score[1, place] = torch.copysign(torch.tensor(torch.nan), torch.tensor(sign))
    with pytest.raises(SelfsameError, match="NaN"):
        best_classes(score, 5)


@pytest.mark.parametrize(
    "samples, ks, line",
    [(2, (1, 5), "5 best classes asked for, there are 4"), (3, (1,), "2 samples, labels of 3"), (2, (0,), "1 or more")],
)
def test_what_does_not_fit_is_refused(samples, ks, line):
    with pytest.raises(SelfsameError, match=line):
        precision_at_k(torch.zeros(2, 4), ragged([[0]] * samples), ks)
    with pytest.raises(SelfsameError, match="there are 0"):
        best_classes([], 1)
