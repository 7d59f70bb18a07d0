"""Cards: read back as written, refused in one line otherwise, and comparisons equal to the methods'."""

import json
import math
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from selfsame.device.card import Card, placed, score, template
from selfsame.errors import SelfsameError
from selfsame.export.trained import comparison
from selfsame.methods import METHODS, make
from selfsame.methods.base import LocalLoss

CARD = Card(
    format="selfsame-onnx-1",
    version="0.1.0",
    method="fedhide",
    data="digits",
    shape=(1, 8, 8),
    dtype="uint8",
    low=0.0,
    high=255.0,
    width=32,
    place="unit",
    score="cosine",
    opset=18,
    digest="0123456789abcdef" * 4,
    variant="float32",
)
PLAIN = json.loads(CARD.to_json())


def refused(text):
    with pytest.raises(SelfsameError) as caught:
        Card.from_json(text)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(("card: ", "card.", "[card]: "))
    assert len(str(caught.value)) < 400


def test_a_card_is_read_back_as_written():
    text = CARD.to_json()
    assert Card.from_json(text) == CARD
    assert "\n" not in text
    assert text.count('"digest":"') == 1


def test_any_length_is_the_last_axis_alone():
    assert Card.from_json(replace(CARD, shape=(1, -1), dtype="int16", low=-32768.0).to_json()).shape == (1, -1)
    refused(json.dumps({**PLAIN, "shape": [-1, 8]}))


def test_whole_numbers_may_stand_for_a_range():
    assert Card.from_json(json.dumps({**PLAIN, "low": 0, "high": 255})) == CARD


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("format", "selfsame-onnx-2"),
        ("format", None),
        ("version", ""),
        ("method", "a\nb"),
        ("method", "x" * 201),
        ("data", 3),
        ("shape", []),
        ("shape", [1] * 7),
        ("shape", [0]),
        ("shape", [1, True]),
        ("shape", [2.0]),
        ("shape", [2**20, 2**20]),
        ("shape", [2**70]),
        ("shape", "1"),
        ("shape", {"1": 1}),
        ("dtype", "int8"),
        ("dtype", ["uint8"]),
        ("low", -1.0),
        ("low", 255.0),
        ("low", "0"),
        ("low", True),
        ("high", 10**400),
        ("high", 1e308),
        ("width", 0),
        ("width", True),
        ("width", 2**40),
        ("width", 32.0),
        ("place", "as-is"),  # with a cosine
        ("score", "euclid"),
        ("opset", -1),
        ("digest", "0" * 63),
        ("digest", "A" * 64),
        ("digest", "0" * 64 + "\n"),
        ("variant", "int4"),
    ],
)
def test_every_field_is_checked(name, value):
    refused(json.dumps({**PLAIN, name: value}))


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity", "1e999", "9" * 5000])
def test_numbers_must_be_finite_and_short(word):
    refused(CARD.to_json().replace('"high":255.0', f'"high":{word}'))


def test_a_field_too_few_too_many_or_twice():
    refused(json.dumps({key: value for key, value in PLAIN.items() if key != "opset"}))
    refused(json.dumps({**PLAIN, "more": 1}))
    refused(CARD.to_json().replace('"opset":18', '"opset":18,"opset":18'))


def test_deep_or_long_text_is_refused():
    refused("[" * 10_000)
    refused(" " * 5_000_000 + CARD.to_json())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=70),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


@given(JSON)
@settings(max_examples=60)
def test_arbitrary_json_is_refused(value):
    refused(json.dumps(value))


@given(st.text(max_size=80))
@settings(max_examples=60)
def test_arbitrary_text_is_refused(text):
    refused(text)


@given(st.sampled_from(sorted(PLAIN)), JSON)
@example("low", -0.0)
@example("cohort", [])
@settings(max_examples=60)
def test_a_changed_field_is_refused_or_kept_as_it_is(name, value):
    text = json.dumps({**PLAIN, name: value})
    try:
        card = Card.from_json(text)
    except SelfsameError as error:
        assert "\n" not in str(error)
        return
    kept = asdict(card)[name]
    assert (list(kept) if isinstance(kept, tuple) else kept) == value
    assert Card.from_json(card.to_json()) == card


def vectors(count, width=6):
    return np.random.default_rng(count).normal(size=(count, width))


@pytest.mark.parametrize(
    ("how", "place"),
    [
        ("cosine", "unit"),
        ("distance", "unit"),
        ("distance", "as-is"),
        ("squared-distance", "unit"),
        ("squared-distance", "as-is"),
    ],
)
def test_scores_and_templates_by_plain_loops(how, place):
    card = replace(CARD, place=place, score=how)
    emb, vector = vectors(4), vectors(1)[0]

    def unit(row):
        return [x / math.sqrt(sum(y * y for y in row)) for x in row]

    there = [unit(row) if place == "unit" else list(row) for row in emb.tolist()]
    mean = [sum(row[d] for row in there) / len(there) for d in range(6)]
    np.testing.assert_allclose(template(card, emb), mean, rtol=1e-12)
    for row, got in zip(there, score(card, emb, vector)):
        if how == "cosine":
            want = sum(a * b for a, b in zip(row, unit(vector.tolist())))
        else:
            square = sum((a - b) ** 2 for a, b in zip(row, vector.tolist()))
            want = -square if how == "squared-distance" else -math.sqrt(square)
        assert got == pytest.approx(want, rel=1e-12)


def test_a_zero_vector_stays_zero():
    assert placed(CARD, np.zeros((1, 3), np.float32)).tolist() == [[0.0, 0.0, 0.0]]
    assert score(CARD, np.zeros((2, 3)), np.ones(3)).tolist() == [0.0, 0.0]


OPTIONS = [(name, {}) for name in METHODS]
OPTIONS += [("fedaws", {"distance": "euclidean"}), ("fedmetric", {"unit_length": True})]


@pytest.mark.parametrize(("name", "options"), OPTIONS)
def test_the_card_compares_as_the_method_does(name, options):
    method = make(name, options)
    how, place = comparison(method, 6)
    card = replace(CARD, score=how, place=place)
    emb, other = vectors(7), vectors(3)
    mine = np.stack([score(card, emb, row) for row in other], 1)
    np.testing.assert_allclose(mine, method.score(torch.from_numpy(emb), torch.from_numpy(other)), atol=1e-12)
    np.testing.assert_allclose(template(card, emb), method.template(torch.from_numpy(emb)), atol=1e-12)


def test_which_comparison_each_method_has():
    found = {name: comparison(make(name, options), 6) for name, options in OPTIONS[:-2]}
    assert found["feduv"] == found["fedhide"] == found["fedaws"] == ("cosine", "unit")
    assert found["deepsvdd"] == ("squared-distance", "as-is")
    assert found["fedmetric"] == ("distance", "as-is")
    assert comparison(make("fedaws", {"distance": "euclidean"}), 6) == ("distance", "as-is")
    assert comparison(make("fedmetric", {"unit_length": True}), 6) == ("distance", "unit")


def test_a_comparison_that_no_card_can_state():
    class Odd(type(make("fedaws", {}))):
        def score(self, emb_SD, template_TD):
            return LocalLoss.score(self, emb_SD, template_TD) ** 3

    with pytest.raises(SelfsameError, match="no model file can state"):
        comparison(Odd(), 6)
