"""Touches of a phone's screen as FDML's TouchAuth uses them, and the federation of people who touch.

A touch is a vector of 10 numbers and a sample is 30 touches in a row, float32 (1, 30, 10) (FDML, appendix).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from selfsame.data.dataset import bounded
from selfsame.data.federation import Federation, Movable
from selfsame.data.formats.csv_table import Floats
from selfsame.data.people import Division, Ints, Part, SplitOptions, by_people, choose_people, part_of, too_few
from selfsame.data.trial_lists import draw_trials

LONGEST_SAMPLE = 30 * 60_000.0  # ms from its first to its last touch
TRAIN, VALIDATION, TEST = range(3)
_LONGEST_TOUCH = 1600.0  # ms; FDML clips durations there
_SLOP = 8 / 320  # Android calls it a swipe from 8 dp on; a phone is 320 dp wide or more


@dataclass(frozen=True)
class TouchOptions(SplitOptions):
    """The options of all sets of touches; at most `test` samples of a person are kept for testing."""

    test: int = bounded(40, 1)  # the most samples of a person for testing
    least: int = bounded(1, 1)  # samples of each kind that make a client
    events: int = bounded(30, 1)  # touches of a sample
    stride: int = bounded(0, 0)  # touches between the samples of a test, 0 for samples that share none


@dataclass(frozen=True)
class Touches:
    """Touches of many people, those of a person's session next to each other and in the order of time."""

    vector_TF: NDArray[np.float32]
    person_T: Ints
    session_T: Ints
    time_T: Floats  # ms, when the finger came down
    names: tuple[str, ...]


@dataclass(frozen=True)
class Windows(Movable):
    """Samples of consecutive touches: a batch draws their first touch at random, as FDML's clients do (VII-B)."""

    touch_TF: Tensor
    first_S: Tensor  # the first touch of each sample, client after client
    start_N: Tensor
    events: int

    on_host: ClassVar[bool] = False

    def rows(self, client_M: Tensor, index_MB: Tensor) -> Tensor:
        return windows(self.touch_TF, self.first_S[self.start_N[client_M][:, None] + index_MB], self.events)


def windows(touch_TF: Tensor, first: Tensor, events: int) -> Tensor:
    """The samples (*first.shape, 1, events, F) that begin with these touches."""
    place = first[..., None] + torch.arange(events, device=first.device)
    return touch_TF[place][..., None, :, :]


def federate_touches(
    name: str, touches: Touches, part_T: Ints, options: TouchOptions, notes: tuple[str, ...] = ()
) -> Federation:
    """Samples of `events` touches: in training every one there is, elsewhere at most `test` of a person's.

    Elsewhere they are `stride` touches apart, 0 for samples that share no touch: those of one person that do are alike.
    """
    events, stride = options.events, options.stride or options.events
    first_W = first_touches(touches, part_T, events)
    part_W = part_T[first_W]
    train_P, validation_P, test_P = (
        _by_person(touches, first_W[part_W == part], 1 if part == TRAIN else stride)
        for part in (TRAIN, VALIDATION, TEST)
    )
    used = [train_P, test_P, *([validation_P] if (part_T == VALIDATION).any() else [])]
    count_P = np.min([[len(first) for first in part_P] for part_P in used], 0)
    # One sample in each part makes two of the person, enough for somebody unseen.
    choice = choose_people(name, count_P, options, least=options.least, least_unseen=1)
    seen, unseen = choice.seen.tolist(), choice.unseen.tolist()
    anywhere_P = _by_person(touches, first_touches(touches, np.zeros_like(part_T), events), stride)

    def kept(first_P: list[Ints], whose: list[int], label: int = 0) -> Part:
        return part_of([_evenly(first_P[person], options.test) for person in whose], label)

    train, away = part_of([train_P[person] for person in seen]), kept(anywhere_P, unseen, len(seen))
    few = too_few(touches.names, choice)
    split = Division(choice.seen, choice.unseen, train, kept(validation_P, seen), kept(test_P, seen), away, *few)
    touch_TF = torch.from_numpy(touches.vector_TF)
    return by_people(
        name,
        (1, events, touch_TF.shape[1]),
        split,
        touches.names,
        lambda row: windows(touch_TF, torch.from_numpy(row), events),
        source=lambda start_N: Windows(touch_TF, torch.from_numpy(train.row), start_N, events),
        trials=draw_trials(away.label, options.trials, options.seed),
        notes=notes,
    )


def first_touches(touches: Touches, part_T: Ints, events: int) -> Ints:
    """The touches with which a sample can begin: all of it one person's, in one session and part, within 30 minutes."""
    first = np.arange(max(0, len(touches.person_T) - events + 1))
    last = first + events - 1
    same = np.ones(len(first), np.bool_)
    for column in (touches.person_T, touches.session_T, part_T):
        change = np.cumsum(np.append(0, column[1:] != column[:-1]))
        same &= change[first] == change[last]
    return first[same & (touches.time_T[last] - touches.time_T[first] <= LONGEST_SAMPLE)]


def touch_vectors(
    start_T2: Floats,
    end_T2: Floats,
    duration_T: Floats,
    pressure_T: Floats,
    size_T: Floats,
    tap_T: NDArray[np.bool_] | None = None,
) -> NDArray[np.float32]:
    """<x_s, y_s, x_e, y_e, x_d, y_d, dur, p, s, t> of touches on a screen of 1 x 1 (FDML, appendix); durations in ms.

    Where it is not known which are taps, those are that end no farther from their start than 8 dp either way.
    """
    moved_T2 = end_T2 - start_T2
    if tap_T is None:
        tap_T = np.abs(moved_T2).max(1) < _SLOP
    columns = (
        *start_T2.T,
        *end_T2.T,
        *(moved_T2 > 0).T,
        np.clip(duration_T, 0, _LONGEST_TOUCH) / _LONGEST_TOUCH,
        np.clip(pressure_T, 0, 1),
        np.clip(size_T, 0, 1),
        tap_T,
    )
    return np.stack([column.astype(np.float32) for column in columns], 1)


def _by_person(touches: Touches, first: Ints, stride: int) -> list[Ints]:
    """The first touches of each person's samples, at least `stride` apart; touches are in the order of people."""
    if stride > 1:
        apart: list[int] = []
        for touch in first.tolist():
            if not apart or touch - apart[-1] >= stride:
                apart.append(touch)
        first = np.array(apart, np.int64)
    return np.split(first, np.searchsorted(touches.person_T[first], np.arange(1, len(touches.names))))


def _evenly(first: Ints, most: int) -> Ints:
    number = min(most, len(first))
    return first[np.arange(number) * len(first) // max(number, 1)]
