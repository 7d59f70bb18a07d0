"""`selfsame paper PAGE.json --join OTHER.json`: halves of a page make the page of one call."""

import copy
import json
import shutil
from pathlib import Path

import pytest

from selfsame.errors import SelfsameError
from selfsame.report.exhibit_join import joined
from selfsame.report.exhibit_page import exhibit_markdown

GRID = """
seeds = [0, 1]
[data]
name = "digits"
turns = 1
[run]
rounds = 2
eval_every = 2
device = "cpu"
[local]
batch = 4
[paper]
where = "FedMetric, Fig. 2"
chosen = "as the paper prints them"
[[variant]]
title = "pos"
method = { name = "fedmetric-pos" }
paper = { one_class_auroc = 94.0 }
[[variant]]
title = "proxy"
method = { name = "fedmetric" }
grid = { "method.negative_weight" = [0.1, 0.2, 0.3] }
"""
WORDS = ("paper", "fedmetric", "--figure", "2", "--recipes", "mine", "--quiet", "--bootstrap", "0")


@pytest.fixture(scope="module")
def halves(tmp_path_factory):
    """Pages by folder: all in one call, and two that have each what the other has not, but for one variant.

    The first call trains; the others find the runs that they are to tell of.
    """
    from typer.testing import CliRunner

    from selfsame.cli import app

    folder = tmp_path_factory.mktemp("join")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        Path("mine").mkdir()
        Path("mine/fedmetric-fig2-cifar10.toml").write_text(GRID)
        some = ("pos", "proxy, negative_weight 0.2", "untrained network")
        rest = (
            "proxy, negative_weight 0.1",
            "proxy, negative_weight 0.2",
            "proxy, negative_weight 0.3",
            "fixed vectors",
        )
        calls = {"all": (), "one": some, "two": rest, "runs": rest[:-1], "controls": rest[-1:]}
        for name, only in calls.items():
            told = [word for title in only for word in ("--only", title)]
            for file in Path("all").glob("*/*/result.json"):
                if only and json.loads(file.read_text())["title"].partition(", seed")[0] in only:
                    shutil.copytree(file.parent, Path(name, *file.parent.parts[1:]))
            result = CliRunner().invoke(app, [*WORDS, "--out", name, *told])
            assert result.exit_code == 0, result.output
    return folder


@pytest.fixture
def pages(halves, monkeypatch, tmp_path):
    for name in ("all", "one", "two", "runs", "controls"):
        (tmp_path / name).mkdir()
        for file in (halves / name).glob("figure-2*"):
            (tmp_path / name / file.name).write_bytes(file.read_bytes())
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read(name):
    return json.loads(Path(name, "figure-2.json").read_text())


def timeless(plain):
    """A page without what differs from call to call."""
    (part,) = copy.deepcopy(plain["parts"])
    for variant in part["variants"]:
        variant["seconds"] = [second is not None for second in variant["seconds"]]
    return {**plain, "command": "", "parts": [part]}


@pytest.mark.parametrize(("first", "second"), [("one", "two"), ("two", "one")])
def test_halves_make_the_whole(first, second, pages, call):
    whole, before, other = read("all"), read(first), Path(second, "figure-2.json").read_bytes()
    place = f"{first}/figure-2.json"
    assert call("paper", place, "--join", f"{second}/figure-2.json") == (0, f"page: {first}/figure-2.md\n", "")
    now = read(first)
    assert timeless(now) == timeless(whole)
    assert now["command"].splitlines() == [before["command"], read(second)["command"]]
    assert len(now["parts"][0]["drawing"]["panes"][0]["lines"]) == 5
    text = Path(first, "figure-2.md").read_text()
    assert text == exhibit_markdown(now) and "not run" not in text and "Not run" not in text
    (drawn,) = Path(first).glob("*.svg")
    assert drawn.read_bytes() == Path("all", drawn.name).read_bytes()
    assert Path(second, "figure-2.json").read_bytes() == other
    assert call("paper", place, "--join", f"{second}/figure-2.json")[0] == 0 and read(first) == now  # again


def test_a_page_of_controls_alone_is_a_part_too(pages, call):
    words = ("paper", "one/figure-2.json", "--join", "runs/figure-2.json", "--join", "controls/figure-2.json")
    assert call(*words) == (0, "page: one/figure-2.md\n", "")
    assert timeless(read("one")) == timeless(read("all"))


def test_where_both_tell_the_first_stays(pages):
    one, two = read("one"), read("two")
    shared = two["parts"][0]["variants"][2]
    assert shared["title"] == "proxy, negative_weight 0.2" and all(shared["ended"])
    shared["figures"]["one_class_auroc"]["measured"] = 1.5
    for line in two["parts"][0]["drawing"]["panes"][0]["lines"]:
        if line["title"] == "proxy" and line["from"] == "ours":
            line["y"][line["x"].index(0.2)] = 1.5
    found = joined(one, two)
    assert timeless(found) == timeless(joined(one, read("two"))) and "1.5" not in exhibit_markdown(found)
    assert "| 1.5 ± " in exhibit_markdown(joined(two, one))


def test_what_is_in_neither_is_left(pages):
    one, two = read("one"), read("two")
    third = two["parts"][0]["variants"][3]
    third.update(ended=[False, False])
    third["figures"]["one_class_auroc"].update(measured=None, half_range=None, values=[None, None])
    remarks = joined(one, two)["parts"][0]["remarks"]
    assert "Not run yet: proxy, negative_weight 0.3." in remarks
    assert sum(remark.startswith("Not run yet") for remark in remarks) == 1
    assert sum(remark.startswith("How ") for remark in remarks) == 1


def test_parts_and_lists_of_what_is_missing(pages):
    one, two = read("one"), read("two")
    (part,), gone = two["parts"], {"recipe": "another", "variants": [], "runs": 3}
    two["parts"] = [{**part, "recipe": "another"}]
    found = joined({**one, "missing": [gone]}, two)
    assert [part["recipe"] for part in found["parts"]] == ["fedmetric-fig2-cifar10", "another"]
    assert found["missing"] == []
    assert joined({**one, "missing": [gone]}, read("two"))["missing"] == [gone]


def facts_of(listed):
    return joined_remarks([f"Exposure ratio (3.2): {listed}."])


def joined_remarks(*pages):
    from selfsame.report.exhibit_join import _remarks

    titles = ("s 1", "s 1, x", "f(0.5, 1)", "f(0.5, 5)")
    plain = {"ended": [True], "rounds": 2, "paper_rounds": None, "recipe_rounds": 2, "quoted": False}
    return _remarks(pages[0], pages[1] if len(pages) > 1 else [], [{**plain, "title": title} for title in titles])


def test_titles_with_commas_and_brackets():
    """They are told apart in lists, and each stands there once, in the table's order."""
    one = ["Exposure ratio (3.2): 10^-1 (f(0.5, 5), s 1, x); 10^-2 (f(0.5, 1))."]
    two = ["Exposure ratio (3.2): 10^-1 (s 1); 10^-2 (f(0.5, 1))."]
    assert joined_remarks(one, two) == ["Exposure ratio (3.2): 10^-1 (s 1, s 1, x, f(0.5, 5)); 10^-2 (f(0.5, 1))."]
    warned = ["s 1, x, seed 0: y", "f(0.5, 1): 2 client updates were refused"]
    assert joined_remarks([*warned, "Run with a."], ["s 1, seed 0: z", "Run with a.", "Run with b."]) == [
        "s 1, seed 0: z", *warned, "Run with a.", "Run with b.",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda page, part: page.update(paper="fedhide"), "pages of another paper each: fedmetric and fedhide"),
        (lambda page, part: page.update(exhibit="Figure 3"), "pages of another table or figure each: Figure 2 and Fig"),
        (lambda page, part: part.update(changed=["--rounds 7"]), "the command line set another each: nothing and --ro"),
        (lambda page, part: part.update(replicates=200), "the number of replicates is another each: 0 and 200"),
        (
            lambda page, part: part["variants"][0]["settings"]["run"].update(rounds=7),
            "fedmetric-fig2-cifar10: pos: was run with another run.rounds each",
        ),
        (lambda page, part: part["variants"][0].update(digest="x"), "pos: the recipe says another thing of it each"),
        (lambda page, part: part["variants"][0].update(seeds=[0, 7]), "pos: seeds are [0, 1] and [0, 7]"),
        (
            lambda page, part: part["drawing"]["panes"][0].update(ticks=["a"]),
            "drawings name other places each: [] and ['a']",
        ),
    ],
)
def test_pages_that_do_not_belong_together(change, said, pages):
    one, two = read("one"), read("two")
    change(two, two["parts"][0])
    with pytest.raises(SelfsameError) as raised:
        joined(one, two)
    assert said in str(raised.value)


def test_bad_input_is_one_line_and_changes_nothing(pages, call):
    before = {file: file.read_bytes() for file in Path("one").iterdir()}
    for words, said in (
        (("one/figure-2.json", "--join", "two/nosuch.json"), "nosuch.json"),
        (("fedmetric", "--join", "two/figure-2.json"), "--join: joins pages that are there"),
    ):
        code, out, err = call("paper", *words)
        assert (code, out) == (2, "") and said in err and err.count("\n") == 1
    two = read("two")
    two["parts"][0]["replicates"] = 7
    Path("two/figure-2.json").write_text(json.dumps(two))
    code, out, err = call("paper", "one/figure-2.json", "--join", "two/figure-2.json")
    assert (code, out) == (2, "") and err.count("\n") == 1
    assert err.startswith("selfsame: one/figure-2.json and two/figure-2.json: fedmetric-fig2-cifar10: the number of")
    assert {file: file.read_bytes() for file in Path("one").iterdir()} == before
