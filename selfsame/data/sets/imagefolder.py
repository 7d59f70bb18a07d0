"""Anybody's images, one folder a person: PATH/NAME/any.jpg."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from selfsame.data.federation import Federation
from selfsame.data.people import Ints, read_trials
from selfsame.data.photos import Pair, Photos, Wanted, list_people, load_photos, subfolders
from selfsame.errors import SelfsameError

WANTS = (
    "one folder a person with JPEG, PNG, BMP, PPM or WebP files in it: PATH/NAME/ANY.jpg, your own pictures; "
    "optionally a list of trials (option pairs) with lines of 1 or 0 and two files relative to PATH"
)


def load_imagefolder(
    path: Path,
    *,
    size: int = 64,
    grey: bool = False,
    people: int = 0,
    unseen_share: float = 0.2,
    train: int = 0,
    validation: int = 0,
    test: int = 2,
    least: int = 0,
    unseen_samples: int = 0,
    unseen_least: int = 0,
    pairs: str = "",
    trials: int = 6000,
    seed: int = 0,
    hold_gib: float = 2.0,
    cache: str = "",
) -> Federation:
    """One client a folder; a share of the people is unseen, or, with a list of `pairs`, those whom it names.

    `people`: clients, 0 for all; `train`, `validation`, `test`: images of each, train 0 for all the rest; `least`:
    images that a client must have, `unseen_least`: that an unseen person must have, of whom the share is then taken;
    `trials`: pairs of unseen images that are drawn where no list is given.
    """
    folders = subfolders(path)
    if not folders:
        raise SelfsameError(f"{path}: no folders in it; wanted: {WANTS}")
    if not 0.0 <= unseen_share < 1.0:
        raise SelfsameError(f"imagefolder: unseen_share must be 0 or more and below 1, got {unseen_share}")
    photos = list_people(path, folders)
    given = _read_pairs(path / pairs, photos) if pairs else None
    count = np.bincount(photos.person, minlength=len(folders))
    held_out = int(unseen_share * int((count >= max(2, unseen_least)).sum()))
    wanted = Wanted(
        size,
        grey,
        people,
        held_out,
        train,
        validation,
        test,
        unseen_samples,
        trials,
        seed,
        hold_gib,
        cache,
        least,
        unseen_least,
    )
    return load_photos("imagefolder", photos, wanted, unseen=people_of(photos, given) if given else None, pairs=given)


def people_of(photos: Photos, pairs: Iterable[Pair]) -> Ints:
    """Everybody whom the pairs name, by number."""
    number = dict(zip(photos.files, photos.person.tolist()))
    named = {number[file] for pair in pairs for file in (pair.first, pair.second) if file in number}
    return np.array(sorted(named), np.int64)


def _read_pairs(file: Path, photos: Photos) -> list[Pair]:
    out = []
    for line, (same, first, second) in enumerate(read_trials(file), 1):
        if same != (first.rpartition("/")[0] == second.rpartition("/")[0]):
            raise SelfsameError(
                f"{file}: trial {line} says {int(same)}, but {first} and {second} are in "
                f"{'different folders' if same else 'one folder'}"
            )
        out.append(Pair(same, 0, first, second))
    return out
