"""Runs that begin with given weights: what the folder keeps, how they go on, what is made of them."""

import hashlib

import pytest
import torch
from test_run import Stopped, a_recipe, digits, stop_after  # noqa: F401

from selfsame.cli import main
from selfsame.config.recipe import from_mapping
from selfsame.engine.checkpoint import read_tensors
from selfsame.errors import SelfsameError
from selfsame.export.trained import RunEmbedder
from selfsame.report.words import finding_words
from selfsame.runs.loop import carry_on
from selfsame.runs.run import load_run, open_run, start
from selfsame.runs.summary import view

SMALL = {"name": "lenet", "width": 8, "channels": [4, 4]}


@pytest.fixture(scope="module")
def before(digits, tmp_path_factory):  # noqa: F811
    """The folder of a finished run."""
    folder = tmp_path_factory.mktemp("before") / "run"
    carry_on(start(a_recipe("fedhide", net=SMALL, run={"rounds": 3}), folder, digits))
    return folder


@pytest.mark.parametrize("what", [".", "model.safetensors"])
def test_a_run_begins_where_another_ended(digits, before, tmp_path, what):  # noqa: F811
    recipe = a_recipe("fedhide", net={**SMALL, "start": str(before / what)}, run={"seed": 5})
    run = start(recipe, tmp_path / "run", digits)
    held, _ = read_tensors(before / "model.safetensors")
    views = run.problem.model.net_views(run.state.theta_P)
    assert all(torch.equal(value, held[f"net.{name}"]) for name, value in views.items())
    said = hashlib.sha256((before / "model.safetensors").read_bytes()).hexdigest()
    assert run.recipe.net.digest == said and said in run.facts["start"]


def test_a_run_goes_on_without_the_file(digits, before, tmp_path):  # noqa: F811
    file = tmp_path / "weights.safetensors"
    file.write_bytes((before / "model.safetensors").read_bytes())
    recipe = a_recipe("fedhide", net={**SMALL, "start": str(file)})
    whole = start(recipe, tmp_path / "whole", digits)
    carry_on(whole)
    broken = start(recipe, tmp_path / "broken", digits)
    with pytest.raises(Stopped):
        carry_on(broken, stop_after(7))
    file.unlink()
    again = load_run(tmp_path / "broken", digits)
    carry_on(again)
    assert torch.equal(again.state.theta_P, whole.state.theta_P)
    assert torch.equal(again.problem.model.first_theta, whole.problem.model.first_theta)
    assert torch.equal(open_run(tmp_path / "broken").state.theta_P, whole.state.theta_P)


def test_a_digest_alone_names_no_file(digits):  # noqa: F811
    with pytest.raises(SelfsameError, match=r"net\.digest: of which file"):
        start(a_recipe("fedhide", net={**SMALL, "digest": "0" * 64}), None, digits)


def test_the_command_says_in_one_line_what_does_not_fit(before, tmp_path, capsys, monkeypatch):
    words = [
        "selfsame",
        "train",
        "fedhide",
        "--rounds",
        "1",
        "--out",
        str(tmp_path / "run"),
        "--start",
        str(before),
        "--quiet",
    ]
    monkeypatch.setattr("sys.argv", words)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    line = capsys.readouterr().err.strip()
    assert "misshapen" in line and "net.rename maps names" in line and "\n" not in line
    assert not (tmp_path / "run").exists() or not any((tmp_path / "run").iterdir())


@pytest.mark.parametrize("part", [{"adapters": 2, "keep": 0.5}, {"train": ["last"]}])
def test_what_does_not_learn_is_kept_once(digits, before, tmp_path, part):  # noqa: F811
    """The checkpoint holds what learns, the folder the first network; both together go on, and the model is whole."""
    recipe = a_recipe("fedhide", net={**SMALL, "start": str(before), **part})
    whole = carry_on(start(recipe, tmp_path / "whole", digits))
    with pytest.raises(Stopped):
        carry_on(start(recipe, tmp_path / "broken", digits), stop_after(7))
    again = carry_on(load_run(tmp_path / "broken", digits))
    assert torch.equal(again.state.theta_P, whole.state.theta_P)
    held, _ = read_tensors(tmp_path / "broken" / "checkpoint" / "state.safetensors")
    assert len(held["theta"]) == whole.problem.model.parameters < whole.problem.model.whole
    first, _ = read_tensors(tmp_path / "broken" / "start.safetensors")
    known, _ = read_tensors(before / "model.safetensors")
    assert all(torch.equal(value, known[name]) for name, value in first.items())
    written, _ = read_tensors(tmp_path / "whole" / "model.safetensors")
    assert set(written) == set(known) and any(not torch.equal(written[name], first[name]) for name in first)
    model = whole.problem.model
    assert f"{model.whole:,} parameters and {model.size:,} that learn" in whole.facts["network"]
    few = digits.test.x[:5]
    found = torch.from_numpy(RunEmbedder(tmp_path / "whole").embed(few.numpy()))
    assert torch.allclose(found, whole.embed(few).float(), rtol=0, atol=1e-5)


def test_a_start_that_was_changed_is_noticed(digits, before, tmp_path):  # noqa: F811
    start(a_recipe("fedhide", net={**SMALL, "start": str(before), "train": ["last"]}), tmp_path / "run", digits)
    file = tmp_path / "run" / "start.safetensors"
    data = bytearray(file.read_bytes())
    data[-3] ^= 1
    file.write_bytes(data)
    with pytest.raises(SelfsameError, match="damaged, its digest does not fit"):
        load_run(tmp_path / "run", digits)


def test_what_training_has_to_beat_is_said(digits, before, tmp_path):  # noqa: F811
    """EER on unseen people by the network that was given, and a warning where training made it worse."""
    net = {**SMALL, "start": str(before)}
    good = carry_on(start(a_recipe("fedhide", net=net, run={"rounds": 2}, local={"lr": 1e-9}), None, digits))
    first = open_run(before, federation=digits).evaluate().figures
    assert good.final["first_eer"] == pytest.approx(first["eer"], abs=1e-6)
    shown = view(good)
    assert f"EER {100 * first['eer']:.1f} %" in shown.facts["before training"]
    bad = carry_on(start(a_recipe("fedhide", net=net, run={"rounds": 6}, local={"lr": 30.0}), None, digits))
    assert bad.diverged or bad.final["eer"] > first["eer"]
    if not bad.diverged:
        said = [finding_words(one) for one in bad.warnings]
        assert any("worse than the network that was given" in one and "Lower local.lr (now 30)" in one for one in said)
        assert not any("too few" in one for one in said)
    plain = carry_on(start(a_recipe("fedhide", net=SMALL, run={"rounds": 1}), None, digits))
    assert "first_eer" not in plain.final and "before training" not in view(plain).facts


def test_who_joins_late_joins_at_a_round():
    """Before, a share without a round was left out in silence, and everybody was there from the start."""
    tables = {"method": {"name": "fixed"}, "data": {"name": "digits", "turns": 1}, "cohort": {"late": 0.2}}
    with pytest.raises(SelfsameError, match=r"cohort\.late: 0\.2 of the clients join, at which cohort\.join_round"):
        start(from_mapping(tables))
    tables["cohort"]["join_round"] = 2
    run = start(from_mapping(tables))
    assert 0 < run.state.present < run.problem.world.clients
