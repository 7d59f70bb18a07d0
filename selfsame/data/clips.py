"""Clips of recordings: at random places for training, evenly spaced for evaluation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from selfsame.data.federation import Movable, Rows
from selfsame.data.formats.wav import Pcm
from selfsame.data.people import Ints
from selfsame.streams import Stream


@dataclass(frozen=True)
class Pieces:
    """Stretches of one flat array of 16-bit samples: whole utterances, or windows of them."""

    flat: Pcm
    begin: Ints
    length: Ints

    def __len__(self) -> int:
        return len(self.begin)

    def pick(self, row: Ints) -> Pieces:
        """Some of the pieces, in this order."""
        return replace(self, begin=self.begin[row], length=self.length[row])

    def windows(self, width: int) -> tuple[Pieces, Ints]:
        """Each piece cut into stretches of `width`, end to end, and the piece each comes from.

        What is left over at the end is dropped; a piece that is shorter stays as it is.
        """
        number = np.maximum(self.length // width, 1)
        origin = np.repeat(np.arange(len(self)), number)
        place = np.arange(len(origin)) - np.repeat(np.cumsum(number) - number, number)
        length = np.minimum(self.length[origin], width)
        return Pieces(self.flat, self.begin[origin] + place * width, length), origin

    def read(self, number: int, start: int, width: int) -> Pcm:
        """`width` samples of a piece from `start` on; one that is shorter begins again where it ends."""
        begin, length = int(self.begin[number]), int(self.length[number])
        if start + width <= length:
            return self.flat[begin + start : begin + start + width]
        return np.take(self.flat[begin : begin + length], np.arange(start, start + width), mode="wrap")


def even_starts(length: Ints, width: int, number: int) -> Ints:
    """Where `number` clips begin (n, number): from the first place to the last, evenly; one alone in the middle."""
    room = np.maximum(length - width, 0)[:, None]
    if number == 1:
        return room // 2
    return room * np.arange(number) // (number - 1)


def random_starts(length_MB: Tensor, width: int, stream: Stream) -> Tensor:
    """Where a clip begins in each piece: any place that leaves room for it, all equally likely."""
    room_MB = (length_MB - width).clamp(min=0) + 1
    return (stream.uniform(length_MB.shape[1]).double() * room_MB).long()  # float32 could round up to the room itself


@dataclass(frozen=True, kw_only=True)
class Crops(Rows):
    """Clips for evaluation, read when asked for: (n, 1, width), or (n, number, 1, width) where there are several."""

    pieces: Pieces  # `row` says which of them; `store` is their flat array
    width: int
    number: int

    @staticmethod
    def of(pieces: Pieces, width: int, number: int) -> Crops:
        """Clips of all the pieces."""
        return Crops(pieces.flat, np.arange(len(pieces)), pieces=pieces, width=width, number=number)

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.row), *((self.number,) if self.number > 1 else ()), 1, self.width)

    @property
    def row_bytes(self) -> int:
        return self.number * self.width * self.store.itemsize

    def __getitem__(self, which: slice | Tensor) -> Tensor:
        row = self.row[which] if isinstance(which, slice) else self.row[which.cpu().numpy()]
        start = even_starts(self.pieces.length[row], self.width, self.number)
        out = np.empty((len(row), self.number, self.width), np.int16)
        for place, piece in enumerate(row.tolist()):
            for crop in range(self.number):
                out[place, crop] = self.pieces.read(piece, int(start[place, crop]), self.width)
        return torch.from_numpy(out).reshape(len(row), *self.shape[1:]).to(self.device)


@dataclass(frozen=True)
class HeldClips(Movable):
    """Training clips of recordings that lie in one tensor, client after client."""

    flat: Tensor  # int16
    begin_U: Tensor  # of each utterance; each is at least `width` long
    length_U: Tensor
    start_N: Tensor  # the first utterance of each client
    width: int

    on_host: ClassVar[bool] = False

    @staticmethod
    def of(pieces: Pieces, start_N: Tensor, width: int) -> HeldClips:
        """A copy of the pieces in memory, the short ones repeated until they are long enough."""
        length = np.maximum(pieces.length, width)
        begin = np.cumsum(length) - length
        flat = np.empty(int(length.sum()), np.int16)
        for number in range(len(pieces)):
            flat[begin[number] : begin[number] + length[number]] = pieces.read(number, 0, int(length[number]))
        begin_U, length_U = torch.from_numpy(begin), torch.from_numpy(length)
        return HeldClips(torch.from_numpy(flat), begin_U, length_U, start_N, width)

    def rows(self, client_M: Tensor, index_MB: Tensor) -> Tensor:
        """The middle of each utterance."""
        utterance_MB = self.start_N[client_M][:, None] + index_MB
        return self._cut(utterance_MB, (self.length_U[utterance_MB] - self.width) // 2)

    def crops(self, client_M: Tensor, index_MB: Tensor, stream: Stream) -> Tensor:
        """A random stretch of each utterance."""
        utterance_MB = self.start_N[client_M][:, None] + index_MB
        return self._cut(utterance_MB, random_starts(self.length_U[utterance_MB], self.width, stream))

    def _cut(self, utterance_MB: Tensor, start_MB: Tensor) -> Tensor:
        return self.flat.unfold(0, self.width, 1)[self.begin_U[utterance_MB] + start_MB][:, :, None]


@dataclass(frozen=True)
class MappedClips:
    """Training clips of recordings that may be more than memory holds; only those of a batch are read and moved."""

    pieces: Pieces  # client after client
    start_N: Tensor  # the first utterance of each client, on the CPU
    width: int
    device: torch.device = torch.device("cpu")  # noqa: RUF009

    on_host: ClassVar[bool] = True

    def rows(self, client_M: Tensor, index_MB: Tensor) -> Tensor:
        """The middle of each utterance."""
        utterance_MB, length_MB = self._utterances(client_M, index_MB)
        return self._cut(utterance_MB, (length_MB - self.width).clamp(min=0) // 2)

    def crops(self, client_M: Tensor, index_MB: Tensor, stream: Stream) -> Tensor:
        """A random stretch of each utterance."""
        utterance_MB, length_MB = self._utterances(client_M, index_MB)
        return self._cut(utterance_MB, random_starts(length_MB, self.width, Stream(stream.key_M.cpu())))

    def _utterances(self, client_M: Tensor, index_MB: Tensor) -> tuple[Tensor, Tensor]:
        utterance_MB = self.start_N[client_M.cpu()][:, None] + index_MB.cpu()
        return utterance_MB, torch.from_numpy(self.pieces.length[utterance_MB.numpy()])

    def _cut(self, utterance_MB: Tensor, start_MB: Tensor) -> Tensor:
        out = np.empty((utterance_MB.numel(), 1, self.width), np.int16)
        for place, (number, start) in enumerate(zip(utterance_MB.flatten().tolist(), start_MB.flatten().tolist())):
            out[place, 0] = self.pieces.read(number, start, self.width)
        return torch.from_numpy(out).unflatten(0, utterance_MB.shape).to(self.device)

    def to(self, device: torch.device | str) -> MappedClips:
        return replace(self, device=torch.device(device))
