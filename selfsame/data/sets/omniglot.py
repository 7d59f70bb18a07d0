"""Omniglot (Lake et al., 2015): characters of fifty alphabets, each drawn by twenty people; a character is a client."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from selfsame.data.federation import Federation
from selfsame.data.photos import Wanted, list_people, load_photos, subfolders
from selfsame.errors import SelfsameError

_PARTS = ("images_background", "images_evaluation")
WANTS = (
    "images_background/ALPHABET/character01/0001_01.png and images_evaluation/... in PATH, PATH/omniglot or "
    "PATH/omniglot-py; unpack images_background.zip and images_evaluation.zip from "
    "https://github.com/brendenlake/omniglot/tree/master/python"
)


def load_omniglot(
    path: Path,
    *,
    size: int = 28,
    people: int = 0,
    train: int = 0,
    validation: int = 3,
    test: int = 3,
    unseen_samples: int = 0,
    trials: int = 20_000,
    seed: int = 0,
    hold_gib: float = 2.0,
    cache: str = "",
) -> Federation:
    """The 964 background characters are the clients, the 659 evaluation characters are unseen."""
    places = (path, path / "omniglot", path / "omniglot-py")
    root = next((place for place in places if all((place / part).is_dir() for part in _PARTS)), None)
    if root is None:
        raise SelfsameError(f"{path}: {_PARTS[0]} and {_PARTS[1]} not found; wanted: {WANTS}")
    folders = [
        f"{part}/{alphabet}/{character}"
        for part in _PARTS
        for alphabet in subfolders(root / part)
        for character in subfolders(root / part / alphabet)
    ]
    photos = list_people(root, folders, lambda folder: folder.partition("/")[2])
    unseen = np.array([number for number, folder in enumerate(folders) if folder.startswith(_PARTS[1])], np.int64)
    wanted = Wanted(size, True, people, 0, train, validation, test, unseen_samples, trials, seed, hold_gib, cache)
    return load_photos("omniglot", photos, wanted, unseen=unseen)
