"""The ledger of released sums: whole groups, the latest stand-ins, once a round; whatever order things come in."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfsame.enclave.ledger import Ledger, Rules
from selfsame.enclave.message import Denied

FOUR = [f"{number:032x}" for number in range(4)]
MORE = [f"{number:032x}" for number in range(4, 8)]


def ledger(group=4, least=2, stand_ins=0, rounds=100) -> Ledger:
    return Ledger(Rules(group, least, stand_ins, rounds))


def new(nodes, round) -> dict[str, str]:
    return {node: f"{node}-{round}" for node in nodes}


def why(call, *arguments) -> str:
    with pytest.raises(Denied) as refusal:
        call(*arguments)
    return refusal.value.reason


def test_once_a_round_and_the_same_again():
    kept = ledger()
    assert kept.release(3, FOUR, new(FOUR, 3), {})
    before = kept.to_json()
    assert not kept.release(3, FOUR, new(FOUR, 3), {})
    assert why(kept.release, 3, FOUR, new(FOUR[:3], 3), {}) == "twice"
    assert why(kept.release, 2, FOUR, new(FOUR, 2), {}) == "twice"
    assert kept.to_json() == before
    assert kept.release(4, FOUR, new(FOUR, 4), {})


def test_also_after_a_restart():
    kept = ledger()
    kept.release(0, FOUR, new(FOUR, 0), {})
    again = Ledger.from_json(json.loads(json.dumps(kept.to_json())))
    assert again == kept
    assert why(again.release, 0, FOUR, new(FOUR[:3], 0), {}) == "twice"


def test_only_the_latest_stands_in():
    kept = ledger()
    kept.release(0, FOUR, new(FOUR, 0), {})
    kept.release(1, FOUR, new(FOUR[:3], 1), new(FOUR[3:], 0))
    assert why(kept.release, 2, FOUR, new(FOUR[1:], 2), new(FOUR[:1], 0)) == "stand-in"  # it has a later one
    assert why(kept.release, 2, FOUR, new(FOUR[1:], 2), {}) == "stand-in"  # somebody is missing
    assert kept.release(2, FOUR, new(FOUR[1:], 2), new(FOUR[:1], 1))


def test_who_never_answered_counts_nothing():
    kept = ledger()
    assert kept.release(0, FOUR, new(FOUR[:3], 0), {})
    assert why(kept.release, 1, FOUR, new(FOUR[:3], 1), new(FOUR[3:], 0)) == "stand-in"  # nothing of it was released


def test_exceptions_end():
    kept = ledger(stand_ins=1)
    kept.release(0, FOUR, new(FOUR, 0), {})
    kept.release(1, FOUR, new(FOUR[:3], 1), new(FOUR[3:], 0))
    assert why(kept.release, 2, FOUR, new(FOUR[:3], 2), new(FOUR[3:], 0)) == "stand-in"
    assert kept.release(2, FOUR, new(FOUR[:3], 2), {})
    assert kept.release(3, FOUR, new(FOUR, 3), {})  # it is back
    assert why(kept.release, 4, FOUR, new(FOUR[:3], 4), new(FOUR[3:], 3)) == "stand-in"


def test_groups_are_whole_and_disjoint():
    kept = ledger()
    kept.release(0, FOUR, new(FOUR, 0), {})
    assert why(kept.release, 1, FOUR[:3], new(FOUR[:3], 1), {}) == "group"  # a part of it
    assert why(kept.release, 1, FOUR + MORE[:1], new(FOUR + MORE[:1], 1), {}) == "group"  # somebody new in it
    assert why(kept.release, 1, FOUR[:2] + MORE, new(FOUR[:2] + MORE, 1), {}) == "group"
    assert why(kept.release, 1, MORE[:3], new(MORE[:3], 1), {}) == "few"  # too small
    assert kept.release(1, MORE, new(MORE, 1), {})
    both = FOUR + MORE
    assert why(kept.release, 1, both, new(both, 1), {}) == "group"  # one of them had its sum of this round
    assert kept.release(2, both, new(both, 2), {})  # whole groups may be merged
    assert why(kept.release, 3, FOUR, new(FOUR, 3), {}) == "group"  # and are never split again
    assert why(kept.release, 3, MORE, new(MORE, 3), {}) == "group"


def test_enough_must_have_answered():
    kept = ledger(least=3)
    kept.release(0, FOUR, new(FOUR, 0), {})
    assert why(kept.release, 1, FOUR, new(FOUR[:2], 1), new(FOUR[2:], 0)) == "few"


def test_what_is_no_set():
    kept = ledger(rounds=2)
    assert why(kept.release, 2, FOUR, new(FOUR, 2), {}) == "round"
    assert why(kept.release, 0, FOUR + FOUR[:1], new(FOUR, 0), {}) == "group"
    assert why(kept.release, 0, FOUR, new(FOUR + MORE, 0), {}) == "group"
    kept.release(0, FOUR, new(FOUR, 0), {})
    assert why(kept.release, 1, FOUR, new(FOUR, 1), new(FOUR[:1], 0)) == "twice"


@given(
    st.lists(
        st.tuples(
            st.integers(0, 6),
            st.sets(st.sampled_from(FOUR + MORE)),
            st.sets(st.sampled_from(FOUR + MORE)),
            st.sets(st.sampled_from(FOUR + MORE)),
            st.integers(0, 3),
        ),
        max_size=30,
    )
)
def test_whatever_is_asked(asked):
    """After any requests: what was released was whole groups, once a round, with the latest of everybody absent."""
    kept = ledger(group=3, least=2)
    latest: dict[str, str] = {}
    seen: dict[int, set[str]] = {}
    for round, members, fresh, old, back in asked:
        fresh, old = fresh & members, (old & members) - fresh
        stand_ins = {node: latest.get(node, f"{node}-{back}") for node in old}
        before = kept.to_json()
        try:
            entered = kept.release(round, sorted(members), new(fresh, round), stand_ins)
        except Denied:
            assert kept.to_json() == before
            continue
        assert len(members) >= 3 and len(fresh) >= 2
        assert all(stand_ins.get(node) == latest[node] for node in members - fresh if node in latest)
        if entered:
            assert not seen.get(round, set()) & members
            seen[round] = seen.get(round, set()) | members
            latest |= new(fresh, round)
    whole = [set(group.members) for group in kept.groups.values()]
    assert sum(map(len, whole)) == len(set().union(*whole))
