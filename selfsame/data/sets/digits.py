"""Handwritten digits, 8x8, that come inside scikit-learn: nothing to fetch (Alpaydin and Kaynak, 1998)."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from selfsame.data.dataset import WIDE, DataSet, within
from selfsame.data.federation import Federation, Samples
from selfsame.data.images import ClassOptions, check_held_out, federate
from selfsame.errors import SelfsameError
from selfsame.streams import host_generator

_DIGITS = 10


def load_digits(
    *,
    turns: int = 2,
    held_out: int = 3,
    clients_per_class: int = 1,
    test_share: float = 0.25,
    seed: int = 0,
) -> Federation:
    """Every digit in `turns` orientations, each an identity; the last `held_out` digits are unseen in all of them.

    `test_share` of each digit's images, drawn by `seed`, are for testing; `clients_per_class` clients share the rest.
    """
    within("digits", 1, 4, turns=turns)
    if not 0.0 < test_share < 1.0:
        raise SelfsameError(f"digits: test_share must lie between 0 and 1, got {test_share}")
    check_held_out("digits", held_out, _DIGITS)
    table = _table()
    x = torch.from_numpy((table[:, :-1] * (255.0 / 16.0)).round().astype("uint8")).reshape(-1, 1, 8, 8)
    digit = torch.from_numpy(table[:, -1]).long()
    in_test = _test_rows(digit, test_share, seed)
    seen = _DIGITS - held_out
    in_test |= digit >= seen  # no client trains on an unseen digit, so all of its images can be used to test
    notes = ("turned by 180 degrees, 0, 1 and 8 look much as before and 6 looks like 9",) if turns > 2 else ()
    return federate(
        "digits",
        _turned(x[~in_test], digit[~in_test], turns, seen),
        _turned(x[in_test], digit[in_test], turns, seen),
        ClassOptions(held_out * turns, clients_per_class),
        classes=_DIGITS * turns,
        notes=notes,
        class_names=tuple(
            f"{d}" if turn == 0 else f"{d} turned {90 * turn}"
            for group in (range(seen), range(seen, _DIGITS))
            for turn in range(turns)
            for d in group
        ),
    )


DIGITS = DataSet("digits", load_digits, False, "nothing: it comes with scikit-learn", "lenet", 32, WIDE)


def _table() -> NDArray[np.float64]:
    """64 pixels and the digit per row, from the file inside scikit-learn: to import that takes a second."""
    found = importlib.util.find_spec("sklearn")
    if found is None or not found.submodule_search_locations:
        raise SelfsameError("digits: scikit-learn, which holds them, is not installed; pip install scikit-learn")
    file = Path(found.submodule_search_locations[0]) / "datasets" / "data" / "digits.csv.gz"
    if file.is_file():
        return np.loadtxt(file, delimiter=",")
    from sklearn.datasets import load_digits as embedded  # it has moved

    images, targets = embedded(return_X_y=True)
    return np.column_stack([images, targets])


def _test_rows(digit: Tensor, test_share: float, seed: int) -> Tensor:
    """Which images are for testing, the same share of each digit; chosen before turning, so no image is in both."""
    chosen = torch.zeros(len(digit), dtype=torch.bool)
    for value in range(_DIGITS):
        rows = torch.nonzero(digit == value)[:, 0]
        order = torch.from_numpy(host_generator(seed, "digits/split", value).permutation(len(rows)))
        number = min(max(round(test_share * len(rows)), 1), len(rows) - 1)
        chosen[rows[order[:number]]] = True
    return chosen


def _turned(x: Tensor, digit: Tensor, turns: int, seen: int) -> Samples:
    """The images in each orientation; seen identities are numbered first, turn by turn, then the unseen ones."""
    unseen = _DIGITS - seen
    turned_x = torch.cat([torch.rot90(x, turn, (2, 3)) for turn in range(turns)])
    labels = [
        torch.where(digit < seen, turn * seen + digit, turns * seen + turn * unseen + digit - seen)
        for turn in range(turns)
    ]
    return Samples(turned_x, torch.cat(labels))
