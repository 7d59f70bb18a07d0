"""A cohort cut over 2 and 4 processes gives what one gives, for every method; and runs that lose a process go on.

Equal to 1e-10 of the largest entry in float64, not to the last bit: sums over clients are taken in another order, and
matrix products of other sizes add up in another one too. Ranks among themselves are equal to the last bit.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from many_ranks import CASES, HALF, cases, spread
from safetensors.torch import load_file
from small import assert_same, build, people
from typer.testing import CliRunner

from selfsame.cli import app
from selfsame.engine import checkpoint
from selfsame.engine.plan import make_plan
from selfsame.engine.ranks.group import ALONE, GATHERED, SUMMED, Crossing, Ranks, launched
from selfsame.engine.rounds import Engine
from selfsame.engine.state import State
from selfsame.errors import SelfsameError
from selfsame.methods import METHODS
from selfsame.methods.base import Cohort
from selfsame.runs.course import Run
from selfsame.runs.loop import carry_on
from selfsame.runs.run import load_run, start

CLOSE = 1e-10


@pytest.fixture(scope="module")
def alone() -> dict[str, Run]:
    """Every case in this process."""
    return {name: case.run(ALONE) for name, case in CASES.items()}


@pytest.fixture(scope="module")
def half(tmp_path_factory) -> Path:
    """A run that was stopped half way."""
    folder = tmp_path_factory.mktemp("ranks") / "half"
    one = start(HALF, folder, people())
    losses = Engine(one.problem).run(one.state, make_plan(HALF, 0, 2, one.state.present))
    one.state.losses = losses.tolist()
    checkpoint.save_state(one.state, folder / "checkpoint" / "state.safetensors")
    return folder


@pytest.fixture(scope="module", params=[2, 4])
def several(request, half) -> Path:
    """What so many processes made of every case."""
    folder = half.parent / str(request.param)
    folder.mkdir()
    spread(request.param, folder)
    return folder


def said(folder: Path) -> list[dict]:
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(int(folder.name))]


def filled(like: State, tensors: dict[str, torch.Tensor]) -> State:
    """A state of this shape with other values."""
    optim, own, server = (
        {k: tensors[f"{part}.{k}"] for k in getattr(like, part)} for part in ("optim", "own", "server")
    )
    return replace(
        like, theta_P=tensors["theta"], refused=tensors["refused"], alone_NP=tensors.get("alone"),
        optim=optim, own=own, server=server,
    )  # fmt: skip


def test_every_method_is_there():
    for size in (2, 4):
        assert {case.method for _, case in cases(size).values()} >= set(METHODS)


def test_equal(alone, several):
    for name, (number, _) in cases(int(several.name)).items():
        one = alone[name]
        tensors = load_file(several / f"{number}.safetensors")
        assert tensors.keys() == one.state.tensors().keys(), name
        assert_same(filled(one.state, tensors), one.state, CLOSE)
    assert int(alone["fedhide, one step"].state.refused) > 0


def test_losses_are_those_of_the_cohort(alone, several):
    for found in said(several):
        for name, losses in found["losses"].items():
            wanted = torch.tensor(alone[name].state.losses)
            assert torch.allclose(torch.tensor(losses), wanted, rtol=CLOSE, atol=0), name


def test_ranks_agree_to_the_last_bit(several):
    first, *others = said(several)
    assert first["bits"]
    for other in others:
        assert other["bits"] == first["bits"]
        assert other["secret"] == first["secret"]  # drawn by rank 0's system, at the start and when clients join


def test_runs_record_what_one_process_records(several, tmp_path):
    for name, (number, case) in cases(int(several.name)).items():
        if not case.whole:
            continue
        one = case.run(ALONE, tmp_path / str(number))
        kept = [json.loads(line) for line in (several / f"run{number}" / "metrics.jsonl").read_text().splitlines()]
        assert [record["round"] for record in kept] == [record["round"] for record in one.history] == [2, 4], name
        for mine, theirs in zip(one.history, kept):
            for key in ("loss", "p@1", "auroc", "refused"):
                assert mine[key] == (pytest.approx(theirs[key], rel=1e-9) if mine[key] is not None else None), name


def test_goes_on_with_another_number_of_processes(half, several):
    whole = carry_on(start(HALF, None, people()))
    again = half.parent / f"again{several.name}"
    shutil.copytree(half, again)
    here = carry_on(load_run(again, people()))
    assert_same(here.state, whole.state, 0)  # one process goes on bit for bit
    there = load_run(several / "half", people())
    assert there.done
    assert_same(there.state, whole.state, CLOSE)
    assert [r["round"] for r in there.history] == [r["round"] for r in whole.history] == [3, 6]


def test_what_cannot_be_is_refused(several):
    for found in said(several):
        assert "reference" in found["refused"]["reference"]
        assert "cuda:1" in found["refused"]["device"]
        assert found["refused"]["other data"].startswith("rank 1: ")


def test_bytes_are_counted(several):
    size = int(several.name)
    crossed = said(several)[0]["crossed"]
    one = build("fedhide")
    rows = -(-7 // size) * size  # what fills up a share crosses too
    assert crossed["fedhide, one step"] == {
        "network update": [SUMMED, 8 * one.model.parameters],
        "answered": [GATHERED, rows],
        "loss": [GATHERED, 8 * rows],
        "stays.prototype": [GATHERED, 8 * 8 * rows],
        "leaves.proxy": [GATHERED, 8 * 8 * rows],
    }
    assert crossed["deepsvdd, one step"]["network"] == [GATHERED, 8 * build("deepsvdd").model.parameters * rows]
    assert crossed["fedaws, in blocks"]["rows of classes"] == [SUMMED, 8 * 8 * 7]
    assert crossed["fedaws, in blocks"]["neighbours"] == [GATHERED, size * 7 * 3 * 8]
    assert crossed["fdml, one step"]["leaves.embedding"] == [GATHERED, 8 * 8 * 9 * rows]


def test_out_of_each_rank():
    """In a ring of R, every rank passes on R - 1 parts of R, twice for a sum: once to add up, once to hand out."""
    assert Crossing(SUMMED, 1000).out(2) == 1000
    assert Crossing(SUMMED, 1000).out(4) == 1500
    assert Crossing(GATHERED, 1000).out(4) == 750
    assert Ranks(0, 1).crossing_words().startswith("0 bytes")


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("total", [1, 2, 3, 5, 8, 100])
def test_shares_cover_the_cohort_once(size, total):
    everyone = Cohort(torch.arange(total), torch.arange(total), torch.ones(total, dtype=torch.bool))
    ranks = [Ranks(rank, size, active=True) for rank in range(size)]
    shares = [one.share(everyone) for one in ranks]
    lengths = [one.limits(total, one.rank)[1] - one.limits(total, one.rank)[0] for one in ranks]
    assert max(lengths) - min(lengths) <= 1
    assert torch.cat([share.client_M[share.alive_M] for share in shares]).tolist() == list(range(total))
    assert all(len(share.client_M) for share in shares)  # a stand-in where there is nobody
    value = torch.arange(1, total + 1)
    assert sum(int(one.rows(value).sum()) for one in ranks) == int(value.sum())


def test_alone_without_torchrun(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    assert not launched()
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    assert not launched()  # a single process needs no collectives
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert launched()
    assert CliRunner().invoke(app, ["compare"]).exception.__class__ is SelfsameError


@pytest.mark.parametrize(
    ("name", "options"), [("fedhide", {}), ("softmax", {}), ("fedmetric", {}), ("fedaws", {"spread": "full"})]
)
def test_tables_that_cannot_be_cut(name, options):
    with pytest.raises(SelfsameError, match=r"run\.shard_tables"):
        build(name, options=options, run={"shard_tables": True})


# With torchrun itself.


def torchrun(size: int, *command: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(size), "-m", "selfsame", *command],
        env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def child(process: subprocess.Popen, rank: int) -> int:
    """The process of this rank."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    mark = f"RANK={rank}".encode()
    return next(int(pid) for pid in children if mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="finds the processes by /proc")
def test_a_process_that_is_killed(tmp_path):
    """SIGKILL ends the others with one line and leaves a whole checkpoint, from which torchrun goes on to the same end.

    One process prints and writes, and what crossed between them is in the report.
    """
    common = ["--precision", "float64", "--device", "cpu", "--quiet", "--set", "run.checkpoint_every=5"]
    folder, rounds = tmp_path / "run", 80
    process = torchrun(2, "train", "fedhide", "--rounds", str(rounds), "--out", str(folder), *common)
    saved = folder / "checkpoint" / "state.safetensors"
    try:
        begun = time.monotonic()
        while not saved.exists() and process.poll() is None and time.monotonic() - begun < 120:
            time.sleep(0.02)
        os.kill(child(process, 1), signal.SIGKILL)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode not in (0, None)
    lines = [line for line in err.splitlines() if line.startswith("selfsame: ")]
    assert len(lines) == 1 and "has ended" in lines[0] and "resume" in lines[0]
    assert 0 < checkpoint.peek(saved)["round"] < rounds
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]

    process = torchrun(2, "resume", str(folder), "--quiet")
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    again = load_run(folder)
    assert again.done
    assert_same(again.state, carry_on(start(again.recipe)).state, CLOSE)
    assert out.count("report:") == 1
    assert "2 processes (gloo)" in out and "network update" in out
    facts = json.loads((folder / "result.json").read_text())["facts"]
    assert facts["processes"] == "2 processes (gloo)"
    assert facts["between processes"] in out
