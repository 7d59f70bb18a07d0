"""The best checkpoint by validation samples, and a run that ends when it gets no better."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_run import a_recipe

from selfsame.data import Samples, load
from selfsame.engine import checkpoint
from selfsame.errors import SelfsameError
from selfsame.runs.course import Run, best_record, ended_early
from selfsame.runs.loop import carry_on
from selfsame.runs.run import load_run, open_run, start


@pytest.fixture(scope="module")
def validated():
    """Digits, half of whose test samples are for validation."""
    fed = load("digits", turns=1)
    x, y = fed.test.x, fed.test.y
    return replace(fed, test=Samples(x[::2], y[::2]), validation=Samples(x[1::2], y[1::2]))


@given(st.lists(st.one_of(st.none(), st.sampled_from([0.1, 0.2, 0.3])), max_size=8), st.integers(0, 4))
def test_when_to_end_by_plain_loops(values, patience):
    history = [{"round": number, "valid_eer": value} for number, value in enumerate(values)]
    best, since = None, 0
    for value in values:
        since += 1
        if value is not None and (best is None or value < best):
            best, since = value, 0
    found = best_record(history)
    assert (found and found["valid_eer"]) == best
    assert ended_early(history, patience) == (patience > 0 and best is not None and since >= patience)


def test_the_best_state_is_kept_and_a_run_that_gets_no_better_ends(validated, tmp_path, monkeypatch):
    errors = iter([0.3, 0.1, 0.2, 0.15, 0.05, 0.01])
    monkeypatch.setattr(Run, "_validated", lambda run: {"valid_eer": next(errors), "valid_p@1": 0.5})
    recipe = a_recipe(
        "fixed", run={"rounds": 12, "eval_every": 2, "checkpoint_every": 5, "patience": 2, "device": "cpu"}
    )
    run = carry_on(start(recipe, tmp_path / "run", validated))
    assert run.done and run.state.round == 8 and run.curves and (tmp_path / "run" / "model.safetensors").exists()
    folder = tmp_path / "run" / "checkpoint"
    assert checkpoint.peek(folder / "best.safetensors")["round"] == 4
    assert checkpoint.peek(folder / "state.safetensors")["round"] == 8
    again = load_run(tmp_path / "run", validated)
    assert again.done and carry_on(again).state.round == 8


def test_validation_is_measured_and_opened(validated, tmp_path, monkeypatch):
    recipe = a_recipe("fixed", run={"rounds": 4, "eval_every": 2, "checkpoint_every": 2, "device": "cpu"})
    run = carry_on(start(recipe, tmp_path / "run", validated))
    assert all(0 <= record["valid_eer"] <= 1 and 0 <= record["valid_p@1"] <= 1 for record in run.history)
    assert run._validated()["valid_p@1"] == run.final["valid_p@1"]
    monkeypatch.setattr("selfsame.engine.setup.load", lambda *_, **__: validated)
    best = open_run(tmp_path / "run", best=True)
    assert best.state.round == best_record(run.history)["round"]


def test_patience_needs_validation(tmp_path):
    fed = load("digits", turns=1)
    with pytest.raises(SelfsameError, match=r"run\.patience: needs samples for validation"):
        start(a_recipe("fixed", run={"rounds": 4, "patience": 1, "device": "cpu"}), tmp_path / "run", fed)
    assert not (tmp_path / "run").exists()
    carry_on(start(a_recipe("fixed", run={"rounds": 1, "device": "cpu"}), tmp_path / "run", fed))
    with pytest.raises(SelfsameError, match="has no best checkpoint"):
        open_run(tmp_path / "run", best=True)
