"""SLEEC step by step against plain loops in float64, and as a whole where random embeddings fail."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse

from selfsame.errors import SelfsameError
from selfsame.methods.sleec import (
    Local,
    Sleec,
    clustered,
    embedded,
    fit,
    local_votes,
    nearest_centre,
    neighbour_pairs,
    products,
    projected,
    regressed,
    residual,
    ridge_solver,
    unit_rows,
    votes,
)


def some_rows(seed, rows, columns, share=0.4):
    rng = np.random.default_rng(seed)
    dense = rng.integers(1, 4, (rows, columns)) * (rng.random((rows, columns)) < share)
    return sparse.csr_array(dense.astype(float))


def dot(one, two):
    return sum(float(a) * float(b) for a, b in zip(one, two))


def test_unit_rows_by_hand():
    x = sparse.csr_array(np.array([[3.0, 0.0, 4.0], [0.0, 0.0, 0.0], [0.0, -2.0, 0.0]]))
    assert unit_rows(x).toarray() == pytest.approx(np.array([[0.6, 0, 0.8], [0, 0, 0], [0, -1, 0]]))


def looped_pairs(label, k):
    """Rows by falling product and then by number, in both directions, and each row with itself."""
    rows = range(len(label))
    found = {(i, i) for i in rows}
    for i in rows:
        for j in sorted(rows, key=lambda j: (-dot(label[i], label[j]), j))[:k]:
            found |= {(i, j), (j, i)}
    return sorted(found)


@pytest.mark.parametrize("k", [1, 3, 9])
def test_neighbours_are_those_of_a_loop(k):
    y = some_rows(0, 9, 5)
    assert list(zip(*neighbour_pairs(y, k))) == looped_pairs(y.toarray(), k)


def test_equal_products_take_the_lower_row():
    y = sparse.csr_array(np.ones((5, 1)))
    expected = sorted({(i, i) for i in range(5)} | {(i, j) for i in range(5) for j in range(5) if min(i, j) < 2})
    assert list(zip(*neighbour_pairs(y, 2))) == expected


def test_products_and_residual_are_those_of_a_loop():
    y, rng = some_rows(1, 8, 6), np.random.default_rng(1)
    z = rng.standard_normal((8, 3))
    pairs = neighbour_pairs(y, 2)
    wanted = products(y, *pairs)
    gap = residual(z, pairs, wanted).toarray()
    for i in range(8):
        for j in range(8):
            inside = (i, j) in set(zip(*pairs))
            expected = dot(y.toarray()[i], y.toarray()[j]) - dot(z[i], z[j]) if inside else 0.0
            assert gap[i, j] == pytest.approx(expected, abs=1e-12)


def peeled(matrix, rank):
    """The nearest matrix of this rank without negative eigenvalues: power iteration, one direction after another."""
    matrix, size = matrix.copy(), len(matrix)
    shift = np.abs(matrix).sum(1).max()  # so that the largest eigenvalue is the one of largest magnitude
    found = np.zeros_like(matrix)
    for _ in range(rank):
        vector = np.linspace(1, 2, size)
        for _ in range(3000):
            vector = matrix @ vector + shift * vector
            vector /= math.sqrt(dot(vector, vector))
        value = dot(vector, matrix @ vector)
        found += max(value, 0.0) * np.outer(vector, vector)
        matrix -= value * np.outer(vector, vector)
    return found


def test_the_projection_keeps_the_largest_eigenvalues():
    """Where the directions looked at span everything; one of the three kept eigenvalues is negative."""
    rng = np.random.default_rng(2)
    turn = np.linalg.qr(rng.standard_normal((6, 6)))[0]
    wanted = turn @ np.diag([3.0, 1.0, -0.1, -0.5, -2.0, -4.0]) @ turn.T
    z = rng.standard_normal((6, 3))
    basis = np.linalg.qr(z)[0]
    found, directions = projected(z, basis, sparse.csr_array(wanted - z @ z.T))
    assert found @ found.T == pytest.approx(peeled(wanted, 3), abs=1e-8)
    assert directions.T @ directions == pytest.approx(np.eye(3), abs=1e-10)


def error(y, z, k):
    """The squared error on the pairs, by a loop."""
    y = y.toarray()
    return sum((dot(y[i], y[j]) - dot(z[i], z[j])) ** 2 for i, j in looped_pairs(y, k))


def test_every_step_lessens_the_error_on_the_pairs():
    y = unit_rows(some_rows(3, 30, 12, 0.2))
    options = Sleec(rank=4, neighbours=5)
    errors = [
        error(y, embedded(y, replace(options, steps=steps), np.random.default_rng(0)), 5) for steps in (1, 2, 4, 8, 60)
    ]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < errors[0] / 2


def test_with_all_pairs_it_is_the_best_of_its_rank():
    y = unit_rows(some_rows(4, 12, 7))
    z = embedded(y, Sleec(rank=3, neighbours=12, steps=60), np.random.default_rng(0))
    assert z @ z.T == pytest.approx(peeled((y @ y.T).toarray(), 3), abs=1e-6)


def descended(x, z, ridge):
    """Ridge regression feature after feature, many times."""
    weight = np.zeros((x.shape[1], z.shape[1]))
    for _ in range(300):
        for f in range(len(weight)):  # the least over one feature's weights
            rest = z - x @ weight + np.outer(x[:, f], weight[f])
            weight[f] = x[:, f] @ rest / (x[:, f] @ x[:, f] + ridge)
    return weight


@pytest.mark.parametrize("shape", [(9, 4), (4, 9)])
def test_ridge_is_the_least(shape):
    """By the Gram matrix of the features, and where there are more features than rows, of the rows."""
    x = some_rows(5, *shape, 0.6)
    z = np.random.default_rng(5).standard_normal((shape[0], 2))
    assert ridge_solver(x, 0.7)(z) == pytest.approx(descended(x.toarray(), z, 0.7), abs=1e-6)
    assert np.array_equal(regressed(x, z, 0.7, 0.0), ridge_solver(x, 0.7)(z))


def test_sparsity_thresholds_what_is_computed():
    """One feature a row: |z - v|^2 + ridge v^2 + mu |v| is least where v is z shrunk by mu / 2, over 1 + ridge."""
    z = np.array([[2.0, -0.3], [0.5, -1.5], [0.05, 0.9]])
    found = regressed(sparse.csr_array(np.eye(3)), z, 0.25, 0.8)
    expected = [[math.copysign(max(abs(value) - 0.4, 0.0), value) / 1.25 for value in row] for row in z]
    assert found == pytest.approx(np.array(expected), abs=1e-3)


def test_votes_are_those_of_a_loop():
    rng = np.random.default_rng(6)
    x, y, known = some_rows(6, 5, 4, 0.8), some_rows(7, 9, 6), some_rows(8, 9, 4, 0.8)
    y.data[:] = 1
    weight = rng.standard_normal((4, 3))
    emb = known @ weight
    local = Local(weight, emb / np.linalg.norm(emb, axis=1, keepdims=True), y)
    found = local_votes(local, x, 3)
    for row in range(5):
        here = x.toarray()[row] @ weight
        cosine = [dot(here, there) / math.sqrt(dot(here, here) * dot(there, there)) for there in emb]
        near = sorted(range(9), key=lambda n: -cosine[n])[:3]
        assert found[row] == pytest.approx(sum(y.toarray()[n] for n in near) / 3)


def test_clusters_are_settled():
    """Each row is with its nearest centre, each centre is the direction of its rows' sum, and none is empty."""
    x = unit_rows(some_rows(9, 40, 6))
    centre, group = clustered(x, 5, np.random.default_rng(0))
    dense = x.toarray()
    assert sorted(set(group)) == list(range(len(centre)))
    for row in range(40):
        assert dot(dense[row], centre[group[row]]) == pytest.approx(max(dot(dense[row], one) for one in centre))
    for number, one in enumerate(centre):
        total = dense[group == number].sum(0)
        assert one == pytest.approx(total / math.sqrt(dot(total, total)))
    assert np.array_equal(nearest_centre(x, centre), group)


def tagged(seed, rows):
    """Rows about two of twelve topics: a topic brings a label and three of 160 features; some 20 more are stray."""
    rng = np.random.default_rng(seed)
    x, y = rng.random((rows, 160)) < 0.15, np.zeros((rows, 12))
    for row in range(rows):
        for topic in rng.choice(12, 2, replace=False):
            y[row, topic] = 1
            x[row, 3 * topic : 3 * topic + 3] = True
    return sparse.csr_array(x.astype(np.float32)), sparse.csr_array(y.astype(np.float32))


OPTIONS = Sleec(learners=2, clusters=2, rank=12, neighbours=20, steps=5, ridge=0.5, voters=10)


def hits(options, seed=0):
    """P@1 on other rows."""
    x, y = tagged(0, 400)
    other, true = tagged(1, 200)
    total = sum(votes(learner, other, options.voters) for learner in fit(x, y, options, seed))
    return true.toarray()[np.arange(200), total.argmax(1)].mean()


def test_it_finds_labels_and_random_embeddings_do_not():
    assert hits(OPTIONS) > 0.85
    assert hits(replace(OPTIONS, steps=0)) < 0.6  # the embeddings are then the random start


def test_a_seed_repeats_and_another_does_not():
    x, y = tagged(0, 60)
    first, again, other = (next(fit(x, y, OPTIONS, seed)).centre_GF for seed in (0, 0, 1))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_more_than_there_are_is_all():
    """Rank, neighbours, voters and clusters beyond the rows, a row without labels and one without features."""
    x, y = tagged(0, 6)
    x, y = sparse.csr_array(x.toarray()), sparse.csr_array(y.toarray())
    x.data[x.indptr[2] : x.indptr[3]] = 0
    y.data[y.indptr[4] : y.indptr[5]] = 0
    options = Sleec(learners=1, clusters=9, rank=50, neighbours=50, voters=50)
    (learner,) = fit(x, y, options, 0)
    assert np.isfinite(votes(learner, x, 50)).all()


@pytest.mark.parametrize("wrong", [{"rank": 0}, {"voters": 0}, {"ridge": 0.0}, {"steps": -1}, {"sparsity": -1.0}])
def test_wrong_options_are_named(wrong):
    with pytest.raises(SelfsameError, match=next(iter(wrong))):
        Sleec(**wrong)
