"""The bench of FedUV's warm-up, by plain loops, and its table in the manual."""

import random
import re
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "bench"))

import warm_up  # noqa: E402


def the_ith_smallest(scores, q):
    """FedUV's Algorithm 2: i = floor(n (1 - q)), at least 1, in whole hundredths."""
    place = max(1, len(scores) * round(100 - 100 * q) // 100)
    return sorted(scores)[place - 1]


def test_rates_of_a_warm_up_are_those_of_the_samples_that_did_not_set_it():
    draw = random.Random(0)
    own = [np.array([draw.random() for _ in range(16)]) for _ in range(3)]
    others = [np.array([draw.random() - 0.3 for _ in range(9)]) for _ in range(3)]
    found = warm_up.measured(own, others, draws=4, seed=5, rest=6)
    assert set(found) == {(n, q) for n in (5, 10) for q in warm_up.PROMISED}  # 20 and 50 leave too few to measure with
    rng = np.random.default_rng(5)
    for n in (5, 10):
        rows = {q: [] for q in warm_up.PROMISED}
        for mine, theirs in zip(own, others, strict=True):
            for _ in range(4):
                order = rng.permutation(16).tolist()
                for q in warm_up.PROMISED:
                    limit = the_ith_smallest([mine[k] for k in order[:n]], q)
                    let_in = sum(mine[k] >= limit for k in order[n:]) / (16 - n)
                    rows[q].append((let_in, sum(s >= limit for s in theirs) / 9, let_in >= q))
        for q, some in rows.items():
            means = [sum(float(one[at]) for one in some) / len(some) for at in range(3)]
            assert found[n, q] == pytest.approx(means)


def test_the_manual_expects_what_order_statistics_say():
    lines = (ROOT / "docs/results/rules.md").read_text().split("## FedUV's warm-up")[1].splitlines()
    rows = [re.split(r"\s*\|\s*", line.strip("| ")) for line in lines if re.match(r"\| .*\| (5|10) \| \d+ \|", line)]
    assert len(rows) == 12
    for row in rows:
        n, q, expected, tpr = int(row[-6]), int(row[-5]), float(row[-3]), float(row[-4].split()[0])
        place = max(1, n * (100 - q) // 100)
        assert expected == round(100 * (n + 1 - place) / (n + 1), 1)
        assert warm_up.by_order(n, q / 100) == pytest.approx((n + 1 - place) / (n + 1))
        assert abs(tpr - expected) <= 0.3
