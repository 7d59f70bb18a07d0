"""Omniglot (Lake et al., 2015): characters of fifty alphabets, each drawn by twenty people; a character is a client."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from selfsame.data.dataset import WIDE, DataSet
from selfsame.data.federation import Federation, Held, Samples
from selfsame.data.listing import subfolders
from selfsame.data.photos import PictureOptions, list_photos, load_photos
from selfsame.errors import SelfsameError

_PARTS = ("images_background", "images_evaluation")
WANTS = (
    "images_background/ALPHABET/character01/0001_01.png and images_evaluation/... in PATH, PATH/omniglot or "
    "PATH/omniglot-py; unpack images_background.zip and images_evaluation.zip from "
    "https://github.com/brendenlake/omniglot/tree/master/python"
)


def load_omniglot(path: Path, options: PictureOptions, *, rotations: bool = False) -> Federation:
    """The 964 background characters are the clients, the 659 evaluation characters are unseen.

    With `rotations` each character turned by 90, 180 and 270 degrees is a client of its own; unseen ones stay upright.
    """
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
    federation = load_photos("omniglot", photos, options, unseen=unseen)
    return with_quarter_turns(federation) if rotations else federation


def with_quarter_turns(federation: Federation) -> Federation:
    """Four classes for each, and four clients: upright first, then turned once, twice and three times.

    All samples are held in memory.
    """
    source, classes = federation.source, federation.classes
    assert isinstance(source, Held)
    x = source.x[:]
    start_N = source.start_N

    def turned(samples: Samples) -> Samples:
        held = samples.x[:]
        if not len(held):
            return samples
        y = torch.cat([samples.y + turns * classes for turns in range(4)])
        return Samples(torch.cat([torch.rot90(held, turns, (-2, -1)) for turns in range(4)]), y)

    seen, unseen = federation.class_names[:classes], federation.class_names[classes:]
    return replace(
        federation,
        class_of_N=torch.cat([federation.class_of_N + turns * classes for turns in range(4)]),
        count_N=federation.count_N.repeat(4),
        source=Held(
            torch.cat([torch.rot90(x, turns, (-2, -1)) for turns in range(4)]),
            torch.cat([start_N + turns * len(x) for turns in range(4)]),
        ),
        test=turned(federation.test),
        validation=turned(federation.validation),
        unseen=replace(federation.unseen, y=federation.unseen.y + 3 * classes),
        class_names=(*seen, *(f"{name}, {90 * turns} degrees" for turns in (1, 2, 3) for name in seen), *unseen),
    )


_DEFAULTS = PictureOptions(size=28, grey=True, validation=3, test=3)
_FIXED = ("grey", "held_out", "least")
OMNIGLOT = DataSet("omniglot", load_omniglot, True, WANTS, "lenet", 64, WIDE, shared=_DEFAULTS, fixed=_FIXED)
