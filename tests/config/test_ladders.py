"""What is tried of a recipe: how it is named, combined, and given rounds."""

import math
from itertools import pairwise, product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfsame.config.ladders import (
    Ladder,
    at_an_end,
    laid,
    point_name,
    point_words,
    points,
    read_ladder,
    read_ladders,
    rung_ends,
    rungs,
)  # fmt: skip
from selfsame.config.recipe import from_mapping
from selfsame.errors import SelfsameError

BASE = from_mapping({"method": {"name": "fedhide", "alpha": 0.5}})


@pytest.mark.parametrize(
    ("text", "key", "values"),
    [
        ("local.lr=0.03,0.1", "local.lr", (0.03, 0.1)),
        ("alpha = 0.1, 0.2", "method.alpha", (0.1, 0.2)),
        ("method.alpha=0.1", "method.alpha", (0.1,)),
        ("net.channels=[8, 4],[16, 8]", "net.channels", ([8, 4], [16, 8])),
        ("server.optimiser=average,momentum", "server.optimiser", ("average", "momentum")),
        ("augment.flip=true,false", "augment.flip", (True, False)),
        ("server.nesterov=true", "server.nesterov", (True,)),
    ],
)
def test_a_ladder_is_read(text, key, values):
    assert read_ladder(text) == Ladder(key, values)


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=6, unique=True))
def test_numbers_are_read_as_they_were_written(numbers):
    assert read_ladder(f"local.lr={','.join(map(repr, numbers))}").values == tuple(numbers)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("local.lr", "expected KEY=V1,V2"),
        ("local.lr=", "expected KEY=V1,V2"),
        ("=1", "expected KEY=V1,V2"),
        ("loca.lr=1", "unknown part 'loca'; did you mean 'local'"),
        ("a.b.c=1", "unknown part 'a'"),
        ("local.lr=0.1,0.1", "names a value twice"),
        ("run.seed=1,2", "how many with --seeds"),
        ("run.patience=1,2", "has all its rounds"),
        ("data.name=digits,mnist", "on the same data"),
        ("data.apart=people", "by the same people"),
    ],
)
def test_what_is_no_ladder_is_said_in_one_line(text, words):
    with pytest.raises(SelfsameError, match=words) as caught:
        read_ladder(text)
    assert str(caught.value).startswith("--over ") and "\n" not in str(caught.value)


@given(st.text())
def test_any_text_is_a_ladder_or_one_error(text):
    try:
        found = read_ladder(text)
    except SelfsameError:
        return
    assert found.values and "." in found.key


def test_keys_stand_once_and_there_is_one():
    with pytest.raises(SelfsameError, match="name a key and the values"):
        read_ladders([])
    with pytest.raises(SelfsameError, match=r"--over method.alpha: is there twice"):
        read_ladders(["alpha=1", "method.alpha=2"])


def test_every_combination_is_laid_over_the_recipe():
    found = points(read_ladders(["local.lr=0.1,0.2", "alpha=0.1,0.3,0.5"]))
    assert found == [{"local.lr": a, "method.alpha": b} for a, b in product((0.1, 0.2), (0.1, 0.3, 0.5))]
    made = [laid(BASE, point) for point in found]
    assert [(one.local.lr, one.method.options["alpha"]) for one in made] == list(product((0.1, 0.2), (0.1, 0.3, 0.5)))
    assert "alpha" not in laid(BASE, {"method.name": "fedaws"}).method.options
    with pytest.raises(SelfsameError, match=r"--over local.lr = -1: local.lr: must be at least 0"):
        laid(BASE, {"local.lr": -1})


def test_names_of_folders():
    point = {"local.lr": 0.1, "method.alpha": 0.01, "server.optimiser": "adam"}
    assert point_name(point) == "local.lr=0.1,alpha=0.01,server.optimiser=adam"
    assert point_words(point) == 'local.lr = 0.1, alpha = 0.01, server.optimiser = "adam"'


@given(st.lists(st.text() | st.floats(allow_nan=False) | st.lists(st.integers()), min_size=2, max_size=2))
def test_other_settings_have_other_folders(values):
    one, two = ({"net.name": value} for value in values)
    names = [point_name(one), point_name(two)]
    assert (names[0] == names[1]) == (point_words(one) == point_words(two))
    assert all("/" not in name and not name.startswith(".") and len(name) < 120 and name.isascii() for name in names)


def test_a_choice_at_an_end_is_said():
    ladders = read_ladders(["local.lr=0.1,0.3,0.03", "alpha=0,0.5", "server.optimiser=average,adam", "local.batch=4"])
    point = {"local.lr": 0.3, "method.alpha": 0, "server.optimiser": "adam", "local.batch": 4}
    assert at_an_end(ladders, point) == ["local.lr = 0.3 is the largest tried: try larger ones"]
    point |= {"local.lr": 0.03, "method.alpha": 0.5}
    assert at_an_end(ladders, point) == [
        "local.lr = 0.03 is the smallest tried: try smaller ones",
        "method.alpha = 0.5 is the largest tried: try larger ones",
    ]
    assert at_an_end(ladders, point | {"local.lr": 0.1, "method.alpha": 0}) == []


def test_rungs():
    assert rungs(12, 600, False) == [(12, 600)]
    assert rungs(12, 600, True) == [(12, 66), (4, 200), (2, 600)]
    assert rungs(2, 600, True) == [(2, 600)] and rungs(1, 5, True) == [(1, 5)]
    assert rung_ends(600) == [7, 22, 66, 200, 600] and rung_ends(9) == [1, 3, 9] and rung_ends(1) == [1]
    assert rungs(9, 2, True) == [(9, 1), (2, 2)] and rungs(9, 1, True) == [(9, 1)]


@given(st.integers(1, 400), st.integers(1, 400), st.integers(1, 10_000))
def test_rungs_end_at_the_same_rounds_for_any_number_of_settings(few, many, rounds):
    ends, fewer, more = rung_ends(rounds), rungs(few, rounds, True), rungs(many, rounds, True)
    assert {end for _, end in fewer} | {end for _, end in more} <= set(ends)
    common = min(len(fewer), len(more))
    assert [end for _, end in fewer[-common:]] == [end for _, end in more[-common:]] == ends[-common:]
    assert ends[-1] == rounds and len(ends) <= 5 and all(a == max(1, b // 3) for a, b in pairwise(ends))


@given(st.integers(1, 400), st.integers(1, 10_000))
def test_rungs_grow_longer_and_narrower(settings, rounds):
    found = rungs(settings, rounds, True)
    assert found[0][0] == settings and found[-1][1] == rounds
    assert all(a > b and x < y for (a, x), (b, y) in pairwise(found))
    assert settings <= 2 or rounds == 1 or found[-1][0] == 2
    assert sum(count * end for count, end in found) <= settings * rounds * (1 + math.log(settings, 3))


def test_the_guide_counts_the_rounds_of_halving_as_they_are():
    """12 settings of 600 rounds; each rung trains only what is beyond the one before."""
    before, total = 0, 0
    for count, until in rungs(12, 600, True):
        total += count * (until - before)
        before = until
    guide = " ".join((Path(__file__).parents[2] / "docs" / "guides" / "tune.md").read_text().split())
    assert total == 12 * 66 + 4 * 134 + 2 * 400
    assert "12 settings of 600 rounds: all to round 66, the best 4 to round 200, the best 2 to round 600" in guide
    assert f"{total:,} rounds in place of {12 * 600:,}" in guide
