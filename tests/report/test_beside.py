"""An experiment's table: means and half ranges recomputed, the paper beside, failures and other rounds said."""

import io
import json
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from selfsame.config.experiment import FIGURES, Paper, Variant
from selfsame.config.recipe import from_mapping
from selfsame.report.beside import (
    CHOSEN,
    Row,
    beside_cells,
    beside_markdown,
    beside_plain,
    beside_remarks,
    beside_table,
    figures_of,
)
from selfsame.report.view import RunView

PAPER = Paper({"p@1": (58.0, 1.8), "leak": (9.6, None)}, "FedHide, Table 4", 100)


def ended(right, leak=0.1, **changes):
    final = {"p@1": right, "leak": leak, "recovered": 1.0, "cos_mean": 0.1449}
    return RunView(title="x", method="fedhide", final=final, facts={"torch": "2", "machine": "m"}, **changes)


def diverged():
    return ended(0.99, warnings=[{"kind": "diverged", "words": "diverged: loss stopped being finite"}])


def row(*views, title="FedHide", paper=PAPER, rounds=100, own_rounds=100):
    plan = from_mapping({"run": {"rounds": rounds}})
    return Row(Variant(1, title, plan, tuple(range(len(views))), paper, own_rounds), views)


def printed(rows, width=200):
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(beside_table(rows))
    return console.export_text()


@given(st.lists(st.floats(0, 1), min_size=1, max_size=5))
def test_mean_half_range_and_difference(rights):
    found = row(*map(ended, rights))
    mean, half = found.measured("p@1")
    assert mean == pytest.approx(100 * statistics.fmean(rights))
    assert found.difference("p@1") == pytest.approx(100 * statistics.fmean(rights) - 58)
    if len(rights) == 1:
        assert half is None
    else:
        assert half == pytest.approx(50 * (sorted(rights)[-1] - sorted(rights)[0]))


@pytest.mark.parametrize(
    ("value", "spread", "words"),
    [
        (80.88, None, "80.88"),
        (80.55, None, "80.55"),
        (10.4, 0.03, "10.4 ± 0.03"),
        (58.0, 1.81, "58.0 ± 1.81"),
        (58, 0.0, "58.0 ± 0.0"),
        (100.0, 1e-3, "100.0 ± 0.001"),
    ],
)
def test_a_papers_figure_as_it_is_printed(value, spread, words):
    paper = Paper({"p@1": (value, spread)})
    assert beside_cells(row(ended(0.5), paper=paper), "p@1")[0] == words
    assert f"| {words} |" in beside_markdown([row(ended(0.5), paper=paper)], "t")


def test_how_settings_were_chosen():
    """What holds for most comes first, without names."""
    said = {"A": "x", "B": "y", "C": "y", "D": ""}
    rows = [row(ended(0.5), title=title, paper=Paper(chosen=words)) for title, words in said.items()]
    assert beside_remarks(rows)[:2] == ["How settings were chosen: y.", "How settings of A were chosen: x."]
    assert [one["chosen"] for one in beside_plain(rows, "t")["variants"]] == ["x", "y", "y", ""]
    assert not [one for one in beside_remarks(rows[3:]) if "chosen" in one]


def test_what_a_command_line_sets_and_how_it_was_chosen():
    """The recipe's words on its choice do not hold for what is set over them."""
    rows = [row(ended(0.5), paper=Paper(chosen="x"))]
    plain, told = ["local.lr=0.3", "--rounds 7"], f"{CHOSEN}on people set apart"
    assert "Set on the command line: local.lr=0.3, --rounds 7." in beside_remarks(rows, plain)
    said = "Set on the command line: local.lr=0.3, --rounds 7. How these were chosen: on people set apart."
    assert said in beside_remarks(rows, [*plain, told])
    assert beside_remarks(rows, [*plain, told])[0] == "How the recipe's own settings were chosen: x."
    assert not [one for one in beside_remarks(rows) if "command line" in one]


def test_cells():
    assert beside_cells(row(ended(0.59), ended(0.60)), "p@1") == ("58.0 ± 1.8", "59.5 ± 0.5", "+1.5")
    assert beside_cells(row(ended(0.5799999)), "p@1") == ("58.0 ± 1.8", "58.0", "+0.0")
    assert beside_cells(row(ended(0.5)), "recovered") == ("–", "100.0", "–")
    assert beside_cells(row(ended(0.5)), "cos_mean") == ("–", "0.14", "–")
    assert beside_cells(row(None), "p@1") == ("58.0 ± 1.8", "–", "–")
    plot = Paper({"p@1": (58.0, None)}, "Fig. 3", 100, True)
    assert beside_cells(row(ended(0.5), paper=plot), "p@1") == ("≈ 58.0", "50.0", "-8.0")


def test_failures_are_shown_and_not_averaged():
    found = row(ended(0.6), diverged(), None)
    assert found.measured("p@1") == (pytest.approx(60), None)
    assert found.runs == "2 of 3, 1 diverged"
    assert row(diverged()).runs == "1, diverged"
    assert (
        row(ended(0.6, warnings=[{"kind": "collapsed", "words": "collapsed: all in one point"}]), ended(0.5)).runs
        == "2, 1 collapsed"
    )
    assert "FedHide, seed 1: diverged: loss stopped being finite" in beside_remarks([found])
    assert "1 diverged" in printed([found]) and "1 diverged" in beside_markdown([found], "x")
    assert "FedHide: diverged: loss stopped being finite" in beside_remarks([row(diverged())])


def test_other_rounds_are_said():
    same, short = row(ended(0.5)), row(ended(0.5), rounds=5)
    silent = row(ended(0.5), paper=Paper(rounds=0))
    cut = row(ended(0.5), paper=Paper(rounds=0), rounds=5)
    own = row(ended(0.5), paper=Paper(), rounds=5)
    assert [r.rounds for r in (same, short, silent, cut, own)] == [
        "100",
        "5 (paper: 100)",
        "100 (paper: not said)",
        "5 (recipe: 100, paper: not said)",
        "5 (paper: 100)",
    ]
    assert not any("rounds differ" in remark for remark in beside_remarks([same, silent]))
    assert any(
        "In 2 of 3 trained variants the rounds differ" in remark for remark in beside_remarks([same, short, cut])
    )
    assert not any("rounds differ" in remark for remark in beside_remarks([row(None, rounds=5)]))


def test_remarks_say_what_was_set_what_is_missing_and_where_it_ran():
    said = beside_remarks([row(ended(0.5)), row(None, title="later")], ["local.lr=1", "--rounds 5"])
    assert said == [
        "Set on the command line: local.lr=1, --rounds 5.",
        "Not run yet: later.",
        "Run with torch 2, machine m.",
    ]


def test_which_figures():
    assert figures_of([row(ended(0.5))]) == ["p@1", "leak", "recovered"]
    assert figures_of([row(ended(0.5), paper=Paper({"cos_mean": (0.1, None)}))]) == ["cos_mean"]
    assert figures_of([row(ended(0.5), paper=Paper())]) == ["p@1", "leak", "recovered"]
    newer = ended(0.5)
    newer.final["p@1_shared"] = 0.0692
    assert figures_of([row(newer)]) == ["p@1", "leak", "recovered", "p@1_shared"]
    assert beside_cells(row(newer), "p@1_shared") == ("–", "6.9", "–")
    assert figures_of([row(None, paper=Paper())]) == ["p@1"]
    assert figures_of([row(RunView(title="x", method="m", final={"eer": 0.1}), paper=Paper())]) == ["eer"]


def test_the_table_fits_a_narrow_terminal_and_titles_are_no_markup():
    text = printed([row(ended(0.59), ended(0.60), title="[red]x[/red]")], 80)
    assert "[red]x[/red]" in text.replace("\n", "") and "59.5 ± 0.5" in text and "+1.5" in text
    assert max(map(len, text.splitlines())) <= 80


def test_markdown_keeps_its_columns():
    text = beside_markdown([row(ended(0.5), title="a|b *c*"), row(None, title="later")], "re_cipe")
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len(lines) == 2 + 2 * 3
    assert {line.replace("\\|", "").count("|") for line in lines} == {9}
    assert "a\\|b \\*c\\*" in text and text.startswith("# re\\_cipe\n") and text.endswith("\n")
    assert text.count("FedHide, Table 4") == 4  # not beside the recovered share, which the paper lacks


def test_json_has_every_seed():
    plain = beside_plain([row(ended(0.5), diverged(), None)], "name", ["a=1"])
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    (variant,) = plain["variants"]
    assert (variant["seeds"], variant["ended"], variant["diverged"]) == (
        [0, 1, 2],
        [True, True, False],
        [False, True, False],
    )
    figure = variant["figures"]["p@1"]
    assert figure["values"] == [50.0, None, None]
    assert (figure["paper"], figure["paper_spread"], figure["measured"], figure["difference"]) == (
        58.0,
        1.8,
        50.0,
        -8.0,
    )
    assert (variant["rounds"], variant["paper_rounds"], plain["changed"]) == (100, 100, ["a=1"])
    assert set(variant["figures"]) <= set(FIGURES)


def test_what_a_method_says_of_itself_stands_below_the_table():
    def told(words):
        return RunView(title="x", method="fedmetric", final={}, facts={"exposure ratio (3.2)": words})

    rows = [row(told("10^-12.7"), None, title="proxy"), row(told("10^-12.7"), title="lambda 1"), row(ended(0.5))]
    said = "Exposure ratio (3.2): 10^-12.7 (proxy, lambda 1); 10^-9.6 (s 1)."
    assert said in beside_remarks([*rows, row(told("10^-9.6"), title="s 1")])
    assert not any("xposure" in line for line in beside_remarks(rows[2:]))
