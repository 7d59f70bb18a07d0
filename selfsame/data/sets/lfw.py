"""Labelled Faces in the Wild (Huang et al., 2007): NAME/NAME_0001.jpg and the official pairs of View 2."""

from __future__ import annotations

import os
from pathlib import Path

from selfsame.data.dataset import DataSet
from selfsame.data.federation import Federation
from selfsame.data.formats.lists import read_lines
from selfsame.data.listing import Listing, shown, subfolders
from selfsame.data.photos import PictureOptions, list_photos, load_photos
from selfsame.data.trial_lists import Pair, people_of
from selfsame.errors import SelfsameError

_FOLDERS = ("lfw", "lfw-deepfunneled", "lfw_funneled", "lfw-py/lfw_funneled", "lfw-py/lfw")
WANTS = (
    "NAME/NAME_0001.jpg (or .png) and pairs.txt in PATH or PATH/lfw; "
    "unpack lfw.tgz and fetch pairs.txt from http://vis-www.cs.umass.edu/lfw/"
)


def load_lfw(path: Path, options: PictureOptions, *, fold: int = 0) -> Federation:
    """People outside the official pairs are the clients; the pairs, in ten folds, are the trials of unseen people.

    Few are outside of them, and most have one image. With `fold` 1 to 10 the pairs of that fold alone are the trials,
    and everybody outside of it is a client: the protocol's "unrestricted" setting, once for each fold.
    """
    folder = next((path / name for name in _FOLDERS if (path / name).is_dir()), path)
    lists = [place / "pairs.txt" for place in (folder, path) if (place / "pairs.txt").is_file()]
    names = subfolders(folder)
    if not lists or not names:
        raise SelfsameError(f"{folder}: {'people' if lists else 'pairs.txt'} not found; wanted: {WANTS}")
    photos = list_photos(folder, names)
    own = [file.rpartition("/")[2].startswith(file.rpartition("/")[0] + "_") for file in photos.files]
    photos = photos.only(own, "not named after its folder")
    pairs = read_pairs(lists[0], photos)
    folds = pairs[-1].fold + 1
    if not 0 <= fold <= folds:
        raise SelfsameError(f"lfw: fold must be 0 (all) to {folds}, got {fold}")
    if fold:
        pairs = [pair for pair in pairs if pair.fold == fold - 1]
    return load_photos("lfw", photos, options, unseen=people_of(photos, pairs), pairs=pairs)


_FIXED = ("held_out", "unseen_samples", "trials")
LFW = DataSet("lfw", load_lfw, True, WANTS, "mobilefacenet", 128, shared=PictureOptions(), fixed=_FIXED)


def read_pairs(path: Path, photos: Listing) -> list[Pair]:
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
