"""Accountants against closed forms, against dp-accounting's own events, and against an attacker who counts."""

import itertools
import math
import sys
from importlib.util import find_spec

import numpy as np
import pytest
import torch
import typer
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats
from typer.testing import CliRunner

from selfsame.commands.privacy import privacy, rows
from selfsame.errors import SelfsameError
from selfsame.privacy import accountant
from selfsame.privacy.accountant import (
    Exchange,
    amplified,
    composed_epsilon,
    gaussian_delta,
    gaussian_epsilon,
    gaussian_sigma,
    l1_sensitivity,
    paper_epsilon,
    pure_epsilon,
    rounds_within,
    used_rate,
)
from selfsame.privacy.mechanisms import Gaussian, Laplace, keep, perturb
from selfsame.streams import Stream

composing = pytest.mark.skipif(find_spec("dp_accounting") is None, reason="dp-accounting is not installed")
ONE = Exchange(1, 1, "sample")  # one coordinate about one sample: where closed forms are known
DELTA = 1e-5


# The paper's figure.


@pytest.mark.parametrize("drop, clip, scale", [(0.2, 2e-5, 1e-5), (0.0, 2e-5, 4e-5), (0.9, 1.0, 0.5)])
def test_paper_epsilon_is_theorem_v1(drop, clip, scale):
    want = math.log((1 - drop) * math.exp(2 * clip / scale) + drop)
    assert paper_epsilon(drop, clip, scale) == pytest.approx(want, rel=1e-12)


def test_without_a_drop_it_is_two_t_over_b_however_large():
    assert paper_epsilon(0.0, 1.0, 1e-4) == 20000.0


# One round: sensitivity, and what the drop is worth.


def test_the_l1_sensitivity_is_reached_and_never_passed():
    clip, rng = 0.5, np.random.default_rng(0)
    one, other = np.full((3, 2), 9.0), np.full((3, 2), -9.0)
    reached = np.abs(np.clip(one, -clip, clip) - np.clip(other, -clip, clip)).sum()
    assert l1_sensitivity(clip, 6) == reached == 6.0
    pairs = rng.normal(size=(1000, 2, 3, 2)).clip(-clip, clip)
    assert np.abs(pairs[:, 0] - pairs[:, 1]).sum((1, 2)).max() <= reached


@pytest.mark.parametrize("drop, differing", [(0.2, 1), (0.2, 3), (0.7, 4), (0.0, 2)])
def test_the_rate_counts_patterns_that_keep_a_differing_sample(drop, differing):
    chance = 0.0
    for pattern in itertools.product([True, False], repeat=differing):  # True: kept
        weight = math.prod(1 - drop if kept else drop for kept in pattern)
        chance += weight if any(pattern) else 0.0
    assert used_rate(drop, differing) == pytest.approx(chance, rel=1e-12)


@pytest.mark.parametrize("epsilon, rate", [(0.5, 0.8), (2.0, 0.3), (1.0, 1.0)])
def test_amplification_is_the_worst_of_all_mixtures(epsilon, rate):
    """(1-q) P0 + q P1 against (1-q) P0 + q Q1, all three within epsilon of each other, searched on a grid."""
    worst = 0.0
    ratios = np.exp(np.linspace(-epsilon, epsilon, 201))
    for x in ratios:  # P1 / P0
        for y in ratios:  # Q1 / P0
            if x / y <= math.exp(epsilon) * (1 + 1e-12):
                worst = max(worst, (1 - rate + rate * x) / (1 - rate + rate * y))
    assert amplified(epsilon, rate) == pytest.approx(math.log(worst), rel=1e-9)


def test_pure_epsilon_of_the_papers_setting():
    """TouchAuth: r 0.2, T 2e-5, 8 samples of 64 numbers; where the paper says 8, one round is worth 4,211."""
    scale = 2 * 2e-5 / math.log((math.exp(8) - 0.2) / 0.8)
    assert paper_epsilon(0.2, 2e-5, scale) == pytest.approx(8.0)
    mechanism = Laplace(2e-5, scale, 0.2)
    loss = 512 * math.log((math.exp(8) - 0.2) / 0.8)
    assert pure_epsilon(mechanism, Exchange(8, 64, "sample")) == pytest.approx(loss + math.log(0.8), rel=1e-9)
    assert pure_epsilon(mechanism, Exchange(8, 64), rounds=3) == pytest.approx(
        3 * (loss + math.log(1 - 0.2**8)), rel=1e-9
    )


def test_with_one_coordinate_one_sample_and_one_round_the_paper_is_right():
    mechanism = Laplace(0.3, 0.4, 0.25)
    assert pure_epsilon(mechanism, ONE) == pytest.approx(paper_epsilon(0.25, 0.3, 0.4), rel=1e-12)


# The Gaussian mechanism.


@pytest.mark.parametrize("mu, epsilon", [(0.5, 0.3), (1.0, 1.0), (3.0, 2.0), (0.1, 0.01)])
def test_gaussian_delta_is_the_integral(mu, epsilon):
    def excess(x):
        return max(0.0, stats.norm.pdf(x, mu) - math.exp(epsilon) * stats.norm.pdf(x))

    edge = epsilon / mu + mu / 2  # where the densities' ratio passes e^epsilon
    want, _ = integrate.quad(excess, edge, edge + 12, epsabs=1e-14)
    assert gaussian_delta(epsilon, mu) == pytest.approx(want, rel=1e-8)
    assert gaussian_epsilon(mu, want) == pytest.approx(epsilon, rel=1e-6)


def test_gaussian_epsilon_at_its_ends():
    assert gaussian_epsilon(0.1, 0.5) == 0.0  # half of all outcomes may go wrong: nothing is left to bound
    assert gaussian_epsilon(1e4, 1e-5) == pytest.approx(1e8 / 2 + 4.2649e4, rel=1e-5)
    assert composed_epsilon(Gaussian(1.0, 1.0), ONE, 1, 0.0) == math.inf


@pytest.mark.parametrize("rounds, epsilon", [(1, 1.0), (100, 0.5), (687, 8.0)])
def test_sigma_is_the_least_for_its_target(rounds, epsilon):
    sigma = gaussian_sigma(3.0, Exchange(8, 64), rounds, epsilon, DELTA)
    assert composed_epsilon(Gaussian(3.0, sigma), Exchange(8, 64), rounds, DELTA) == pytest.approx(epsilon, rel=1e-6)
    mu = 2 * 3.0 / sigma * math.sqrt(rounds)
    assert stats.norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * stats.norm.cdf(
        -mu / 2 - epsilon / mu
    ) == pytest.approx(DELTA, rel=1e-6)


@composing
def test_rounds_of_gaussian_noise_are_dp_accountings():
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    ours = composed_epsilon(Gaussian(1.0, 20.0), Exchange(8, 64), 50, DELTA)
    event = dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(20.0 / 2), 50)
    assert ours == pytest.approx(PLDAccountant().compose(event).get_epsilon(DELTA), rel=1e-3)


@composing
def test_renyi_bounds_of_the_gaussian_lie_above():
    """The RDP of order a is a mu^2 / 2 a round; every order's bound is above the exact epsilon, the best near it."""
    from dp_accounting import GaussianDpEvent, SelfComposedDpEvent
    from dp_accounting.rdp import RdpAccountant

    orders, mu, rounds = [1.5, 2.0, 4.0, 8.0, 16.0, 32.0], 0.1, 50
    theirs = RdpAccountant(orders).compose(SelfComposedDpEvent(GaussianDpEvent(1 / mu), rounds))
    exact = composed_epsilon(Gaussian(mu / 2, 1.0), ONE, rounds, DELTA)
    bounds = [rounds * a * mu**2 / 2 + math.log(1 / DELTA) / (a - 1) for a in orders]
    assert exact < theirs.get_epsilon(DELTA) <= min(bounds)
    assert theirs.get_epsilon(DELTA) < 1.2 * exact


# Composition by dp-accounting.


@composing
@pytest.mark.parametrize("drop", [0.0, 0.4])
@pytest.mark.parametrize("loss", [0.01, 1.0, 20.0])
def test_one_coordinate_in_one_round_has_a_closed_form(loss, drop):
    """delta0 of Laplace noise is 1 - exp((eps - 2T/b) / 2)."""
    before = loss + 2 * math.log(1 - 1e-3 / (1 - drop))
    want = math.log(1 + (1 - drop) * math.expm1(before))
    assert composed_epsilon(Laplace(loss / 2, 1.0, drop), ONE, 1, 1e-3) == pytest.approx(want, rel=2e-3)


@composing
@pytest.mark.parametrize("loss", [0.003, 0.05, 1.0])
def test_rounds_of_laplace_noise_are_dp_accountings(loss):
    from dp_accounting import LaplaceDpEvent, SelfComposedDpEvent
    from dp_accounting.pld import PLDAccountant

    ours = composed_epsilon(Laplace(loss / 2, 1.0), Exchange(3, 4), 25, DELTA)
    theirs = PLDAccountant(value_discretization_interval=loss / 50)
    event = SelfComposedDpEvent(LaplaceDpEvent(1 / loss), 3 * 4 * 25)
    assert ours == pytest.approx(theirs.compose(event).get_epsilon(DELTA), rel=2e-3)


def optimal_composition(epsilon, rounds, delta):
    """The exact epsilon of the worst pure mechanism, randomised response, composed (Kairouz, Oh and Viswanath)."""
    for i in range(rounds // 2 + 1):  # from strong to weak
        sure = (rounds - 2 * (rounds // 2 - i)) * epsilon
        total = sum(
            math.comb(rounds, lies)
            * max(0.0, math.exp((rounds - lies) * epsilon) - math.exp(sure + lies * epsilon))
            / (1 + math.exp(epsilon)) ** rounds
            for lies in range(rounds + 1)
        )
        if total <= delta:
            return sure
    return rounds * epsilon


@composing
@pytest.mark.parametrize("drop", [0.0, 0.5])
def test_composition_is_below_the_known_bounds(drop):
    mechanism, exchange, rounds = Laplace(0.01, 1.0, drop), Exchange(2, 3, "sample"), 60
    one = pure_epsilon(mechanism, exchange)
    ours = composed_epsilon(mechanism, exchange, rounds, DELTA)
    advanced = math.sqrt(2 * rounds * math.log(1 / DELTA)) * one + rounds * one * math.expm1(one)
    assert ours < optimal_composition(one, rounds, DELTA) < advanced < rounds * one


@composing
def test_a_sampled_round_is_dp_accountings_and_many_are_above():
    """In one round the absent sample costs what removing it does; over many, both directions count at once."""
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    def theirs(event, rounds):
        sampled = dp_accounting.SelfComposedDpEvent(dp_accounting.PoissonSampledDpEvent(0.3, event), rounds)
        return PLDAccountant(value_discretization_interval=5e-4).compose(sampled).get_epsilon(DELTA)

    for mechanism, event in (
        (Gaussian(0.3, 1.0, 0.7), dp_accounting.GaussianDpEvent(1 / 0.6)),
        (Laplace(0.3, 1.0, 0.7), dp_accounting.LaplaceDpEvent(1 / 0.6)),
    ):
        assert composed_epsilon(mechanism, ONE, 1, DELTA) == pytest.approx(theirs(event, 1), rel=5e-3)
        many = composed_epsilon(mechanism, ONE, 40, DELTA)
        assert theirs(event, 40) < many < 1.3 * theirs(event, 40)


@composing
def test_sampled_rounds_are_below_the_renyi_bound_for_replacement():
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    replaced = dp_accounting.NeighboringRelation.REPLACE_ONE
    event = dp_accounting.SampledWithoutReplacementDpEvent(1000, 100, dp_accounting.GaussianDpEvent(5.0))
    theirs = RdpAccountant(neighboring_relation=replaced).compose(dp_accounting.SelfComposedDpEvent(event, 100))
    ours = composed_epsilon(Gaussian(0.1, 1.0, 0.9), ONE, 100, DELTA)
    assert 0.2 * theirs.get_epsilon(DELTA) < ours < theirs.get_epsilon(DELTA)


@composing
def test_sigma_with_a_drop_is_smaller_and_within_the_target():
    exchange = Exchange(4, 8, "sample")
    full, less = (gaussian_sigma(1.0, exchange, 30, 2.0, DELTA, drop) for drop in (0.0, 0.5))
    assert less < 0.8 * full
    assert 0.99 * 2.0 < composed_epsilon(Gaussian(1.0, less, 0.5), exchange, 30, DELTA) <= 2.0


@composing
def test_beyond_all_protection_the_simple_bounds_stand():
    huge = Laplace(1e6, 1.0, 0.1)
    assert composed_epsilon(huge, Exchange(8, 64), 7, DELTA) == pure_epsilon(huge, Exchange(8, 64), 7)
    loud = Gaussian(1e6, 1.0, 0.1)
    assert composed_epsilon(loud, ONE, 4, DELTA) == composed_epsilon(Gaussian(1e6, 1.0), ONE, 4, DELTA)


def test_missing_dp_accounting_is_said_in_a_line(monkeypatch):
    accountant._one_round.cache_clear()
    monkeypatch.setitem(sys.modules, "dp_accounting.pld", None)
    with pytest.raises(SelfsameError, match=r"pip install 'selfsame\[privacy\]'"):
        composed_epsilon(Laplace(0.1, 1.0), ONE, 2, DELTA)
    assert composed_epsilon(Laplace(0.1, 1.0), ONE, 2, 0.0) == pytest.approx(0.4)  # what needs no composition


# More noise, more drops, fewer rounds: never a larger epsilon.

SIZES = st.floats(1e-6, 1e3)
DROPS = st.floats(0, 0.999)


@given(SIZES, SIZES, DROPS, st.floats(1, 10), st.integers(1, 9), st.integers(1, 9))
@settings(max_examples=60)
def test_closed_forms_are_monotone(clip, scale, drop, more, samples, rounds):
    exchange = Exchange(samples, 3)
    steady = 1 + 1e-9  # rounding
    mechanism = Laplace(clip, scale, drop)
    one, paper = pure_epsilon(mechanism, exchange, rounds), paper_epsilon(drop, clip, scale)
    assert 0 <= paper <= 2 * clip / scale * steady
    assert paper <= one * steady
    for other in (
        Laplace(clip * more, scale, drop),
        Laplace(clip, scale / more, drop),
        Laplace(clip, scale, drop / more),
    ):
        assert one <= pure_epsilon(other, exchange, rounds) * steady
        assert paper <= paper_epsilon(other.drop, other.clip, other.scale) * steady
    assert one <= pure_epsilon(mechanism, exchange, rounds + 1)
    assert one <= pure_epsilon(mechanism, Exchange(samples + 1, 3), rounds) * steady
    gauss = composed_epsilon(Gaussian(clip, scale), exchange, rounds, DELTA)
    assert gauss <= composed_epsilon(Gaussian(clip * more, scale), exchange, rounds + 1, DELTA) * steady + 1e-9
    assert gauss >= composed_epsilon(Gaussian(clip, scale), exchange, rounds, 2 * DELTA) / steady - 1e-9


@composing
@given(st.sampled_from([Laplace, Gaussian]), st.floats(1e-3, 1.0), st.floats(0.05, 0.95), st.integers(1, 200))
@settings(max_examples=12)
def test_composition_is_monotone(make, clip, drop, rounds):
    exchange = Exchange(2, 2, "sample")
    epsilon = composed_epsilon(make(clip, 1.0, drop), exchange, rounds, DELTA)
    steady = 1 + 5e-3  # of the grid of losses
    assert 0 <= epsilon <= composed_epsilon(make(1.2 * clip, 1.0, drop), exchange, rounds, DELTA) * steady
    assert epsilon <= composed_epsilon(make(clip, 1 / 1.2, drop), exchange, rounds, DELTA) * steady
    assert epsilon <= composed_epsilon(make(clip, 1.0, 0.8 * drop), exchange, rounds, DELTA) * steady
    assert epsilon <= composed_epsilon(make(clip, 1.0, drop), exchange, rounds + 1, DELTA) * steady
    assert epsilon <= composed_epsilon(make(clip, 1.0, drop), Exchange(2, 2), rounds, DELTA) * steady


# An attacker who counts: what it can prove is never more than what is stated, and more than the paper states.

TRIALS = 100_000


def sent(mechanism, shape, high, seed):
    """What one participant is sent, many times, where the other's sample pulls all up if it is there, down if not."""
    stream = Stream.named(seed, "attack", torch.arange(TRIALS))
    there = torch.ones(TRIALS, 1, dtype=torch.bool)
    pull = 1.0 if high else -1.0
    pull_M1 = torch.where(keep(there, mechanism, stream.fold(7)), pull, -1.0)
    grad_MBD = 1e3 * pull_M1[..., None].expand(TRIALS, *shape)
    return perturb(grad_MBD, there.expand(TRIALS, shape[0]), mechanism, stream)


def at_least(count):
    return stats.beta.ppf(1e-4, count, TRIALS - count + 1)


def at_most(count):
    return stats.beta.ppf(1 - 1e-4, count + 1, TRIALS - count)


@pytest.mark.parametrize("rounds", [1, 2])
def test_the_stated_epsilon_of_laplace_noise_holds_and_the_papers_does_not(rounds):
    mechanism, shape = Laplace(1.0, 8.0, 0.3), (2, 2)
    hits = []
    for high in (True, False):
        above = [(sent(mechanism, shape, high, seed=2 * n + high) > 1.0).all((1, 2)) for n in range(rounds)]
        hits.append(int(torch.stack(above).all(0).sum()))
    proven = math.log(at_least(hits[0]) / at_most(hits[1]))
    stated = pure_epsilon(mechanism, Exchange(2, 2, "sample"), rounds)
    assert rounds * paper_epsilon(0.3, 1.0, 8.0) < 0.5 * stated
    assert rounds * paper_epsilon(0.3, 1.0, 8.0) < proven <= stated
    assert proven > 0.55 * stated


@composing
@pytest.mark.parametrize("drop", [0.0, 0.4])
def test_the_stated_epsilon_of_gaussian_noise_holds(drop):
    mechanism, shape, delta = Gaussian(1.0, 2.0, drop), (2, 2), 0.02
    stated = composed_epsilon(mechanism, Exchange(2, 2, "sample"), 1, delta)

    def proven(epsilon):
        """A delta that the attacker is sure of: it bets where the likelihoods' ratio passes e^epsilon."""
        mu = 2 * 1.0 / 2.0
        before = math.log(1 + math.expm1(epsilon) / (1 - drop))
        hits = []
        for high in (True, False):
            along_M = sent(mechanism, shape, high, seed=11 + high).sum((1, 2)) / 2 / 2.0  # in deviations
            hits.append(int((mu * along_M > before).sum()))
        return at_least(hits[0]) - math.exp(epsilon) * at_most(hits[1])

    assert proven(stated) <= delta < proven(0.7 * stated)


# Budgets.


@pytest.mark.parametrize("delta", [0.0, pytest.param(DELTA, marks=composing)])
def test_the_most_rounds_are_the_most(delta):
    mechanism, exchange = Laplace(0.002, 1.0, 0.2), Exchange(4, 8)
    most = rounds_within(mechanism, exchange, 4.0, delta)
    assert composed_epsilon(mechanism, exchange, most, delta) <= 4.0
    assert composed_epsilon(mechanism, exchange, most + 1, delta) > 4.0
    if delta == 0:
        assert most == math.floor(4.0 / pure_epsilon(mechanism, exchange)) > 10


def test_budgets_at_their_ends():
    assert rounds_within(Gaussian(1.0, 1e-3), ONE, 1.0, DELTA) == 0
    assert rounds_within(Gaussian(1.0, 1e9), ONE, 1.0, DELTA) == accountant.MOST_ROUNDS


@pytest.mark.parametrize(
    "call, said",
    [
        (lambda: Exchange(0, 3), "samples"),
        (lambda: Exchange(3, 0), "dim"),
        (lambda: Exchange(3, 3, "people"), "unit"),
        (lambda: Exchange(10**4, 10**4), "samples x dim"),
        (lambda: composed_epsilon(Gaussian(1.0, 1.0), ONE, -1, DELTA), "rounds"),
        (lambda: composed_epsilon(Gaussian(1.0, 1.0), ONE, 10**9, DELTA), "rounds"),
        (lambda: composed_epsilon(Gaussian(1.0, 1.0), ONE, 1, 1.0), "delta"),
        (lambda: composed_epsilon(Gaussian(1.0, 1.0), ONE, 1, float("nan")), "delta"),
        (lambda: rounds_within(Gaussian(1.0, 1.0), ONE, 0.0, DELTA), "epsilon"),
        (lambda: gaussian_sigma(1.0, ONE, 1, math.inf, DELTA), "epsilon"),
        (lambda: gaussian_sigma(1.0, ONE, 0, 1.0, DELTA), "at least 1 round"),
        (lambda: gaussian_sigma(1.0, ONE, 1, 1.0, 0.0), "delta above 0"),
    ],
)
def test_bad_input_is_said_in_a_line(call, said):
    with pytest.raises(SelfsameError, match=said) as raised:
        call()
    assert "\n" not in str(raised.value)


# The command.


def command(*words):
    app = typer.Typer()
    app.command()(privacy)
    return CliRunner().invoke(app, list(words), env={"COLUMNS": "160"})


@composing
def test_the_command_prints_both_epsilons_and_the_gaussian():
    done = command("--clip", "2e-5", "--scale", "1e-3", "--drop", "0.2", "--rounds", "20", "--target", "8")
    assert done.exit_code == 0, done.output
    mechanism = Laplace(2e-5, 1e-3, 0.2)
    figures = [
        paper_epsilon(0.2, 2e-5, 1e-3),
        pure_epsilon(mechanism, Exchange(8, 64), 20),
        composed_epsilon(mechanism, Exchange(8, 64, "sample"), 20, DELTA),
        composed_epsilon(mechanism, Exchange(8, 64), 20, DELTA),
    ]
    for figure in figures:
        assert f"{figure:.4g}" in done.output
    assert f"sigma = {gaussian_sigma(1.0, Exchange(8, 64), 20, 8.0, DELTA, 0.2):.5g} x C" in done.output


@composing
def test_the_rows_rise_from_the_papers_to_the_participants():
    lines = rows(Laplace(2e-5, 1e-3, 0.2), 8, 64, 20, DELTA)
    assert [line[1] for line in lines] == ["one sample"] * 3 + ["one participant"] * 2
    assert float(lines[0][2]) < float(lines[2][2]) < float(lines[1][2]) <= float(lines[3][2])


def test_the_command_says_what_is_wrong():
    done = command("--clip", "0", "--scale", "1")
    assert isinstance(done.exception, SelfsameError)
    assert "clip" in str(done.exception)
