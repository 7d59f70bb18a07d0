"""Anybody's recordings, one folder a person: PATH/NAME/any.wav, in folders below it too."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from selfsame.data.dataset import DataSet
from selfsame.data.federation import Federation
from selfsame.data.listing import subfolders
from selfsame.data.speech import SpeechOptions, list_recordings, load_speech
from selfsame.data.trial_lists import check_there, people_of, read_trials
from selfsame.errors import SelfsameError

WANTS = (
    "one folder a person with wav or flac files in it or below: PATH/NAME/ANY.wav, your own recordings; flac takes the "
    "extra selfsame[audio]; optionally a list of trials (option pairs): lines of 1 or 0 and two files relative to PATH"
)


def load_audiofolder(path: Path, options: SpeechOptions, *, unseen_share: float = 0.2, pairs: str = "") -> Federation:
    """One client per folder; `unseen_share` of the people is unseen, or, with a list of `pairs`, those whom it names.

    A training sample is a random clip of `seconds`, an evaluated one is `test_crops` clips of `test_seconds`, evenly
    spaced; shorter recordings are repeated. The other options are those of imagefolder.
    """
    folders = subfolders(path)
    if not folders:
        raise SelfsameError(f"{path}: no folders in it; wanted: {WANTS}")
    found = list_recordings(path, folders, folders)
    options = replace(options, held_out=found.share("audiofolder", unseen_share))
    given = read_trials(path / pairs) if pairs else None
    if given:
        check_there(path / pairs, given, found)
    unseen = people_of(found, given) if given else None
    return load_speech("audiofolder", found, options, unseen=unseen, pairs=given)


_DEFAULTS = SpeechOptions(test=2, trials=6000)
AUDIOFOLDER = DataSet(
    "audiofolder", load_audiofolder, True, WANTS, "fast-resnet34-mel", 512, shared=_DEFAULTS, fixed=("held_out",)
)
