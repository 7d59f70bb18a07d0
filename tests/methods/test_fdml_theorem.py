"""FDML's Theorem VI.2 in plain loops: where it is wrong, and what holds instead (docs/results/fdml.md).

Client i has f_i(x) = a_i (x - b_i)^2 / 2 and sends its derivative with an error of plus or minus `noise`; it is
collected with a chance of rho. All that can happen is walked through, so that expectations are exact.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st


@dataclass(frozen=True)
class Clients:
    bends: tuple[float, ...]  # a
    centres: tuple[float, ...]  # b
    noise: float = 0.0
    together: bool = False  # collected all or none, as by strategy AS

    @property
    def smooth(self) -> float:
        """L of f"""
        return sum(self.bends) / len(self.bends)

    def slopes(self, x: float) -> list[float]:
        return [a * (x - b) for a, b in zip(self.bends, self.centres, strict=True)]

    def slope(self, x: float) -> float:
        return sum(self.slopes(x)) / len(self.bends)

    def value(self, x: float) -> float:
        return sum(a * (x - b) ** 2 / 2 for a, b in zip(self.bends, self.centres, strict=True)) / len(self.bends)

    @property
    def least(self) -> float:
        """f(x*)"""
        return self.value(sum(a * b for a, b in zip(self.bends, self.centres, strict=True)) / sum(self.bends))

    def collected(self, rho: float) -> Iterator[tuple[float, tuple[int, ...]]]:
        """(chance, who is collected)"""
        count = len(self.bends)
        if self.together:
            yield rho, (1,) * count
            yield 1 - rho, (0,) * count
            return
        for there in itertools.product((0, 1), repeat=count):
            yield math.prod(rho if one else 1 - rho for one in there), there

    def stepped(self, x: float, lr: float, rho: float) -> Iterator[tuple[float, float]]:
        """(chance, where x goes), by (6) of the paper."""
        count = len(self.bends)
        errors = list(itertools.product((self.noise, -self.noise), repeat=count)) if self.noise else [(0.0,) * count]
        for chance, there in self.collected(rho):
            for error in errors:
                sent = [c * (s + e) for c, s, e in zip(there, self.slopes(x), error, strict=True)]
                yield chance / len(errors), x - lr * sum(sent) / count


@dataclass(frozen=True)
class Walk:
    squares: list[float]  # E |f'(x_t)|^2 of every round
    sigma2: float  # the most that the mean of |f_i'|^2 was


def walk(clients: Clients, first: float, rates: Sequence[float], rhos: Sequence[float]) -> Walk:
    places, squares, sigma2 = [(1.0, first)], [], 0.0
    for lr, rho in zip(rates, rhos, strict=True):
        squares.append(sum(chance * clients.slope(x) ** 2 for chance, x in places))
        sigma2 = max(sigma2, *(sum(s * s for s in clients.slopes(x)) / len(clients.bends) for _, x in places))
        places = [
            (chance * part, after) for chance, x in places for part, after in clients.stepped(x, lr, rho) if part > 0
        ]
    return Walk(squares, sigma2)


def as_printed(clients: Clients, first: float, lr: float, rhos: Sequence[float], sigma2: float) -> float:
    """The right side of Theorem VI.2."""
    start = 2 * (clients.value(first) - clients.least) / (lr * len(rhos))
    return start + (lr + lr**2 * clients.smooth) * sigma2 / 2 * sum(1 - rho for rho in rhos)


def corrected(clients: Clients, first: float, rates: Sequence[float], rhos: Sequence[float], sigma2: float) -> float:
    """What sum gamma_t rho_t E |grad f(x_t)|^2 is at most."""
    noise2 = clients.noise**2
    count, total = len(clients.bends), 2 * (clients.value(first) - clients.least)
    for lr, rho in zip(rates, rhos, strict=True):
        lost = 0.0 if clients.together else (1 - rho) * sigma2
        total += clients.smooth / count * lr**2 * rho * (noise2 + lost)
    return total


def weighted(found: Walk, rates: Sequence[float], rhos: Sequence[float]) -> float:
    return sum(lr * rho * square for lr, rho, square in zip(rates, rhos, found.squares, strict=True))


@pytest.mark.parametrize(("lr", "holds"), [(0.5, True), (1.0, True), (1.5, False), (1.9, False)])
def test_the_proof_asks_for_the_steps_that_break_it(lr: float, holds: bool) -> None:
    """It supposes lr >= 1/L. Everybody answers, there is no noise, f = x^2 / 2: it holds up to 1/L and fails above."""
    clients = Clients((1.0,), (0.0,))
    found = walk(clients, 1.0, [lr] * 60, [1.0] * 60)
    mean = sum(found.squares) / 60
    assert (mean <= as_printed(clients, 1.0, lr, [1.0] * 60, found.sigma2) + 1e-12) is holds


def test_noise_in_the_gradients_is_missing() -> None:
    """From the minimum, everybody answering, the right side is 0; one noisy step leaves the minimum."""
    clients = Clients((1.0, 1.0), (1.0, -1.0), noise=1.0)
    rates, rhos = [0.1] * 3, [1.0] * 3
    found = walk(clients, 0.0, rates, rhos)
    assert as_printed(clients, 0.0, 0.1, rhos, found.sigma2) == 0
    assert sum(found.squares) / 3 > 0.004
    assert weighted(found, rates, rhos) <= corrected(clients, 0.0, rates, rhos, found.sigma2)


def test_the_last_sum_has_the_wrong_factor() -> None:
    """A step of a tenth of 1/L, no noise, each round answered with a chance of 0.4: the paper's exceptions of 0.6."""
    smooth, lr, rho, first, rounds = 1000.0, 1e-4, 0.4, 1e-3, 60
    clients = Clients((smooth,), (0.0,))
    square, squares = first**2, []
    for _ in range(rounds):
        squares.append(smooth**2 * square)
        square *= 1 - rho + rho * (1 - lr * smooth) ** 2
    short = walk(clients, first, [lr] * 5, [rho] * 5)
    assert short.squares == pytest.approx(squares[:5])
    mean, sigma2 = sum(squares) / rounds, squares[0]
    assert sigma2 == pytest.approx(1)
    printed = as_printed(clients, first, lr, [rho] * rounds, sigma2)
    assert mean == pytest.approx(0.217, abs=1e-3) and printed == pytest.approx(0.169, abs=1e-3)
    held = corrected(clients, first, [lr] * rounds, [rho] * rounds, sigma2)
    assert lr * rho * sum(squares) <= held


def test_the_last_sum_grows_with_the_rounds() -> None:
    """With one part in ten lost in every round the right side grows without end, and promises nothing."""
    clients = Clients((1.0,), (0.0,))
    sides = [as_printed(clients, 1.0, 0.1, [0.9] * rounds, 1.0) for rounds in (100, 1000, 10000)]
    assert sides[0] < sides[1] < sides[2] and sides[2] > 50


bends = st.lists(st.floats(-0.5, 3), min_size=2, max_size=2).filter(lambda a: sum(a) > 0.2)
places = st.floats(-2, 2)


@given(
    bends=bends,
    centres=st.tuples(places, places),
    first=places,
    noise=st.sampled_from([0.0, 0.5, 2.0]),
    together=st.booleans(),
    rounds=st.lists(st.tuples(st.floats(0.01, 1), st.floats(0.05, 1)), min_size=1, max_size=2),
)
def test_the_corrected_theorem_holds(
    bends: list[float],
    centres: tuple[float, float],
    first: float,
    noise: float,
    together: bool,
    rounds: list[tuple[float, float]],
) -> None:
    """Steps up to 1/(rho L), or 1/L where a round is collected whole or not at all."""
    clients = Clients((bends[0], bends[1]), centres, noise, together)
    rhos = [rho for _, rho in rounds]
    rates = [share / clients.smooth / (1 if together else rho) for share, rho in rounds]
    found = walk(clients, first, rates, rhos)
    held = corrected(clients, first, rates, rhos, found.sigma2)
    assert weighted(found, rates, rhos) <= held * (1 + 1e-9) + 1e-9
