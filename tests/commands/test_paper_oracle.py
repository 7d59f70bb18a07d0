"""`selfsame paper` and `selfsame recipe` with an oracle: fitted once a seed, kept, and told apart on the page."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from selfsame.data.formats.xc_text import read_xc
from selfsame.methods.sleec import Sleec, fit, votes
from selfsame.report.exhibit_page import ORACLES, exhibit_markdown
from selfsame.runs import fits

NAME = "fedaws-table3-bibtex"
RECIPE = """
seeds = [0, 1]
[data]
name = "xc"
path = "data"
[net]
name = "embedding-bag"
width = 4
[run]
rounds = 1
device = "cpu"
compile = "off"
[local]
batch = 2
[paper]
where = "FedAwS, Table 3"
chosen = "by rows set apart"
[[variant]]
title = "Baseline-2"
method = { name = "fixed" }
paper = { "p@1" = 64.1 }
[[oracle]]
title = "SLEEC"
method = { name = "sleec", learners = 2, clusters = 2, rank = 3, neighbours = 5, voters = 4 }
paper = { "p@1" = 90.5, chosen = "by a loop" }
"""
PAPER = ("paper", "fedaws", "--table", "3", "--recipes", "mine", "--path", "rows", "--quiet", "--out", "p")


def written(path, seed, rows):
    """Rows of one or two of six labels, each of which brings its own two features, and some rows without a label."""
    rng = np.random.default_rng(seed)
    lines = [f"{rows} 12 6"]
    for row in range(rows):
        labels = sorted(rng.choice(6, rng.integers(1, 3), replace=False).tolist())
        features = " ".join(f"{2 * label + more}:{rng.uniform(0.5, 2):.3f}" for label in labels for more in (0, 1))
        lines.append(f"{'' if row % 9 == 4 else ','.join(map(str, labels))} {features}")
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture
def selfsame(monkeypatch, tmp_path, call):
    """The command beside a recipe whose data are there, and the usual recipes, whose data are not."""
    monkeypatch.chdir(tmp_path)
    Path("mine").mkdir()
    Path("rows").mkdir()
    for part, seed, rows in (("train", 0, 50), ("test", 1, 30)):
        written(Path(f"rows/bibtex_{part}.txt"), seed, rows)
        written(Path(f"rows/other_{part}.txt"), seed, rows)  # which nobody asks for by name
    Path(f"mine/{NAME}.toml").write_text(RECIPE.replace('name = "xc"', 'name = "xc"\nwhich = "bibtex"'))
    return call


def looped(k, seed):
    """P@k in per cent by plain loops over the learners' votes and the labels of the files."""
    (x, y), (tested, true) = (rows_of(f"rows/bibtex_{part}.txt") for part in ("train", "test"))
    options = Sleec(learners=2, clusters=2, rank=3, neighbours=5, voters=4)
    total = sum(votes(learner, tested, options.voters) for learner in fit(x, y, options, seed))
    hits = 0
    for row in range(len(true)):
        best = sorted(range(6), key=lambda label: (-total[row, label], label))[:k]
        hits += sum(label in true[row] for label in best)
    return 100 * hits / (k * len(true))


def rows_of(file):
    """Matrices of the training rows, and the lists of labels of the test rows, of those that have a label."""
    from scipy import sparse

    rows = read_xc(Path(file))
    labels = [rows.label[a:b].tolist() for a, b in zip(rows.label_offset, rows.label_offset[1:], strict=False)]
    kept = [row for row, some in enumerate(labels) if some]
    x = np.zeros((len(kept), 12), np.float32)
    y = np.zeros((len(kept), 6), np.float32)
    for place, row in enumerate(kept):
        for at in range(rows.offset[row], rows.offset[row + 1]):
            x[place, rows.index[at]] = rows.value[at]
        y[place, labels[row]] = 1
    some = [labels[row] for row in kept]
    return sparse.csr_array(x), some if "test" in str(file) else sparse.csr_array(y)


def page():
    plain = json.loads(Path("p/table-3.json").read_text())
    assert Path("p/table-3.md").read_text() == exhibit_markdown(plain)
    (part,) = plain["parts"]
    return {one["title"]: one for one in part["variants"]}, part, Path("p/table-3.md").read_text()


def test_the_oracle_has_a_row_of_its_own(selfsame, monkeypatch):
    code, out, err = selfsame(*PAPER)
    assert code == 0, err
    rows, part, text = page()
    assert [*rows] == ["Baseline-2", "SLEEC", "untrained network"]
    sleec = rows["SLEEC"]
    for k in (1, 3, 5):
        figure = sleec["figures"][f"p@{k}"]
        expected = [looped(k, seed) for seed in (0, 1)]
        assert figure["values"] == pytest.approx(expected, abs=1e-9)
        assert figure["measured"] == pytest.approx(sum(expected) / 2)
        assert figure["half_range"] == pytest.approx(abs(expected[0] - expected[1]) / 2)
    assert sleec["figures"]["p@1"]["values"][0] > 60  # the features tell the labels
    first = sleec["figures"]["p@1"]
    cells = f"{first['measured']:.1f} ± {first['half_range']:.1f} | {first['measured'] - 90.5:+.1f} | – | 0, 1 |"
    assert f"| SLEEC (oracle) | P@1 % | 90.5 | {cells}" in text and ORACLES in text
    assert "- How settings of SLEEC were chosen: by a loop." in text
    assert "- SLEEC: fitted in " in text and "of processor time a seed, selfsame " in text and "SLEEC (oracle)" in out
    assert (sleec["oracle"], sleec["rounds"], sleec["paper_rounds"]) == (True, 0, None)
    assert not any(one["oracle"] for title, one in rows.items() if title != "SLEEC")
    assert [*sleec["settings"]] == ["method", "data"] and sleec["settings"]["data"] == {"name": "xc", "which": "bibtex"}
    assert part["drawing"] is None and str(Path.cwd()) not in text

    with monkeypatch.context() as patch:  # a second call does nothing
        patch.setattr("selfsame.runs.experiments.fit", lambda *_: pytest.fail("fitted again"))
        patch.setattr("selfsame.runs.experiments.rows_of", lambda *_: pytest.fail("read again"))
        assert selfsame(*PAPER) == (code, out, err)


def test_only_what_is_left_is_fitted(selfsame, monkeypatch):
    assert selfsame(*PAPER, "--only", "sleec")[0] == 0
    rows, _, text = page()
    assert rows["Baseline-2"]["ended"] == [False, False] and rows["SLEEC"]["ended"] == [True, True]
    assert "Not run yet: Baseline-2; " in text and "Not run yet: SLEEC" not in text
    folder = Path(f"p/{NAME}")
    kept = folder / "oracle-01-sleec" / "oracle.json"
    assert sorted(one.name for one in folder.iterdir() if one.is_dir()) == ["oracle-01-sleec", "oracle-01-sleec-seed1"]
    assert [one.name for one in kept.parent.iterdir()] == ["oracle.json"]
    before = kept.read_bytes()
    shutil.rmtree(folder / "oracle-01-sleec-seed1")
    seeds = []
    monkeypatch.setattr("selfsame.runs.experiments.fit", lambda recipe, rows: _noted(seeds, recipe, rows))
    assert selfsame(*PAPER, "--only", "SLEEC")[0] == 0
    again, _, _ = page()
    assert seeds == [1] and kept.read_bytes() == before
    assert again["SLEEC"]["figures"] == rows["SLEEC"]["figures"]


def _noted(seeds, recipe, rows):
    seeds.append(recipe.run.seed)
    return fits.fit(recipe, rows)


def test_a_page_of_fits_that_were_brought_from_elsewhere(selfsame, monkeypatch):
    assert selfsame(*PAPER, "--only", "SLEEC")[0] == 0
    rows, _, _ = page()
    for seed in ("", "-seed1"):
        there = Path(f"q/{NAME}/oracle-01-sleec{seed}")
        there.mkdir(parents=True)
        shutil.copy(Path(f"p/{NAME}/oracle-01-sleec{seed}/oracle.json"), there)
    monkeypatch.setattr("selfsame.runs.experiments.fit", lambda *_: pytest.fail("fitted again"))
    assert selfsame(*PAPER[:-1], "q", "--only", "SLEEC")[0] == 0
    (part,) = json.loads(Path("q/table-3.json").read_text())["parts"]
    assert {one["title"]: one["figures"] for one in part["variants"]}["SLEEC"] == rows["SLEEC"]["figures"]


def test_a_page_without_the_oracle_takes_its_row_from_another(selfsame):
    """It stands before the controls, whichever page had it."""
    whole = Path(f"mine/{NAME}.toml").read_text()
    Path(f"mine/{NAME}.toml").write_text(whole.split("[[oracle]]")[0])
    assert selfsame(*PAPER)[0] == 0
    Path(f"mine/{NAME}.toml").write_text(whole)
    assert selfsame(*PAPER[:-1], "q", "--only", "SLEEC")[0] == 0
    assert selfsame("paper", "p/table-3.json", "--join", "q/table-3.json") == (0, "page: p/table-3.md\n", "")
    joined, _, text = page()
    assert selfsame(*PAPER[:-1], "r")[0] == 0
    (part,) = json.loads(Path("r/table-3.json").read_text())["parts"]
    assert [*joined] == [one["title"] for one in part["variants"]]
    for one in part["variants"]:
        assert {**joined[one["title"]], "seconds": None} == {**one, "seconds": None}
    assert ORACLES in text and "Not run yet" not in text and text.count("- SLEEC: fitted in ") == 1


def test_a_recipe_with_an_oracle(selfsame, monkeypatch):
    words = ("recipe", f"mine/{NAME}.toml", "--path", "rows", "--out", "r", "--quiet")
    code, out, err = selfsame(*words, "--list")
    assert code == 0 and out.count("not begun") == 4 and not Path("r").exists()
    code, out, err = selfsame(*words)
    assert code == 0, err
    assert "SLEEC" in out and "| SLEEC | P@1 % | 90.5 |" in Path("r/results.md").read_text()
    found = json.loads(Path("r/results.json").read_text())["variants"]
    assert [one["title"] for one in found] == ["Baseline-2", "SLEEC"]
    assert found[1]["figures"]["p@1"]["values"] == pytest.approx([looped(1, seed) for seed in (0, 1)])
    assert "SLEEC" not in Path("r/report.html").read_text()  # which is about training
    monkeypatch.setattr("selfsame.runs.experiments.fit", lambda *_: pytest.fail("fitted again"))
    assert selfsame(*words)[0] == 0 and "4 of 4 runs have ended" in selfsame(*words, "--list")[1]


def test_a_stopped_command_leaves_the_fits_so_far(selfsame, monkeypatch):
    """Whoever stops it has the page of what there is; the same command goes on."""
    import os
    import signal

    def stopping(recipe, rows):
        found = fits.fit(recipe, rows)
        os.kill(os.getpid(), signal.SIGINT)
        return found

    with monkeypatch.context() as patch:
        patch.setattr("selfsame.runs.experiments.fit", stopping)
        code, _, err = selfsame(*PAPER, "--only", "SLEEC")
    assert code == 130 and "stopped after an oracle; the same command goes on" in err
    assert page()[0]["SLEEC"]["ended"] == [True, False]
    assert selfsame(*PAPER, "--only", "SLEEC")[0] == 0 and page()[0]["SLEEC"]["ended"] == [True, True]


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ('"sleec", learners', '"slec", learners', "unknown oracle 'slec'; did you mean 'sleec'?"),
        ("rank = 3", "rank = 0", "sleec: rank must be 1 or more, got 0"),
        ("rank = 3", "rank = 3.5", "sleec: option rank: expected a whole number, got 3.5"),
        ("rank = 3", "length = 3", "sleec: unknown option 'length'"),
        ('title = "SLEEC"', "", "[[oracle]]: expected a title, a method and a paper table, and nothing else"),
        ('title = "SLEEC"', 'title = "SLEEC"\nlocal = { lr = 1 }', "and nothing else"),
        ("[[oracle]]", "[oracle]", "oracle must be an array of tables: [[oracle]]"),
        ('"p@1" = 90.5', '"p@2" = 90.5', "paper.p@2: unknown figure"),
        ('title = "SLEEC"', 'title = "Baseline-2"', "two variants are called 'Baseline-2'"),
    ],
)
@pytest.mark.parametrize("command", ["paper", "recipe"])
def test_a_bad_oracle_is_one_line(command, before, after, said, selfsame):
    file = Path(f"mine/{NAME}.toml")
    text = file.read_text()
    assert before in text
    file.write_text(text.replace(before, after, 1))
    words = PAPER if command == "paper" else ("recipe", file, "--path", "rows", "--out", "p")
    code, out, err = selfsame(*words)
    assert (code, out) == (2, "") and said in err and len(err.strip().splitlines()) == 1
    assert not Path("p").exists()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"seed": 7}, "holds a run of another recipe (run.seed)"),
        ({"rows": "0" * 64}, "was fitted to other data"),
        ({"figures": {"p@1": 1.5}}, "oracle.json: damaged (it has figures that are none); delete it"),
        ({"figures": {}}, "oracle.json: damaged"),
        ({"seconds": "long"}, "oracle.json: damaged"),
        ({"format": 9}, "oracle.json: damaged"),
    ],
)
def test_what_lies_there_must_be_this_oracle(change, said, selfsame):
    assert selfsame(*PAPER, "--only", "SLEEC")[0] == 0
    kept = Path(f"p/{NAME}/oracle-01-sleec/oracle.json")
    kept.write_text(json.dumps({**json.loads(kept.read_text()), **change}))
    shutil.rmtree(Path(f"p/{NAME}/oracle-01-sleec-seed1"))
    code, _, err = selfsame(*PAPER, "--only", "SLEEC")
    assert code == 2 and said in err and len(err.strip().splitlines()) == 1, err
    assert not Path(f"p/{NAME}/oracle-01-sleec-seed1").exists()


def test_other_settings_are_another_oracle(selfsame):
    assert selfsame(*PAPER, "--only", "SLEEC")[0] == 0
    file = Path(f"mine/{NAME}.toml")
    file.write_text(file.read_text().replace("voters = 4", "voters = 5"))
    code, _, err = selfsame(*PAPER, "--only", "SLEEC")
    assert code == 2 and "holds a run of another recipe (method.voters); name another folder with --out" in err


def test_nothing_is_left_of_a_fit_that_failed(selfsame, monkeypatch):
    monkeypatch.setattr("selfsame.runs.fits.matrix_precision", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        selfsame(*PAPER, "--only", "SLEEC")
    assert not [*Path("p").rglob("*.json")] and not [*Path("p").rglob(".*")]


def test_seeds_and_data_of_the_command_line_hold_for_oracles_and_nothing_else(selfsame):
    code, _, err = selfsame(*PAPER, "--only", "SLEEC", "--set", "run.seed=3", "--set", "local.lr=0.5", "--rounds", 9)
    assert code == 0, err
    rows, _, _ = page()
    assert rows["SLEEC"]["seeds"] == [3] and rows["SLEEC"]["rounds"] == 0
    assert rows["SLEEC"]["figures"]["p@1"]["values"] == pytest.approx([looped(1, 3)])


def test_data_without_labelled_rows_cannot_have_an_oracle(selfsame):
    oracle = RECIPE[RECIPE.index("[[oracle]]") :]
    data = '[data]\nname = "digits"\nturns = 1\n[run]\nrounds = 1\ndevice = "cpu"\n[local]\nbatch = 4\n'
    Path("mine/d.toml").write_text(data + '[[variant]]\nmethod = { name = "fixed" }\n' + oracle)
    code, _, err = selfsame("recipe", "mine/d.toml", "--out", "r", "--only", "SLEEC", "--quiet")
    assert code == 2 and "digits: has no rows with several labels, which an oracle is fitted to; there is: xc" in err


def test_an_oracle_is_not_tuned(selfsame):
    code, _, err = selfsame("tune", f"mine/{NAME}.toml", "--path", "rows", "--only", "SLEEC", "--over", "local.lr=1,2")
    assert code == 2 and "--only SLEEC: an oracle is not trained; name a variant that is" in err
    text = Path(f"mine/{NAME}.toml").read_text()
    Path("mine/x.toml").write_text(text[: text.index("[[variant]]")] + text[text.index("[[oracle]]") :])
    code, _, err = selfsame("train", "fixed", "--recipe", "mine/x.toml", "--path", "rows")
    assert code == 2 and "has variants; run it with `selfsame recipe mine/x.toml`" in err
