"""The pages in headless Chromium: nothing sticks out at any width, the console is silent, no network is asked.

Needs Chromium, Node and the npm package playwright-core, in node_modules here or in the folder that
SELFSAME_WEB_PACKAGES names. Screenshots and PDFs are left in build/pages.
"""

import dataclasses
import json
import subprocess
from pathlib import Path

import pytest

from selfsame.config.recipe import from_mapping
from selfsame.data import load
from selfsame.report.evaluation import evaluation_page
from selfsame.report.html import training_page
from selfsame.runs.assess import assess
from selfsame.runs.loop import carry_on
from selfsame.runs.run import start
from selfsame.runs.summary import view

ROOT = Path(__file__).parents[2]
DRIVER = Path(__file__).with_name("web") / "look.mjs"
WIDTHS = (390, 1280, 1920)
METHODS = ("fedhide", "fedcrowd", "feduv", "fedaws", "fedmetric")
FINDING = {
    "attacker": "differences", "did": "2 networks, unseen", "who": "server", "under": "masked", "identified": 0.5,
    "cosine": -0.27, "chance": 0.071, "rounds": 30, "said": "the best of 32 ways of weighing", "seconds": 0.2,
    "applies": True,
}  # fmt: skip


def trained(name, digits, aggregation):
    given = {
        "method": {"name": name}, "data": {"name": "digits", "turns": 1}, "local": {"batch": 4, "lr": 0.05},
        "run": {"rounds": 8, "eval_every": 2, "device": "cpu"}, "sums": {"aggregation": aggregation},
    }  # fmt: skip
    return carry_on(start(from_mapping(given), None, digits))


def audit_of(run_view):
    rows = [{**FINDING, "applies": number < 4, "did": f"a sum of {number}"} for number in range(8)]
    return {"title": run_view.title, "round": 8, "aggregation": "masked", "findings": rows, "strongest": FINDING}


@pytest.fixture(scope="module")
def seen(browser, tmp_path_factory):
    """What Chromium saw of a run's report, a comparison and an evaluation."""
    folder, shots = tmp_path_factory.mktemp("pages"), ROOT / "build" / "pages"
    shots.mkdir(parents=True, exist_ok=True)
    digits = load("digits", turns=1)
    run = trained("fedcrowd", digits, "masked")
    alone = view(run)
    checked = [{**record, "valid_eer": 0.3, "valid_p@1": 0.4} for record in alone.history]
    alone = dataclasses.replace(alone, audit=audit_of(alone), history=checked)
    several = [view(trained(name, digits, "clear")) for name in METHODS]
    pages = {
        "run": training_page([alone], f"{alone.title} on digits"),
        "compare": training_page(several, f"{len(several)} methods on digits"),
        "evaluation": evaluation_page(assess(run, bootstrap=20)),
    }
    for name, source in pages.items():
        (folder / f"{name}.html").write_text(source, encoding="utf-8")
    asked = {"pages": {name: str(folder / f"{name}.html") for name in pages}, "widths": WIDTHS, "shots": str(shots)}
    node, chromium, packages = browser
    asked |= {"packages": str(packages), "chromium": chromium}
    line = [node, str(DRIVER), json.dumps(asked)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def test_nothing_sticks_out_and_no_words_lie_on_others(seen):
    assert len(seen) == 3 * (2 * (len(WIDTHS) + 1) + 1)
    assert {name: look["faults"] for name, look in seen.items() if look["faults"]} == {}


def test_the_words_of_drawings_can_be_read(seen):
    on_screen = {name: look["smallest"] for name, look in seen.items() if "printed" not in name}
    assert all(on_screen.values())
    assert {name: words for name, words in on_screen.items() if words[0] < 9} == {}


def test_the_console_is_silent_and_nothing_is_asked(seen):
    assert {name: look["said"] for name, look in seen.items() if look["said"]} == {}
    loaded = [url for look in seen.values() for url in look["requests"]]
    assert loaded and all(url.startswith("file:") and url.endswith(".html") for url in loaded)


def test_the_scheme_is_followed_and_paper_is_white(seen):
    for name, look in seen.items():
        dark = name.endswith("dark")
        assert look["paper"] == ("rgb(20, 24, 29)" if dark else "rgb(254, 254, 254)"), name


def test_a_sample_says_whose_it_is(seen):
    said = {
        look["pointed"] for name, look in seen.items() if name.startswith(("run", "compare")) and "print" not in name
    }
    assert said == {True}
