"""Batches of a federation whose samples say whose they are: sample i of client k is the number 1000 k + i."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from selfsame.config.recipe import AugmentPart, LocalPart
from selfsame.data import Federation, Samples, from_classes
from selfsame.engine import batches
from selfsame.engine.batches import Batch, Sampler, local_batches, step_batch, steps_a_round

COUNTS = [3, 9, 1, 6, 20]
NONE = AugmentPart()


def numbered(counts: list[int] = COUNTS) -> Federation:
    x = torch.cat([1000 * k + torch.arange(n, dtype=torch.float32) for k, n in enumerate(counts)])
    y = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    empty = Samples(torch.zeros(0, 1, 1, 1), torch.zeros(0, dtype=torch.int64))
    return from_classes("numbered", x.reshape(-1, 1, 1, 1), y, test=empty, unseen=empty)


def drawn(
    federation: Federation, clients: list[int], local: LocalPart, longest: int | None = None, round: int | Tensor = 0
) -> list[Batch]:
    client_M = torch.tensor(clients)
    longest = int(federation.count_N.max()) if longest is None else longest
    return list(local_batches(Sampler(federation, local, NONE, 5, longest, torch.float64), client_M, round))


def content(batch: Batch, row: int) -> list[int]:
    """The samples that count, in order."""
    return [int(v) for v, m in zip(batch.x_MB[row].flatten().tolist(), batch.mask_MB[row].tolist()) if m]


@pytest.mark.parametrize("size", [1, 4, 6, 20, 50])
@pytest.mark.parametrize("clients", [[0, 1, 2, 3, 4], [4, 0], [2]])
def test_steps_hold_distinct_samples_of_the_right_client(size, clients):
    seen: dict[int, set[int]] = {k: set() for k in clients}
    for round in range(30):
        for batch in drawn(numbered(), clients, LocalPart(steps=3, batch=size), round=round):
            assert batch.x_MB.shape[:2] == batch.mask_MB.shape == (len(clients), min(size, 20))
            assert batch.x_MB.dtype == batch.mask_MB.dtype == torch.float64
            assert set(batch.mask_MB.flatten().tolist()) <= {0.0, 1.0}
            for row, k in enumerate(clients):
                held = content(batch, row)
                assert len(held) == len(set(held)) == min(size, COUNTS[k])
                assert all(1000 * k <= v < 1000 * k + COUNTS[k] for v in held)
                seen[k] |= set(held)
    if size >= 4:
        assert all(len(seen[k]) == COUNTS[k] for k in clients)  # every sample has its chance


def test_masked_places_hold_some_sample_of_the_client():
    (batch,) = drawn(numbered(), [2, 4], LocalPart(batch=8))
    assert batch.mask_MB[0].tolist() == [1.0] + [0.0] * 7
    assert (batch.x_MB[0] == 2000).all()


@pytest.mark.parametrize("size", [1, 4, 7, 64])
@pytest.mark.parametrize("epochs", [1, 2])
def test_epochs_visit_each_sample_once(size, epochs):
    local = LocalPart(epochs=epochs, batch=size)
    found = drawn(numbered(), [0, 1, 2, 3, 4], local)
    assert len(found) == steps_a_round(local, 20) == epochs * -(-20 // min(size, 20))
    for row, count in enumerate(COUNTS):
        visits = [content(batch, row) for batch in found]
        each = len(found) // epochs
        passes = [[v for visit in visits[e * each : (e + 1) * each] for v in visit] for e in range(epochs)]
        for one in passes:
            assert sorted(one) == [1000 * row + i for i in range(count)]
        if epochs == 2 and count > 5:
            assert passes[0] != passes[1]
        # whoever is done early stays done until the pass ends
        lengths = [len(v) for v in visits[: len(found) // epochs]]
        assert lengths == sorted(lengths, reverse=True)


@pytest.mark.parametrize("local", [LocalPart(steps=2, batch=4), LocalPart(epochs=2, batch=4)], ids=["steps", "epochs"])
def test_a_client_alone_and_in_a_cohort(local):
    """Also with its own length in place of the longest: what the reference engine does."""
    federation = numbered()
    together = drawn(federation, [3, 0, 4, 1], local, round=7)
    for row, k in enumerate([3, 0, 4, 1]):
        alone = [content(b, 0) for b in drawn(federation, [k], local, longest=COUNTS[k], round=7)]
        cohort = [content(b, row) for b in together]
        assert [b for b in cohort if b] == [b for b in alone if b]


def test_rounds_steps_and_seeds_differ():
    federation, local, client = numbered([30]), LocalPart(steps=2, batch=6), torch.tensor([0])
    one, two = (content(b, 0) for b in drawn(federation, [0], local))
    other = content(drawn(federation, [0], local, round=1)[0], 0)
    again = content(drawn(federation, [0], local, round=torch.tensor(1))[0], 0)
    seeded = content(step_batch(Sampler(federation, local, NONE, 6, 30, torch.float64), client, 0, 0), 0)
    assert len({tuple(b) for b in (one, two, other, seeded)}) == 4
    assert again == other  # a round number in a tensor, as in a CUDA graph


def test_every_sample_is_drawn_equally_often():
    federation, tally = numbered([8]), torch.zeros(8)
    for round in range(1000):
        (batch,) = drawn(federation, [0], LocalPart(batch=3), round=round)
        tally[content(batch, 0)] += 1
    assert (tally - 375).abs().max() < 5 * (1000 * 3 / 8 * 5 / 8) ** 0.5


@pytest.mark.parametrize("count", [20, 21])
def test_large_clients_draw_with_replacement(monkeypatch, count):
    monkeypatch.setattr(batches, "_SORT_LIMIT", 20)
    federation, most, seen = numbered([count]), 0, set()
    for round in range(40):
        (batch,) = drawn(federation, [0], LocalPart(batch=15), round=round)
        held = content(batch, 0)
        assert len(held) == 15 and all(0 <= v < count for v in held)
        most, seen = max(most, len(held) - len(set(held))), seen | set(held)
    assert (most > 0) == (count > 20)
    assert len(seen) == count


@pytest.mark.parametrize("local", [LocalPart(steps=2, batch=4), LocalPart(epochs=2, batch=4)], ids=["steps", "epochs"])
def test_a_client_beside_a_large_one(monkeypatch, local):
    """A small client's batches do not change when somebody in the federation holds very many samples."""
    monkeypatch.setattr(batches, "_SORT_LIMIT", 10)
    federation = numbered()
    together = drawn(federation, [0, 1, 2, 3, 4], local)
    for k in range(5):
        alone = [content(b, 0) for b in drawn(federation, [k], local, longest=COUNTS[k])]
        cohort = [content(b, k) for b in together]
        assert [b for b in cohort if b] == [b for b in alone if b]
    if local.epochs:  # as many draws a pass as there are samples, for everybody
        assert [sum(len(content(b, k)) for b in together) for k in range(5)] == [2 * n for n in COUNTS]
