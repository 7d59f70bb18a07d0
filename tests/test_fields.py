"""The typed reader: exact types, known names, and one line for what does not fit."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfsame.errors import SelfsameError
from selfsame.fields import at_least, check_options, nearest, one_of, options_of, read_fields, typed


@dataclass(frozen=True)
class Inner:
    sides: tuple[int, ...]
    mean: tuple[float, ...] = (0.0,)


@dataclass(frozen=True)
class Outer:
    name: str
    rate: float = 0.5
    count: int = 1
    on: bool = False
    inner: Inner | None = None
    pair: tuple[int, str] = (1, "a")
    table: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Named:
    name: str = ""
    options: dict[str, Any] = field(default_factory=dict)


def refused(*arguments, **options):
    with pytest.raises(SelfsameError) as error:
        read_fields(*arguments, **options)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_table_becomes_a_dataclass():
    given = {"name": "x", "rate": 2, "inner": {"sides": [1, 2], "mean": [0, 0.5]}, "pair": [3, "b"], "table": {"a": 1}}
    found = read_fields("file", given, Outer)
    assert found == Outer("x", 2.0, 1, False, Inner((1, 2), (0.0, 0.5)), (3, "b"), {"a": 1})
    assert type(found.rate) is float and all(type(one) is float for one in found.inner.mean)


def test_what_does_not_fit_is_named():
    assert refused("f", {}, Outer) == "f: needs name"
    assert refused("f", {"name": "x", "rat": 1}, Outer) == "f.rat: unknown option; did you mean 'rate'?"
    assert refused("f", {"name": "x", "zzz": 1}, Outer).startswith("f.zzz: unknown option; known: count, ")
    assert refused("f", {"name": 1}, Outer) == "f.name: expected a text, got 1"
    assert refused("f", {"name": "x", "count": True}, Outer) == "f.count: expected a whole number, got True"
    assert refused("f", {"name": "x", "count": 1.0}, Outer) == "f.count: expected a whole number, got 1.0"
    assert refused("f", {"name": "x", "on": 1}, Outer) == "f.on: expected true or false, got 1"
    assert refused("f", {"name": "x", "count": 2**63}, Outer) == "f.count: expected a number of at most 64 bits"
    assert refused("f", {"name": "x", "rate": 10**400}, Outer) == "f.rate: expected a number of at most 64 bits"
    assert refused("f", {"name": "x", "inner": 3}, Outer) == "f.inner: expected a table, got 3"
    assert refused("f", {"name": "x", "inner": {}}, Outer) == "f.inner: needs sides"
    assert refused("f", {"name": "x", "inner": {"sides": [1.5]}}, Outer) == (
        "f.inner.sides: expected a list of whole numbers, got [1.5]"
    )
    assert refused("f", {"name": "x", "pair": [1]}, Outer) == "f.pair: expected a list of 2, got [1]"
    assert refused("f", {"name": "x", "table": {"a": "b"}}, Outer) == "f.table.a: expected a whole number, got 'b'"
    assert refused("f", [1], Outer) == "[f]: expected a table, got [1]"


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_numbers_are_finite_wherever_they_stand(value):
    assert refused("f", {"name": "x", "rate": value}, Outer) == f"f.rate: expected a finite number, got {value}"
    assert "f.inner.mean" in refused("f", {"name": "x", "inner": {"sides": [1], "mean": [value]}}, Outer)


def test_the_rest_goes_to_one_field():
    assert read_fields("net", {"name": "x", "a": 1, "options": {"b": 2}}, Named, "options") == Named(
        "x", {"a": 1, "b": 2}
    )
    assert read_fields("net", {"name": "x"}, Named, "options") == Named("x")
    assert refused("net", {"options": 3}, Named, rest="options") == "[net.options]: expected a table, got 3"


def test_options_are_the_keyword_only_parameters():
    def load(path, *, size: int = 3, share: float = 0.5, sides: tuple[int, ...] = (1,), name: str = ""):
        return None

    defaults = options_of(load)
    assert defaults == {"size": 3, "share": 0.5, "sides": (1,), "name": ""}
    assert check_options("x", {"share": 1, "sides": [2, 3]}, defaults) == {"share": 1.0, "sides": (2, 3)}
    with pytest.raises(SelfsameError, match=r"x: unknown option 'path'; the options are: name, share, sides, size"):
        check_options("x", {"path": 1}, defaults)
    with pytest.raises(SelfsameError, match=r"x: option size: expected a whole number, got 'a'"):
        check_options("x", {"size": "a"}, defaults)


def test_ranges_and_words():
    at_least("a", 1, 1)
    for value, strict in ((0, False), (1, True), (math.nan, False), (math.inf, False)):
        with pytest.raises(SelfsameError, match=r"^a: must be (at least|above) 1"):
            at_least("a", value, 1, strict=strict)
    one_of("a", "x", ("x", "y"))
    with pytest.raises(SelfsameError, match="a: 'z' is not one of x, y"):
        one_of("a", "z", ("x", "y"))
    assert nearest("fedhid", ["fedhide", "x"]) == "; did you mean 'fedhide'?"


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
names = st.sampled_from(["a\nb", "name", "rate", "count", "on", "inner", "pair", "table", "other"])


@given(st.dictionaries(names, anything, max_size=7))
def test_any_table_is_read_exactly_or_refused_in_one_line(given_table):
    try:
        found = read_fields("f", given_table, Outer)
    except SelfsameError as error:
        assert "\n" not in str(error)
        return
    assert type(found.name) is str and type(found.on) is bool and type(found.count) is int
    assert type(found.rate) is float and math.isfinite(found.rate)
    assert set(given_table) <= {"name", "rate", "count", "on", "inner", "pair", "table"}


@given(anything, st.sampled_from([int, float, str, bool, tuple, tuple[float, ...], dict[str, int]]))
def test_a_value_has_its_type_or_is_refused(value, kind):
    try:
        found = typed("x", value, kind)
    except SelfsameError:
        return
    assert isinstance(found, tuple if kind in (tuple, tuple[float, ...]) else dict if kind == dict[str, int] else kind)
