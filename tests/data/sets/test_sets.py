"""Data sets that are not images, trained and evaluated end to end: recordings in crops, sparse rows, tables."""

from __future__ import annotations

import math
import wave

import numpy as np
import pytest
import torch

from selfsame.config.recipe import AugmentPart, LocalPart, from_mapping
from selfsame.data import load
from selfsame.engine.batches import Sampler, step_batch
from selfsame.methods.base import unit
from selfsame.runs.course import Run
from selfsame.runs.loop import carry_on
from selfsame.runs.run import start


def run_on(data: dict, net: dict, method: str = "fedaws", rounds: int = 2) -> Run:
    tables = {
        "method": {"name": method},
        "data": data,
        "net": net,
        "run": {"rounds": rounds, "device": "cpu"},
        "cohort": {"size": 3},
        "local": {"batch": 4, "lr": 0.1},
    }
    run = start(from_mapping(tables))
    carry_on(run)
    return run


@pytest.fixture(scope="module")
def voices(tmp_path_factory):
    """Seven people who hum at their own pitch, six recordings of 0.6 s at 8 kHz each."""
    root = tmp_path_factory.mktemp("voices")
    draw = np.random.default_rng(0)
    for person in range(7):
        folder = root / f"p{person}"
        folder.mkdir()
        for take in range(6):
            time = np.arange(4800) / 8000
            hum = np.sin(2 * math.pi * (200 + 90 * person) * time + draw.uniform(0, 6))
            with wave.open(str(folder / f"{take}.wav"), "wb") as file:
                file.setnchannels(1)
                file.setsampwidth(2)
                file.setframerate(8000)
                file.writeframes(((hum + 0.05 * draw.standard_normal(4800)) * 9000).astype("<i2").tobytes())
    return root


SHORT = {"rate": 8000, "seconds": 0.2, "test_seconds": 0.2, "test_crops": 3, "test": 1, "unseen_share": 0.3}


@pytest.mark.parametrize("hold_gib", [2.0, 0.0], ids=["held", "mapped"])
def test_recordings_are_cut_anew_and_judged_by_several_crops(voices, hold_gib):
    federation = load("audiofolder", voices, **SHORT, hold_gib=hold_gib)
    assert federation.source.on_host is (hold_gib == 0)
    sampler = Sampler(federation, LocalPart(steps=1, batch=4), AugmentPart(), 0, 6, torch.float32)
    first, second = (step_batch(sampler, torch.arange(4), number, 0) for number in (0, 1))
    assert not torch.equal(first.x_MB, second.x_MB)
    alone = step_batch(sampler, torch.tensor([3]), 0, 0)
    assert torch.equal(alone.x_MB[0], first.x_MB[3])  # the same whoever else is there
    data = {"name": "audiofolder", "path": str(voices), **SHORT, "hold_gib": hold_gib}
    run = run_on(data, {"name": "fast-resnet34-mel", "width": 8, "rate": 8000})
    assert run.problem.federation.unseen.x.shape[1] == 3  # crops
    assert 0 <= run.final["eer"] <= 1 and run.final["p@1"] is not None


def test_several_crops_count_as_the_mean_of_their_places():
    tables = {"method": {"name": "fedhide"}, "data": {"name": "digits"}, "run": {"rounds": 1, "device": "cpu"}}
    run = start(from_mapping(tables))
    raw = run.problem.federation.test.x[:12]
    together = run.embed(raw.unflatten(0, (4, 3)))
    assert torch.allclose(together, unit(run.embed(raw)).unflatten(0, (4, 3)).mean(1), atol=1e-6)


@pytest.mark.parametrize(("method", "shared"), [("fedaws", "class_embedding"), ("fedgn", "proxies")])
def test_sparse_rows_with_several_labels(method, shared, tmp_path):
    draw = np.random.default_rng(1)
    for part, rows in (("train", 60), ("test", 20)):
        lines = [f"{rows} 12 6"]
        for _ in range(rows):
            label = int(draw.integers(6))
            labels = sorted({label, int(draw.integers(6))})
            lines.append(f"{','.join(map(str, labels))} {2 * label}:1.0 {2 * label + 1}:0.5")
        (tmp_path / f"tiny_{part}.txt").write_text("\n".join(lines) + "\n")
    run = run_on({"name": "xc", "path": str(tmp_path)}, {"name": "embedding-bag", "width": 8}, method, rounds=3)
    assert run.problem.recipe.net.options["features"] == 12  # from the file's first line
    figures = run.evaluate().figures
    test = run.problem.federation.test
    emb = run.embed(test.x)
    for table, key in ((run.truth(), "p@1"), (run.state.server[shared], "p@1_shared")):
        hits = 0
        for place in range(len(test.x)):
            best = int(torch.stack([torch.cosine_similarity(emb[place], w, dim=0) for w in table]).argmax())
            begin, end = test.labels.offset[place : place + 2].tolist()
            hits += best in test.labels.value[begin:end].tolist()
        assert figures[key] == pytest.approx(hits / (len(test.x) + test.missed))
    assert set(figures) >= {"p@3", "p@5"}


def test_a_table_of_features(tmp_path):
    draw = np.random.default_rng(2)
    rows = ["user,a,b"]
    rows += [
        f"u{u},{u + 0.1 * draw.standard_normal()},{-u + 0.1 * draw.standard_normal()}"
        for u in range(6)
        for _ in "x" * 12
    ]
    file = tmp_path / "events.csv"
    file.write_text("\n".join(rows) + "\n")
    run = run_on({"name": "table", "path": str(file), "held_out": 2}, {"name": "mlp", "width": 4, "hidden": [8]})
    assert run.problem.federation.clients == 4
    assert run.final["eer"] is not None
