"""A run that was interrupted is the run that never was, bit for bit; one that goes wrong says so and keeps its past."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import torch

import selfsame
from selfsame import cli
from selfsame.config.presets import preset
from selfsame.config.recipe import from_mapping, merged, read_toml
from selfsame.data import Samples, load
from selfsame.engine import checkpoint
from selfsame.engine.setup import prepare
from selfsame.errors import SelfsameError
from selfsame.report.words import finding_words
from selfsame.runs.claim import vacant
from selfsame.runs.course import Run
from selfsame.runs.hooks import marks
from selfsame.runs.loop import carry_on, train
from selfsame.runs.run import load_run, start

ROUNDS = 12


@pytest.fixture(scope="module")
def digits():
    return load("digits", turns=1)


def a_recipe(method, /, **tables):
    small = {
        "method": {"name": method},
        "data": {"name": "digits", "turns": 1},
        "run": {"rounds": ROUNDS, "eval_every": 5, "checkpoint_every": 3, "device": "cpu"},
        "local": {"batch": 4},
    }
    layers = [preset(method, "digits"), small]
    return from_mapping(merged(*layers, tables))


class Stopped(Exception):
    pass


def stop_after(rounds):
    """A tick that pulls the plug once so many rounds have been done."""
    left = [rounds]

    def tick(done, record):
        left[0] -= done
        if left[0] <= 0:
            raise Stopped

    return tick


def interrupted(recipe, folder, federation, cuts):
    """Run, stopped after the given numbers of rounds, one cut after the other, each time gone on with from disk."""
    run = start(recipe, folder, federation)
    for cut in cuts:
        with pytest.raises(Stopped):
            carry_on(run, stop_after(cut - run.state.round))
        run = load_run(folder, federation)
        assert run.state.round < cut or run.state.round == 0
    return carry_on(run)


def state_of(folder):
    tensors, meta = checkpoint.read_tensors(folder / "checkpoint" / "state.safetensors")
    bits = {name: (str(t.dtype), tuple(t.shape), t.numpy().tobytes()) for name, t in tensors.items()}
    return bits, {**meta, "losses": json.loads(meta["losses"])}


def records(folder):
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in lines]


def assert_same(one, other):
    """Two run folders hold the same state, records and network, to the last bit."""
    (bits, meta), (other_bits, other_meta) = state_of(one), state_of(other)
    assert meta == other_meta
    assert bits.keys() == other_bits.keys()
    assert [name for name in bits if bits[name] != other_bits[name]] == []
    assert records(one) == records(other) != []
    assert (one / "model.safetensors").exists() == (other / "model.safetensors").exists()
    if (one / "model.safetensors").exists():
        assert (one / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()


MOMENTUM = {"optimiser": "momentum", "momentum": 0.9}
ADAM = {"optimiser": "adam", "lr": 0.05}
PLAIN = {"optimiser": "adagrad", "lr": 0.05, "plain": ["conv1"], "plain_lr": 2.0}
DROP = {"dropout": 0.3, "size": 4}
LATE = {"late": 0.4, "join_round": 6}
CASES = {
    "fedhide, momentum, drop-outs": ("fedhide", {"server": MOMENTUM, "cohort": DROP}),
    "fedhide, adam, several steps": ("fedhide", {"server": ADAM, "local": {"batch": 4, "steps": 2}}),
    "fedhide, late": ("fedhide", {"cohort": LATE, "method": {"neighbours": 2}}),
    "fedaws, adagrad but for one layer": ("fedaws", {"server": PLAIN}),
    "fedaws, momentum, drop-outs": ("fedaws", {"server": MOMENTUM, "cohort": DROP}),
    "fedaws, late": ("fedaws", {"cohort": {**LATE, "dropout": 0.2}}),
    "feduv, adam, drop-outs": ("feduv", {"method": {"secrets": "seeded"}, "server": ADAM, "cohort": DROP}),
    "feduv, late": ("feduv", {"method": {"secrets": "seeded"}, "cohort": LATE}),
    "fedmetric, momentum": ("fedmetric", {"server": MOMENTUM, "cohort": {"size": 3, "sampling": "round-robin"}}),
    "fedmetric, late": ("fedmetric", {"cohort": LATE}),
    "softmax, adam": ("softmax", {"server": ADAM, "cohort": DROP, "augment": {"crop": 1, "rotation": 10.0}}),
    "softmax, late": ("softmax", {"cohort": LATE}),
    "deepsvdd, drop-outs": ("deepsvdd", {"cohort": DROP}),
    "deepsvdd, late": ("deepsvdd", {"cohort": LATE}),
}


@pytest.mark.parametrize("case", CASES)
def test_an_interrupted_run_ends_as_the_uninterrupted_one(case, digits, tmp_path):
    """Before the first checkpoint, before the late clients join, in the round they join, after, in the last round."""
    method, tables = CASES[case]
    recipe = a_recipe(method, **tables)
    whole = carry_on(start(recipe, tmp_path / "whole", digits))
    assert whole.done and whole.state.round == ROUNDS
    run = interrupted(recipe, tmp_path / "cut", digits, [2, 5, 6, 7, 8, 12])
    assert run.done and run.state.present == digits.clients
    assert [r["round"] for r in run.history] == [5, 10, 12]
    assert_same(tmp_path / "cut", tmp_path / "whole")


def test_the_comparison_of_runs_would_notice(digits, tmp_path):
    """Another seed is another run: the tests above do not compare constants."""
    for seed in (0, 1):
        run = a_recipe("fedhide", run={"rounds": 4, "seed": seed, "eval_every": 2})
        carry_on(start(run, tmp_path / str(seed), digits))
    with pytest.raises(AssertionError):
        assert_same(tmp_path / "0", tmp_path / "1")


def test_a_record_holds_the_mean_loss_since_the_last_one(digits):
    """And looking more often does not change the training."""
    each = carry_on(start(a_recipe("fedhide", run={"rounds": 6, "eval_every": 1}), None, digits))
    third = carry_on(start(a_recipe("fedhide", run={"rounds": 6, "eval_every": 3}), None, digits))
    loss = [record["loss"] for record in each.history]
    assert len(set(loss)) == 6
    assert [record["loss"] for record in third.history] == pytest.approx([sum(loss[:3]) / 3, sum(loss[3:]) / 3])
    assert torch.equal(each.state.theta_P, third.state.theta_P)


def test_late_clients_are_not_there_before_they_join(digits, tmp_path):
    recipe = a_recipe("fedhide", **CASES["fedhide, late"][1])
    run = start(recipe, tmp_path / "run", digits)
    assert run.state.present == digits.clients - round(0.4 * digits.clients)
    with pytest.raises(Stopped):
        carry_on(run, stop_after(5))
    assert checkpoint.peek(tmp_path / "run" / "checkpoint" / "state.safetensors") == {"round": 3, "present": 4}
    carry_on(load_run(tmp_path / "run", digits))
    assert checkpoint.peek(tmp_path / "run" / "checkpoint" / "state.safetensors") == {"round": 12, "present": 7}


def test_a_killed_process_is_resumed_bit_for_bit(digits, tmp_path, monkeypatch, capsys):
    """By the command, in this process."""
    folder, env = tmp_path / "killed", {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    settings = ("run.eval_every=150", "run.checkpoint_every=10", "data.turns=1", "local.batch=4")
    command = [sys.executable, "-m", "selfsame", "train", "fedhide", "--data", "digits", "--rounds", "300", "--quiet"]
    command += ["--device", "cpu", "--out", str(folder), *(word for s in settings for word in ("--set", s))]
    process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    limit = time.monotonic() + 120
    saved = folder / "checkpoint" / "state.safetensors"
    try:
        while not saved.exists():
            assert process.poll() is None, process.stderr.read().decode()
            assert time.monotonic() < limit
            time.sleep(0.005)
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert 10 <= checkpoint.peek(saved)["round"] < 300
    assert not (folder / "model.safetensors").exists()

    monkeypatch.setattr(sys, "argv", ["selfsame", "resume", str(folder), "--quiet"])
    try:
        cli.main()
    except SystemExit as end:
        assert not end.code
    assert "P@1" in capsys.readouterr().out
    recipe = from_mapping(read_toml(folder / "recipe.toml"))
    carry_on(start(recipe, tmp_path / "whole", digits))
    assert_same(folder, tmp_path / "whole")


def test_a_run_is_repeated_from_its_recipe_alone(tmp_path):
    """Only recipe.toml is carried over, and the data set is loaded by what it says."""
    first = train(
        "fedaws", "digits", out=tmp_path / "first", spread_weight=3.0,
        settings={"data": {"turns": 1}, "run": {"rounds": 6, "eval_every": 3, "seed": 5}, "local": {"batch": 4}},
    )  # fmt: skip
    (tmp_path / "second").mkdir()
    (tmp_path / "second" / "recipe.toml").write_bytes((tmp_path / "first" / "recipe.toml").read_bytes())
    second = carry_on(load_run(tmp_path / "second"))
    assert second.recipe == first.recipe
    assert_same(tmp_path / "first", tmp_path / "second")


def finished(digits, tmp_path, **tables):
    recipe = a_recipe("fedhide", **{"run": {"rounds": 9, "eval_every": 3, "checkpoint_every": 6}, **tables})
    folder = tmp_path / "run"
    with pytest.raises(Stopped):
        carry_on(start(recipe, folder, digits), stop_after(7))
    return folder


def test_a_half_written_record_is_dropped(digits, tmp_path):
    folder = finished(digits, tmp_path)
    metrics = folder / "metrics.jsonl"
    whole = metrics.read_text()
    assert [json.loads(line)["round"] for line in whole.splitlines()] == [3, 6]
    metrics.write_text(whole + whole.splitlines()[0][:40])
    assert [r["round"] for r in load_run(folder, digits).history] == [3, 6]
    assert metrics.read_text() == whole
    carry_on(load_run(folder, digits))
    assert [r["round"] for r in records(folder)] == [3, 6, 9]


def test_records_after_the_checkpoint_are_dropped(digits, tmp_path):
    """The process died between an evaluation and the next checkpoint: the evaluation is made again."""
    folder = finished(digits, tmp_path)
    metrics = folder / "metrics.jsonl"
    late = json.loads(metrics.read_text().splitlines()[-1]) | {"round": 7, "loss": 123.0}
    metrics.write_text(metrics.read_text() + json.dumps(late) + "\n")
    run = load_run(folder, digits)
    assert run.state.round == 6
    assert [r["round"] for r in run.history] == [3, 6]
    carry_on(run)
    assert [r["round"] for r in records(folder)] == [3, 6, 9]
    assert all(r["loss"] != 123.0 for r in records(folder))


def test_metrics_that_are_gone_or_no_text_do_not_stop_a_resume(digits, tmp_path):
    folder = finished(digits, tmp_path)
    (folder / "metrics.jsonl").write_bytes(b"\xff\xfe[1]\n5\n")
    assert load_run(folder, digits).history == []
    (folder / "metrics.jsonl").unlink()
    run = carry_on(load_run(folder, digits))
    assert run.done and [r["round"] for r in records(folder)] == [9]


def test_a_damaged_checkpoint_is_named(digits, tmp_path):
    folder = finished(digits, tmp_path)
    saved = folder / "checkpoint" / "state.safetensors"
    whole = saved.read_bytes()
    for damage in (b"", whole[: len(whole) // 2], b"x" * 100):
        saved.write_bytes(damage)
        with pytest.raises(SelfsameError, match=r"state\.safetensors: damaged"):
            load_run(folder, digits)
    saved.write_bytes(whole)
    assert load_run(folder, digits).state.round == 6


def test_a_checkpoint_of_another_recipe_is_refused(digits, tmp_path):
    folder = finished(digits, tmp_path)
    text = (folder / "recipe.toml").read_text()
    assert "width = 32" in text
    (folder / "recipe.toml").write_text(text.replace("width = 32", "width = 16"))
    with pytest.raises(SelfsameError, match="the recipe needs"):
        load_run(folder, digits)


def test_stopped_between_the_last_checkpoint_and_the_report(digits, tmp_path):
    """Nothing is trained again, and the curves, the attacker and the warnings are there all the same."""
    recipe = a_recipe("positive-only", run={"rounds": 60, "eval_every": 60})
    whole = carry_on(start(recipe, tmp_path / "run", digits))
    (tmp_path / "run" / "model.safetensors").unlink()
    run = carry_on(load_run(tmp_path / "run", digits), stop_after(0))
    assert run.warnings == whole.warnings != []
    assert run.curves == whole.curves != {}
    assert run.leakage.how == whole.leakage.how
    assert (tmp_path / "run" / "model.safetensors").exists()
    assert len(records(tmp_path / "run")) == 1


LEAP = {"lr": 0.05, "schedule": "step", "every": 7, "decay": 1e25}  # sound for seven rounds, then absurd


@pytest.mark.parametrize("method", ["fedhide", "fedaws", "softmax", "fedmetric", "deepsvdd"])
def test_divergence_is_said_and_the_last_checkpoint_is_sound(method, digits, tmp_path):
    """With a checkpoint after every round, so that none of the bad ones can hide between two."""
    recipe = a_recipe(method, local=LEAP, run={"rounds": 20, "eval_every": 20, "checkpoint_every": 1})
    run = carry_on(start(recipe, tmp_path / "run", digits))
    assert not run.done
    (found,) = run.warnings
    assert found["kind"] == "diverged" and 7 <= found["round"] <= 20
    words = finding_words(found)
    assert words.startswith("diverged") and "Lower local.lr (now 0.05)" in words and "server.lr" in words
    assert not (tmp_path / "run" / "model.safetensors").exists()
    again = load_run(tmp_path / "run", digits)  # refuses what is not finite
    assert 7 <= again.state.round < 20
    assert again.evaluate().figures["p@1"] is not None
    assert torch.isfinite(again.embed(digits.test.x[:5])).all()


def test_divergence_in_the_last_block_is_not_a_finished_run(digits, tmp_path):
    """One evaluation, one block: the last round is reached, and the run is not done for all that."""
    recipe = a_recipe("fedhide", local={"lr": 1e6}, run={"rounds": 10, "eval_every": 10, "checkpoint_every": 10})
    run = carry_on(start(recipe, tmp_path / "run", digits))
    assert run.state.round == 10 and not run.done
    assert [found["kind"] for found in run.warnings] == ["diverged"] and run.history == []
    assert not (tmp_path / "run" / "model.safetensors").exists()
    assert not (tmp_path / "run" / "checkpoint").exists()


def test_collapse_is_said(digits):
    bad = carry_on(start(a_recipe("positive-only", run={"rounds": 60, "eval_every": 60}), None, digits))
    (found,) = bad.warnings
    assert found["kind"] == "collapsed" and found["classes"] == 7 and found["p@1"] == bad.final["p@1"]
    words = finding_words(found)
    assert words.startswith("collapsed") and "fedaws" in words
    assert bad.final["p@1"] == pytest.approx(1 / 7, abs=0.06)
    good = carry_on(start(a_recipe("fedaws", run={"rounds": 60, "eval_every": 60}), None, digits))
    assert good.warnings == []
    assert good.final["p@1"] > 2 / 7


@pytest.mark.parametrize("method", ["fedgn", "fedcs", "fedhide", "fedaws", "softmax", "feduv", "fdml", "deepsvdd"])
def test_precision_by_the_shared_vectors(method, digits):
    """By the proxies that others see, by the classes' own vectors where these are seen, by nothing where nothing is."""
    run = carry_on(start(a_recipe(method, run={"rounds": 20, "eval_every": 20}), None, digits))
    shared = run.final.get("p@1_shared")
    if method in ("fedaws", "softmax"):
        assert shared == run.final["p@1"]
    elif method in ("feduv", "fdml", "deepsvdd"):
        assert shared is None
    else:
        proxy_CD = run.state.server["proxies"].double()
        right = 0
        for x, y in zip(run.embed(digits.test.x).double(), digits.test.y.tolist()):
            right += int(torch.argmax(torch.stack([x @ p / p.norm() for p in proxy_CD]))) == y
        assert shared == pytest.approx(right / len(digits.test.y), abs=1e-12)


def test_a_run_folder_must_be_free(digits, tmp_path):
    recipe = a_recipe("fedhide")
    (tmp_path / "file").write_text("x")
    for place, words in ((tmp_path, "is there already"), (tmp_path / "file", "is a file")):
        with pytest.raises(SelfsameError, match=words):
            start(recipe, place, digits)
    with pytest.raises(SelfsameError, match="is a file"):
        vacant(tmp_path / "file" / "below")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file"]
    (tmp_path / "empty").mkdir()
    assert start(recipe, tmp_path / "empty", digits).folder == tmp_path / "empty"


def test_what_does_not_fit_leaves_no_folder(digits, tmp_path):
    for tables in ({"cohort": {"size": 99}}, {"method": {"alpha": 7.0}}, {"net": {"name": "nosuch"}}):
        with pytest.raises(SelfsameError):
            start(a_recipe("fedhide", **tables), tmp_path / "run", digits)
    assert not (tmp_path / "run").exists()


def test_the_python_interface():
    """As the README has it."""
    run = selfsame.train("fedhide", data="digits", settings={"run": {"rounds": 30, "eval_every": 15}}, alpha=0.1)
    assert isinstance(run, Run) and run.done and run.folder is None
    assert 0 <= run.final["p@1"] <= 1 and run.final["round"] == 30
    assert run.recipe.method.options["alpha"] == 0.1
    assert run.recipe.local.schedule == "cosine"  # the preset is beneath
    data = selfsame.load("digits")
    emb = run.embed(data.test.x[:5])
    assert emb.shape == (5, 32) and torch.isfinite(emb).all()
    assert isinstance(data, selfsame.Federation)
    with pytest.raises(selfsame.SelfsameError, match="no option 'nosuch'"):
        selfsame.train("fedhide", nosuch=1)


def test_a_method_that_is_not_federated_embeds_by_client(digits):
    run = carry_on(start(a_recipe("deepsvdd", run={"rounds": 3}), None, digits))
    x = digits.test.x[:4]
    assert not torch.equal(run.embed(x, client=0), run.embed(x, client=1))
    assert run.final["auroc"] is None


@pytest.mark.parametrize(
    ("rounds", "samples", "looks"), [(1000, 500, 10), (1000, 10_000, 2), (2000, 10_000, 4), (20, 10_000, 2)]
)
def test_evaluations_are_fewer_where_they_would_cost_more_than_training(rounds, samples, looks):
    """1,000 rounds of 10 clients x 16 samples, three passes each: 24,000 samples are a twentieth."""
    test = Samples(torch.zeros(samples, 1, 8, 8, dtype=torch.uint8), torch.zeros(samples, dtype=torch.int64))
    data = replace(load("synthetic", clients=20, samples=16, held_out=0), test=test)
    recipe = from_mapping(
        {
            "method": {"name": "fixed"},
            "data": {"name": "synthetic"},
            "run": {"rounds": rounds},
            "cohort": {"size": 10},
            "local": {"batch": 16},
        }
    )
    every, keep = marks(prepare(recipe, data))
    assert -(-rounds // every) == looks
    assert keep == rounds // 10
