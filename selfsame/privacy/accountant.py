"""What FDML's noise is worth: the paper's epsilon under its own name, and beside it one that holds.

The adversary is a participant, and what it is sent are the noisy derivatives at its own embeddings. Neighbours: another
participant's samples of the round are replaced, all of them or one. The network that all are sent is another channel,
which nothing here bounds. docs/design/noise.md derives what is computed.
"""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Literal

import numpy as np

from selfsame.errors import SelfsameError
from selfsame.privacy.mechanisms import Gaussian, Laplace, Mechanism

MOST_ROUNDS = 100_000
MOST_COORDINATES = 1_000_000
_TAIL = 1e-8  # of delta: the share that a round's unlikely losses may take of it
_LOSSES = 1000  # points between no loss and the largest of a round; fewer where they would be nearer than _NEAR
_NEAR = 1e-5
_LEAST, _STEEP, _MOST = 1e-6, 100.0, 1e5  # losses outside cannot be put on a grid in double precision, nor need it


@dataclass(frozen=True)
class Exchange:
    """What a round carries: a participant's samples, the width of an embedding, and what neighbours differ in."""

    samples: int  # the most that any participant embeds in a round, and so is answered
    dim: int
    unit: Literal["participant", "sample"] = "participant"

    def __post_init__(self) -> None:
        for name, value in (("samples", self.samples), ("dim", self.dim)):
            if value < 1:
                raise SelfsameError(f"privacy: {name} must be at least 1, got {value}")
        if self.coordinates > MOST_COORDINATES:
            raise SelfsameError(f"privacy: samples x dim must be at most {MOST_COORDINATES}, got {self.coordinates}")
        if self.unit not in ("participant", "sample"):
            raise SelfsameError(f"privacy: unit must be participant or sample, got {self.unit}")

    @property
    def coordinates(self) -> int:
        """All that a participant is sent in a round."""
        return self.samples * self.dim

    @property
    def differing(self) -> int:
        """The samples in which neighbours differ."""
        return self.samples if self.unit == "participant" else 1


@dataclass(frozen=True)
class PrivacySpent:
    """What the noise was worth to the device that took part most often."""

    rounds: int  # in which its embeddings were used
    delta: float
    epsilon: float | None  # over all of them; None: not known, see `why`
    why: str = ""  # or what the epsilon does not cover
    paper_epsilon: float | None = None  # Theorem V.1, for Laplace noise


def paper_epsilon(drop: float, clip: float, scale: float) -> float:
    """Theorem V.1: ln[(1 - r) e^(2T/b) + r], for one coordinate, one sample and one round."""
    return amplified(2 * clip / scale, 1 - drop)


def amplified(epsilon: float, rate: float) -> float:
    """ln(1 + q (e^epsilon - 1)): the epsilon of a round that the differing samples enter with probability q."""
    return epsilon + math.log(rate + (1 - rate) * math.exp(-epsilon))


def _before(epsilon: float, rate: float) -> float:
    """The epsilon that amplification brings down to this one."""
    return epsilon - math.log(rate) + math.log1p(-(1 - rate) * math.exp(-epsilon))


def used_rate(drop: float, differing: int) -> float:
    """The chance that at least one of the differing samples is not dropped: 1 - r^m."""
    return 1 - drop**differing


def l1_sensitivity(clip: float, coordinates: int) -> float:
    """2T for every coordinate that a participant is sent: replaced samples can turn each from -T to T."""
    return 2 * clip * coordinates


def pure_epsilon(mechanism: Laplace, exchange: Exchange, rounds: int = 1) -> float:
    """Algorithm 2 at delta 0: the L1 sensitivity over b, amplified by the drop, times the rounds."""
    loss = l1_sensitivity(mechanism.clip, exchange.coordinates) / mechanism.scale
    return rounds * amplified(loss, used_rate(mechanism.drop, exchange.differing))


def gaussian_delta(epsilon: float, mu: float) -> float:
    """The least delta of Gaussian noise, mu = sensitivity / sigma: Phi(mu/2 - e/mu) - exp(e) Phi(-mu/2 - e/mu)."""
    from scipy.special import log_ndtr, ndtr  # slow to import, and few runs have noise

    return float(ndtr(mu / 2 - epsilon / mu) - math.exp(epsilon + log_ndtr(-mu / 2 - epsilon / mu)))


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The least epsilon of Gaussian noise at a delta, mu = sensitivity / sigma."""
    from scipy.optimize import brentq
    from scipy.special import ndtri

    if gaussian_delta(0.0, mu) <= delta:
        return 0.0
    most = mu * (mu / 2 - float(ndtri(delta)))  # the first term alone is delta there
    if mu > 1e4:  # the second is next to nothing beside it, and lost in rounding
        return most
    return float(brentq(lambda epsilon: gaussian_delta(epsilon, mu) - delta, 0.0, most, xtol=1e-12, rtol=1e-12))


def composed_epsilon(mechanism: Mechanism, exchange: Exchange, rounds: int, delta: float) -> float:
    """The epsilon of what one participant learns of another in the rounds that both take part in, at a delta."""
    _check(rounds, delta)
    if rounds == 0:
        return 0.0
    if isinstance(mechanism, Laplace):
        simple = pure_epsilon(mechanism, exchange, rounds)
    else:  # rounds of equal noise are one round with sqrt(rounds) of the sensitivity, exactly
        simple = gaussian_epsilon(_mu(mechanism) * math.sqrt(rounds), delta) if delta else math.inf
    if delta == 0 or (isinstance(mechanism, Gaussian) and mechanism.drop == 0):
        return simple
    one = _one_round(mechanism, exchange, delta)
    return simple if one is None else min(simple, float(one.self_compose(rounds).get_epsilon_for_delta(delta)))


def rounds_within(mechanism: Mechanism, exchange: Exchange, epsilon: float, delta: float) -> int:
    """The most rounds that a participant can take part in for an epsilon at a delta."""
    _check_budget(epsilon)

    def fits(rounds: int) -> bool:
        return composed_epsilon(mechanism, exchange, rounds, delta) <= epsilon

    most = 1
    while most < MOST_ROUNDS and fits(most):
        most = min(2 * most, MOST_ROUNDS)
    return bisect.bisect_left(range(most + 1), True, lo=most // 2 + 1, key=lambda rounds: not fits(rounds)) - 1


def gaussian_sigma(
    clip: float, exchange: Exchange, rounds: int, epsilon: float, delta: float, drop: float = 0.0
) -> float:
    """The least deviation for which a participant's rounds stay within an epsilon at a delta."""
    from scipy.optimize import brentq

    _check(rounds, delta)
    _check_budget(epsilon)
    if rounds == 0 or delta == 0:
        raise SelfsameError("privacy: the Gaussian mechanism takes at least 1 round and a delta above 0")
    low = high = 1e-13  # mu: too small for the least delta, then large enough
    while gaussian_delta(epsilon, high) < delta:
        high *= 2
    mu = brentq(lambda mu: gaussian_delta(epsilon, mu) - delta, low, high, xtol=1e-15, rtol=1e-12) / math.sqrt(rounds)
    sigma = 2 * clip / mu
    if drop == 0:
        return sigma
    least = sigma  # without the drop's help; with it less will do
    while composed_epsilon(Gaussian(clip, least, drop), exchange, rounds, delta) <= epsilon:
        sigma, least = least, least / 2
    while sigma - least > 1e-4 * sigma:
        middle = (sigma + least) / 2
        fits = composed_epsilon(Gaussian(clip, middle, drop), exchange, rounds, delta) <= epsilon
        sigma, least = (middle, least) if fits else (sigma, middle)
    return sigma


def _mu(mechanism: Gaussian) -> float:
    """The L2 sensitivity over sigma: two vectors of length C are at most 2C apart."""
    return 2 * mechanism.clip / mechanism.sigma


@lru_cache(maxsize=64)
def _one_round(mechanism: Mechanism, exchange: Exchange, delta: float) -> Any:
    """The distribution of a round's privacy loss, for dp-accounting to compose; none where it fits no grid.

    With P0 for the round without the differing samples, P = (1-q) P0 + q P1 and Q = (1-q) P0 + q Q1 have
    delta(ln(1 + q (e^eps - 1))) <= q delta0(eps), where delta0 bounds all three pairs; below 0 symmetry gives it.
    """
    pld, pld_pmf = _dp_accounting()
    rate = used_rate(mechanism.drop, exchange.differing)
    tail = delta * _TAIL
    if isinstance(mechanism, Laplace):
        coordinate = 2 * mechanism.clip / mechanism.scale
        reach = coordinate * exchange.coordinates
        if not _LEAST < coordinate < _STEEP or reach > _MOST:
            return None
        parts = min(max(20480 // exchange.coordinates, 2), 20)  # of a coordinate's largest loss
        base = pld.from_laplace_mechanism(1.0, sensitivity=coordinate, value_discretization_interval=coordinate / parts)
        base = base.self_compose(exchange.coordinates, tail_mass_truncation=tail / 10)
        reach = min(reach, base.get_epsilon_for_delta(tail))
        delta0 = base.get_delta_for_epsilon
    else:
        reach = gaussian_epsilon(_mu(mechanism), tail)
        delta0 = partial(gaussian_delta, mu=_mu(mechanism))
    reach = amplified(reach, rate)
    if not _LEAST < reach < _MOST:
        return None
    count = min(max(int(reach / _NEAR), 50), _LOSSES)
    loss_L = np.arange(count + 1) * (reach / count)
    delta_L = np.array([rate * delta0(_before(float(loss), rate)) for loss in loss_L])
    below_L = 1 - np.exp(-loss_L[:0:-1]) * (1 - delta_L[:0:-1])
    delta_L = np.minimum.accumulate(np.clip(np.concatenate([below_L, delta_L]), 0, 1))
    pmf = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(reach / count, -count, count, delta_L)
    return pld.PrivacyLossDistribution(pmf)


def _dp_accounting() -> tuple[Any, Any]:
    try:
        from dp_accounting.pld import pld_pmf, privacy_loss_distribution
    except ImportError:
        raise SelfsameError("privacy: composition needs dp-accounting: pip install 'selfsame[privacy]'") from None
    return privacy_loss_distribution, pld_pmf


def _check(rounds: int, delta: float) -> None:
    if not 0 <= rounds <= MOST_ROUNDS:
        raise SelfsameError(f"privacy: rounds must be 0 to {MOST_ROUNDS}, got {rounds}")
    if delta != 0 and not 1e-12 <= delta < 1:
        raise SelfsameError(f"privacy: delta must be 0, or at least 1e-12 and below 1, got {delta}")


def _check_budget(epsilon: float) -> None:
    if not (math.isfinite(epsilon) and epsilon > 0):
        raise SelfsameError(f"privacy: epsilon must be a number above 0, got {epsilon}")
