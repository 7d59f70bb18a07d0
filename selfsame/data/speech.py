"""Sound files by person: listed, decoded into the cache, and split into a federation of one client per person."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from selfsame.data.cache import Packed, pack
from selfsame.data.clips import Crops, HeldClips, MappedClips, Pieces
from selfsame.data.dataset import bounded
from selfsame.data.federation import Federation
from selfsame.data.formats.wav import RATES, SHORTEST, SoundfileNeeded, decode_audio
from selfsame.data.listing import FileOptions, Listing, list_files
from selfsame.data.people import Division, Ints, by_people, counted, split_people
from selfsame.data.trial_lists import Pair, choose_trials
from selfsame.errors import SelfsameError

_MEASURED = 500  # clips of which the loudness is taken, at most


@dataclass(frozen=True)
class SpeechOptions(FileOptions):
    """The options of all sets of recordings."""

    rate: int = bounded(16000, *RATES)  # samples per second
    seconds: float = bounded(2.0, SHORTEST, 600)  # of a training clip
    test_seconds: float = bounded(3.0, SHORTEST, 600)  # of a clip in evaluation
    test_crops: int = bounded(1, 1, 1000)  # clips of each recording in evaluation

    @property
    def width(self) -> int:
        """Samples of a training clip."""
        return round(self.rate * self.seconds)


def list_recordings(
    root: Path, folders: Sequence[str], names: Sequence[str], whose: Sequence[int] | None = None
) -> Listing:
    """The sound files anywhere within `folders` (relative to the root), each that of one person."""
    return list_files(root, folders, names, "a wav or flac file", (".wav", ".flac"), whose=whose, deep=True)


def decoded(name: str, found: Listing, options: SpeechOptions) -> Packed:
    """The recordings from the cache, or, the first time, from their files."""
    if not found.files:
        raise SelfsameError(f"{found.root}: no wav or flac files found")
    decode = partial(decode_audio, rate=options.rate)
    form = f"{name}-{options.rate}"
    try:
        packed = pack(form, found.files, decode, dtype=np.int16, row_shape=(), root=found.root, cache=options.cache)
    except SoundfileNeeded as error:  # were it a bad file, the cache would remember it after soundfile is installed
        raise SelfsameError(str(error)) from error
    if not len(packed):
        raise SelfsameError(f"{found.root}: none of the {len(found.files):,} files can be read: {packed.faults[0]}")
    return packed


def load_speech(
    name: str,
    found: Listing,
    options: SpeechOptions,
    *,
    unseen: Ints | None = None,
    pairs: Sequence[Pair] | None = None,
) -> Federation:
    """A federation of one client per person whose samples are random clips of whole utterances."""
    packed = decoded(name, found, options)
    asked = options if pairs is None else replace(options, unseen_samples=0)
    split = split_people(name, found.person[packed.kept], found.names, asked, unseen=unseen)
    return federate_speech(name, found, packed, whole(packed), split, options, pairs)


def whole(packed: Packed) -> Pieces:
    """The recordings, each as one piece."""
    return Pieces(np.asarray(packed.flat), packed.offset[:-1], np.diff(packed.offset))  # a plain view of the map


def federate_speech(
    name: str,
    found: Listing,
    packed: Packed,
    pieces: Pieces,
    split: Division,
    options: SpeechOptions,
    pairs: Sequence[Pair] | None = None,
) -> Federation:
    """The federation of a split of pieces; trials are drawn unless there are `pairs` (then pieces are whole files)."""
    split, trials, lost = choose_trials(found, packed, split, options, pairs)
    clips = Crops.of(pieces, round(options.rate * options.test_seconds), options.test_crops)
    train = pieces.pick(split.train.row)
    hold_train = 2 * int(np.maximum(train.length, options.width).sum()) <= options.hold_bytes
    source = HeldClips.of if hold_train else MappedClips
    evaluated = sum(len(part.row) for part in (split.test, split.validation, split.unseen))
    hold = evaluated * clips.row_bytes <= options.hold_bytes
    faults, left = counted("files could not be read", packed.faults), counted("trials are left out", lost)
    return by_people(
        name,
        (1, options.width),
        split,
        found.names,
        lambda row: clips.pick(row)[:] if hold else clips.pick(row),
        source=lambda start_N: source(train, start_N, options.width),
        std=(loudness(train, options.width),),
        trials=trials,
        notes=(*packed.notes, *faults, *left),
        left_out=(*found.left_out, *packed.faults, *lost),
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
