"""What was forgotten: both networks of a run on the people of another data set, by the same trials."""

import json
import shutil
from dataclasses import replace

import pytest
import torch
from test_run import a_recipe

from selfsame.commands.evaluate import evaluate
from selfsame.data import Samples, load
from selfsame.errors import SelfsameError
from selfsame.measure.curves import roc
from selfsame.runs.elsewhere import elsewhere
from selfsame.runs.loop import carry_on
from selfsame.runs.run import open_run, start
from selfsame.runs.summary import keep_all, read_view

SMALL = {"name": "lenet", "width": 8, "channels": [4, 4]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run that began with the network of another, of which only adapters learn."""
    digits, place = load("digits", turns=1), tmp_path_factory.mktemp("runs")
    carry_on(start(a_recipe("fedhide", net=SMALL, run={"rounds": 2, "seed": 3}), place / "first", digits))
    net = {**SMALL, "start": str(place / "first"), "adapters": 2}
    carry_on(start(a_recipe("fedhide", net=net, run={"rounds": 20}), place / "run", digits))
    return place / "run"


def by_hand(run, theta, x, y):
    """EER over all pairs of samples."""
    with torch.no_grad():
        emb = run.problem.model.embed_eager(theta, run.problem.federation.scale(x).float())
    emb = emb / emb.norm(dim=1, keepdim=True)
    one, two = torch.triu_indices(len(y), len(y), 1)
    score, same = (emb[one] * emb[two]).sum(1), y[one] == y[two]
    return roc(score[same].numpy(), score[~same].numpy()).eer


def test_both_networks_meet_the_same_pairs(folder):
    run = open_run(folder)
    there = load("digits", turns=2)  # turned digits are other people
    found = elsewhere(run, "digits", there, {"turns": 2}, trials=10**6, bootstrap=20)
    assert found["started"] and found["data"] == "digits"
    pairs = next(one for one in found["protocols"] if one["name"] == "unseen pairs")
    model, unseen = run.problem.model, there.unseen
    before, after = (by_hand(run, theta, unseen.x, unseen.y) for theta in (model.first_here, run.state.theta_P))
    assert abs(before - after) > 1e-4
    # All genuine pairs are among the trials, and as many of the others as there are of them.
    assert pairs["before"]["value"] == pytest.approx(before, abs=0.02)
    assert pairs["after"]["value"] == pytest.approx(after, abs=0.02)
    assert pairs["change"]["value"] == pytest.approx(pairs["after"]["value"] - pairs["before"]["value"])
    assert pairs["before"]["low"] is None or pairs["change"]["low"] <= pairs["change"]["high"]


def test_a_network_that_learned_nothing_forgot_nothing(folder):
    run = open_run(folder)
    run.state.theta_P = run.problem.model.first_theta.clone()
    found = elsewhere(run, "digits", load("digits", turns=1), {"turns": 1}, trials=500, bootstrap=20)
    assert all(one["change"]["value"] == 0 for one in found["protocols"])
    assert all(one["change"]["low"] in (0, None) for one in found["protocols"])


def test_the_command_shows_and_keeps_it(folder, tmp_path, capsys):
    evaluate(folder, out=tmp_path, trials=200, bootstrap=0, quiet=True, also="digits", also_settings=["turns=2"])
    assert "What was forgotten: people of digits" in capsys.readouterr().out
    assert "What was forgotten" in (tmp_path / "evaluation.html").read_text()
    kept = json.loads((tmp_path / "evaluation.json").read_text())["elsewhere"]
    assert {"before", "after", "change"} <= set(kept["protocols"][0])


def test_the_runs_own_report_says_it_too(folder, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(folder, copy)
    keep_all(open_run(copy), copy)
    assert "what was forgotten" not in (copy / "report.html").read_text()
    evaluate(copy, trials=200, bootstrap=0, quiet=True, also="digits", also_settings=["turns=2"])
    kept = json.loads((copy / "evaluation.json").read_text())["elsewhere"]["protocols"][0]
    said = read_view(copy).facts["what was forgotten"]
    assert said.startswith(f"people of digits, {kept['name']}: EER {100 * kept['before']['value']:.1f} % before")
    assert f"{100 * kept['after']['value']:.1f} % after" in said and said in (copy / "report.html").read_text()
    (copy / "evaluation.json").write_text('{"elsewhere": [1]}')
    with pytest.raises(SelfsameError, match=r"evaluation\.json: damaged"):
        read_view(copy)


def test_what_cannot_be_measured_gets_one_line(folder, tmp_path):
    run = open_run(folder)
    none = load("digits", turns=1)
    with pytest.raises(SelfsameError, match="no unseen people"):
        elsewhere(run, "digits", replace(none, unseen=Samples.none(none.shape)))
    with pytest.raises(SelfsameError, match="of which data set"):
        evaluate(folder, out=tmp_path, also_path=tmp_path)
    with pytest.raises(SelfsameError, match="has forgotten nothing"):
        evaluate(None, net="lenet", start=folder, data="digits", out=tmp_path, also="digits")
    wide = replace(none, shape=(3, 8, 8))
    with pytest.raises(SelfsameError, match="samples are 3x8x8, the network was trained for 1x8x8"):
        elsewhere(run, "digits", wide)
