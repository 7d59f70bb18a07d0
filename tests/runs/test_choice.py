"""The settings that give away no more than is asked."""

from selfsame.data import load
from selfsame.runs.choice import Candidate, Tried, candidates, kept_within, try_out


def test_every_setting_is_tried_once():
    found = list(candidates(["feduv", "fedhide"], ["clear", "masked"]))
    assert [one.words for one in found[:2]] == ["feduv", "feduv"]
    hidden = {(one.aggregation, one.options["alpha"], one.options["neighbours"]) for one in found[2:]}
    assert hidden == {(way, a, k) for way in ("clear", "masked") for a in (0.0, 0.01) for k in (5, 10)}
    assert len(found) == 10 and found[2].words == "fedhide(alpha=0, neighbours=5)"


def test_those_that_keep_it_by_error_rate():
    def one(leaks, eer, right=0.5):
        return Tried(Candidate("feduv", "clear"), leaks, "", eer, right, 1.0)

    tried = [one(0.1, 0.3), one(0.2, 0.1), one(0.21, 0.0), one(0.0, None), one(0.0, 0.3, 0.9)]
    assert kept_within(tried, 0.2) == [tried[1], tried[4], tried[0], tried[3]]
    assert kept_within(tried, 0.0) == [tried[4], tried[3]]


def test_sums_keep_what_single_updates_give_away():
    federation = load("synthetic", clients=12, samples=5, held_out=2)
    given = {"data": {"name": "synthetic"}, "run": {"rounds": 3, "device": "cpu"}, "local": {"batch": 4}}
    given["net"] = {"name": "lenet", "channels": [4, 4]}
    options = {"code_length": 31, "secrets": "seeded"}
    clear, masked = (try_out(Candidate("feduv", way, options), given, 6, 4, federation) for way in ("clear", "masked"))
    assert clear.leaks == 1 and clear.by == "updates, one update"
    assert masked.leaks <= 1 / 6 + 1e-9
    assert clear.eer is not None and clear.seconds > 0
