"""The comparison with other simulators: what needs none of them installed."""

import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "bench" / "peers"))

import case
import drive_plain
import environment
import process
import table
import work

from bench import peers
from selfsame.errors import SelfsameError


@given(st.lists(st.integers(1, 100), min_size=1, max_size=5))
def test_numbers_are_read_back(found):
    assert peers.numbers("--steps", ",".join(map(str, found)), 1, 100) == found


@given(st.text(max_size=8))
def test_numbers_are_in_range_or_refused_by_name(text):
    try:
        found = peers.numbers("--steps", text, 1, 100)
    except SelfsameError as error:
        assert str(error).startswith("--steps: ") and "\n" not in str(error).replace(repr(text), "")
    else:
        assert found and all(1 <= number <= 100 for number in found)


def test_peers_come_in_the_order_of_the_table():
    assert peers.chosen("plain,selfsame") == ["selfsame", "plain"]
    with pytest.raises(SelfsameError, match="--only: unknown peer 'flowers'; the peers are: selfsame, module, plain"):
        peers.chosen("plain,flowers")


def test_every_peer_has_a_driver_and_a_pinned_version():
    for name, peer in peers.PEERS.items():
        assert (peers.PARTS / f"drive_{name}.py").is_file()
        assert not peer.package or "==" in peer.package
        assert all(setting.threads * setting.workers <= peers.CORES for setting in peer.settings)


def test_only_the_workers_of_pfl_are_started_by_torchrun():
    def launched(name, *setting):
        return "torch.distributed.run" in peers.command(name, Path("a"), Path("b"), process.Setting(*setting))

    assert launched("pfl", 1, 2)
    assert not launched("pfl", 2, 1) and not launched("flower", 1, 2)


def outcome(*seconds, **parts):
    return process.Outcome(process.Setting(1), seconds, "1.0", 100.0, **parts)


def test_rate_is_that_of_the_median_block():
    speed, spread = table.rate(outcome(1.0, 2.0, 4.0), 8)
    assert speed == pytest.approx(4.0)
    assert spread == pytest.approx((8 - 2) / 2)


def test_the_fastest_setting_counts_and_failures_last():
    slow, fast, broken = outcome(2.0), outcome(1.0), process.Outcome(process.Setting(2), failed="no")
    assert table.best([broken, slow, fast], 1) is fast
    assert table.best([broken], 1) is broken


def test_difference_is_the_largest_and_infinite_between_networks():
    a = {"w": np.float32([1, 2]), "b": np.float32([0])}
    assert table.difference(a, {"w": np.float32([1, 2.5]), "b": np.float32([0.25])}) == 0.5
    assert table.difference(a, {"w": a["w"]}) == math.inf
    assert table.difference(a, {"w": a["w"], "b": np.float32([0, 0])}) == math.inf


def test_a_row_says_how_much_faster_and_whether_equal():
    shape = case.Shape("positive-only", 10, 1, 8, 10, 3)
    ours = outcome(1.0, parameters={"w": np.float32([1])})
    near, far = ({"w": np.float32([1 + gap])} for gap in (1e-6, 0.5))
    assert "2.5x faster" in table.row("pfl", shape, outcome(2.5, parameters=near), ours)
    assert "2.0x slower" in table.row("pfl", shape, outcome(0.5, parameters=near), ours)
    assert "NO" not in table.row("pfl", shape, outcome(2.5, parameters=near), ours)
    assert "NO 5e-01" in table.row("pfl", shape, outcome(2.5, parameters=far), ours)
    assert "faster" not in table.row("selfsame", shape, ours, ours)
    assert "faster" not in table.row("pfl", shape, ours, None)
    assert table.row("pfl", shape, process.Outcome(process.Setting(1), failed="no wheel"), ours).endswith("no wheel")


def loss_by_hand(emb, w, margin):
    total = 0.0
    for row in emb:
        dot = sum(a * b for a, b in zip(row, w, strict=True))
        cosine = dot / math.sqrt(sum(a * a for a in row)) / math.sqrt(sum(b * b for b in w))
        total += max(0.0, margin - cosine) ** 2
    return total / len(emb)


def test_the_loss_and_the_step_of_the_class_vector():
    emb_BD = torch.randn(5, 3, dtype=torch.float64)
    first = torch.randn(3, dtype=torch.float64)
    expected = loss_by_hand(emb_BD.tolist(), first.tolist(), 0.9)
    assert work.pull(emb_BD, first, 0.9).item() == pytest.approx(expected, abs=1e-12)

    row_D = first.clone()
    work.pull_and_turn(emb_BD, row_D, 0.9, 0.1).backward()
    for d in range(3):
        up, down = first.clone(), first.clone()
        up[d] += 1e-6
        down[d] -= 1e-6
        slope = (
            loss_by_hand(emb_BD.tolist(), up.tolist(), 0.9) - loss_by_hand(emb_BD.tolist(), down.tolist(), 0.9)
        ) / 2e-6
        assert row_D[d].item() == pytest.approx(first[d].item() - 0.1 * slope, abs=1e-8)


@pytest.fixture(scope="module", params=[1, 3], ids=["one step", "three steps"])
def written(request, tmp_path_factory):
    """A case on disk: 7 clients per round, the rounds of the check and two blocks of two."""
    folder = tmp_path_factory.mktemp("case")
    shape = case.Shape("positive-only", 7, request.param, 8, 2, 2)
    case.write(shape, folder)
    return shape, folder


def test_batches_are_different_samples_of_their_own_client(written):
    shape, folder = written
    given = work.read(folder)
    assert given.index_TMSB.shape == (shape.total, 7, shape.steps, case.BATCH)
    assert (given.index_TMSB // case.SAMPLES == given.client_TM[:, :, None, None]).all()
    in_order = np.sort(given.index_TMSB, -1)
    assert (np.diff(in_order) > 0).all()
    assert [given.place(1, client) for client in given.client_TM[1]] == list(range(7))


def test_the_plain_loop_ends_where_selfsame_does(written):
    shape, folder = written
    given = work.read(folder)
    clock = work.Clock(given)
    final = drive_plain.run(given, clock)
    ours = case.start(shape)
    ours.rounds(case.CHECK)
    after = {name: value.clone() for name, value in ours.problem.model.net_views(ours.state.theta_P).items()}
    ours.rounds(shape.total - case.CHECK)
    for name, value in ours.problem.model.net_views(ours.state.theta_P).items():
        assert (after[name] - given.first[name]).abs().max() > 1e-4, "nothing was trained"
        torch.testing.assert_close(torch.from_numpy(clock.after[name]), after[name], rtol=0, atol=1e-5)
        torch.testing.assert_close(final[name], value, rtol=0, atol=1e-5)


def test_the_clock_times_blocks_after_the_check(written, tmp_path):
    _, folder = written
    given = work.read(folder)
    clock = work.Clock(given)
    for done in range(given.total - 1):
        clock.tick(lambda done=done: {"round": torch.tensor(done)})
    with pytest.raises(RuntimeError, match=f"{given.total - 1} rounds were run, {given.total} were asked for"):
        clock.write(tmp_path / "out.json", "1")
    clock.tick(dict)
    assert len(clock.seconds) == given.repeats and clock.after["round"] == case.CHECK - 1
    clock.write(tmp_path / "out.json", "1")
    assert json.loads((tmp_path / "out.json").read_text())["seconds"] == clock.seconds


def test_last_line():
    assert environment.last_line("Traceback\n  File\nValueError: no\n\n") == "ValueError: no"
    assert environment.last_line("\n") == ""


def run(code, out, limit=60.0):
    return process.run([sys.executable, "-c", code], out, process.Setting(1), dict(peers.os.environ), limit)


def test_what_a_driver_leaves_is_read(tmp_path):
    np.savez(tmp_path / "out.npz", w=np.arange(3))
    code = f'open({str(tmp_path / "out.json")!r}, \'w\').write(\'{{"seconds": [1, 2], "version": "9"}}\')'
    got = run(code, tmp_path / "out.json")
    assert (got.seconds, got.version, got.failed) == ((1, 2), "9", "")
    assert got.parameters["w"].tolist() == [0, 1, 2]


def test_a_driver_that_fails_says_why(tmp_path):
    assert run("raise ValueError('no such thing')", tmp_path / "out.json").failed == "ValueError: no such thing"
    assert run("raise SystemExit(3)", tmp_path / "out.json").failed == "ended with 3"
    assert run("import time; time.sleep(60)", tmp_path / "out.json", 0.5).failed == "did not finish within 0 s"


@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="needs /proc")
def test_memory_counts_children_and_not_strangers(tmp_path):
    held = "block = bytearray(64 * 2**20); import sys; print(flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", f"import subprocess, sys; subprocess.run([sys.executable, '-c', {held!r}])"]
    parent = process.subprocess.Popen(command, stdin=-1, stdout=-1)
    try:
        parent.stdout.readline()
        assert process.tree_mib(parent.pid) > 64 > process.tree_mib(10**9)
    finally:
        parent.communicate(b"")
