"""Clips of recordings against plain slices."""

import numpy as np
import pytest
import torch

from selfsame.data.clips import Crops, HeldClips, MappedClips, Pieces, even_starts, random_starts
from selfsame.streams import Stream

LENGTHS = (50, 7, 20, 21, 33, 8)  # of six utterances: three clients hold 2, 1 and 3 of them
START_N = torch.tensor([0, 2, 3])
WIDTH = 20


def _pieces():
    """The samples count upwards, so that a clip says where it comes from; utterances do not lie in order."""
    begin = np.array([60, 0, 150, 200, 110, 300])
    return Pieces(np.arange(1000, dtype=np.int16), begin, np.array(LENGTHS))


def _clip(number, start, width):
    """One clip, sample by sample; an utterance that is too short begins again."""
    pieces = _pieces()
    return [int(pieces.begin[number]) + (start + i) % LENGTHS[number] for i in range(width)]


@pytest.mark.parametrize("number", [1, 2, 5, 10])
def test_clips_for_evaluation_are_evenly_spaced(number):
    found = even_starts(np.array(LENGTHS), WIDTH, number)
    for row, length in zip(found.tolist(), LENGTHS):
        room = max(length - WIDTH, 0)
        expected = [room // 2] if number == 1 else [int(room * k / (number - 1) + 1e-9) for k in range(number)]
        assert row == expected
        assert number == 1 or (row[0] == 0 and row[-1] == room)


@pytest.mark.parametrize("number, shape", [(1, (1, WIDTH)), (3, (3, 1, WIDTH))])
def test_evaluated_rows_are_the_utterances_slices(number, shape):
    crops = Crops.of(_pieces(), WIDTH, number)
    assert len(crops) == 6 and crops.shape == (6, *shape) and crops.row_bytes == 2 * number * WIDTH
    start = even_starts(np.array(LENGTHS), WIDTH, number)
    everything = crops[:]
    assert everything.shape == crops.shape and everything.dtype == torch.int16
    for row in range(6):
        clips = everything[row].reshape(number, WIDTH).tolist()
        assert clips == [_clip(row, at, WIDTH) for at in start[row].tolist()]
    assert torch.equal(torch.cat(list(crops.split(4))), everything)
    assert torch.equal(crops[torch.tensor([4, 0])], everything[[4, 0]])
    assert torch.equal(crops[torch.tensor([True, False] * 3)], everything[::2])
    assert torch.equal(crops.pick(np.array([3, 1]))[:], everything[[3, 1]])
    assert crops[:0].shape == (0, *shape)


def _sources():
    return HeldClips.of(_pieces(), START_N, WIDTH), MappedClips(_pieces(), START_N, WIDTH)


@pytest.mark.parametrize("source", _sources(), ids=["held", "mapped"])
def test_rows_are_the_middle_of_each_utterance(source):
    client, index = torch.tensor([2, 0]), torch.tensor([[1, 0, 2], [0, 1, 0]])
    rows = source.rows(client, index)
    assert rows.shape == (2, 3, 1, WIDTH) and rows.dtype == torch.int16
    for m in range(2):
        for b in range(3):
            number = int(START_N[client[m]] + index[m, b])
            assert rows[m, b, 0].tolist() == _clip(number, max(LENGTHS[number] - WIDTH, 0) // 2, WIDTH)


@pytest.mark.parametrize("source", _sources(), ids=["held", "mapped"])
def test_random_clips_lie_within_their_utterance(source):
    client, index = torch.tensor([0, 1, 2]), torch.tensor([[0, 1, 0, 1], [0, 0, 0, 0], [0, 1, 2, 2]])
    starts = random_starts(torch.tensor(LENGTHS)[START_N[client][:, None] + index], WIDTH, _stream(client))
    clips = source.crops(client, index, _stream(client))
    for m in range(3):
        for b in range(4):
            number = int(START_N[client[m]] + index[m, b])
            assert clips[m, b, 0].tolist() == _clip(number, int(starts[m, b]), WIDTH)
            assert 0 <= int(starts[m, b]) <= max(LENGTHS[number] - WIDTH, 0)


def _stream(client_M, step=0):
    return Stream.named(0, "crop", client_M, 3, step)


@pytest.mark.parametrize("source", _sources(), ids=["held", "mapped"])
def test_a_clients_clips_do_not_depend_on_the_cohort(source):
    client, index = torch.tensor([2, 0]), torch.tensor([[0, 1, 2], [0, 0, 1]])
    together = source.crops(client, index, _stream(client))
    for row in range(2):
        alone = source.crops(client[row : row + 1], index[row : row + 1], _stream(client[row : row + 1]))
        assert torch.equal(together[row], alone[0])
        fewer = source.crops(client[row : row + 1], index[row : row + 1, :2], _stream(client[row : row + 1]))
        assert torch.equal(together[row, :2], fewer[0])
    another = source.crops(client, index, _stream(client, 1))
    assert not torch.equal(together, another)


def test_held_and_mapped_give_the_same():
    held, mapped = (source.to("cpu") for source in _sources())
    client, index = torch.arange(3).repeat(20), torch.zeros(60, 4, dtype=torch.int64)
    assert torch.equal(held.rows(client, index), mapped.rows(client, index))
    assert torch.equal(held.crops(client, index, _stream(client)), mapped.crops(client, index, _stream(client)))
    assert not held.on_host and mapped.on_host


def test_every_place_is_equally_likely():
    """Also the first and the last one: 4 places, 8,000 draws."""
    client = torch.arange(1000)
    starts = random_starts(torch.full((1000, 8), WIDTH + 3), WIDTH, _stream(client))
    tally = torch.bincount(starts.flatten(), minlength=4)
    assert len(tally) == 4 and bool(((tally - 2000).abs() < 5 * 2000**0.5).all()), tally
    assert not torch.equal(starts[0], starts[1]), "each client draws its own"


def test_the_largest_draw_stays_inside():
    """In float32 the last number below 1, times 3, is 3."""

    class Top(Stream):
        def uniform(self, *shape):
            return torch.full((len(self.key_M), *shape), 1.0 - 2.0**-24)

    starts = random_starts(torch.tensor([[WIDTH + 2, WIDTH, 3]]), WIDTH, Top(torch.zeros(1, dtype=torch.int64)))
    assert starts.tolist() == [[2, 0, 0]]


def test_windows_are_laid_end_to_end():
    windows, origin = _pieces().windows(WIDTH)
    found = list(zip(origin.tolist(), windows.begin.tolist(), windows.length.tolist()))
    expected = []
    for number, length in enumerate(LENGTHS):
        begin = int(_pieces().begin[number])
        expected += [(number, begin + at, WIDTH) for at in range(0, length - WIDTH + 1, WIDTH)] or [
            (number, begin, length)
        ]
    assert found == expected and len(found) == 7
