"""Tables at any width: words are never broken, figures never cut, and a narrow terminal loses columns instead."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from test_report import a_view

from selfsame.report.table import Sheet, results_table

FEDHIDE = "fedhide(alpha=0.01, neighbours=5, negative_weight=10.0)"


def drawn(renderable, width):
    out = io.StringIO()
    Console(file=out, width=width).print(renderable)
    return out.getvalue()


def first_table(width):
    wire = [("proxy", "up", "public", "what others compare with"), ("network update", "up", "server", "the step")]
    view = a_view(title=FEDHIDE, left=[("proxy", "public"), ("network update", "sum")], wire=wire)
    return drawn(results_table([view]), width)


@pytest.mark.parametrize("width", [80, 100, 120])
def test_the_first_table_is_readable(width):
    text = first_table(width)
    assert len(text.splitlines()) <= 14 and all(len(line) <= width for line in text.splitlines())
    for word in ("fedhide(alpha=0.01,", "neighbours=5,", "proxy → everyone", "EER"):
        assert word in text


def test_a_narrow_one_loses_columns_and_says_so():
    text = first_table(40)
    assert "fedhide(alpha=0.01," in text and "Too narrow for:" in " ".join(text.split())
    assert all(len(line) <= 40 for line in text.splitlines())


WORD = st.text("abcdefgh", min_size=1, max_size=9)
CELL = st.lists(WORD, min_size=1, max_size=8).map(" ".join)


@given(st.lists(st.lists(CELL, min_size=5, max_size=5), min_size=1, max_size=4), st.integers(24, 120))
def test_no_word_is_ever_broken(rows, width):
    sheet = Sheet(("One", "Two", "Three", "Four", "Five"), rows, words=range(5))
    shown, lost = sheet.terminal()._columns(width)
    text = drawn(sheet.terminal(), width).split("Too narrow")[0]
    assert sorted([*shown, *lost]) == list(range(5)) and {0, 1} <= shown.keys()
    met = set(text.split())
    for row in rows:
        for column in shown:
            assert set(row[column].split()) <= met


@given(st.lists(st.integers(0, 10**12).map("{:,}".format), min_size=6, max_size=6), st.integers(10, 200))
def test_figures_are_whole_or_not_there(figures, width):
    sheet = Sheet(("Name", *"abcdef"), [["x", *figures]])
    shown, _ = sheet.terminal()._columns(width)
    text = drawn(sheet.terminal(), max(width, 40))
    assert all(figures[column - 1] in text for column in shown if column) or width < 40
