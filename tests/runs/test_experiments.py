"""What has become of the runs of an experiment."""

import pytest

from selfsame.config.recipe import from_mapping, merged, to_mapping, to_toml
from selfsame.data import load
from selfsame.runs.experiments import standing
from selfsame.runs.loop import carry_on
from selfsame.runs.run import start
from selfsame.runs.summary import keep_view, view


@pytest.fixture(scope="module")
def digits():
    return load("digits", turns=1)


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


def test_a_run_that_ended_after_its_last_view_has_not_been_summed_up(digits, tmp_path):
    """Killed between its last checkpoint and its view, it was taken for ended, with the figures of its pause."""
    run = carry_on(start(small(), tmp_path, digits), until=2)
    keep_view(view(run), tmp_path)
    carry_on(run)
    assert standing(tmp_path, small()).words == "stopped at round 4"
    keep_view(view(run), tmp_path)
    assert standing(tmp_path, small()).words == "done"


def test_a_run_whose_checkpoint_was_left_behind_has_ended_as_its_view_says(digits, tmp_path):
    run = carry_on(start(small(), tmp_path, digits), until=2)
    keep_view(view(run), tmp_path)
    for place in (tmp_path / "checkpoint").iterdir():
        place.unlink()
    assert standing(tmp_path, small()).words == "stopped at round 0"  # its view is of a pause
    keep_view(view(carry_on(start(small(), tmp_path / "whole", digits))), tmp_path / "whole")
    for place in (tmp_path / "whole" / "checkpoint").iterdir():
        place.unlink()
    assert standing(tmp_path / "whole", small()).words == "done"


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


def test_standing_passes_over_what_sums_were_filled_in_with(digits, tmp_path):
    plan = small(cohort={"size": 3}, sums={"aggregation": "masked"})
    start(plan, tmp_path / "run", digits)
    assert standing(tmp_path / "run", plan).differs == ()
    assert standing(tmp_path / "run", small(cohort={"size": 3})).differs == (
        "cohort.sampling", "sums.aggregation",
    )  # fmt: skip
    clipped = small(cohort={"size": 3}, sums={"aggregation": "masked", "clip": 1.0})
    assert standing(tmp_path / "run", clipped).differs == ("sums.clip",)
