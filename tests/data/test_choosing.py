"""Settings are chosen on people set apart, with nothing of the test at hand."""

import pytest
import torch

from selfsame.data import load
from selfsame.data.choosing import for_choosing, samples_for_choosing
from selfsame.data.federation import Samples, from_classes
from selfsame.errors import SelfsameError


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
