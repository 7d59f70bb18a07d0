"""`selfsame paper`: what the data allow is run, the rest is listed, and the page says what its JSON says."""

import json
import re
from pathlib import Path

import pytest

from selfsame.config.exhibits import PAPERS, find_exhibits, recipe_file
from selfsame.config.experiment import read_experiment
from selfsame.errors import SelfsameError
from selfsame.report.exhibit_page import exhibit_markdown

SMALL = """
seeds = [0, 1]
[data]
name = "digits"
turns = 1
[run]
rounds = 2
device = "cpu"
[local]
batch = 4
[paper]
where = "FedHide, Tables 3 and 4"
[[variant]]
title = "FedHide(0.5)"
method = { name = "fedhide", alpha = 0.5, neighbours = 3 }
paper = { "p@1" = [58.0, 1.8], leak = 9.6, cos_mean = 0.5 }
[[variant]]
title = "fixed"
method = { name = "fixed" }
paper = { "p@1" = 50.0, about = true }
"""
FAR = '[data]\nname = "{}"\npath = "data"\n[method]\nname = "fixed"\n'


@pytest.fixture
def selfsame(monkeypatch, tmp_path, call):
    """The command beside a folder of recipes, of which one can be run."""
    monkeypatch.chdir(tmp_path)
    Path("mine").mkdir()
    Path("mine/fedhide-cifar100.toml").write_text(SMALL)
    Path("mine/fedhide-voxceleb1.toml").write_text(FAR.format("voxceleb"))
    Path("mine/fedhide-vggface2.toml").write_text(FAR.format("vggface2"))
    Path("empty").mkdir()
    return call


def test_a_table_is_repeated_as_far_as_the_data_go(selfsame, monkeypatch):
    words = ("paper", "fedhide", "--table", "4", "--recipes", "mine", "--path", Path("empty").absolute(), "--out", "p")
    code, out, err = selfsame(*words, "--quiet")
    assert code == 0, err
    assert "not run: fedhide-voxceleb1: " in err and "not run: fedhide-vggface2: " in err
    plain = json.loads(Path("p/table-4.json").read_text())
    text = Path("p/table-4.md").read_text()
    assert text == exhibit_markdown(plain)
    assert max(map(len, out.split("FedHide(0.5), seed")[0].splitlines())) <= 80  # up to the warnings
    assert str(Path.cwd()) not in text + json.dumps(plain)  # no place of this machine
    (part,) = plain["parts"]
    assert [one["title"] for one in part["variants"]] == ["FedHide(0.5)", "fixed"]
    hide = part["variants"][0]
    assert list(hide["figures"]) == ["p@1", "leak", "recovered"] and hide["seeds"] == [0, 1]
    value = hide["figures"]["p@1"]
    mean = sum(value["values"]) / 2
    assert value["measured"] == pytest.approx(mean) and value["difference"] == pytest.approx(mean - 58.0)
    half = abs(value["values"][0] - value["values"][1]) / 2
    row = f"| FedHide(0.5) | P@1 % | 58.0 ± 1.8 | {mean:.1f} ± {half:.1f} | {mean - 58:+.1f} | 2 | 2 |"
    assert row in text and "| fixed | P@1 % | ≈ 50.0 |" in text and "Run with selfsame" in text
    assert [one["recipe"] for one in plain["missing"]] == ["fedhide-voxceleb1", "fedhide-vggface2"]
    assert "veri\\_test2.txt" in text.split("## Not run")[1]

    with monkeypatch.context() as patch:
        patch.setattr("selfsame.runs.loop.carry_on", lambda *_, **__: pytest.fail("trained again"))
        assert selfsame(*words, "--quiet") == (code, out, err)
        code, out, _ = selfsame("paper", "fedhide", "--table", 3, "--recipes", "mine", "--out", "p", "--quiet")
    assert (
        code == 0 and "cosine to proxy" in out and "P@1" not in out.split("Run with")[0].split("FedHide(0.5), seed")[0]
    )
    assert "| FedHide(0.5) | cosine to proxy | 0.50 |" in Path("p/table-3.md").read_text()  # of the same runs


def test_nothing_can_be_run(selfsame):
    for name in ("fedaws-table1-cifar10", "fedaws-table1-cifar100"):
        Path(f"mine/{name}.toml").write_text(FAR.format(name.rpartition("-")[2]))
    code, out, _ = selfsame("paper", "fedaws", "--table", "1", "--recipes", "mine", "--path", "empty", "--quiet")
    assert code == 1 and out == "page: runs/paper-fedaws/table-1.md, figures: runs/paper-fedaws/table-1.json\n"
    text = Path("runs/paper-fedaws/table-1.md").read_text()
    assert text.count("wanted: ") == 2 and "## Not run" in text
    assert json.loads(Path("runs/paper-fedaws/table-1.json").read_text())["parts"] == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("nosuch",), "unknown paper 'nosuch'"),
        (("fedhyde",), "did you mean 'fedhide'"),
        (("fedhide", "--table", "9"), "--table 9: fedhide has no recipe for it; there are: --table 3, --table 4"),
        (("fedhide", "--figure", "9"), "--figure 9: fedhide has no recipe"),
        (("fedhide", "--recipes", "empty"), "name the folder of recipes with --recipes"),
    ],
)
def test_bad_input_is_one_line(words, said, selfsame):
    code, out, err = selfsame("paper", *words)
    assert code == 2 and out == "" and said in err and err.count("\n") == 1
    assert not Path("runs").exists()


@pytest.mark.parametrize("paper", PAPERS)
def test_every_exhibit_has_its_recipes(paper):
    for exhibit in find_exhibits(paper):
        for name in exhibit.recipes:
            experiment = read_experiment(recipe_file(Path(__file__).parents[2] / "recipes", name))
            where = {variant.paper.where for variant in experiment.variants}
            number = "4" if exhibit.number.startswith("S") else exhibit.number  # the supplement shows runs of Table 4
            assert any(re.search(rf"(Tables?|Fig\.) .*{number}", one) for one in where), (name, where)
            shown = {key for variant in experiment.variants for key in variant.paper.figures}
            assert not exhibit.figures or not shown or shown & set(exhibit.figures)
    with pytest.raises(SelfsameError):
        find_exhibits(paper, "99")
