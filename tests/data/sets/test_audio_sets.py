"""Recordings by person: folders of one's own, AudioMNIST and VoxCeleb1."""

import sys
import wave
import zlib

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from selfsame.data import load
from selfsame.data.clips import Crops, HeldClips, MappedClips
from selfsame.data.sets.voxceleb import read_iden_split
from selfsame.errors import SelfsameError
from selfsame.streams import Stream

FUZZ = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
RATE = 2000


def _speak(path, samples=600, rate=RATE):
    """Noise of the file's own: the same for the same path, however deep the tree lies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    seed = zlib.crc32("/".join(path.parts[-3:]).encode())
    pcm = np.random.default_rng(seed).integers(-9000, 9000, samples).astype("<i2")
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(pcm.tobytes())
    return pcm


def _folder(root, people=6, each=5, samples=600):
    return {
        f"p{person}/sub/{take}.wav": _speak(root / f"p{person}" / "sub" / f"{take}.wav", samples)
        for person in range(people)
        for take in range(each)
    }


def _own(path, **options):
    return load("audiofolder", path, **{"rate": RATE, "seconds": 0.2, "test_seconds": 0.25, **options})


def _middle(pcm, width):
    start = (len(pcm) - width) // 2
    return pcm[start : start + width].tolist()


def _train(fed, client):
    index = torch.arange(int(fed.count_N[client]))[None]
    return fed.source.rows(torch.tensor([client]), index)[0, :, 0].tolist()


def test_every_recording_has_one_place(tmp_path):
    files = _folder(tmp_path)
    fed = _own(tmp_path, unseen_share=0.34, validation=1, test=2)
    assert fed.clients == 4 and fed.shape == (1, 400) and fed.unseen.x.shape == (10, 1, 500)
    assert fed.count_N.tolist() == [2] * 4 and len(fed.validation.y) == 4 and len(fed.test.y) == 8
    assert sorted(fed.class_names) == [f"p{person}" for person in range(6)]
    of_person = {}
    for client in range(4):
        of_person.setdefault(fed.class_names[client], []).extend(
            name for row in _train(fed, client) for name, pcm in files.items() if _middle(pcm, 400) == row
        )
    for part in (fed.validation, fed.test, fed.unseen):
        for row, label in zip(part.x[:, 0].tolist(), part.y.tolist()):
            of_person.setdefault(fed.class_names[label], []).extend(
                name for name, pcm in files.items() if _middle(pcm, 500) == row
            )
    assert {person: sorted(names) for person, names in of_person.items()} == {
        f"p{person}": [f"p{person}/sub/{take}.wav" for take in range(5)] for person in range(6)
    }
    label = fed.unseen.y
    assert torch.equal(fed.trials.same, label[fed.trials.index_a] == label[fed.trials.index_b])
    assert 0 < int(fed.trials.same.sum()) < len(fed.trials)


def test_the_split_follows_its_seed(tmp_path):
    _folder(tmp_path)
    one, same, other = (_own(tmp_path, unseen_share=0.4, seed=seed) for seed in (1, 1, 2))
    assert one.class_names == same.class_names and torch.equal(one.test.x, same.test.x)
    assert torch.equal(one.trials.index_a, same.trials.index_a)
    assert one.class_names != other.class_names or not torch.equal(one.test.x, other.test.x)


def test_samples_are_scaled_to_a_loudness_of_one(tmp_path):
    _folder(tmp_path)
    fed = _own(tmp_path, unseen_share=0.0)
    assert len(fed.unseen.y) == 0 and len(fed.trials) == 0
    x = fed.scale(torch.tensor([_train(fed, client) for client in range(6)], dtype=torch.int16)[:, :, None])
    assert x.dtype == torch.float32 and abs(float(x.square().mean()) - 1) < 1e-4


def test_more_than_memory_may_hold_stays_on_disk_and_is_the_same(tmp_path):
    _folder(tmp_path)
    held = _own(tmp_path, unseen_share=0.4, test_crops=3)
    mapped = _own(tmp_path, unseen_share=0.4, test_crops=3, hold_gib=0.0)
    assert isinstance(held.source, HeldClips) and isinstance(held.unseen.x, torch.Tensor)
    assert isinstance(mapped.source, MappedClips) and isinstance(mapped.unseen.x, Crops)
    for part in ("test", "unseen", "validation"):
        assert torch.equal(getattr(held, part).x, getattr(mapped, part).x[:])
    assert held.test.x.shape[1:] == (3, 1, 500)
    client, index = torch.tensor([1, 0]), torch.tensor([[0, 1], [1, 0]])
    stream = Stream.named(0, "crop", client, 0)
    assert torch.equal(held.source.crops(client, index, stream), mapped.source.crops(client, index, stream))


def test_bad_files_are_told_and_left_out(tmp_path):
    _folder(tmp_path)
    (tmp_path / "p1" / "notes.txt").write_text("hello")
    (tmp_path / "p2" / "sub" / "0.wav").write_bytes(b"")
    raw = (tmp_path / "p3" / "sub" / "0.wav").read_bytes()
    (tmp_path / "p3" / "sub" / "0.wav").write_bytes(raw[:-20])
    (tmp_path / "p9").mkdir()
    for _ in range(2):  # decoded, then from the cache
        fed = _own(tmp_path, unseen_share=0.0)
        assert "p1/notes.txt: not a wav or flac file by its name" in fed.left_out
        assert "p2/sub/0.wav: empty file" in fed.left_out
        assert "p3/sub/0.wav: truncated: 590 of 600 samples are there" in fed.left_out
        assert "p9: no wav or flac files in it" in fed.left_out
        assert any(note.startswith("2 files could not be read: p2/sub/0.wav") for note in fed.notes)
        assert any("1 people are no clients" in note and "p9 (0)" in note for note in fed.notes)
        assert fed.clients == 6 and sorted(fed.count_N.tolist()) == [2, 2, 3, 3, 3, 3]


def test_a_missing_library_is_not_remembered_as_a_bad_file(tmp_path, monkeypatch):
    _folder(tmp_path)
    (tmp_path / "p0" / "a.flac").write_bytes(b"fLaC")
    monkeypatch.setitem(sys.modules, "soundfile", None)
    with pytest.raises(SelfsameError, match=r"a\.flac: .*selfsame\[audio\]"):
        _own(tmp_path)
    (tmp_path / "p0" / "a.flac").unlink()
    assert _own(tmp_path).left_out == ()


def test_a_list_says_who_is_unseen(tmp_path):
    files = _folder(tmp_path)
    lines = ["1 p1/sub/0.wav p1/sub/3.wav", "0 p1/sub/0.wav p4/sub/2.wav", "", "0 p4/sub/2.wav p1/sub/9.wav"]
    (tmp_path / "trials.txt").write_text("\n".join(lines))
    fed = _own(tmp_path, pairs="trials.txt")
    assert set(fed.class_names[4:]) == {"p1", "p4"} and fed.clients == 4
    assert len(fed.trials) == 2 and fed.trials.same.tolist() == [True, False]
    assert "trial p4/sub/2.wav p1/sub/9.wav: absent or unreadable" in fed.left_out
    for at, (first, second) in enumerate([("p1/sub/0.wav", "p1/sub/3.wav"), ("p1/sub/0.wav", "p4/sub/2.wav")]):
        for index, name in ((fed.trials.index_a, first), (fed.trials.index_b, second)):
            row = int(index[at])
            assert fed.unseen.x[row, 0].tolist() == _middle(files[name], 500)
            assert fed.class_names[int(fed.unseen.y[row])] == name[:2]


@pytest.mark.parametrize(
    "text, line",
    [
        ("1 p1/sub/0.wav p4/sub/3.wav", "trial 1 says 1, but .* are of two people"),
        ("0 p1/sub/0.wav p1/sub/3.wav", "trial 1 says 0, but .* are of one person"),
        ("1 a/0.wav a/1.wav", r"none of its trials has both its files in .*, e\.g\. no a/0\.wav"),
        ("yes p1/a.wav p1/b.wav", "line 1: expected 0 or 1 and two files"),
        ("", "empty"),
    ],
)
def test_a_wrong_list_gets_one_line(tmp_path, text, line):
    _folder(tmp_path, each=3)
    (tmp_path / "trials.txt").write_text(text)
    with pytest.raises(SelfsameError, match=line) as caught:
        _own(tmp_path, pairs="trials.txt")
    assert "trials.txt" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "options, line",
    [
        ({"rate": 10}, "audiofolder: rate must be 1000 to 384000, got 10"),
        ({"seconds": 0.0}, "audiofolder: seconds must be 0.1 to 600, got 0.0"),
        ({"test_seconds": 601.0}, "audiofolder: test_seconds must be 0.1 to 600"),
        ({"test_crops": 0}, "audiofolder: test_crops must be 1 to 1000, got 0"),
        ({"unseen_share": 1.0}, "audiofolder: unseen_share must be 0 or more and below 1"),
        ({"people": 9}, "audiofolder: people must be 0"),
        ({"hold_gib": -1.0}, "audiofolder: hold_gib must be 0 to"),
    ],
)
def test_a_wrong_option_gets_one_line(tmp_path, options, line):
    _folder(tmp_path, each=3)
    with pytest.raises(SelfsameError, match=line):
        _own(tmp_path, **options)


def test_nothing_to_read_gets_one_line(tmp_path):
    with pytest.raises(SelfsameError, match="no folders in it; wanted: one folder a person"):
        load("audiofolder", tmp_path)
    (tmp_path / "anna").mkdir()
    with pytest.raises(SelfsameError, match="no wav or flac files found"):
        load("audiofolder", tmp_path)
    (tmp_path / "anna" / "a.wav").write_bytes(b"")
    with pytest.raises(SelfsameError, match=r"none of the 1 files can be read: anna/a\.wav: empty file"):
        load("audiofolder", tmp_path)


@pytest.mark.parametrize("inner", ["data", "AudioMNIST/data", "."])
def test_audiomnist(tmp_path, inner):
    for speaker in range(1, 7):
        for digit in range(2):
            for take in range(3):
                _speak(tmp_path / inner / f"{speaker:02d}" / f"{digit}_{speaker:02d}_{take}.wav", 300)
    _speak(tmp_path / inner / "03" / "0_04_7.wav")
    _speak(tmp_path / inner / "03" / "other.wav")
    fed = load("audiomnist", tmp_path, rate=RATE, seconds=0.25, held_out=2, validation=1, test=2)
    assert fed.clients == 4 and fed.shape == (1, 500) and fed.count_N.tolist() == [3] * 4
    assert len(fed.test.y) == 8 and len(fed.validation.y) == 4 and len(fed.unseen.y) == 12
    assert set(fed.class_names) == {f"{speaker:02d}" for speaker in range(1, 7)}
    assert [line.split(":")[0] for line in fed.left_out] == ["03/0_04_7.wav", "03/other.wav"]
    clip = fed.test.x[0, 0]
    assert torch.equal(clip[300:], clip[:200]), "a short take begins again"


def test_audiomnist_is_not_there(tmp_path):
    (tmp_path / "data").mkdir()
    with pytest.raises(SelfsameError, match=r"no folders of speakers found; wanted: .*github\.com/soerenab/AudioMNIST"):
        load("audiomnist", tmp_path)


DEV, TESTED = ("id10001", "id10002", "id11251"), ("id10270", "id10309")


def _voxceleb(root, places=("wav", "wav")):
    """Two videos of each person, three utterances each; the 40 people of the test set are elsewhere if asked."""
    files = {}
    for people, place in zip((DEV, TESTED), places):
        for person in people:
            for video in ("aaa", "bbb"):
                for take in range(3):
                    name = f"{person}/{video}/0000{take}.wav"
                    files[name] = _speak(root / place / name, 700 + 60 * take)
    return files


def _vox(path, **options):
    return load("voxceleb", path, **{"rate": RATE, "seconds": 0.2, "test_seconds": 0.3, "test_crops": 4, **options})


@pytest.mark.parametrize(
    "places", [("wav", "wav"), ("vox1_dev_wav/wav", "vox1_test_wav/wav"), (".", "."), ("dev/wav", "test/wav")]
)
def test_voxceleb_keeps_the_official_speakers_apart(tmp_path, places):
    files = _voxceleb(tmp_path, places)
    pairs = [
        (1, "id10270/aaa/00000.wav", "id10270/bbb/00002.wav"),
        (0, "id10270/aaa/00000.wav", "id10309/aaa/00001.wav"),
        (1, "id10309/aaa/00001.wav", "id10309/zzz/00001.wav"),
    ]
    (tmp_path / "veri_test.txt").write_text("".join(f"{same} {a} {b}\n" for same, a, b in pairs))
    fed = _vox(tmp_path, test=2, validation=1)
    assert fed.class_names == (*DEV, *TESTED) and fed.clients == 3 and fed.count_N.tolist() == [3, 3, 3]
    assert fed.shape == (1, 400) and fed.unseen.x.shape == (3, 4, 1, 600)
    assert fed.trials.same.tolist() == [True, False]
    assert any("1 trials are left out: trial " in note and "zzz" in note for note in fed.notes)
    for at, (_, *names) in enumerate(pairs[:2]):
        for index, name in zip((fed.trials.index_a, fed.trials.index_b), names):
            pcm = files[name]
            starts = [(len(pcm) - 600) * k // 3 for k in range(4)]
            expected = [pcm[start : start + 600].tolist() for start in starts]
            assert fed.unseen.x[int(index[at]), :, 0].tolist() == expected


def test_voxceleb_prefers_the_corrected_list_and_takes_a_given_one(tmp_path):
    _voxceleb(tmp_path)
    (tmp_path / "veri_test.txt").write_text("1 id10270/aaa/00000.wav id10270/bbb/00002.wav\n")
    (tmp_path / "veri_test2.txt").write_text("0 id10270/aaa/00000.wav id10309/bbb/00002.wav\n")
    (tmp_path / "mine.txt").write_text("1 id11251/aaa/00000.wav id11251/bbb/00002.wav\n")
    assert _vox(tmp_path).trials.same.tolist() == [False]
    mine = _vox(tmp_path, pairs="mine.txt")
    assert mine.class_names == ("id10001", "id10002", "id10270", "id10309", "id11251")
    assert mine.clients == 2 and mine.trials.same.tolist() == [True]
    assert [mine.class_names[y] for y in mine.unseen.y.tolist()] == ["id11251", "id11251"]


def test_voxceleb_without_a_list_draws_trials(tmp_path):
    _voxceleb(tmp_path)
    fed = _vox(tmp_path, trials=10)
    assert len(fed.trials) == 10 and int(fed.trials.same.sum()) == 5 and len(fed.unseen.y) == 12


def test_voxceleb_follows_the_split_for_identification(tmp_path):
    files = _voxceleb(tmp_path)
    part = {name: 1 + (name[8:11] == "bbb") * (1 + (name[16] == "2")) for name in files}
    del part["id10001/aaa/00001.wav"]
    for name in files:
        if name.startswith("id10002"):
            part[name] = 3
    (tmp_path / "iden_split.txt").write_text("".join(f"{number} {name}\n" for name, number in part.items()))
    (tmp_path / "wav" / "id10003" / "aaa").mkdir(parents=True)
    _speak(tmp_path / "wav" / "id10003" / "aaa" / "00000.wav")
    with pytest.raises(SelfsameError, match=r"iden_split2\.txt: cannot be read"):
        _vox(tmp_path, iden_split="iden_split2.txt")
    fed = _vox(tmp_path, iden_split="iden_split.txt")
    assert fed.class_names == ("id10001", "id11251", "id10270", "id10309") and fed.clients == 2
    assert fed.count_N.tolist() == [2, 3]
    assert fed.validation.y.tolist() == [0, 0, 1, 1] and fed.test.y.tolist() == [0, 1]
    assert _train(fed, 0) == [_middle(files[f"id10001/aaa/0000{take}.wav"], 400) for take in (0, 2)]
    expected = files["id11251/bbb/00002.wav"]
    assert fed.test.x[1, 0, 0].tolist() == expected[:600].tolist()
    assert "wav/id10001/aaa/00001.wav: not in iden_split.txt" in fed.left_out
    assert any("id10002: 0 samples, a client needs 1" in line for line in fed.left_out)


def test_voxceleb_is_not_there(tmp_path):
    (tmp_path / "wav").mkdir()
    with pytest.raises(SelfsameError, match=r"no folders of speakers .* found; wanted: .*robots\.ox\.ac\.uk"):
        _vox(tmp_path)


@FUZZ
@given(raw=st.one_of(st.binary(max_size=60), st.text("123 \n\r\tab/.", max_size=60).map(str.encode)))
def test_any_identification_list_is_read_or_gets_one_line(tmp_path, raw):
    (tmp_path / "iden_split.txt").write_bytes(raw)
    try:
        found = read_iden_split(tmp_path / "iden_split.txt")
    except SelfsameError as error:
        assert "\n" not in str(error) and "iden_split.txt" in str(error)
    else:
        assert found and set(found.values()) <= {1, 2, 3}


def _uv(path, **options):
    few = {"people": 3, "held_out": 1, "train": 3, "validation": 1, "test": 1, "unseen_samples": 2}
    return load("voxceleb_uv", path, **{"rate": RATE, "seconds": 0.1, **few, **options})


def _videos(root):
    """Five people; of each, video `long` gives three windows of 200 an utterance and video `short` gives one."""
    files = {}
    for person in range(10001, 10006):
        for video, samples in (("long", 690), ("short", 210)):
            for take in range(2):
                name = f"id{person}/{video}/0000{take}.wav"
                files[name] = _speak(root / "wav" / name, samples)
    return files


def test_fixed_clips_do_not_overlap_and_come_from_one_video(tmp_path):
    files = _videos(tmp_path)
    fed = _uv(tmp_path)
    assert fed.clients == 3 and fed.shape == (1, 200) and fed.count_N.tolist() == [3] * 3
    assert len(fed.validation.y) == 3 and len(fed.test.y) == 3 and len(fed.unseen.y) == 2
    rows = [(client, row) for client in range(3) for row in _train(fed, client)]
    for part in (fed.validation, fed.test, fed.unseen):
        rows += list(zip(part.y.tolist(), part.x[:, 0].tolist()))
    assert len({tuple(row) for _, row in rows}) == len(rows) == 9 + 3 + 3 + 2
    for label, row in rows:
        windows = [
            files[f"{fed.class_names[label]}/long/0000{take}.wav"][at : at + 200].tolist()
            for take in range(2)
            for at in (0, 200, 400)
        ]
        assert row in windows
    client, index = torch.arange(3), torch.arange(3).expand(3, 3)
    clips = fed.source.crops(client, index, Stream.named(0, "crop", client))
    assert torch.equal(clips, fed.source.rows(client, index)), "a fixed clip has one place"


def test_fixed_clips_from_all_videos(tmp_path):
    _videos(tmp_path)
    fed = _uv(tmp_path, one_setting=False, train=6)
    assert fed.count_N.tolist() == [6] * 3


def test_fixed_clips_need_people_with_enough_of_them(tmp_path):
    _videos(tmp_path)
    with pytest.raises(SelfsameError, match="voxceleb_uv: people must be 2 to 0, those with 7 clips, got 3"):
        _uv(tmp_path, train=5)
    with pytest.raises(SelfsameError, match="voxceleb_uv: held_out must be 0 to 2, the people left with 2 clips"):
        _uv(tmp_path, held_out=3)
    same = [_uv(tmp_path, seed=4).class_names for _ in range(2)]
    assert same[0] == same[1]
    assert len({_uv(tmp_path, seed=seed).class_names for seed in range(6)}) > 1
