"""How people touch their phones: touch events as FDML's TouchAuth uses them, Touchalytics, and Hold and Tap.

A touch is a vector of 10 numbers and a sample is 30 touches in a row, float32 (1, 30, 10) (FDML, appendix).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from selfsame.data.federation import Federation, Samples
from selfsame.data.people import Ints, choose_people, too_few
from selfsame.data.sets.table import Floats, Table, drawn_trials, federate_table, find_csv, read_csv, read_header
from selfsame.errors import SelfsameError

WANTS = (
    "a CSV file, alone in the folder PATH, with a header and one row a touch (user, time, x_start, y_start, x_end, "
    "y_end, duration, pressure, size) or one row a point of a touch (user, time, action, x, y, pressure, size)"
)
TOUCHALYTICS_WANTS = (
    "features.csv in PATH or PATH/touchalytics: the extracted features with the columns user and doc_0 added; "
    "from http://www.mariofrank.net/touchalytics/"
)
HOLD_AND_TAP_WANTS = (
    "features.csv in PATH or PATH/hold_and_tap: user, touch_0 to touch_29, sensor_0 to sensor_111 and activity_0; "
    "from https://github.com/apachetechnology/HoldandTapDataset"
)
_LONGEST_TOUCH = 1600.0  # ms; FDML clips durations there
_WITHIN = 30 * 60_000.0  # ms from the first to the last touch of a sample
_SLOP = 8 / 320  # Android calls it a swipe from 8 dp on; a phone is 320 dp wide or more
_BEYOND = 0.5  # how far off the screen, in screens, a touch may begin or end before its unit is in doubt
_TRAIN, _VALIDATION, _TEST = range(3)
_TOUCH = ("time", "x_start", "y_start", "x_end", "y_end", "duration", "pressure", "size")
_POINT = ("time", "action", "x", "y", "pressure", "size")
_DOWN, _UP, _MOVE = range(3)  # Android's numbers of the actions


@dataclass(frozen=True)
class Touches:
    """Touches of many people, those of a person's session next to each other and in the order of time."""

    vector_TF: NDArray[np.float32]
    person_T: Ints
    session_T: Ints
    time_T: Floats  # ms, when the finger came down
    names: tuple[str, ...]


@dataclass(frozen=True)
class Windows:
    """Samples of consecutive touches: a batch draws their first touch at random, as FDML's clients do (VII-B)."""

    touch_TF: Tensor
    first_S: Tensor  # the first touch of each sample, client after client
    start_N: Tensor
    events: int

    on_host: ClassVar[bool] = False

    def rows(self, client_M: Tensor, index_MB: Tensor) -> Tensor:
        return self.windows(self.first_S[self.start_N[client_M][:, None] + index_MB])

    def windows(self, first: Tensor) -> Tensor:
        """The samples (*first.shape, 1, events, F) that begin with these touches."""
        place = first[..., None] + torch.arange(self.events, device=first.device)
        return self.touch_TF[place][..., None, :, :]

    def to(self, device: torch.device | str) -> Windows:
        return Windows(self.touch_TF.to(device), self.first_S.to(device), self.start_N.to(device), self.events)


def load_touch(
    path: Path,
    *,
    events: int = 30,
    stride: int = 0,
    validation_share: float = 0.0,
    test_share: float = 0.25,
    test: int = 40,
    people: int = 0,
    held_out: int = 0,
    least: int = 1,
    missing: str = "error",
    trials: int = 20_000,
    seed: int = 0,
) -> Federation:
    """Touch events from a CSV file; the last touches of each person, by time, are for validation and then for testing.

    The columns of a row for each touch: user (any text), time (ms, when it began), x_start, y_start, x_end, y_end,
    duration (ms), pressure and size (0 to 1), and, where they are there, type (0 swipe, 1 tap). Instead, a row may be
    one point of a touch: user, time, action (0 down, 1 up, 2 move), x, y, pressure and size, of which the touch gets
    the mean. Either may have width and height, the screen's size in the unit of the coordinates, without which these
    must be shares of the screen; and session (any text), beyond which no sample goes on. Other columns are ignored.
    At most `test` samples of a person are kept for testing, evenly over the touches there are, and `stride` touches
    apart (0: none shares a touch with another); `least` samples of each kind make a client.
    """
    if missing not in ("error", "drop"):
        raise SelfsameError(f"touch: missing must be error or drop, got {missing!r}")
    if validation_share < 0 or test_share <= 0 or validation_share + test_share >= 1:
        raise SelfsameError(
            "touch: test_share must be above 0, validation_share not below, and their sum below 1, "
            f"got {test_share} and {validation_share}"
        )
    touches, notes = read_touches(find_csv(path, WANTS), missing)
    count_P = np.bincount(touches.person_T)
    rank_T = np.empty_like(touches.person_T)
    rank_T[np.lexsort((touches.time_T, touches.person_T))] = np.arange(len(rank_T))
    rank_T -= (np.cumsum(count_P) - count_P)[touches.person_T]
    left_T = (count_P[touches.person_T] - rank_T).astype(np.float64)  # touches from here on, this one among them
    late_P, middle_P = (np.floor(share * count_P + 0.5) for share in (test_share, validation_share))
    is_late = left_T <= late_P[touches.person_T]
    part_T = is_late.astype(np.int64) + (left_T <= (late_P + middle_P)[touches.person_T])
    return federate_touches(
        "touch",
        touches,
        part_T,
        events=events,
        stride=stride,
        test=test,
        people=people,
        held_out=held_out,
        least=least,
        trials=trials,
        seed=seed,
        notes=notes,
    )


def load_touchalytics(
    path: Path,
    *,
    events: int = 30,
    stride: int = 0,
    validation: bool = False,
    test: int = 40,
    people: int = 0,
    held_out: int = 11,
    least: int = 1,
    trials: int = 20_000,
    seed: int = 0,
) -> Federation:
    """Touchalytics (Frank et al., 2013), its strokes turned into FDML's touches; documents 2 and 5 are for testing.

    Start and end are the file's, which counts in steps of 25.4/252 mm (phones 1, 3 and 5) or 25.4/233 mm (2 and 4) on
    screens of 320 x 533 such steps, with y pointing up; divided by the screen's size, y turned down, and exchanged
    where the phone lay on its side. Duration is the stroke's; pressure and size are those at mid-stroke, not over the
    whole of it. The publisher has left taps out: a tap is a stroke that hardly moves. When a stroke began is the sum of
    the inter-stroke times before it, and each document is a session. With `validation`, document 3 is for validation.
    """
    touches = read_touchalytics(find_csv(_folder(path, "touchalytics"), TOUCHALYTICS_WANTS, "features.csv"))
    part_T = np.where(np.isin(touches.session_T, (2, 5)), _TEST, _TRAIN)
    if validation:
        part_T[touches.session_T == 3] = _VALIDATION
    return federate_touches(
        "touchalytics",
        touches,
        part_T,
        events=events,
        stride=stride,
        test=test,
        people=people,
        held_out=held_out,
        least=least,
        trials=trials,
        seed=seed,
    )


def load_touchalytics_strokes(
    path: Path,
    *,
    people: int = 0,
    held_out: int = 11,
    train: int = 0,
    validation: int = 0,
    test: int = 40,
    least: int = 0,
    unseen_samples: int = 200,
    trials: int = 20_000,
    seed: int = 0,
) -> Federation:
    """Touchalytics with a stroke for a sample: its features but for the phone and the document, which are labels."""
    file = find_csv(_folder(path, "touchalytics"), TOUCHALYTICS_WANTS, "features.csv")
    return federate_table(
        "touchalytics_strokes",
        file,
        user="user",
        columns="*",
        without="phone id,doc_0",
        missing="mean",
        standardise=True,
        people=people,
        held_out=held_out,
        train=train,
        validation=validation,
        test=test,
        least=least,
        unseen_samples=unseen_samples,
        trials=trials,
        seed=seed,
    )


def load_hold_and_tap(
    path: Path,
    *,
    columns: str = "touch_*,sensor_*",
    people: int = 0,
    held_out: int = 25,
    train: int = 0,
    validation: int = 0,
    test: int = 20,
    least: int = 0,
    unseen_samples: int = 200,
    trials: int = 20_000,
    seed: int = 0,
) -> Federation:
    """Hold and Tap (Buriro et al., 2021): timing of taps and motion of the phone while a number is typed in."""
    file = find_csv(_folder(path, "hold_and_tap"), HOLD_AND_TAP_WANTS, "features.csv")
    return federate_table(
        "hold_and_tap",
        file,
        user="user",
        columns=columns,
        without="",
        missing="mean",
        standardise=True,
        people=people,
        held_out=held_out,
        train=train,
        validation=validation,
        test=test,
        least=least,
        unseen_samples=unseen_samples,
        trials=trials,
        seed=seed,
    )


def _folder(path: Path, name: str) -> Path:
    return path / name if (path / name).is_dir() else path


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


def first_touches(touches: Touches, part_T: Ints, events: int) -> Ints:
    """The touches with which a sample can begin: all of it one person's, in one session and part, within 30 minutes."""
    first = np.arange(max(0, len(touches.person_T) - events + 1))
    last = first + events - 1
    same = np.ones(len(first), np.bool_)
    for column in (touches.person_T, touches.session_T, part_T):
        change = np.cumsum(np.append(0, column[1:] != column[:-1]))
        same &= change[first] == change[last]
    return first[same & (touches.time_T[last] - touches.time_T[first] <= _WITHIN)]


def federate_touches(
    name: str,
    touches: Touches,
    part_T: Ints,
    *,
    events: int,
    stride: int,
    test: int,
    people: int,
    held_out: int,
    least: int,
    trials: int,
    seed: int,
    notes: tuple[str, ...] = (),
) -> Federation:
    """Samples of `events` touches: in training every one there is, elsewhere at most `test` of a person's.

    Elsewhere they are `stride` touches apart, 0 for samples that share no touch: those of one person that do are alike.
    """
    for option, value, lowest in (("events", events, 1), ("stride", stride, 0), ("test", test, 1), ("least", least, 1)):
        if not lowest <= value <= 1_000_000:
            raise SelfsameError(f"{name}: {option} must be {lowest} to 1000000, got {value}")
    first_W = first_touches(touches, part_T, events)
    part_W = part_T[first_W]
    train_P, validation_P, test_P = (
        _by_person(touches, first_W[part_W == part], 1 if part == _TRAIN else stride or events)
        for part in (_TRAIN, _VALIDATION, _TEST)
    )
    used = [train_P, test_P, *([validation_P] if (part_T == _VALIDATION).any() else [])]
    count_P = np.min([[len(first) for first in part_P] for part_P in used], 0)
    # One sample in each part makes two of the person, enough for somebody unseen.
    choice = choose_people(name, count_P, seed=seed, people=people, held_out=held_out, least=least, least_unseen=1)
    seen, unseen = choice.seen.tolist(), choice.unseen.tolist()
    train = [train_P[person] for person in seen]
    count_N = np.array([len(first) for first in train])
    source = Windows(
        torch.from_numpy(touches.vector_TF),
        torch.from_numpy(np.concatenate(train)),
        torch.from_numpy(np.cumsum(count_N) - count_N),
        events,
    )
    anywhere_P = _by_person(touches, first_touches(touches, np.zeros_like(part_T), events), stride or events)

    def samples(first_P: list[Ints], whose: list[int], label: int) -> Samples:
        chosen = [_evenly(first_P[person], test) for person in whose]
        y = np.repeat(np.arange(label, label + len(chosen)), [len(first) for first in chosen])
        first = np.concatenate([*chosen, np.empty(0, np.int64)])
        return Samples(source.windows(torch.from_numpy(first)), torch.from_numpy(y))

    few, left_out = too_few(touches.names, choice)
    away = samples(anywhere_P, unseen, len(seen))
    return Federation(
        name=name,
        shape=(1, events, touches.vector_TF.shape[1]),
        class_of_N=torch.arange(len(seen)),
        count_N=torch.from_numpy(count_N),
        source=source,
        test=samples(test_P, seen, 0),
        unseen=away,
        validation=samples(validation_P, seen, 0),
        trials=drawn_trials(name, away.y.numpy(), trials, seed),
        notes=(*notes, *few),
        class_names=tuple(touches.names[person] for person in (*seen, *unseen)),
        left_out=left_out,
    )


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


def read_touches(file: Path, missing: str) -> tuple[Touches, tuple[str, ...]]:
    """The touches of a CSV file in one of the two forms that `load_touch` describes, and notes."""
    header = read_header(file, ("user",))
    keys = ("user", "session") if "session" in header else ("user",)
    screen = tuple(name for name in ("width", "height") if name in header)
    if len(screen) == 1:
        raise SelfsameError(f"{file}: line 1: a column {screen[0]!r}, but none for the other side of the screen")
    points = "action" in header
    needed = _POINT if points else _TOUCH
    optional = tuple(name for name in ("type",) if name in header and not points)
    table = read_csv(file, keys, lambda there: _chosen(file, there, (*needed, *screen, *optional)), missing=missing)
    notes: tuple[str, ...] = (f"{table.dropped} rows are left out, with missing values",) if table.dropped else ()
    table = _in_order(table, keys)
    person, session = table.key_S["user"], table.key_S.get("session", np.zeros_like(table.key_S["user"]))
    if points:
        begin, until, of_row, left = _strokes(file, table, person, session)
        if left:
            notes += (f"{left} touches are left out, without a beginning or an end",)
        time = _column(table, "time")
        own = of_row >= 0
        number = np.bincount(of_row[own], minlength=len(begin))
        pressure, size = (
            np.bincount(of_row[own], _column(table, name)[own], len(begin)) / number for name in ("pressure", "size")
        )
        place_T2 = _on_screen(file, table, ("x", "y"), screen)
        vector = touch_vectors(place_T2[begin], place_T2[until], time[until] - time[begin], pressure, size)
        return Touches(vector, person[begin], session[begin], time[begin], table.names["user"]), notes
    duration = _column(table, "duration")
    _refuse(file, table, duration < 0, "duration is below 0 ms")
    tap = None
    if optional:
        kind = _column(table, "type")
        _refuse(file, table, ~np.isin(kind, (0, 1)), "type is neither 0 (swipe) nor 1 (tap)")
        tap = kind == 1
    start, end = (_on_screen(file, table, corner, screen) for corner in (("x_start", "y_start"), ("x_end", "y_end")))
    vector = touch_vectors(start, end, duration, _column(table, "pressure"), _column(table, "size"), tap)
    return Touches(vector, person, session, _column(table, "time"), table.names["user"]), notes


def _strokes(file: Path, table: Table, person: Ints, session: Ints) -> tuple[Ints, Ints, Ints, int]:
    """(first point, last point of each touch, the touch of each point or -1, touches without either): down to up."""
    action = _column(table, "action")
    _refuse(file, table, ~np.isin(action, (_DOWN, _UP, _MOVE)), "action is not 0, 1 or 2")
    new = np.append(True, (person[1:] != person[:-1]) | (session[1:] != session[:-1]))
    group = np.cumsum(new | (action == _DOWN)) - 1
    begin = np.flatnonzero(np.append(True, group[1:] != group[:-1]))
    up = np.flatnonzero(action == _UP)
    with_up, at = np.unique(group[up], return_index=True)
    end = np.full(len(begin), -1)
    end[with_up] = up[at]  # the first, should there be several
    whole = (action[begin] == _DOWN) & (end >= 0)
    number = np.where(whole, np.cumsum(whole) - 1, -1)
    of_row = np.where(np.arange(len(group)) <= end[group], number[group], -1)
    return begin[whole], end[whole], of_row, int((~whole).sum())


def read_touchalytics(file: Path) -> Touches:
    """The strokes of features.csv as touches; the session is the number of the document."""
    start, end = ("start $x$", "start $y$"), ("stop $x$", "stop $y$")
    gap, rest = "inter-stroke time", ("stroke duration", "mid-stroke pressure", "mid-stroke area covered")
    needed = (*start, *end, *rest, "phone id", "phone orientation", "doc_0", gap)
    table = read_csv(file, ("user",), lambda there: _chosen(file, there, needed), missing="keep")
    _refuse(file, table, np.isnan(table.number_SF[:, :-1].sum(1)), "a value is missing")
    phone, turned, document = (_column(table, name) for name in ("phone id", "phone orientation", "doc_0"))
    _refuse(file, table, ~np.isin(phone, range(1, 6)), "phone id is not 1 to 5")
    _refuse(file, table, ~np.isin(turned, (1, 2)), "phone orientation is neither 1 nor 2")
    _refuse(file, table, ~np.isin(document, range(1, 8)), "doc_0 is not a document from 1 to 7")
    order = np.lexsort((document, table.key_S["user"]))
    step = 25.4 / np.where(np.isin(phone, (2, 4)), 233, 252)
    screen_T2 = np.where(turned[:, None] == 1, (320, 533), (533, 320)) * step[:, None] * (1, -1)
    begin, until = (np.stack([_column(table, name) for name in corner], 1) / screen_T2 for corner in (start, end))
    duration, pressure, size = (_column(table, name) for name in rest)
    vector = touch_vectors(begin, until, duration * 1000, pressure, size)
    # The time to the next stroke; where that is unknown, as at the end of a document, more than a sample may last.
    wait = _column(table, gap)[order] * 1000
    wait = np.where(wait >= 0, wait, 2 * _WITHIN)
    time = np.append(0.0, np.cumsum(wait)[:-1])
    return Touches(
        vector[order], table.key_S["user"][order], document[order].astype(np.int64), time, table.names["user"]
    )


def _chosen(file: Path, there: Sequence[str], needed: Sequence[str]) -> list[str]:
    absent = [name for name in needed if name not in there]
    if absent:
        raise SelfsameError(f"{file}: line 1: no column {absent[0]!r}; needed: {', '.join(needed)}")
    return list(needed)


def _column(table: Table, name: str) -> Floats:
    return table.number_SF[:, table.columns.index(name)]


def _in_order(table: Table, keys: Sequence[str]) -> Table:
    """The rows by person, then by session, then by time."""
    order = np.lexsort((_column(table, "time"), *(table.key_S[key] for key in reversed(keys))))
    keyed = {key: column[order] for key, column in table.key_S.items()}
    return replace(table, number_SF=table.number_SF[order], key_S=keyed, line_S=table.line_S[order])


def _on_screen(file: Path, table: Table, corner: tuple[str, str], screen: Sequence[str]) -> Floats:
    """Places as shares of the screen."""
    place_T2 = np.stack([_column(table, name) for name in corner], 1)
    hint = "are width and height right?" if screen else "without columns width and height it is a share of the screen"
    if screen:
        size_T2 = np.stack([_column(table, name) for name in screen], 1)
        _refuse(file, table, size_T2.min(1) <= 0, "the screen's width or height is not above 0")
        with np.errstate(over="ignore"):
            place_T2 = place_T2 / size_T2
    for name, share in zip(corner, place_T2.T):
        _refuse(file, table, np.abs(share - 0.5) > 0.5 + _BEYOND, f"{name} is far off the screen; {hint}")
    return place_T2


def _refuse(file: Path, table: Table, bad: NDArray[np.bool_], fault: str) -> None:
    """Say what is wrong with the first bad line of the file."""
    if bad.any():
        raise SelfsameError(f"{file}: line {int(table.line_S[bad].min())}: {fault}")
