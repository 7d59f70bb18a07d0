"""Image files by person: listed, decoded into the cache, and split into a federation of one client a person."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from selfsame.data.cache import pack
from selfsame.data.federation import Federation, Rows, Trials
from selfsame.data.images import moments
from selfsame.data.people import (
    Ints,
    Part,
    Split,
    by_people,
    choose_people,
    draw_trials,
    least_samples,
    split_people,
    too_few,
)
from selfsame.errors import SelfsameError

ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".pgm", ".ppm", ".webp")
_FORMATS = ("JPEG", "PNG", "BMP", "PPM", "WEBP")
_MEASURED = 16384  # images of which mean and standard deviation are taken, at most
_MOST_PIXELS = 100_000_000
_SHOWN = 5  # unreadable files that a note names, before it counts the rest


def decode_image(path: Path, size: int, grey: bool) -> NDArray[np.uint8]:
    """An image file as (1 or 3, size, size) bytes, resized with antialiasing, whatever its shape."""
    from PIL import Image, ImageOps, UnidentifiedImageError  # only those who read image files need it

    try:
        if path.stat().st_size == 0:
            raise SelfsameError("empty file")
        with Image.open(path, formats=_FORMATS) as image:
            if image.width * image.height > _MOST_PIXELS:
                raise SelfsameError(f"{image.width}x{image.height} pixels are too many")
            mode = "L" if grey else "RGB"
            image.draft(mode, (2 * size, 2 * size))  # a JPEG is decoded at a fraction of its size where that suffices
            upright = ImageOps.exif_transpose(image)
            if upright.mode.startswith("I"):  # 16 bits, which `convert` would cut off at 255
                upright = Image.fromarray((np.asarray(upright).astype(np.uint32) >> 8).clip(0, 255).astype(np.uint8))
            plain = upright.convert(mode)
            if plain.size != (size, size):
                plain = plain.resize((size, size), Image.Resampling.BILINEAR)
            pixels = np.asarray(plain)
    except SelfsameError:
        raise
    except UnidentifiedImageError:
        raise SelfsameError("not an image (JPEG, PNG, BMP, PPM or WebP)") from None
    except Exception as error:  # a damaged file makes the decoders raise anything
        reason = " ".join(str(error).split()) or type(error).__name__
        raise SelfsameError(f"cannot be decoded: {reason[:200]}") from error
    return np.ascontiguousarray(pixels[None] if grey else pixels.transpose(2, 0, 1))


@dataclass(frozen=True)
class Photos:
    """Image files by person, before any is read."""

    root: Path
    files: list[str]  # relative to the root
    person: Ints  # whose each file is, 0 .. P-1
    names: tuple[str, ...]
    left_out: tuple[str, ...] = ()  # files that are not taken, and why


def list_people(root: Path, folders: Sequence[str], name_of: Callable[[str], str] = os.path.basename) -> Photos:
    """The images in `folders` (relative to the root), one folder a person, in the order of their names."""
    files: list[str] = []
    count: list[int] = []
    left_out: list[str] = []
    for folder in folders:
        before = len(files)
        for entry in sorted_entries(root / folder):
            if entry.name.startswith("."):  # what the system put there
                continue
            if entry.name.lower().endswith(ENDINGS) and entry.is_file():
                files.append(f"{folder}/{entry.name}")
            else:
                left_out.append(f"{shown(folder)}/{shown(entry.name)}: not an image by its name")
        count.append(len(files) - before)
        if not count[-1]:
            left_out.append(f"{shown(folder)}: no images in it")
    person = np.repeat(np.arange(len(folders)), count).astype(np.int64)
    return Photos(root, files, person, tuple(shown(name_of(folder)) for folder in folders), tuple(left_out))


def subfolders(folder: Path) -> list[str]:
    """The names of the folders in a folder, sorted, hidden ones left out."""
    return [entry.name for entry in sorted_entries(folder) if not entry.name.startswith(".") and entry.is_dir()]


def sorted_entries(folder: Path) -> list[os.DirEntry[str]]:
    """What is in a folder, by name."""
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        raise SelfsameError(f"{folder}: cannot be listed ({error.strerror or type(error).__name__})") from error


def shown(name: str) -> str:
    """A file's name that any terminal can print."""
    text = name.encode("utf-8", "replace").decode()
    return text if text.isprintable() else ascii(text)[1:-1]


@dataclass(frozen=True)
class Wanted:
    """The options that all sets of photos share; see the loaders."""

    size: int
    grey: bool
    people: int
    held_out: int
    train: int
    validation: int
    test: int
    unseen_samples: int
    trials: int
    seed: int
    hold_gib: float
    cache: str
    least: int = 0
    unseen_least: int = 0

    def check(self, name: str) -> None:
        """Refuse what cannot be."""
        for option, value, least, most in (
            ("size", self.size, 8, 1024),
            ("trials", self.trials, 0, 100_000_000),
            ("unseen_samples", self.unseen_samples, 0, 1_000_000),
            ("unseen_least", self.unseen_least, 0, 1_000_000),
            ("hold_gib", self.hold_gib, 0, 1_000_000),
        ):
            if not least <= value <= most:
                raise SelfsameError(f"{name}: {option} must be {least} to {most}, got {value}")


@dataclass(frozen=True)
class Pair:
    """A trial that a publisher gives: two files, named as in `Photos.files`."""

    same: bool
    fold: int
    first: str
    second: str


def load_photos(
    name: str,
    photos: Photos,
    wanted: Wanted,
    *,
    unseen: Ints | None = None,
    barred: Ints | None = None,
    pairs: Sequence[Pair] | None = None,
    chosen_only: bool = False,
) -> Federation:
    """A federation of one client a person; `unseen` people, `barred` ones and trial `pairs` as the publisher has them.

    With `chosen_only` the files of people who have no part are not decoded, and each choice has a cache of its own.
    """
    wanted.check(name)
    if not photos.files:
        raise SelfsameError(f"{photos.root}: no images found")
    form = f"{name}-{wanted.size}-{'grey' if wanted.grey else 'colour'}"
    notes: tuple[str, ...] = ()
    people = wanted.people
    if chosen_only and people:
        photos, unseen, notes = _only_chosen(name, photos, wanted, unseen, barred)
        form += f"-{people}-{len(unseen)}-{wanted.seed}"
        people, barred = 0, None
    packed = pack(
        form,
        photos.files,
        partial(decode_image, size=wanted.size, grey=wanted.grey),
        dtype=np.uint8,
        row_shape=(1 if wanted.grey else 3, wanted.size, wanted.size),
        root=photos.root,
        cache=wanted.cache,
    )
    person_S = photos.person[packed.kept]
    split = split_people(
        name,
        person_S,
        photos.names,
        seed=wanted.seed,
        people=people,
        held_out=wanted.held_out,
        unseen=unseen,
        barred=barred,
        train=wanted.train,
        validation=wanted.validation,
        test=wanted.test,
        least=wanted.least,
        unseen_samples=0 if pairs is not None else wanted.unseen_samples,
        unseen_least=wanted.unseen_least,
    )
    lost: tuple[str, ...] = ()
    if pairs is None:
        trials = draw_trials(split.unseen.label, wanted.trials, wanted.seed)
    else:
        row_of = {photos.files[number]: row for row, number in enumerate(packed.kept.tolist())}
        split, trials, lost = _given_trials(split, person_S, pairs, row_of)
    rows = Rows(packed.flat, np.arange(len(packed)))
    every = max(1, -(-len(split.train.row) // _MEASURED))
    mean, std = moments(name, rows.pick(split.train.row[::every]))
    bad = tuple(f"{shown(file)}: {reason}" for file, reason in packed.bad)
    notes += _told("files could not be read", bad) + _told("trials are left out", lost)
    used = sum(len(part.row) for part in (split.train, split.validation, split.test, split.unseen))
    return by_people(
        name,
        rows,
        split,
        photos.names,
        hold=used * rows.row_bytes <= wanted.hold_gib * 2**30,
        mean=mean,
        std=std,
        trials=trials,
        notes=(*packed.notes, *notes),
        left_out=(*photos.left_out, *bad, *lost),
    )


def _told(what: str, lines: Sequence[str]) -> tuple[str, ...]:
    """A note that counts some lines and gives the first of them."""
    if not lines:
        return ()
    more = f" and {len(lines) - _SHOWN:,} more" if len(lines) > _SHOWN else ""
    return (f"{len(lines):,} {what}: {'; '.join(lines[:_SHOWN])}{more}",)


def _only_chosen(
    name: str, photos: Photos, wanted: Wanted, unseen: Ints | None, barred: Ints | None
) -> tuple[Photos, Ints, tuple[str, ...]]:
    """The photos of the people who take part by the number of their files, who of them is unseen, and notes."""
    choice = choose_people(
        name,
        np.bincount(photos.person, minlength=len(photos.names)),
        seed=wanted.seed,
        people=wanted.people,
        held_out=wanted.held_out,
        least=least_samples(name, wanted.train, wanted.validation, wanted.test, wanted.least),
        unseen=unseen,
        barred=barred,
    )
    notes, lines = too_few(photos.names, choice)
    chosen = np.sort(np.concatenate([choice.seen, choice.unseen]))
    keep = np.isin(photos.person, chosen)
    chosen_photos = Photos(
        photos.root,
        [file for file, takes in zip(photos.files, keep.tolist()) if takes],
        np.searchsorted(chosen, photos.person[keep]),
        tuple(photos.names[person] for person in chosen.tolist()),
        (*photos.left_out, *lines),
    )
    return chosen_photos, np.searchsorted(chosen, choice.unseen), notes


def _given_trials(
    split: Split, person_S: Ints, pairs: Sequence[Pair], row_of: dict[str, int]
) -> tuple[Split, Trials, tuple[str, ...]]:
    """The split with the samples that the pairs name as its unseen ones, the trials, and a line for each lost pair."""
    there = [pair for pair in pairs if pair.first in row_of and pair.second in row_of]
    lost = tuple(
        f"trial {shown(pair.first)} {shown(pair.second)}: no such image, or it cannot be read"
        for pair in pairs
        if pair.first not in row_of or pair.second not in row_of
    )
    first = np.array([row_of[pair.first] for pair in there], np.int64)
    second = np.array([row_of[pair.second] for pair in there], np.int64)
    row = np.unique(np.concatenate([first, second]))
    label = len(split.seen) + np.searchsorted(split.unseen_people, person_S[row])
    trials = Trials(
        torch.from_numpy(np.searchsorted(row, first)),
        torch.from_numpy(np.searchsorted(row, second)),
        torch.tensor([pair.same for pair in there], dtype=torch.bool),
        torch.tensor([pair.fold for pair in there], dtype=torch.int64),
    )
    return replace(split, unseen=Part(row, label)), trials, lost
