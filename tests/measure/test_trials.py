"""Trials and their scores against plain loops over samples, templates and people."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from selfsame.errors import SelfsameError
from selfsame.measure import trials as module
from selfsame.measure.trials import (
    Scored,
    against_templates,
    alone_blocks,
    draw_pairs,
    embedded,
    pair_scores,
    pieces,
    spread,
    template_blocks,
    with_impostors,
)
from selfsame.methods import World, make

ANGLE, DISTANCE = make("fedhide", {}), make("fedmetric", {})


def plain_score(method, a, b):
    a, b = a.double(), b.double()
    return float(-(a - b).norm() if method is DISTANCE else a @ b / (a.norm() * b.norm()))


@settings(max_examples=60)
@given(st.integers(0, 500), st.integers(1, 100), st.integers(0, 9))
def test_spread_takes_one_of_each_part(total, most, seed):
    kept = spread(total, most, np.random.default_rng(seed))
    assert len(kept) == min(total, most) and (np.diff(kept) > 0).all()
    if len(kept):
        assert kept[0] >= 0 and kept[-1] < total
    for place, value in enumerate(kept.tolist()):
        assert place * total // len(kept) <= value < (place + 1) * total // len(kept) or total <= most


def test_spread_is_fair():
    hits = np.zeros(10)
    for seed in range(3000):
        hits[spread(10, 4, np.random.default_rng(seed))] += 1
    np.testing.assert_allclose(hits / 3000, 0.4, atol=0.12)  # parts of 2 and 3 places
    assert hits.sum() == 12_000


@settings(max_examples=60)
@given(st.integers(0, 2**32 - 1), st.integers(1, 9), st.integers(2, 6), st.integers(1, 4))
def test_against_templates_by_loops(seed, samples, classes, rows):
    rng = np.random.default_rng(seed)
    person_C = np.sort(rng.choice(20, classes, replace=False))
    person_S = rng.choice(20, samples)  # some have no template
    score_SC = torch.from_numpy(rng.integers(-2, 3, (samples, classes)) / 2.0)
    found = against_templates(score_SC.split(rows), person_S, person_C, 10_000, rng)
    expected, ranks = [], []
    for s in range(samples):
        for c in range(classes):
            expected.append((float(score_SC[s, c]), person_S[s] == person_C[c], person_C[c], person_S[s]))
        own = [c for c in range(classes) if person_C[c] == person_S[s]]
        if own:
            order = sorted(range(classes), key=lambda c: (-float(score_SC[s, c]), c))
            ranks.append(order.index(own[0]))
    scored = found.scored
    assert sorted(zip(scored.score, scored.same, scored.person_a, scored.person_b)) == sorted(expected)
    assert found.place_S.tolist() == ranks and found.left_out == 0


def test_of_many_impostor_trials_a_few_are_kept_and_each_is_real():
    rng = np.random.default_rng(0)
    person_C, person_S = np.arange(11), rng.integers(11, size=40)
    score_SC = torch.from_numpy(rng.permutation(440).reshape(40, 11)).double()  # every score names its trial
    found = against_templates(score_SC.split(7), person_S, person_C, 57, rng)
    scored = found.scored
    assert (scored.same.sum(), (~scored.same).sum(), found.left_out) == (40, 57, 400 - 57)
    assert len(set(scored.score.tolist())) == 97
    for score, same, a, b in zip(scored.score, scored.same, scored.person_a, scored.person_b):
        s, c = (int(x[0]) for x in torch.nonzero(score_SC == score, as_tuple=True))
        assert (person_C[c], person_S[s], person_C[c] == person_S[s]) == (a, b, same)
    spread_over = np.unique(scored.person_b[~scored.same])
    assert len(spread_over) >= 9


def test_scores_that_are_not_finite_are_refused():
    with pytest.raises(SelfsameError, match="1 of 2 are not finite"):
        Scored(np.array([0.0, np.nan]), np.ones(2, bool), np.arange(2), np.arange(2))


def test_strangers_replace_the_impostors():
    owners = Scored(np.array([1.0, 2.0]), np.array([True, False]), np.array([0, 0]), np.array([0, 1]))
    strangers = Scored(np.array([3.0, 4.0]), np.zeros(2, bool), np.array([0, 1]), np.array([8, 9]))
    both = with_impostors(owners, strangers)
    assert both.score.tolist() == [1.0, 3.0, 4.0] and both.same.tolist() == [True, False, False]
    assert both.person_a.tolist() == [0, 0, 1] and both.person_b.tolist() == [0, 8, 9]
    assert both.people == 4 and both.genuine.tolist() == [1.0] and both.impostor.tolist() == [3.0, 4.0]


@pytest.mark.parametrize("method", [ANGLE, DISTANCE], ids=["angle", "distance"])
def test_pairs_and_blocks_by_loops(method):
    draw = torch.Generator().manual_seed(0)
    emb, template = torch.randn(300, 4, generator=draw), torch.randn(3, 4, generator=draw)
    rng = np.random.default_rng(1)
    left, right = rng.integers(300, size=700), rng.integers(300, size=700)
    found = pair_scores(method, emb, left, right)
    for place in range(0, 700, 23):
        assert found[place] == pytest.approx(plain_score(method, emb[left[place]], emb[right[place]]), abs=1e-5)
    assert len(found) == 700 and len(pair_scores(method, emb, left[:0], right[:0])) == 0
    blocks = torch.cat(list(template_blocks(method, emb, template)))
    assert blocks.shape == (300, 3)
    for s in range(0, 300, 31):
        for t in range(3):
            assert float(blocks[s, t]) == pytest.approx(plain_score(method, emb[s], template[t]), abs=1e-5)


def test_pairs_by_distance_at_unit_length():
    """Both samples of a pair are brought to unit length, not the left one alone."""
    method = make("fedmetric", {"unit_length": True})
    emb = 3 + torch.randn(9, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    left, right = np.triu_indices(9, 1)
    found = pair_scores(method, emb, left, right)
    for a, b, score in zip(left, right, found, strict=True):
        assert score == pytest.approx(-float((emb[a] / emb[a].norm() - emb[b] / emb[b].norm()).norm()), abs=1e-12)
    np.testing.assert_allclose(pair_scores(method, emb, right, left), found, atol=1e-12)


@pytest.mark.parametrize("method", [ANGLE, DISTANCE], ids=["angle", "distance"])
def test_few_and_many_pairs_are_scored_alike(method, monkeypatch):
    """All samples against all, where that is less work, or pair by pair."""
    emb = torch.randn(40, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    left, right = np.triu_indices(40, 1)
    whole = pair_scores(method, emb, left, right)
    monkeypatch.setattr(module, "MOST_PAIRED", 39)
    monkeypatch.setattr(module, "_CHUNK", 7)
    np.testing.assert_allclose(pair_scores(method, emb, left, right), whole, atol=1e-12)
    expected = [plain_score(method, emb[a], emb[b]) for a, b in zip(left, right)]
    np.testing.assert_allclose(whole, expected, atol=1e-12)


def test_every_client_judges_by_its_own_network():
    """A class that two clients hold gets the better score, by loops."""
    draw = torch.Generator().manual_seed(3)
    x, truth = torch.randn(9, 4, generator=draw), torch.randn(3, 4, generator=draw)
    world = World(3, 2, 4, torch.tensor([1, 0, 1]))
    blocks = alone_blocks(DISTANCE, lambda raw, client: raw * (client + 1), truth, world, x.split(4))
    score_SC = torch.cat(list(blocks))
    for s in range(9):
        each = [plain_score(DISTANCE, x[s] * (n + 1), truth[n]) for n in range(3)]
        assert score_SC[s].tolist() == pytest.approx([each[1], max(each[0], each[2])], abs=1e-5)


def test_samples_are_embedded_in_small_pieces():
    x = torch.arange(600.0)[:, None]
    seen = []

    def embed(raw):
        seen.append(len(raw))
        return raw * 2

    place = torch.randperm(600, generator=torch.Generator().manual_seed(0))
    assert embedded(embed, x, place)[:, 0].tolist() == (2.0 * place).tolist()
    assert seen == [256, 256, 88]
    assert torch.equal(embedded(embed, x), 2 * x) and seen[3:] == [256, 256, 88]
    assert embedded(embed, x[:0]).shape == embedded(embed, x, place[:0]).shape == (0, 0)
    large = torch.zeros(1, 1).expand(5, 2**23)
    assert [len(part) for part in pieces(large, torch.arange(5))] == [len(part) for part in pieces(large)] == [2, 2, 1]


@settings(max_examples=60)
@given(st.lists(st.integers(0, 4), min_size=2, max_size=40), st.integers(2, 400), st.integers(0, 3))
def test_trials(labels, count, seed):
    label = np.array(labels)
    equal = np.triu(label[:, None] == label, 1).sum()
    different = len(label) * (len(label) - 1) // 2 - equal
    if equal == 0 or different == 0:
        with pytest.raises(SelfsameError, match="pair"):
            draw_pairs(label, count, seed)
        return
    left, right, same = draw_pairs(label, count, seed)
    assert (left != right).all()
    np.testing.assert_array_equal(label[left] == label[right], same)
    assert same.sum() == min(equal, count // 2)
    assert (~same).sum() == min(different, count // 2)
    assert len({frozenset(pair) for pair in zip(left.tolist(), right.tolist())}) == len(left)
    for again, before in zip(draw_pairs(label, count, seed), (left, right, same)):
        np.testing.assert_array_equal(again, before)


def test_trials_are_even_over_pairs_and_change_with_the_seed():
    label = np.repeat([0, 1, 2], [2, 4, 14])  # 1 + 6 + 91 genuine pairs
    of_class = np.zeros(3)
    for seed in range(200):
        left, _, same = draw_pairs(label, 20, seed)
        of_class += np.bincount(label[left[same]], minlength=3)
    np.testing.assert_allclose(of_class / of_class.sum(), np.array([1, 6, 91]) / 98, atol=0.02)
    assert not np.array_equal(draw_pairs(label, 20, 0)[0], draw_pairs(label, 20, 1)[0])
