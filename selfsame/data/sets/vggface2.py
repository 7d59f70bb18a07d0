"""VGGFace2 (Cao et al., 2018): 3.3 million faces of 9,131 people in train/ and test/, one folder a person."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from selfsame.data.dataset import DataSet
from selfsame.data.federation import Federation
from selfsame.data.listing import subfolders
from selfsame.data.people import draw_unseen
from selfsame.data.photos import PictureOptions, list_photos, load_photos
from selfsame.errors import SelfsameError

_PAIRS = (("train", "test"), ("vggface2_train/train", "vggface2_test/test"))
_INSIDE = (".", "data", "VGGFace2", "VGG-Face2/data")
WANTS = (
    "train/n000002/0001_01.jpg and test/n000001/0001_01.jpg in PATH or PATH/data; unpack vggface2_train.tar.gz and "
    "vggface2_test.tar.gz, described at https://github.com/ox-vgg/vgg_face2"
)


def load_vggface2(path: Path, options: PictureOptions) -> Federation:
    """The people of train/ are the clients (or `people` of them), those of test/ are unseen (or `held_out` of them).

    Faces are not detected: crop them before, or train on the loose crops as published. The number of trials is
    FedHide's. With `people` only the files of those who are chosen are decoded.
    """
    places = [(Path(inner) / first, Path(inner) / second) for inner in _INSIDE for first, second in _PAIRS]
    parts = next((pair for pair in places if all((path / part).is_dir() for part in pair)), None)
    if parts is None:
        raise SelfsameError(f"{path}: train and test not found; wanted: {WANTS}")
    folders = [(part.as_posix(), name) for part in parts for name in subfolders(path / part)]
    photos = list_photos(path, [f"{part}/{name}" for part, name in folders])
    pool = np.array([n for n, (part, _) in enumerate(folders) if part == parts[1].as_posix()], np.int64)
    options = replace(options, held_out=options.held_out or len(pool))
    unseen = draw_unseen("vggface2", "vggface2/unseen", pool, options, " people of test/ (0 for all)")
    return load_photos("vggface2", photos, options, unseen=unseen, barred=np.setdiff1d(pool, unseen), chosen_only=True)


_DEFAULTS = PictureOptions(test=5, unseen_samples=40, trials=338_430)
VGGFACE2 = DataSet("vggface2", load_vggface2, True, WANTS, "mobilefacenet", 512, shared=_DEFAULTS)
