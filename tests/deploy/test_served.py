"""The folder of a run on devices, read again: measured, exported, and what is refused."""

from __future__ import annotations

import pytest
import torch
from loopback import Loopback, recipe

from selfsame.errors import SelfsameError
from selfsame.export.from_run import read_run
from selfsame.export.measured import export_run
from selfsame.runs.assess import assess
from selfsame.runs.run import load_run, open_run


def served(tmp_path, name="fedhide", **parts):
    harness = Loopback(tmp_path, recipe(name, run={"rounds": 2, "precision": "float32"}, **parts))
    harness.run()
    return harness, tmp_path / "server"


@pytest.mark.parametrize("name", ["fedhide", "fedaws", "feduv", "softmax", "fedmetric"])
def test_templates_of_the_samples_stand_in_for_vectors_that_stayed_on_devices(tmp_path, name):
    harness, folder = served(tmp_path, name)
    run = open_run(folder)
    assert torch.equal(run.state.theta_P, harness.server.state.theta_P)
    federation, method = run.problem.federation, run.problem.method
    begun = 0
    for client, count in enumerate(federation.count_N.tolist()):
        emb = run.embed(federation.source.x[begun : begun + min(64, count)])
        torch.testing.assert_close(run.truth()[client], method.template(emb))
        begun += count
    figures = run.evaluate().figures
    assert 0 < figures["eer"] < 0.5 and figures["eer_seen"] is not None


def test_it_is_measured_and_says_what_stands_in(tmp_path):
    _, folder = served(tmp_path)
    found = assess(open_run(folder), trials=2000, bootstrap=0)
    assert any("a run on devices" in note for note in found["notes"])
    assert {"test samples", "unseen pairs"} <= {protocol["name"] for protocol in found["protocols"]}


def test_a_server_without_samples_exports_and_measures_nothing(tmp_path):
    pytest.importorskip("onnxruntime")
    _, folder = served(tmp_path)
    text = (folder / "recipe.toml").read_text(encoding="utf-8")
    start = text.index("[data]")
    end = text.index("\n\n", start)
    (folder / "recipe.toml").write_text(text[:start] + '[data]\nname = "mnist"' + text[end:], encoding="utf-8")
    run = read_run(folder)
    variants = export_run(run, check=16)
    assert variants[1].data and variants[1].difference < 1e-5 and variants[1].rates == (None, None)
    with pytest.raises(SelfsameError, match="no samples to measure with"):
        assess(run)


def test_refusals(tmp_path):
    harness, folder = served(tmp_path)
    with pytest.raises(SelfsameError, match="a run on devices"):
        load_run(folder)
    (folder / "samples.json").write_text('{"shape": [1]}', encoding="utf-8")
    text = (folder / "recipe.toml").read_text(encoding="utf-8")
    (folder / "recipe.toml").write_text(
        text.replace('"digits"', '"mnist"').split("turns")[0] + text[text.index("[net]") :]
    )
    with pytest.raises(SelfsameError, match=r"samples\.json: damaged"):
        open_run(folder)
    (folder / "recipe.toml").write_text(text, encoding="utf-8")
    (folder / "model.safetensors").unlink()
    with pytest.raises(SelfsameError, match="has not ended"):
        open_run(folder)
    assert harness.server.done
