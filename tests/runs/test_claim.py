"""No two processes write to one folder, no two runs get one name, and a dead process holds nothing."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from selfsame.errors import SelfsameError
from selfsame.files import lock_holder
from selfsame.runs.claim import claimed, new_claim, shared_claim


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_names_are_taken_once():
    with new_claim(None, "a") as one, new_claim(None, "a") as two, new_claim(None, "b") as three:
        assert [str(folder) for folder in (one, two, three)] == ["runs/a-1", "runs/a-2", "runs/b-1"]
        (two / "x").touch()
    assert [str(path) for path in sorted(Path().rglob("*"))] == ["runs", "runs/a-2", "runs/a-2/x"]
    with new_claim(None, "a") as again:
        assert str(again) == "runs/a-1"


def test_one_folder_twice():
    with new_claim(Path("deep/x")) as folder:
        with pytest.raises(SelfsameError, match="deep/x: another process is writing to it"), new_claim(folder):
            pass
        (folder / "recipe.toml").touch()
        with pytest.raises(SelfsameError, match="another process"), claimed(folder):
            pass
    with pytest.raises(SelfsameError, match="is there already"), new_claim(folder):
        pass
    with claimed(folder):
        pass
    assert (folder / "recipe.toml").exists()


def test_what_fails_leaves_nothing():
    with pytest.raises(ZeroDivisionError), new_claim(Path("a/b/c")):
        _ = 1 / 0
    with pytest.raises(ZeroDivisionError), shared_claim(Path("a/b")):
        _ = 1 / 0
    Path("empty").mkdir()
    with new_claim(Path("empty")):
        pass
    assert list(Path().iterdir()) == [Path("empty")]
    Path("file").touch()
    for claim in (new_claim, shared_claim):
        with pytest.raises(SelfsameError, match="file is a file"), claim(Path("file/x")):
            pass


def test_a_dead_process_holds_nothing():
    Path("x").mkdir()
    code = "import os, pathlib; from selfsame.runs.claim import claimed; c = claimed(pathlib.Path('x')); c.__enter__()"
    end = "; print('held', flush=True); input()"
    root = str(Path(__file__).parents[2])
    words = [sys.executable, "-c", f"import sys; sys.path.insert(0, {root!r}); {code}{end}"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"held\n"
        said = rf"^x: another process is writing to it( \(process {other.pid}\))?; wait"  # where the system tells
        with pytest.raises(SelfsameError, match=said), claimed(Path("x")):
            pass
        assert lock_holder(Path("x")) in (None, other.pid)
        other.send_signal(signal.SIGKILL)
        other.wait()
    with claimed(Path("x")):
        pass
    assert lock_holder(Path("x")) is None and lock_holder(Path("gone")) is None
