"""A run's title says what somebody set: neither what the preset has, nor what the method fits to the federation."""

import pytest

from selfsame.config.presets import make_recipe
from selfsame.config.recipe import option_words
from selfsame.data import load
from selfsame.engine.setup import set_options
from selfsame.runs.run import load_run, start


@pytest.fixture(scope="module")
def digits():
    return load("digits", turns=1)


def titled(digits, method, settings=(), folder=None):
    given = {"data": {"name": "digits", "turns": 1}, "run": {"rounds": 40, "device": "cpu"}}
    return start(make_recipe(method, None, given, settings), folder, digits)


@pytest.mark.parametrize(
    ("method", "settings", "title"),
    [
        ("fedcrowd", (), "fedcrowd"),  # scale, every and sketch are fitted
        ("fedcrowd", ("sketch=2",), "fedcrowd(sketch=2)"),  # and the scale to this sketch
        ("fedcrowd", ("scale=3.14159",), "fedcrowd(scale=3.14)"),
        ("fedcrowd", ("margin=0.0",), "fedcrowd"),  # its own default
        ("fedhide", (), "fedhide"),  # alpha and neighbours are the preset's
        ("fedhide", ("neighbours=3",), "fedhide(neighbours=3)"),
        ("fedaws", ("neighbours=10",), "fedaws(neighbours=10)"),  # its own default, but not the preset's
        ("fedcrowd", ("title=mine", "scale=3.0"), "mine"),
    ],
)
def test_a_title_says_what_was_set(digits, method, settings, title):
    assert titled(digits, method, settings).title == title


def test_a_title_is_the_same_once_stored(digits, tmp_path):
    run = titled(digits, "fedcrowd", ("sketch=2",), tmp_path / "run")
    assert {"scale", "every", "sketch"} <= set(run.recipe.method.options)
    assert load_run(tmp_path / "run").title == run.title == "fedcrowd(sketch=2)"
    assert set_options(run.recipe, run.problem.world) == {"sketch": 2}


def test_numbers_have_three_digits():
    said = option_words("m", {"a": 2.449489, "b": 10.0, "c": 1e-5, "d": 12345, "e": True, "f": "seeded", "g": 0.0})
    assert said == "m(a=2.45, b=10, c=1e-05, d=12345, e=True, f=seeded, g=0)"
    assert option_words("m", {}) == "m"
