"""VoxCeleb1 (Nagrani et al., 2017): 1,251 people in videos, wav/SPEAKER/VIDEO/00001.wav, about 8 seconds each."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from selfsame.data.dataset import DataSet
from selfsame.data.federation import Federation
from selfsame.data.formats.lists import read_list
from selfsame.data.listing import Listing, shown, subfolders
from selfsame.data.people import Choice, Division, Ints, Part, choose_people, divide, draw_unseen, drawn_people, too_few
from selfsame.data.speech import SpeechOptions, decoded, federate_speech, list_recordings, load_speech, whole
from selfsame.data.trial_lists import Pair, check_there, people_of, read_trials
from selfsame.errors import SelfsameError

_PLACES = ("wav", "dev/wav", "test/wav", "vox1_dev_wav/wav", "vox1_test_wav/wav", "vox1_dev_wav", "vox1_test_wav", ".")
_SPEAKER = re.compile("id1[0-9]{4}")
_TESTED = tuple(f"id{number}" for number in range(10270, 10310))  # the 40 people whose names begin with E
_LISTS = ("veri_test2.txt", "veri_test.txt")  # the first is the second without its errors: 37,611 trials
WANTS = (
    "SPEAKER/VIDEO/00001.wav in PATH/wav, or in PATH/vox1_dev_wav/wav and PATH/vox1_test_wav/wav, and the trial list "
    "veri_test2.txt or veri_test.txt in PATH; from https://www.robots.ox.ac.uk/~vgg/data/voxceleb/vox1.html"
)


def load_voxceleb(path: Path, options: SpeechOptions, *, iden_split: str = "", pairs: str = "") -> Federation:
    """The official verification split, as FedHide uses it: 1,211 clients, 40 unseen people with a list of trials.

    A training sample is a random clip of an utterance; an evaluated one is `test_crops` clips, evenly spaced. `pairs`
    names another list of trials: whoever is in it is unseen. `iden_split` names the publisher's iden_split.txt, which
    then divides the clients' utterances in place of the seed. Where there is no list, `trials` pairs are drawn.
    """
    found = _find(path)
    listed = path / pairs if pairs else next((path / name for name in _LISTS if (path / name).is_file()), None)
    given = _trials(listed, found) if listed else None
    tested = [number for number, name in enumerate(found.names) if name in _TESTED]
    unseen = np.union1d(np.array(tested, np.int64), people_of(found, given or ()))
    if not iden_split:
        return load_speech("voxceleb", found, options, unseen=unseen, pairs=given)
    return _identified(path / iden_split, found, options, unseen, given)


def load_voxceleb_uv(path: Path, options: SpeechOptions, *, one_setting: bool = True) -> Federation:
    """As FedUV: a thousand people with 25, 10 and 10 clips of 2^14 samples each; 5 clips each of 200 others are unseen.

    A clip is a fixed window of an utterance; windows do not overlap. With `one_setting` all clips of a person come from
    one video, the one with most; else from all of them.
    """
    found = _find(path)
    options = replace(options, test_seconds=options.seconds)
    packed = decoded("voxceleb", found, options)
    pieces, origin = whole(packed).windows(options.width)
    file_W = packed.kept[origin]
    person_W = found.person[file_W]
    if one_setting:
        keep = _longest_video(found, file_W)
        pieces, person_W = pieces.pick(keep), person_W[keep]
    choice = _clients_first(np.bincount(person_W, minlength=len(found.names)), options)
    split = divide(person_W, found.names, choice, options)
    return federate_speech("voxceleb_uv", found, packed, pieces, split, options)


_DEFAULTS = SpeechOptions(test_crops=10, test=5)
_FIXED = ("held_out", "least", "unseen_samples")
_AS_FEDUV = SpeechOptions(
    rate=8000, seconds=2.048, people=1000, held_out=200, train=25, validation=10, test=10, unseen_samples=5
)
_AS_FEDUV_FIXED = ("test_seconds", "test_crops", "least")
VOXCELEB = DataSet("voxceleb", load_voxceleb, True, WANTS, "fast-resnet34-mel", 512, shared=_DEFAULTS, fixed=_FIXED)
VOXCELEB_UV = DataSet(
    "voxceleb_uv", load_voxceleb_uv, True, WANTS, "feduv-voxceleb", 511, shared=_AS_FEDUV, fixed=_AS_FEDUV_FIXED
)


def _find(path: Path) -> Listing:
    """The utterances of everybody, in whichever of the usual places they lie."""
    places = [place for place in _PLACES if (path / place).is_dir()]
    speakers = [(place, name) for place in places for name in subfolders(path / place) if _SPEAKER.fullmatch(name)]
    if not speakers:
        raise SelfsameError(f"{path}: no folders of speakers (id10001 and so on) found; wanted: {WANTS}")
    folders = [name if place == "." else f"{place}/{name}" for place, name in speakers]
    names = sorted({name for _, name in speakers})  # a person's files may lie in several places
    number = {name: person for person, name in enumerate(names)}
    return list_recordings(path, folders, names, [number[name] for _, name in speakers])


def _trials(listed: Path, found: Listing) -> list[Pair]:
    """The trials of a list, their files named as they lie here."""
    place = {_key(file): file for file in found.files}
    there = [
        replace(pair, first=place.get(pair.first, pair.first), second=place.get(pair.second, pair.second))
        for pair in read_trials(listed)
    ]
    check_there(listed, there, found)
    return there


def _key(file: str) -> str:
    """SPEAKER/VIDEO/FILE, as the publisher's lists name a file, wherever it lies."""
    return "/".join(file.split("/")[-3:])


def _identified(
    listed: Path, found: Listing, options: SpeechOptions, unseen: Ints, pairs: Sequence[Pair] | None
) -> Federation:
    """Training, validation and test utterances of the clients by the publisher's split for identification."""
    part_of = read_iden_split(listed)
    unlisted = [f"{shown(file)}: not in {listed.name}" for file in found.files if _key(file) not in part_of]
    packed = decoded("voxceleb", found, options)
    person_S = found.person[packed.kept]
    part_S = np.array([part_of.get(_key(found.files[number]), 0) for number in packed.kept.tolist()], np.int64)
    trained_P = np.bincount(person_S[part_S == 1], minlength=len(found.names))
    choice = choose_people("voxceleb", trained_P, options, least=1, unseen=unseen)
    notes, few = too_few(found.names, choice)
    class_P = np.full(len(found.names), -1)
    class_P[choice.seen] = np.arange(len(choice.seen))
    class_P[choice.unseen] = len(choice.seen) + np.arange(len(choice.unseen))

    def part(takes: NDArray[np.bool_]) -> Part:
        row = np.nonzero(takes & (class_P[person_S] >= 0))[0]
        row = row[np.argsort(class_P[person_S[row]], kind="stable")]
        return Part(row, class_P[person_S[row]])

    away = np.isin(person_S, choice.unseen)
    train, validation, test = (part(~away & (part_S == number)) for number in (1, 2, 3))
    split = Division(choice.seen, choice.unseen, train, validation, test, part(away), notes, (*unlisted, *few))
    return federate_speech("voxceleb", found, packed, whole(packed), split, options, pairs)


def read_iden_split(file: Path) -> dict[str, int]:
    """The publisher's split for identification: lines of 1 (training), 2 (validation) or 3 (test) and an utterance."""
    known = ("1", "2", "3")
    rows = read_list(file, "1, 2 or 3 and a file", lambda words: len(words) == 2 and words[0] in known)
    return {name: int(part) for _, (part, name) in rows}


def _longest_video(found: Listing, file_W: Ints) -> Ints:
    """The windows that come from the video of which their speaker has most."""
    folders, video_F = np.unique([file.rpartition("/")[0] for file in found.files], return_inverse=True)
    video_W = video_F[file_W]
    count_V = np.bincount(video_W, minlength=len(folders))
    owner_V = np.zeros(len(folders), np.int64)
    owner_V[video_F] = found.person
    best_P = np.zeros(len(found.names), np.int64)
    for video in np.argsort(count_V, kind="stable").tolist():
        best_P[owner_V[video]] = video
    return np.nonzero(video_W == best_P[found.person[file_W]])[0]


def _clients_first(count_P: Ints, options: SpeechOptions) -> Choice:
    """Clients among those with enough clips, then unseen people among all others: the paper has hardly any to spare."""
    least = options.needed
    enough = np.nonzero(count_P >= least)[0]
    if not 2 <= options.people <= len(enough):
        raise SelfsameError(
            f"voxceleb_uv: people must be 2 to {len(enough)}, those with {least} clips, got {options.people}"
        )
    seen = drawn_people(options.seed, "voxceleb_uv/seen", enough, options.people)
    others = np.setdiff1d(np.nonzero(count_P >= max(2, options.unseen_samples))[0], seen)
    who = f", the people left with {options.unseen_samples} clips"
    unseen = draw_unseen("voxceleb_uv", "voxceleb_uv/unseen", others, options, who)
    few = np.setdiff1d(np.nonzero(count_P < least)[0], unseen)
    return Choice(seen, unseen, tuple((int(person), int(count_P[person])) for person in few), least)
