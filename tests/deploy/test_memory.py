"""What a device keeps: private by its mode, whole after a kill at any point, and never a step back."""

from __future__ import annotations

import os
import threading

import pytest
import torch
from loopback import kill_at

from selfsame.deploy.codec import Refused
from selfsame.deploy.memory import Keep, Memory, digest
from selfsame.errors import SelfsameError

FIRST = Memory(
    0, digest(b"ask"), b"answer", {"prototype": torch.arange(4.0), "started": torch.tensor([True])}, {"a": [1]}
)
SECOND = FIRST.after(1, b"next", b"longer answer", {"prototype": torch.arange(4.0) + 10}, {"b": "c"})


def same(a: Memory, b: Memory) -> bool:
    fields = a.fields.keys() == b.fields.keys() and all(torch.equal(a.fields[k], b.fields[k]) for k in a.fields)
    return fields and (a.turn, a.request, a.reply, a.notes) == (b.turn, b.request, b.reply, b.notes)


def test_empty_then_there(tmp_path):
    keep = Keep(tmp_path / "deep" / "node")
    assert same(keep.read(), Memory())
    keep.write(FIRST)
    assert same(Keep(tmp_path / "deep" / "node").read(), FIRST)
    keep.write(SECOND)
    assert same(keep.read(), SECOND) and SECOND.notes == {"a": [1], "b": "c"}
    keep.forget()
    assert same(keep.read(), Memory())


def test_modes(tmp_path):
    """Whatever the umask says."""
    before = os.umask(0)
    try:
        keep = Keep(tmp_path / "node")
        with keep.alone():
            keep.write(FIRST)
    finally:
        os.umask(before)
    assert (tmp_path / "node").stat().st_mode & 0o777 == 0o700
    assert {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "node").iterdir()} == {
        "state.safetensors": 0o600,
        "lock": 0o600,
    }


def test_what_others_may_read_is_refused(tmp_path):
    keep = Keep(tmp_path / "node")
    keep.write(FIRST)
    (tmp_path / "node" / "state.safetensors").chmod(0o640)
    with pytest.raises(SelfsameError, match="others may read"):
        keep.read()
    (tmp_path / "node").chmod(0o755)
    with pytest.raises(SelfsameError, match="others may read"):
        Keep(tmp_path / "node")


def test_links_are_not_followed(tmp_path):
    Keep(tmp_path / "node").write(FIRST)
    (tmp_path / "other").symlink_to(tmp_path / "node")
    with pytest.raises(SelfsameError, match="link"):
        Keep(tmp_path / "other")
    (tmp_path / "aim").write_bytes(b"precious")
    (tmp_path / "aim").chmod(0o600)
    (tmp_path / "node" / "state.safetensors").unlink()
    (tmp_path / "node" / "state.safetensors").symlink_to(tmp_path / "aim")
    for work in (Keep(tmp_path / "node").read, lambda: Keep(tmp_path / "node").write(SECOND)):
        with pytest.raises(SelfsameError, match="cannot be read"):
            work()
    assert (tmp_path / "aim").read_bytes() == b"precious"


def test_what_a_crash_left_half_written_is_removed(tmp_path):
    """By this version, and by the one before, which had another name for it."""
    keep = Keep(tmp_path / "node")
    keep.write(FIRST)
    (tmp_path / "aim").write_bytes(b"precious")
    (tmp_path / "node" / "state.safetensors.new").symlink_to(tmp_path / "aim")
    (tmp_path / "node" / ".state.safetensors.0123").write_bytes(b"half")
    with keep.alone():
        assert {path.name for path in (tmp_path / "node").iterdir()} == {"state.safetensors", "lock"}
    assert same(keep.read(), FIRST) and (tmp_path / "aim").read_bytes() == b"precious"


@pytest.mark.parametrize("damage", [b"", b"\x00" * 50, "cut", "flip"])
def test_damage_is_one_line(tmp_path, damage):
    tmp_path.chmod(0o700)
    keep = Keep(tmp_path)
    keep.write(FIRST)
    path = tmp_path / "state.safetensors"
    good = path.read_bytes()
    path.write_bytes({"cut": good[:-3], "flip": good[:20] + b"\xff" + good[21:]}.get(damage, damage))
    with pytest.raises(SelfsameError, match="damaged"):
        keep.read()


def test_a_file_in_the_way(tmp_path):
    (tmp_path / "node").write_text("x")
    with pytest.raises(SelfsameError):
        Keep(tmp_path / "node")


def test_turns(tmp_path):
    """The same request gets the same bytes; another of that turn, or an older one, gets nothing."""
    assert FIRST.answered(1, b"anything") is None
    assert FIRST.answered(0, b"ask") == b"answer"
    for turn, request in ((0, b"ask me again"), (-1, b"ask")):
        with pytest.raises(Refused, match="stale"):
            FIRST.answered(turn, request)
    keep = Keep(tmp_path / "node")
    keep.write(SECOND)
    with pytest.raises(Refused, match="stale"):
        keep.write(FIRST)
    assert same(keep.read(), SECOND)


def test_one_process_at_a_time(tmp_path):
    """A second one waits until the first is done."""
    one, two, order = Keep(tmp_path / "node"), Keep(tmp_path / "node"), []
    inside, go = threading.Event(), threading.Event()

    def second():
        inside.wait(10)
        with two.alone():
            order.append("second")

    thread = threading.Thread(target=second)
    thread.start()
    with one.alone():
        inside.set()
        go.wait(0.2)
        order.append("first")
    thread.join(10)
    assert order == ["first", "second"]


def test_killed_at_any_point(tmp_path):
    """The old memory or the new one, whole; and the next write goes through."""
    killed = old = new = 0
    for point in range(1, 12):
        for after in (False, True):
            keep = Keep(tmp_path / f"{point}{after}")
            keep.write(FIRST)
            if not kill_at(point, after, lambda keep=keep: keep.write(SECOND)):
                continue
            killed += 1
            found = Keep(tmp_path / f"{point}{after}").read()
            assert same(found, FIRST) or same(found, SECOND)
            old, new = old + same(found, FIRST), new + same(found, SECOND)
            keep.write(SECOND)
            assert same(keep.read(), SECOND)
    assert killed >= 12 and old >= 6 and new >= 4  # before the renaming and after it
