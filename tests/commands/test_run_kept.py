"""A run knows its data and its writer, is found damaged, and ends with a checkpoint: each in one line."""

import json
import os
import shutil
import signal
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from trees import people_tree, put

from selfsame.config.recipe import read_toml
from selfsame.data import DATASETS
from selfsame.device import vault
from selfsame.engine.checkpoint import peek
from selfsame.runs import watching
from selfsame.runs.claim import claimed, new_claim

PICTURES = ("--data", "imagefolder", "--set", "data.size=8", "--set", "data.grey=true", "--set", "net.name=lenet")
SMALL = (
    *PICTURES,
    "--set",
    "net.width=8",
    "--set",
    "local.batch=2",
    "--device",
    "cpu",
    "--rounds",
    "2",
    "--quiet",
    "--set",
    "neighbours=1",
)


@pytest.fixture
def trained(tmp_path, monkeypatch, call):
    """A run on ten people, and the command."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "240")
    people_tree(tmp_path / "faces", [5] * 10)
    code, _, err = call("train", "fedaws", *SMALL, "--path", "faces", "--out", "run")
    assert code == 0, err
    return call


def refused(call, *words):
    code, _, err = call(*words)
    assert code == 2 and err.startswith("selfsame: ") and err.count("\n") == 1, err
    return err


def two_more(root):
    for person in ("tim", "zoe"):
        for number in range(5):
            put(root / person / f"{number}.png", 9000 + number + 10 * len(person) + ord(person[0]))


def test_other_people_are_refused_everywhere(trained):
    assert trained("evaluate", "run", "--bootstrap", "0")[0] == 0
    two_more(Path("faces"))
    before = sorted(Path("run").rglob("*")), Path("run/metrics.jsonl").read_bytes()
    for words in (("evaluate", "run"), ("resume", "run"), ("export", "run"), ("audit", "run")):
        said = refused(trained, *words)
        assert "run: was trained on other data: 10 people then, 12 now: new are tim, zoe;" in said
    assert before == (sorted(Path("run").rglob("*")), Path("run/metrics.jsonl").read_bytes())
    with pytest.raises(Exception, match="was trained on other data"):
        from selfsame.export.opened import open_model

        open_model(Path("run"))


def test_data_that_has_moved(trained, tmp_path, monkeypatch):
    stored = read_toml(Path("run/recipe.toml"))["data"]["path"]
    assert stored == str(tmp_path / "faces")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert trained("evaluate", "../run", "--bootstrap", "0")[0] == 0
    shutil.move(tmp_path / "faces", tmp_path / "people")
    for words in (("evaluate", "../run"), ("resume", "../run"), ("export", "../run")):
        said = refused(trained, *words)
        assert f"its data is not at {stored}" in said and "--path" in said
    assert trained("resume", "../run", "--path", "../people", "--quiet")[0] == 0
    assert trained("evaluate", "../run", "--bootstrap", "0")[0] == 0  # the recipe says now where it is


@pytest.mark.skipif(torch.cuda.is_available(), reason="a device that is not there is asked for")
def test_a_run_goes_on_on_another_device(trained):
    recipe = Path("run/recipe.toml")
    recipe.write_text(recipe.read_text().replace('device = "cpu"', 'device = "cuda"'))
    assert "this PyTorch sees no CUDA device; name another with --device" in refused(trained, "resume", "run")
    before = recipe.read_bytes()
    assert "--device" in refused(trained, "resume", "run", "--rounds", "3") and recipe.read_bytes() == before
    code, _, err = trained("resume", "run", "--rounds", "3", "--device", "cpu", "--quiet")
    assert code == 0, err
    assert read_toml(recipe)["run"]["device"] == "cpu" and len(Path("run/metrics.jsonl").read_text().splitlines()) >= 2


def test_device_commands_on_other_data_and_on_data_that_has_moved(trained, tmp_path, monkeypatch):
    pytest.importorskip("cryptography")
    monkeypatch.setenv("SELFSAME_PASSPHRASE", "open, sesame, now")
    monkeypatch.setattr(vault, "STANDARD", vault.ScryptWork(10, 1, 1))
    where = ("--store", "store", "--resize")
    loose = ("--most-fpr", "1", "--mixed", "--client", "0", "--user", "ann", "--replace", *where)
    owner, shown = Path("faces/p00"), Path("people/p00/000.png")
    enrol = ("enrol", "run", owner, *loose)
    code, _, err = trained(*enrol)
    assert code == 0, err
    two_more(Path("faces"))
    verbs = (enrol, ("verify", "run", "ann", owner, *where), ("embed", "run", owner, "--resize", "--out", "e.npy"))
    for words in verbs:
        assert "run: was trained on other data: 10 people then, 12 now" in refused(trained, *words)
    for person in ("tim", "zoe"):
        shutil.rmtree(Path("faces", person))
    shutil.move("faces", "people")
    moved = (
        ("verify", "run", "ann", shown, *where),
        ("identify", "run", shown, *where),
        ("match", "run", shown, shown, "--resize"),
    )
    for words in moved:
        assert "say where it is now with --path" in refused(trained, *words)
        code, _, err = trained(*words, "--path", "people")
        assert code in (0, 1) and not err, err
    assert trained("enrol", "run", "people/p00", *loose, "--path", "people")[0] == 0
    Path("model.onnx").write_bytes(b"")
    said = refused(trained, "match", "model.onnx", shown, shown, "--path", "people")
    assert "model.onnx is a model file, which needs no data" in said


def test_a_run_of_before_is_opened_with_a_note(trained):
    Path("run/data.json").unlink()
    code, out, _ = trained("evaluate", "run", "--bootstrap", "0")
    assert code == 0 and "older than fingerprints" in " ".join(out.split())
    assert any(
        "older than fingerprints" in note for note in json.loads(Path("run/evaluation.json").read_text())["notes"]
    )


@pytest.mark.parametrize("file", ["checkpoint/state.safetensors"])
def test_a_flipped_byte_is_one_line(trained, file):
    data = bytearray(Path("run", file).read_bytes())
    data[-5] ^= 4
    Path("run", file).write_bytes(data)
    for words in (("resume", "run"), ("evaluate", "run")):
        assert "its digest does not fit its content" in refused(trained, *words)


def test_a_folder_that_is_being_written(trained):
    """A second `train` into it and a second `resume` are refused, and change nothing."""
    before = sorted(Path().rglob("*")), Path("run/metrics.jsonl").read_bytes()
    with claimed(Path("run")):
        assert "run: another process is writing to it" in refused(trained, "resume", "run")
        said = refused(trained, "train", "fedaws", *SMALL, "--path", "faces", "--out", "run")
        assert "run: another process is writing to it" in said
    with new_claim(Path("new")):
        assert "new: another" in refused(trained, "train", "fedaws", *SMALL, "--path", "faces", "--out", "new")
    assert before == (sorted(Path().rglob("*")), Path("run/metrics.jsonl").read_bytes())


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_command_with_a_checkpoint(number, code, trained, monkeypatch):
    @contextmanager
    def kills(run, *_):
        yield lambda rounds, record: os.kill(os.getpid(), number) if run.state.round == 1 else None

    monkeypatch.setattr(watching, "watched", kills)
    words = ("--data", "digits", "--set", "data.turns=1", "--rounds", "100000", "--device", "cpu", "--quiet")
    found, out, err = trained("train", "fedhide", *words, "--out", "cut")
    assert found == code and out == ""
    assert "selfsame: stopping after this round; once more ends at once" in err
    assert "of 100,000; checkpoint written, `selfsame resume cut` goes on" in err
    assert 1 <= peek(Path("cut/checkpoint/state.safetensors"))["round"] < 100_000


def test_train_tells_what_is_wrong_with_the_data_and_so_does_check(trained):
    Path("faces/p00/bad.png").write_bytes(b"no picture")
    put(Path("faces/few/1.png"), 77)
    code, _, err = trained("train", "fedaws", *[word for word in SMALL if word != "--quiet"], "--path", "faces")
    assert code == 0 and "note: 1 files could not be read: p00/bad.png" in err
    assert "note: 1 people are no clients, with fewer than 3 samples: few (1)" in err
    words = ("data", "check", "imagefolder", "faces", "--set", "size=8")
    code, out, _ = trained(*words)
    assert code == 1 and "wrong: p00/bad.png" in out
    Path("faces/p00/bad.png").unlink()
    shutil.rmtree("faces/few")
    assert trained(*words)[0] == 0


def test_what_is_chosen_is_said(trained):
    words = ("--data", "imagefolder", "--path", "faces", "--rounds", "1", "--device", "cpu", "--set", "neighbours=1")
    code, _, err = trained("train", "fedaws", *words)
    assert code == 0
    assert "chosen for these files and no GPU: data.size=16, data.grey=false, net.name=lenet, net.width=64" in err


def test_addresses_are_whole_in_the_list_of_data_sets(trained, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = trained("data")
    addresses = {word for one in DATASETS.values() for word in one.wants.split() if "://" in word}
    assert code == 0 and addresses and addresses <= set(out.split())
