"""Labelled Faces in the Wild (Huang et al., 2007): NAME/NAME_0001.jpg and the official pairs of View 2."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from selfsame.data.federation import Federation
from selfsame.data.people import read_lines
from selfsame.data.photos import Pair, Photos, Wanted, list_people, load_photos, shown, subfolders
from selfsame.data.sets.imagefolder import people_of
from selfsame.errors import SelfsameError

_FOLDERS = ("lfw", "lfw-deepfunneled", "lfw_funneled", "lfw-py/lfw_funneled", "lfw-py/lfw")
WANTS = (
    "NAME/NAME_0001.jpg (or .png) and pairs.txt in PATH or PATH/lfw; "
    "unpack lfw.tgz and fetch pairs.txt from http://vis-www.cs.umass.edu/lfw/"
)


def load_lfw(
    path: Path,
    *,
    size: int = 64,
    grey: bool = False,
    people: int = 0,
    train: int = 0,
    validation: int = 0,
    test: int = 1,
    least: int = 0,
    fold: int = 0,
    seed: int = 0,
    hold_gib: float = 2.0,
    cache: str = "",
) -> Federation:
    """People outside the official pairs are the clients; the pairs, in ten folds, are the trials of unseen people.

    Few are outside of them, and most have one image. With `fold` 1 to 10 the pairs of that fold alone are the trials,
    and everybody outside of it is a client: the protocol's "unrestricted" setting, once for each fold.
    """
    folder = next((path / name for name in _FOLDERS if (path / name).is_dir()), path)
    lists = [place / "pairs.txt" for place in (folder, path) if (place / "pairs.txt").is_file()]
    names = subfolders(folder)
    if not lists or not names:
        raise SelfsameError(f"{folder}: {'people' if lists else 'pairs.txt'} not found; wanted: {WANTS}")
    photos = _named_after_their_folder(list_people(folder, names))
    pairs = read_pairs(lists[0], photos)
    folds = pairs[-1].fold + 1
    if not 0 <= fold <= folds:
        raise SelfsameError(f"lfw: fold must be 0 (all) to {folds}, got {fold}")
    if fold:
        pairs = [pair for pair in pairs if pair.fold == fold - 1]
    wanted = Wanted(size, grey, people, 0, train, validation, test, 0, 0, seed, hold_gib, cache, least)
    return load_photos("lfw", photos, wanted, unseen=people_of(photos, pairs), pairs=pairs)


def _named_after_their_folder(photos: Photos) -> Photos:
    """Leave out images that carry another person's name."""
    good = [file.rpartition("/")[2].startswith(file.rpartition("/")[0] + "_") for file in photos.files]
    if all(good):
        return photos
    odd = [f"{shown(file)}: not named after its folder" for file, fits in zip(photos.files, good) if not fits]
    files = [file for file, fits in zip(photos.files, good) if fits]
    return replace(photos, files=files, person=photos.person[good], left_out=(*photos.left_out, *odd))


def read_pairs(path: Path, photos: Photos) -> list[Pair]:
    """pairs.txt: folds and pairs of a kind in the first line; then for each fold NAME N N lines, then NAME N NAME N."""
    lines = [line.split() for line in read_lines(path)]
    while lines and not lines[-1]:
        lines.pop()
    header = [_whole(path, 1, field) for field in lines[0]] if lines else []
    folds, each = {1: (1, *header), 2: tuple(header)}.get(len(header), (0, 0))
    if folds < 1 or each < 1:
        raise SelfsameError(f"{path}: line 1: expected the number of folds and of pairs, as in '10 300'")
    if len(lines) - 1 != 2 * folds * each:
        raise SelfsameError(f"{path}: {len(lines) - 1} pairs, its first line promises {2 * folds * each}")
    file_of = {os.path.splitext(file)[0]: file for file in photos.files}

    def file(name: str, number: int) -> str:
        stem = f"{name}/{name}_{number:04d}"
        return file_of.get(stem, stem)

    out = []
    for place, fields in enumerate(lines[1:]):
        line, fold, same = place + 2, place // (2 * each), place % (2 * each) < each
        if len(fields) != (3 if same else 4):
            wanted = "NAME NUMBER NUMBER" if same else "NAME NUMBER NAME NUMBER"
            raise SelfsameError(f"{path}: line {line}: expected {wanted}, got {' '.join(fields)[:80]!r}")
        name, number = fields[0], _whole(path, line, fields[1])
        other = name if same else fields[2]
        if not same and other == name:
            raise SelfsameError(f"{path}: line {line}: a pair of two people names {shown(name)} twice")
        out.append(Pair(same, fold, file(name, number), file(other, _whole(path, line, fields[-1]))))
    return out


def _whole(path: Path, line: int, field: str) -> int:
    if not (field.isascii() and field.isdigit() and len(field) < 10):
        raise SelfsameError(f"{path}: line {line}: expected a whole number, got {field[:40]!r}")
    return int(field)
