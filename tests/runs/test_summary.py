"""The view of a run survives its journey to disk, and says who sees what."""

import json
import tomllib
from dataclasses import replace

import pytest
import torch

from selfsame.config.recipe import from_mapping, merged
from selfsame.data import Samples, load
from selfsame.data.federation import Trials
from selfsame.errors import SelfsameError
from selfsame.methods import METHODS
from selfsame.report.table import LEFT, cells
from selfsame.runs.loop import carry_on
from selfsame.runs.run import start
from selfsame.runs.summary import keep_view, read_view, view, wire_rows


@pytest.fixture(scope="module")
def digits():
    return load("digits", turns=1)


def a_run(digits, method="fedhide", rounds=4, lr=0.05, **tables):
    given = {
        "method": {"name": method},
        "data": {"name": "digits", "turns": 1},
        "run": {"rounds": rounds, "eval_every": rounds, "device": "cpu"},
        "local": {"batch": 4, "lr": lr},
    }
    return carry_on(start(from_mapping(merged(given, tables)), None, digits))


def test_a_view_comes_back_from_disk_as_it_was(digits, tmp_path):
    run = a_run(digits)
    shown = view(run)
    keep_view(shown, tmp_path)
    assert read_view(tmp_path).to_dict() == shown.to_dict()
    assert shown.figure("p@1") == run.final["p@1"]
    assert set(shown.roc) == {"seen", "unseen"}
    assert all(fpr[0] == 0 and fpr[-1] == 1 for fpr, _ in shown.roc.values())
    assert from_mapping(tomllib.loads(shown.recipe)) == run.recipe
    assert shown.facts["seed"] == "0" and shown.facts["rounds"] == "4"


def test_the_picture_has_every_class_and_every_kind(digits):
    picture = view(a_run(digits)).picture
    assert len(picture.truth) == len(picture.proxy) == digits.classes
    assert len(picture.emb) == len(picture.label) == len(picture.unseen)
    assert set(picture.unseen) == {True, False}
    assert {label for label, new in zip(picture.label, picture.unseen) if not new} == set(range(7))
    fresh = {label for label, new in zip(picture.label, picture.unseen) if new}
    assert len(fresh) == 3 and min(fresh) >= 7


def test_a_run_that_helps_to_choose_has_no_picture():
    apart = {"data": {"apart": "samples"}}
    assert view(a_run(None, **apart)).picture is None and view(a_run(None)).picture is not None


@pytest.mark.parametrize(
    ("method", "metric"), [("fedhide", "cosine"), ("fedaws", "cosine"), ("fedmetric", "euclidean")]
)
def test_a_picture_is_by_what_the_method_compares_by(method, metric, digits, tmp_path):
    shown = view(a_run(digits, method))
    assert (shown.picture.how, shown.picture.metric) == ("tsne", metric)
    keep_view(shown, tmp_path)
    assert read_view(tmp_path).picture.metric == metric


@pytest.mark.parametrize(("clients", "classes"), [(60, 60), (120, 100)])
def test_a_picture_has_up_to_a_hundred_classes(clients, classes):
    data = {"name": "synthetic", "clients": clients, "samples": 2, "size": 8, "test_per_client": 8}
    federation = load(**data)
    given = {"method": {"name": "fedhide"}, "data": data, "run": {"rounds": 1, "device": "cpu"}}
    picture = view(carry_on(start(from_mapping(given), None, federation))).picture
    assert len(picture.truth) == len(picture.proxy) == classes
    seen = [label for label, new in zip(picture.label, picture.unseen, strict=True) if not new]
    assert set(seen) <= set(range(classes)) and len(set(seen)) > 0.9 * classes and len(seen) >= 3 * classes


def test_networks_of_their_own_share_no_picture(digits):
    shown = view(a_run(digits, "deepsvdd"))
    assert shown.picture is None and set(shown.roc) == {"seen"}


def test_a_diverged_run_has_a_view_without_a_picture(digits, tmp_path):
    run = a_run(digits, rounds=6, lr=1e25)
    shown = view(run)
    assert shown.picture is None and shown.final == {} and shown.history == []
    assert shown.diverged and shown.warnings[0]["kind"] == "diverged"
    keep_view(shown, tmp_path)
    assert read_view(tmp_path).warnings == shown.warnings


@pytest.mark.parametrize("name", METHODS)
def test_what_is_the_devices_own_is_seen_by_nobody(name):
    rows = {(field, way): sight for field, way, sight, _ in wire_rows(METHODS[name].wire)}
    assert rows
    for field, way, sight, _ in METHODS[name].wire.rows():
        assert rows[field, way] == {0: "device", 1: "enclave", 2: "sum", 3: "server", 4: "public"}[sight]
    for field in METHODS[name].wire.own:
        assert rows[field, "stays"] == "device"


def test_what_left(digits):
    assert ("proxy", "public") in view(a_run(digits)).left
    assert all(field != "codeword" for field, _ in view(a_run(digits, "feduv")).left)


@pytest.mark.parametrize("name", METHODS)
def test_what_is_averaged_is_seen_as_a_sum_alone(name):
    method = METHODS[name]
    clear, summed = ({row[:2]: row[2] for row in wire_rows(method.wire, summed)} for summed in (False, True))
    averaged = {("network update", "up"), *((field, "up") for field in method.wire.head)}
    for key, sight in clear.items():
        assert summed[key] == ("sum" if key in averaged and sight in ("server", "public") else sight)


def test_a_report_says_how_updates_are_added_up(digits):
    clear = view(a_run(digits))
    assert clear.facts["aggregation"].startswith("aggregation clear: the server reads every device's update")
    assert ("network update", "server") in clear.left and "privacy" not in clear.facts
    cohort = {"size": 3, "weights": "uniform"}
    noisy = view(a_run(digits, cohort=cohort, sums={"aggregation": "masked", "noise": 1.0}, rounds=6))
    assert ("network update", "sum") in noisy.left
    assert noisy.facts["aggregation"].endswith("; 2 groups of 3 to 4 devices, nothing of fewer than 2 answers")
    assert "over the 3 rounds of the device with most" in noisy.facts["privacy"]
    assert 'sampling = "groups"' in noisy.recipe and "least = 2" in noisy.recipe
    assert "network update → only the sum over a group" in cells(noisy)[LEFT] and "update" not in cells(clear)[LEFT]
    assert "aggregation" not in view(a_run(digits, "deepsvdd")).facts


@pytest.mark.parametrize("text", ["", "{", "[]", "5", '{"title": "x"}', '{"nosuch": 1}'])
def test_a_damaged_view_is_named(text, tmp_path):
    (tmp_path / "result.json").write_text(text)
    with pytest.raises(SelfsameError, match=r"result\.json: damaged"):
        read_view(tmp_path)


def test_a_missing_view_is_named(tmp_path):
    with pytest.raises(SelfsameError, match=r"result\.json: No such file"):
        read_view(tmp_path)


def test_the_kept_view_is_plain_json(digits, tmp_path):
    """No NaN, which other readers of JSON refuse."""
    keep_view(view(a_run(digits)), tmp_path)
    json.loads((tmp_path / "result.json").read_text(), parse_constant=lambda word: pytest.fail(word))


@pytest.mark.parametrize(
    ("most", "said"), [(12, "97 % of the pairs of one unseen person are person 13's alone"), (2, None)]
)
def test_a_run_says_when_one_unseen_person_has_most_of_the_pairs(digits, most, said):
    label = torch.tensor([11, 11, 12, 12, *[13] * most])
    few = replace(digits, unseen=Samples(digits.test.x[: len(label)], label), class_names=(), trials=Trials.none())
    notes = view(a_run(few)).facts.get("data notes", "")
    assert (said in notes) if said else "of the pairs" not in notes
