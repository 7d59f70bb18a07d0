"""Files by person, listed before any is read, and the options of all data sets that are made of such files."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from selfsame.data.dataset import bounded
from selfsame.data.federation import share_of
from selfsame.data.people import Ints, SplitOptions
from selfsame.errors import SelfsameError


@dataclass(frozen=True)
class FileOptions(SplitOptions):
    """The options of all data sets of files that are decoded into the cache."""

    hold_gib: float = bounded(2.0, 0)  # sets up to this size are held in memory, larger ones stay on disk
    cache: str = ""  # where decoded files are kept

    @property
    def hold_bytes(self) -> float:
        return self.hold_gib * 2**30


@dataclass(frozen=True)
class Listing:
    """Files by person, before any is read."""

    root: Path
    files: list[str]  # relative to the root
    person: Ints  # whose each file is, 0 .. P-1
    names: tuple[str, ...]
    left_out: tuple[str, ...] = ()  # files that are not taken, and why

    @property
    def count_P(self) -> Ints:
        """How many files each person has."""
        return np.bincount(self.person, minlength=len(self.names))

    def only(self, keep: Sequence[bool], fault: str = "") -> Listing:
        """Some of the files; the others are left out, each with a line that says so where there is a `fault`."""
        odd = [f"{shown(file)}: {fault}" for file, kept in zip(self.files, keep) if fault and not kept]
        files = [file for file, kept in zip(self.files, keep) if kept]
        person = self.person[np.asarray(keep, np.bool_)]
        return replace(self, files=files, person=person, left_out=(*self.left_out, *odd))

    def share(self, name: str, share: float, least: int = 2) -> int:
        """How many people are a share of those who have `least` files."""
        return share_of(name, self.count_P, share, least)


def list_files(
    root: Path,
    folders: Sequence[str],
    names: Sequence[str],
    kind: str,
    endings: tuple[str, ...],
    *,
    whose: Sequence[int] | None = None,
    deep: bool = False,
) -> Listing:
    """The files of a `kind` in `folders` (relative to the root), by name; with `deep` also in the folders below.

    `kind` is "an image", or whatever else has these `endings`. Each folder is that of one person, or of the person
    whose number stands at its place in `whose`.
    """
    files: list[str] = []
    count: list[int] = []
    left_out: list[str] = []
    for folder in folders:
        before = len(files)
        for file, plain in _within(root, folder, deep):
            if file.lower().endswith(endings) and plain:
                files.append(file)
            else:
                left_out.append(f"{shown(file)}: not {kind} by its name")
        count.append(len(files) - before)
        if not count[-1]:
            left_out.append(f"{shown(folder)}: no {kind.partition(' ')[2]}s in it")
    person = np.repeat(np.arange(len(folders)) if whose is None else np.array(whose, np.int64), count)
    return Listing(root, files, person.astype(np.int64), tuple(map(shown, names)), tuple(left_out))


def _within(root: Path, folder: str, deep: bool) -> Iterator[tuple[str, bool]]:
    """The files in a folder by name, hidden ones left out, and whether each is one; with `deep` those below it too."""
    for entry in sorted_entries(root / folder):
        if entry.name.startswith("."):  # what the system put there
            continue
        if deep and entry.is_dir(follow_symlinks=False):
            yield from _within(root, f"{folder}/{entry.name}", deep)
        else:
            yield f"{folder}/{entry.name}", deep or entry.is_file()


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
