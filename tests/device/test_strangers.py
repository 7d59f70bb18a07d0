"""Statistics of strangers against plain loops, and rules that cannot work refused."""

import itertools
import json
import math
from dataclasses import asdict, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfsame.device.card import DTYPES, FORMAT, Card, score, template
from selfsame.device.rules import Rule, expect, mean_scores
from selfsame.device.strangers import enrolled_cohort, find, trained_cohort
from selfsame.device.thresholds import balanced, share_interval
from selfsame.device.vault import ScryptWork, Vault
from selfsame.device.verifier import Verifier
from selfsame.errors import SelfsameError

pytest.importorskip("cryptography")

LOW, HIGH = DTYPES["float32"]
CARD = Card(FORMAT, "0.1", "fedaws", "fake", (4,), "float32", LOW, HIGH, 4, "unit", "cosine", 0, "ab" * 32, "float32")


def somebody(seed, number=12, spread=0.35):
    rng = np.random.default_rng(seed)
    centre = rng.normal(size=4)
    return (centre / np.linalg.norm(centre) + spread * rng.normal(size=(number, 4)) / 2).astype(np.float32)


PEOPLE = [somebody(seed) for seed in range(1, 31)]


def cosines(emb, vector):
    return score(CARD, emb, vector).astype(float)


def populations(people=PEOPLE):
    return enrolled_cohort(cosines, lambda emb: template(CARD, emb), people, "strangers")


COHORT = tuple(populations())


def cosine(a, b):
    dot = sum(float(x) * float(y) for x, y in zip(a, b))
    return dot / math.sqrt(sum(float(x) ** 2 for x in a)) / math.sqrt(sum(float(y) ** 2 for y in b))


def mean_of_units(rows):
    units = [[float(x) / math.sqrt(sum(float(y) ** 2 for y in row)) for x in row] for row in rows]
    return [sum(column) / len(units) for column in zip(*units)]


def loops(size, together):
    """Own and strangers' scores of every owner, by plain loops."""
    own, other = [], []
    for o, mine in enumerate(PEOPLE):
        vector = mean_of_units(mine[:size])
        groups = [[cosine(x, vector) for x in theirs] for theirs in PEOPLE]
        groups[o] = groups[o][size:]
        means = []
        for scores in groups:
            cut = [scores[i : i + together] for i in range(0, len(scores) - together + 1, together)]
            means.append([sum(part) / together for part in cut])
        own.append(means[o])
        other.append([x for j, part in enumerate(means) if j != o for x in part])
    return own, other


@pytest.mark.parametrize(("size", "together"), [(2, 1), (5, 1), (2, 3)])
def test_a_population_by_plain_loops(size, together):
    found = find(COHORT, "enrolled", size, together)
    assert (found.template, found.together, found.owners) == (size, together, 30)
    own, other = loops(size, together)
    assert found.scores == min(map(len, other))
    assert found.rate[-1] * found.scores >= 5 > 0.5 * found.rate[-1] * found.scores - 5
    for at, rate in enumerate(found.rate):
        each = sorted(sorted(scores, reverse=True)[math.floor(rate * len(scores) + 1e-9)] for scores in other)
        # 95, 80 and 50 % of 31 owners in any order: the 30th, 25th and 16th; 5 %: the first.
        assert found.high[at] == pytest.approx(each[29], abs=1e-5) and found.high[at] >= each[29] - 1e-7
        assert [row[at] for row in found.highs[:2]] == pytest.approx([each[15], each[24]], abs=1e-5)
        assert found.low[at] == pytest.approx(each[0], abs=1e-5)
        everybody = sorted((x for scores in other for x in scores), reverse=True)
        assert found.pooled[at] == pytest.approx(everybody[math.floor(rate * len(everybody) + 1e-9)], abs=1e-5)
    assert found.confidence == pytest.approx((16 / 31, 25 / 31, 30 / 31), abs=1e-6)
    flat = [x for part in own for x in part], [x for part in other for x in part]
    assert found.even == pytest.approx(balanced(*flat).value, abs=1e-5)
    for number, limit in found.limits:
        shares = [sum(x < found.even for x in part[:number]) / number for part in own if len(part) >= number]
        assert limit == pytest.approx(max(shares), abs=1e-6)


def test_what_a_threshold_lets_in():
    found = find(COHORT, "enrolled", 5)
    _, other = loops(5, 1)
    for threshold in (-0.9, 0.0, 0.3, 0.6, 0.8, 0.95, 0.999):
        shares = sorted(sum(x >= threshold for x in part) / len(part) for part in other)
        share = found.let_in(threshold)
        assert share.low <= share.value <= share.high
        assert share.high >= shares[29] - 1e-9 and share.low <= shares[0] + 1e-9
        if found.pooled[0] < threshold < found.pooled[-1]:
            assert share.value == pytest.approx(sum(shares) / 30, rel=0.25)
    assert found.let_in(-2).value == 1 and found.let_in(2).high == found.rate[-1]


@given(st.lists(st.floats(-1.5, 1.5), min_size=2, max_size=2))
def test_a_higher_threshold_lets_in_no_more(pair):
    low, high = sorted(pair)
    found = COHORT[0]
    for name in ("value", "low", "high"):
        assert getattr(found.let_in(low), name) >= getattr(found.let_in(high), name) - 1e-12


def test_the_bound_of_a_rate():
    found = find(COHORT, "enrolled", 5)
    _, other = loops(5, 1)
    for fpr in (0.3, 0.1, 0.05):
        limit, share = found.bound(fpr)
        assert share == found.confidence[-1] and found.bound(fpr, 0.99) == (limit, share)
        lower, fewer = found.bound(fpr, 0.6)
        assert lower <= limit and fewer == found.confidence[1]
        assert sum(sum(x >= lower for x in part) / len(part) <= fpr for part in other) >= 25
        kept = sum(sum(x >= limit for x in part) / len(part) <= fpr for part in other)
        assert kept >= 29
        assert found.let_in(limit).high <= fpr
    with pytest.raises(SelfsameError, match=r"--fpr 1e-06: the model's cohort of 30 owners shows rates from"):
        found.bound(1e-6)


def test_typical_scores_have_the_quantiles():
    found = COHORT[0]
    scores = found.typical(2000)
    for rate, limit in zip(found.rate, found.pooled):
        assert (scores > limit).mean() == pytest.approx(rate, abs=0.02)


def test_vectors_that_training_left():
    vectors = [np.mean(part, 0) for part in PEOPLE]
    found = trained_cohort(cosines, vectors, PEOPLE, None, "strangers")
    assert [(one.kind, one.template, one.together) for one in found] == [("trained", 0, 1), ("trained", 0, 3)]
    others = trained_cohort(cosines, vectors, PEOPLE[:6], PEOPLE[6:], "strangers")
    assert others[0].owners == 6 and others[0].scores == 24 * 12 and others[0].confidence[-1] == pytest.approx(6 / 7)
    assert trained_cohort(score, vectors, PEOPLE[:4], None, "few") == []
    assert populations(PEOPLE[:4]) == []


def test_a_card_carries_it_and_nobodys_vector():
    full = replace(CARD, cohort=COHORT)
    assert Card.from_json(full.to_json()) == full
    assert len(full.to_json()) < 20_000
    for one in COHORT:
        assert {type(value) for value in asdict(one).values()} <= {str, int, float, tuple}
    plain = json.loads(full.to_json())
    for name, value in (
        ("rate", []),
        ("rate", [0.1, 0.2]),
        ("owners", 0),
        ("confidence", [0.5]),
        ("highs", [[1.0]]),
        ("limits", [[1, 2.0]]),
    ):
        bad = {**plain, "cohort": [{**plain["cohort"][0], name: value}]}
        with pytest.raises(SelfsameError, match="card"):
            Card.from_json(json.dumps(bad))


# ---- rules


class Plain:
    """A network that gives what it gets."""

    def __init__(self, told):
        self.card = told

    def embed(self, raw):
        return raw


@pytest.fixture
def verifier(tmp_path):
    vault = Vault(tmp_path / "store", lambda: "open, sesame, now", ScryptWork(10, 1, 1))
    return Verifier(Plain(replace(CARD, cohort=COHORT)), vault)


def test_each_rule_by_plain_loops(verifier):
    samples = list(somebody(99, 20))
    vector = mean_of_units(samples[:10])
    own = sorted(cosine(x, vector) for x in samples[10:])
    known = find(COHORT, "enrolled", 10)
    assert known.template == 15 or known.template == 5
    aims = verifier.enrol("a", samples, Rule("tpr", 0.8)).threshold
    assert aims.value == pytest.approx(own[1], abs=1e-6)  # floor(10 * 0.2) = 2nd smallest
    most = verifier.enrol("b", samples, Rule("fpr", fpr=0.05)).threshold
    assert most.value == pytest.approx(known.high[known.rate.index(0.05)], abs=1e-6)
    assert "at most 5 % of strangers" in most.note and most.promised_tpr is None
    even = verifier.enrol("c", samples, Rule("balanced")).threshold
    pseudo = known.typical()
    gap = {t: abs((pseudo >= t).mean() - sum(x < t for x in own) / 10) for t in (*own, *pseudo)}
    here = abs((pseudo >= even.value).mean() - sum(x < even.value for x in own) / 10)
    assert here <= min(gap.values()) + 1e-9
    others = [x for part in PEOPLE[:5] for x in part]
    paper = verifier.enrol("d", samples, Rule("paper"), others=others)
    scores = [cosine(x, vector) for x in others]
    assert paper.threshold.value == pytest.approx(balanced(own, scores).value, abs=1e-6)
    assert paper.expected.source == "60 samples of others"
    assert paper.expected.let_in.value == sum(x >= paper.threshold.value for x in scores) / 60
    for name in ("a", "b", "c", "d"):
        assert verifier.verify(name, samples[0]).llr == pytest.approx(
            known.slope * verifier.verify(name, samples[0]).score + known.offset
        )


def test_what_is_expected_of_owners_and_strangers(verifier):
    done = verifier.enrol("ann", list(somebody(99, 20)), Rule("tpr", 0.8))
    known = find(COHORT, "enrolled", 10)
    assert done.expected.let_in == known.let_in(done.threshold.value)
    assert done.expected.refused.value == 2 / 11  # the 2nd smallest of 10: the next one lies below with 2 of 11 chances
    assert (done.expected.refused.low, done.expected.refused.high) == share_interval(1, 10)
    assert expect(0.5, (), None, ()).refused is None and expect(0.5, (), None, ()).let_in is None


@given(st.integers(1, 30), st.integers(0, 30))
def test_the_interval_of_a_share_by_exact_sums(number, hits):
    hits = min(hits, number)
    low, high = share_interval(hits, number)
    assert 0 <= low <= hits / number <= high <= 1

    def at_least(k, p):
        return sum(math.comb(number, j) * p**j * (1 - p) ** (number - j) for j in range(k, number + 1))

    assert hits == 0 or at_least(hits, low) == pytest.approx(0.025, abs=1e-6)
    assert hits == number or 1 - at_least(hits + 1, high) == pytest.approx(0.025, abs=1e-6)


def refused(verifier, words, *given, **more):
    with pytest.raises(SelfsameError, match=words) as fault:
        verifier.enrol("eve", *given, **more)
    assert "\n" not in str(fault.value)
    assert verifier.vault.users() == []


def test_thresholds_outside_the_range_of_scores(verifier):
    """A cosine of -3.41 lets everybody in: the threshold of the review's ten pictures."""
    samples = list(somebody(99))
    refused(verifier, "every cosine is -1 or more, so everybody", samples, Rule("fixed", fixed=-3.41), most_fpr=1.0)
    refused(verifier, "no cosine is above 1, so nobody", samples, Rule("fixed", fixed=1.01))
    refused(verifier, "takes 29 warm-up samples, got 6", samples, Rule("bounded"))
    refused(verifier, "expected to be let in, more than 10 %", samples, Rule("fixed", fixed=0.0))
    assert verifier.enrol("eve", samples, Rule("fixed", fixed=0.0), most_fpr=1.0).expected.let_in.value > 0.1


def test_samples_of_two_people(verifier):
    """One after the other and in turn: both were enrolled as one person."""
    one, two = somebody(99, 10), somebody(7, 10)
    refused(verifier, "are they all of one person", [*one[:5], *two[:5]])
    refused(verifier, "are they all of one person", list(itertools.chain(*zip(one[:5], two[:5]))))
    verifier.enrol("eve", list(one))
    verifier.enrol("both", [*one[:5], *two[:5]], mixed=True, most_fpr=1.0)


def test_a_small_cohort_doubts_and_does_not_refuse(tmp_path):
    """Of 18 owners one honest newcomer in nineteen has more than all: too many to turn away."""
    two = [*somebody(99, 10)[:5], *somebody(7, 10)[:5]]
    for owners, sure in ((18, False), (19, True)):
        few = tuple(replace(one, owners=owners) for one in COHORT)
        vault = Vault(tmp_path / str(owners), lambda: "open, sesame, now", ScryptWork(10, 1, 1))
        verifier = Verifier(Plain(replace(CARD, cohort=few)), vault)
        if sure:
            refused(verifier, "are they all of one person", two)
        else:
            done = verifier.enrol("both", two, most_fpr=1.0)
            assert done.doubts and all("score as strangers do" in doubt for doubt in done.doubts)
            assert not verifier.enrol("eve", list(somebody(99, 10))).doubts


def test_somebody_elses_vector(tmp_path):
    vectors = [np.mean(part, 0) for part in PEOPLE]
    left = trained_cohort(cosines, vectors, PEOPLE, None, "strangers")
    vault = Vault(tmp_path / "store", lambda: "open, sesame, now", ScryptWork(10, 1, 1))
    verifier = Verifier(Plain(replace(CARD, cohort=(*COHORT, *left))), vault)
    refused(verifier, "scores against the template score as strangers do", list(PEOPLE[3]), vector=vectors[8])
    verifier.enrol("eve", list(PEOPLE[8]), vector=vectors[8])


def test_a_card_without_a_cohort_says_so(tmp_path):
    verifier = Verifier(Plain(CARD), Vault(tmp_path / "store", lambda: "open, sesame, now", ScryptWork(10, 1, 1)))
    for rule in (Rule("fpr", fpr=0.01), Rule("balanced")):
        refused(verifier, "carries no cohort of strangers", list(somebody(1)), rule)
    refused(verifier, "--rule paper: takes samples of other people", list(somebody(1)), Rule("paper"))
    done = verifier.enrol("ann", list(somebody(1)))
    assert done.expected.let_in is None and "carries no cohort" in done.expected.source
    assert verifier.verify("ann", somebody(1)[0]).llr is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"name": "fpr"}, "--fpr: a share goes with"),
        ({"fpr": 0.1}, "--fpr: a share goes with"),
        ({"name": "fpr", "fpr": 0.0}, "--fpr: expected a share"),
        ({"name": "fpr", "fpr": math.nan}, "--fpr: expected a share"),
    ],
)
def test_rules_that_go_with_nothing(given, message):
    with pytest.raises(SelfsameError, match=message):
        Rule(**given)


def test_the_old_name():
    assert Rule("warm-up") == Rule("tpr") == Rule()


# ---- several samples


def test_means_of_several_scores():
    scores = [0.1, 0.5, 0.9, 0.2]
    assert sorted(mean_scores(scores, 2)) == pytest.approx(
        sorted((a + b) / 2 for a, b in itertools.combinations(scores, 2))
    )
    assert mean_scores(scores, 2, apart=True) == pytest.approx([0.3, 0.55])
    assert len(mean_scores(np.arange(40) / 40, 5)) == 2000
    with pytest.raises(SelfsameError, match="takes as many warm-up scores, 4 are there"):
        mean_scores(scores, 5)


def test_a_decision_over_several_samples(verifier):
    samples = list(somebody(99, 20))
    verifier.enrol("ann", samples, Rule("tpr", 0.9))
    opened = verifier.unlock("ann")
    fresh = list(somebody(99, 26))[20:23]
    verdict = opened.verify_together(fresh)
    vector = mean_of_units(samples[:10])
    assert verdict.score == pytest.approx(sum(cosine(x, vector) for x in fresh) / 3, abs=1e-6)
    means = sorted(sum(some) / 3 for some in itertools.combinations([cosine(x, vector) for x in samples[10:]], 3))
    assert verdict.threshold == pytest.approx(means[math.floor(120 * 0.1 + 1e-9) - 1], abs=1e-6)
    assert verdict.threshold > opened.threshold()
    verifier.enrol("bob", samples, Rule("fpr", fpr=0.05))
    three = find(COHORT, "enrolled", 10, 3)
    assert verifier.unlock("bob").threshold(3) == pytest.approx(three.bound(0.05)[0])
    assert find(COHORT, "enrolled", 10, 2).together == 1  # of fewer samples: strangers' means spread less, not more
    verifier.enrol("cat", samples, Rule("fixed", fixed=0.8))
    assert verifier.unlock("cat").threshold(3) == 0.8


def test_unlocking_once(verifier, monkeypatch):
    """The key was derived at every attempt."""
    from selfsame.device import vault

    samples = list(somebody(99, 20))
    verifier.enrol("ann", samples)
    asked = []
    real = vault.derive
    monkeypatch.setattr(vault, "derive", lambda *a: asked.append(1) or real(*a))
    opened = verifier.unlock("ann")
    verdicts = opened.verify_each(samples)
    assert len(asked) == 1
    assert verdicts == [verifier.verify("ann", sample) for sample in samples]
    assert len(asked) == 21
    with pytest.raises(SelfsameError, match="at least one"):
        opened.verify_together([])
    verifier.add_warm_up("ann", samples[:1])
    with pytest.raises(SelfsameError, match="has changed; unlock it again"):
        opened.verify(samples[0])
    opened = verifier.unlock("ann")
    kept = verifier.vault.path("ann").read_bytes()
    verifier.revoke("ann")
    with pytest.raises(SelfsameError, match="not enrolled"):
        opened.verify(samples[0])
    verifier.vault.path("ann").write_bytes(kept)
    verifier.vault.path("ann").chmod(0o600)
    with pytest.raises(SelfsameError, match="revoked"):
        opened.verify(samples[0])
