"""VoxCeleb1 (Nagrani et al., 2017): 1,251 people in videos, wav/SPEAKER/VIDEO/00001.wav, about 8 seconds each."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from selfsame.data.federation import Federation
from selfsame.data.people import Choice, Ints, Part, Split, choose_people, divide, least_samples, read_lines, too_few
from selfsame.data.photos import Pair, shown, subfolders
from selfsame.data.sets.audiofolder import read_pairs
from selfsame.data.speech import Recordings, Wanted, check_there, decoded, federate_speech, load_speech, whole
from selfsame.errors import SelfsameError
from selfsame.streams import host_generator

_PLACES = ("wav", "dev/wav", "test/wav", "vox1_dev_wav/wav", "vox1_test_wav/wav", "vox1_dev_wav", "vox1_test_wav", ".")
_SPEAKER = re.compile("id1[0-9]{4}")
_TESTED = tuple(f"id{number}" for number in range(10270, 10310))  # the 40 people whose names begin with E
_LISTS = ("veri_test2.txt", "veri_test.txt")  # the first is the second without its errors: 37,611 trials
WANTS = (
    "SPEAKER/VIDEO/00001.wav in PATH/wav, or in PATH/vox1_dev_wav/wav and PATH/vox1_test_wav/wav, and the trial list "
    "veri_test2.txt or veri_test.txt in PATH; from https://www.robots.ox.ac.uk/~vgg/data/voxceleb/vox1.html"
)


def load_voxceleb(
    path: Path,
    *,
    rate: int = 16000,
    seconds: float = 2.0,
    test_seconds: float = 3.0,
    test_crops: int = 10,
    people: int = 0,
    train: int = 0,
    validation: int = 0,
    test: int = 5,
    iden_split: str = "",
    pairs: str = "",
    trials: int = 20_000,
    seed: int = 0,
    hold_gib: float = 2.0,
    cache: str = "",
) -> Federation:
    """The official verification split, as FedHide uses it: 1,211 clients, 40 unseen people with a list of trials.

    A training sample is a random clip of an utterance; an evaluated one is `test_crops` clips, evenly spaced. `pairs`
    names another list of trials: whoever is in it is unseen. `iden_split` names the publisher's iden_split.txt, which
    then divides the clients' utterances in place of the seed. Where there is no list, `trials` pairs are drawn.
    """
    found = _find(path)
    listed = path / pairs if pairs else next((path / name for name in _LISTS if (path / name).is_file()), None)
    given = _trials(listed, found) if listed else None
    tested = [number for number, name in enumerate(found.names) if name in _TESTED]
    unseen = np.union1d(np.array(tested, np.int64), found.people_of(given or ()))
    wanted = Wanted(
        rate=rate,
        seconds=seconds,
        test_seconds=test_seconds,
        test_crops=test_crops,
        people=people,
        held_out=0,
        train=train,
        validation=validation,
        test=test,
        unseen_samples=0,
        trials=trials,
        seed=seed,
        hold_gib=hold_gib,
        cache=cache,
    )
    if not iden_split:
        return load_speech("voxceleb", found, wanted, unseen=unseen, pairs=given)
    return _identified(path / iden_split, found, wanted, unseen, given)


def load_voxceleb_uv(
    path: Path,
    *,
    rate: int = 8000,
    seconds: float = 2.048,
    people: int = 1000,
    held_out: int = 200,
    train: int = 25,
    validation: int = 10,
    test: int = 10,
    unseen_samples: int = 5,
    one_setting: bool = True,
    trials: int = 20_000,
    seed: int = 0,
    hold_gib: float = 2.0,
    cache: str = "",
) -> Federation:
    """As FedUV: a thousand people with 25, 10 and 10 clips of 2^14 samples each; 5 clips each of 200 others are unseen.

    A clip is a fixed window of an utterance; windows do not overlap. With `one_setting` all clips of a person come from
    one video, the one with most; else from all of them.
    """
    found = _find(path)
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
    packed = decoded("voxceleb", found, wanted)
    pieces, origin = whole(packed).windows(wanted.width)
    file_W = packed.kept[origin]
    person_W = found.person[file_W]
    if one_setting:
        keep = _longest_video(found, file_W)
        pieces, person_W = pieces.pick(keep), person_W[keep]
    choice = _clients_first(np.bincount(person_W, minlength=len(found.names)), wanted)
    split = divide(
        person_W,
        found.names,
        choice,
        seed=seed,
        train=train,
        validation=validation,
        test=test,
        unseen_samples=unseen_samples,
    )
    return federate_speech("voxceleb_uv", found, packed, pieces, split, wanted)


def _find(path: Path) -> Recordings:
    """The utterances of everybody, in whichever of the usual places they lie."""
    places = [place for place in _PLACES if (path / place).is_dir()]
    speakers = [(place, name) for place in places for name in subfolders(path / place) if _SPEAKER.fullmatch(name)]
    if not speakers:
        raise SelfsameError(f"{path}: no folders of speakers (id10001 and so on) found; wanted: {WANTS}")
    folders = [name if place == "." else f"{place}/{name}" for place, name in speakers]
    return Recordings.of(path, folders, [name for _, name in speakers])


def _trials(listed: Path, found: Recordings) -> list[Pair]:
    """The trials of a list, their files named as they lie here."""
    place = {_key(file): file for file in found.files}
    pairs = list(read_pairs(listed))
    there = [
        replace(pair, first=place.get(pair.first, pair.first), second=place.get(pair.second, pair.second))
        for pair in pairs
    ]
    check_there(listed, there, found)
    return there


def _key(file: str) -> str:
    """SPEAKER/VIDEO/FILE, as the publisher's lists name a file, wherever it lies."""
    return "/".join(file.split("/")[-3:])


def _identified(
    listed: Path, found: Recordings, wanted: Wanted, unseen: Ints, pairs: Sequence[Pair] | None
) -> Federation:
    """Training, validation and test utterances of the clients by the publisher's split for identification."""
    part_of = read_iden_split(listed)
    unlisted = [f"{shown(file)}: not in {listed.name}" for file in found.files if _key(file) not in part_of]
    packed = decoded("voxceleb", found, wanted)
    person_S = found.person[packed.kept]
    part_S = np.array([part_of.get(_key(found.files[number]), 0) for number in packed.kept.tolist()], np.int64)
    trained_P = np.bincount(person_S[part_S == 1], minlength=len(found.names))
    choice = choose_people("voxceleb", trained_P, seed=wanted.seed, people=wanted.people, unseen=unseen)
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
    split = Split(choice.seen, choice.unseen, train, validation, test, part(away), notes, (*unlisted, *few))
    return federate_speech("voxceleb", found, packed, whole(packed), split, wanted, pairs)


def read_iden_split(file: Path) -> dict[str, int]:
    """The publisher's split for identification: lines of 1 (training), 2 (validation) or 3 (test) and an utterance."""
    out: dict[str, int] = {}
    for number, line in enumerate(read_lines(file), 1):
        fields = line.split()
        if not fields:
            continue
        if len(fields) != 2 or fields[0] not in ("1", "2", "3"):
            raise SelfsameError(f"{file}: line {number}: expected 1, 2 or 3 and a file, got {line.strip()[:80]!r}")
        out[fields[1]] = int(fields[0])
    if not out:
        raise SelfsameError(f"{file}: empty, expected lines of 1, 2 or 3 and a file")
    return out


def _longest_video(found: Recordings, file_W: Ints) -> Ints:
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


def _clients_first(count_P: Ints, wanted: Wanted) -> Choice:
    """Clients among those with enough clips, then unseen people among all others: the paper has hardly any to spare."""
    least = least_samples("voxceleb_uv", wanted.train, wanted.validation, wanted.test)
    enough = np.nonzero(count_P >= least)[0]
    if not 2 <= wanted.people <= len(enough):
        raise SelfsameError(
            f"voxceleb_uv: people must be 2 to {len(enough)}, those with {least} clips, got {wanted.people}"
        )
    seen = np.sort(host_generator(wanted.seed, "voxceleb_uv/seen").permutation(enough)[: wanted.people])
    others = np.setdiff1d(np.nonzero(count_P >= max(2, wanted.unseen_samples))[0], seen)
    if not 0 <= wanted.held_out <= len(others):
        raise SelfsameError(
            f"voxceleb_uv: held_out must be 0 to {len(others)}, the people left with {wanted.unseen_samples} clips, "
            f"got {wanted.held_out}"
        )
    unseen = np.sort(host_generator(wanted.seed, "voxceleb_uv/unseen").permutation(others)[: wanted.held_out])
    few = np.setdiff1d(np.nonzero(count_P < least)[0], unseen)
    return Choice(seen, unseen, tuple((int(person), int(count_P[person])) for person in few), least)
