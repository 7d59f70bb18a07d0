"""Trials: drawn ones are distinct and as even as there is room, listed ones are read or get one line."""

from collections import Counter
from itertools import combinations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from selfsame.data.formats.lists import read_lines
from selfsame.data.trial_lists import Pair, _even, _unrank, draw_trials, read_trials
from selfsame.errors import SelfsameError

FUZZ = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


def scrambled(counts, seed=0):
    person = np.repeat(np.arange(len(counts)), counts)
    return np.random.default_rng(seed).permutation(person)


@FUZZ
@given(counts=st.lists(st.integers(1, 6), min_size=0, max_size=7), number=st.integers(0, 60), seed=st.integers(0, 3))
def test_trials_are_distinct_right_and_even(counts, number, seed):
    label = scrambled(counts, seed) + 100
    trials = draw_trials(label, number, seed)
    pairs = list(zip(trials.index_a.tolist(), trials.index_b.tolist()))
    assert len({frozenset(pair) for pair in pairs}) == len(pairs) and all(a != b for a, b in pairs)
    assert [bool(label[a] == label[b]) for a, b in pairs] == trials.same.tolist()
    genuine = sum(n * (n - 1) // 2 for n in counts)
    impostor = sum(a * b for a, b in combinations(counts, 2))
    assert int(trials.same.sum()) == min(genuine, number - number // 2)
    assert int((~trials.same).sum()) == min(impostor, number // 2)
    assert trials.fold.tolist() == [0] * len(pairs)
    # No one has two trials fewer than another, unless there are no more pairs.
    drawn = Counter(int(label[a]) for (a, _), same in zip(pairs, trials.same.tolist()) if same)
    room = {100 + n: c * (c - 1) // 2 for n, c in enumerate(counts)}
    most = max(drawn.values(), default=0)
    assert all(drawn[who] >= min(room[who], most - 1) for who in room)


def test_pairs_are_numbered_in_order():
    for people in range(2, 7):
        every = list(combinations(range(people), 2))
        one, two = _unrank(np.arange(len(every)), people)
        assert list(zip(one.tolist(), two.tolist())) == every


@FUZZ
@given(room=st.lists(st.integers(0, 9), max_size=8), wanted=st.integers(0, 40))
def test_even_shares(room, wanted):
    share = _even(np.array(room, np.int64), wanted, np.random.default_rng(0))
    assert share.sum() == min(sum(room), wanted) and (share <= np.array(room)).all() and (share >= 0).all()
    top = max(share.tolist(), default=0)
    assert all(s >= min(r, top - 1) for s, r in zip(share.tolist(), room))


def test_a_trial_list(tmp_path):
    (tmp_path / "t.txt").write_bytes(b"\xef\xbb\xbf1 a/x a/y\r\n\n0 c d\n")
    assert read_trials(tmp_path / "t.txt") == [Pair(True, 0, "a/x", "a/y"), Pair(False, 0, "c", "d")]


@pytest.mark.parametrize(
    "body, line",
    [
        (b"", "empty"),
        (b"0 a b\n2 a b\n", "line 2: expected 0 or 1 and two files"),
        (b"1 a\n", "line 1: expected"),
        (b"0 a/x b/x\n1 a/x b/x\n", "trial 2 says 1, but a/x and b/x are of two people"),
        (b"0 a/x a/y\n", "trial 1 says 0, but a/x and a/y are of one person"),
        (b"1 \xff b\n", "byte 2 is not UTF-8"),
    ],
)
def test_a_bad_trial_list_gets_one_line(tmp_path, body, line):
    (tmp_path / "t.txt").write_bytes(body)
    with pytest.raises(SelfsameError, match=line) as caught:
        read_trials(tmp_path / "t.txt")
    assert str(tmp_path / "t.txt") in str(caught.value) and "\n" not in str(caught.value)


def test_an_absent_list_gets_one_line(tmp_path):
    with pytest.raises(SelfsameError, match=r"nothing.txt: cannot be read"):
        read_lines(tmp_path / "nothing.txt")


@FUZZ
@given(st.binary(max_size=80))
def test_random_bytes_as_a_trial_list(tmp_path, body):
    (tmp_path / "t.txt").write_bytes(body)
    try:
        assert all(isinstance(pair, Pair) for pair in read_trials(tmp_path / "t.txt"))
    except SelfsameError as error:
        assert "\n" not in str(error)
