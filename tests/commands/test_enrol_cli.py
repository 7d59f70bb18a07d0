"""Enrolment and verification on the command line: what is printed, exit codes 0, 1 and 2, and no torch on a device."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import typer
from device_files import images, write_model
from PIL import Image

from selfsame.commands.enrol import change_passphrase, enrol, revoke, warm_up
from selfsame.commands.verify import users, verify
from selfsame.device import vault
from selfsame.errors import SelfsameError
from selfsame.export.from_run import client_vector
from selfsame.export.opened import open_model

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("cryptography")

COMMANDS = {
    "enrol": enrol,
    "warm-up": warm_up,
    "passphrase": change_passphrase,
    "revoke": revoke,
    "verify": verify,
    "users": users,
}


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SELFSAME_PASSPHRASE", "open, sesame, now")
    monkeypatch.setattr(vault, "STANDARD", vault.ScryptWork(10, 1, 1))
    write_model(tmp_path / "model.onnx")
    images(tmp_path / "ann", 12, seed=1)
    images(tmp_path / "bob", 6, seed=2)
    return tmp_path


@pytest.fixture
def selfsame(here, monkeypatch, capsys):
    """A command in this process: (exit code, standard output, standard error), as `selfsame.cli.main` makes them."""
    app = typer.Typer(pretty_exceptions_enable=False)
    for name, function in COMMANDS.items():
        app.command(name)(function)

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["selfsame", *map(str, words)])
        capsys.readouterr()
        code = 0
        try:
            app()
        except SystemExit as end:
            code = end.code or 0
        except SelfsameError as error:
            print(f"selfsame: {error}", file=sys.stderr)
            code = 2
        return code, *capsys.readouterr()

    return call


def refused(answer, message):
    code, out, err = answer
    assert (code, out) == (2, ""), answer
    assert err.startswith("selfsame: ") and err.count("\n") == 1 and message in err, err


def test_from_enrolment_to_revocation(selfsame, here):
    code, out, _ = selfsame("enrol", "model.onnx", "ann", "--user", "ann")
    assert code == 0
    assert out.startswith(f"ann: enrolled in {here / 'home' / '.selfsame'}; template: 6 samples; threshold ")
    assert "(tpr, 6 other samples)" in out
    few = selfsame("enrol", "model.onnx", "bob", "--user", "bob", "--rule", "bounded")
    refused(few, "takes 29 warm-up samples, got 3")
    code, out, _ = selfsame("enrol", "model.onnx", "bob", "--user", "bob", "--warm-up", "4")
    assert code == 0 and "template: 2 samples" in out
    code, out, _ = selfsame("verify", "model.onnx", "ann", "ann/00.png")
    assert (code, out) == (0, "accepted\n")  # and no score, which would give the template away bit by bit
    code, out, _ = selfsame("verify", "model.onnx", "ann", "ann/00.png", "--score")
    assert code == 0 and out.startswith("score 0.9") and out.endswith(": accepted\n")
    code, out, err = selfsame("verify", "model.onnx", "ann", "bob/00.png")
    assert code == 1 and out == "rejected\n" and err == ""
    code, out, _ = selfsame("users")
    assert code == 0 and "ann" in out and "bob" in out and out.count("passphrase") == 2
    code, out, _ = selfsame("warm-up", "model.onnx", "ann", images(here / "more", 3, seed=1))
    assert code == 0 and "(tpr, 9 other samples)" in out
    refused(selfsame("enrol", "model.onnx", "bob", "--user", "ann"), "--replace")
    assert selfsame("enrol", "model.onnx", "bob", "--user", "ann", "--replace")[0] == 0
    assert selfsame("verify", "model.onnx", "ann", "bob/00.png")[0] == 0
    assert selfsame("revoke", "ann")[:2] == (0, "ann: revoked\n")
    refused(selfsame("verify", "model.onnx", "ann", "bob/00.png"), "ann: is not enrolled")
    assert selfsame("verify", "model.onnx", "bob", "bob/00.png")[0] == 0


def test_the_printed_figures(selfsame, here):
    """Against the model and plain arithmetic."""
    _, out, _ = selfsame("enrol", "model.onnx", "ann", "--user", "ann", "--warm-up", "5", "--tpr", "0.5")
    files = sorted((here / "ann").iterdir())
    raw = np.stack([np.asarray(Image.open(file))[None] for file in files])
    emb = open_model(Path("model.onnx")).embed(raw).astype(np.float64)
    emb /= np.linalg.norm(emb, axis=1, keepdims=True)
    mean = emb[:7].mean(0)
    score = emb @ mean / np.linalg.norm(mean)
    threshold = sorted(score[7:])[1]  # the floor(5 * 0.5) = 2nd smallest
    assert f"threshold {threshold:.4f} (tpr, 5 other samples)" in out
    _, out, _ = selfsame("verify", "model.onnx", "ann", files[0], "--score")
    assert (
        out
        == f"score {score[0]:.4f}, threshold {threshold:.4f}: {'accepted' if score[0] >= threshold else 'rejected'}\n"
    )


def test_a_fixed_threshold(selfsame):
    refused(selfsame("enrol", "model.onnx", "ann/00.png", "--user", "ann"), "at least 2 are needed")
    code, out, _ = selfsame("enrol", "model.onnx", "ann/00.png", "--user", "ann", "--threshold", "0.9")
    assert code == 0 and "template: 1 samples; threshold 0.9000 (fixed)" in out
    assert selfsame("verify", "model.onnx", "ann", "ann/05.png")[0] == 0
    refused(selfsame("enrol", "model.onnx", "ann", "--user", "x", "--rule", "fixed"), "--threshold: a number goes with")
    refused(selfsame("enrol", "model.onnx", "ann", "--user", "x", "--rule", "best"), "--rule: expected")
    refused(selfsame("enrol", "model.onnx", "--user", "x"), "at least 2 are needed")


def test_bad_input_gets_one_line(selfsame, here):
    assert selfsame("enrol", "model.onnx", "ann", "--user", "ann")[0] == 0
    Image.fromarray(np.zeros((9, 9), np.uint8)).save("large.png")
    refused(selfsame("verify", "model.onnx", "ann", "large.png"), "--resize")
    assert selfsame("verify", "model.onnx", "ann", "large.png", "--resize")[0] == 1
    refused(selfsame("verify", "model.onnx", "ann", "nowhere.png"), "no such file")
    refused(selfsame("verify", "model.onnx", "zoe", "ann/00.png"), "zoe: is not enrolled")
    refused(selfsame("verify", "nowhere.onnx", "ann", "ann/00.png"), "nowhere.onnx")
    refused(selfsame("enrol", "model.onnx", "ann", "--user", "a\nb"), "user 'a\\nb'")
    refused(selfsame("enrol", "model.onnx", "ann", "--user", "x", "--run", "nowhere"), "--run")
    refused(selfsame("enrol", "model.onnx", "ann", "--user", "x", "--client", "0"), "name the run with --run")
    refused(selfsame("enrol", "model.onnx", "ann", "--user", "x", "--client", "0", "--run", "nowhere"), "not a run")
    write_model(here / "other.onnx", seed=3)
    refused(selfsame("verify", "other.onnx", "ann", "ann/00.png"), "was enrolled with another model")
    if os.name == "posix":
        (here / "home" / ".selfsame").chmod(0o755)
        refused(selfsame("users"), "others may read or change it (mode 755); chmod 700")
    assert [kept.name for kept in (here / "home" / ".selfsame").glob("*.enrolment")] == [b"ann".hex() + ".enrolment"]


def test_nobody_is_enrolled(selfsame, here):
    assert selfsame("users", "--store", "empty")[:2] == (0, "empty: nobody is enrolled\n")
    assert not Path("empty").exists()


def test_a_damaged_enrolment(selfsame, here):
    assert selfsame("enrol", "model.onnx", "ann", "--user", "ann", "--store", "store")[0] == 0
    (file,) = Path("store").iterdir()
    file.write_bytes(file.read_bytes()[:-3])
    shut = "cannot be opened: wrong passphrase or damaged file"
    refused(selfsame("verify", "model.onnx", "ann", "ann/00.png", "--store", "store"), shut)


def test_passphrases(selfsame, here, monkeypatch):
    Path("old").write_text("the first of two\n")
    Path("new").write_text("the second of two\r\nignored\n")
    Path("short").write_text("twelve less1\n"[:11])
    Path("empty").write_text("\n")
    shut = "cannot be opened: wrong passphrase or damaged file"
    attempt = ("verify", "model.onnx", "ann", "ann/00.png")
    assert selfsame("enrol", "model.onnx", "ann", "--user", "ann", "--passphrase-file", "old")[0] == 0
    refused(selfsame(*attempt), shut)
    assert selfsame(*attempt, "--passphrase-file", "old")[0] == 0
    change = ("passphrase", "ann", "--passphrase-file", "old", "--new-passphrase-file")
    refused(selfsame(*change, "empty"), "empty: expected a passphrase")
    refused(selfsame(*change, "nowhere"), "nowhere: the passphrase cannot be read")
    refused(selfsame(*change, "new", "--keyring"), "takes no passphrase")
    refused(selfsame(*change, "short"), "passphrase: expected 12 to 1024 characters")
    assert selfsame(*change, "new")[:2] == (0, "ann: sealed anew\n")
    refused(selfsame(*attempt, "--passphrase-file", "old"), shut)
    monkeypatch.setenv("SELFSAME_PASSPHRASE", "the second of two")
    assert selfsame(*attempt)[0] == 0


def test_attempts_are_counted_and_the_owner_lifts_the_lock(selfsame, here):
    """Strangers' samples, and samples whose score is printed: on the review's commit as many as one likes."""
    assert selfsame("enrol", "model.onnx", "ann", "--user", "ann")[0] == 0
    stranger, shown = ("verify", "model.onnx", "ann", "bob/00.png"), ("verify", "model.onnx", "ann", "ann/00.png")
    for _ in range(4):
        assert selfsame(*stranger)[0] == 1
    assert selfsame(*shown, "--score")[0] == 0  # accepted, and counted all the same
    refused(selfsame(*shown), "ann: 5 attempts in a row have failed; wait")
    Path("new").write_text("a new passphrase\n")
    assert selfsame("passphrase", "ann", "--new-passphrase-file", "new")[0] == 0
    assert selfsame(*shown, "--passphrase-file", "new")[:2] == (0, "accepted\n")


def test_the_prompt(selfsame, monkeypatch):
    monkeypatch.delenv("SELFSAME_PASSPHRASE")
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    refused(selfsame("enrol", "model.onnx", "ann", "--user", "ann"), "passphrase: none given; use --passphrase-file")
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    one = "one of its own"
    answers = iter([one, "other", one, one, one])
    monkeypatch.setattr("getpass.getpass", lambda prompt: next(answers))
    refused(selfsame("enrol", "model.onnx", "ann", "--user", "ann"), "the two are not the same")
    assert selfsame("enrol", "model.onnx", "ann", "--user", "ann")[0] == 0
    assert selfsame("verify", "model.onnx", "ann", "ann/00.png")[0] == 0
    assert list(answers) == []


def test_the_keyring(selfsame, monkeypatch):
    pytest.importorskip("keyring")
    kept = {}
    monkeypatch.setattr("keyring.set_password", lambda service, name, value: kept.update({name: value}))
    monkeypatch.setattr("keyring.get_password", lambda service, name: kept.get(name))
    monkeypatch.setattr("keyring.delete_password", lambda service, name: kept.pop(name))
    monkeypatch.delenv("SELFSAME_PASSPHRASE")
    assert selfsame("enrol", "model.onnx", "ann", "--user", "ann", "--keyring")[0] == 0
    assert selfsame("verify", "model.onnx", "ann", "ann/00.png")[0] == 0
    assert "keyring" in selfsame("users")[1] and len(kept) == 1
    assert selfsame("revoke", "ann")[0] == 0 and kept == {}


def test_nothing_private_is_printed(selfsame, here):
    out = "".join(
        "".join(selfsame(*words)[1:])
        for words in (
            ("enrol", "model.onnx", "ann", "--user", "ann"),
            ("verify", "model.onnx", "ann", "ann/00.png"),
            ("users",),
        )
    )
    assert "sesame" not in out
    (file,) = (here / "home" / ".selfsame").glob("*.enrolment")
    assert b"template" not in file.read_bytes()


# ---- the vector that training left


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A short run of a method with a vector a client, and of one with a vector a class."""
    import torch

    from selfsame.runs.loop import train

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("runs")
    run = {"rounds": 8, "eval_every": 8, "device": "cpu"}
    settings = {"run": run, "data": {"turns": 1, "clients_per_class": 2}}
    yield {name: train(name, "digits", out=folder / name, settings=settings) for name in ("feduv", "fedaws")}
    torch.set_num_threads(before)


def save_samples(run, client, number):
    import torch

    raw = run.problem.federation.source.rows(torch.tensor([client]), torch.arange(number)[None])[0]
    np.save("samples.npy", raw.numpy())
    np.save("one.npy", raw[0].numpy())
    return raw


@pytest.mark.parametrize("name", ["feduv", "fedaws"])
def test_a_clients_own_vector(selfsame, runs, name):
    run, client = runs[name], 5
    raw = save_samples(run, client, 6)
    table = run.state.own["codeword"] if name == "feduv" else run.state.server["class_embedding"]
    own = table[client if name == "feduv" else client // 2]  # two clients per class
    score = run.problem.method.score(run.embed(raw), own[None])[:, 0]
    code, out, err = selfsame("enrol", run.folder, "samples.npy", "--user", "ann", "--client", client, "--tpr", "1")
    assert code == 0, err
    assert "template: client 5's own vector; threshold" in out and "(tpr, 6 other samples)" in out
    code, out, _ = selfsame("verify", run.folder, "ann", "one.npy", "--score")
    assert (code, out) == (0, f"score {float(score[0]):.4f}, threshold {float(score.min()):.4f}: accepted\n")
    for wrong in ("14", "-1"):
        refused(
            selfsame("enrol", run.folder, "samples.npy", "--user", "bob", "--client", wrong),
            f"got {wrong}",
        )
    refused(
        selfsame("enrol", "model.onnx", "ann", "--user", "bob", "--client", "0", "--run", run.folder),
        "the model is not of this run",
    )


class Turned:
    """A model whose embeddings are a little, or altogether, other ones than the run's."""

    def __init__(self, run, noise):
        self.card, self.run, self.noise = open_model(run.folder).card, run, noise

    def embed(self, raw):
        import torch

        emb = self.run.embed(torch.from_numpy(raw)).numpy()
        wild = np.random.default_rng(0).normal(size=emb.shape) * np.linalg.norm(emb) / emb.shape[1] ** 0.5
        return (emb + self.noise * wild).astype(np.float32)


def test_a_vector_goes_with_the_runs_own_network_only(here, runs):
    run = runs["feduv"]
    raw = list(save_samples(run, 5, 3).numpy())
    vector = client_vector(run.folder, 5, Turned(run, 0.1), raw)
    assert vector.tolist() == run.state.own["codeword"][5].tolist()
    with pytest.raises(SelfsameError, match="the model is not of this run, or not of this client"):
        client_vector(run.folder, 5, Turned(run, 3.0), raw)


# ---- a device

BLOCKED = """
import json, sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "sklearn", "matplotlib", "scipy", "onnx", "safetensors"):
            raise ImportError(f"{name} is not on this device")

sys.meta_path.insert(0, Blocker())
import typer
import selfsame.cli
from selfsame.device import vault
vault.STANDARD = vault.ScryptWork(10, 1, 1)
from selfsame.commands.enrol import enrol, revoke, warm_up
from selfsame.commands.verify import users, verify

app = typer.Typer(pretty_exceptions_enable=False)
for function in (enrol, revoke, users, verify):
    app.command()(function)
app.command("warm-up")(warm_up)
codes = []
for words in json.loads(sys.argv[1]):
    try:
        app(words)
    except SystemExit as end:
        codes.append(end.code)
print(codes, sorted({"torch", "sklearn", "matplotlib"} & set(sys.modules)))
"""


def test_a_device_needs_no_torch(here):
    lines = [
        ["enrol", "model.onnx", "ann", "--user", "ann", "--rule", "bounded", "--tpr", "0.5"],
        ["warm-up", "model.onnx", "ann", "ann/00.png"],
        ["verify", "model.onnx", "ann", "ann/01.png"],
        ["verify", "model.onnx", "ann", "bob/01.png"],
        ["users"],
        ["revoke", "ann"],
    ]
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED, json.dumps(lines)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    codes, left = done.stdout.splitlines()[-1].split("] ")
    assert left == "[]"
    assert codes == "[0, 0, 0, 1, 0, 0", done.stdout + done.stderr
