"""Settings chosen without the test: rungs that go on as if nothing had been, and what each run may see."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from selfsame.config.ladders import read_ladders
from selfsame.config.recipe import from_mapping, merged
from selfsame.data import load
from selfsame.errors import SelfsameError
from selfsame.report.view import RunView
from selfsame.runs.experiments import standing, train_at_once
from selfsame.runs.loop import carry_on
from selfsame.runs.run import load_run, start
from selfsame.runs.tuning import Task, checked, plan, seconds_a_round

TABLES = {
    "method": {"name": "fixed"},
    "data": {"name": "digits", "turns": 1},
    "run": {"rounds": 6, "eval_every": 6, "device": "cpu"},
    "local": {"batch": 4, "lr": 0.05, "schedule": "cosine"},
    "server": {"optimiser": "momentum"},
}


def recipe(**tables):
    return from_mapping(merged(TABLES, tables))


def task(*over, **more):
    return Task(Path("small.toml"), more.pop("recipe", recipe()), read_ladders(over), **more)


@pytest.fixture(scope="module")
def digits():
    return load("digits", turns=1)


# ---- a pause


def test_a_run_that_pauses_ends_as_one_that_does_not(digits, tmp_path):
    whole = carry_on(start(recipe(), None, digits))
    first = carry_on(start(recipe(), tmp_path / "run", digits), until=2)
    assert first.state.round == 2 and not first.done and [record["round"] for record in first.history] == [2]
    again = carry_on(load_run(tmp_path / "run", digits), until=2)  # it is there already
    assert again.state.round == 2 and [record["round"] for record in again.history] == [2]
    last = carry_on(load_run(tmp_path / "run", digits), until=9)
    assert last.done and [record["round"] for record in last.history] == [2, 6]
    assert torch.equal(last.state.theta_P, whole.state.theta_P)
    assert last.final["p@1"] == whole.final["p@1"] and last.final["eer"] == whole.final["eer"]


def test_what_a_method_fitted_to_the_federation_makes_no_other_run(tmp_path):
    plain = recipe(method={"name": "fedcrowd"}, data={"turns": 2})
    start(plain, tmp_path / "run")
    assert standing(tmp_path / "run", plain).differs == ()
    other = replace(plain, method=replace(plain.method, options={"sketch": 2}))
    assert standing(tmp_path / "run", other).differs == ("method.sketch",)


# ---- what is judged by


def test_people_are_set_apart_where_the_test_has_unseen_ones(tmp_path):
    found = plan(task("local.lr=0.1", recipe=recipe(data={"turns": 2})), tmp_path)
    assert (found.apart, found.task.by) == ("people", "eer")
    few = plan(task("local.lr=0.1"), tmp_path)  # a fifth of seven people is one
    assert (few.apart, few.task.by) == ("samples", "p@1")
    asked = plan(task("local.lr=0.1", by="auroc", share=0.3), tmp_path)
    assert (asked.apart, asked.task.by) == ("people", "auroc")
    assert asked.jobs[0].recipe.data.options == {"turns": 1, "apart": "people", "apart_share": 0.3}
    alone = plan(task("local.lr=0.1", recipe=recipe(method={"name": "deepsvdd"}, data={"turns": 2})), tmp_path)
    assert (alone.apart, alone.task.by) == ("samples", "p@1")


@pytest.mark.parametrize(
    ("over", "more", "words"),
    [
        (["local.lr=0.1,-1"], {}, r"--over local.lr = -1: local.lr: must be at least 0"),
        (
            ["alpha=1,1.0"],
            {"recipe": recipe(method={"name": "fedhide"})},
            r"--over alpha = 1.0: is the same setting as",
        ),
        (["local.lr=1,2,1.0"], {}, r"--over local.lr = 1.0: is the same setting as local.lr = 1; name it once"),
        (["alhpa=0.1"], {}, r"--over alhpa = 0.1: fixed: unknown option 'alhpa'"),
        (["local.bach=1"], {}, r"--over local.bach = 1: local.bach: unknown option; did you mean 'batch'"),
        (["local.lr=0.1"], {"by": "luck"}, r"--by: 'luck' is not one of eer"),
        (["run.rounds=1,2"], {"halving": True}, r"--over run.rounds: with --halving"),
        (["method.name=deepsvdd"], {"by": "eer"}, r"--by eer: deepsvdd has no network for people"),
        (["local.lr=0.1"], {"by": "eer"}, r"digits: 0.2 of 7 people leaves too few .*--share.*--by p@1"),
    ],
)
def test_what_is_wrong_is_said_before_the_first_run(over, more, words, tmp_path):
    with pytest.raises(SelfsameError, match=words):
        found = plan(task(*over, **more), tmp_path / "out")
        found.left(found.jobs)
    assert not (tmp_path / "out").exists()


def test_every_setting_is_checked():
    with pytest.raises(SelfsameError, match=r"local\.lr = -1, alpha = 0\.3"):
        checked(task("local.lr=0.1,-1", "alpha=0.3,0.5", recipe=recipe(method={"name": "fedhide"})))


# ---- rungs


def finished(tuning, job, figures, diverged=False):
    """The job with these figures by round, as if it had been trained."""
    history = [{"round": at, "loss": None if diverged else 1.0, "p@1": value} for at, value in figures.items()]
    tuning.keep(job.folder, RunView(job.title, "fixed", history))


def test_the_best_third_goes_on_and_the_best_of_the_last_rung_wins(tmp_path):
    tuning = plan(task("local.lr=0.1,0.2,0.3,0.4,0.5", halving=True, seeds=(0, 1)), tmp_path)
    assert tuning.rungs == [(5, 2), (2, 6)] and tuning.until(0) == 2 and tuning.until(1) == 0
    assert tuning.work() == 2 * (5 * 2 + 2 * 4) and len(tuning.missing(0)) == 10
    mean = {1: 0.3, 2: 0.9, 3: 0.5, 4: 0.6, 5: 0.2}
    for job in tuning.jobs:
        value = mean[job.variant.number] + (0.05 if job.recipe.run.seed else -0.05)
        finished(tuning, job, {2: value}, diverged=job.variant.number == 2 and job.recipe.run.seed == 1)
    assert tuning.missing(0) == [] and len(tuning.lines()) == 11  # that which diverged has ended for every rung
    assert [variant.number for variant in tuning.alive(1)] == [3, 4]  # the second diverged with one seed
    left = tuning.missing(1)
    assert [(job.variant.number, job.recipe.run.seed) for job in left] == [(3, 0), (3, 1), (4, 0), (4, 1)]
    for job in left:
        number = job.variant.number
        finished(tuning, job, {2: mean[number], 6: {3: 0.8, 4: 0.7}[number]})
    assert tuning.missing(1) == []
    found = tuning.results()
    assert [(one.number, one.round) for one in found.contenders] == [(3, 6), (4, 6), (1, 2), (5, 2), (2, 2)]
    assert found.best.mean == pytest.approx(0.8) and found.contenders[2].mean == pytest.approx(0.3)
    chosen = tuning.chosen_recipe(found.best)
    assert chosen.local.lr == 0.3 and chosen.data.options == {"turns": 1}


def test_one_that_diverges_late_was_sound_in_the_rungs_before(tmp_path):
    """Before, it was taken out of the first rung too, and one that had been stopped took its place, as diverged."""
    tuning = plan(task("local.lr=0.1,0.2,0.3", halving=True), tmp_path)
    for job, value in zip(tuning.jobs, (0.9, 0.8, 0.1)):
        finished(tuning, job, {2: value})
    for job, value in zip(tuning.jobs, (None, 0.5)):
        records = [{"round": 2, "loss": 1.0, "p@1": 0.9 if value is None else 0.8}]
        records += [] if value is None else [{"round": 6, "loss": 1.0, "p@1": value}]
        warned = [{"kind": "diverged", "round": 5}] if value is None else []
        tuning.keep(job.folder, RunView(job.title, "fixed", records, warnings=warned))
    tuning.check(0)
    tuning.check(1)
    assert [variant.number for variant in tuning.alive(1)] == [1, 2] and tuning.missing(1) == []
    found = tuning.results()
    assert [(one.number, one.values) for one in found.contenders] == [(2, (0.5,)), (1, (None,)), (3, (0.1,))]
    lines = [(line["run"][-3:], line["round"], line["diverged"]) for line in tuning.lines()]
    assert lines == [
        ("0.1", 2, False), ("0.2", 2, False), ("0.3", 2, False), ("0.1", 2, True), ("0.2", 6, False),
    ]  # fmt: skip


def test_processes_pause_at_the_end_of_a_rung(tmp_path, forked):
    tuning = plan(task("local.lr=0.1,0.2"), tmp_path)
    work = [(tuning, *one) for one in tuning.left(tuning.jobs)]
    train_at_once(work, 2, lambda _job, _federation: None, until=2)
    assert [standing(job.folder, job.recipe).words for job in tuning.jobs] == ["stopped at round 2"] * 2
    assert [sorted(tuning.reached[job.folder]) for job in tuning.jobs] == [[1, 2], [1, 2]]  # after each rung
    assert tuning.missing(0) == tuning.jobs  # without halving a rung is the whole run
    again = plan(task("local.lr=0.1,0.2"), tmp_path)
    assert again.reached == tuning.reached


def test_a_setting_has_the_same_folder_whatever_else_is_tried(tmp_path):
    few = plan(task("local.lr=0.1,0.2"), tmp_path).jobs
    more = plan(task("local.lr=0.05,0.1,0.2,0.4", seeds=(0, 1)), tmp_path).jobs
    assert [job.folder.name for job in few] == ["local.lr=0.1", "local.lr=0.2"]
    assert {(job.folder, job.recipe.local.lr) for job in few} < {(job.folder, job.recipe.local.lr) for job in more}
    assert len({job.folder for job in more}) == 8


def test_the_time_of_a_round_is_measured_and_nothing_is_kept(digits):
    assert seconds_a_round(recipe(), digits) > 0
    assert seconds_a_round(recipe(run={"rounds": 1}), digits) > 0
