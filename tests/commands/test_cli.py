"""Every command, what it prints and leaves behind; bad input gets one line, exit code 2, and leaves nothing."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import typer

from selfsame import __version__, cli
from selfsame.config.recipe import from_mapping, read_toml
from selfsame.engine.checkpoint import read_tensors
from selfsame.methods import METHODS, options_of
from selfsame.runs.run import load_run

SMALL = ("--set", "data.turns=1", "--set", "local.batch=4", "--device", "cpu")
FILES = {"recipe.toml", "data.json", "metrics.jsonl", "metrics.csv", "events.out.tfevents.selfsame"}
FILES |= {"checkpoint", "model.safetensors", "report.html", "result.json"}
COMMANDS = dict(typer.main.get_command(cli.app).commands)


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Networks this small gain nothing from threads, and lose a lot when cores are shared."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def selfsame(monkeypatch, tmp_path, call):
    """The command in an empty folder."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("COLUMNS", "240")
    return call


def outside(*words, cwd, code):
    """The command as a process of its own."""
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "selfsame", *map(str, words)]
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == code, done.stderr
    return done


def one_line(text):
    assert text.startswith("selfsame: "), text
    assert text.count("\n") == 1 and text.endswith("\n"), text
    assert "Traceback" not in text


def everything(folder=None):
    return sorted(str(p) for p in (folder or Path()).rglob("*"))


# ---- help


@pytest.mark.parametrize("name", COMMANDS)
def test_help_documents_every_option(name, selfsame):
    code, out, err = selfsame(name, "--help")
    assert code == 0 and err == ""
    assert (COMMANDS[name].help or "").split(".")[0].split(";")[0][:30] in out
    words = " ".join(out.split())
    for param in COMMANDS[name].params:
        assert param.help, f"{name} {param.name} has no help"
        if getattr(param, "hidden", False):  # what one process of selfsame tells another
            continue
        assert " ".join(param.help.split())[:40] in words
        for option in param.opts:
            assert option.lower() in words.lower()


def test_help_lists_every_command(selfsame):
    code, out, _ = selfsame("--help")
    assert code == 0
    assert set(COMMANDS) >= {"train", "compare", "resume", "recipe", "methods", "wire", "data"}
    for name in COMMANDS:
        assert f"\n  {name} " in out


def test_version(selfsame):
    assert selfsame("--version") == (0, f"selfsame {__version__}\n", "")


# ---- bad input

TRAIN = ("train", "fedhide", *SMALL, "--rounds", "2", "--quiet")
COMPARE = ("compare", *SMALL, "--rounds", "2", "--quiet")
BAD = {
    "unknown method": (("train", "nosuch"), "unknown method 'nosuch'"),
    "unknown data set": ((*TRAIN, "--data", "nosuch"), "unknown data set 'nosuch'"),
    "unknown data set by --set": ((*TRAIN, "--set", "data.name=nosuch"), "unknown data set 'nosuch'"),
    "unknown method option": ((*TRAIN, "--set", "nosuch=1"), "unknown option 'nosuch'"),
    "unknown recipe option": ((*TRAIN, "--set", "local.bach=1"), "did you mean 'batch'"),
    "unknown part": ((*TRAIN, "--set", "nosuch.lr=1"), "unknown part 'nosuch'"),
    "too deep": ((*TRAIN, "--set", "local.lr.x=1"), "--set local.lr.x=1"),
    "unknown data option": ((*TRAIN, "--set", "data.nosuch=1"), "unknown option 'nosuch'"),
    "unknown network": ((*TRAIN, "--set", "net.name=nosuch"), "unknown network 'nosuch'"),
    "unknown network option": ((*TRAIN, "--set", "net.nosuch=1"), "unknown option 'nosuch'"),
    "no value": ((*TRAIN, "--set", "alpha"), "expected key=value"),
    "wrong type, method": ((*TRAIN, "--set", "alpha=much"), "alpha: expected a number"),
    "wrong type, recipe": ((*TRAIN, "--set", "local.batch=many"), "local.batch: expected a whole number"),
    "wrong type, name": ((*TRAIN, "--set", "method.name=5"), "method.name: expected a text"),
    "out of range, method": ((*TRAIN, "--set", "alpha=1.5"), "alpha must lie in [0, 1]"),
    "out of range, recipe": ((*TRAIN, "--set", "local.lr=-1"), "local.lr: must be at least 0"),
    "not finite, recipe": ((*TRAIN, "--set", "local.lr=inf"), "local.lr: expected a finite number"),
    "out of range, nan": ((*TRAIN, "--set", "local.lr=nan"), "local.lr: expected a finite number"),
    "out of range, data": ((*TRAIN, "--set", "data.turns=9"), "turns must be 1 to 4"),
    "out of range, rounds": ((*TRAIN, "--rounds", "0"), "run.rounds: must be at least 1"),
    "out of range, cohort": ((*TRAIN, "--set", "cohort.size=99"), "99 clients asked for"),
    "unknown engine": ((*TRAIN, "--engine", "nosuch"), "run.engine"),
    "unknown precision": ((*TRAIN, "--precision", "nosuch"), "run.precision"),
    "unknown compile": ((*TRAIN, "--compile", "nosuch"), "run.compile"),
    "unknown device": ((*TRAIN, "--device", "nosuch"), "run.device: 'nosuch'"),
    "unsupported device": ((*TRAIN, "--device", "meta"), "run.device: 'meta'"),
    "absent device": ((*TRAIN, "--device", "cuda:99"), "run.device"),
    "no path": (("train", "fedhide", "--data", "mnist"), "mnist: a path is needed"),
    "missing path": (("train", "fedhide", "--data", "mnist", "--path", "gone"), "gone: no such folder"),
    "needless path": ((*TRAIN, "--path", "full"), "digits: takes no path"),
    "missing recipe": ((*TRAIN, "--recipe", "gone.toml"), "gone.toml: No such file"),
    "broken recipe": ((*TRAIN, "--recipe", "broken.toml"), "broken.toml: not TOML"),
    "recipe of bytes": ((*TRAIN, "--recipe", "bytes.toml"), "bytes.toml: not UTF-8"),
    "recipe that is a folder": ((*TRAIN, "--recipe", "full"), "full: Is a directory"),
    "recipe with no table": ((*TRAIN, "--recipe", "number.toml"), "[run]: expected a table"),
    "recipe with variants": ((*TRAIN, "--recipe", "second.toml"), "selfsame recipe second.toml"),
    "folder in use": ((*TRAIN, "--out", "full"), "full: is there already"),
    "folder that is a file": ((*TRAIN, "--out", "file"), "file: cannot be made"),
    "folder below a file": ((*TRAIN, "--out", "file/below"), "file is a file"),
    "resume: missing": (("resume", "gone"), "gone: not a run"),
    "resume: no run": (("resume", "full"), "full: not a run"),
    "resume: a file": (("resume", "file"), "file: not a run"),
    "compare: nothing": ((*COMPARE, "--methods", " ,"), "--methods: name at least one"),
    "compare: unknown method": ((*COMPARE, "--methods", "fedhide,nosuch"), "unknown method 'nosuch'"),
    "compare: twice": ((*COMPARE, "--methods", "fixed,fixed"), "names a method twice"),
    "compare: option of none": ((*COMPARE, "--methods", "fixed", "--set", "alpha=1"), "has an option 'alpha'"),
    "compare: bad for the second": ((*COMPARE, "--methods", "fixed,fedhide", "--set", "alpha=7"), "alpha must lie"),
    "compare: unknown to the second": (
        (*COMPARE, "--methods", "fedhide,fixed", "--set", "method.alpha=0.1"),
        "fixed: unknown option 'alpha'",
    ),
    "compare: unknown data set": (("compare", "--data", "nosuch"), "unknown data set 'nosuch'"),
    "compare: folder in use": ((*COMPARE, "--out", "full"), "full: is there already"),
    "compare: folder that is a file": ((*COMPARE, "--out", "file"), "file: cannot be made"),
    "recipe: missing": (("recipe", "gone.toml"), "gone.toml: No such file"),
    "recipe: broken": (("recipe", "broken.toml"), "broken.toml: not TOML"),
    "recipe: no table": (("recipe", "number.toml", "--set", "run.rounds=2"), "[run]: expected a table"),
    "recipe: variant no table": (("recipe", "variant.toml"), "variant must be an array of tables"),
    "recipe: no variants": (("recipe", "none.toml"), "variant must be an array of tables"),
    "recipe: method no table": (("recipe", "method.toml"), "[method]: expected a table"),
    "recipe: bad second variant": (("recipe", "second.toml"), "unknown option 'nosuch'"),
    "recipe: seeds": (("recipe", "seeds.toml"), "seeds.toml: seeds: expected a list"),
    "recipe: grid": (("recipe", "grid.toml"), "grid.toml: [grid] local.lr: expected a list"),
    "recipe: paper": (("recipe", "paper.toml"), "paper.toml: paper.nosuch: unknown figure"),
    "recipe: seeds for train": ((*TRAIN, "--recipe", "seeds.toml"), "selfsame recipe seeds.toml"),
    "recipe: only": (("recipe", "good.toml", "--only", "nosuch"), "--only nosuch: no variant"),
    "recipe: rounds": (("recipe", "good.toml", "--rounds", "0"), "run.rounds: must be at least 1"),
    "recipe: folder in use": (("recipe", "good.toml", "--out", "full"), "full: is there already"),
    "recipe: unknown device": (("recipe", "good.toml", "--device", "nosuch"), "run.device: 'nosuch'"),
    "methods: unknown": (("methods", "fedhid"), "did you mean 'fedhide'"),
    "wire: unknown": (("wire", "nosuch"), "unknown method 'nosuch'"),
    "wire: aggregation": (("wire", "fedhide", "--aggregation", "open"), "sums.aggregation: 'open' is not one of clear"),
    "wire: no sums": (("wire", "fdml", "--aggregation", "masked"), "sums.aggregation: fdml sends its gradients to"),
    "train: aggregation": ((*TRAIN, "--aggregation", "open"), "sums.aggregation: 'open' is not one of clear"),
    "data: unknown": (("data", "nosuch"), "unknown data set 'nosuch'"),
    "data: missing path": (("data", "cifar10", "--path", "gone"), "gone: no such folder"),
    "data: empty path": (("data", "mnist", "--path", "full"), "full: "),
    "data: out of range": (("data", "digits", "--set", "turns=9"), "turns must be 1 to 4"),
}


def bad_files():
    Path("file").write_text("x")
    Path("full").mkdir()
    Path("full/letter.txt").write_text("x")
    for name, text in {
        "broken": "[run\n",
        "number": "run = 5\n",
        "variant": "variant = 3\n",
        "none": "variant = []\n",
        "method": '[[variant]]\nmethod = "fedhide"\n',
        "good": '[run]\nrounds = 2\n[data]\nname = "digits"\nturns = 1\n',
        "seeds": "seeds = 3\n",
        "grid": '[grid]\n"local.lr" = 3\n',
        "paper": "[paper]\nnosuch = 3\n",
        "second": '[run]\nrounds = 2\n[data]\nname = "digits"\nturns = 1\n[[variant]]\n'
        '[[variant]]\nmethod = { name = "fixed", nosuch = 1 }\n',
    }.items():
        Path(f"{name}.toml").write_text(text)
    Path("bytes.toml").write_bytes(b"\xff\xfe\x00")


@pytest.mark.parametrize("case", BAD)
def test_bad_input_gets_one_line_and_leaves_nothing(case, selfsame):
    words, expected = BAD[case]
    bad_files()
    before = everything()
    code, out, err = selfsame(*words)
    assert code == 2, (out, err)
    one_line(err)
    assert expected in err
    assert out == ""
    assert everything() == before


@pytest.mark.parametrize(
    "words",
    [("nosuch",), ("train",), ("train", "fedhide", "--nosuch"), ("train", "fedhide", "--rounds", "few"), ("resume",)],
    ids=" ".join,
)
def test_usage_errors_name_what_is_wrong(words, selfsame):
    code, _, err = selfsame(*words)
    assert code == 2
    assert "Error: " in err and "Traceback" not in err
    assert everything() == []


@pytest.mark.parametrize("case", ["wrong type, method", "resume: no run"])
def test_bad_input_to_the_program_itself(case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    bad_files()
    before = everything(tmp_path)
    words, expected = BAD[case]
    done = outside(*words, cwd=tmp_path, code=2)
    one_line(done.stderr)
    assert expected in done.stderr and done.stdout == ""
    assert everything(tmp_path) == before


def test_a_file_system_that_refuses_gets_one_line(selfsame, monkeypatch):
    def refuse(*_):
        raise PermissionError(13, "Permission denied", "runs/x/recipe.toml")

    monkeypatch.setattr("selfsame.runs.run.write", refuse)
    code, _, err = selfsame(*TRAIN)
    assert code == 2
    one_line(err)
    assert "runs/x/recipe.toml: Permission denied" in err


# ---- what works


def test_train_writes_a_whole_run_and_resume_shows_it(selfsame):
    code, out, err = selfsame(*TRAIN, "--out", "mine", "--seed", "3", "--set", "alpha=0.25")
    assert code == 0 and err == ""
    for word in ("P@1", "EER", "Recovered", "fedhide", "proxy", "report: mine/report.html"):
        assert word in out
    assert {p.name for p in Path("mine").iterdir()} == FILES
    made = from_mapping(read_toml(Path("mine/recipe.toml")))
    assert (made.run.seed, made.run.rounds, made.method.options["alpha"]) == (3, 2, 0.25)
    assert json.loads(Path("mine/result.json").read_text())["method"] == "fedhide"
    assert [json.loads(line)["round"] for line in Path("mine/metrics.jsonl").read_text().splitlines()] == [1, 2]
    assert "fedhide" in Path("mine/report.html").read_text()

    kept = [Path("mine", name) for name in ("result.json", "model.safetensors", "checkpoint/state.safetensors")]
    times = [path.stat().st_mtime_ns for path in kept]
    code, again, err = selfsame("resume", "mine")
    assert code == 0 and err == ""
    assert again == out
    assert [path.stat().st_mtime_ns for path in kept] == times


def test_runs_get_folders_of_their_own_by_default(selfsame):
    for _ in range(2):
        assert selfsame(*TRAIN)[0] == 0
    assert sorted(p.name for p in Path("runs").iterdir()) == ["fedhide-digits-1", "fedhide-digits-2"]


def test_progress_goes_to_standard_error_and_titles_are_no_markup(selfsame):
    code, out, err = selfsame(*TRAIN[:-1], "--set", "title=[/b] mine", "--out", "x")
    assert code == 0
    assert "[/b] mine: round 2 of 2 (100 %)" in err
    assert "round 2" not in out and "[/b] mine" in out


def test_train_from_a_recipe(selfsame):
    """The recipe's data set holds unless --data is given, and then --data does, even the default one."""
    Path("base.toml").write_text('[run]\nrounds = 3\n[data]\nname = "synthetic"\nclients = 12\nheld_out = 4\n')
    code, _, err = selfsame("train", "fixed", "--recipe", "base.toml", "--quiet", "--out", "a", "--device", "cpu")
    assert code == 0, err
    assert read_toml(Path("a/recipe.toml"))["data"]["name"] == "synthetic"
    Path("digits.toml").write_text('[run]\nrounds = 3\n[data]\nname = "synthetic"\n')
    words = ("--recipe", "digits.toml", "--data", "digits", "--quiet", "--out", "b", "--device", "cpu")
    assert selfsame("train", "fixed", *words)[0] == 0
    assert read_toml(Path("b/recipe.toml"))["data"]["name"] == "digits"


def test_compare(selfsame):
    words = ("--methods", "positive-only,fedhide", "--set", "alpha=0.5", "--out", "both")
    code, out, err = selfsame(*COMPARE, *words)
    assert code == 0 and err == ""
    assert "positive-only" in out and "fedhide" in out and "report: both/report.html" in out
    assert {p.name for p in Path("both").iterdir()} == {"positive-only", "fedhide", "report.html"}
    for name in ("positive-only", "fedhide"):
        assert FILES - {"report.html"} <= {p.name for p in Path("both", name).iterdir()}
    assert load_run(Path("both/fedhide")).recipe.method.options["alpha"] == 0.5
    assert "alpha" not in load_run(Path("both/positive-only")).recipe.method.options


def test_compare_beside_its_sums(selfsame):
    """The same method twice: in the clear its owners are named, as sums they are not."""
    code, _, err = selfsame(*COMPARE, "--methods", "feduv,feduv/masked", "--out", "both")
    assert code == 0 and err == ""
    assert {p.name for p in Path("both").iterdir()} == {"feduv", "feduv-masked", "report.html"}
    clear, masked = (load_run(Path("both", name)).recipe for name in ("feduv", "feduv-masked"))
    assert (clear.sums.aggregation, masked.sums.aggregation) == ("clear", "masked")
    found = [json.loads(Path("both", name, "result.json").read_text())["final"] for name in ("feduv", "feduv-masked")]
    assert found[0]["recovered"] > 0.9 > 0.5 > found[1]["recovered"]


def test_divergence_ends_train_with_code_1(selfsame):
    code, out, err = selfsame(*TRAIN, "--set", "local.lr=1e25", "--rounds", "8", "--out", "bad")
    assert code == 1 and err == ""
    assert ": diverged: " in out and "Lower local.lr" in out
    assert not Path("bad/model.safetensors").exists()
    assert Path("bad/report.html").exists() and Path("bad/recipe.toml").exists()
    code, out, _ = selfsame("resume", "bad", "--quiet")
    assert code == 1 and ": diverged: " in out


def test_compare_goes_on_after_a_divergence(selfsame, monkeypatch):
    """The first method's loss is no number; the second is trained, and the report has both."""
    monkeypatch.setattr(METHODS["fedhide"], "loss", lambda self, emb_MBD, *_: torch.nan * emb_MBD.sum((1, 2)))
    _, out, err = selfsame(*COMPARE, "--methods", "fedhide,fedaws", "--out", "both")
    assert err == ""
    assert out.count(": diverged: ") == 1
    assert not Path("both/fedhide/model.safetensors").exists()
    assert Path("both/fedaws/model.safetensors").exists()
    assert Path("both/report.html").exists()


RECIPE = """
[data]
name = "digits"
turns = 1
[run]
rounds = 2
device = "cpu"
[local]
batch = 4
[method]
name = "fedhide"
alpha = 0.5
[[variant]]
title = "first"
[[variant]]
title = "second"
method = { name = "fedaws" }
"""


def test_recipe_runs_its_variants_once(selfsame, monkeypatch):
    Path("grid.toml").write_text(RECIPE)
    code, out, err = selfsame("recipe", "grid.toml", "--quiet")
    assert code == 0 and err == ""
    assert "first" in out and "second" in out and "report: runs/grid/report.html" in out
    folder = Path("runs/grid")
    results = {"report.html", "results.md", "results.json"}
    assert {p.name for p in folder.iterdir()} == {"01-fedhide", "02-fedaws", *results}
    second = read_toml(folder / "02-fedaws" / "recipe.toml")
    assert "alpha" not in second["method"] and second["title"] == "second"

    kept = [p for p in folder.rglob("*") if p.name in FILES - {"report.html", "metrics.jsonl", "checkpoint"}]
    times = {p: p.stat().st_mtime_ns for p in kept}
    metrics = (folder / "01-fedhide" / "metrics.jsonl").read_text()
    with monkeypatch.context() as patch:
        patch.setattr("selfsame.runs.loop.carry_on", lambda *_: pytest.fail("trained again"))
        code, again, err = selfsame("recipe", "grid.toml", "--quiet")
    assert code == 0 and err == "" and again == out
    assert {p: p.stat().st_mtime_ns for p in kept} == times
    assert (folder / "01-fedhide" / "metrics.jsonl").read_text() == metrics

    code, _, err = selfsame("recipe", "grid.toml", "--quiet", "--set", "run.rounds=3")
    assert code == 2
    one_line(err)
    assert "holds a run of another recipe" in err


def test_recipe_goes_on_where_it_stopped(selfsame):
    """The second variant is not there yet: it alone is trained."""
    Path("grid.toml").write_text(RECIPE)
    assert selfsame("recipe", "grid.toml", "--quiet", "--out", "grid")[0] == 0
    first = Path("grid/01-fedhide/model.safetensors").stat().st_mtime_ns
    for path in sorted(Path("grid/02-fedaws").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    assert selfsame("recipe", "grid.toml", "--quiet", "--out", "grid")[0] == 0
    assert Path("grid/02-fedaws/model.safetensors").exists()
    assert Path("grid/01-fedhide/model.safetensors").stat().st_mtime_ns == first


def test_recipe_with_one_run_has_no_folders_within(selfsame):
    Path("one.toml").write_text(RECIPE.split("[[variant]]")[0])
    assert selfsame("recipe", "one.toml", "--quiet", "--out", "one")[0] == 0
    assert {p.name for p in Path("one").iterdir()} == FILES | {"results.md", "results.json"}


BESIDE = RECIPE.replace('title = "first"', 'title = "first"\npaper = { "p@1" = [58.0, 1.8], where = "Table 4" }')


def test_recipe_compares_seeds_with_the_paper(selfsame):
    Path("grid.toml").write_text("seeds = [0, 1]\n" + BESIDE)
    code, out, err = selfsame("recipe", "grid.toml", "--quiet", "--rounds", "1", "--only", "first")
    assert code == 0 and err == ""
    assert "58.0 ± 1.8" in out and "1 (paper: 2)" in out and "Not run yet: second." in out
    assert "the rounds differ from the paper's" in out and "Set on the command line: --rounds 1." in out
    results = json.loads(Path("runs/grid/results.json").read_text())
    first, second = results["variants"]
    runs = [load_run(Path("runs/grid", name)) for name in ("01-fedhide", "01-fedhide-seed1")]
    assert [run.recipe.run.seed for run in runs] == [0, 1]
    figure = first["figures"]["p@1"]
    assert figure["values"] == pytest.approx([100 * run.final["p@1"] for run in runs])
    assert figure["difference"] == pytest.approx(sum(figure["values"]) / 2 - 58)
    assert second["ended"] == [False, False] and second["figures"]["p@1"]["measured"] is None
    text = Path("runs/grid/results.md").read_text()
    assert "| 58.0 ± 1.8 |" in text and "Table 4" in text
    page = Path("runs/grid/report.html").read_text()
    assert "first, seed 0" in page and "first, seed 1" in page


def test_recipe_list_needs_no_data_and_writes_nothing(selfsame):
    Path("far.toml").write_text(RECIPE.replace('name = "digits"\nturns = 1', 'name = "mnist"\npath = "gone"'))
    code, out, err = selfsame("recipe", "far.toml", "--list")
    assert code == 0 and err == ""
    assert out.count("not begun") == 2 and "0 of 2 runs have ended" in out
    assert everything() == ["far.toml"]
    code, out, err = selfsame("recipe", "far.toml", "--quiet")
    assert code == 2 and out == ""
    one_line(err)
    assert "gone: no such folder; wanted: " in err and "https://" in err
    assert everything() == ["far.toml"]


def test_recipe_list_says_what_is_done(selfsame):
    Path("grid.toml").write_text(RECIPE)
    assert selfsame("recipe", "grid.toml", "--quiet", "--only", "second")[0] == 0
    code, out, _ = selfsame("recipe", "grid.toml", "--list")
    rows = {name: next(line for line in out.splitlines() if name in line) for name in ("first", "second")}
    assert code == 0 and "not begun" in rows["first"] and "done" in rows["second"]
    assert "1 of 2 runs have ended" in out
    code, out, _ = selfsame("recipe", "grid.toml", "--list", "--rounds", "9", "--only", "second")
    assert code == 0 and "another recipe lies there: run.rounds" in out and "first" not in out


def test_recipe_shows_a_divergence_and_does_not_train_it_again(selfsame, monkeypatch):
    Path("grid.toml").write_text(RECIPE.replace('name = "fedaws" }', 'name = "fedaws" }\nlocal = { lr = 1e25 }'))
    code, out, err = selfsame("recipe", "grid.toml", "--quiet", "--rounds", "8", "--out", "x")
    assert code == 1 and err == ""
    assert "1, diverged" in out and "second: diverged: " in out
    assert json.loads(Path("x/results.json").read_text())["variants"][1]["diverged"] == [True]
    monkeypatch.setattr("selfsame.runs.loop.carry_on", lambda *_: pytest.fail("trained again"))
    assert selfsame("recipe", "grid.toml", "--quiet", "--rounds", "8", "--out", "x") == (1, out, "")


def test_recipe_with_a_paper_is_a_base_for_train(selfsame):
    Path("base.toml").write_text(RECIPE.split("[[variant]]")[0] + '[paper]\n"p@1" = 58.0\n')
    words = ("--recipe", "base.toml", "--quiet", "--out", "a")
    assert selfsame("train", "fedhide", *words)[0] == 0
    assert Path("a/model.safetensors").exists()


def test_methods(selfsame):
    code, out, err = selfsame("methods")
    assert code == 0 and err == ""
    for name in METHODS:
        assert name in out
    code, out, err = selfsame("methods", "fedhide")
    assert code == 0 and err == ""
    assert "paper: " in out
    for option in options_of("fedhide"):
        assert option in out


@pytest.mark.parametrize("name", METHODS)
def test_wire(name, selfsame):
    code, out, err = selfsame("wire", name)
    assert code == 0 and err == ""
    assert f"{name}: what leaves the device" in out
    for field, _, _, _ in METHODS[name].wire.rows():
        assert field in out


def test_wire_in_sums(selfsame):
    said = selfsame("wire", "fedhide")[1]
    assert "aggregation clear: the server reads every device's update" in said and "only the sum" not in said
    for kind in ("masked", "enclave"):
        code, out, err = selfsame("wire", "fedhide", "--aggregation", kind)
        assert code == 0 and err == ""
        assert "only the sum over a group" in out and f"aggregation {kind}: the server sees updates only as" in out
    assert "aggregation" not in selfsame("wire", "fdml")[1] + selfsame("wire", "deepsvdd")[1]


def test_a_method_that_sends_no_update_has_no_bytes(selfsame):
    code, out, err = selfsame("wire", "deepsvdd", "--data", "digits")
    assert code == 0 and err == "" and "bytes up" not in out
    assert "a network update: none, since every device trains a network of its own" in out
    assert "bytes up per round" in selfsame("wire", "fedhide", "--data", "digits")[1]


def test_several_methods_begin_with_the_same_weights(selfsame):
    assert selfsame(*TRAIN, "--out", "first")[0] == 0
    names = ("--methods", "fedhide,fedaws", "--set", "neighbours=1")
    code, _, err = selfsame(*COMPARE, *names, "--start", "first", "--out", "both")
    assert code == 0, err
    kept = [read_tensors(Path("both") / name / "start.safetensors")[0] for name in ("fedhide", "fedaws")]
    held = read_tensors(Path("first/model.safetensors"))[0]
    for one in kept:
        assert one and all(torch.equal(value, held[name]) for name, value in one.items())


def test_train_in_sums(selfsame):
    code, out, err = selfsame(*TRAIN, "--aggregation", "masked", "--set", "cohort.size=3", "--out", "a")
    assert code == 0 and err == ""
    assert "aggregation masked: " in out and "2 groups of 3 to 4 devices, nothing of fewer than 2 answers" in out
    stored = Path("a/recipe.toml").read_text()
    assert 'aggregation = "masked"' in stored and 'sampling = "groups"' in stored and "least = 2" in stored
    assert "only the sum over a group" in Path("a/report.html").read_text()


def test_data(selfsame):
    code, out, err = selfsame("data")
    assert code == 0 and err == ""
    for name in ("digits", "synthetic", "mnist", "cifar10", "cifar100", "turns=2"):
        assert name in out
    code, out, err = selfsame("data", "digits", "--set", "turns=1")
    assert code == 0 and err == ""
    assert "1x8x8" in out
    row = next(line for line in out.splitlines() if "clients" in line)
    assert " 7 " in row
    assert selfsame("data", "show", "digits", "--set", "turns=1") == (0, out, "")
    assert selfsame("data", "--set", "turns=1", "digits") == (0, out, "")


def test_data_check(selfsame):
    code, out, err = selfsame("data", "check", "digits", "--set", "turns=1")
    assert code == 0 and err == ""
    assert "1x8x8" in out and "nothing is wrong" in out
    Path("pictures/ann").mkdir(parents=True)
    Path("pictures/ann/one.png").write_text("no picture")
    code, out, err = selfsame("data", "check", "imagefolder", "pictures")
    assert code == 2 and "wrong: imagefolder: 0 of 1 people can be clients" in out
    assert err.strip() == "selfsame: imagefolder: cannot be trained on as it is"  # below the bar of the decoder
    assert selfsame("data", "check", "imagefolder", "--path", "pictures")[:2] == (2, out)


@pytest.mark.parametrize("name", ["train", "compare", "resume", "recipe", "methods", "wire", "data", "evaluate"])
def test_summaries_are_whole_in_a_narrow_list(name, selfsame, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    lines = selfsame("--help")[1].splitlines()
    assert not next(line for line in lines if line.startswith(f"  {name} ")).endswith("...")


def test_wire_says_how_large_an_update_is(call):
    """The bytes of what learns, beside those of the whole network."""
    whole = call("wire", "fedhide", "--data", "digits")[1]
    part = call("wire", "fedhide", "--data", "digits", "--set", "net.adapters=2")[1]
    numbers = {
        text: [int(one.replace(",", "")) for one in re.findall(r"[\d,]*\d", text.splitlines()[-1])]
        for text in (whole, part)
    }
    count, up, every = numbers[whole]
    assert up == every == 4 * count
    learned, inside, sent, full = numbers[part]
    assert inside == count and full == every and sent == 4 * learned < every / 2
    code, _, error = call("wire", "fedhide", "--set", "net.adapters=2")
    assert code == 2 and "--data" in error
