"""Several runs at a time: the same result as one after another, and failures in one line."""

import os
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from selfsame.config.experiment import read_experiment
from selfsame.config.recipe import from_mapping, merged, to_mapping
from selfsame.engine import checkpoint
from selfsame.errors import SelfsameError
from selfsame.files import locked_folder
from selfsame.runs import parallel
from selfsame.runs.claim import claimed
from selfsame.runs.experiments import Campaign, train_at_once
from selfsame.runs.loop import carry_on
from selfsame.runs.parallel import resume_all
from selfsame.runs.run import load_run, order, start
from selfsame.runs.summary import read_view


def tables(method):
    data, run = {"name": "digits", "turns": 1}, {"rounds": 3, "eval_every": 3}
    return from_mapping({"method": {"name": method}, "data": data, "run": run})


def test_runs_at_a_time_end_as_runs_one_after_another(tmp_path):
    methods = ("fixed", "fedgn")
    alone = {name: carry_on(start(tables(name))).final for name in methods}
    for name in methods:
        start(tables(name), tmp_path / name)
    heard = []
    resume_all([tmp_path / name for name in methods], 2, heard.append)
    assert sorted(folder.name for folder in heard) == sorted(methods)
    for name in methods:
        final = read_view(tmp_path / name).final
        assert final["loss"] == alone[name]["loss"] and final["p@1"] == alone[name]["p@1"]


def test_a_run_that_fails_is_named_with_its_own_line(tmp_path):
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "recipe.toml").write_text('[method]\nname = "nosuch"\n')
    with pytest.raises(SelfsameError, match=r"broken: unknown method 'nosuch'"):
        resume_all([tmp_path / "broken"], 2, lambda folder: None)


def test_a_folder_that_another_process_writes_to_is_named_once(tmp_path):
    start(tables("fixed"), tmp_path / "run")
    with claimed(tmp_path / "run"), pytest.raises(SelfsameError) as caught:
        resume_all([tmp_path / "run"], 1, lambda folder: None)
    assert str(caught.value).startswith(f"{tmp_path / 'run'}: another process is writing to it")


ORPHANS = """
import pathlib, sys
from selfsame.runs.parallel import resume_all
resume_all([pathlib.Path(sys.argv[1])], 1, lambda folder: None)
"""


def test_a_run_ends_after_its_round_when_its_parent_has_been_killed(tmp_path):
    """Before, it ran on to its last round, and the same command was refused so long."""
    long = merged(to_mapping(tables("fixed")), {"run": {"rounds": 3000, "eval_every": 3000, "checkpoint_every": 1}})
    folder = tmp_path / "run"
    start(from_mapping(long), folder)
    saved = folder / "checkpoint" / "state.safetensors"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen([sys.executable, "-c", ORPHANS, str(folder)], env=environment) as parent:
        while not saved.is_file():
            assert parent.poll() is None
            time.sleep(0.05)
        parent.kill()
    with until_free(folder):
        assert "stopped after round" in (folder / "output.txt").read_text()
        assert 0 < checkpoint.peek(saved)["round"] < 3000


@contextmanager
def until_free(folder):
    """The folder's lock, waited for."""
    while True:
        with locked_folder(folder) as ours:
            if ours:
                yield
                return
        time.sleep(0.05)


def test_a_process_that_breaks_is_not_taken_for_a_run_that_diverged(tmp_path, monkeypatch):
    """Both end with 1; before, the other runs were stopped by a result.json that was not there."""

    def broken(folder, _until):
        with (folder / "output.txt").open("w") as out:
            return subprocess.Popen([sys.executable, "-c", "raise ValueError('no such disc')"], stderr=out)

    (tmp_path / "run").mkdir()
    monkeypatch.setattr(parallel, "_begin", broken)
    with pytest.raises(SelfsameError, match=r"run: ValueError: no such disc"):
        resume_all([tmp_path / "run"], 1, lambda folder: None)


WORDS = """CUDA error: unspecified launch failure
Errors of kernels may be told of elsewhere.

Compile with checks to find out more."""


@pytest.mark.parametrize(
    "program", ["raise RuntimeError(words)", "try: {}['x']\nexcept KeyError: raise RuntimeError(words)"]
)
def test_an_error_of_many_lines_is_told_by_its_first(program, tmp_path, monkeypatch):
    """Before, by its last: `Compile with ...`, which says nothing of what happened."""

    def broken(folder, _until):
        with (folder / "output.txt").open("w") as out:
            out.write("round 3\n")
            out.flush()
            return subprocess.Popen([sys.executable, "-c", f"words = {WORDS!r}\n{program}"], stderr=out)

    (tmp_path / "run").mkdir()
    monkeypatch.setattr(parallel, "_begin", broken)
    with pytest.raises(SelfsameError) as caught:
        resume_all([tmp_path / "run"], 1, lambda folder: None)
    assert str(caught.value) == f"{tmp_path / 'run'}: RuntimeError: CUDA error: unspecified launch failure"


SAYS = """
import sys, traceback
try: 1 / 0
except ZeroDivisionError: traceback.print_exc()
sys.exit('selfsame: no such disc')
"""


def test_what_a_program_says_after_an_error_that_it_caught_is_its_reason(tmp_path, monkeypatch):
    def broken(folder, _until):
        with (folder / "output.txt").open("w") as out:
            return subprocess.Popen([sys.executable, "-c", SAYS], stderr=out)

    (tmp_path / "run").mkdir()
    monkeypatch.setattr(parallel, "_begin", broken)
    with pytest.raises(SelfsameError, match=r"run: no such disc$"):
        resume_all([tmp_path / "run"], 1, lambda folder: None)


ENDS_WELL = """
import pathlib, signal, sys, time
folder = pathlib.Path(sys.argv[1])
def end(*_):
    (folder / "saved").touch()
    sys.exit(143)
signal.signal(signal.SIGTERM, end)
(folder / "began").touch()
while True:
    time.sleep(0.05)
"""


def test_a_stop_is_told_to_each_process_and_waited_for(tmp_path, monkeypatch):
    """Before, the processes were left to themselves. A third run, which has not begun, is not begun."""
    folders = [tmp_path / name for name in "abc"]
    for folder in folders:
        folder.mkdir()
    begin = [sys.executable, "-c", ENDS_WELL]
    monkeypatch.setattr(parallel, "_begin", lambda folder, _until: subprocess.Popen([*begin, str(folder)]))
    heard = []
    resume_all(folders, 2, heard.append, lambda: all((folder / "began").exists() for folder in folders[:2]))
    assert [(folder / "saved").exists() for folder in folders] == [True, True, False] and heard == []


@pytest.fixture
def at_once(monkeypatch):
    """Processes that end at once with a result, and what was told of them."""
    told = []

    def begin(folder, _until):
        told.append(f"{folder.name} begins")
        folder.mkdir()
        (folder / "result.json").touch()
        return subprocess.Popen([sys.executable, "-S", "-c", ""])

    monkeypatch.setattr(parallel, "_begin", begin)
    return told


def test_a_run_is_made_ready_when_its_turn_comes(tmp_path, at_once):
    """Before, all were, one after another, while nothing was trained: four minutes for a hundred runs of a ResNet.

    And a run that ends is measured while the next one is at work: before, its place stayed empty so long.
    """
    folders = [tmp_path / name for name in "abc"]
    resume_all(
        folders,
        1,
        lambda folder: at_once.append(f"{folder.name} ends"),
        ready=lambda folder: at_once.append(folder.name),
    )
    assert at_once == ["a", "a begins", "b", "b begins", "a ends", "c", "c begins", "b ends", "c ends"]


def test_a_stop_is_asked_for_before_each_measurement_and_each_run(tmp_path, at_once):
    """Before, whoever stopped waited until all runs that had ended were measured, and free places were filled first."""
    folders = [tmp_path / name for name in "abcdef"]
    resume_all(folders, 3, lambda folder: at_once.append("ends"), lambda: "ends" in at_once)
    assert at_once.count("ends") == 1 and at_once[-1] == "ends"
    resume_all([tmp_path / name for name in "xyz"], 3, at_once.append, lambda: "x begins" in at_once)
    assert at_once[-1] == "x begins"


def test_a_process_that_breaks_beside_the_result_of_an_earlier_rung(tmp_path, monkeypatch):
    """Before, with result.json there and code 1 it was taken for a run that had diverged."""

    def broken(folder, _until):
        with (folder / "output.txt").open("w") as out:
            return subprocess.Popen([sys.executable, "-c", "raise ValueError('no such disc')"], stderr=out)

    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "result.json").write_text("{}")
    monkeypatch.setattr(parallel, "_begin", broken)
    with pytest.raises(SelfsameError, match=r"run: ValueError: no such disc"):
        resume_all([tmp_path / "run"], 1, lambda folder: None)


RECIPE = """
seeds = [0, 1]
[method]
name = "fixed"
[data]
name = "digits"
turns = 1
[run]
rounds = 2
eval_every = 2
"""


def test_who_asks_for_runs_hears_of_each_with_its_data(tmp_path, forked):
    """By which `selfsame paper` measures them as they end, and not all of them in the end."""
    (tmp_path / "two.toml").write_text(RECIPE)
    campaign = Campaign(read_experiment(tmp_path / "two.toml", {}, ()), tmp_path / "runs")
    heard = []
    work = [(campaign, *one) for one in campaign.left(campaign.jobs)]
    train_at_once(work, 2, lambda job, data: heard.append((job, data)))
    assert sorted(job.recipe.run.seed for job, _ in heard) == [0, 1]
    assert all(data.name == "digits" and len(data.unseen.y) for _, data in heard)
    assert set(campaign.views) == {job.folder for job, _ in heard}


def test_what_does_not_fit_is_said_before_the_first_run(tmp_path):
    """Before, early stopping without samples to judge by was refused when the run's turn came, and ended the others."""
    late = RECIPE.replace("[run]", "[run]\npatience = 2").replace("turns = 1", "turns = 1\nheld_out = 3")
    (tmp_path / "late.toml").write_text(late)
    campaign = Campaign(read_experiment(tmp_path / "late.toml", {}, ()), tmp_path / "runs")
    with pytest.raises(SelfsameError, match=r"run\.patience: needs samples for validation"):
        campaign.left(campaign.jobs)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("begin", [start, order])
@pytest.mark.parametrize("at", ["data.json", "recipe.toml"])
def test_a_run_that_was_killed_as_it_began_begins_anew(at, begin, tmp_path, monkeypatch):
    """Before, it went on without data.json for good, or every later call refused the folder."""

    class Killed(BaseException):
        pass

    def killed(draft, path, replace=os.replace):
        if Path(path).name == at:
            Path(path).with_name(f".{at}.0123456789abcdef").touch()  # as the draft that a dead process leaves
            raise Killed
        replace(draft, path)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr("selfsame.files.os.replace", killed)
        start(tables("fixed"), tmp_path / "run")
    assert not (tmp_path / "run" / "recipe.toml").exists() and (tmp_path / "run" / f".{at}.0123456789abcdef").exists()
    begin(tables("fixed"), tmp_path / "run")
    assert not load_run(tmp_path / "run").problem.federation.notes  # none that its data are unknown
    assert (tmp_path / "run" / "data.json").is_file() and (tmp_path / "run" / "recipe.toml").is_file()
    (tmp_path / "other").mkdir()
    for name in ("data.json", "metrics.jsonl"):  # somebody's own
        (tmp_path / "other" / name).write_text("{}")
        with pytest.raises(SelfsameError, match="is there already"):
            begin(tables("fixed"), tmp_path / "other")


def test_a_run_that_is_ordered_is_the_one_that_is_started(tmp_path):
    """Whoever begins several runs writes their recipes alone; each process does the rest, at the same time."""
    started = start(tables("fedgn"), tmp_path / "started")
    order(tables("fedgn"), tmp_path / "ordered")
    assert [place.name for place in (tmp_path / "ordered").iterdir()] == ["recipe.toml"]
    begun = load_run(tmp_path / "ordered")
    assert begun.state.theta_P.equal(started.state.theta_P) and begun.state.round == 0
    for place in (tmp_path / "started").iterdir():
        assert (tmp_path / "ordered" / place.name).read_bytes() == place.read_bytes()
    with pytest.raises(SelfsameError, match="is there already"):
        order(tables("fedgn"), tmp_path / "ordered")


@pytest.mark.parametrize("at", ["data.json", "recipe.toml"])
def test_a_run_that_was_killed_between_its_order_and_its_beginning(at, tmp_path, monkeypatch):
    order(tables("fixed"), tmp_path / "run")

    def killed(draft, path, replace=os.replace):
        if Path(path).name == at:
            raise KeyboardInterrupt
        replace(draft, path)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("selfsame.files.os.replace", killed)
        load_run(tmp_path / "run")
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
    assert not load_run(tmp_path / "run").problem.federation.notes  # none that its data are unknown
    assert (tmp_path / "run" / "data.json").is_file()
