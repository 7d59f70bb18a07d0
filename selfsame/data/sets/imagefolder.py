"""Anybody's images, one folder a person: PATH/NAME/any.jpg, in folders below it too."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from selfsame.data.dataset import DataSet, within
from selfsame.data.federation import Federation
from selfsame.data.listing import subfolders
from selfsame.data.photos import PictureOptions, list_photos, load_photos
from selfsame.data.trial_lists import people_of, read_trials
from selfsame.errors import SelfsameError

WANTS = (
    "one folder a person with JPEG, PNG, BMP, PPM or WebP files in it or below: PATH/NAME/ANY.jpg, your own pictures; "
    "optionally a list of trials (option pairs) with lines of 1 or 0 and two files relative to PATH"
)


def load_imagefolder(
    path: Path, options: PictureOptions, *, unseen_share: float = 0.2, unseen_least: int = 0, pairs: str = ""
) -> Federation:
    """One client per folder; `unseen_share` of the people is unseen, or, with a list of `pairs`, those whom it names.

    `unseen_least`: images that an unseen person must have; the share is then taken of those who have them.
    """
    folders = subfolders(path)
    if not folders:
        raise SelfsameError(f"{path}: no folders in it; wanted: {WANTS}")
    within("imagefolder", 0, 1_000_000, unseen_least=unseen_least)
    photos = list_photos(path, folders, deep=True)
    given = read_trials(path / pairs) if pairs else None
    return load_photos(
        "imagefolder",
        photos,
        replace(options, held_out=photos.share("imagefolder", unseen_share, max(2, unseen_least))),
        unseen=people_of(photos, given) if given else None,
        pairs=given,
        unseen_least=unseen_least,
    )


_DEFAULTS = PictureOptions(test=2, trials=6000)
IMAGEFOLDER = DataSet(
    "imagefolder", load_imagefolder, True, WANTS, "mobilefacenet", 128, shared=_DEFAULTS, fixed=("held_out",)
)
