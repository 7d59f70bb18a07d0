"""AudioMNIST (Becker et al., 2018): 60 people speak the digits, 50 times each: data/SPEAKER/DIGIT_SPEAKER_TAKE.wav."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from selfsame.data.dataset import DataSet
from selfsame.data.federation import Federation
from selfsame.data.listing import subfolders
from selfsame.data.speech import SpeechOptions, list_recordings, load_speech
from selfsame.errors import SelfsameError

_PLACES = ("data", "audiomnist/data", "AudioMNIST/data", ".")
_NAME = re.compile(r"[0-9]_(?P<speaker>[0-9]{2})_[0-9]+\.wav")
WANTS = (
    "the folders 01 to 60 with files like 0_01_0.wav in PATH/data, PATH/AudioMNIST/data or PATH; "
    "from https://github.com/soerenab/AudioMNIST"
)


def load_audiomnist(path: Path, options: SpeechOptions) -> Federation:
    """One client per speaker, `held_out` of them unseen.

    A take lasts 0.3 to 1 second; one that is shorter than `seconds` is repeated. The publisher's rate is 48000.
    """
    for root in (path / place for place in _PLACES if (path / place).is_dir()):
        folders = [name for name in subfolders(root) if re.fullmatch("[0-9]{2}", name)]
        if folders:
            break
    else:
        raise SelfsameError(f"{path}: no folders of speakers found; wanted: {WANTS}")
    found = list_recordings(root, folders, folders)
    own = [_named_after(*file.split("/", 1)) for file in found.files]
    found = found.only(own, "not named DIGIT_SPEAKER_TAKE.wav after its folder")
    return load_speech("audiomnist", found, replace(options, test_seconds=options.seconds))


def _named_after(folder: str, name: str) -> bool:
    named = _NAME.fullmatch(name)
    return named is not None and named["speaker"] == folder


_NET = ("fast-resnet34-mel", 256, {"rate": 8000})
_DEFAULTS = SpeechOptions(rate=8000, seconds=1.0, held_out=12, validation=10, test=20)
_FIXED = ("test_seconds", "test_crops", "least")
AUDIOMNIST = DataSet("audiomnist", load_audiomnist, True, WANTS, *_NET, shared=_DEFAULTS, fixed=_FIXED)
