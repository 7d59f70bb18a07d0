"""Clients side by side on the processor's cores: the same numbers, whatever their number."""

from __future__ import annotations

import os
import threading

import pytest
import torch
from small import build, people, train

from selfsame.engine import model as room
from selfsame.engine.crew import Crew


def test_results_come_in_order_from_threads_that_take_one_core_each():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        crew, met = Crew(2), threading.Barrier(2)

        def work(item: int) -> tuple[int, int, str]:
            met.wait(60)  # both threads are at work, or this fails
            return item, torch.get_num_threads(), threading.current_thread().name

        found = crew.map(work, range(6))
        assert [item for item, _, _ in found] == list(range(6))
        assert {threads for _, threads, _ in found} == {1}
        assert len({name for _, _, name in found}) == 2
        assert torch.get_num_threads() == 3
        assert Crew().size == 3
    finally:
        torch.set_num_threads(before)


def test_one_core_or_one_item_is_the_callers_own_work():
    here = threading.current_thread()
    for crew, items in ((Crew(1), range(3)), (Crew(2), range(1))):
        assert crew.map(lambda _: threading.current_thread(), items) == [here] * len(items)
    assert Crew(2).map(lambda item: item, []) == []


def test_derivatives_are_recorded_where_the_caller_records_them():
    crew, x = Crew(2), torch.ones(3, requires_grad=True)
    assert all(y.requires_grad for y in crew.map(lambda k: k * x, range(4)))
    with torch.no_grad():
        assert not any(y.requires_grad for y in crew.map(lambda k: k * x, range(4)))


def test_an_error_reaches_the_caller():
    with pytest.raises(ZeroDivisionError):
        Crew(2).map(lambda k: 1 // k, [1, 0, 2])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forked processes here")
def test_a_forked_process_has_threads_of_its_own():
    crew = Crew(2)
    assert crew.map(abs, [-1, -2, -3]) == [1, 2, 3]
    child = os.fork()
    if child == 0:
        os._exit(0 if crew.map(abs, [-4, -5]) == [4, 5] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("name", ["fedhide", "softmax", "fedmetric"])
def test_two_cores_give_what_one_gives(name, monkeypatch):
    """Bit for bit, heads and reports of the final network included, and the same as stacked replicas to rounding."""
    found = {}
    for size, alone in ((1, 0), (2, 0), (1, 2**13)):
        monkeypatch.setattr(room, "_ALONE", alone)
        problem = build(name, people(), local={"steps": 2})
        problem.model.crew = Crew(size)
        state, losses = train(problem)
        found[size, alone] = torch.cat([state.theta_P, losses, *(own.flatten() for own in state.own.values())])
    assert torch.equal(found[1, 0], found[2, 0])
    assert torch.allclose(found[1, 0], found[1, 2**13], rtol=1e-9, atol=1e-10)
