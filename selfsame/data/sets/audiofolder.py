"""Anybody's recordings, one folder a person: PATH/NAME/any.wav, in folders below it too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from selfsame.data.federation import Federation
from selfsame.data.people import read_trials
from selfsame.data.photos import Pair, shown, subfolders
from selfsame.data.speech import Recordings, Wanted, check_there, load_speech
from selfsame.errors import SelfsameError

WANTS = (
    "one folder a person with wav or flac files in it or below: PATH/NAME/ANY.wav, your own recordings; flac takes the "
    "extra selfsame[audio]; optionally a list of trials (option pairs): lines of 1 or 0 and two files relative to PATH"
)


def load_audiofolder(
    path: Path,
    *,
    rate: int = 16000,
    seconds: float = 2.0,
    test_seconds: float = 3.0,
    test_crops: int = 1,
    people: int = 0,
    unseen_share: float = 0.2,
    train: int = 0,
    validation: int = 0,
    test: int = 2,
    least: int = 0,
    unseen_samples: int = 0,
    pairs: str = "",
    trials: int = 6000,
    seed: int = 0,
    hold_gib: float = 2.0,
    cache: str = "",
) -> Federation:
    """One client a folder; a share of the people is unseen, or, with a list of `pairs`, those whom it names.

    A training sample is a random clip of `seconds`, an evaluated one is `test_crops` clips of `test_seconds`, evenly
    spaced; shorter recordings are repeated. The other options are those of imagefolder.
    """
    folders = subfolders(path)
    if not folders:
        raise SelfsameError(f"{path}: no folders in it; wanted: {WANTS}")
    if not 0.0 <= unseen_share < 1.0:
        raise SelfsameError(f"audiofolder: unseen_share must be 0 or more and below 1, got {unseen_share}")
    found = Recordings.of(path, folders, folders)
    given = list(read_pairs(path / pairs)) if pairs else None
    if given:
        check_there(path / pairs, given, found)
    count = np.bincount(found.person, minlength=len(folders))
    held_out = int(unseen_share * int((count >= 2).sum()))
    wanted = Wanted(
        rate=rate,
        seconds=seconds,
        test_seconds=test_seconds,
        test_crops=test_crops,
        people=people,
        held_out=held_out,
        train=train,
        validation=validation,
        test=test,
        unseen_samples=unseen_samples,
        trials=trials,
        seed=seed,
        hold_gib=hold_gib,
        cache=cache,
        least=least,
    )
    unseen = found.people_of(given) if given else None
    return load_speech("audiofolder", found, wanted, unseen=unseen, pairs=given)


def read_pairs(file: Path) -> Iterator[Pair]:
    """The trials of a list; what it says of two files must be what their folders say."""
    for number, (same, first, second) in enumerate(read_trials(file), 1):
        if same != (first.partition("/")[0] == second.partition("/")[0]):
            raise SelfsameError(
                f"{file}: trial {number} says {int(same)}, but {shown(first)} and {shown(second)} are of "
                f"{'two people' if same else 'one person'}"
            )
        yield Pair(same, 0, first, second)
