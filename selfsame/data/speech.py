"""Sound files by person: listed, decoded into the cache, and split into a federation of one client a person."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from selfsame.data.cache import Packed, pack
from selfsame.data.clips import Crops, HeldClips, MappedClips, Pieces
from selfsame.data.federation import Federation, Samples, Trials
from selfsame.data.formats.wav import RATES, SHORTEST, SoundfileNeeded, decode_audio
from selfsame.data.people import Ints, Part, Split, by_people, draw_trials, split_people
from selfsame.data.photos import Pair, shown, sorted_entries
from selfsame.errors import SelfsameError

ENDINGS = (".wav", ".flac")
_MEASURED = 500  # clips of which the loudness is taken, at most
_SHOWN = 5  # unreadable files that a note names, before it counts the rest


@dataclass(frozen=True)
class Recordings:
    """Sound files by person, before any is read."""

    root: Path
    files: list[str]  # relative to the root
    person: Ints  # whose each file is, 0 .. P-1
    names: tuple[str, ...]
    left_out: tuple[str, ...] = ()  # files that are not taken, and why

    @staticmethod
    def of(root: Path, folders: Sequence[str], names: Sequence[str]) -> Recordings:
        """The sound files anywhere within `folders` (relative to the root), each the folder of the person at its place.

        A name may stand there more than once: a person's files may lie in several folders.
        """
        people = sorted(set(names))
        number = {name: person for person, name in enumerate(people)}
        files: list[str] = []
        person: list[int] = []
        left_out: list[str] = []
        for folder, name in zip(folders, names, strict=True):
            before = len(files)
            for file in _within(root, folder):
                if file.lower().endswith(ENDINGS):
                    files.append(file)
                else:
                    left_out.append(f"{shown(file)}: not a wav or flac file by its name")
            person += [number[name]] * (len(files) - before)
            if len(files) == before:
                left_out.append(f"{shown(folder)}: no wav or flac files in it")
        return Recordings(
            root, files, np.array(person, np.int64), tuple(shown(name) for name in people), tuple(left_out)
        )

    def people_of(self, pairs: Sequence[Pair]) -> Ints:
        """Everybody whom the pairs name, by number."""
        number = dict(zip(self.files, self.person.tolist()))
        named = {number[file] for pair in pairs for file in (pair.first, pair.second) if file in number}
        return np.array(sorted(named), np.int64)


def _within(root: Path, folder: str) -> Iterator[str]:
    """All files in a folder and in the folders below it, by name, hidden ones left out."""
    for entry in sorted_entries(root / folder):
        if entry.name.startswith("."):
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from _within(root, f"{folder}/{entry.name}")
        else:
            yield f"{folder}/{entry.name}"


@dataclass(frozen=True)
class Wanted:
    """The options that all sets of recordings share; see the loaders."""

    rate: int
    seconds: float  # of a training clip
    test_seconds: float  # of a clip in evaluation
    test_crops: int
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

    @property
    def width(self) -> int:
        """Samples of a training clip."""
        return round(self.rate * self.seconds)

    def check(self, name: str) -> None:
        """Refuse what cannot be."""
        for option, value, least, most in (
            ("rate", self.rate, *RATES),
            ("seconds", self.seconds, SHORTEST, 600),
            ("test_seconds", self.test_seconds, SHORTEST, 600),
            ("test_crops", self.test_crops, 1, 1000),
            ("trials", self.trials, 0, 100_000_000),
            ("unseen_samples", self.unseen_samples, 0, 1_000_000),
            ("hold_gib", self.hold_gib, 0, 1_000_000),
        ):
            if not least <= value <= most:
                raise SelfsameError(f"{name}: {option} must be {least} to {most}, got {value}")


def decoded(name: str, found: Recordings, wanted: Wanted) -> Packed:
    """The recordings from the cache, or, the first time, from their files."""
    wanted.check(name)
    if not found.files:
        raise SelfsameError(f"{found.root}: no wav or flac files found")
    decode = partial(decode_audio, rate=wanted.rate)
    form = f"{name}-{wanted.rate}"
    try:
        packed = pack(
            form, found.files, decode, dtype=np.int16, row_shape=(), root=found.root, ragged=True, cache=wanted.cache
        )
    except SoundfileNeeded as error:  # were it a bad file, the cache would remember it after soundfile is installed
        raise SelfsameError(str(error)) from error
    if not len(packed):
        raise SelfsameError(f"{found.root}: none of the {len(found.files):,} files can be read: {_first(packed)}")
    return packed


def load_speech(
    name: str,
    found: Recordings,
    wanted: Wanted,
    *,
    unseen: Ints | None = None,
    pairs: Sequence[Pair] | None = None,
) -> Federation:
    """A federation of one client a person whose samples are random clips of whole utterances."""
    packed = decoded(name, found, wanted)
    person_S = found.person[packed.kept]
    split = split_people(
        name,
        person_S,
        found.names,
        seed=wanted.seed,
        people=wanted.people,
        held_out=wanted.held_out,
        unseen=unseen,
        train=wanted.train,
        validation=wanted.validation,
        test=wanted.test,
        least=wanted.least,
        unseen_samples=0 if pairs is not None else wanted.unseen_samples,
    )
    return federate_speech(name, found, packed, whole(packed), split, wanted, pairs)


def whole(packed: Packed) -> Pieces:
    """The recordings, each as one piece."""
    return Pieces(np.asarray(packed.flat), packed.offset[:-1], np.diff(packed.offset))  # a plain view of the map


def federate_speech(
    name: str,
    found: Recordings,
    packed: Packed,
    pieces: Pieces,
    split: Split,
    wanted: Wanted,
    pairs: Sequence[Pair] | None = None,
) -> Federation:
    """The federation of a split of pieces; trials are drawn unless there are `pairs` (then pieces are whole files)."""
    lost: tuple[str, ...] = ()
    if pairs is None:
        trials = draw_trials(split.unseen.label, wanted.trials, wanted.seed)
    else:
        row_of = {found.files[number]: row for row, number in enumerate(packed.kept.tolist())}
        split, trials, lost = given_trials(split, found.person[packed.kept], pairs, row_of)
    bad = tuple(f"{shown(file)}: {reason}" for file, reason in packed.bad)
    clips = Crops.of(pieces, round(wanted.rate * wanted.test_seconds), wanted.test_crops)
    train = pieces.pick(split.train.row)
    most = wanted.hold_gib * 2**30
    by_person = by_people(
        name,
        clips,
        split,
        found.names,
        std=(loudness(train, wanted.width),),
        trials=trials,
        notes=(*packed.notes, *_told("files could not be read", bad), *_told("trials are left out", lost)),
        left_out=(*found.left_out, *bad, *lost),
    )
    start_N = by_person.count_N.cumsum(0) - by_person.count_N
    hold = 2 * int(np.maximum(train.length, wanted.width).sum()) <= most
    source = HeldClips.of(train, start_N, wanted.width) if hold else MappedClips(train, start_N, wanted.width)
    federation = replace(by_person, shape=(1, wanted.width), source=source)
    evaluated = sum(len(part.row) for part in (split.test, split.validation, split.unseen))
    if evaluated * clips.row_bytes > most:
        return federation

    def held(samples: Samples) -> Samples:
        return Samples(samples.x[:], samples.y)

    return replace(
        federation,
        test=held(federation.test),
        validation=held(federation.validation),
        unseen=held(federation.unseen),
    )


def loudness(pieces: Pieces, width: int) -> float:
    """The root mean square of the samples, full scale 1, over the middle of some of the pieces."""
    clips = Crops.of(pieces, width, 1)
    every = max(1, -(-len(pieces) // _MEASURED))
    total, number = 0.0, 0
    for clip in clips.pick(np.arange(0, len(pieces), every)).split(64):
        total += float((clip.double() / 32768.0).square().sum())
        number += clip.numel()
    return math.sqrt(total / number)


def check_there(listed: Path, pairs: Sequence[Pair], found: Recordings) -> None:
    """Refuse a list of trials none of which can be made, before anything is decoded."""
    files = set(found.files)
    absent = next((file for pair in pairs for file in (pair.first, pair.second) if file not in files), "")
    if not any(pair.first in files and pair.second in files for pair in pairs):
        raise SelfsameError(f"{listed}: none of its trials has both its files in {found.root}, e.g. no {shown(absent)}")


def given_trials(
    split: Split, person_S: Ints, pairs: Sequence[Pair], row_of: dict[str, int]
) -> tuple[Split, Trials, tuple[str, ...]]:
    """The split with the files that the pairs name as its unseen samples, the trials, and a line for each lost pair."""
    there = [pair for pair in pairs if pair.first in row_of and pair.second in row_of]
    lost = [pair for pair in pairs if pair.first not in row_of or pair.second not in row_of]
    lines = tuple(f"trial {shown(pair.first)} {shown(pair.second)}: absent or unreadable" for pair in lost)
    first, second = (np.array([row_of[getattr(pair, at)] for pair in there], np.int64) for at in ("first", "second"))
    row = np.unique(np.concatenate([first, second]))
    label = len(split.seen) + np.searchsorted(split.unseen_people, person_S[row])
    trials = Trials(
        torch.from_numpy(np.searchsorted(row, first)),
        torch.from_numpy(np.searchsorted(row, second)),
        torch.tensor([pair.same for pair in there], dtype=torch.bool),
        torch.tensor([pair.fold for pair in there], dtype=torch.int64),
    )
    return replace(split, unseen=Part(row, label)), trials, lines


def _first(packed: Packed) -> str:
    file, reason = packed.bad[0]
    return f"{shown(file)}: {reason}"


def _told(what: str, lines: Sequence[str]) -> tuple[str, ...]:
    """A note that counts some lines and gives the first of them."""
    if not lines:
        return ()
    more = f" and {len(lines) - _SHOWN:,} more" if len(lines) > _SHOWN else ""
    return (f"{len(lines):,} {what}: {'; '.join(lines[:_SHOWN])}{more}",)
