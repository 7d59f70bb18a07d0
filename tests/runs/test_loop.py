"""The loop of a run: hooks end blocks where they are due, in their order, and blocks change no result."""

import pytest
import torch

from selfsame.config.recipe import from_mapping, merged
from selfsame.data import load
from selfsame.report.words import finding_words
from selfsame.runs import loop
from selfsame.runs.hooks import Hook, Joining, Regular, keep, look, usual_hooks
from selfsame.runs.loop import carry_on
from selfsame.runs.run import start


@pytest.fixture(scope="module")
def digits():
    return load("digits", turns=1)


def a_run(digits, **tables):
    given = {
        "method": {"name": "fixed"},
        "data": {"name": "digits", "turns": 1},
        "run": {"rounds": 10, "eval_every": 4, "checkpoint_every": 3, "device": "cpu"},
        "local": {"batch": 4},
    }
    return start(from_mapping(merged(given, tables)), None, digits)


class Watching(Hook):
    def __init__(self, until=99):
        self.seen, self.until = [], until

    def before(self, run):
        self.seen.append(-run.state.round)

    def after(self, run, done):
        self.seen.append(run.state.round)
        assert done.first + len(done.losses) == run.state.round
        return run.state.round < self.until


def test_blocks_end_where_a_hook_is_due(digits, monkeypatch):
    watching = Watching()
    monkeypatch.setattr(loop, "usual_hooks", lambda *given: [*usual_hooks(*given), watching])
    run = carry_on(a_run(digits, cohort={"late": 0.4, "join_round": 5}))
    assert watching.seen == [0, 3, -3, 4, -4, 5, -5, 6, -6, 8, -8, 9, -9, 10]
    assert [record["round"] for record in run.history] == [4, 8, 10]


def test_a_hook_can_end_a_run_and_those_after_it_are_not_asked(digits, monkeypatch):
    first, second = Watching(until=2), Watching()
    monkeypatch.setattr(loop, "usual_hooks", lambda *_: [Regular(1, look), first, second])
    run = carry_on(a_run(digits))
    assert run.state.round == 2 and not run.done
    assert (first.seen, second.seen) == ([0, 1, -1, 2], [0, 1, -1])


def test_plans_in_pieces_change_nothing(digits, monkeypatch):
    whole = carry_on(a_run(digits))
    monkeypatch.setattr(loop, "_PLAN", 1)
    pieces = carry_on(a_run(digits))
    assert torch.equal(whole.state.theta_P, pieces.state.theta_P)
    assert [record["loss"] for record in whole.history] == [record["loss"] for record in pieces.history]


def test_due(digits):
    run = a_run(digits, cohort={"late": 0.4, "join_round": 5})
    run.state.round = 4
    assert (Regular(3, keep).due(run), Regular(4, keep).due(run), Joining(5).due(run), Hook().due(run)) == (6, 8, 5, 10)
    run.state.round = 5
    assert Joining(5).due(run) == 10
    assert Joining(5).due(a_run(digits)) == 10  # nobody is late


@pytest.mark.parametrize(
    ("finding", "words"),
    [
        ({"kind": "collapsed", "alike": 0.99, "p@1": 0.25, "classes": 4}, "mean cosine of 0.990, P@1 is 25.0 % and"),
        ({"kind": "collapsed", "alike": None, "p@1": None, "classes": 4}, "collapsed: P@1 is 0.0 % and chance 25.0 %"),
        ({"kind": "diverged", "first": 3, "round": 6, "local_lr": 0.1, "server_lr": 1.0}, "between rounds 3 and 6"),
        ({"kind": "refused", "count": 7}, "7 client updates were refused"),
    ],
)
def test_findings_have_words(finding, words):
    assert words in finding_words(finding)


@pytest.mark.parametrize(
    ("record", "collapsed"),
    [
        ({"p@1": 0.655, "auroc": 0.904, "alike": 0.96}, False),  # close together, and told apart all the same
        ({"p@1": 0.655, "auroc": None, "alike": 0.99}, False),
        ({"p@1": 0.14, "auroc": 0.82, "alike": 0.999}, True),
        ({"p@1": 0.14, "auroc": 0.5, "alike": 0.2}, True),
        ({"p@1": 0.14, "auroc": 0.9, "alike": 0.2}, False),
        ({"p@1": None, "auroc": 0.5, "alike": 0.99}, True),
        ({"p@1": None, "auroc": 0.9, "alike": 0.99}, False),
        ({"p@1": None, "auroc": None, "alike": None}, False),
    ],
)
def test_collapse_is_judged_by_what_is_got_right(record, collapsed, digits):
    assert a_run(digits)._tells_nobody_apart(record) is collapsed


def test_the_cause_fits_the_run(digits):
    def cause(name, *losses, rounds=600, **options):
        run = a_run(digits, method={"name": name, **options}, run={"rounds": rounds})
        run.history = [{"round": number, "loss": loss} for number, loss in enumerate(losses)]
        return run._cause()

    assert cause("positive-only", 1.0, 0.5)["cause"] == "method"
    rose = cause("fedhide", 1.0, 0.5, 2.0)
    assert (rose["cause"], rose["least"], rose["loss"]) == ("rate", 0.5, 2.0) and rose["local_lr"] > 0
    assert cause("fedhide", 2.0, 1.0)["cause"] == "rounds"
    assert cause("fedhide", 1.0, rounds=20)["cause"] == "rounds"  # nothing else is to be learnt from so few
    level = cause("fedhide", 1.0, 0.5, 0.5)
    assert (level["cause"], level["weight"]) == ("weight", "negative_weight") and level["value"] > 0
    assert cause("fedaws", 1.0, 0.5, 0.5, neighbours=1)["weight"] == "spread_weight"
