"""Verbs of a device: several samples, lists, JSON and CSV, a server, identify, match, embed; nothing phones home."""

import csv
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from device_files import images, with_cohort, write_model

from selfsame.device import vault
from selfsame.device.attempts import Attempts
from selfsame.export.opened import open_model

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("cryptography")


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SELFSAME_PASSPHRASE", "open, sesame, now")
    monkeypatch.setattr(vault, "STANDARD", vault.ScryptWork(10, 1, 1))
    with_cohort(tmp_path / "model.onnx")
    for seed, who in enumerate(("ann", "bob", "eve"), 1):
        images(tmp_path / who, 12, seed=seed)
    return tmp_path


@pytest.fixture
def enrolled(call, here):
    """Two users at once."""
    code, out, err = call("enrol", "model.onnx", "ann", "bob", "--each", "--tpr", "1")
    assert code == 0, err
    assert re.findall("(?m)^(\\w+): enrolled", out) == ["ann", "bob"]
    return call


def refused(answer, message):
    code, out, err = answer
    assert (code, out) == (2, ""), answer
    assert err.startswith("selfsame: ") and err.count("\n") == 1 and message in err, err


def counts():
    """The failed attempts of each user."""
    found = {}
    for file in Path("home/.selfsame").glob("*.attempts"):
        found[bytes.fromhex(file.stem).decode()] = json.loads(file.read_text())["failed"]
    return found


def test_what_enrol_says_and_refuses(call, here):
    """Rows 3 and 4 of the review: nothing was said of strangers, and nothing was checked."""
    code, out, _ = call("enrol", "model.onnx", "ann", "--user", "ann")
    assert code == 0
    assert re.search(r"expected: the owner's samples refused \S+ % \(\S+ % to \S+ %, 95 % interval\)", out), out
    assert re.search(r"expected: strangers' samples let in (at most )?\S+ %.*, by 12 owners and strangers", out), out
    refused(call("enrol", "model.onnx", "eve", "--user", "eve", "--rule", "bounded"), "takes 29 warm-up samples, got 6")
    refused(call("enrol", "model.onnx", "eve", "--user", "eve", "--threshold", "-3.41"), "everybody would be let in")
    refused(
        call("enrol", "model.onnx", "eve", "--user", "eve", "--threshold", "0.1"),
        "expected to be let in, more than 10 %",
    )
    assert call("enrol", "model.onnx", "eve", "--user", "eve", "--threshold", "0.1", "--most-fpr", "1")[0] == 0
    refused(call("enrol", "model.onnx", "ann", "bob", "--user", "two"), "are they all of one person")
    refused(call("enrol", "model.onnx", "ann", "bob", "--each"), "ann: is enrolled already")
    refused(
        call("enrol", "model.onnx", "bob", "eve/00.png", "--each"), "with --each every user's samples are in a folder"
    )
    refused(call("enrol", "model.onnx", "bob", "--each", "--user", "x"), "leave out --user")
    refused(call("enrol", "model.onnx", "bob"), "--user: say who is enrolled")
    assert [kept.user for kept in vault.Vault(Path("home/.selfsame")).users()] == ["ann", "eve"]
    code, out, _ = call("enrol", "model.onnx", "bob", "--user", "bob", "--fpr", "0.2")
    assert code == 0 and "(fpr, 6 other samples); at most 20 % of strangers" in out
    code, out, _ = call(
        "enrol", "model.onnx", "bob", "--user", "bob", "--rule", "paper", "--others", "eve", "--replace"
    )
    assert code == 0 and "by 12 samples of others" in out


def test_one_default_limit():
    from selfsame.commands import enrol
    from selfsame.device import rules

    assert enrol.MOST_FPR == rules.MOST_FPR


def test_a_folder_each_an_attempt(enrolled):
    code, out, _ = enrolled("verify", "model.onnx", "ann", "ann", "bob/00.png", "--json")
    lines = [json.loads(line) for line in out.splitlines()]
    assert code == 1 and len(lines) == 13
    assert lines[-1] == {"user": "ann", "sample": "bob/00.png", "accepted": False}
    assert lines[0] == {"user": "ann", "sample": "ann/00.png", "accepted": True}
    code, out, _ = enrolled("verify", "model.onnx", "ann", "ann/00.png", "ann/01.png", "--csv")
    assert code == 0
    assert list(csv.reader(io.StringIO(out))) == [
        ["user", "sample", "accepted"],
        ["ann", "ann/00.png", "true"],
        ["ann", "ann/01.png", "true"],
    ]
    code, out, _ = enrolled("verify", "model.onnx", "ann", "ann/00.png", "--json", "--score")
    found = json.loads(out)
    assert code == 0 and found["score"] >= found["threshold"] and found["llr"] > 0


def test_a_folder_is_no_way_around_the_limit(enrolled):
    code, out, err = enrolled("verify", "model.onnx", "ann", "eve")
    assert code == 2 and "5 attempts in a row have failed; wait" in err
    assert out.splitlines() == [f"ann: eve/{number:02d}.png: rejected" for number in range(5)]
    assert counts() == {"ann": 5}


def test_a_list_of_trials(enrolled):
    Path("trials.csv").write_text("sample,note,user\nann/00.png,x,ann\nbob/00.png,y,bob\nbob/01.png,z,ann\n")
    code, out, _ = enrolled("verify", "model.onnx", "--trials", "trials.csv")
    assert code == 1
    assert out == "ann: ann/00.png: accepted\nbob: bob/00.png: accepted\nann: bob/01.png: rejected\n"
    Path("plain.csv").write_text("ann,ann/00.png\n")
    assert enrolled("verify", "model.onnx", "--trials", "plain.csv")[:2] == (0, "ann: ann/00.png: accepted\n")
    for text, message in (("", "no trials"), ("user,sample\n", "no trials"), ("ann\n", "trial 1"), ('"a', "not CSV")):
        Path("bad.csv").write_text(text)
        refused(enrolled("verify", "model.onnx", "--trials", "bad.csv"), message)
    refused(enrolled("verify", "model.onnx", "ann", "--trials", "trials.csv"), "leave out the user")
    refused(enrolled("verify", "model.onnx", "ann"), "name samples, or --serve")
    refused(enrolled("verify", "model.onnx"), "name the user")
    refused(enrolled("verify", "model.onnx", "ann", "ann", "--json", "--csv"), "excludes")


def test_several_samples_decide_together(enrolled):
    code, out, _ = enrolled(
        "verify", "model.onnx", "ann", "ann/06.png", "ann/07.png", "ann/08.png", "--together", "--json"
    )
    assert (code, json.loads(out)) == (0, {"user": "ann", "sample": "3 samples", "accepted": True})
    code, out, _ = enrolled("verify", "model.onnx", "ann", "eve", "--together")
    assert code == 2  # twelve samples, and six warm-up scores to set a threshold from
    assert enrolled("verify", "model.onnx", "ann", "eve/00.png", "eve/01.png", "--together")[:2] == (1, "rejected\n")
    assert counts() == {"ann": 2}


def test_a_server_on_standard_input(enrolled, monkeypatch):
    asked = []
    real = vault.derive
    monkeypatch.setattr(vault, "derive", lambda *given: asked.append(1) or real(*given))
    paths = ["ann/00.png", "nowhere.png", "", "bob/00.png", "ann/01.png"]
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{path}\n" for path in paths)))
    code, out, _ = enrolled("verify", "model.onnx", "ann", "--serve")
    lines = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and [line.get("accepted") for line in lines] == [True, None, False, True]
    assert lines[1] == {"user": "ann", "sample": "nowhere.png", "error": "nowhere.png: no such file or folder"}
    assert len(asked) == 1 and counts() == {}
    monkeypatch.setattr("sys.stdin", io.StringIO("eve/00.png\n" * 7))
    _, out, _ = enrolled("verify", "model.onnx", "ann", "--serve")
    lines = [json.loads(line) for line in out.splitlines()]
    assert [line.get("accepted") for line in lines] == [False] * 5 + [None] * 2
    assert "wait" in lines[-1]["error"]
    monkeypatch.setattr("sys.stdin", io.StringIO("zoe.png\n"))
    assert enrolled("verify", "model.onnx", "zoe", "--serve")[0] == 2
    monkeypatch.setattr("sys.stdin", io.StringIO("bob/00.png\n"))
    monkeypatch.setenv("SELFSAME_PASSPHRASE", "quite another one")
    refused(enrolled("verify", "model.onnx", "bob", "--serve"), "cannot be opened")


def test_identify(enrolled):
    code, out, _ = enrolled("identify", "model.onnx", "bob/00.png")
    assert code == 0 and out.startswith("bob (of 2 users; strangers taken for one: ")
    assert counts() == {}  # an attempt at nobody else
    code, out, _ = enrolled("identify", "model.onnx", "eve/00.png", "--json")
    found = json.loads(out)
    assert code == 1 and (found["user"], found["accepted"], found["users"]) == (None, False, 2)
    assert counts() == {"ann": 1, "bob": 1}  # and a failed one at everybody
    assert enrolled("identify", "model.onnx", "ann/00.png", "ann/01.png")[0] == 0
    assert counts() == {"bob": 1}
    code, out, _ = enrolled("identify", "model.onnx", "ann/00.png", "--user", "bob")
    assert code == 1 and counts() == {"bob": 2}
    assert enrolled("identify", "model.onnx", "ann/00.png", "--fpr", "0.2")[0] in (0, 1)
    refused(enrolled("identify", "model.onnx", "ann/00.png", "--fpr", "0"), "--fpr: expected")
    refused(enrolled("identify", "model.onnx", "ann/00.png", "--user", "ann", "--user", "zoe"), "zoe: is not enrolled")
    assert "ann" not in counts()  # nobody was tried
    refused(enrolled("identify", "model.onnx", "ann/00.png", "--user", "ann", "--user", "ann"), "twice")


def test_identify_is_no_way_around_the_limit(enrolled):
    for _ in range(5):
        assert enrolled("identify", "model.onnx", "eve/00.png")[0] == 1
    refused(enrolled("identify", "model.onnx", "ann/00.png"), "5 attempts in a row have failed; wait")
    refused(enrolled("verify", "model.onnx", "bob", "bob/00.png"), "5 attempts in a row have failed; wait")


def test_taking_back_is_for_one_attempt(here):
    attempts = Attempts(vault.Vault(here / "store", lambda: "open, sesame, now"))
    attempts.vault.write("ann", "ab" * 32, b"text")
    before = [attempts.begin("ann", now) for now in (1.0, 2.0, 3.0)]
    assert before == [(0, 0.0), (1, 1.0), (2, 2.0)]
    attempts.take_back("ann", before[2])
    assert attempts._read("ann") == (2, 2.0)
    attempts.take_back("ann", before[2])  # once only
    assert attempts._read("ann") == (2, 2.0)
    attempts.take_back("ann", before[1])
    attempts.take_back("ann", before[0])
    assert not attempts._path("ann").exists()
    attempts.begin("ann", 4.0)
    attempts._path("ann").write_text("broken")
    attempts.take_back("ann", (0, 0.0))
    assert attempts._read("ann")[0] == 50


def test_match(call, here):
    code, out, _ = call("match", "model.onnx", "ann/00.png", "ann/01.png")
    assert code == 0 and ": match; log-likelihood ratio " in out and "of pairs of strangers score as high" in out
    code, out, _ = call("match", "model.onnx", "ann/00.png", "bob/01.png", "--json")
    found = json.loads(out)
    model = open_model(Path("model.onnx"))
    from selfsame.device.samples import read_samples

    one, two = (model.embed(read_samples([Path(p)], model.card)[0][None])[0] for p in ("ann/00.png", "bob/01.png"))
    want = float(one @ two) / float(np.linalg.norm(one)) / float(np.linalg.norm(two))
    assert code == 1 and found["match"] is False and found["score"] == pytest.approx(want, abs=1e-5)
    assert call("match", "model.onnx", "ann/00.png", "bob/01.png", "--threshold", "-0.9")[0] == 0
    refused(call("match", "model.onnx", "ann/00.png", "bob/01.png", "--threshold", "-1"), "everybody would be let in")
    refused(call("match", "model.onnx", "ann/00.png", "bob"), "holds 12 samples")
    write_model(here / "plain.onnx")
    code, out, _ = call("match", "plain.onnx", "ann/00.png", "ann/01.png")
    assert code == 0 and out.endswith(", no threshold\n")


def test_embed(call, here):
    assert call("embed", "model.onnx", "ann", "--out", "v.npy")[:2] == (0, "v.npy: 12 samples, 8 numbers each\n")
    assert call("embed", "model.onnx", "ann", "--out", "v.csv")[0] == 0
    rows = list(csv.reader(Path("v.csv").read_text().splitlines()))
    assert rows[0] == ["sample", *(f"e{number}" for number in range(8))] and rows[1][0] == "ann/00.png"
    assert np.array([row[1:] for row in rows[1:]], np.float32).tolist() == np.load("v.npy").tolist()
    refused(call("embed", "model.onnx", "ann", "--out", "v.txt"), "must end in .npy or .csv")


def test_the_list_of_commands(call, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = call("--help")
    assert code == 0
    assert re.findall(r"(?m)^(\w+):$", out) == ["Options", "Train", "Measure", "Device", "Deploy"]
    assert "..." not in out.split("Train:")[1] and max(map(len, out.splitlines())) <= 80
    from selfsame import cli

    for command in cli.app.registered_commands:
        code, out, _ = call(command.name, "--help")
        assert code == 0 and "\\[" not in out


def test_shells_complete(call, monkeypatch):
    monkeypatch.setenv("_SELFSAME_COMPLETE", "source_bash")
    code, out, _ = call()
    assert code == 0 and "_SELFSAME_COMPLETE=complete_bash" in out
    monkeypatch.setenv("_SELFSAME_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "selfsame iden")
    monkeypatch.setenv("COMP_CWORD", "1")
    assert call()[:2] == (0, "identify\n")


GUARD = """
import socket, sys

def no(*given, **more):
    print("a connection was tried", given, file=sys.stderr)
    sys.stderr.flush()
    import os
    os._exit(97)

socket.socket.connect = socket.socket.connect_ex = socket.getaddrinfo = socket.create_connection = no
sys.addaudithook(lambda event, given: no(event, given) if event in ("socket.connect", "socket.getaddrinfo") else None)
from selfsame.cli import main
sys.argv = ["selfsame", *sys.argv[1:]]
main()
"""


def test_nothing_phones_home(here):
    """Under a guard of sockets and with an empty home, where the review found a number for the machine."""
    home = here / "empty"
    home.mkdir()
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("ORT_", "XDG_"))}
    settings = {**clean, "HOME": str(home), "PYTHONPATH": os.pathsep.join(sys.path)}
    for words, want in (
        (("enrol", "model.onnx", "ann", "--user", "ann"), 0),
        (("verify", "model.onnx", "ann", "ann/00.png"), 0),
        (("verify", "model.onnx", "ann", "bob/00.png"), 1),
        (("embed", "model.onnx", "ann", "--out", "v.npy"), 0),
    ):
        done = subprocess.run(
            [sys.executable, "-c", GUARD, *words, *(() if words[0] == "embed" else ("--store", "store"))],
            env=settings, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert done.returncode == want, done.stderr
    assert list(home.iterdir()) == []
