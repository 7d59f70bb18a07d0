"""Trials and protocols against plain loops over samples, templates and people."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from selfsame.errors import SelfsameError
from selfsame.measure.protocols import (
    Scored,
    Split,
    against_templates,
    chunks,
    embedded,
    fold_accuracy,
    pair_scores,
    split_accuracy,
    spread,
    template_blocks,
    with_impostors,
)
from selfsame.measure.scores import eer
from selfsame.methods import make

ANGLE, DISTANCE = make("fedhide", {}), make("fedmetric", {})


def plain_score(method, a, b):
    a, b = a.double(), b.double()
    return float(-(a - b).norm() if method is DISTANCE else a @ b / (a.norm() * b.norm()))


@settings(max_examples=60, deadline=None)
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


@settings(max_examples=60, deadline=None)
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
    assert found.rank_S.tolist() == ranks and found.left_out == 0


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


def test_scores_that_do_not_fit_are_refused():
    with pytest.raises(SelfsameError, match="scores of 2 samples, people of 3"):
        against_templates([torch.zeros(2, 2)], np.zeros(3, np.int64), np.arange(2), 9, np.random.default_rng(0))
    with pytest.raises(SelfsameError, match=r"got \[1, 2, 1, 1\]"):
        Scored(np.zeros(1), np.ones(2, bool), np.zeros(1, np.int64), np.zeros(1, np.int64))
    with pytest.raises(SelfsameError, match="1 of 2 are not"):
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


def test_samples_are_embedded_in_small_pieces():
    x = torch.arange(600.0)[:, None]
    seen = []

    def embed(raw):
        seen.append(len(raw))
        return raw * 2

    place = np.random.default_rng(0).permutation(600)
    found = embedded(embed, lambda part: x[torch.from_numpy(part)], place, (1,))
    assert found[:, 0].tolist() == (2.0 * place).tolist()
    assert seen == [256, 256, 88]
    assert [len(part) for part in chunks(np.arange(5), (2**23,))] == [2, 2, 1]


def test_folds_by_loops():
    rng = np.random.default_rng(2)
    same = rng.random(200) < 0.5
    score = (rng.normal(size=200) + 1.5 * same).round(1)
    fold = np.arange(200) % 5
    expected = []
    for this in range(5):
        others = [(s, k) for s, k, f in zip(score, same, fold) if f != this]
        levels = [np.inf, *sorted({s for s, _ in others}, reverse=True)]
        right = [sum((s >= t) == k for s, k in others) for t in levels]
        best = right.index(max(right))
        limit = levels[best] if best in (0, len(levels) - 1) else (levels[best] + levels[best + 1]) / 2
        mine = [(s >= limit) == k for s, k, f in zip(score, same, fold) if f == this]
        expected.append(sum(mine) / len(mine))
    mean, error, each = fold_accuracy(Scored(score, same, fold, fold), fold)
    assert each == pytest.approx(expected) and mean == pytest.approx(np.mean(expected))
    assert error == pytest.approx(np.sqrt(sum((x - mean) ** 2 for x in expected) / 4) / np.sqrt(5))
    with pytest.raises(SelfsameError, match="at least 2"):
        fold_accuracy(Scored(score, same, fold, fold), fold * 0)


class Recorder:
    """A threshold rule that keeps what it was given."""

    def __init__(self):
        self.seen = []

    def __call__(self, genuine, impostor):
        self.seen.append((genuine, impostor))
        return eer(genuine, impostor)[1]


@pytest.mark.parametrize("method", [ANGLE, DISTANCE], ids=["angle", "distance"])
def test_fdml_accuracy_takes_every_sample_once_and_no_user_twice(method):
    split = Split(template=3, threshold=2, test=2, others=2)
    rng = np.random.default_rng(3)
    person = np.repeat(np.arange(6), [7, 9, 7, 8, 7, 6]) + 40  # the last has too few
    emb = torch.from_numpy(rng.normal(size=(len(person), 4)) + 2 * rng.normal(size=(6, 4))[person - 40]).float()
    rule = Recorder()
    right = split_accuracy(method, emb, person, rule, np.random.default_rng(4), split)
    assert len(right) == 5 and len(rule.seen) == 5
    assert all((len(genuine), len(impostor)) == (2, 4) for genuine, impostor in rule.seen)
    # The same again with plain loops and the generator's own draws.
    again = np.random.default_rng(4)
    places = [again.permutation(np.flatnonzero(person == p))[:7] for p in range(40, 45)]
    for user in range(5):
        others = again.permutation([u for u in range(5) if u != user])[:4]
        own = torch.stack([emb[i] for i in places[user][:3]])
        template = (own / own.norm(dim=1, keepdim=True) if method is ANGLE else own).mean(0)
        genuine = [plain_score(method, emb[i], template) for i in places[user][3:5]]
        impostor = [plain_score(method, emb[i], template) for u in others[:2] for i in places[u][3:5]]
        assert rule.seen[user][0] == pytest.approx(genuine, abs=1e-5)
        assert rule.seen[user][1] == pytest.approx(impostor, abs=1e-5)
        limit = eer(np.array(genuine), np.array(impostor))[1]
        hits = sum(plain_score(method, emb[i], template) >= limit for i in places[user][5:])
        hits += sum(plain_score(method, emb[i], template) < limit for u in others[2:] for i in places[u][5:])
        assert right[user] == pytest.approx(hits / 6)


def test_fdml_accuracy_says_what_it_needs():
    person = np.repeat(np.arange(30), 40)[:-30]  # the last one has ten
    with pytest.raises(SelfsameError, match="21 people with 40 samples are needed, there are 2 of 3"):
        split_accuracy(ANGLE, torch.zeros(1, 1), person[-90:], Recorder(), np.random.default_rng(0))
