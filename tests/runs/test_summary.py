"""The view of a run survives its journey to disk, and says who sees what in words."""

import json
import tomllib

import pytest
import torch

from selfsame.config.recipe import from_mapping, merged, to_mapping, to_toml
from selfsame.data import load
from selfsame.errors import SelfsameError
from selfsame.methods import METHODS
from selfsame.runs.run import carry_on, start
from selfsame.runs.summary import keep_view, left_the_device, read_view, standing, view, wire_rows
from selfsame.methods.wire import Sight


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


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


def test_networks_of_their_own_share_no_picture(digits):
    shown = view(a_run(digits, "deepsvdd"))
    assert shown.picture is None and set(shown.roc) == {"seen"}


def test_a_diverged_run_has_a_view_without_a_picture(digits, tmp_path):
    run = a_run(digits, rounds=6, lr=1e25)
    shown = view(run)
    assert shown.picture is None and shown.final == {} and shown.history == []
    assert shown.warnings[0]["kind"] == "diverged"
    keep_view(shown, tmp_path)
    assert read_view(tmp_path).warnings == shown.warnings


@pytest.mark.parametrize("name", METHODS)
def test_what_is_the_devices_own_is_seen_by_nobody(name):
    rows = {(field, way): who for field, way, who, _ in wire_rows(METHODS[name].wire)}
    assert rows
    for field, way, sight, _ in METHODS[name].wire.rows():
        assert rows[field, way].startswith("nobody") == (sight is Sight.DEVICE)
    for field in METHODS[name].wire.own:
        assert any(name == field and who.startswith("nobody") for (name, _), who in rows.items())


def test_what_left(digits):
    assert "proxy -> everyone" in left_the_device(a_run(digits))
    assert all("codeword" not in what for what in left_the_device(a_run(digits, "feduv")))


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


def small(**tables):
    given = {
        "method": {"name": "fixed"},
        "data": {"name": "digits", "turns": 1},
        "run": {"rounds": 4, "eval_every": 2, "device": "cpu"},
        "local": {"batch": 4, "lr": 0.05},
    }
    return from_mapping(merged(given, tables))


def test_standing(digits, tmp_path):
    folder = tmp_path / "run"
    assert standing(folder, small()).words == "not begun"
    run = start(small(), folder, digits)
    assert standing(folder, small()).words == "stopped at round 0"
    carry_on(run)
    assert standing(folder, small()).words == "stopped at round 4"  # trained, but not yet summed up
    keep_view(view(run), folder)
    now = standing(folder, small(title="another title", data={"path": "elsewhere"}))
    assert now.words == "done" and now.view is not None and now.differs == ()
    other = standing(folder, small(run={"rounds": 9}))
    assert other.differs == ("run.rounds",) and other.words == "another recipe lies there: run.rounds"


def test_standing_of_a_diverged_run(digits, tmp_path):
    plan = small(local={"lr": 1e25}, run={"rounds": 8})
    run = carry_on(start(plan, tmp_path / "run", digits))
    assert standing(tmp_path / "run", plan).words.startswith("stopped at round")
    keep_view(view(run), tmp_path / "run")
    assert standing(tmp_path / "run", plan).words == "diverged"


def test_standing_passes_over_what_the_data_told_the_network(tmp_path):
    plan = from_mapping({"data": {"name": "xc", "path": "x"}, "method": {"name": "fedaws"}})
    filled = merged(to_mapping(plan), {"net": {"name": "embedding-bag", "width": 512, "features": 499}})
    (tmp_path / "recipe.toml").write_text(to_toml(from_mapping(filled)))
    assert standing(tmp_path, plan).differs == ()
    asked = from_mapping(merged(to_mapping(plan), {"net": {"features": 500}}))
    assert standing(tmp_path, asked).differs == ("net.features",)
