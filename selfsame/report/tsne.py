"""t-SNE (van der Maaten and Hinton, 2008) of a few hundred points, exact, by numpy alone, the same every time.

The library's takes longer to import than this to run. It begins with the principal components, so it needs no chance.
"""

from __future__ import annotations

import numpy as np

Rows = np.ndarray

_ROUNDS, _EARLY = 300, 100  # steps; those in which neighbours are drawn together more strongly
_PERPLEXITY = 20.0
_HALVINGS = 40


def tsne(x_SD: Rows, begin_S2: Rows) -> Rows:
    """The points in two dimensions, from these places on; identical points keep together."""
    near_SS = _together(_squared(np.asarray(x_SD, float)))
    y = np.asarray(begin_S2, float)
    y = 1e-2 * y / max(float(y[:, 0].std()), 1e-12)
    step, gain = np.zeros_like(y), np.ones_like(y)
    rate = max(len(y) / 48.0, 50.0)
    for number in range(_ROUNDS):
        early = number < _EARLY
        pull = _gradient((12.0 if early else 1.0) * near_SS, y)
        gain = np.where(np.sign(pull) == np.sign(step), 0.8 * gain, gain + 0.2).clip(0.01)
        step = (0.5 if early else 0.8) * step - rate * gain * pull
        y = y + step
    return np.asarray(y - y.mean(0))


def _gradient(near_SS: Rows, y: Rows) -> Rows:
    """(5): 4 sum_j (p_ij - q_ij) (y_i - y_j) / (1 + |y_i - y_j|^2)."""
    heavy = 1.0 / (1.0 + _squared(y))
    np.fill_diagonal(heavy, 0.0)
    force = (near_SS - heavy / heavy.sum()) * heavy
    return np.asarray(4.0 * (force.sum(1)[:, None] * y - force @ y))


def _squared(x: Rows) -> Rows:
    """Squared distances of each to each."""
    length = (x * x).sum(1)
    return np.maximum(length[:, None] + length[None] - 2.0 * x @ x.T, 0.0)


def _together(far_SS: Rows) -> Rows:
    """(1) and symmetric: how likely two are neighbours, with as many neighbours each as the perplexity says."""
    count = len(far_SS)
    perplexity = min(_PERPLEXITY, (count - 1) / 3)
    other = ~np.eye(count, dtype=bool)
    far = far_SS[other].reshape(count, -1)
    far = far - far.min(1, keepdims=True)
    low, high = np.zeros(count), np.full(count, np.inf)
    sharp = 1.0 / np.maximum(far.mean(1), 1e-12)
    for _ in range(_HALVINGS):
        weight = np.exp(-far * sharp[:, None])
        total = weight.sum(1)
        entropy = np.log(total) + sharp * (far * weight).sum(1) / total
        wide = entropy > np.log(perplexity)
        low, high = np.where(wide, sharp, low), np.where(wide, high, sharp)
        sharp = np.where(np.isinf(high), 2.0 * sharp, (low + high) / 2.0).clip(max=1e12)
    weight = np.exp(-far * sharp[:, None])
    near = np.zeros((count, count))
    near[other] = (weight / weight.sum(1, keepdims=True)).ravel()
    return (near + near.T) / (2.0 * count)
