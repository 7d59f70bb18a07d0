"""AudioMNIST (Becker et al., 2018): 60 people speak the digits, 50 times each: data/SPEAKER/DIGIT_SPEAKER_TAKE.wav."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from selfsame.data.federation import Federation
from selfsame.data.photos import shown, subfolders
from selfsame.data.speech import Recordings, Wanted, load_speech
from selfsame.errors import SelfsameError

_PLACES = ("data", "audiomnist/data", "AudioMNIST/data", ".")
_NAME = re.compile(r"[0-9]_(?P<speaker>[0-9]{2})_[0-9]+\.wav")
WANTS = (
    "the folders 01 to 60 with files like 0_01_0.wav in PATH/data, PATH/AudioMNIST/data or PATH; "
    "from https://github.com/soerenab/AudioMNIST"
)


def load_audiomnist(
    path: Path,
    *,
    rate: int = 8000,
    seconds: float = 1.0,
    people: int = 0,
    held_out: int = 12,
    train: int = 0,
    validation: int = 10,
    test: int = 20,
    unseen_samples: int = 0,
    trials: int = 20_000,
    seed: int = 0,
    hold_gib: float = 2.0,
    cache: str = "",
) -> Federation:
    """One client a speaker, `held_out` of them unseen.

    A take lasts 0.3 to 1 second; one that is shorter than `seconds` is repeated. The publisher's rate is 48000.
    """
    for root in (path / place for place in _PLACES if (path / place).is_dir()):
        folders = [name for name in subfolders(root) if re.fullmatch("[0-9]{2}", name)]
        if folders:
            break
    else:
        raise SelfsameError(f"{path}: no folders of speakers found; wanted: {WANTS}")
    found = _named_after_their_folder(Recordings.of(root, folders, folders))
    wanted = Wanted(
        rate=rate,
        seconds=seconds,
        test_seconds=seconds,
        test_crops=1,
        people=people,
        held_out=held_out,
        train=train,
        validation=validation,
        test=test,
        unseen_samples=unseen_samples,
        trials=trials,
        seed=seed,
        hold_gib=hold_gib,
        cache=cache,
    )
    return load_speech("audiomnist", found, wanted)


def _named_after_their_folder(found: Recordings) -> Recordings:
    """Leave out files that carry another speaker's number, or none."""
    good = []
    for file in found.files:
        folder, _, name = file.partition("/")
        named = _NAME.fullmatch(name)
        good.append(named is not None and named["speaker"] == folder)
    odd = [
        f"{shown(file)}: not named DIGIT_SPEAKER_TAKE.wav after its folder"
        for file, fits in zip(found.files, good)
        if not fits
    ]
    files = [file for file, fits in zip(found.files, good) if fits]
    return replace(found, files=files, person=found.person[good], left_out=(*found.left_out, *odd))
