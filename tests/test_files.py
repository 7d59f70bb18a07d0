"""Files are written whole or not at all, private ones for their owner alone; JSON has one reading."""

import json
import math
import os
import stat
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfsame import files
from selfsame.errors import SelfsameError

POSIX = pytest.mark.skipif(os.name != "posix", reason="permission bits and links")


def mode(path):
    return stat.S_IMODE(path.lstat().st_mode)


def test_a_file_is_replaced_as_a_whole(tmp_path):
    path = tmp_path / "new" / "folder" / "file"
    files.write(path, b"old")
    files.write(path, "new \u00e9")
    assert path.read_bytes() == "new \u00e9".encode()
    assert [child.name for child in path.parent.iterdir()] == ["file"]


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_what_fails_leaves_the_old_file_and_no_draft(tmp_path, monkeypatch, step):
    path = tmp_path / "file"
    files.write(path, b"old")

    def fail(*_):
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(OSError, match="No space left"):
        files.write(path, b"new")
    assert path.read_bytes() == b"old"
    assert [child.name for child in tmp_path.iterdir()] == ["file"]


def test_many_writers_at_once_leave_one_whole_file(tmp_path):
    path = tmp_path / "file"
    contents = [bytes([number]) * 50_000 for number in range(8)]
    threads = [threading.Thread(target=files.write, args=(path, content)) for content in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert path.read_bytes() in contents
    assert [child.name for child in tmp_path.iterdir()] == ["file"]


@POSIX
def test_a_private_file_is_for_its_owner_whatever_the_umask(tmp_path):
    before = os.umask(0)
    try:
        files.write(tmp_path / "secret" / "key", b"x", private=True)
        files.write(tmp_path / "plain", b"x")
    finally:
        os.umask(before)
    assert mode(tmp_path / "secret" / "key") == 0o600 and mode(tmp_path / "secret") == 0o700
    assert mode(tmp_path / "plain") == 0o666


@POSIX
def test_a_link_is_replaced_not_followed(tmp_path):
    other = tmp_path / "other"
    other.write_bytes(b"keep")
    (tmp_path / "link").symlink_to(other)
    files.write(tmp_path / "link", b"new", private=True)
    assert other.read_bytes() == b"keep" and not (tmp_path / "link").is_symlink()


@POSIX
def test_private_reading_refuses_what_is_not_private(tmp_path):
    path = tmp_path / "key"
    with pytest.raises(FileNotFoundError):
        files.read_private(path)
    files.write(path, b"12345", private=True)
    assert files.read_private(path) == b"12345"
    assert files.read_private(path, most=3) == b"1234"  # one more than asked for tells that it is too long
    path.chmod(0o640)
    with pytest.raises(SelfsameError, match=r"key: others may read or change it \(mode 640\); chmod 600 it"):
        files.read_private(path)
    path.chmod(0o600)
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(SelfsameError, match="link: cannot be read"):
        files.read_private(tmp_path / "link")
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(SelfsameError, match="pipe: expected a plain file"):
        files.read_private(tmp_path / "pipe")
    (tmp_path / "folder").mkdir(0o700)
    with pytest.raises(SelfsameError, match="folder"):
        files.read_private(tmp_path / "folder")


@POSIX
def test_a_private_folder_is_made_or_checked(tmp_path):
    assert mode(files.private_folder(tmp_path / "a" / "b")) == 0o700
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o755)
    with pytest.raises(SelfsameError, match="chmod 700"):
        files.private_folder(tmp_path / "open")
    assert mode(files.private_folder(tmp_path / "open", close=True)) == 0o700
    (tmp_path / "link").symlink_to(tmp_path / "a")
    with pytest.raises(SelfsameError, match="a file or a link"):
        files.private_folder(tmp_path / "link")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(SelfsameError, match="file: "):
        files.private_folder(tmp_path / "file")


@POSIX
def test_a_lock_has_one_holder(tmp_path):
    with files.locked(tmp_path / "lock") as mine:
        assert mine
        with files.locked(tmp_path / "lock", wait=False) as other:
            assert not other
    with files.locked(tmp_path / "lock", wait=False) as again:
        assert again


@pytest.mark.parametrize(
    "text", ['{"a": 1, "a": 1}', "[NaN]", "[Infinity]", "-Infinity", "", "{", '{"a": {"b": 1, "b": 2}}', "[" * 100_000]
)
def test_json_that_could_be_read_in_two_ways_is_refused(text, tmp_path):
    with pytest.raises(ValueError):
        files.parse_json(text)
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(SelfsameError, match=r"x\.json: not JSON"):
        files.read_json(tmp_path / "x.json")


def test_unreadable_files_get_one_line(tmp_path):
    with pytest.raises(SelfsameError, match="none: No such file"):
        files.read_text(tmp_path / "none")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    with pytest.raises(SelfsameError, match="bytes: not UTF-8"):
        files.read_json(tmp_path / "bytes")


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(plain)
def test_json_comes_back(value):
    assert files.parse_json(json.dumps(value)) == value


def test_json_is_written_without_nan(tmp_path):
    files.write_json(tmp_path / "x.json", {"a": [1, 2.5]})
    assert files.read_json(tmp_path / "x.json") == {"a": [1, 2.5]}
    with pytest.raises(ValueError):
        files.write_json(tmp_path / "x.json", math.nan)
    assert files.read_json(tmp_path / "x.json") == {"a": [1, 2.5]}


def test_records_come_back_in_order_the_last_of_each(tmp_path):
    path = tmp_path / "rounds.jsonl"
    assert files.read_records(path) == []
    for record in ({"round": 2, "x": 1}, {"round": 1}, {"round": 2, "x": 2}):
        files.append_record(path, record)
    assert files.read_records(path) == [{"round": 1}, {"round": 2, "x": 2}]
    files.write_records(path, [{"round": 5}])
    assert files.read_records(path) == [{"round": 5}]


@given(
    cut=st.integers(0, 60),
    odd=st.sampled_from([b"", b"7\n", b"[1]\n", b'{"round": true}\n', b'{"round": "1"}\n', b"\xff\n"]),
)
def test_a_line_cut_off_by_a_crash_does_not_count(tmp_path_factory, cut, odd):
    path = tmp_path_factory.mktemp("records") / "rounds.jsonl"
    lines = [json.dumps({"round": number, "loss": 0.5}).encode() + b"\n" for number in range(3)]
    whole = b"".join(lines)
    path.write_bytes(odd + whole[:cut])
    done = sum(1 for number in range(3) if cut >= len(b"".join(lines[: number + 1])) - 1)
    assert [record["round"] for record in files.read_records(path)] == list(range(done))


def test_what_is_written_piece_by_piece_goes_through_no_link(tmp_path):
    """A victim's file was overwritten through a link of the name that was to be written."""
    victim = tmp_path / "victim"
    victim.write_text("whole")
    for name in ("metrics.jsonl", "output.txt"):
        (tmp_path / name).symlink_to(victim)
    with pytest.raises(SelfsameError, match=r"metrics\.jsonl: is a link"):
        files.append_record(tmp_path / "metrics.jsonl", {"round": 1})
    with pytest.raises(SelfsameError, match=r"output\.txt: is a link"):
        files.opened(tmp_path / "output.txt", append=False)
    assert victim.read_text() == "whole"
    for text in (b"one", b"two"):
        with files.opened(tmp_path / "log") as log:
            log.write(text)
    assert (tmp_path / "log").read_bytes() == b"onetwo"


def test_no_mode_is_set_through_a_link(tmp_path, monkeypatch):
    """A folder that becomes a link between the look and the change: the link's target keeps its mode."""
    target, folder = tmp_path / "target", tmp_path / "folder"
    target.mkdir()
    target.chmod(0o755)
    folder.mkdir()
    found = folder.lstat()
    folder.rmdir()
    folder.symlink_to(target)
    monkeypatch.setattr(Path, "lstat", lambda self: found)
    monkeypatch.setattr(Path, "mkdir", lambda self, **how: None)
    with pytest.raises(SelfsameError, match="folder: "):
        files.private_folder(folder, close=True)
    assert os.stat(target).st_mode & 0o777 == 0o755


def test_an_executable_file(tmp_path):
    (tmp_path / "run").symlink_to(tmp_path / "victim")
    (tmp_path / "victim").write_text("whole")
    files.write(tmp_path / "run", "#!/bin/sh\n", private=True, executable=True)
    assert (tmp_path / "run").lstat().st_mode & 0o777 == 0o700
    assert (tmp_path / "victim").read_text() == "whole"


def test_a_full_disk_names_the_file(tmp_path, monkeypatch):
    import errno

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "log").touch()
    for call in (lambda: files.write(tmp_path / "x", b"1"), lambda: files.append_record(tmp_path / "log", {"a": 1})):
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            patch.setattr(files.json, "dumps", full)
            with pytest.raises(OSError, match="No space left") as caught:
                call()
        assert caught.value.filename in (str(tmp_path / "x"), str(tmp_path / "log"))
    assert not (tmp_path / "x").exists()
