"""Splits by person: nobody in two places, nothing in two parts."""

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from selfsame.data.federation import Rows
from selfsame.data.people import SplitOptions, by_people, choose_people
from selfsame.data.people import split_people as split_by
from selfsame.data.trial_lists import draw_trials
from selfsame.errors import SelfsameError

FUZZ = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


def scrambled(counts, seed=0):
    person = np.repeat(np.arange(len(counts)), counts)
    return np.random.default_rng(seed).permutation(person)


def split_people(name, person, names, *, unseen=None, barred=None, unseen_least=0, **options):
    return split_by(
        name, person, names, SplitOptions(**options), unseen=unseen, barred=barred, unseen_least=unseen_least
    )


def names(number):
    return [f"p{n}" for n in range(number)]


@FUZZ
@given(
    counts=st.lists(st.integers(0, 9), min_size=4, max_size=10),
    held_out=st.integers(0, 3),
    train=st.integers(0, 3),
    validation=st.integers(0, 2),
    test=st.integers(0, 2),
    unseen_samples=st.integers(0, 3),
    seed=st.integers(0, 5),
)
def test_every_sample_has_one_place_or_none(counts, held_out, train, validation, test, unseen_samples, seed):
    person = scrambled(counts)
    asked = {"train": train, "validation": validation, "test": test, "unseen_samples": unseen_samples}
    try:
        split = split_people("toy", person, names(len(counts)), seed=seed, held_out=held_out, **asked)
    except SelfsameError as error:
        able = sum(c >= (1 if unseen_samples == 1 else 2) for c in counts)
        assert held_out > able or sum(c >= (train or 1) + validation + test for c in counts) < 2 + held_out, error
        return
    assert len(split.unseen_people) == held_out and not set(split.unseen_people) & set(split.seen)
    least = (train or 1) + validation + test
    rows = np.concatenate([part.row for part in (split.train, split.validation, split.test, split.unseen)])
    assert len(set(rows.tolist())) == len(rows)
    for label, who in enumerate(split.seen.tolist()):
        assert counts[who] >= least
        for part, size in ((split.validation, validation), (split.test, test)):
            assert [person[r] for r in part.row[part.label == label]] == [who] * size
        mine = split.train.row[split.train.label == label]
        assert len(mine) == (train or counts[who] - validation - test)
        assert all(person[r] == who for r in mine)
    for place, who in enumerate(split.unseen_people.tolist()):
        mine = split.unseen.row[split.unseen.label == len(split.seen) + place]
        assert len(mine) == min(counts[who], unseen_samples or 99) and all(person[r] == who for r in mine)
    few = [n for n, c in enumerate(counts) if c < least and n not in split.unseen_people]
    assert list(split.left_out) == [f"p{n}: {counts[n]} samples, a client needs {least}" for n in few]
    assert bool(few) == any("no clients" in note for note in split.notes)
    assert len(few) + len(split.seen) + held_out == len(counts)  # nobody is dropped in silence
    assert (np.diff(split.train.label) >= 0).all()


def test_a_split_follows_its_seed():
    person = scrambled([9] * 12)
    one, same, other = (
        split_people("toy", person, names(12), seed=seed, held_out=3, people=5, validation=2) for seed in (1, 1, 2)
    )
    for field in ("seen", "unseen_people"):
        assert np.array_equal(getattr(one, field), getattr(same, field))
        assert not np.array_equal(getattr(one, field), getattr(other, field))
    for part in ("train", "validation", "test", "unseen"):
        assert np.array_equal(getattr(one, part).row, getattr(same, part).row)
    assert len(one.seen) == 5


def test_official_people():
    person = scrambled([4, 4, 4, 4, 1, 4])
    split = split_people("toy", person, names(6), seed=0, unseen=np.array([1, 4]), barred=np.array([3]), held_out=99)
    assert split.seen.tolist() == [0, 2, 5] and split.unseen_people.tolist() == [1, 4]
    assert Counter(person[split.unseen.row].tolist()) == {1: 4, 4: 1}


@pytest.mark.parametrize(
    "options, line",
    [
        ({"held_out": 5}, "held_out must be 0 to 4, the people with 2 samples, got 5"),
        ({"held_out": -1}, "held_out must be 0 to 4"),
        ({"people": 5}, r"people must be 0 \(all\) to 4, those left with 2 samples, got 5"),
        ({"least": 7}, "0 of 5 people can be clients, at least 2 are needed; a client must have 7 samples"),
    ],
)
def test_what_cannot_be_split_is_refused(options, line):
    with pytest.raises(SelfsameError, match=line):
        split_people("toy", scrambled([3, 3, 3, 3, 1]), names(5), seed=0, **options)


def test_unused_samples_are_said():
    split = split_people("toy", scrambled([5, 9]), names(2), seed=0, train=3, test=1)
    assert split.notes == ("6 samples of the clients are not used, train is at most 3 a person",)


def test_the_least_number_covers_the_parts():
    assert SplitOptions(validation=2, test=3).needed == 6 and SplitOptions(train=20, validation=5, test=5).needed == 30
    assert SplitOptions(validation=2, test=3, least=10).needed == 10
    assert choose_people("toy", np.array([1, 2, 3]), SplitOptions(), least=2).seen.tolist() == [1, 2]


@pytest.mark.parametrize("kind", ["tensor", "held", "mapped"])
def test_the_federation_holds_the_rows_of_the_split(kind):
    person = scrambled([6, 5, 4, 7])
    x = torch.arange(len(person), dtype=torch.uint8)[:, None].repeat(1, 3)
    split = split_people("toy", person, names(4), seed=3, held_out=1, validation=1, test=2)
    trials = draw_trials(split.unseen.label, 4, 0)
    take = {
        "tensor": lambda row: x[torch.from_numpy(row)],
        "held": lambda row: Rows(x.numpy(), row)[:],
        "mapped": lambda row: Rows(x.numpy(), row),
    }
    fed = by_people("toy", (3,), split, names(4), take[kind], mean=(0.5,), std=(2.0,), trials=trials, notes=("a",))
    assert fed.source.on_host == (kind == "mapped") and isinstance(fed.test.x, Rows) == (kind == "mapped")
    assert fed.clients == fed.classes == 3 and fed.shape == (3,) and fed.notes == ("a",) and len(fed.trials) == 2
    assert fed.class_names == tuple(f"p{n}" for n in (*split.seen, *split.unseen_people))
    client_M, index_MB = torch.tensor([2, 0]), torch.tensor([[1, 0], [0, 2]])
    got = fed.source.rows(client_M, index_MB)
    for m, client in enumerate((2, 0)):
        own = split.train.row[split.train.label == client]
        assert got[m, :, 0].tolist() == own[index_MB[m].numpy()].tolist()
    for part, samples in (("validation", fed.validation), ("test", fed.test), ("unseen", fed.unseen)):
        assert samples.x[:][:, 0].tolist() == getattr(split, part).row.tolist()
        assert samples.y.tolist() == getattr(split, part).label.tolist()
