"""Scores as evidence: log-likelihood ratios by logistic regression, and what they cost (Cllr).

A log-likelihood ratio (natural logarithm) says how much more probable a score is from the owner than from a stranger.
NumPy alone, so that a device can use it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from selfsame.errors import SelfsameError

Floats = NDArray[np.float64]

_STEPS = 200
_STEEPEST = 1e6  # in units of the scores' spread


@dataclass(frozen=True)
class Calibration:
    """log-likelihood ratio = slope * score + offset."""

    slope: float
    offset: float

    def llr(self, score: ArrayLike) -> Floats:
        out: Floats = self.slope * np.asarray(score, np.float64) + self.offset
        return out


def calibrate(genuine: ArrayLike, impostor: ArrayLike) -> Calibration:
    """The logistic regression whose two kinds of trials weigh the same, so that its logit is a likelihood ratio.

    Targets are Platt's, (G + 1) / (G + 2) and 1 / (I + 2) for G and I trials: kinds that never mix still have a finite
    slope. Newton's method on the standardised scores; a slope below 0 becomes 0.
    """
    own, other = _checked("genuine", genuine), _checked("impostor", impostor)
    score = np.concatenate([own, other])
    centre, spread = float(score.mean()), float(score.std())
    if spread == 0:
        return Calibration(0.0, 0.0)
    x_T2 = np.stack([(score - centre) / spread, np.ones(len(score))], 1)
    target = np.repeat([(len(own) + 1) / (len(own) + 2), 1 / (len(other) + 2)], [len(own), len(other)])
    weight = np.repeat([0.5 / len(own), 0.5 / len(other)], [len(own), len(other)])
    beta, loss = np.zeros(2), math.inf
    for _ in range(_STEPS):
        p = _sigmoid(x_T2 @ beta)
        slope = x_T2.T @ (weight * (p - target))
        bend = (x_T2 * (weight * p * (1 - p))[:, None]).T @ x_T2 + 1e-12 * np.eye(2)
        step = np.linalg.solve(bend, slope)
        before = _loss(x_T2 @ beta, target, weight)
        for length in (1.0, 0.5, 0.25, 0.1, 0.01):
            loss = _loss(x_T2 @ (beta - length * step), target, weight)
            if loss < before:
                beta = beta - length * step
                break
        if not loss < before - 1e-14:
            break
    beta[0] = min(max(beta[0], 0.0), _STEEPEST)
    return Calibration(float(beta[0] / spread), float(beta[1] - beta[0] * centre / spread))


def cllr(genuine: ArrayLike, impostor: ArrayLike) -> float:
    """What log-likelihood ratios cost, in bits: 0 is perfect, 1 is what a ratio of 1 for everybody costs."""
    own, other = _checked("genuine", genuine), _checked("impostor", impostor)
    return float((np.logaddexp(0, -own).mean() + np.logaddexp(0, other).mean()) / (2 * math.log(2)))


def min_cllr(genuine: ArrayLike, impostor: ArrayLike) -> float:
    """The least Cllr that any rising function of the scores has: pool adjacent violators, equal scores together."""
    own, other = _checked("genuine", genuine), _checked("impostor", impostor)
    score = np.concatenate([own, other])
    level, place = np.unique(score, return_inverse=True)
    up = np.bincount(place[: len(own)], minlength=len(level)).astype(np.float64)
    down = np.bincount(place[len(own) :], minlength=len(level)).astype(np.float64)
    total = 0.0
    for g, i in _pooled(up / len(own), down / len(other)):
        # Within a block all have the ratio (g / i); a block of one kind alone costs nothing.
        total += (g * math.log1p(i / g) if g else 0.0) + (i * math.log1p(g / i) if i else 0.0)
    return total / (2 * math.log(2))


def _pooled(up: Floats, down: Floats) -> list[tuple[float, float]]:
    """The blocks (share of genuine, share of impostor trials) in which the share of genuine ones rises."""
    blocks: list[tuple[float, float]] = []
    for g, i in zip(up.tolist(), down.tolist()):
        while blocks and blocks[-1][0] * i >= g * blocks[-1][1]:
            g, i = g + blocks[-1][0], i + blocks[-1][1]
            blocks.pop()
        blocks.append((g, i))
    return blocks


def _loss(logit: Floats, target: Floats, weight: Floats) -> float:
    return float(weight @ (np.logaddexp(0, logit) - target * logit))


def _sigmoid(x: Floats) -> Floats:
    out: Floats = np.exp(-np.logaddexp(0, -x))
    return out


def _checked(name: str, scores: ArrayLike) -> Floats:
    flat = np.asarray(scores, np.float64).reshape(-1)
    if not len(flat) or not np.isfinite(flat).all():
        raise SelfsameError(f"calibration: {name} scores must be finite numbers, and there must be one")
    return flat
