"""Settings are chosen on people set apart, with nothing of the test at hand."""

import gc
import types

import numpy as np
import pytest
import torch

from selfsame.config.recipe import from_mapping
from selfsame.data import load
from selfsame.data.choosing import for_choosing, samples_for_choosing, set_apart
from selfsame.data.federation import Federation, Mapped, Rows, Samples, from_classes
from selfsame.engine.setup import prepare
from selfsame.engine.state import begin
from selfsame.errors import SelfsameError
from selfsame.runs.course import Run


def small(validation=True):
    """Ten people with 3, 4, .. samples that say whose they are and which."""
    counts = [3 + person for person in range(10)]
    y = torch.cat([torch.full((count,), person) for person, count in enumerate(counts)])
    x = torch.stack([torch.tensor([float(person), float(n)]) for person, c in enumerate(counts) for n in range(c)])
    test = Samples(torch.full((4, 2), 99.0), torch.arange(4))
    unseen = Samples(torch.full((5, 2), 77.0), torch.arange(5))
    kept = (
        Samples(torch.tensor([[float(p), -1.0] for p in range(10)]), torch.arange(10)) if validation else Samples.none()
    )
    return from_classes("small", x, y, test=test, unseen=unseen, validation=kept)


def test_who_is_set_apart_is_in_no_client_and_the_test_is_nowhere():
    made = for_choosing(small(), 0.3, seed=1)
    assert made.clients == made.classes == 7 and made.class_of_N.tolist() == list(range(7))
    trained = set()
    for client in range(7):
        index = torch.arange(int(made.count_N[client]))[None]
        rows = made.source.rows(torch.tensor([client]), index)[0]
        (person,) = {float(value) for value in rows[:, 0]}
        assert rows[:, 1].tolist() == list(range(3 + int(person)))
        trained.add(person)
        assert made.test.x[made.test.y == client].tolist() == [[person, -1.0]]
    apart = {float(value) for value in made.unseen.x[:, 0]}
    assert len(trained) == 7 and trained | apart == set(range(10)) and not trained & apart
    for number in made.unseen.y.unique():
        assert len({float(value) for value in made.unseen.x[made.unseen.y == number][:, 0]}) == 1
    assert len(made.unseen.x) == sum(3 + int(person) for person in apart)
    for part in (made.test.x, made.unseen.x):
        assert not ((part == 99) | (part == 77)).any()


def test_the_seed_decides():
    one, two, other = (for_choosing(small(), 0.3, seed).unseen.x for seed in (1, 1, 2))
    assert torch.equal(one, two) and not torch.equal(one, other)


def test_without_validation_samples_there_is_no_test():
    assert not len(for_choosing(small(validation=False), 0.3).test.y)


def test_a_run_takes_it():
    made = for_choosing(load("digits"), 0.3)
    assert made.clients < load("digits").clients and len(made.unseen.y) > 100


@pytest.mark.parametrize("share", [0.0, 0.05, 0.95, 1.0])
def test_too_few_on_either_side(share):
    with pytest.raises(SelfsameError, match=r"small: .* of 10 people leaves too few"):
        for_choosing(small(), share)


def test_samples_set_apart_are_the_last_of_each_client():
    made = samples_for_choosing(small(), 0.25)
    assert made.clients == made.classes == 10 and not len(made.unseen.y) and not len(made.validation.y)
    for person in range(10):
        count = 3 + person
        kept = int(count * 0.75)
        assert int(made.count_N[person]) == kept
        assert made.test.x[made.test.y == person].tolist() == [[person, float(n)] for n in range(kept, count)]


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_samples_to_train_on_and_to_choose_by(share):
    with pytest.raises(SelfsameError, match="nothing to train or test on"):
        samples_for_choosing(small(), share)


# ---- as an option of every data set


def test_every_data_set_takes_the_option():
    people = load("digits", apart="people")
    assert people.clients == 11 and len(people.unseen.y.unique()) == 3 and not len(people.trials)
    samples = load("digits", apart="samples", apart_share=0.5)
    whole = load("digits")
    assert samples.clients == 14 and torch.equal(samples.count_N, (whole.count_N * 0.5).long())
    assert len(samples.test.y) == int((whole.count_N - samples.count_N).sum())


def test_by_itself_it_is_people_where_the_test_has_unseen_ones_and_else_samples():
    assert len(load("digits", apart="auto").unseen.y)
    assert not len(load("digits", apart="auto", held_out=0).unseen.y)
    assert not len(
        load("digits", apart="auto", turns=1).unseen.y
    )  # a fifth of seven is one, and nobody to be told from


def test_validation_samples_take_the_place_of_the_test_and_cost_no_training():
    made = set_apart(small(), "samples")
    assert made.count_N.tolist() == [3 + person for person in range(10)]
    assert made.test.x.tolist() == [[float(person), -1.0] for person in range(10)]
    assert not len(made.validation.y) and not len(made.unseen.y)


def test_who_has_one_sample_keeps_it():
    x = torch.arange(6.0)[:, None]
    none = Samples.none((1,), torch.float32)
    made = samples_for_choosing(from_classes("few", x, torch.tensor([0, 1, 1, 1, 1, 1]), test=none, unseen=none), 0.4)
    assert made.count_N.tolist() == [1, 3] and made.test.x.flatten().tolist() == [4.0, 5.0]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"apart": "everybody"}, "apart: 'everybody' is not one of auto, people, samples"),
        ({"apart": "people", "apart_share": 1.0}, "apart_share must lie between 0 and 1"),
        ({"apart": "people", "turns": 1}, "0.2 of 7 people leaves too few .* judge by samples"),
        ({"apart": 3}, "digits: option apart: expected a text"),
    ],
)
def test_what_cannot_be_set_apart_is_said(options, words):
    with pytest.raises(SelfsameError, match=words):
        load("digits", **options)


def reachable(thing, seen=None):
    """Every tensor and array that a thing holds, however deep."""
    seen = {} if seen is None else seen
    if id(thing) in seen or isinstance(thing, str | bytes | int | float | type | types.ModuleType | None):
        return
    seen[id(thing)] = thing
    if isinstance(thing, torch.Tensor):
        yield thing
    elif isinstance(thing, np.ndarray):
        yield torch.from_numpy(np.ascontiguousarray(thing)) if thing.dtype.kind in "uif" else torch.zeros(0)
    inner = [thing] if isinstance(thing, dict | list | tuple | set) else gc.get_referents(thing)
    for one in inner:
        parts = (
            [*one.keys(), *one.values()] if isinstance(one, dict) else one if type(one) in (list, tuple, set) else [one]
        )
        for part in parts:
            if not isinstance(part, types.FunctionType | types.BuiltinFunctionType):
                yield from reachable(part, seen)


def pictures(tensors):
    """Every stretch of 64 bytes at a whole place in what the tensors were cut from: 8x8 pictures, if they are such."""
    found = set()
    for one in tensors:
        if one.dtype == torch.uint8:
            whole = torch.empty(0, dtype=torch.uint8).set_(one.untyped_storage())
            raw = whole.numpy().tobytes()
            found |= {raw[at : at + 64] for at in range(0, len(raw) - 63, 64)}
    return found


@pytest.mark.parametrize("apart", ["people", "samples"])
def test_nothing_of_the_test_can_be_reached_from_a_run(apart):
    whole = load("digits")
    test = pictures([whole.test.x.contiguous(), whole.unseen.x.contiguous()])
    assert len(test) > 1000 and pictures(reachable(Run(*begun({}, whole)))) & test  # the search finds them
    run = Run(*begun({"apart": apart}))
    held = pictures(reachable(run))
    assert len(held) > 500 and not held & test
    names = set(whole.class_names[whole.classes :])
    assert not names & set(run.problem.federation.class_names)


def begun(options, federation=None):
    tables = {"method": {"name": "fixed"}, "data": {"name": "digits", **options}, "run": {"rounds": 2, "device": "cpu"}}
    problem = prepare(from_mapping(tables), federation)
    return problem, begin(problem)


@pytest.mark.parametrize("apart", ["people", "samples"])
def test_of_a_set_on_disk_no_place_of_the_test_is_known(apart):
    """Five samples of each of ten people, three for training, then one for validation and one for the test."""
    store = np.arange(60, dtype=np.float32)[:, None]
    part = [np.concatenate([5 * np.arange(10) + at for at in some]) for some in ((3,), (4,))]
    train = np.concatenate([5 * person + np.arange(3) for person in range(10)])
    ten = torch.arange(10)
    whole = Federation(
        "disk",
        (1,),
        ten,
        torch.full((10,), 3),
        Mapped(Rows(store, train), 3 * ten),
        Samples(Rows(store, part[1]), ten),
        Samples(Rows(store, np.arange(50, 60)), ten + 10),
        validation=Samples(Rows(store, part[0]), ten),
    )
    made = set_apart(whole, apart)
    secret = {*part[1].tolist(), *range(50, 60)}
    known = {int(one) for rows in places(made) for one in rows}
    assert known and not known & secret
    held = torch.cat([made.test.x[:], made.unseen.x[:].reshape(-1, 1).float()])
    assert len(held) and not {int(value) for value in held.flatten()} & secret


def places(federation):
    """The row numbers that a federation holds."""
    parts = (federation.source, federation.test, federation.unseen, federation.validation)
    return [part.x.row.tolist() for part in parts if isinstance(part.x, Rows)]


def test_nobody_who_is_set_apart_is_judged_almost_alone():
    counts = [2, 3, 2, 4, 40, 2, 3, 2, 50, 2]
    x = torch.arange(sum(counts), dtype=torch.float32)[:, None, None, None]
    y = torch.repeat_interleave(torch.arange(10), torch.tensor(counts))
    none = Samples(x[:0], y[:0])
    made = for_choosing(from_classes("skewed", x, y, test=none, unseen=none), 0.8, seed=0)
    given = made.unseen.y.bincount().tolist()
    there = [count for count, label in zip(counts, range(10), strict=True) if label not in _left(made, y)]
    median = sorted(there)[len(there) // 2 - 1 : len(there) // 2 + 1]
    most = max(2, round(3 * sum(median) / 2))
    assert max(there) >= 40 and given == [min(count, most) for count in there]
    assert len(made.unseen.x.flatten().unique()) == sum(given)
    (large,) = {place for place in range(len(there)) if there[place] == max(there)}
    places = made.unseen.x.flatten()[made.unseen.y == large]
    gaps = places.diff()
    assert gaps.min() >= max(there) // most and gaps.max() <= -(-max(there) // most)
    assert "nobody is judged almost alone" in made.notes[-1]
    assert "nobody" not in for_choosing(small(), 0.3, seed=1).notes[-1]


def _left(made, label):
    """The classes that still train, by the numbers that their first samples are."""
    return {int(label[start]) for start in made.source.start_N.tolist()}
