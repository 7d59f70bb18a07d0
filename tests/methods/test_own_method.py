"""A method of a user's own: the example of the guide, in a file outside the repository, does all that ours do."""

import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from loopback import Loopback, apart, recipe, simulated
from split_loop import a_recipe, digits

from selfsame import cli
from selfsame.deploy.agreement import Agreement
from selfsame.deploy.schedule import Terms
from selfsame.deploy.split.agreement import SplitAgreement
from selfsame.engine.setup import prepare
from selfsame.errors import SelfsameError
from selfsame.export.trained import RunEmbedder
from selfsame.methods import make, method_class

PATH = "anchored_module:Anchored"
TEXT = (Path(__file__).parents[2] / "docs/guides/method.md").read_text(encoding="utf-8")
(EXAMPLE,) = (code for code in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL) if "class Anchored" in code)
SMALL = ("--set", "data.turns=1", "--set", "local.batch=4", "--device", "cpu", "--quiet")
UNFIT = """
from dataclasses import dataclass
from anchored_module import Anchored
from selfsame.methods import LocalLoss

class Plain(Anchored):
    depth: int = 1

@dataclass
class Thawed:
    depth: int = 1

@dataclass(frozen=True)
class Idle(LocalLoss):
    depth: int = 1

@dataclass(frozen=True, kw_only=True)
class Bare(Anchored):
    depth: int

@dataclass(frozen=True)
class Nameless(LocalLoss):
    loss = truth = Anchored.loss

method = Anchored()
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The current directory, with the example in it, as the command `selfsame` finds it: not on the path of Python."""
    (tmp_path / "anchored_module.py").write_text(EXAMPLE)
    (tmp_path / "unfit.py").write_text(UNFIT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place])
    yield tmp_path
    for module in ("anchored_module", "unfit"):
        sys.modules.pop(module, None)


def selfsame(monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["selfsame", *map(str, words)])
    try:
        cli.main()
    except SystemExit as end:
        assert not end.code


def test_the_example_in_every_command(here, monkeypatch, capsys):
    """Trained as a process of its own, so that its path is the one of the installed command."""
    monkeypatch.setenv("COLUMNS", "200")
    command = [sys.executable, "-P", "-m", "selfsame", "train", PATH, "--rounds", "4", *SMALL, "--set", "strength=2"]
    done = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    run = here / "runs" / "Anchored-digits-1"
    assert f'name = "{PATH}"' in (run / "recipe.toml").read_text()
    last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["round"] == 4 and last["leak"] is last["recovered"] is None  # nothing of the anchor leaves
    view = json.loads((run / "result.json").read_text())
    assert view["title"].startswith("Anchored(strength=2")
    assert view["facts"]["attacker"] == "nothing that stands for the owner leaves the device"

    (run / "result.json").unlink()
    selfsame(monkeypatch, "resume", run, "--quiet", "--trust-code")
    assert json.loads((run / "result.json").read_text())["final"] == view["final"]
    selfsame(monkeypatch, "evaluate", run, "--trust-code", "--bootstrap", 0, "--trials", 2000, "--quiet")
    assert (run / "evaluation.json").is_file()
    assert RunEmbedder(run, trust_code=True).card.method == "anchored"  # what an export begins with
    selfsame(monkeypatch, "wire", PATH)
    assert "a random direction" in capsys.readouterr().out
    selfsame(monkeypatch, "compare", "--methods", f"fixed,{PATH}", "--rounds", 2, *SMALL, "--out", "both")
    assert {"fixed", "Anchored", "report.html"} <= {path.name for path in (here / "both").iterdir()}
    tables = f'seeds = [0, 1]\n[method]\nname = "{PATH}"\n[data]\nname = "digits"\nturns = 1\n[run]\nrounds = 2\n'
    (here / "mine.toml").write_text(tables + 'device = "cpu"\n')
    selfsame(monkeypatch, "recipe", "mine.toml", "--out", "recipe", "--quiet")
    assert {"01-Anchored", "01-Anchored-seed1"} <= {path.name for path in (here / "recipe").iterdir()}


def test_two_methods_of_one_folder_are_refused(here, monkeypatch, capsys):
    with pytest.raises(AssertionError):
        selfsame(monkeypatch, "compare", "--methods", f"{PATH},unfit:Anchored", "--out", "both")
    assert "twice" in capsys.readouterr().err and not (here / "both").exists()


def test_devices_that_have_it_train_it(here, tmp_path):
    method_class(PATH)
    order = recipe(PATH)
    harness = Loopback(tmp_path / "deployed", order)
    harness.run()
    assert apart(harness, simulated(order)) < 1e-9
    assert (harness.own()["anchor"] != 0).all()


def test_no_server_has_a_device_import_code(here):
    """The terms are refused in one line, and the module is not run, unless the device's own program has imported it."""
    terms = Agreement.of(prepare(recipe(PATH)), "r", "exact", False).to_json()
    assert Agreement.from_json(terms).method == make(PATH, {})
    del sys.modules["anchored_module"]
    with pytest.raises(SelfsameError, match=f"^{PATH}: .*must import anchored_module itself") as caught:
        Agreement.from_json(terms)
    assert "anchored_module" not in sys.modules and "\n" not in str(caught.value)
    importlib.import_module("anchored_module")
    assert Agreement.from_json(terms).method == make(PATH, {})


def test_nor_have_split_rounds(here):
    problem = prepare(a_recipe(), digits())
    terms = SplitAgreement.of(problem, Terms(4), "a run", True).to_json()
    terms["recipe"]["method"]["name"] = PATH
    with pytest.raises(SelfsameError, match=f"^{PATH}: .*must import anchored_module itself"):
        SplitAgreement.from_json(terms)
    assert "anchored_module" not in sys.modules


@pytest.mark.parametrize("name", ["os:getcwd", "selfsame:train", "selfsame.methods.fedhide:ProxyPrototypes"])
def test_what_is_loaded_and_no_method_is_refused_too(name):
    with pytest.raises(SelfsameError, match=f"^{name}: "):
        method_class(name, loaded=True)


@pytest.mark.parametrize(
    "name, line",
    [
        ("unfit:Plain", r"must be decorated with @dataclass\(frozen=True\)"),
        ("unfit:Thawed", "must be a class derived from selfsame.methods.LocalLoss"),
        ("unfit:method", "must be a class derived from"),
        ("unfit:Idle", "lacks loss, truth"),
        ("unfit:Bare", "every hyper-parameter needs a default value: depth"),
        ("unfit:Nameless", "lacks the class variables name, paper, shared_class, wire"),
        ("unfit:Absent", "module 'unfit' has no 'Absent'"),
        ("absent:Method", "no module 'absent' in .* or among the installed packages"),
        ("unfit:", "an own method is written as package.module:Name"),
    ],
)
def test_an_unfit_class_gets_one_line(here, name, line):
    with pytest.raises(SelfsameError, match=f"^{name}: .*{line}") as caught:
        method_class(name)
    assert "\n" not in str(caught.value)


def test_its_options_are_checked(here):
    assert make(PATH, {"strength": 2}).strength == 2.0
    with pytest.raises(SelfsameError, match="unknown option 'depth'"):
        make(PATH, {"depth": 2})
    with pytest.raises(SelfsameError, match="strength: expected a number"):
        make(PATH, {"strength": "much"})


def test_an_unknown_name_says_how_to_give_an_own_method():
    with pytest.raises(SelfsameError, match=r"unknown method 'Mine'.*package\.module:Class"):
        method_class("Mine")
