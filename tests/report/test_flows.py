"""The wire as a drawing: every field that is declared travels on one arrow, to those who see it and to nobody else."""

import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest

from selfsame.methods import METHODS
from selfsame.report.flows import PARTIES, WIDTH, aggregation_of, flow, steps
from selfsame.report.html import training_page
from selfsame.report.view import RunView
from selfsame.runs.summary import wire_rows

SEEN_BY = {"enclave": {"enclave"}, "sum": {"server"}, "server": {"server"}, "public": {"server", "everybody"}}


def a_view(wire, aggregation="clear", title="a run"):
    return RunView(title, "m", wire=wire, recipe=f'[sums]\naggregation = "{aggregation}"\n')


def names_of(step):
    return step.names.split(", ")


@pytest.mark.parametrize("aggregation", ["clear", "masked", "enclave"])
@pytest.mark.parametrize("name", METHODS)
def test_every_field_is_drawn_to_whom_it_is_declared(name, aggregation):
    rows = wire_rows(METHODS[name].wire, aggregation != "clear")
    found = list(steps(rows, aggregation))
    for field, way, sight, _ in rows:
        mine = [step for step in found if field in names_of(step)]
        if way == "stays":
            assert [(step.begin, step.ends) for step in mine if not step.ends] == [("device", ())]
        elif way == "up":
            (step,) = [step for step in mine if step.begin == "device" and step.ends]
            inside = sight == "sum" and aggregation == "enclave"
            assert set(step.ends) == ({"enclave"} if inside else SEEN_BY[sight])
            assert sight == "server" or step.how != "the server reads each one"
        else:
            (step,) = [step for step in mine if "device" in step.ends]
            assert step.begin == ("enclave" if sight == "enclave" else "server")
            assert ("everybody" in step.ends) == (sight == "public")


def test_who_takes_part_in_a_sum():
    rows = [("samples", "stays", "device", ""), ("network update", "up", "sum", "")]
    assert flow(a_view(rows, "masked")).active == {"device", "helper", "server"}
    assert flow(a_view(rows, "enclave")).active == {"device", "enclave", "server"}
    assert flow(a_view([("network update", "up", "server", "")])).active == {"device", "server"}
    assert [name for name, _, active in flow(a_view(rows[:1])).parties if active] == ["device"]
    assert flow(a_view([])) is None


@pytest.mark.parametrize("recipe", ["", "not [ TOML", "sums = 3", '[sums]\naggregation = "by magic"', "[sums]"])
def test_a_recipe_that_does_not_say_is_clear(recipe):
    assert aggregation_of(RunView("t", "m", recipe=recipe)) == "clear"
    assert aggregation_of(RunView("t", "m", recipe='[sums]\naggregation = "masked"')) == "masked"


@pytest.mark.parametrize("name", METHODS)
def test_words_stay_in_the_drawing_and_apart(name):
    drawn = flow(a_view(wire_rows(METHODS[name].wire, True), "masked"))
    boxes = []
    for arrow in drawn.arrows:
        for _, y, line in arrow.lines:
            boxes.append((arrow.text_x, y - 10, arrow.text_x + 7.2 * len(line), y + 3))
        assert all(0 < x < WIDTH for x in (arrow.x, *arrow.ends)) and arrow.y < drawn.height
    assert all(x >= 0 and x1 <= WIDTH and y1 <= drawn.height for x, _, x1, y1 in boxes)
    ordered = sorted(boxes, key=lambda box: box[1])
    assert all(below[1] >= above[3] for above, below in pairwise(ordered))


def test_the_page_draws_it_and_says_it_in_words():
    source = training_page([a_view([("a<b", "up", "public", "x"), ("odd", "up", "the <moon>", "")], "masked")], "T")
    drawing = source[source.index('<svg class="flow"') :]
    root = ET.fromstring(drawing[: drawing.index("</svg>") + 6])
    texts = ["".join(element.itertext()) for element in root.iter("text")]
    assert set(PARTIES) <= set(texts) and {"a<b", "odd", "the <moon>"} <= set(texts)
    assert root.attrib["role"] == "img" and root.attrib["aria-labelledby"] == root.find("title").attrib["id"]
    assert root.find("desc").text.startswith("From the device to the server and to everybody: a<b (everyone sees it).")


def test_the_audit_comes_first_or_how_to_get_it():
    finding = {
        "attacker": "updates", "did": "one update", "who": "server", "under": "clear", "identified": 0.5,
        "cosine": 0.9, "chance": 0.1, "rounds": 1, "said": "so", "seconds": 0.2, "applies": True,
    }  # fmt: skip
    found = {"title": "T", "round": 3, "aggregation": "clear", "findings": [finding], "strongest": finding}
    audited = RunView("A", "m", history=[{"round": 1, "loss": 1.0}], audit=found)
    one = training_page([audited], "T")
    assert one.index('<section id="audit">') < one.index('<section id="results">')
    assert one.count("<section id=") - 1 == one.partition('<section id="audit">')[2].count("<section id=")
    assert "selfsame audit" not in one and "50&nbsp;%" in one
    none = training_page([RunView("A", "m")], "T")
    assert '<section id="audit">' not in none and none.count("<code>selfsame audit RUN</code>") == 1
    both = training_page([audited, RunView("B", "m")], "T")
    assert "Not attacked yet: <b>B</b>." in both
