"""Touchalytics (Frank et al., 2013): strokes on phones, as FDML's touches or as vectors of their features."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from selfsame.data.dataset import DataSet
from selfsame.data.federation import Federation
from selfsame.data.formats.csv_table import find_features, needed_columns, read_csv
from selfsame.data.tables import TableOptions, federate_table
from selfsame.data.touches import (
    LONGEST_SAMPLE,
    TEST,
    TRAIN,
    VALIDATION,
    Touches,
    TouchOptions,
    federate_touches,
    touch_vectors,
)

WANTS = (
    "features.csv in PATH or PATH/touchalytics: the extracted features with the columns user and doc_0 added; "
    "from http://www.mariofrank.net/touchalytics/"
)


def load_touchalytics(path: Path, options: TouchOptions, *, validation: bool = False) -> Federation:
    """Touchalytics (Frank et al., 2013), its strokes turned into FDML's touches; documents 2 and 5 are for testing.

    Start and end are the file's, which counts in steps of 25.4/252 mm (phones 1, 3 and 5) or 25.4/233 mm (2 and 4) on
    screens of 320 x 533 such steps, with y pointing up; divided by the screen's size, y turned down, and exchanged
    where the phone lay on its side. Duration is the stroke's; pressure and size are those at mid-stroke, not over the
    whole of it. The publisher has left taps out: a tap is a stroke that hardly moves. When a stroke began is the sum of
    the inter-stroke times before it, and each document is a session. With `validation`, document 3 is for validation.
    """
    touches = read_touchalytics(find_features(path, "touchalytics", WANTS))
    part_T = np.where(np.isin(touches.session_T, (2, 5)), TEST, TRAIN)
    if validation:
        part_T[touches.session_T == 3] = VALIDATION
    return federate_touches("touchalytics", touches, part_T, options)


def load_strokes(path: Path, options: TableOptions) -> Federation:
    """Touchalytics with a stroke for a sample: its features but for the phone and the document, which are labels."""
    return federate_table("touchalytics_strokes", find_features(path, "touchalytics", WANTS), options)


_FIXED = ("train", "validation", "unseen_samples")
_STROKES = TableOptions(held_out=11, test=40, unseen_samples=200, without="phone id,doc_0", missing="mean")
_STROKES_FIXED = ("user", "columns", "without", "missing", "standardise")
TOUCHALYTICS = DataSet(
    "touchalytics", load_touchalytics, True, WANTS, "touchauth", 64, shared=TouchOptions(held_out=11), fixed=_FIXED
)
TOUCHALYTICS_STROKES = DataSet(
    "touchalytics_strokes", load_strokes, True, WANTS, "mlp", 64, shared=_STROKES, fixed=_STROKES_FIXED
)


def read_touchalytics(file: Path) -> Touches:
    """The strokes of features.csv as touches; the session is the number of the document."""
    start, end = ("start $x$", "start $y$"), ("stop $x$", "stop $y$")
    gap, rest = "inter-stroke time", ("stroke duration", "mid-stroke pressure", "mid-stroke area covered")
    needed = (*start, *end, *rest, "phone id", "phone orientation", "doc_0", gap)
    table = read_csv(file, ("user",), lambda there: needed_columns(file, there, needed), missing="keep")
    table.refuse(file, np.isnan(table.number_SF[:, :-1].sum(1)), "a value is missing")
    phone, turned, document = (table[name] for name in ("phone id", "phone orientation", "doc_0"))
    table.refuse(file, ~np.isin(phone, range(1, 6)), "phone id is not 1 to 5")
    table.refuse(file, ~np.isin(turned, (1, 2)), "phone orientation is neither 1 nor 2")
    table.refuse(file, ~np.isin(document, range(1, 8)), "doc_0 is not a document from 1 to 7")
    order = np.lexsort((document, table.key_S["user"]))
    step = 25.4 / np.where(np.isin(phone, (2, 4)), 233, 252)
    screen_T2 = np.where(turned[:, None] == 1, (320, 533), (533, 320)) * step[:, None] * (1, -1)
    begin, until = (np.stack([table[name] for name in corner], 1) / screen_T2 for corner in (start, end))
    duration, pressure, size = (table[name] for name in rest)
    vector = touch_vectors(begin, until, duration * 1000, pressure, size)
    # The time to the next stroke; where that is unknown, as at the end of a document, more than a sample may last.
    wait = table[gap][order] * 1000
    wait = np.where(wait >= 0, wait, 2 * LONGEST_SAMPLE)
    time = np.append(0.0, np.cumsum(wait)[:-1])
    return Touches(
        vector[order], table.key_S["user"][order], document[order].astype(np.int64), time, table.names["user"]
    )
