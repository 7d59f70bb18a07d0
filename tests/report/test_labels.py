"""Names in a plot never lie on one another."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg

from selfsame.report import figures
from selfsame.report.labels import place_labels
from selfsame.report.style import looks
from selfsame.report.view import RunView


def apart(a, b):
    return a[2] <= b[0] + 1e-6 or b[2] <= a[0] + 1e-6 or a[3] <= b[1] + 1e-6 or b[3] <= a[1] + 1e-6


def drawn_boxes(figure):
    """The boxes of every word in a figure, as they are drawn."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    ax = figure.axes[0]
    ticks = [*ax.get_xticklabels(), *ax.get_yticklabels(), ax.xaxis.label, ax.yaxis.label]
    words = [text for text in (*ax.texts, *ticks) if text.get_text()]
    return [text.get_window_extent(renderer).extents for text in words]


@pytest.mark.parametrize("number", [2, 9, 16])
def test_many_close_points_have_names_apart(number):
    views = [
        RunView(f"method {n}(a=0.{n})", f"m{n}", final={"p@1": 0.98 + 0.0005 * n, "leak": 0.9, "recovered": 1.0})
        for n in range(number)
    ]
    boxes = drawn_boxes(figures.leakage(views))
    assert len(boxes) > number
    assert all(apart(a, b) for a, b in combinations(boxes, 2))


SPOTS = st.lists(st.tuples(st.floats(0, 250), st.floats(0, 200)), min_size=1, max_size=10)


@settings(max_examples=25)
@given(SPOTS)
def test_labels_are_inside_apart_and_lead_to_their_marks(spots):
    found = place_labels([(f"name {n}", [spot]) for n, spot in enumerate(spots)], (260.0, 210.0))
    assert [label.name for label in found] == [f"name {n}" for n in range(len(spots))]
    assert all(apart(a.box, b.box) for a, b in combinations(found, 2))
    for label, spot in zip(found, spots, strict=True):
        left, bottom, right, top = label.box
        assert left >= 0 and bottom >= 0 and right <= 260 and top <= 210
        near = np.clip(spot, [left, bottom], [right, top])
        assert label.leader is not None or np.hypot(*(near - spot)) <= 10
        assert label.leader is None or label.leader[0] == spot


def test_titles_that_begin_alike_stay_apart_in_words():
    views = [RunView(f"a very long title of a method, {n}", "m", final={"p@1": 0.5, "leak": 0.1}) for n in range(3)]
    names = [text.get_text() for text in figures.leakage(views).axes[0].texts if text.get_text()]
    assert len(set(names)) == 3


def test_nine_methods_look_different():
    found = looks([RunView(f"m{n}", f"m{n}") for n in range(20)])
    assert len(set(found)) == 20


@pytest.mark.parametrize("top", [1e3, 1e-4])
def test_a_small_power_of_ten_is_written_as_one(top):
    figure = figures.curves([RunView("a", "m", history=[{"round": 0, "loss": top}, {"round": 1, "loss": 1e-4 * top}])],
                            "loss", "Loss")  # fmt: skip
    FigureCanvasAgg(figure).draw()
    assert not any("e" in text.get_text() for text in figure.axes[0].get_yticklabels())
