"""CelebA (Liu et al., 2015): 202,599 aligned faces of 10,177 people in one folder, who is who in a text file."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from selfsame.data.dataset import DataSet
from selfsame.data.federation import Federation
from selfsame.data.formats.lists import read_list
from selfsame.data.formats.pictures import ENDINGS
from selfsame.data.listing import Listing, shown, sorted_entries
from selfsame.data.people import Ints, draw_unseen
from selfsame.data.photos import PictureOptions, load_photos
from selfsame.errors import SelfsameError

_IMAGES = ("img_align_celeba", "Img/img_align_celeba", "img_align_celeba/img_align_celeba")
_TRAINING, _TESTING = 0, 2  # of list_eval_partition.txt
WANTS = (
    "the folder img_align_celeba and identity_CelebA.txt in PATH, PATH/celeba or PATH/CelebA (also under Img/, Anno/ "
    "and Eval/); unpack img_align_celeba.zip; for official=true also list_eval_partition.txt; "
    "from https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html"
)


def load_celeba(path: Path, options: PictureOptions, *, official: bool = False) -> Federation:
    """As FedUV: a thousand people with 20, 5 and 5 images each; a thousand others are unseen.

    FedUV keeps one image of each unseen person; here ten, so that there are pairs of one person. With `official` the
    clients come from the training partition and the unseen people from the test partition.
    """
    root = next((p for p in (path, path / "celeba", path / "CelebA") if _find(p, "identity_CelebA.txt")), None)
    folders = [root / name for name in _IMAGES if (root / name).is_dir()] if root else []
    if root is None or not folders:
        missing = "img_align_celeba" if root else "identity_CelebA.txt"
        raise SelfsameError(f"{path}: {missing} not found; wanted: {WANTS}")
    photos = _read(root, folders[-1], _find(root, "identity_CelebA.txt") or root)
    unseen = barred = None
    if official:
        listed = _find(root, "list_eval_partition.txt")
        if listed is None:
            raise SelfsameError(f"{root}: list_eval_partition.txt not found; wanted: {WANTS}")
        unseen, barred = _partitioned(photos, _numbers(listed, 2), listed, options)
    return load_photos("celeba", photos, options, unseen=unseen, barred=barred)


_DEFAULTS = PictureOptions(people=1000, held_out=1000, train=20, validation=5, test=5, unseen_samples=10)
CELEBA = DataSet("celeba", load_celeba, True, WANTS, "feduv-celeba", 512, shared=_DEFAULTS)


def _find(root: Path, name: str) -> Path | None:
    return next((root / part / name for part in (".", "Anno", "Eval") if (root / part / name).is_file()), None)


def _read(root: Path, folder: Path, listed: Path) -> Listing:
    """The images that are there and have an identity; the rest is left out, line by line."""
    identity = _numbers(listed, 10_000_000)
    there = [entry.name for entry in sorted_entries(folder) if entry.name.lower().endswith(ENDINGS)]
    stem = {name.rpartition(".")[0]: name for name in there}  # the list says .jpg where a folder may hold .png
    known = {stem[name.rpartition(".")[0]]: who for name, who in identity.items() if name.rpartition(".")[0] in stem}
    left_out = [
        f"{listed.name}: {shown(n)} is not in {folder.name}" for n in identity if n.rpartition(".")[0] not in stem
    ]
    left_out += [f"{folder.name}/{shown(name)}: no identity in {listed.name}" for name in there if name not in known]
    files = sorted(known)
    people, person = np.unique(np.array([known[file] for file in files], np.int64), return_inverse=True)
    inner = folder.relative_to(root).as_posix()
    names = tuple(str(who) for who in people.tolist())
    return Listing(root, [f"{inner}/{file}" for file in files], person.astype(np.int64), names, tuple(left_out))


def _partitioned(photos: Listing, part_of: dict[str, int], listed: Path, options: PictureOptions) -> tuple[Ints, Ints]:
    """`held_out` people of the test partition, and those who are then neither in training nor unseen."""
    part = {name.rpartition(".")[0]: number for name, number in part_of.items()}
    number = np.array([part.get(file.rpartition("/")[2].rpartition(".")[0], -1) for file in photos.files])
    least, most = np.full(len(photos.names), 9), np.full(len(photos.names), -1)
    np.minimum.at(least, photos.person, number)
    np.maximum.at(most, photos.person, number)
    odd = (most != least) | (least < 0)
    if odd.any():
        person = photos.names[int(odd.argmax())]
        raise SelfsameError(f"{listed}: the images of person {person} are not in one partition")
    pool = np.nonzero(least == _TESTING)[0]
    unseen = draw_unseen("celeba", "celeba/unseen", pool, options, " people of the test partition")
    return unseen, np.setdiff1d(np.nonzero(least != _TRAINING)[0], unseen)


def _numbers(path: Path, most: int) -> dict[str, int]:
    """Lines of a file's name and a number of at most `most`."""

    def fits(words: list[str]) -> bool:
        whole = len(words) == 2 and words[1].isascii() and words[1].isdigit() and len(words[1]) < 10
        return whole and int(words[1]) <= most

    out: dict[str, int] = {}
    for number, (name, value) in read_list(path, f"a file and a number to {most}", fits):
        if name in out:
            raise SelfsameError(f"{path}: line {number}: {shown(name)} is listed twice")
        out[name] = int(value)
    return out
