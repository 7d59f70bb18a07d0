"""The cache: what was decoded comes back, once, whole, and again where it was damaged."""

import json
import multiprocessing
import os
import stat
import time

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from selfsame.data import cache
from selfsame.data.cache import pack, watching
from selfsame.errors import SelfsameError

FUZZ = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def write(root, contents):
    root.mkdir(parents=True, exist_ok=True)
    for name, body in contents.items():
        (root / name).write_bytes(bytes(body))
    return sorted(contents)


def whole(path):
    """Bytes; a file that begins with 255 is bad."""
    raw = np.frombuffer(path.read_bytes(), np.uint8)
    if len(raw) and raw[0] == 255:
        raise SelfsameError("begins\nwith 255")
    return raw


def fixed(path):
    return whole(path)[:4].reshape(2, 2)


def never(path):
    raise AssertionError(f"{path} was decoded again")


SHORT = {"dtype": np.uint8, "row_shape": (2, 2)}
RAGGED = {"dtype": np.uint8, "row_shape": ()}


def rows(packed):
    """The rows of unequal length."""
    return [packed.flat[begin:end].tolist() for begin, end in zip(packed.offset[:-1], packed.offset[1:])]


def folder_of(root):
    (found,) = [entry for entry in (root / ".selfsame").iterdir() if entry.is_dir()]
    return found


@pytest.mark.parametrize("workers", [1, 3])
def test_rows_of_one_shape_come_back_without_decoding(tmp_path, monkeypatch, workers):
    monkeypatch.setattr(cache, "_cores", lambda: workers)
    contents = {f"{n:03d}": [n % 250, n // 7, 3, 4] for n in range(200)} | {"077": [255, 1, 1, 1]}
    files = write(tmp_path, contents)
    first = pack("a", files, fixed, root=tmp_path, **SHORT)
    again = pack("a", files, never, root=tmp_path, **SHORT)
    for packed in (first, again):
        assert packed.flat.shape == (199, 2, 2) and len(packed) == 199
        assert packed.bad == (("077", "begins with 255"),)
        assert packed.kept.tolist() == [n for n in range(200) if n != 77]
        for row, number in enumerate(packed.kept.tolist()):
            assert packed.flat[row].flatten().tolist() == contents[files[number]]
        assert packed.offset.tolist() == list(range(200)) and packed.notes == ()
    assert isinstance(again.flat, np.memmap)


@settings(FUZZ, max_examples=25)
@given(st.lists(st.binary(max_size=9), min_size=1, max_size=12))
def test_ragged_rows_come_back(tmp_path_factory, bodies):
    root = tmp_path_factory.mktemp("ragged")
    files = write(root, {f"{n:02d}": body for n, body in enumerate(bodies)})
    good = [list(body) for body in bodies if body[:1] != b"\xff"]
    for decode in (whole, never):
        packed = pack("r", files, decode, root=root, **RAGGED)
        assert rows(packed) == good
        assert len(packed.bad) == len(bodies) - len(good)
        assert packed.flat.shape == (sum(map(len, good)),)


def test_other_files_other_cache(tmp_path):
    files = write(tmp_path, {"a": [1, 2, 3, 4], "b": [5, 6, 7, 8]})
    pack("n", files, fixed, root=tmp_path, **SHORT)
    before = folder_of(tmp_path)
    (tmp_path / "b").write_bytes(bytes([9, 9, 9, 9]))
    os.utime(tmp_path / "b", ns=(1, 1))
    packed = pack("n", files, fixed, root=tmp_path, **SHORT)
    assert packed.flat[1].flatten().tolist() == [9] * 4 and packed.notes == ()
    assert folder_of(tmp_path) != before  # and the old one is gone
    assert len(pack("n", files[:1], fixed, root=tmp_path, **SHORT)) == 1
    pack("n-other", files, fixed, root=tmp_path, **SHORT)
    assert len(list((tmp_path / ".selfsame").iterdir())) == 2  # another name does not push the first out


def spoil_data(folder):
    with (folder / "data.bin").open("ab") as stream:
        stream.truncate(5)


def spoil_index(folder):
    (folder / "index.json").write_text('{"version": 1')


def spoil_bad(folder):
    index = json.loads((folder / "index.json").read_text())
    (folder / "index.json").write_text(json.dumps(index | {"rows": 1, "total": 1, "bad": [[7, "x"]]}))


def spoil_offset(folder):
    np.array([0, 9, 2], "<i8").tofile(folder / "offset.bin")


@pytest.mark.parametrize(
    "spoil", [spoil_data, spoil_index, spoil_bad, spoil_offset, lambda f: (f / "data.bin").unlink()]
)
def test_a_damaged_cache_is_built_again_and_said(tmp_path, spoil):
    files = write(tmp_path, {"a": [1, 2, 3], "b": [4, 5, 6, 7]})
    pack("n", files, whole, root=tmp_path, **RAGGED)
    spoil(folder_of(tmp_path))
    packed = pack("n", files, whole, root=tmp_path, **RAGGED)
    assert rows(packed) == [[1, 2, 3], [4, 5, 6, 7]]
    assert len(packed.notes) == 1 and "damaged cache" in packed.notes[0] and "built again" in packed.notes[0]
    assert pack("n", files, never, root=tmp_path, **RAGGED).notes == ()


@FUZZ
@given(index=st.one_of(st.binary(max_size=60), st.recursive(st.none() | st.integers() | st.text(max_size=3), st.lists)))
def test_any_index_is_read_or_replaced(tmp_path, index):
    files = write(tmp_path, {"a": [1, 2, 3, 4]})
    pack("n", files, fixed, root=tmp_path, **SHORT)
    raw = index if isinstance(index, bytes) else json.dumps({"version": 1, "bad": index, "rows": index}).encode()
    (folder_of(tmp_path) / "index.json").write_bytes(raw)
    assert pack("n", files, fixed, root=tmp_path, **SHORT).flat[0].tolist() == [[1, 2], [3, 4]]


def test_a_failed_build_leaves_nothing(tmp_path):
    files = write(tmp_path, {"a": [1, 2, 3, 4], "b": [1]})
    with pytest.raises((TypeError, ValueError)):
        pack("n", files, fixed, root=tmp_path, **SHORT)  # b has too few bytes for the shape: a mistake of the decoder
    with pytest.raises(TypeError, match="expected"):
        pack("n", files[:1], lambda path: np.zeros(4), root=tmp_path, **SHORT)
    assert list((tmp_path / ".selfsame").iterdir()) == []


def test_what_a_killed_builder_left_is_swept_away(tmp_path):
    files = write(tmp_path, {"a": [1, 2, 3, 4]})
    old, new = (tmp_path / ".selfsame" / f".building-{n}" for n in (1, 2))
    for folder in (old, new):
        folder.mkdir(parents=True)
        (folder / "data.bin").write_bytes(b"x")
    for path in (old / "data.bin", old):
        os.utime(path, (time.time() - 9999,) * 2)
    pack("n", files, fixed, root=tmp_path, **SHORT)
    assert not old.exists() and new.exists()


def test_elsewhere_where_the_root_cannot_be_written(tmp_path, monkeypatch):
    root, home = tmp_path / "data", tmp_path / "home"
    files = write(root, {"a": [1, 2, 3, 4]})
    (root / ".selfsame").write_text("a file in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(home))
    pack("n", files, fixed, root=root, **SHORT)
    assert pack("n", files, never, root=root, **SHORT).flat[0].tolist() == [[1, 2], [3, 4]]
    assert len(list((home / "selfsame").glob("data-*/n-*/data.bin"))) == 1
    pack("n", files, fixed, root=root, cache=str(tmp_path / "mine"), **SHORT)
    assert len(list((tmp_path / "mine").glob("data-*/n-*/data.bin"))) == 1
    (tmp_path / "blocked").write_text("")
    with pytest.raises(SelfsameError, match=r"cannot write the cache.*option cache"):
        pack("n", files, fixed, root=root, cache=str(tmp_path / "blocked"), **SHORT)


def test_a_cache_is_readable_by_others(tmp_path):
    files = write(tmp_path, {"a": [1, 2, 3, 4]})
    before = os.umask(0o022)
    try:
        pack("n", files, fixed, root=tmp_path, **SHORT)
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder_of(tmp_path).stat().st_mode) == 0o755


def test_progress_is_reported_to_whoever_watches(tmp_path):
    files = write(tmp_path, {f"{n:02d}": [n, 0, 0, 0] for n in range(70)})
    heard = []
    with watching(lambda *args: heard.append(args)):
        pack("n", files, fixed, root=tmp_path, **SHORT)
        pack("n", files, fixed, root=tmp_path, **SHORT)  # nothing is decoded
    assert heard[0] == ("n", 0, 70) and heard[-1] == ("n", 70, 70) and len(heard) == 4


def test_all_bad_is_an_empty_set(tmp_path):
    files = write(tmp_path, {"a": [255], "b": [255]})
    for decode in (whole, never):
        packed = pack("n", files, decode, root=tmp_path, **RAGGED)
        assert len(packed) == 0 and len(packed.bad) == 2 and packed.flat.shape == (0,)


@pytest.mark.parametrize("theirs", ["whole", "damaged", "a file", "stays"])
def test_what_another_process_leaves_before_the_last_step(tmp_path, monkeypatch, theirs):
    """The name is taken between the writing and the renaming: theirs is used, or replaced where it is damaged."""
    files = write(tmp_path, {"a": [1, 2, 3, 4], "b": [5, 6, 7, 8]})
    real, calls = cache._write, []

    def interrupted(work, name, *rest):
        real(work, name, *rest)
        calls.append(work)
        if len(calls) > 1:
            return
        if theirs == "whole":
            pack("n", files, fixed, root=tmp_path, **SHORT)
        elif theirs == "a file":
            form = cache._Form(np.dtype(np.uint8), (2, 2))
            (work.parent / f"n-{cache._key(form, files, tmp_path)}").touch()
        else:
            pack("n", files, fixed, root=tmp_path, **SHORT)
            (folder,) = work.parent.glob("n-*")
            (folder / "data.bin").write_bytes(b"x")

    monkeypatch.setattr(cache, "_write", interrupted)
    if theirs == "stays":
        monkeypatch.setattr(cache, "_discard", lambda folder: None)
        with pytest.raises(SelfsameError, match="cannot write the cache"):
            pack("n", files, fixed, root=tmp_path, **SHORT)
    else:
        assert pack("n", files, fixed, root=tmp_path, **SHORT).flat.tobytes() == bytes([1, 2, 3, 4, 5, 6, 7, 8])
    assert not list((tmp_path / ".selfsame").glob(".building-*/*"))


def _builder(root, files, gate, results):
    gate.wait()
    for _ in range(3):
        packed = pack("n", files, fixed, root=root, **SHORT)
        results.put(packed.flat.tobytes())


def test_two_processes_at_once_do_not_spoil_it(tmp_path):
    contents = {f"{n:03d}": [n, n, n, n] for n in range(150)}
    files = write(tmp_path, contents)
    fork = multiprocessing.get_context("fork")
    gate, results = fork.Barrier(3), fork.Queue()
    builders = [fork.Process(target=_builder, args=(tmp_path, files, gate, results)) for _ in range(3)]
    for builder in builders:
        builder.start()
    found = [results.get(timeout=60) for _ in range(9)]
    for builder in builders:
        builder.join(60)
    expected = b"".join(bytes(contents[file]) for file in files)
    assert all(body == expected for body in found)
    assert pack("n", files, never, root=tmp_path, **SHORT).flat.tobytes() == expected
    assert len(list((tmp_path / ".selfsame").iterdir())) == 1
