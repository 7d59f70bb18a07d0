"""The tables of a paper's page: the paper's figures beside ours, and all others in columns."""

from selfsame.report.exhibit_page import BY_PERSON, FORMAT, QUOTED, UNTIED, exhibit_markdown
from selfsame.report.exhibit_tables import COLLAPSED, part_sheets, said_below, terminal_sheets


def figure(measured=None, paper=None, interval=None, half_range=0.5):
    less = None if None in (measured, paper) else measured - paper
    spread = None if measured is None else half_range
    return {"paper": paper, "paper_spread": None, "about": False, "measured": measured, "half_range": spread,
            "values": [measured], "difference": less, "interval": interval}  # fmt: skip


def variant(title, control="", quoted=False, **figures):
    about = {"title": title, "control": control, "quoted": quoted, "digest": "d", "rounds": 30, "paper_rounds": 60}
    runs = {"seeds": [0, 1], "ended": [True, True], "seconds": [1.0, 2.0]}
    marks = {"diverged": [False, False], "collapsed": [False, False]}
    return {**about, **runs, **marks, "figures": figures}


def part(*variants):
    return {"recipe": "r", "data": "d", "remarks": [], "variants": list(variants), "drawing": None, "replicates": 40}


def by(low, high):
    return {"mean": [low, high], "seeds": [[low, high], [low, high]]}


def page(*parts):
    return {"format": FORMAT, "title": "T", "what": "w", "file": "t", "command": "c", "parts": parts, "timings": {},
            "missing": []}  # fmt: skip


OURS = part(
    variant("A", eer=figure(4.04, interval=by(2.96, 5.04)), leak=figure(100.0)),
    variant("B", "fixed vectors", eer=figure(), leak=figure()),
)
BOTH = part(
    variant("A", vii_c=figure(80.0, 80.9, by(70.0, 90.0)), eer=figure(4.0), eer_seen=figure(3.0)),
    variant("B", vii_c=figure(None, 70.0), eer=figure(), eer_seen=figure()),
    variant("C", "fixed vectors", vii_c=figure(60.0), eer=figure(9.0), eer_seen=figure(8.0)),
)


def test_where_the_paper_prints_nothing_each_variant_is_one_row():
    (sheet,) = part_sheets(OURS)
    assert list(sheet.headings) == ["Variant", "EER new %", "leak (17) %", "Rounds", "Seeds"]
    assert sheet.rows == [
        ["A", "4.0 ± 0.5 [3.0, 5.0]", "100.0 ± 0.5", "30 of 60", "0, 1"],
        ["B (control)", "–", "–", "30 of 60", "0, 1"],
    ]
    text = exhibit_markdown(page(OURS))
    assert "Difference" not in text and BY_PERSON.format(40) in text


def test_what_the_paper_prints_stands_beside_ours_and_the_rest_below():
    first, second = part_sheets(BOTH)
    assert [row[1:5] for row in first.rows] == [
        ["accuracy (VII-C) %", "80.9", "80.0 ± 0.5 [70.0, 90.0]", "-0.9"],
        ["accuracy (VII-C) %", "70.0", "–", "–"],
        ["accuracy (VII-C) %", "–", "60.0 ± 0.5", "–"],
    ]
    assert list(second.headings) == ["Variant", "EER new %", "EER seen %"]
    assert second.rows == [["A", "4.0 ± 0.5", "3.0 ± 0.5"], ["C (control)", "9.0 ± 0.5", "8.0 ± 0.5"]]
    text = exhibit_markdown(page(BOTH))
    assert "\n\nFigures that the paper does not report:\n\n| Variant | EER new % |" in text
    assert "Difference: measured less paper." in text and "Recovered:" not in text
    assert "In brackets" not in exhibit_markdown(page(part(variant("A", eer=figure(1.0)))))


def test_a_papers_figure_has_the_digits_that_it_prints():
    """Ours, and the difference, have those that are measured."""
    told = {**figure(81.0, 80.88), "paper_spread": 0.03, "difference": 81.0 - 80.88}
    for sheets in (part_sheets, terminal_sheets):
        (sheet,) = sheets(part(variant("A", vii_c=told)))
        assert sheet.rows[0][2:5] == ["80.88 ± 0.03", "81.0 ± 0.5", "+0.1"]


def test_a_quoted_row_has_the_papers_figure_alone():
    quoted = {**variant("SLEEC", "", True, leak=figure(None, 90.5), eer=figure()), "seeds": [], "ended": []}
    found = part(variant("A", leak=figure(80.0, 92.1), eer=figure(4.0)), {**quoted, "diverged": [], "collapsed": []})
    first, second = part_sheets(found)
    assert first.rows[1] == ["SLEEC", "leak (17) %", "90.5", "–", "–", "–", "quoted"]
    assert [row[0] for row in second.rows] == ["A"]
    assert QUOTED in exhibit_markdown(page(found)) and QUOTED not in exhibit_markdown(page(part(variant("A"))))


def test_a_page_of_unknown_settings_says_so():
    found = variant("A", eer=figure(4.0))
    assert UNTIED in exhibit_markdown(page(part({**found, "digest": ""})))
    assert UNTIED not in exhibit_markdown(page(part(found)))


def test_seeds_with_different_people_show_an_interval_each():
    apart = {"mean": None, "seeds": [[1.0, 3.0], [2.0, 4.0]]}
    found = part(variant("A", eer=figure(2.5, interval=apart)))
    assert part_sheets(found)[0].rows[0][1] == "2.5 ± 0.5 [1.0, 3.0]; [2.0, 4.0]"
    assert "each seed has an interval of its own" in exhibit_markdown(page(found))


def test_a_terminal_has_few_figures_side_by_side_and_intervals_below():
    keys = ("p@1", "eer_seen", "auroc", "eer", "leak", "recovered")
    found = part(variant("A", **{key: figure(50.0, interval=by(40.0, 60.0)) for key in keys}))
    first, second = terminal_sheets(found)
    assert len(first.headings) == 5 and list(second.headings)[-2:] == ["Rounds", "Seeds"]
    assert first.rows[0][1] == "50.0 ± 0.5\n[40.0, 60.0]"
    shown = [heading.replace("\n", " ") for sheet in (first, second) for heading in sheet.headings]
    assert {"P@1 %", "EER new %", "leak (17) %"} <= set(shown)


def test_what_became_of_a_run_stands_in_its_row():
    def seeds(**marks):
        (sheet,) = part_sheets(part({**variant("A", eer=figure(4.0)), **marks}))
        return sheet.rows[0][-1]

    assert seeds(collapsed=[False, True]) == "0, 1; collapsed: 1"
    assert seeds(collapsed=[True, True]) == "0, 1; collapsed: all"
    assert seeds(seeds=[4], ended=[True], diverged=[False], collapsed=[True]) == "4; collapsed: 4"
    assert seeds(collapsed=[True, True], diverged=[True, False]) == "1; collapsed: 1; diverged: 0"
    assert seeds(ended=[True, False], collapsed=[True, False]) == "0; collapsed: 0; not run: 1"


def test_what_a_collapse_means_is_said_once():
    said = ["A, seed 0: collapsed: P@1 is 1 %", "A, seed 1: collapsed: P@1 is 1 %", "A: 2 client updates were refused"]
    found = {**part(variant("A", eer=figure(4.0))), "remarks": ["How: x.", *said]}
    assert said_below(found) == ["How: x.", said[2], COLLAPSED]
    text = exhibit_markdown(page(found))
    assert text.count("ollapsed") == 1 and COLLAPSED in text
    assert said_below(part(variant("A"))) == []
    assert said_below({**found, "remarks": ["B, seed 0: collapsed: of nobody here"]}) == [
        "B, seed 0: collapsed: of nobody here"
    ]


def test_a_series_is_named_once():
    titles = [f"{kind}, lambda {n}" for kind in ("A", "B, as printed") for n in ("0.1", "0.5", "1.0")]
    found = part(*(variant(title) for title in (*titles, "s = 0", "FedHide(0.5, 1)", "FedHide(0.5, 5)")))
    told = ", ".join([*titles, "s = 0"])

    def said(words):
        (one,) = said_below({**found, "remarks": [words]})
        return one

    brief = "A, lambda 0.1, 0.5, 1.0, B, as printed, lambda 0.1, 0.5, 1.0, s = 0"
    assert said(f"How settings of {told} were chosen: x.") == f"How settings of {brief} were chosen: x."
    assert said(f"Ratio: 10^-2 ({told}); 10^-3 (A, lambda 0.5).") == f"Ratio: 10^-2 ({brief}); 10^-3 (A, lambda 0.5)."
    assert said("Not run yet: A, lambda 0.1; A, lambda 0.5; s = 0.") == "Not run yet: A, lambda 0.1, 0.5; s = 0."
    assert said("A, lambda 0.1, seed 0: 3 updates were refused") == "A, lambda 0.1, seed 0: 3 updates were refused"
    assert said("Left: FedHide(0.5, 1), FedHide(0.5, 5).") == "Left: FedHide(0.5, 1), FedHide(0.5, 5)."
