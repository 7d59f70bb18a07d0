"""Evaluations side by side: what is read, what is refused, and that tables and figures hold what was measured."""

import copy
import json
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from selfsame.cli import app
from selfsame.errors import SelfsameError
from selfsame.report.evaluation import FORMAT
from selfsame.report.evaluations import (
    drawn_roc,
    eer_sheet,
    evaluations_page,
    lines_of,
    named,
    protocol_names,
    read_evaluation,
)
from selfsame.report.figures import protocol_roc, roc_sheet
from selfsame.report.html import training_page


def protocol(name, eer, low=None, high=None, refused=False):
    tpr = {"value": 1 - eer, "low": low, "high": high}
    return {
        "name": name,
        "eer": {"value": eer, "low": low, "high": high, "threshold": 0.3},
        "tpr_at_fpr": {"0.1": tpr, "0.01": {"refused": "needs 1,000 impostor trials"} if refused else tpr},
        "curve": {"fpr": [0.0, eer, 1.0], "tpr": [0.0, 1 - eer, 1.0]},
    }


def evaluation(title, *found):
    return {"format": FORMAT, "title": title, "protocols": list(found)}


@pytest.fixture
def three():
    return [
        evaluation("FedAwS", protocol("test samples", 0.0204, 0.01, 0.03), protocol("unseen pairs", 0.2, refused=True)),
        evaluation("FedUV(127) <b>", protocol("test samples", 0.05)),
        evaluation("FedAwS", protocol("trial list", 0.1)),
    ]


def put(folder, results):
    for number, result in enumerate(results):
        (folder / f"{number:02}").mkdir()
        (folder / f"{number:02}" / "evaluation.json").write_text(json.dumps(result))
    return sorted(folder.iterdir())


def test_every_run_and_protocol_has_its_cell(three):
    assert protocol_names(three) == ["test samples", "unseen pairs", "trial list"]
    assert eer_sheet(three).rows == [
        ["FedAwS", "2.04 [1.00, 3.00]", "20.00", "–"],
        ["FedUV(127) <b>", "5.00", "–", "–"],
        ["FedAwS", "–", "–", "10.00"],
    ]
    lines = eer_sheet(three).markdown().splitlines()
    assert lines[:2] == ["| EER % | test samples | unseen pairs | trial list |", "|---|---:|---:|---:|"]
    assert lines[2] == "| FedAwS | 2.04 [1.00, 3.00] | 20.00 | – |"
    three[0]["title"] = "a|b\n<img>*c*"
    assert eer_sheet(three).markdown().splitlines()[2].startswith("| a\\|b &lt;img&gt;\\*c\\* | 2.04")


def test_equal_titles_are_told_apart(tmp_path, three):
    places = put(tmp_path, three)
    found = named([read_evaluation(place) for place in places], places)
    assert [result["title"] for result in found] == ["FedAwS (00)", "FedUV(127) <b>", "FedAwS (02)"]


def test_the_curves_are_those_of_the_runs(three):
    lines = [line.get_xydata() for line in protocol_roc(lines_of(three, "test samples")).axes[0].lines]
    assert len(lines) == 3  # chance and two runs
    assert [2.04, 97.96] in lines[1].round(9).tolist() and [5, 95] in lines[2].round(9).tolist()
    lines = {name: lines_of(three, name) for name in protocol_names(three)}
    panels = [ax for ax in roc_sheet(lines, ["a", "b", "c"]).axes if ax.get_visible()]
    assert [ax.get_title("left") for ax in panels] == ["test samples", "unseen pairs", "trial list"]
    more = roc_sheet({**lines, "another": lines["trial list"]}, ["a", "b", "c"])
    assert len([ax for ax in more.axes if ax.get_visible()]) == 4


def test_the_page_holds_everything_and_escapes_titles(three):
    page = evaluations_page(three)
    assert "FedUV(127) &lt;b&gt;" in page and "<b>" not in page.partition("<body>")[2].replace("&lt;b&gt;", "")
    assert page == evaluations_page(three) and training_page([], "T").partition("<title>")[0] in page
    assert page.count("<figure>") == 3 and "TPR at 10 %" in page and "TPR at 1 %" in page and "too few" in page


@pytest.mark.parametrize("kind", ["svg", "png", "pdf"])
def test_figures_as_files(tmp_path, three, kind):
    file = tmp_path / f"roc.{kind}"
    first = drawn_roc(three, file, ["trial list"])
    assert drawn_roc(three, file, ["trial list"]) == first  # no date in it
    assert len(drawn_roc(three, file, [])) > len(first)
    if kind == "svg":
        assert ET.fromstring(first).tag.endswith("svg")
    with pytest.raises(SelfsameError, match="no protocol 'pairs'; there are: test samples"):
        drawn_roc(three, file, ["pairs"])
    with pytest.raises(SelfsameError, match=r"a figure is \.svg, \.png or \.pdf"):
        drawn_roc(three, tmp_path / "roc.txt", [])
    with pytest.raises(SelfsameError, match="no protocol to draw"):
        drawn_roc([evaluation("empty")], file, [])


def test_the_command(tmp_path, three):
    places = put(tmp_path, three)
    out, figure = tmp_path / "a" / "page.html", tmp_path / "b" / "roc.svg"
    done = CliRunner().invoke(app, ["evaluations", *map(str, places), "--out", str(out), "--figure", str(figure)])
    assert done.exit_code == 0 and "2.04 [1.00, 3.00]" in done.output
    assert out.read_text().startswith("<!doctype html>") and figure.read_text().startswith("<?xml")
    done = CliRunner().invoke(app, ["evaluations", str(places[1]), "--out", str(out), "--markdown"])
    assert "| FedUV(127) &lt;b&gt; | 5.00 |" in done.output


def test_a_run_that_was_not_evaluated_says_what_to_do(tmp_path):
    with pytest.raises(SelfsameError, match="not evaluated yet; `selfsame evaluate"):
        read_evaluation(tmp_path)


@pytest.mark.parametrize(
    "change, line",
    [
        (lambda e: e.update(format="other"), "format is not"),
        (lambda e: e.pop("title"), "no title"),
        (lambda e: e["protocols"][0].pop("curve"), "lacks its figures"),
        (lambda e: e["protocols"][0]["eer"].update(value=1.5), "no rates"),
        (lambda e: e["protocols"][0]["eer"].update(value=True), "no rates"),
        (lambda e: e["protocols"][0]["eer"].update(low=None), "no rates"),
        (lambda e: e["protocols"][0]["curve"].update(fpr=5), "lacks its figures"),
        (lambda e: e["protocols"].__setitem__(0, 7), "lacks its figures"),
        (lambda e: e["protocols"][0]["curve"]["fpr"].pop(), "no rates"),
        (lambda e: e["protocols"][0]["curve"]["tpr"].__setitem__(1, "1"), "no rates"),
        (lambda e: e["protocols"][0]["tpr_at_fpr"].update(high={"value": 1, "low": 0, "high": 1}), "lacks its figures"),
        (lambda e: e["protocols"].append(copy.deepcopy(e["protocols"][0])), "stands twice"),
    ],
)
def test_what_is_no_evaluation_gets_one_line(tmp_path, three, change, line):
    change(three[0])
    (place,) = put(tmp_path, three[:1])
    with pytest.raises(SelfsameError, match=line) as caught:
        read_evaluation(place)
    assert "\n" not in str(caught.value)


@given(cut=st.integers(0, 2000), changes=st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), max_size=4))
def test_damaged_files_are_read_or_get_one_line(tmp_path_factory, cut, changes):
    raw = bytearray(json.dumps(evaluation("x", protocol("test samples", 0.1, 0.05, 0.2))).encode()[: cut or None])
    for at, byte in changes:
        raw[at % len(raw)] = byte
    file = tmp_path_factory.mktemp("e") / "evaluation.json"
    file.write_bytes(raw)
    try:
        result = read_evaluation(file)
    except SelfsameError as error:
        assert "\n" not in str(error)
    else:
        assert eer_sheet([result]).rows and evaluations_page([result])
