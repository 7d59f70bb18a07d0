"""Image files by person: listed, decoded into the cache, and split into a federation of one client per person."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from selfsame.data.cache import pack
from selfsame.data.dataset import bounded
from selfsame.data.federation import Federation, Rows
from selfsame.data.formats.pictures import ENDINGS, decode_image
from selfsame.data.images import moments
from selfsame.data.listing import FileOptions, Listing, list_files
from selfsame.data.people import Ints, by_people, choose_people, counted, split_people, too_few
from selfsame.data.trial_lists import Pair, choose_trials
from selfsame.errors import SelfsameError

_MEASURED = 16384  # images of which mean and standard deviation are taken, at most


@dataclass(frozen=True)
class PictureOptions(FileOptions):
    """The options of all sets of image files."""

    size: int = bounded(64, 8, 1024)  # images become squares of this side
    grey: bool = False  # one channel in place of three


def list_photos(root: Path, folders: Sequence[str], names: Sequence[str] | None = None, deep: bool = False) -> Listing:
    """The images in `folders` (relative to the root), one folder a person; people have its name, or one of `names`.

    With `deep` also those in the folders below.
    """
    own = [folder.rpartition("/")[2] for folder in folders]
    return list_files(root, folders, own if names is None else names, "an image", ENDINGS, deep=deep)


def load_photos(
    name: str,
    photos: Listing,
    options: PictureOptions,
    *,
    unseen: Ints | None = None,
    barred: Ints | None = None,
    pairs: Sequence[Pair] | None = None,
    unseen_least: int = 0,
    chosen_only: bool = False,
) -> Federation:
    """A federation of one client per person; `unseen` people, `barred` ones and trial `pairs` as published.

    With `chosen_only` the files of people who have no part are not decoded, and each choice has a cache of its own.
    """
    if not photos.files:
        raise SelfsameError(f"{photos.root}: no images found")
    form = f"{name}-{options.size}-{'grey' if options.grey else 'colour'}"
    notes: tuple[str, ...] = ()
    if chosen_only and options.people:
        photos, unseen, notes = _only_chosen(name, photos, options, unseen, barred)
        form += f"-{options.people}-{len(unseen)}-{options.seed}"
        options, barred = replace(options, people=0), None
    packed = pack(
        form,
        photos.files,
        partial(decode_image, size=options.size, grey=options.grey),
        dtype=np.uint8,
        row_shape=(1 if options.grey else 3, options.size, options.size),
        root=photos.root,
        cache=options.cache,
    )
    split = split_people(
        name,
        photos.person[packed.kept],
        photos.names,
        options if pairs is None else replace(options, unseen_samples=0),
        unseen=unseen,
        barred=barred,
        unseen_least=unseen_least,
    )
    split, trials, lost = choose_trials(photos, packed, split, options, pairs)
    rows = Rows(packed.flat, np.arange(len(packed)))
    every = max(1, -(-len(split.train.row) // _MEASURED))
    mean, std = moments(name, rows.pick(split.train.row[::every]))
    notes += counted("files could not be read", packed.faults) + counted("trials are left out", lost)
    used = sum(len(part.row) for part in (split.train, split.validation, split.test, split.unseen))
    hold = used * rows.row_bytes <= options.hold_bytes
    return by_people(
        name,
        rows.shape[1:],
        split,
        photos.names,
        lambda row: rows.pick(row)[:] if hold else rows.pick(row),
        mean=mean,
        std=std,
        trials=trials,
        notes=(*packed.notes, *notes),
        left_out=(*photos.left_out, *packed.faults, *lost),
    )


def _only_chosen(
    name: str, photos: Listing, options: PictureOptions, unseen: Ints | None, barred: Ints | None
) -> tuple[Listing, Ints, tuple[str, ...]]:
    """The photos of the people who take part by the number of their files, who of them is unseen, and notes."""
    choice = choose_people(name, photos.count_P, options, least=options.needed, unseen=unseen, barred=barred)
    notes, lines = too_few(photos.names, choice)
    chosen = np.sort(np.concatenate([choice.seen, choice.unseen]))
    kept = photos.only(np.isin(photos.person, chosen).tolist())
    names = tuple(photos.names[person] for person in chosen.tolist())
    person = np.searchsorted(chosen, kept.person)
    kept = replace(kept, person=person, names=names, left_out=(*photos.left_out, *lines))
    return kept, np.searchsorted(chosen, choice.unseen), notes
