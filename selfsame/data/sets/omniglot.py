"""Omniglot (Lake et al., 2015): characters of fifty alphabets, each drawn by twenty people; a character is a client."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from selfsame.data.dataset import WIDE, DataSet
from selfsame.data.federation import Federation
from selfsame.data.listing import subfolders
from selfsame.data.photos import PictureOptions, list_photos, load_photos
from selfsame.errors import SelfsameError

_PARTS = ("images_background", "images_evaluation")
WANTS = (
    "images_background/ALPHABET/character01/0001_01.png and images_evaluation/... in PATH, PATH/omniglot or "
    "PATH/omniglot-py; unpack images_background.zip and images_evaluation.zip from "
    "https://github.com/brendenlake/omniglot/tree/master/python"
)


def load_omniglot(path: Path, options: PictureOptions) -> Federation:
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
    photos = list_photos(root, folders, [folder.partition("/")[2] for folder in folders])
    unseen = np.array([number for number, folder in enumerate(folders) if folder.startswith(_PARTS[1])], np.int64)
    return load_photos("omniglot", photos, options, unseen=unseen)


_DEFAULTS = PictureOptions(size=28, grey=True, validation=3, test=3)
_FIXED = ("grey", "held_out", "least")
OMNIGLOT = DataSet("omniglot", load_omniglot, True, WANTS, "lenet", 64, WIDE, shared=_DEFAULTS, fixed=_FIXED)
