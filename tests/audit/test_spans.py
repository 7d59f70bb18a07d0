"""Subspaces of polls: they tell on devices where few change between two, and on nobody where the rule is kept."""

import pytest
import torch

from selfsame.audit.attackers import Audited
from selfsame.audit.spans import PollReader, PollTranscript, identified_by_polls, record_polls, span_guesses
from selfsame.config.recipe import from_mapping
from selfsame.data import load
from selfsame.engine.setup import prepare
from selfsame.engine.state import begin
from selfsame.errors import SelfsameError
from selfsame.methods.base import unit


def crowd(clients: int, width: int, changed: int, polls: int, seed: int = 0) -> tuple[PollTranscript, torch.Tensor]:
    """Vectors that drift a little whenever it is their turn, and the sums of their products at every poll."""
    draw = torch.Generator().manual_seed(seed)
    w = unit(torch.randn(clients, width, generator=draw, dtype=torch.float64))
    sums, who = [w.T @ w], [torch.zeros(clients, dtype=torch.bool)]
    for _ in range(polls):
        turn = torch.randperm(clients, generator=draw)[:changed]
        w[turn] = unit(w[turn] + 0.05 * torch.randn(changed, width, generator=draw, dtype=torch.float64))
        sums.append(w.T @ w)
        who.append(torch.zeros(clients, dtype=torch.bool).index_fill_(0, turn, True))
    return PollTranscript(torch.stack(who), torch.stack(sums)), w


def test_few_who_change_are_told_apart_and_many_are_not():
    few, truth = crowd(clients=64, width=24, changed=3, polls=120)
    share, cosine = identified_by_polls(few, truth)
    assert share > 0.9 and cosine > 0.7
    many, truth = crowd(clients=64, width=24, changed=48, polls=120)
    share, cosine = identified_by_polls(many, truth)
    assert share < 0.1 and cosine < 0.4


def test_one_who_changes_alone_is_read_at_once():
    """A rank of two: its old vector and its new one are all that there is."""
    draw = torch.Generator().manual_seed(1)
    w = unit(torch.randn(9, 6, generator=draw, dtype=torch.float64))
    after = w.clone()
    after[4] = unit(w[4] + 0.1 * torch.randn(6, generator=draw, dtype=torch.float64))
    changed = torch.zeros(2, 9, dtype=torch.bool)
    changed[1, 4] = True
    guess = span_guesses(PollTranscript(changed, torch.stack([w.T @ w, after.T @ after])))[4]
    plane = torch.linalg.qr(torch.stack([w[4], after[4]], 1)).Q
    assert float((plane.T @ guess).norm()) == pytest.approx(1, abs=1e-6)


def build(size, every, clients=48):
    tables = {
        "method": {"name": "fedcrowd", "every": every, "sketch": 8},
        "data": {"name": "synthetic"},
        "net": {"name": "lenet", "width": 8, "channels": [4, 4]},
        "run": {"rounds": 4000, "device": "cpu", "precision": "float64"},
        "local": {"batch": 4, "lr": 1.0},
        "cohort": {"size": size, "sampling": "round-robin"},
    }
    return prepare(from_mapping(tables), load("synthetic", clients=clients, samples=5, held_out=4))


def test_a_run_that_keeps_the_rule():
    problem = build(16, every=3)
    state = begin(problem)
    seen = record_polls(problem, state, 12)
    assert seen.changed_TN.shape == (12, 48) and not seen.changed_TN[0].any() and seen.changed_TN[1:].all()
    share, _ = identified_by_polls(seen, state.own["prototype"])
    assert share < 0.15


def test_the_audits_own_attacker():
    problem = build(16, every=3)
    state = begin(problem)
    case = Audited(problem, state, rounds=20)
    (found,) = PollReader().run(case)
    assert (found.attacker, found.rounds, state.round) == ("polls", 24, 0)
    assert found.identified < 0.15 and found.chance == 1 / 48 and "48 devices or more have changed" in found.said
    assert not PollReader().fits(Audited(other(), begin(other())))


def other():
    hide = {"name": "fedhide"}
    tables = {"method": hide, "data": {"name": "synthetic"}, "net": {"name": "lenet", "width": 8, "channels": [4, 4]}}
    return prepare(from_mapping(tables), load("synthetic", clients=6, samples=5, held_out=4))


def test_polls_of_a_run_are_written_down_as_they_are():
    problem = build(16, every=1)
    state = begin(problem)
    seen = record_polls(problem, state, 4)
    assert [row.nonzero().flatten().tolist() for row in seen.changed_TN] == [
        [], list(range(16)), list(range(16, 32)), list(range(32, 48)),
    ]  # fmt: skip
    assert torch.allclose(seen.sum_TKK.diagonal(dim1=1, dim2=2).sum(1), torch.full((4,), 48.0).double())
    with pytest.raises(SelfsameError, match="fedhide has no polls"):
        record_polls(other(), begin(other()), 2)
