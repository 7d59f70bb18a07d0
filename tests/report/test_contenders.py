"""Settings side by side: who wins, what is said of it, and the recipe that is written."""

import re
import tomllib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from selfsame.config.ladders import laid, points, read_ladders
from selfsame.config.recipe import from_mapping
from selfsame.report.alike import alike_sheet
from selfsame.report.contenders import (
    JUDGES,
    Contender,
    Contest,
    chosen_text,
    contest_markdown,
    contest_page,
    contest_sheet,
    how,
    remarks,
)  # fmt: skip

LADDERS = tuple(read_ladders(["local.lr=0.1,0.3", "alpha=0.01,0.1"]))


def contest(values, by="eer", rungs=(), rounds=None):
    found = [
        Contender(point, tuple(some), (rounds or [60] * len(values))[number], number + 1, [history(v) for v in some])
        for number, (point, some) in enumerate(zip(points(LADDERS), values))
    ]
    found.sort(key=lambda one: (-one.round, one.rank(JUDGES[by])))
    return Contest("small.toml", LADDERS, by, "3 of 14 people", tuple(range(len(values[0]))), rungs, tuple(found))


def history(value):
    return [{"round": 30, "eer": 0.4}] + ([] if value is None else [{"round": 60, "eer": value}])


SEEDS = [(0.20, 0.22), (0.10, 0.30), (0.15, 0.17), (0.01, None)]


def test_the_smallest_mean_wins_and_who_diverged_once_does_not():
    found = contest(SEEDS)
    assert [one.number for one in found.contenders] == [3, 2, 1, 4]
    assert found.best.number == 3 and found.best.mean == pytest.approx(0.16)
    assert [row[1] for row in contest_sheet(found).rows] == [
        "16.00 ± 1.00",
        "20.00 ± 10.00",
        "21.00 ± 1.00",
        "diverged",
    ]
    assert [row[3] for row in contest_sheet(found).rows] == ["chosen", "", "", ""]


@given(st.lists(st.floats(0, 1), min_size=4, max_size=4), st.sampled_from(sorted(JUDGES)))
def test_the_best_is_the_best(values, by):
    found = contest([(value,) for value in values], by)
    wanted = (max if JUDGES[by].larger else min)(values)
    assert found.best.mean == wanted and found.best.number == values.index(wanted) + 1


def test_what_is_said_of_it():
    said = remarks(contest(SEEDS))
    assert said == [
        "local.lr = 0.3 is the largest tried: try larger ones.",
        "method.alpha = 0.01 is the smallest tried: try smaller ones.",
        "1 of 4 settings diverged.",
        "Within the range of the seeds lie also: local.lr = 0.1, alpha = 0.1.",
    ]
    assert "One seed: with --seeds 3" in remarks(contest([(0.2,), (0.1,), (0.3,), (0.4,)]))[-1]
    lost = contest([(None,)] * 4)
    assert lost.best is None and remarks(lost) == ["Every setting diverged: try smaller learning rates."]


def test_early_rounds_that_mislead_are_said():
    rungs = ((4, 20), (2, 60))
    found = contest([(0.2,), (0.1,), (0.15,), (0.3,)], rungs=rungs, rounds=[60, 20, 20, 60])
    assert found.best.number == 1
    assert "Successive halving: 4 settings to round 20, the best 2 to round 60." in how(found)
    assert any(
        said.startswith("2 of the settings that were stopped early had a better figure") for said in remarks(found)
    )


def test_a_choice_by_short_runs_is_said():
    short = replace(contest([(0.2,), (0.1,), (0.3,), (0.4,)]), own_rounds=600)
    (said,) = [line for line in remarks(short) if "short runs" in line]
    assert said.startswith("Chosen after 60 of the recipe's 600 rounds")
    tried = tuple(replace(one, point={"run.rounds": 60 * one.number}) for one in short.contenders)
    by_rounds = replace(short, ladders=tuple(read_ladders(["run.rounds=60,120,180,240"])), contenders=tried)
    for other in (replace(short, own_rounds=60), by_rounds):
        assert not any("short runs" in line for line in remarks(other))


def test_tables_fit_a_terminal():
    many = tuple(read_ladders([f"{key}=0.00001,0.0003" for key in ("local.lr", "alpha", "server.lr", "local.decay")]))
    found = [Contender(point, (0.123, 0.456), 100_000, number) for number, point in enumerate(points(many))]
    console = Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(contest_sheet(Contest("x", many, "eer", "", (0, 1), (), tuple(found))).terminal())
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= 80 and "28.95 ± 16.65" in text and "local.decay = 0.0003" in text


def test_the_chosen_recipe_says_how_and_is_the_recipe():
    found = contest(SEEDS)
    recipe = laid(from_mapping({"method": {"name": "fedhide"}, "title": "a\nb"}), found.best.point)
    text = chosen_text(found, recipe)
    assert from_mapping(tomllib.loads(text)) == recipe
    comments = [line for line in text.splitlines() if line.startswith("#")]
    assert comments[0] == "# Chosen by `selfsame tune small.toml`." and max(map(len, comments)) <= 120
    head = "\n".join(comments)
    assert "people set apart (3 of 14 people), seeds 0, 1; nothing" in head
    for one in found.contenders:
        assert f"#   {one.words}: {one.shown('eer')}, round 60" in head
    assert not re.search(r"20\d\d-\d\d", text)


def test_a_file_name_cannot_leave_its_comment():
    found = contest(SEEDS)
    odd = Contest('x\n[run]\nrounds = "no"', *(getattr(found, name) for name in list(found.__dataclass_fields__)[1:]))
    assert "run" in tomllib.loads(chosen_text(odd, from_mapping({})))


def test_markdown_and_page():
    found = contest(SEEDS)
    text = contest_markdown(found)
    assert (
        "| local.lr = 0.3, alpha = 0.01 | 16.00 ± 1.00 | 60 | chosen |" in text
        and "- Judged by the smallest EER" in text
    )
    page = contest_page(found)
    assert page.count("<figure>") == 3 and "16.00 ± 1.00" in page and "<script" not in page
    nothing = contest([(None,)] * 4)
    assert contest_page(nothing).count("<figure>") == 1  # the rounds before they diverged


@pytest.mark.parametrize(("by", "span"), [("eer", "20.00 to 40.00"), ("p@1", "10.00 to 30.00")])
def test_the_other_settings_are_told_from_the_smallest_to_the_largest(by, span):
    """Before, from the worst to the best: of an error, the larger first."""
    (row,) = alike_sheet([contest([(0.2,), (0.1,), (0.4,), (0.3,)], by)]).rows
    assert row[3] == span
    (row,) = alike_sheet([contest([(0.2,), (0.1,), (None,), (None,)], by)]).rows
    assert row[3] == {"eer": "20.00; 2 diverged", "p@1": "10.00; 2 diverged"}[by]
