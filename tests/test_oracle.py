"""The benchmark of SLEEC on small files: what it reads, how it chooses, and that it goes on where it stopped."""

import argparse
import json

import numpy as np
import pytest
from scipy import sparse

from bench import sleec as bench
from selfsame.data.formats.xc_text import read_xc
from selfsame.data.sets.xc import drawn
from selfsame.methods.sleec import Sleec


def written(path, seed, rows=40, without=()):
    """Rows of two of six labels, each of which brings its own two features."""
    rng = np.random.default_rng(seed)
    lines = [f"{rows} 12 6"]
    for row in range(rows):
        labels = sorted(rng.choice(6, 2, replace=False).tolist())
        features = " ".join(f"{2 * label + more}:1" for label in labels for more in (0, 1))
        lines.append(f"{'' if row in without else ','.join(map(str, labels))} {features}")
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def orders(tmp_path, monkeypatch):
    monkeypatch.setattr(bench, "START", Sleec(learners=1, rank=6, neighbours=8, steps=3, ridge=0.1))
    monkeypatch.setattr(bench, "LADDER", (({"rank": 1}, {"rank": 6}), ({"clusters": 2, "learners": 2},)))
    monkeypatch.setattr(bench, "VOTERS", (3, 6))
    written(tmp_path / "small_train.txt", 0)
    return argparse.Namespace(file=tmp_path / "out.jsonl", data="small", path=tmp_path, labels="all", seeds=2)


def test_rows_without_labels_are_left_out(tmp_path):
    rows = read_xc(written(tmp_path / "small_train.txt", 0, without=(3, 7)))
    x, y = bench.matrices(rows, False)
    assert x.shape == (38, 12) and y.shape == (38, 6)
    assert set(y.sum(1)) == {2.0}
    row, label = drawn(rows, 0, "xc/train")
    one = bench.matrices(rows, True)[1]
    assert one.indices.tolist() == label.tolist() and set(one.sum(1)) == {1.0}
    assert 3 not in row


def test_precisions_are_those_of_a_loop():
    rng = np.random.default_rng(0)
    vote = rng.permutation(30 * 7).reshape(30, 7).astype(np.float32)
    true = (rng.random((30, 7)) < 0.4).astype(np.float32)
    expected = []
    for k in (1, 3, 5):
        hits = [true[row, label] for row in range(30) for label in sorted(range(7), key=lambda c: -vote[row, c])[:k]]
        expected.append(100 * sum(hits) / (30 * k))
    assert bench.precisions(vote, sparse.csr_array(true)) == pytest.approx(expected)


def test_it_chooses_without_the_test_file_and_goes_on(orders, monkeypatch):
    chosen = bench.choose(orders)
    lines = [json.loads(line) for line in orders.file.read_text().splitlines()]
    assert [line["key"]["options"]["rank"] for line in lines] == [6, 1, 6]
    assert (chosen.rank, chosen.clusters, chosen.learners) == (6, 2, 2)
    monkeypatch.setattr(bench, "summed_votes", None)  # a fit would fail now
    assert bench.choose(orders) == chosen


def test_it_measures_each_seed_once(orders, capsys):
    written(orders.path / "small_test.txt", 1, 20)
    for _ in range(2):
        bench.measure(orders)
    lines = [json.loads(line) for line in orders.file.read_text().splitlines()]
    found = [line for line in lines if line["key"]["phase"] == "measure"]
    assert [line["key"]["seed"] for line in found] == [0, 1]
    assert all(line["precision"][0] > 80 and line["rows"] == 20 for line in found)
    bench.table(orders)
    assert "| small | all |" in capsys.readouterr().out
