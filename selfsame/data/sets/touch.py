"""Touch events of anybody's from a CSV file, one row per touch or one row per point of a touch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from selfsame.data.dataset import DataSet
from selfsame.data.federation import Federation
from selfsame.data.formats.csv_table import CsvTable, Floats, find_csv, needed_columns, read_csv, read_header
from selfsame.data.people import Ints
from selfsame.data.touches import Touches, TouchOptions, federate_touches, touch_vectors
from selfsame.errors import SelfsameError
from selfsame.fields import one_of

WANTS = (
    "a CSV file, alone in the folder PATH, with a header and one row a touch (user, time, x_start, y_start, x_end, "
    "y_end, duration, pressure, size) or one row per point of a touch (user, time, action, x, y, pressure, size)"
)
_BEYOND = 0.5  # how far off the screen, in screens, a touch may begin or end before its unit is in doubt
_TOUCH = ("time", "x_start", "y_start", "x_end", "y_end", "duration", "pressure", "size")
_POINT = ("time", "action", "x", "y", "pressure", "size")
_DOWN, _UP, _MOVE = range(3)  # Android's numbers of the actions


def load_touch(
    path: Path,
    options: TouchOptions,
    *,
    validation_share: float = 0.0,
    test_share: float = 0.25,
    missing: str = "error",
) -> Federation:
    """Touch events from a CSV file; the last touches of each person, by time, are for validation and then for testing.

    `validation_share` and `test_share` say how many. A touch that lacks a number is `missing`: error, or drop.

    The columns of a row for each touch: user (any text), time (ms, when it began), x_start, y_start, x_end, y_end,
    duration (ms), pressure and size (0 to 1), and, where they are there, type (0 swipe, 1 tap). Instead, a row may be
    one point of a touch: user, time, action (0 down, 1 up, 2 move), x, y, pressure and size, of which the touch gets
    the mean. Either may have width and height, the screen's size in the unit of the coordinates, without which these
    must be shares of the screen; and session (any text), beyond which no sample goes on. Other columns are ignored.
    At most `test` samples of a person are kept for testing, evenly over the touches there are, and `stride` touches
    apart (0: none shares a touch with another); `least` samples of each kind make a client.
    """
    one_of("touch: missing", missing, ("error", "drop"))
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
    return federate_touches("touch", touches, part_T, options, notes)


_FIXED = ("train", "validation", "unseen_samples")
TOUCH = DataSet("touch", load_touch, True, WANTS, "touchauth", 64, file=True, shared=TouchOptions(), fixed=_FIXED)


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
    columns = (*needed, *screen, *optional)
    table = read_csv(file, keys, lambda there: needed_columns(file, there, columns), missing=missing)
    notes: tuple[str, ...] = (f"{table.dropped} rows are left out, with missing values",) if table.dropped else ()
    table = table.pick(np.lexsort((table["time"], *(table.key_S[key] for key in reversed(keys)))))
    person, session = table.key_S["user"], table.key_S.get("session", np.zeros_like(table.key_S["user"]))
    if points:
        begin, until, of_row, left = _strokes(file, table, person, session)
        if left:
            notes += (f"{left} touches are left out, without a beginning or an end",)
        time = table["time"]
        own = of_row >= 0
        number = np.bincount(of_row[own], minlength=len(begin))
        pressure, size = (
            np.bincount(of_row[own], table[name][own], len(begin)) / number for name in ("pressure", "size")
        )
        place_T2 = _on_screen(file, table, ("x", "y"), screen)
        vector = touch_vectors(place_T2[begin], place_T2[until], time[until] - time[begin], pressure, size)
        return Touches(vector, person[begin], session[begin], time[begin], table.names["user"]), notes
    duration = table["duration"]
    table.refuse(file, duration < 0, "duration is below 0 ms")
    tap = None
    if optional:
        kind = table["type"]
        table.refuse(file, ~np.isin(kind, (0, 1)), "type is neither 0 (swipe) nor 1 (tap)")
        tap = kind == 1
    start, end = (_on_screen(file, table, corner, screen) for corner in (("x_start", "y_start"), ("x_end", "y_end")))
    vector = touch_vectors(start, end, duration, table["pressure"], table["size"], tap)
    return Touches(vector, person, session, table["time"], table.names["user"]), notes


def _strokes(file: Path, table: CsvTable, person: Ints, session: Ints) -> tuple[Ints, Ints, Ints, int]:
    """(first point, last point of each touch, the touch of each point or -1, touches without either): down to up."""
    action = table["action"]
    table.refuse(file, ~np.isin(action, (_DOWN, _UP, _MOVE)), "action is not 0, 1 or 2")
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


def _on_screen(file: Path, table: CsvTable, corner: tuple[str, str], screen: Sequence[str]) -> Floats:
    """Places as shares of the screen."""
    place_T2 = np.stack([table[name] for name in corner], 1)
    hint = "are width and height right?" if screen else "without columns width and height it is a share of the screen"
    if screen:
        size_T2 = np.stack([table[name] for name in screen], 1)
        table.refuse(file, size_T2.min(1) <= 0, "the screen's width or height is not above 0")
        with np.errstate(over="ignore"):
            place_T2 = place_T2 / size_T2
    for name, share in zip(corner, place_T2.T):
        table.refuse(file, np.abs(share - 0.5) > 0.5 + _BEYOND, f"{name} is far off the screen; {hint}")
    return place_T2
