"""`selfsame whiten` from a run to a device: what is printed, kept, exported and enrolled, and what is refused."""

import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from trees import people_tree

from selfsame import nets
from selfsame.config.recipe import read_toml
from selfsame.data.noisy import in_noise
from selfsame.device import vault
from selfsame.engine.checkpoint import read_tensors
from selfsame.errors import SelfsameError
from selfsame.export.opened import open_model
from selfsame.methods.within import summand, whitening
from selfsame.nets.whitened import LAYER, MATRIX, MEAN
from selfsame.runs import whitening as runs_whitening
from selfsame.runs.run import open_run
from selfsame.runs.untrained import untrained_run

SETTINGS = {
    "data.size": 8,
    "data.grey": "true",
    "net.name": "lenet",
    "net.width": 4,
    "local.batch": 2,
    "neighbours": 1,
    "data.validation": 1,
}
SMALL = [word for key, value in SETTINGS.items() for word in ("--set", f"{key}={value}")]
QUICK = ("--device", "cpu", "--quiet")
FAST = ("--trials", "200", "--bootstrap", "0", *QUICK)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Ten people, and a place for runs that all tests look at and none changes."""
    place = tmp_path_factory.mktemp("whiten")
    people_tree(place / "faces", [9] * 10)
    return place


@pytest.fixture
def whitened(home, monkeypatch, call):
    """The command, where `run` has been trained and `white` made of it."""
    monkeypatch.chdir(home)
    monkeypatch.setenv("COLUMNS", "240")
    if not Path("run").is_dir():
        data = ("--data", "imagefolder", "--path", "faces")
        code, _, err = call("train", "fedaws", *data, *SMALL, *QUICK, "--rounds", "2", "--out", "run")
        assert code == 0, err
        code, out, err = call("whiten", "run", "--share", "0.5", "--out", "white", *FAST)
        assert code == 0, err
        Path("said.txt").write_text(out)
    return call


def refused(answer, message):
    code, out, err = answer
    assert (code, out) == (2, ""), answer
    assert err.startswith("selfsame: ") and err.count("\n") == 1 and message in err, err


def pixels():
    return open_run(Path("run")).problem.federation.unseen.x[:6]


def test_the_layer_is_made_from_the_devices_own_samples(whitened):
    run, new = open_run(Path("run")), open_run(Path("white"))
    federation, total = run.problem.federation, 0
    for client, count in enumerate(federation.count_N.tolist()):
        raw = federation.source.rows(torch.tensor([client]), torch.arange(count)[None])[0]
        total = total + summand(run.embed(raw))
    mean_D, matrix_DD = whitening(total, 4, federation.clients, 0.5)
    kept, _ = read_tensors(Path("white/model.safetensors"))
    torch.testing.assert_close(kept[f"net.{MEAN}"], mean_D.float())
    torch.testing.assert_close(kept[f"net.{MATRIX}"], matrix_DD.float())
    before, _ = read_tensors(Path("run/model.safetensors"))
    assert set(kept) == {*before, *(f"net.{name}" for name in LAYER)}
    assert all(torch.equal(kept[name], value) for name, value in before.items())
    assert torch.equal(new.state.theta_P, run.state.theta_P) and new.problem.model.layout == run.problem.model.layout
    emb_SD = run.embed(pixels()).double()
    moved_SD = (emb_SD / emb_SD.norm(dim=1, keepdim=True) - mean_D) @ matrix_DD
    torch.testing.assert_close(
        new.embed(pixels()), (moved_SD / moved_SD.norm(dim=1, keepdim=True)).float(), atol=1e-5, rtol=0
    )
    own = federation.source.rows(torch.tensor([3]), torch.arange(int(federation.count_N[3]))[None])[0]
    place_SD = new.embed(own)  # of length one: the template is their mean
    torch.testing.assert_close(new.truth()[int(federation.class_of_N[3])], place_SD.mean(0), atol=1e-5, rtol=0)


def test_what_is_said_and_kept(whitened):
    said = Path("said.txt").read_text()
    for name in ("unseen pairs", "unseen, enrolled", "validation samples", "EER before", "EER after"):
        assert name in said
    clients = open_run(Path("run")).problem.world.clients
    assert f"each of {clients} devices adds 14 numbers to one sum, once; of fewer than 3 nothing is released" in said
    assert read_toml(Path("white/recipe.toml"))["net"]["whitened"] == 0.5
    shown = json.loads(Path("white/result.json").read_text())
    assert shown["title"].endswith(", whitened") and ["whitening", "sum"] in shown["left"]
    assert shown["facts"]["whitening"] == f"share 0.5, from one sum over {clients} devices"
    assert "whitened" in Path("white/report.html").read_text()
    code, _, err = whitened("evaluate", "white", "--also", "imagefolder", "--also-path", "faces", "--also-set",
                              "size=8", "--also-set", "grey=true", *FAST, "--out", "evaluated")  # fmt: skip
    assert code == 0, err
    found = json.loads(Path("evaluated/evaluation.json").read_text())
    assert "whitened after training" in found["notes"][0]
    assert not list(Path().glob(".*"))  # no draft is left


def test_through_a_model_file_and_on_a_device(whitened, monkeypatch):
    for name in ("onnx", "onnxscript", "onnxruntime", "cryptography"):
        pytest.importorskip(name)
    monkeypatch.setenv("SELFSAME_PASSPHRASE", "open, sesame, now")
    monkeypatch.setattr(vault, "STANDARD", vault.ScryptWork(10, 1, 1))
    code, _, err = whitened("export", "white", "--check", "4", "--out", "white.onnx")
    assert code == 0, err
    raw = pixels()
    wanted = open_run(Path("white")).embed(raw).numpy()
    for path, close in (("white", 1e-5), ("white.onnx", 1e-4)):
        assert np.abs(open_model(Path(path)).embed(raw.numpy()) - wanted).max() < close
    scores: list[dict] = []
    loose = ("--most-fpr", "1", "--mixed", "--resize")
    for model in ("white", "white.onnx"):
        store = ("--store", f"store-{model}")
        code, _, err = whitened("enrol", model, "faces/p00", "--user", "ann", *loose, *store)
        assert code == 0, err
        code, out, err = whitened("verify", model, "ann", "faces/p00/000.png", "--resize", "--json", *store)
        assert code in (0, 1) and not err
        scores.append(json.loads(out))
    assert scores[0] == scores[1]
    refused(whitened("enrol", "white", "faces/p00", "--client", "0", "--user", "bob", *loose, "--store", "store"),
            "of the network before it was whitened")  # fmt: skip


def test_the_audit_looks_at_the_training(whitened):
    code, out, err = whitened("audit", "white", "--attacker", "updates", "--rounds", "1", *QUICK)
    assert code == 0 and "attackers look at the training before it" in out, err
    run, plain = open_run(Path("run")), open_run(Path("white"), as_trained=True)
    assert plain.enrolled is None and torch.equal(plain.truth(), run.truth())
    assert torch.equal(plain.embed(pixels()), run.embed(pixels()))
    assert not plain.problem.model.constants and plain.title == f"{run.title}, whitened"


def test_samples_in_noise_too(whitened):
    code, out, err = whitened("whiten", "run", "--share", "0.5", "--noise", "20", "--out", "loud", *FAST)
    assert code == 0, err
    names = ("unseen pairs", "unseen, enrolled", "validation samples")
    assert all(f"{name}, in noise" in out for name in names) and "samples in noise of 20 dB as well" in out
    assert read_toml(Path("loud/recipe.toml"))["net"]["whitened_noise"] == 20
    shown = json.loads(Path("loud/result.json").read_text())
    assert shown["facts"]["whitening"].endswith(", of samples as they are and in noise of 20 dB")

    run = open_run(Path("run"))
    federation, total = run.problem.federation, 0
    for client, count in enumerate(federation.count_N.tolist()):
        raw = federation.source.rows(torch.tensor([client]), torch.arange(count)[None])[0]
        noisy = in_noise(raw, 20.0, torch.Generator().manual_seed(client))
        total = total + summand(run.embed(torch.cat([raw, noisy])))
    mean_D, matrix_DD = whitening(total, 4, federation.clients, 0.5)
    kept, _ = read_tensors(Path("loud/model.safetensors"))
    torch.testing.assert_close(kept[f"net.{MEAN}"], mean_D.float())
    torch.testing.assert_close(kept[f"net.{MATRIX}"], matrix_DD.float())

    # Rates without noise are those of the very samples, and both networks hear the same noise.
    clean, loud = (runs_whitening.compared(run, run, 200, 0, 0, noise) for noise in (0.0, 20.0))
    assert loud[: len(clean)] == clean and len(loud) == 2 * len(clean)
    assert all(one["change"]["value"] == 0 for one in loud)


def test_what_is_refused(whitened, monkeypatch):
    before = sorted(Path().rglob("*"))
    refused(whitened("whiten", "white", *FAST, "--out", "new"), "white: is whitened already")
    refused(whitened("resume", "white", "--quiet"), "go on with the run that it was made of")
    refused(whitened("whiten", "run", "--share", "0", *FAST, "--out", "new"), "--share: must be above 0")
    refused(whitened("whiten", "run", "--trials", "1", "--out", "new"), "--trials: must be at least 2")
    for noise in ("-1", "121", "nan"):
        refused(whitened("whiten", "run", "--noise", noise, *FAST, "--out", "new"), "--noise: must be 0 to 120, got ")
    refused(whitened("whiten", "run", *FAST, "--out", "white"), "white: is there already")
    refused(whitened("whiten"), "name the folder of a run, or --net, --start and --data together")
    refused(whitened("whiten", "run", "--net", "lenet"), "name the folder of a run, or --net")
    refused(whitened("whiten", "--net", "lenet", "--start", "x", "--data", "digits", "--best"), "--best")
    refused(whitened("train", "fedaws", *QUICK, "--set", "net.whitened=1", "--out", "new"), "net.whitened: a network")
    refused(whitened("train", "fedaws", *QUICK, "--start", "white", "--out", "new"), "was whitened")
    alone = open_run(Path("run"))
    alone.state.alone_NP = alone.state.theta_P[None]
    with pytest.raises(SelfsameError, match="run: has a network for each client"):
        runs_whitening.terms_of(alone)
    monkeypatch.setattr(runs_whitening, "keep_all", broken)
    with pytest.raises(ZeroDivisionError):
        whitened("whiten", "run", *FAST, "--out", "new")
    assert sorted(Path().rglob("*")) == before


def broken(*_):
    raise ZeroDivisionError


GIVEN = (
    "--net",
    "lenet",
    "--start",
    "w.safetensors",
    "--data",
    "imagefolder",
    "--set",
    "data.size=8",
    "--set",
    "data.grey=true",
)


def test_too_few_devices(home, monkeypatch, call):
    monkeypatch.chdir(home)
    people_tree(home / "few", [6] * 8)
    save_file(nets.build("lenet", (1, 8, 8), 16, seed=5).state_dict(), "w.safetensors")
    settings = ["data.size=8", "data.grey=true", "net.width=16"]
    run = untrained_run("lenet", Path("w.safetensors"), "imagefolder", Path("few"), settings, "cpu")
    count_N = run.problem.federation.count_N.tolist()
    needed = math.ceil(32 / (sum(count - 1 for count in count_N) / len(count_N))) + 1
    answer = call("whiten", *GIVEN, "--path", "few", "--set", "net.width=16", *FAST, "--out", "new")
    refused(answer, f"{len(count_N)} devices are too few for a sum of embeddings of width 16")
    assert f"{needed} like these are needed" in answer[2] and not Path("new").exists()


def test_a_network_that_nobody_trained(home, monkeypatch, call):
    monkeypatch.chdir(home)
    save_file(nets.build("lenet", (1, 8, 8), 4, seed=5).state_dict(), "w.safetensors")
    code, _, err = call("whiten", *GIVEN, "--path", "faces", "--set", "net.width=4", *FAST, "--out", "untrained")
    assert code == 0, err
    run = open_run(Path("untrained"))
    assert run.untrained and run.state.round == 0 and run.title == "lenet, not trained, whitened"
    refused(call("audit", "untrained", *QUICK), "nobody trained it, and nothing but one sum has left")
    assert open_model(Path("untrained")).embed(run.problem.federation.unseen.x[:2].numpy()).shape == (2, 4)


def test_a_network_that_is_named_by_its_import_path(home, monkeypatch, call):
    """What the user names is imported, as by the other commands; of the folder that comes of it nothing is."""
    monkeypatch.chdir(home)
    monkeypatch.setattr(sys, "path", [*sys.path, str(home)])
    Path("mine_to_whiten.py").write_text("from selfsame.nets.lenet import LeNet as Mine\n")
    save_file(nets.build("lenet", (1, 8, 8), 4, seed=5).state_dict(), "w.safetensors")
    words = [word if word != "lenet" else "mine_to_whiten:Mine" for word in GIVEN]
    code, _, err = call("whiten", *words, "--path", "faces", "--set", "net.width=4", *FAST, "--out", "own")
    assert code == 0, err
    refused(call("whiten", "own", *FAST, "--out", "again"), "own: opening it imports and runs mine_to_whiten:Mine; add")
    sys.modules.pop("mine_to_whiten", None)
