"""Who took part, guessed from what was released, and the epsilon that it proves."""

import math
import random

import pytest
import torch

from selfsame.audit.membership import DOUBT, Guessed, least_epsilon, least_share, train_with_coins
from selfsame.config.recipe import from_mapping
from selfsame.data import load
from selfsame.engine.setup import prepare


def at_least(right, guesses, share):
    """The chance of so many right guesses or more, each right with the chance `share`: plain binomial sums."""
    return sum(math.comb(guesses, k) * share**k * (1 - share) ** (guesses - k) for k in range(right, guesses + 1))


@pytest.mark.parametrize(("right", "guesses"), [(14, 14), (10, 14), (40, 56), (1, 3)])
def test_clopper_and_pearson(right, guesses):
    low, high = 0.0, 1.0
    for _ in range(60):  # the share at which so many right ones are just as unlikely as the doubt
        middle = (low + high) / 2
        low, high = (middle, high) if at_least(right, guesses, middle) < DOUBT else (low, middle)
    assert least_share(right, guesses, DOUBT) == pytest.approx(low, abs=1e-9)
    expected = math.log(low / (1 - low)) if low > 0.5 else 0.0
    assert least_epsilon(right, guesses) == pytest.approx(expected, abs=1e-7)


def test_what_proves_nothing():
    assert least_share(0, 20, DOUBT) == 0
    assert least_epsilon(10, 20) == 0
    assert least_epsilon(20, 20) > least_epsilon(20, 20, delta=1e-3) > 0
    assert least_epsilon(20, 20, delta=0.01) == 0  # delta alone may have told every coin


def test_the_bound_holds_where_epsilon_is_known():
    """Randomised response of epsilon 1 tells each coin with e / (1 + e): the bound exceeds 1 in 5 % of runs at most."""
    draw, share = random.Random(0), math.e / (1 + math.e)
    wrong = sum(least_epsilon(sum(draw.random() < share for _ in range(200)), 200) > 1 for _ in range(400))
    assert wrong <= 400 * DOUBT + 4 * math.sqrt(400 * DOUBT)
    assert least_epsilon(round(200 * share), 200) > 0.6  # and comes near it


def problem_of(**sums):
    tables = {
        "method": {"name": "feduv", "code_length": 31, "secrets": "seeded"},
        "data": {"name": "synthetic"},
        "net": {"name": "lenet", "channels": [4, 4]},
        "local": {"batch": 4},
        "run": {"device": "cpu", "precision": "float64", "rounds": 20},
        "cohort": {"weights": "uniform", "size": 8},
        "sums": {"aggregation": "enclave", "clip": 0.05, **sums} if sums else {},
    }
    return prepare(from_mapping(tables), load("synthetic", clients=16, samples=6, held_out=2))


@pytest.mark.parametrize("sums", [{}, {"noise": 0.0}, {"noise": 0.0, "aggregation": "masked"}])
def test_without_noise_every_coin_is_told(sums):
    found = train_with_coins(problem_of(**sums), 16, 4, 0)
    assert 3 <= int(found.took_part_N.sum()) <= 13
    assert found.right == 16
    torch.testing.assert_close(found.score_N, found.took_part_N.double(), atol=0.02, rtol=0)


def test_noise_hides_the_coins():
    right = [train_with_coins(problem_of(noise=20.0), 16, 4, seed).right for seed in range(3)]
    assert sum(right) <= 24 + 4 * math.sqrt(12)  # what tossing coins would guess, but for one case in 10,000
    again = [train_with_coins(problem_of(noise=0.01), 16, 4, seed).right for seed in range(3)]
    assert sum(again) == 48


def test_a_guess_is_right_where_the_score_is_on_the_side_of_the_coin():
    assert Guessed(torch.tensor([True, False, True]), torch.tensor([0.9, 0.6, 0.2])).right == 1


def polling(clients=16, sums=None, **options):
    tables = {
        "method": {"name": "fedcrowd", "sketch": 4, "every": 2, **options},
        "data": {"name": "synthetic"},
        "net": {"name": "lenet", "channels": [4, 4], "width": 8},
        "local": {"batch": 4},
        "run": {"device": "cpu", "precision": "float64", "rounds": 20},
        "cohort": {"weights": "uniform", "size": 8},
        "sums": {"aggregation": "enclave", "clip": 0.05, **(sums or {})},
    }
    return prepare(from_mapping(tables), load("synthetic", clients=clients, samples=6, held_out=2))


def test_polls_tell_the_coins_that_noise_on_updates_hides():
    """Each poll is a sum over those who took part, and the attacker knows what each would have added."""
    found = [train_with_coins(polling(sums={"noise": 20.0}), 12, 8, seed) for seed in range(2)]
    assert [one.right for one in found] == [12, 12]
    hidden = [train_with_coins(polling(sums={"noise": 20.0}, noise=50.0), 12, 8, seed).right for seed in range(3)]
    assert sum(hidden) <= 18 + 4 * math.sqrt(9)


def test_a_poll_that_too_few_would_answer_is_not_held():
    found = train_with_coins(polling(sums={"noise": 20.0, "least": 8}, sketch=8), 16, 4, 0)
    assert int(found.took_part_N.sum()) < 16  # a poll of width 8 takes 16 answers
    assert found.right < 16
