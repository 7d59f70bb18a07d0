"""Hold and Tap (Buriro et al., 2021): timing of taps and motion of the phone while a number is typed in."""

from __future__ import annotations

from pathlib import Path

from selfsame.data.dataset import DataSet
from selfsame.data.federation import Federation
from selfsame.data.formats.csv_table import find_features
from selfsame.data.tables import TableOptions, federate_table

WANTS = (
    "features.csv in PATH or PATH/hold_and_tap: user, touch_0 to touch_29, sensor_0 to sensor_111 and activity_0; "
    "from https://github.com/apachetechnology/HoldandTapDataset"
)


def load_hold_and_tap(path: Path, options: TableOptions) -> Federation:
    """One client per user; a sample is one typing of the number."""
    return federate_table("hold_and_tap", find_features(path, "hold_and_tap", WANTS), options)


_DEFAULTS = TableOptions(held_out=25, test=20, unseen_samples=200, columns="touch_*,sensor_*", missing="mean")
_FIXED = ("user", "without", "missing", "standardise")
HOLD_AND_TAP = DataSet("hold_and_tap", load_hold_and_tap, True, WANTS, "mlp", 64, shared=_DEFAULTS, fixed=_FIXED)
