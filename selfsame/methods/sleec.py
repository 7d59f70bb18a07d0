"""SLEEC, the oracle of FedAwS's Table 3: local embeddings that keep near label vectors near (Bhatia et al., 2015).

Not federated: it sees all rows and all labels. A learner splits the training rows into clusters by their features. In
each cluster it finds embeddings whose inner products are those of the label vectors, for the nearest pairs alone; it
learns to compute them from the features; and a new row takes the labels of the training rows near to it there. Learners
differ by their clusters, and their votes are added.

Shapes: N training rows, S other rows, F features, C labels, G clusters, R rank, P pairs, K neighbours.
Features and labels are sparse matrices of SciPy in CSR form.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, sparse

from selfsame.errors import SelfsameError
from selfsame.streams import host_generator

Csr = Any  # scipy.sparse.csr_array
Floats = NDArray[np.floating[Any]]
Ints = NDArray[np.int64]
Solver = Callable[[Floats], Floats]

_AT_A_TIME = 1 << 24  # numbers of one dense block
_ROUNDS = 30  # of k-means, at most
_PENALTY = 1.0  # of ADMM, rho
_TURNS = 20  # of ADMM


@dataclass(frozen=True)
class Sleec:
    """How embeddings are learnt and read."""

    name: ClassVar[str] = "sleec"

    learners: int = 5
    clusters: int = 1
    rank: int = 100
    neighbours: int = 100  # of a training row, whose inner products with it are kept
    steps: int = 5  # of singular value projection
    ridge: float = 1.0  # lambda, on the regressors
    sparsity: float = 0.0  # mu, on the embeddings that they compute
    voters: int = 20  # training rows whose labels a new row takes
    unit_labels: bool = True  # label vectors of length 1, so that rows with many labels are not near to all

    def __post_init__(self) -> None:
        for name in ("learners", "clusters", "rank", "neighbours", "voters"):
            if getattr(self, name) < 1:
                raise SelfsameError(f"sleec: {name} must be 1 or more, got {getattr(self, name)}")
        if self.steps < 0 or self.ridge <= 0 or self.sparsity < 0:
            raise SelfsameError("sleec: steps and sparsity must be 0 or more, and ridge above 0")

    def scores(self, x_NF: Csr, y_NC: Csr, x_SF: Csr, seed: int) -> Floats:
        """The learners' votes for each label of new rows (S, C), once they have learnt from the training rows."""
        (vote_SC,) = summed_votes(x_NF, y_NC, x_SF, self, seed, (self.voters,))
        return vote_SC


@dataclass(frozen=True)
class Local:
    """What is learnt in one cluster."""

    weight_FR: Floats
    emb_NR: Floats  # of its training rows, as computed from their features, of length 1
    label_NC: Csr


@dataclass(frozen=True)
class Learner:
    """One clustering and what is learnt in each of its clusters."""

    centre_GF: Floats
    locals_G: tuple[Local, ...]


def fit(x_NF: Csr, y_NC: Csr, options: Sleec, seed: int) -> Iterator[Learner]:
    """The learners, one after another (Algorithm 1)."""
    x_NF = unit_rows(x_NF)
    for number in range(options.learners):
        rng = host_generator(seed, "sleec", number)
        centre_GF, group_N = clustered(x_NF, min(options.clusters, x_NF.shape[0]), rng)
        rows_G = [np.flatnonzero(group_N == group) for group in range(len(centre_GF))]
        yield Learner(centre_GF, tuple(learnt(x_NF[rows], y_NC[rows], options, rng) for rows in rows_G))


def learnt(x_NF: Csr, y_NC: Csr, options: Sleec, rng: np.random.Generator) -> Local:
    """Embeddings of a cluster's rows and their regressors (the loop of Algorithm 1)."""
    target_NC = unit_rows(y_NC) if options.unit_labels else y_NC
    z_NR = embedded(target_NC, options, rng)
    weight_FR = regressed(x_NF, z_NR, options.ridge, options.sparsity)
    return Local(weight_FR, _unit(x_NF @ weight_FR), y_NC)


def summed_votes(x_NF: Csr, y_NC: Csr, x_SF: Csr, options: Sleec, seed: int, voters: Sequence[int]) -> list[Floats]:
    """The sums of the learners' votes (S, C), for each of some numbers of rows that vote."""
    total: list[Any] = [0] * len(voters)
    for learner in fit(x_NF, y_NC, options, seed):
        total = [so_far + votes(learner, x_SF, k) for so_far, k in zip(total, voters, strict=True)]
    return total


def votes(learner: Learner, x_SF: Csr, voters: int) -> Floats:
    """The share of each label among the nearest training rows, in the cluster of the nearest centre (Algorithm 2)."""
    x_SF = unit_rows(x_SF)
    group_S = nearest_centre(x_SF, learner.centre_GF)
    vote_SC = np.zeros((x_SF.shape[0], learner.locals_G[0].label_NC.shape[1]), x_SF.dtype)
    for group, local in enumerate(learner.locals_G):
        rows = np.flatnonzero(group_S == group)
        if len(rows):
            vote_SC[rows] = local_votes(local, x_SF[rows], voters)
    return vote_SC


def local_votes(local: Local, x_SF: Csr, voters: int) -> Floats:
    """The mean of the label vectors of the `voters` training rows whose embeddings have the highest cosine."""
    emb_SR = _unit(x_SF @ local.weight_FR)
    near_SK = _highest(lambda part: emb_SR[part] @ local.emb_NR.T, len(emb_SR), len(local.emb_NR), voters)
    vote_SN = _indicator(near_SK, len(local.emb_NR), emb_SR.dtype)
    return (vote_SN @ local.label_NC).toarray() / near_SK.shape[1]


def unit_rows(x_NF: Csr) -> Csr:
    """The rows at length 1; those of zeros stay."""
    length_N = np.sqrt(x_NF.multiply(x_NF).sum(1))
    scale_N = np.divide(1, length_N, out=np.zeros_like(length_N), where=length_N > 0)
    return sparse.csr_array(sparse.diags_array(scale_N) @ x_NF)


def clustered(x_NF: Csr, clusters: int, rng: np.random.Generator) -> tuple[Floats, Ints]:
    """Spherical k-means from random rows: centres (G, F) of length 1 and the cluster of each row; none is empty."""
    centre_GF = x_NF[np.sort(rng.choice(x_NF.shape[0], clusters, replace=False))].toarray()
    group_N = nearest_centre(x_NF, centre_GF)
    for _ in range(_ROUNDS):
        held, group_N = np.unique(group_N, return_inverse=True)
        member_GN = _indicator(group_N[:, None], len(held), x_NF.dtype).T
        centre_GF = _unit((member_GN @ x_NF).toarray())
        before, group_N = group_N, nearest_centre(x_NF, centre_GF)
        if np.array_equal(before, group_N):
            break
    held, group_N = np.unique(group_N, return_inverse=True)
    return centre_GF[held], group_N


def nearest_centre(x_SF: Csr, centre_GF: Floats) -> Ints:
    return (x_SF @ centre_GF.T).argmax(1)


def neighbour_pairs(y_NC: Csr, k: int) -> tuple[Ints, Ints]:
    """Omega: (row, other) where one is among the k rows of highest inner product with the other, or itself.

    Sorted and without doubles. Of equal products the lower row comes first.
    """
    near_NK = _highest(lambda part: (y_NC[part] @ y_NC.T).toarray(), y_NC.shape[0], y_NC.shape[0], k)
    near_NN = _indicator(near_NK, y_NC.shape[0], y_NC.dtype)
    both_NN = (near_NN + near_NN.T + sparse.eye_array(y_NC.shape[0], dtype=y_NC.dtype)).tocoo()
    order = np.lexsort((both_NN.col, both_NN.row))
    return both_NN.row[order].astype(np.int64), both_NN.col[order].astype(np.int64)


def embedded(y_NC: Csr, options: Sleec, rng: np.random.Generator) -> Floats:
    """Z by singular value projection (Sub-routine 3): Z Z' is near Y Y' on the pairs of neighbours.

    Each step goes down the gradient on the pairs and projects to the matrices of that rank without negative
    eigenvalues. A step of length 1 never makes the error on the pairs larger.
    """
    count = y_NC.shape[0]
    pairs = neighbour_pairs(y_NC, min(options.neighbours, count))
    wanted_P = products(y_NC, *pairs)
    basis_NR = linalg.qr(rng.standard_normal((count, min(options.rank, count))).astype(y_NC.dtype), mode="economic")[0]
    z_NR = basis_NR * (0 if options.steps else 1)
    for _ in range(options.steps):
        z_NR, basis_NR = projected(z_NR, basis_NR, residual(z_NR, pairs, wanted_P))
    return z_NR


def residual(z_NR: Floats, pairs: tuple[Ints, Ints], wanted_P: Floats) -> Csr:
    """Y Y' - Z Z' on the pairs, 0 elsewhere."""
    row_P, other_P = pairs
    gap_P = wanted_P - products(z_NR, row_P, other_P)
    return sparse.csr_array((gap_P, (row_P, other_P)), shape=(len(z_NR), len(z_NR)))


def projected(z_NR: Floats, basis_NR: Floats, gap_NN: Csr) -> tuple[Floats, Floats]:
    """The embedding of rank R nearest to A = Z Z' + gap, and its directions.

    Looked for in the span of the last directions Q and of A Q alone: exact where that is the whole space, and as Z lies
    in it, never further from A than Z is.
    """

    def times(q_NR: Floats) -> Floats:
        return z_NR @ (z_NR.T @ q_NR) + gap_NN @ q_NR

    block_NQ = linalg.qr(np.hstack([basis_NR, times(basis_NR)]), mode="economic")[0]
    small_QQ = block_NQ.T @ times(block_NQ)
    value_Q, vector_QQ = np.linalg.eigh((small_QQ + small_QQ.T) / 2)
    best = np.argsort(-value_Q, kind="stable")[: basis_NR.shape[1]]
    basis_NR = block_NQ @ vector_QQ[:, best]
    return basis_NR * np.sqrt(value_Q[best].clip(min=0)), basis_NR


def products(x_NF: Any, row_P: Ints, other_P: Ints) -> Floats:
    """The inner products of pairs of rows."""
    found = []
    step = max(1, _AT_A_TIME // max(1, x_NF.shape[1]))
    for at in range(0, len(row_P), step):
        one, two = x_NF[row_P[at : at + step]], x_NF[other_P[at : at + step]]
        found.append(one.multiply(two).sum(1) if sparse.issparse(x_NF) else np.einsum("pf,pf->p", one, two))
    return np.concatenate(found)


def regressed(x_NF: Csr, z_NR: Floats, ridge: float, sparsity: float) -> Floats:
    """The V of least |Z - X V|^2 + ridge |V|^2 + sparsity |X V|_1, with the last term by ADMM (Sub-routine 4)."""
    if not sparsity:
        return ridge_solver(x_NF, ridge)(z_NR)
    solve = ridge_solver(x_NF, ridge / (1 + _PENALTY))
    alpha_NR, beta_NR = np.zeros_like(z_NR), np.zeros_like(z_NR)
    for _ in range(_TURNS):
        weight_FR = solve((z_NR + _PENALTY * (alpha_NR - beta_NR)) / (1 + _PENALTY))
        sum_NR = x_NF @ weight_FR + beta_NR
        alpha_NR = np.sign(sum_NR) * (np.abs(sum_NR) - sparsity / (2 * _PENALTY)).clip(min=0)
        beta_NR = sum_NR - alpha_NR
    return weight_FR


def ridge_solver(x_NF: Csr, ridge: float) -> Solver:
    """Z -> the least |Z - X V|^2 + ridge |V|^2, by the smaller of X'X and XX'."""
    rows, features = x_NF.shape
    wide = features > rows
    gram = (x_NF @ x_NF.T if wide else x_NF.T @ x_NF).toarray()
    gram[np.diag_indices_from(gram)] += ridge
    factor = linalg.cho_factor(gram, lower=True, overwrite_a=True)
    if wide:
        return lambda z_NR: x_NF.T @ linalg.cho_solve(factor, z_NR)
    return lambda z_NR: linalg.cho_solve(factor, x_NF.T @ z_NR)


def _unit(x_NF: Floats) -> Floats:
    length_N1 = np.linalg.norm(x_NF, axis=1, keepdims=True)
    return np.divide(x_NF, length_N1, out=np.zeros_like(x_NF), where=length_N1 > 0)


def _highest(score: Callable[[slice], Floats], rows: int, columns: int, k: int) -> Ints:
    """The k columns of highest score of each row, in no order; of equal ones at the edge, the lower column."""
    k = min(k, columns)
    step = max(1, _AT_A_TIME // columns)
    found = [_top(score(slice(at, at + step)), k) for at in range(0, rows, step)]
    return np.concatenate(found)


def _top(score_SN: Floats, k: int) -> Ints:
    edge_S1 = -np.partition(-score_SN, k - 1, axis=1)[:, k - 1 : k]
    above_SN, tied_SN = score_SN > edge_S1, score_SN == edge_S1
    room_S1 = k - above_SN.sum(1, keepdims=True)
    taken_SN = above_SN | (tied_SN & (np.cumsum(tied_SN, 1, np.int32) <= room_S1))
    return np.nonzero(taken_SN)[1].reshape(len(score_SN), k)


def _indicator(column_SK: Ints, columns: int, dtype: Any) -> Csr:
    """1 where a row names a column."""
    rows, k = column_SK.shape
    offset = np.arange(rows + 1) * k
    return sparse.csr_array((np.ones(rows * k, dtype), column_SK.ravel(), offset), shape=(rows, columns))
