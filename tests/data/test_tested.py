"""By what two federations have the same test: people, labels and trials, and the samples or who trains on how many."""

from dataclasses import replace

import pytest
import torch

from selfsame.data import Samples, Trials, load
from selfsame.data.tested import Yardstick


@pytest.fixture(scope="module")
def digits():
    return load("digits", turns=1)


def test_the_same_data_have_the_same_test(digits):
    once, again = Yardstick.by(digits), Yardstick.by(load("digits", turns=1))
    assert once == again and once.same(again, True) and once.same(again, False)


def test_samples_that_look_otherwise_are_the_same_only_where_they_may(digits):
    other = Yardstick.by(replace(digits, unseen=replace(digits.unseen, x=digits.unseen.x.flip(-1))))
    assert Yardstick.by(digits).same(other, True) and not Yardstick.by(digits).same(other, False)


def test_who_trains_counts_only_where_samples_may_look_otherwise(digits):
    other = Yardstick.by(replace(digits, count_N=digits.count_N - 1))
    assert not Yardstick.by(digits).same(other, True) and Yardstick.by(digits).same(other, False)


@pytest.mark.parametrize("part", ["labels", "fewer", "trials", "names"])
def test_people_labels_and_trials_always_count(digits, part):
    pair = torch.tensor([0]), torch.tensor([1]), torch.tensor([True]), torch.tensor([0])
    other = {
        "labels": lambda: replace(digits, test=replace(digits.test, y=digits.test.y.flip(0))),
        "fewer": lambda: replace(digits, unseen=Samples(digits.unseen.x[1:], digits.unseen.y[1:])),
        "trials": lambda: replace(digits, trials=Trials(*pair)),
        "names": lambda: replace(digits, class_names=digits.class_names[::-1]),
    }[part]()
    assert not Yardstick.by(digits).same(Yardstick.by(other), True)
    assert not Yardstick.by(digits).same(Yardstick.by(other), False)
