"""The interface of Python: names go where they belong, a folder gets what the command writes, and repr is one line."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import selfsame
from selfsame.errors import SelfsameError
from selfsame.runs.beginning import by_name
from selfsame.runs.run import load_run

SMALL = {"turns": 1, "batch": 4, "device": "cpu"}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("python") / "run"
    return selfsame.train("fedaws", data="digits", rounds=2, neighbours=1, out=folder, **SMALL)


def test_keys_go_by_name(run):
    recipe = run.recipe
    assert recipe.run.rounds == 2 and recipe.method.options["neighbours"] == 1 and recipe.data.options["turns"] == 1
    assert recipe.local.batch == 4 and run.done


def test_a_folder_gets_what_the_command_writes(run):
    wanted = {"recipe.toml", "data.json", "metrics.jsonl", "checkpoint", "model.safetensors", "report.html"}
    assert wanted | {"result.json"} <= {path.name for path in run.folder.iterdir()}
    with pytest.raises(SelfsameError, match="is there already"):
        selfsame.train("fedaws", rounds=2, neighbours=1, out=run.folder, **SMALL)


def test_a_run_begins_with_the_weights_of_another(run):
    again = selfsame.train("fedaws", rounds=1, start=run.folder, settings={"net": {"keep": 0.5}}, **SMALL)
    part = again.recipe.net
    assert part.start == str(run.folder) and part.digest and part.keep == 0.5
    assert torch.equal(again.problem.model.first_theta, run.state.theta_P)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"round": 5}, "no option 'round'; did you mean 'rounds'?; the rest goes into settings"),
        ({"xyzzy": 5}, "no option 'xyzzy'; the rest goes into settings, e.g. settings="),
        ({"lr": 0.1}, "'lr' is in local and server; say which: settings={'local': {'lr': 0.1}}"),
    ],
)
def test_names_that_fit_nowhere_or_twice(options, words):
    with pytest.raises(SelfsameError) as caught:
        selfsame.train("fedaws", **options)
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_the_methods_own_option_comes_first():
    assert by_name("fedhide", "digits", {"alpha": 0.1, "turns": 2, "rounds": 3, "size": 4}) == {
        "method": {"alpha": 0.1}, "data": {"turns": 2}, "run": {"rounds": 3}, "cohort": {"size": 4},
    }  # fmt: skip


def test_repr_is_one_line(run):
    for thing in (run, run.problem, run.state, run.problem.federation, run.problem.federation.test):
        assert "\n" not in repr(thing) and "tensor" not in repr(thing) and len(repr(thing)) < 240
    assert "fedaws on digits, round 2 of 2" in repr(run)


def test_dir_shows_the_interface_and_imports_nothing():
    code = "import sys, selfsame; d = dir(selfsame); print({'train', 'Run', 'load'} <= set(d), 'torch' in sys.modules)"
    words = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(Path(__file__).parents[2])!r}); {code}"]
    assert subprocess.run(words, capture_output=True, text=True, timeout=120).stdout.split() == ["True", "False"]
    assert set(selfsame.__all__) <= set(dir(selfsame))


def test_a_run_goes_on_beyond_its_end(run):
    with pytest.raises(SelfsameError, match="--rounds 2: the run has 2 behind it"):
        load_run(run.folder, rounds=2)
    again = load_run(run.folder, rounds=5)
    assert not again.done and again.recipe.run.rounds == 5
    assert load_run(run.folder).recipe.run.rounds == 5


# Federations from arrays


def arrays(people=10, each=6, seed=0):
    draw = np.random.default_rng(seed)
    whose = np.repeat([f"p{n:02d}" for n in range(people)], each)
    x = draw.integers(0, 256, (people * each, 4, 5)).astype(np.uint8)
    x[:, 0, 0] = np.repeat(np.arange(people), each)  # whose each is, to be read again
    mix = draw.permutation(len(x))
    return x[mix], whose[mix]


def test_arrays_become_a_federation():
    x, whose = arrays()
    fed = selfsame.Federation.from_arrays(x, whose, test=2)
    assert (fed.clients, fed.shape, len(fed.unseen.y.unique())) == (8, (1, 4, 5), 2)
    assert fed.count_N.tolist() == [4] * 8 and len(fed.test.y) == 16
    for rows, labels in (
        (fed.source.x, np.arange(8).repeat(4)),
        (fed.test.x, fed.test.y),
        (fed.unseen.x, fed.unseen.y),
    ):
        for row, label in zip(rows, labels):
            assert fed.class_names[int(label)] == f"p{int(row[0, 0, 0]):02d}"
    own = fed.source.x.double() / 255
    assert fed.mean[0] == pytest.approx(float(own.mean())) and fed.std[0] == pytest.approx(float(own.std(correction=0)))
    met = {row.numpy().tobytes() for part in (fed.source.x, fed.test.x, fed.unseen.x) for row in part}
    assert len(met) == 60
    done = selfsame.train("fedaws", federation=fed, rounds=1, neighbours=1, batch=2, device="cpu")
    assert done.done and done.final["eer"] is not None


def test_arrays_that_do_not_fit():
    x, whose = arrays()
    for samples, people, words in (
        (x, whose[:-1], "60 samples, but 59 entries of people"),
        (x.astype(np.int64), whose, "expected"),
        (np.full((60, 3), np.nan), whose, "not finite"),
        (x, np.arange(60), "0 people have more than 2 samples"),
    ):
        with pytest.raises(SelfsameError, match=words):
            selfsame.Federation.from_arrays(samples, people)
    few = selfsame.Federation.from_arrays(x[:, 0].astype(float), ["solo", *whose[1:]], unseen_share=0.0)
    assert few.shape == (5,) and any("solo" in note for note in few.notes)
