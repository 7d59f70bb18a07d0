"""How long a run will take, by rounds whose times are known; and the lines where there is no terminal."""

import io
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

from selfsame.config.recipe import from_mapping
from selfsame.report.words import span_words
from selfsame.runs import watching
from selfsame.runs.watching import Pace, estimate_words, shorter, watched


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def a_run(rounds=600, clients=55, side=64, size=0, data="imagefolder", device="cpu", compiled=False):
    recipe = from_mapping({"data": {"name": data}, "run": {"rounds": rounds}, "cohort": {"size": size}})
    federation = SimpleNamespace(clients=clients, shape=(3, side, side))
    model = SimpleNamespace(device=torch.device(device), compiled=compiled)
    problem = SimpleNamespace(federation=federation, model=model)
    return SimpleNamespace(recipe=recipe, problem=problem, state=SimpleNamespace(round=0), title="fedhide")


def test_the_first_round_is_left_out():
    clock = Clock()
    pace = Pace(100, 0, clock=clock)
    for took in (1.5, 0.5, 0.5, 0.5):
        clock.now += took
        pace.add(1)
        assert pace.each is None
    clock.now += 0.5
    pace.add(1)
    assert pace.each == pytest.approx(0.5) and pace.left == pytest.approx(0.5 * 95)


def test_one_long_round_says_enough():
    clock = Clock()
    pace = Pace(600, 0, clock=clock)
    clock.now += 57
    pace.add(1)
    assert pace.each == pytest.approx(57) and pace.left == pytest.approx(57 * 599)
    words = estimate_words(a_run(), pace)
    assert words.startswith("about 9.5 h for 599 rounds of 57 s; shorter: ")
    assert "--set cohort.size=10 (of 55 people per round)" in words and "--set data.size=32 (now 64)" in words
    assert "--rounds 6 (about 5 min)" in words


def test_what_would_make_it_shorter_fits_the_run():
    ways = shorter(a_run(clients=12, side=32, rounds=1000), 3000.0)
    assert ways == ["--rounds 100 (about 5 min)"]
    assert "data.size" not in " ".join(shorter(a_run(data="digits"), 3000.0))


def test_a_short_run_needs_no_estimate():
    clock = Clock()
    pace = Pace(10, 0, clock=clock)
    for _ in range(5):
        clock.now += 1
        pace.add(1)
    assert estimate_words(a_run(rounds=10), pace) == ""


def lines(monkeypatch, rounds, seconds, first=None, **run):
    """What is printed of rounds that take so long each, the first perhaps longer."""
    clock, out = Clock(), io.StringIO()
    monkeypatch.setattr(watching.time, "monotonic", clock)
    monkeypatch.setattr(watching.Pace.__init__, "__defaults__", (False, clock))
    with watched(a_run(rounds, **run), console=Console(file=out, width=200)) as tick:
        for number in range(rounds):
            clock.now += (first or seconds) if number == 0 else seconds
            tick(1, {"loss": 1.25, "eer": 0.1} if number == 0 else None)
        clock.now += 60  # the last look at it takes its time
        tick(0, {"loss": 1.0, "eer": 0.05})
    return out.getvalue().splitlines()


def test_a_line_every_tenth(monkeypatch):
    found = lines(monkeypatch, 200, 0.5)
    assert found[0] == "about 2 min for 195 rounds of 0.5 s"
    assert found[1].startswith("fedhide: round 20 of 200 (10 %), about ")
    assert found[1].endswith("left, loss 1.250  EER 10.0 %") and len(found) == 11


@pytest.mark.parametrize("run", [{"device": "cuda"}, {"compiled": True}])
def test_what_compiles_in_its_first_round_is_told_of_by_the_next(run, monkeypatch):
    """27 s once, and 4 ms a round: not four days."""
    told = lines(monkeypatch, 12_000, 0.004, first=27.0, **run)
    assert told[0] == "about 46 s for 11,498 rounds of 4 ms"
    assert lines(monkeypatch, 600, 0.004, first=27.0, **run)[0].startswith("fedhide: round ")
    assert lines(monkeypatch, 600, 57, **run)[1].startswith("about 9.5 h for 598 rounds of 57 s; shorter: ")
    assert lines(monkeypatch, 600, 57)[0].startswith("about 9.5 h for 599 rounds of 57 s; shorter: ")


def test_a_line_every_half_minute(monkeypatch):
    found = lines(monkeypatch, 100, 7.0)
    told = [line for line in found if line.startswith("fedhide")]
    assert len(told) == 100 // 5 and told[0].startswith("fedhide: round 5 of 100 (5 %)")


def test_quick_runs_say_that_they_have_ended(monkeypatch):
    assert lines(monkeypatch, 600, 0.004) == ["fedhide: round 600 of 600 (100 %), loss 1.000  EER 5.0 %"]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.0042, "4.2 ms"),
        (0.0, "0.0 s"),
        (0.21, "0.2 s"),
        (45, "45 s"),
        (120, "2 min"),
        (3000, "50 min"),
        (34_200, "9.5 h"),
        (400_000, "5 days"),
    ],
)
def test_spans(seconds, words):
    assert span_words(seconds) == words
