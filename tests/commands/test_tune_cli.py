"""`selfsame tune`, from the command line: what it leaves, how it goes on, and what it refuses."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from selfsame.commands import tune
from selfsame.config.experiment import Paper, read_experiment
from selfsame.config.recipe import from_mapping, read_toml
from selfsame.data import load

RECIPE = """
[data]
name = "digits"
turns = 1
[run]
rounds = 4
eval_every = 4
device = "cpu"
[local]
batch = 4
[method]
name = "fixed"
"""
RATES = ("--over", "local.lr=0.01,0.1,0.3")


TABLE = RECIPE.replace('"digits"\nturns = 1', '"table"\npath = "A"')


def people(folder, shift=0.0):
    """A table of twelve people with nine rows each."""
    rows = [
        f"p{who:02d},{who + 0.1 * n + shift:.2f},{(who * 7 + n) % 11},{n * who % 5}"
        for who in range(12)
        for n in range(9)
    ]
    Path(folder).mkdir()
    (Path(folder) / "rows.csv").write_text("\n".join(["user,a,b,c", *rows, ""]))


@pytest.fixture
def selfsame(monkeypatch, tmp_path, call):
    """The command in a folder with a recipe."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    Path("small.toml").write_text(RECIPE)
    Path("tab.toml").write_text(TABLE)
    Path("two.toml").write_text(RECIPE + '[[variant]]\ntitle = "one"\n[[variant]]\ntitle = "two"\nlocal.lr = 0.5\n')
    return call


def lines(folder):
    return [json.loads(line) for line in (Path(folder) / "runs.jsonl").read_text().splitlines()]


def test_a_grid_is_tried_once_and_the_chosen_recipe_runs(selfsame, monkeypatch):
    words = ("tune", "small.toml", *RATES, "--share", "0.3", "--by", "eer", "--quiet")
    code, out, err = selfsame(*words)
    assert code == 0 and err == ""
    table = out.split("Judged by")[0]
    assert max(map(len, table.splitlines())) <= 80 and table.count("chosen") == 1
    folder = Path("runs/tune-small")
    names = {"local.lr=0.01", "local.lr=0.1", "local.lr=0.3"}
    assert {p.name for p in folder.iterdir()} == names | {"runs.jsonl", "tune.md", "tune.html", "chosen.toml"}
    found = lines(folder)
    assert [line["setting"] for line in found] == [{"local.lr": rate} for rate in (0.01, 0.1, 0.3)]
    best = min(found, key=lambda line: line["figures"]["eer"])
    chosen = from_mapping(read_toml(folder / "chosen.toml"))
    assert chosen.local.lr == best["setting"]["local.lr"] and chosen.data.options == {"turns": 1}
    assert f"{100 * best['figures']['eer']:.2f}" in table and "nothing of the test was at hand" in out

    for name in names:  # the people who were set apart are three of those who train, and nobody of the test
        stored = read_toml(folder / name / "recipe.toml")["data"]
        assert (stored["apart"], stored["apart_share"]) == ("people", 0.3)
        known = json.loads((folder / name / "data.json").read_text())
        assert known["clients"] == 5 and len(known["unseen"]) == 2
        assert known["parts"]["unseen"]["samples"] < len(load("digits", turns=1).unseen.y)

    with monkeypatch.context() as patch:
        patch.setattr("selfsame.runs.loop.carry_on", lambda *_, **__: pytest.fail("trained again"))
        assert selfsame(*words) == (0, out, "")
    assert (
        selfsame("train", "fixed", "--recipe", folder / "chosen.toml", "--out", "a", "--quiet", "--rounds", 1)[0] == 0
    )
    assert read_toml(Path("a/recipe.toml"))["local"]["lr"] == chosen.local.lr
    assert selfsame("recipe", folder / "chosen.toml", "--list")[0] == 0


def test_it_goes_on_where_it_stopped_and_a_longer_ladder_adds_to_it(selfsame):
    assert selfsame("tune", "small.toml", "--over", "local.lr=0.1,0.3", "--out", "t", "--quiet")[0] == 0
    kept = Path("t/local.lr=0.1/model.safetensors").stat().st_mtime_ns
    shutil.rmtree("t/local.lr=0.3")
    code, out, _ = selfsame("tune", "small.toml", *RATES, "--out", "t", "--quiet")
    assert code == 0 and len(lines("t")) == 3 and "P@1 %" in out  # a fifth of seven people is one: samples
    assert Path("t/local.lr=0.1/model.safetensors").stat().st_mtime_ns == kept
    code, _, err = selfsame("tune", "small.toml", *RATES, "--out", "t", "--quiet", "--rounds", 5)
    assert code == 2 and "holds a run of another recipe (run.rounds)" in err


def test_halving_ends_as_the_grid_does(selfsame):
    grid = ("tune", "small.toml", *RATES, "--quiet", "--set", "local.schedule=cosine")
    assert selfsame(*grid, "--out", "grid")[0] == 0
    code, out, err = selfsame(*grid, "--out", "half", "--halving")
    assert code == 0 and err == "" and "3 settings to round 1, the best 2 to round 4." in out
    whole = {line["run"]: line["figures"] for line in lines("grid")}
    found = lines("half")
    assert [line["round"] for line in found] == [1, 1, 1, 4, 4]
    first = sorted(found[:3], key=lambda line: -line["figures"]["p@1"])
    assert {line["run"] for line in found[3:]} == {line["run"] for line in first[:2]}
    for line in found[3:]:
        assert line["figures"]["p@1"] == whole[line["run"]]["p@1"]


def test_a_grid_that_has_ended_is_judged_by_halving(selfsame, monkeypatch):
    """Before, a run that had gone past the first rung without a figure there ended the command with a traceback."""
    words = ("tune", "small.toml", *RATES, "--out", "t", "--quiet", "--set", "local.schedule=cosine")
    assert selfsame(*words)[0] == 0
    with monkeypatch.context() as patch:
        patch.setattr("selfsame.runs.loop.carry_on", lambda *_, **__: pytest.fail("trained again"))
        code, out, err = selfsame(*words, "--halving")
    assert code == 0 and err == "" and "3 settings to round 1, the best 2 to round 4." in out
    found = lines("t")
    assert [line["round"] for line in found] == [1, 1, 1, 4, 4, 4] and "diverged" not in out
    assert selfsame(*words[:5], "fresh", *words[6:], "--halving")[0] == 0
    new = {(line["run"], line["round"]): line["figures"]["p@1"] for line in lines("fresh")}
    assert new.items() <= {(line["run"], line["round"]): line["figures"]["p@1"] for line in found}.items()
    assert Path("t/chosen.toml").read_text() == Path("fresh/chosen.toml").read_text()


def test_halving_goes_on_with_a_longer_ladder_in_the_same_folder(selfsame):
    """Before, sound settings that had no figure at the new first rung were called diverged, or broke the command."""
    words = ("tune", "small.toml", "--rounds", 9, "--halving", "--quiet")
    small, more = "0.001,0.002,0.003", "0.0001,0.0002,0.0003,0.0004"
    assert selfsame(*words, "--over", f"local.lr={small},0.1,0.3", "--out", "t")[0] == 0
    assert [line["round"] for line in lines("t")][:5] == [3] * 5  # all five are also looked at after round 1
    code, out, err = selfsame(*words, "--over", f"local.lr={small},{more}", "--out", "t")
    assert code == 0 and err == "" and "diverged" not in out
    assert "7 settings to round 1, the best 3 to round 3, the best 2 to round 9." in out
    assert selfsame(*words, "--over", f"local.lr={small},{more}", "--out", "new")[0] == 0
    assert Path("t/chosen.toml").read_text() == Path("new/chosen.toml").read_text()


def test_a_figure_that_is_missing_is_not_a_run_that_diverged(selfsame):
    """A run of an earlier version was not looked at where rungs end: nothing is chosen by the others."""
    words = ("tune", "small.toml", *RATES, "--out", "t", "--quiet")
    assert selfsame(*words)[0] == 0
    kept = Path("t/local.lr=0.1/result.json")
    view = json.loads(kept.read_text())
    view["history"] = [record for record in view["history"] if record["round"] != 1]
    kept.write_text(json.dumps(view))
    Path("t/chosen.toml").unlink()
    code, out, err = selfsame(*words, "--halving")
    assert code == 2 and out == "" and "t/local.lr=0.1: was not looked at after round 1" in err
    assert err.count("\n") == 1 and not Path("t/chosen.toml").exists()
    view["history"][-1]["p@1"] = None
    kept.write_text(json.dumps(view))
    code, out, err = selfsame(*words)
    assert code == 2 and out == "" and "--by p@1: t/local.lr=0.1 has no such figure after round 4" in err


def test_a_run_pauses_and_goes_on(selfsame):
    words = ("--recipe", "small.toml", "--set", "data.apart=samples", "--out", "run", "--quiet", "--rounds", 2)
    assert selfsame("train", "fixed", *words)[0] == 0
    shutil.rmtree("run/checkpoint")
    for wanted in ([1], [1, 2]):
        code, _, err = selfsame("resume", "run", "--until", wanted[-1], "--quiet")
        assert code == 0 and err == ""
        records = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
        assert [record["round"] for record in records] == wanted


@pytest.mark.parametrize("by", ["eer", "p@1"])
def test_a_recipe_that_may_end_early_is_tuned_without(by, selfsame):
    """Before, it was refused for want of the validation samples that tuning itself had taken away."""
    people("A")
    Path("tab.toml").write_text(TABLE.replace("[run]", "validation = 1\n[run]\npatience = 2"))
    code, out, err = selfsame("tune", "tab.toml", "--over", "local.lr=0.01,0.1", "--quiet", "--out", "t", "--by", by)
    assert code == 0 and err == "" and "No run ended early: run.patience = 2 is for the chosen recipe alone." in out
    assert read_toml(Path("t/local.lr=0.1/recipe.toml"))["run"]["patience"] == 0
    chosen = read_toml(Path("t/chosen.toml"))
    assert chosen["run"]["patience"] == 2 and chosen["data"]["validation"] == 1


def test_every_setting_that_diverges(selfsame):
    code, out, _ = selfsame(
        "tune", "small.toml", "--over", "local.lr=1e25,1e26", "--out", "t", "--quiet", "--rounds", 6
    )
    assert code == 1 and "Every setting diverged" in out and not Path("t/chosen.toml").exists()
    assert all(line["diverged"] for line in lines("t"))


def test_the_variant_that_is_meant(selfsame):
    code, _, err = selfsame("tune", "two.toml", "--over", "local.batch=2", "--only", "two", "--quiet", "--rounds", 1)
    assert code == 0 and err == ""
    chosen = read_toml(Path("runs/tune-two/chosen.toml"))
    assert chosen["local"]["lr"] == 0.5 and chosen["local"]["batch"] == 2 and chosen["title"] == "two"


def test_runs_on_other_data_are_not_mixed_into_one_table(selfsame):
    """Before, ended runs were never held to the data: a longer ladder with another --path went on beside them."""
    people("A")
    people("B", shift=3.0)
    words = ("tune", "tab.toml", "--quiet", "--rounds", 1, "--out", "t")
    assert selfsame(*words, "--over", "local.lr=0.01,0.1")[0] == 0
    before = Path("t/chosen.toml").read_text()
    for rates in ("0.01,0.1,0.2", "0.01,0.1"):
        code, out, err = selfsame(*words, "--over", f"local.lr={rates}", "--path", "B")
        assert code == 2 and out == "" and err.startswith("selfsame: t/local.lr=0.01: was trained on other data: ")
        assert err.count("\n") == 1 and not Path("t/local.lr=0.2").exists()
    assert Path("t/chosen.toml").read_text() == before
    Path("A").rename("C")  # what was moved is the same data
    code, _, err = selfsame(*words, "--over", "local.lr=0.01,0.1,0.2", "--path", "C")
    assert code == 0 and err == "" and len(lines("t")) == 3
    assert selfsame("tune", "tab.toml", "--quiet", "--rounds", 1, "--out", "t", "--over", "local.lr=0.01,0.1")[0] == 2
    people("A", shift=3.0)  # other data at the same place
    code, _, err = selfsame(*words, "--over", "local.lr=0.01,0.1,0.3", "--path", "A")
    assert code == 2 and "was trained on other data" in err


def test_a_recipe_whose_data_moved_goes_on_and_another_is_refused(selfsame, forked):
    people("A")
    people("B", shift=3.0)
    Path("tab.toml").write_text(TABLE + '[[variant]]\ntitle = "one"\n[[variant]]\ntitle = "two"\nlocal.lr = 0.5\n')
    words = ("recipe", "tab.toml", "--quiet", "--rounds", 2, "--out", "t")
    assert selfsame(*words)[0] == 0
    shutil.rmtree("t/02-fixed")
    code, _, err = selfsame(*words, "--path", "B", "--only", "two")
    assert code == 2 and "selfsame: t/01-fixed: was trained on other data: " in err and err.count("\n") == 1
    assert not Path("t/02-fixed").exists()
    assert selfsame(*words)[0] == 0
    shutil.rmtree("t/02-fixed/checkpoint")
    Path("t/02-fixed/result.json").unlink()  # as one that was begun
    Path("A").rename("C")
    assert selfsame(*words, "--path", "C", "--jobs", 2)[0] == 0  # each process reads in its recipe where they are
    assert read_toml(Path("t/02-fixed/recipe.toml"))["data"]["path"] == str(Path("C").absolute())


@pytest.mark.skipif(torch.cuda.is_available(), reason="a device that is not there is asked for")
@pytest.mark.parametrize("jobs", [1, 2])
def test_runs_that_began_on_another_device_go_on_here(selfsame, forked, jobs):
    people("A")
    Path("tab.toml").write_text(TABLE + '[[variant]]\ntitle = "one"\n[[variant]]\ntitle = "two"\nlocal.lr = 0.5\n')
    words = ("recipe", "tab.toml", "--quiet", "--rounds", 2, "--out", "t", "--device", "cpu")
    assert selfsame(*words)[0] == 0
    shutil.rmtree("t/02-fixed/checkpoint")
    Path("t/02-fixed/result.json").unlink()  # as one that was begun
    for file in Path("t").glob("*/recipe.toml"):
        file.write_text(file.read_text().replace('device = "cpu"', 'device = "cuda"'))
    code, _, err = selfsame(*words, "--jobs", jobs)
    assert code == 0, err
    assert read_toml(Path("t/02-fixed/recipe.toml"))["run"]["device"] == "cpu"
    assert read_toml(Path("t/01-fixed/recipe.toml"))["run"]["device"] == "cuda"  # it had ended


def test_how_samples_look_may_be_tried(selfsame):
    people("A")
    words = ("tune", "tab.toml", "--quiet", "--rounds", 1, "--over", "data.standardise=true,false")
    code, out, err = selfsame(*words, "--over", 'data.columns="a,b","a,b,c"')
    assert code == 0 and err == "" and len(lines("runs/tune-tab")) == 4
    known = [json.loads(file.read_text()) for file in Path("runs/tune-tab").glob("*/data.json")]
    assert len(known) == 4 and len({json.dumps([one["seen"], one["unseen"], one["order"]]) for one in known}) == 1
    tried = {"seed": "0,1", "unseen_share": "0.2,0.3", "people": "0,9", "test": "5,2"}
    for key, values in tried.items():
        code, out, err = selfsame("tune", "tab.toml", "--rounds", 1, "--over", f"data.{key}={values}", "--out", "t")
        assert code == 2 and out == "" and err.startswith(f"selfsame: --over data.{key} = ") and err.count("\n") == 1
        assert "other people or samples" in err and not Path("t").exists()


def test_the_chosen_recipe_is_measured_as_the_recipe_was(selfsame):
    """Before, its seeds and the paper's figures were lost."""
    paper = '[variant.paper]\n"p@1" = [80.5, 0.5]\neer = 4.0\nwhere = "Table 1"\nabout = true\n'
    Path("two.toml").write_text(f"seeds = [3, 1]\n{Path('two.toml').read_text()}{paper}")
    words = ("tune", "two.toml", "--over", "local.batch=2", "--only", "two", "--quiet", "--rounds", 1)
    assert selfsame(*words)[0] == 0
    (found,) = read_experiment(Path("runs/tune-two/chosen.toml")).variants
    whole = read_experiment(Path("two.toml")).select(["two"])[0]
    assert found.seeds == (3, 1) == whole.seeds and found.title == "two" and found.recipe.local.batch == 2
    assert found.paper.figures == whole.paper.figures == {"p@1": (80.5, 0.5), "eer": (4.0, None)}
    assert (found.paper.where, found.paper.about, found.paper.rounds) == ("Table 1", True, 4)  # the paper's own rounds
    assert found.paper.chosen.startswith("1 setting of local.batch, 1 seed each, on ")
    assert found.paper.chosen.endswith("set apart of the training data (selfsame tune)")
    code, out, _ = selfsame("recipe", "runs/tune-two/chosen.toml", "--list")
    assert code == 0 and "0 of 2 runs have ended" in out
    assert selfsame(*words, "--over", "method.name=fedgn", "--out", "t")[0] == 0
    (other,) = read_experiment(Path("t/chosen.toml")).variants
    assert other.seeds == (3, 1) and other.paper == Paper()  # its figures are of another method


BAD = {
    "one setting twice": (
        ("small.toml", "--over", "local.lr=1,1.0"),
        "local.lr = 1.0: is the same setting as local.lr = 1;",
    ),
    "no ladder": (("small.toml",), "--over: name a key and the values to try"),
    "unknown key": (("small.toml", "--over", "local.bach=1"), "did you mean 'batch'"),
    "unknown option": (("small.toml", "--over", "nosuch=1"), "unknown option 'nosuch'"),
    "out of range": (("small.toml", "--over", "local.lr=0.1,-1"), "local.lr: must be at least 0"),
    "does not fit": (("small.toml", "--over", "cohort.size=3,99"), "cohort.size"),
    "another test": (
        ("small.toml", "--over", "data.held_out=1,3"),
        "--over data.held_out = 1: the test would be other",
    ),
    "another seed": (("small.toml", "--over", "data.seed=0,1"), "--over data.seed = 1: the test would be other"),
    "another share": (("small.toml", "--over", "data.test_share=0.25,0.5"), "--over data.test_share = 0.5: the test"),
    "others apart": (
        ("small.toml", "--over", "data.clients_per_class=1,2"),
        "clients_per_class = 2: this setting would",
    ),
    "wrong value": (("small.toml", "--over", "data.held_out=3,99"), "--over data.held_out = 99: "),
    "nothing to judge by": (("small.toml", *RATES, "--by", "eer"), "0.2 of 7 people leaves too few"),
    "unknown figure": (("small.toml", *RATES, "--by", "luck"), "--by: 'luck' is not one of"),
    "share": (("small.toml", *RATES, "--share", "1.5"), "--share: must lie between 0 and 1"),
    "variants": (
        ("two.toml", *RATES),
        "has 2 variants; name one with --only, or tune each alike with --every: one; two",
    ),
    "missing": (("gone.toml", *RATES), "gone.toml: No such file"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_and_leaves_nothing(case, selfsame):
    words, said = BAD[case]
    code, out, err = selfsame("tune", *words)
    assert code == 2 and out == "" and said in err
    assert err.startswith("selfsame: ") and err.count("\n") == 1
    assert not Path("runs").exists()


def test_a_long_wait_is_asked_for(selfsame, monkeypatch):
    monkeypatch.setattr(tune, "MANY", 2)
    code, _, err = selfsame("tune", "small.toml", *RATES, "--jobs", 2)
    assert code == 2 and "--over: 3 runs, 12 rounds in all, about " in err
    assert " of rounds with --jobs 2, starting and evaluating apart; add --yes to begin, or --halving" in err
    assert not Path("runs").exists()
    assert selfsame("tune", "small.toml", *RATES, "--yes", "--rounds", 1, "--quiet")[0] == 0


def test_every_variant_is_tuned_alike(selfsame):
    """As the guide says, each in a folder of its own: the same people or samples are set apart for all."""
    for title in ("one", "two"):
        words = ("--only", title, "--over", "local.batch=2,4", "--quiet", "--rounds", 1, "--out", f"t-{title}")
        assert selfsame("tune", "two.toml", *words)[0] == 0
        assert read_toml(Path(f"t-{title}/chosen.toml"))["title"] == title
        assert Path(f"t-{title}/tune.md").read_text().startswith(f"# tune two.toml: {title}\n")
    prints = {file.read_text() for file in Path().glob("t-*/*/data.json")}
    assert len(list(Path().glob("t-*/*/data.json"))) == 4 and len(prints) == 1
    code, _, err = selfsame(
        "tune", "two.toml", "--only", "two", "--over", "local.batch=2", "--rounds", 1, "--out", "t-one"
    )
    assert code == 2 and "holds a run of another recipe (local.lr)" in err


# ---- every variant in one call


EVERY = (
    RECIPE.replace('[method]\nname = "fixed"\n', "")
    + """
[paper]
where = "Table 9"
chosen = "by nobody"
[[variant]]
control = "fixed vectors"
method = { name = "fixed" }
[[variant]]
title = "FedHide(0.1)"
method = { name = "fedhide", alpha = 0.1 }
local = { lr = 0.5 }
paper = { eer = [3.5, 0.5], rounds = 7 }
[[variant]]
title = "softmax"
method = { name = "softmax" }
run = { rounds = 6 }
[[quoted]]
title = "of theirs"
paper = { eer = 1.5 }
"""
)


def test_all_variants_are_tuned_in_one_call(selfsame, monkeypatch):
    """Each as if it were alone, by the same figure; the recipe has every choice, the seeds and the paper's figures."""
    Path("many.toml").write_text("seeds = [3, 1]\n" + EVERY)
    words = ("tune", "many.toml", "--over", "local.lr=0.01,0.1", "--share", 0.3, "--by", "eer", "--quiet")
    code, out, err = selfsame(*words, "--every")
    assert code == 0 and err == ""
    assert "3 variants, each with the same 2 settings." in out and "chosen: runs/tune-many/chosen.toml" in out
    assert max(map(len, out.split("3 variants")[0].splitlines())) <= 80
    folder, best = Path("runs/tune-many"), {}
    names = {"01-fixed": "fixed vectors", "02-fedhide": "FedHide(0.1)", "03-softmax": "softmax"}
    assert {p.name for p in folder.iterdir()} == {*names, "tune.md", "tune.html", "chosen.toml"}
    for name, title in names.items():
        found = lines(folder / name)
        assert [line["setting"] for line in found] == [{"local.lr": 0.01}, {"local.lr": 0.1}]
        best[title] = min(found, key=lambda line: line["figures"]["eer"])
        (alone,) = read_experiment(folder / name / "chosen.toml").variants
        assert alone.title == title and alone.recipe.local.lr == best[title]["setting"]["local.lr"]
    prints = {file.read_text() for file in folder.glob("*/*/data.json")}
    assert len(prints) == 1  # the same people are set apart for all

    found, whole = read_experiment(folder / "chosen.toml"), read_experiment(Path("many.toml"))
    assert [one.title for one in found.variants] == list(names.values())
    for one, before in zip(found.variants, whole.variants, strict=True):
        rate = best[one.title]["setting"]["local.lr"]
        wanted = replace(before.recipe, local=replace(before.recipe.local, lr=rate))
        assert (one.recipe, one.seeds) == (wanted, (3, 1))
        assert one.paper.figures == before.paper.figures and one.control == before.control
        assert one.control or one.paper.where == "Table 9"
        assert one.paper.chosen.startswith("2 settings of local.lr, 1 seed each, on ")
    assert [one.paper.rounds for one in found.variants] == [None, 7, 6]
    assert [one.control for one in found.variants] == ["fixed vectors", "", ""]
    assert [(one.title, one.paper.figures) for one in found.quoted] == [("of theirs", {"eer": (1.5, None)})]
    text = (folder / "chosen.toml").read_text()
    assert "# Chosen by `selfsame tune many.toml --every`." in text and text.count("[[variant]]") == 3
    table = (folder / "tune.md").read_text()
    for title, line in best.items():
        figure = f"{100 * line['figures']['eer']:.2f}"
        assert any(f"| {title} | local.lr = " in row and f"| {figure} |" in row for row in table.splitlines())
    page = (folder / "tune.html").read_text()
    assert all(title in page for title in names.values()) and page.count("<svg") == 1

    with monkeypatch.context() as patch:
        patch.setattr("selfsame.runs.loop.carry_on", lambda *_, **__: pytest.fail("trained again"))
        assert selfsame(*words, "--every") == (0, out, "")
    code, out, _ = selfsame("recipe", folder / "chosen.toml", "--list")
    assert code == 0 and "0 of 6 runs have ended" in out


def test_runs_of_all_variants_are_trained_at_a_time(selfsame, forked):
    """In processes of their own they come to what they come to one after another."""
    Path("many.toml").write_text("seeds = [3, 1]\n" + EVERY)
    words = (
        "tune",
        "many.toml",
        "--every",
        "--only",
        "fixed",
        "--only",
        "softmax",
        "--over",
        "local.lr=0.1",
        "--quiet",
    )
    assert [selfsame(*words, "--jobs", jobs, "--out", f"j{jobs}")[0] for jobs in (1, 2)] == [0, 0]
    for name in ("01-fixed", "03-softmax"):
        (one,), (other,) = (lines(Path(folder) / name) for folder in ("j1", "j2"))
        assert one["figures"] == other["figures"] and one["setting"] == other["setting"]
    first, second = ((Path(folder) / "chosen.toml").read_text() for folder in ("j1", "j2"))
    assert first == second and first.count("[[variant]]") == 2


def test_all_variants_are_judged_alike_and_halved(selfsame):
    """One that has no network for unseen people is judged by samples, and so are the others then."""
    text = EVERY.replace("turns = 1", "turns = 2") + '[[variant]]\ntitle = "alone"\nmethod = { name = "deepsvdd" }\n'
    Path("many.toml").write_text(text)
    rates = ("--over", "local.lr=0.001,0.01,0.1", "--halving", "--quiet", "--every")
    code, _, err = selfsame("tune", "many.toml", *rates, "--by", "eer")
    assert code == 2 and err.startswith("selfsame: alone: --by eer: deepsvdd has no network for people")
    some = ("--only", "fixed vec", "--only", "softmax")
    code, out, err = selfsame("tune", "many.toml", *rates, *some, "--out", "two")
    assert code == 0 and err == "" and "2 variants" in out and "EER new %" in out
    assert "3 settings to round 1, the best 2 to round 4." in out  # each by its own rounds
    assert "3 settings to round 2, the best 2 to round 6." in out
    code, out, err = selfsame("tune", "many.toml", *rates, "--only", "alone", "--only", "softmax", "--out", "three")
    assert code == 0 and err == "" and "P@1 %" in out and "EER" not in out


def test_variants_of_which_every_setting_diverges_are_left_out(selfsame):
    steep = "local = { lr = 0.5 }\nserver = { lr = 1e30 }"
    Path("many.toml").write_text(EVERY.replace("local = { lr = 0.5 }", steep))
    words = ("tune", "many.toml", "--every", "--only", "fixed", "--only", "hide", "--quiet", "--rounds", 6)
    code, out, _ = selfsame(*words, "--over", "local.lr=0.01,0.1", "--out", "t")
    assert code == 1 and out.count("none: every setting diverged") == 1 and "chosen: t/chosen.toml" in out
    assert "FedHide(0.1): Every setting diverged: try smaller learning rates." in out
    assert [one.title for one in read_experiment(Path("t/chosen.toml")).variants] == ["fixed vectors"]
    code, out, _ = selfsame(*words, "--over", "local.lr=1e25,1e26", "--out", "u")
    assert code == 1 and "chosen" not in out.split("table: u/tune.md")[1] and not Path("u/chosen.toml").exists()


def test_an_option_that_one_variant_lacks_is_refused(selfsame):
    Path("many.toml").write_text(EVERY)
    code, out, err = selfsame("tune", "many.toml", "--every", "--over", "alpha=0.1,0.2")
    assert code == 2 and out == "" and err.count("\n") == 1
    assert err.startswith("selfsame: fixed vectors: --over alpha = 0.1: fixed: unknown option 'alpha'")
    assert not Path("runs").exists()
