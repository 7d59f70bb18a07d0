"""Figures with people drawn again against plain loops over trials that are written out; intervals over seeds."""

import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from selfsame.data.federation import Samples, Trials
from selfsame.errors import SelfsameError
from selfsame.measure.protocols import Bench, Inapplicable
from selfsame.methods import World, make
from selfsame.runs.beyond import beyond
from selfsame.runs.redrawn import redrawn_new, redrawn_seen, redrawn_users, seeds_interval
from selfsame.streams import host_generator

COUNT = 12
NAMES = tuple(f"person {n}" for n in range(40))


def samples(people, each, seed, noise=0.8):
    """Everybody around a place of their own, in float64, so that loops and tensors agree."""
    rng = np.random.default_rng(seed)
    place = np.random.default_rng(5).normal(size=(people, 4))
    label = np.arange(people).repeat(each)
    return Samples(torch.tensor(place[label] + noise * rng.normal(size=(len(label), 4))), torch.from_numpy(label))


def bench(test=None, unseen=None, trials=None, names=NAMES, classes=11):
    none = Samples(torch.empty(0, 4, dtype=torch.float64), torch.empty(0, dtype=torch.int64))
    there = SimpleNamespace(
        test=test or none, unseen=unseen or none, trials=trials or Trials.none(), class_names=names, shape=(4,)
    )
    truth = torch.tensor(np.random.default_rng(5).normal(size=(classes, 4)))
    world = World(classes, classes, 4, torch.arange(classes))
    return Bench(make("fixed", {}), there, world, truth, lambda part: part, False, 0, 100)


def cosine(one, two):
    lengths = [math.sqrt(sum(value * value for value in side)) for side in (one, two)]
    return sum(a * b for a, b in zip(one, two, strict=True)) / lengths[0] / lengths[1]


def rates(own, other):
    """(EER, AUROC) by counting: straight lines between the thresholds, equal scores count half."""
    points = [(0.0, 1.0)]
    for limit in sorted({*own, *other}, reverse=True):
        false = sum(score >= limit for score in other) / len(other)
        points.append((false, sum(score < limit for score in own) / len(own)))
    for (fpr, fnr), (next_fpr, next_fnr) in itertools.pairwise(points):
        if next_fpr >= next_fnr:
            part = (fnr - fpr) / ((next_fpr - fpr) - (next_fnr - fnr))
            eer = fpr + part * (next_fpr - fpr)
            break
    area = sum((a > b) + (a == b) / 2 for a in own for b in other) / len(own) / len(other)
    return eer, area


def drawn_people(purpose, people):
    """How often each person counts in each replicate."""
    rng = host_generator(0, f"page/{purpose}")
    for _ in range(COUNT):
        times = [0] * people
        for person in rng.integers(people, size=people):
            times[person] += 1
        yield times


def by_loops(trials, people, purpose):
    """EER and AUROC of each replicate from (score, person, person)."""
    found = []
    for times in drawn_people(purpose, people):
        own, other = [], []
        for score, a, b in trials:
            if a == b:
                own += [score] * times[a]
            else:
                other += [score] * (times[a] * times[b])
        found.append(rates(own, other))
    return [list(column) for column in zip(*found, strict=True)]


def percentile(values, at):
    """On the straight line between the two values around it."""
    order, place = sorted(values), at * (len(values) - 1)
    low = math.floor(place)
    high = min(low + 1, len(order) - 1)
    return order[low] + (place - low) * (order[high] - order[low])


def test_the_interval_of_new_people_by_plain_loops():
    """Two seeds with the same people: people are drawn once for both, and the mean has the interval."""
    people, kept, loops = 11, [], []
    for seed in (1, 2):
        some = samples(people, 2, seed)
        kept.append(redrawn_new(bench(unseen=some), COUNT))
        x, y = some.x.tolist(), some.y.tolist()
        pairs = [(cosine(x[i], x[j]), y[i], y[j]) for i in range(len(y)) for j in range(i + 1, len(y))]
        loops.append(by_loops(pairs, people, "new"))
        for key, values in zip(("eer", "auroc"), loops[-1], strict=True):
            assert kept[-1]["figures"][key] == pytest.approx(values, abs=1e-6)
    for key, place in (("eer", 0), ("auroc", 1)):
        found = seeds_interval(key, kept)
        mean = [100 * (a + b) / 2 for a, b in zip(loops[0][place], loops[1][place], strict=True)]
        assert found["mean"] == pytest.approx([percentile(mean, 0.025), percentile(mean, 0.975)], abs=1e-3)
        for one, ends in zip(loops, found["seeds"], strict=True):
            each = [100 * value for value in one[place]]
            assert ends == pytest.approx([percentile(each, 0.025), percentile(each, 0.975)], abs=1e-3)
    assert kept[0]["figures"]["eer"] != kept[1]["figures"]["eer"]


def test_the_interval_of_seen_people_by_plain_loops():
    some = samples(11, 3, 3)
    stand = bench(test=some)
    found = redrawn_seen(stand, COUNT)["figures"]
    x, y, place = some.x.tolist(), some.y.tolist(), stand.truth_RD.tolist()
    score = [[cosine(one, vector) for vector in place] for one in x]
    trials = [(score[s][c], c, y[s]) for s in range(len(y)) for c in range(11)]
    eer, area = by_loops(trials, 11, "seen")
    assert found["eer_seen"] == pytest.approx(eer, abs=1e-6) and found["auroc_seen"] == pytest.approx(area, abs=1e-6)
    right = [float(max(range(11), key=row.__getitem__) == label) for row, label in zip(score, y, strict=True)]
    assert 0 < sum(right) < len(right)
    for value, times in zip(found["p@1"], drawn_people("seen, P@1", 11), strict=True):
        weight = [times[label] for label in y]
        assert value == pytest.approx(sum(w * r for w, r in zip(weight, right, strict=True)) / sum(weight), abs=1e-6)


def test_the_interval_of_users_is_that_of_their_mean():
    right = np.array([0.5, 1.0, 0.75, 0.25, 1.0, 1.0, 0.0, 0.5, 0.75, 1.0])
    there = SimpleNamespace(class_names=NAMES)
    found = redrawn_users(there, right, np.arange(10), COUNT)["figures"]["vii_c"]
    for value, times in zip(found, drawn_people("VII-C", 10), strict=True):
        assert value == pytest.approx(sum(t * r for t, r in zip(times, right, strict=True)) / 10, abs=1e-6)


def test_other_people_have_intervals_of_their_own():
    one = redrawn_new(bench(unseen=samples(11, 2, 1)), COUNT)
    two = redrawn_new(bench(unseen=samples(11, 2, 2), names=NAMES[::-1]), COUNT)  # the same numbers, other people
    found = seeds_interval("eer", [one, two])
    assert found["mean"] is None and len(found["seeds"]) == 2 and found["seeds"][0] != found["seeds"][1]
    assert seeds_interval("eer", [one, two])["seeds"][0] == seeds_interval("eer", [one])["mean"]
    assert seeds_interval("eer", [one, None]) == {"mean": found["seeds"][0], "seeds": [found["seeds"][0], None]}
    assert seeds_interval("eer", [one, {"refused": "too few"}]) is None  # the mean is also of a seed without
    assert seeds_interval("eer", [None]) is None and seeds_interval("eer", [one, {}]) is None


@pytest.mark.parametrize(
    ("measure", "stand", "said"),
    [
        (redrawn_new, bench(unseen=samples(9, 2, 1)), "9 people have genuine trials, 10 are needed"),
        (redrawn_new, bench(), "no unseen people"),
        (redrawn_seen, bench(test=samples(9, 2, 1), classes=9), "9 people have genuine trials, 10 are needed"),
        (redrawn_seen, bench(test=samples(1, 2, 1), classes=1), "two seen people are needed"),
        (redrawn_seen, bench(), "no test samples"),
    ],
)
def test_too_few_people_are_refused(measure, stand, said):
    with pytest.raises((SelfsameError, Inapplicable), match=said):
        measure(stand, COUNT)


def test_a_list_without_impostors_is_refused():
    where = torch.arange(0, 22, 2)
    own = Trials(where, where + 1, torch.ones(11, dtype=torch.bool), torch.zeros(11, dtype=torch.int64))
    with pytest.raises(SelfsameError, match="no trial has an impostor"):
        redrawn_new(bench(unseen=samples(11, 2, 1), trials=own), COUNT)


def run_of(unseen):
    stand = bench(unseen=unseen)
    problem = SimpleNamespace(method=stand.method, federation=stand.federation, world=stand.world)
    state = SimpleNamespace(alone_NP=None)
    truth = stand.truth_RD
    return SimpleNamespace(
        problem=problem, state=state, world=stand.world, embed=lambda part: part, truth=lambda: truth
    )


def test_replicates_are_drawn_once_and_kept(tmp_path):
    opened = []

    def open_it():
        opened.append(1)
        return run_of(samples(11, 2, 1))

    found = beyond(tmp_path, 3, open_it, drawn=("new", "seen"), count=COUNT)["drawn"]
    assert found["new"] == redrawn_new(bench(unseen=samples(11, 2, 1)), COUNT)
    assert "no test samples" in found["seen"]["refused"]
    again = beyond(tmp_path, 3, lambda: pytest.fail("opened again"), drawn=("new", "seen"), count=COUNT)["drawn"]
    assert again == found  # what was refused stays refused
    assert beyond(tmp_path, 3, lambda: pytest.fail("not asked for"), drawn=("new",), count=0)["drawn"] == {}
    assert len(beyond(tmp_path, 3, open_it, drawn=("new",), count=7)["drawn"]["new"]["figures"]["eer"]) == 7
    beyond(tmp_path, 4, open_it, drawn=("new",), count=COUNT)  # the run has gone on
    assert len(opened) == 3


def test_a_run_that_cannot_be_opened_has_no_intervals(tmp_path):
    """Its page can be made all the same, but not if the page needs more of it."""

    def gone():
        raise SelfsameError(f"{tmp_path}: has no checkpoint yet")

    found = beyond(tmp_path, 3, gone, drawn=("new",), count=COUNT)["drawn"]
    assert found == {"new": {"refused": f"{tmp_path.name}: has no checkpoint yet"}}
    assert not (tmp_path / "exhibit.json").exists()  # it may come back
    with pytest.raises(SelfsameError, match="no checkpoint"):
        beyond(tmp_path, 3, gone, curves=("test samples",), drawn=("new",), count=COUNT)


@pytest.mark.parametrize("text", ["[]", '{"found": []}', '{"round": 3, "found": {"curve x": 1}}'])
def test_a_damaged_file_is_named(tmp_path, text):
    (tmp_path / "exhibit.json").write_text(text)
    with pytest.raises(SelfsameError, match=r"exhibit\.json: .*delete it"):
        beyond(tmp_path, 3, lambda: pytest.fail("opened"), drawn=("new",), count=COUNT)
