"""Processes that share the runs of a file, and the driver that starts them."""

import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench import lanes as driver
from selfsame.runs import sharing

ROOT = Path(__file__).parents[2]

# Does the runs 0 .. 5. With `hang` a run says that it has begun and then waits for its end; `go` holds it until a file
# is there. A line is longer than one write of a buffered file.
WORKER = """
import sys, time
from pathlib import Path
sys.path.insert(0, {root!r})
from selfsame.runs.sharing import share

folder, name, how = Path(sys.argv[1]), sys.argv[2], sys.argv[3]

def one(key):
    with open(folder / f"{{name}}.did", "a") as file:
        print(key["n"], file=file)
    while how == "hang" or (how == "go" and not (folder / "go").exists()):
        time.sleep(0.01)
    if how == "fail" and key["n"] == 2:
        raise ValueError("no luck")
    return {{"by": name, "long": "x" * 20000}}

share(folder / "runs.jsonl", [{{"n": n}} for n in range(6)], one)
"""


@pytest.fixture
def worker(tmp_path):
    """Starts a process that shares the runs."""
    script = tmp_path / "worker.py"
    script.write_text(WORKER.format(root=str(ROOT)))
    begun = []

    def start(name, how="", **given):
        env = {**os.environ, **given}
        command = [sys.executable, str(script), str(tmp_path), name, how]
        begun.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        return begun[-1]

    yield start
    for process in begun:
        if process.poll() is None:
            process.kill()
        process.communicate()


def lines(folder):
    """Every line of the file, each of which must be whole."""
    return [json.loads(line) for line in (folder / "runs.jsonl").read_text().splitlines()]


def did(folder, name):
    path = folder / f"{name}.did"
    return [int(line) for line in path.read_text().splitlines()] if path.is_file() else []


def wait_for(condition, *processes):
    """Wait until something is so, which a process that has ended without it never makes so."""
    while not condition():
        assert all(process.poll() is None for process in processes)
        time.sleep(0.01)


def test_two_processes_do_each_run_once(tmp_path, worker):
    one = worker("a", "go")
    wait_for(lambda: did(tmp_path, "a"), one)  # holds run 0
    two = worker("b", "go")
    wait_for(lambda: did(tmp_path, "b"), one, two)  # passes over it
    (tmp_path / "go").touch()
    assert [process.wait() for process in (one, two)] == [0, 0]
    assert did(tmp_path, "a")[0] == 0 and did(tmp_path, "b")[0] == 1
    assert sorted(did(tmp_path, "a") + did(tmp_path, "b")) == list(range(6))
    assert sorted(line["key"]["n"] for line in lines(tmp_path)) == list(range(6))
    assert list(tmp_path.glob(".runs*")) == []  # no claim is left behind


def test_what_a_killed_process_was_at_is_done_by_another(tmp_path, worker):
    dying = worker("a", "hang")
    wait_for(lambda: did(tmp_path, "a"), dying)
    other = worker("b", "go")
    wait_for(lambda: did(tmp_path, "b"), dying, other)
    dying.send_signal(signal.SIGKILL)
    dying.wait()
    (tmp_path / "go").touch()
    assert other.wait() == 0
    assert did(tmp_path, "a") == [0]
    assert did(tmp_path, "b") == [1, 2, 3, 4, 5, 0]  # in the end, what was passed over
    assert {line["by"] for line in lines(tmp_path)} == {"b"}


def test_what_another_process_is_at_is_left_to_it(tmp_path, worker):
    holder = worker("a", "hang")
    wait_for(lambda: did(tmp_path, "a"), holder)
    said = worker("b").communicate()[0]
    assert "1 of 6 runs left, others are at them" in said
    assert did(tmp_path, "b") == [1, 2, 3, 4, 5]


def test_a_line_that_was_cut_off_spoils_no_other(tmp_path, worker):
    (tmp_path / "runs.jsonl").write_text('{"key": {"n": 0}, "by": "x"}\n{"key": {"n": 1}, "by"')
    assert worker("b").wait() == 0
    assert did(tmp_path, "b") == [1, 2, 3, 4, 5]
    assert sorted(line["key"]["n"] for line in sharing.finished(tmp_path / "runs.jsonl")) == list(range(6))


def test_after_the_deadline_no_run_is_begun(tmp_path, monkeypatch, capsys):
    now = 1000.0
    monkeypatch.setattr(sharing.time, "time", lambda: now)
    monkeypatch.setenv(sharing.UNTIL, "1002")

    def one(key):
        nonlocal now
        now += 1
        return {}

    file = tmp_path / "runs.jsonl"
    left = sharing.share(file, [{"n": n} for n in range(5)], one)
    assert [line["key"]["n"] for line in sharing.finished(file)] == [0, 1]
    assert left == [{"n": 2}, {"n": 3}, {"n": 4}]
    assert "3 of 5 runs left, the time is up" in capsys.readouterr().out


def test_a_deadline_is_no_failure(tmp_path, worker):
    process = worker("a", **{sharing.UNTIL: "1"})
    assert "6 of 6 runs left, the time is up" in process.communicate()[0]
    assert process.returncode == 0 and did(tmp_path, "a") == []


def test_a_run_that_fails_is_told_and_the_others_are_done(tmp_path, worker):
    process = worker("a", "fail")
    said = process.communicate()[1]
    assert process.returncode == 1
    assert 'failed: {"n": 2}' in said and "ValueError: no luck" in said and "1 of 6 runs failed" in said
    assert [line["key"]["n"] for line in lines(tmp_path)] == [0, 1, 3, 4, 5]


def test_a_run_that_lacks_what_it_needs_is_left(tmp_path):
    def one(key):
        if key["n"] == 0:
            raise sharing.OutOfTime
        return {}

    assert sharing.share(tmp_path / "runs.jsonl", [{"n": 0}, {"n": 1}], one) == [{"n": 0}]


def test_who_is_at_a_run_can_be_waited_for(tmp_path, worker):
    process = worker("a", "go")
    wait_for(lambda: did(tmp_path, "a"), process)

    def one(key):
        if key["n"] == 6:  # the last that is free: from now on there is nothing but to wait
            (tmp_path / "go").touch()
        return {"by": "me"}

    assert sharing.share(tmp_path / "runs.jsonl", [{"n": 0}, {"n": 6}], one, wait=True) == []
    assert process.wait() == 0
    assert sharing.look_up(tmp_path / "runs.jsonl", {"n": 0})["by"] == "a"


def test_what_does_not_count_is_done_again_and_each_line_is_heard_of(tmp_path):
    """Nor does anything that is no run: a list, a number, a text of another coding, brackets without end."""
    file = tmp_path / "runs.jsonl"
    strange = [b"[1]", b"7", b"\xff\xfe", b"[" * 100_000, b'{"key": [1]}', b'{"n": 0}']
    file.write_bytes(b"\n".join([*strange, b'{"key": {"n": 0}, "sound": false}', b'{"key": {"n": 1}, "sound": true}']))
    heard, done = [], []

    def one(key):
        done.append(key["n"])
        return {"sound": True}

    left = sharing.share(
        file, [{"n": n} for n in range(3)], one,
        counts=lambda line: line["sound"], heard=lambda: heard.append(len(sharing.finished(file))),
    )  # fmt: skip
    assert (left, done, heard) == ([], [0, 2], [5, 6])
    assert sharing.look_up(file, {"n": 0}, lambda line: line["sound"])["sound"] is True
    assert sharing.look_up(file, {"n": 0})["sound"] is False


# The driver


def lanes(folder, plan, *options):
    """(exit code, what it said, the state that it kept)."""
    (folder / "plan.toml").write_text(plan)
    command = [
        sys.executable,
        str(ROOT / "bench" / "lanes.py"),
        str(folder / "plan.toml"),
        "--out",
        str(folder / "out"),
    ]
    done = subprocess.run([*command, *options], cwd=ROOT, capture_output=True, text=True)
    state = folder / "out" / "state.json"
    return done.returncode, done.stdout + done.stderr, json.loads(state.read_text()) if state.is_file() else []


@pytest.fixture
def script(tmp_path):
    """A script in the repo's stead: commands are paths from the repo's root, which an absolute one overrides."""
    path = tmp_path / "say.py"
    path.write_text(
        "import sys\nfrom pathlib import Path\n"
        "file, code = Path(sys.argv[1]), int(sys.argv[2])\n"
        "with file.open('a') as out:\n    print('did', file=out)\n"
        "print('the last word')\nsys.exit(code)\n"
    )
    return path


def test_a_plan_runs_is_told_of_and_goes_on(tmp_path, script):
    plan = f"""
[[stage]]
name = "first"
lanes = 2
commands = ["{script} {{out}}/good 0", "{script} {{out}}/{{bad}} 3"]
[[stage]]
name = "second"
lanes = 1
copy = {{ "LICENSE" = "{{out}}/begun" }}
commands = ["{script} {{out}}/begun 0"]
"""
    code, said, state = lanes(tmp_path, plan, "--set", "bad=so bad")
    out = tmp_path / "out"
    assert code == 1
    assert sorted((one["stage"], one["exit"]) for one in state) == [("first", 0), ("first", 3), ("second", 0)]
    assert said.count("the last word") == 1 and "stage" in said  # of the one that failed
    assert (out / "so bad").read_text() == "did\n"
    assert (out / "begun").read_text() == (ROOT / "LICENSE").read_text() + "did\n"
    assert sum("the last word" in log.read_text() for log in out.glob("logs/first-?.log")) >= 1

    code, said, state = lanes(tmp_path, plan, "--set", "bad=so bad")
    assert code == 1 and len(state) == 4
    assert [(out / name).read_text() for name in ("good", "so bad")] == ["did\n", "did\ndid\n"]  # what failed again


def test_lanes_share_the_runs_of_a_stage(tmp_path):
    script = tmp_path / "worker.py"
    script.write_text(WORKER.format(root=str(ROOT)))
    plan = f'[[stage]]\nname = "all"\nlanes = 3\nshare = true\ncommands = ["{script} {{out}} {{who}} x"]\n'
    code, said, state = lanes(tmp_path, plan, "--set", "who=w")
    assert code == 0, said
    assert sorted((one["lane"], one["exit"]) for one in state) == [(0, 0), (1, 0), (2, 0)]
    assert sorted(did(tmp_path / "out", "w")) == list(range(6))
    assert sorted(line["key"]["n"] for line in lines(tmp_path / "out")) == list(range(6))


@pytest.fixture
def clock(tmp_path, monkeypatch):
    """The driver's time is up as soon as a command has made the file `ready`."""

    def now():
        return 2000.0 if (tmp_path / "ready").exists() else 1000.0

    monkeypatch.setattr(driver, "time", SimpleNamespace(time=now, sleep=time.sleep))


def stage(name, script, **more):
    return driver.Stage(name, 1, (str(script),), **more)


def test_whoever_does_not_end_by_himself_is_asked_to(tmp_path, clock):
    script = tmp_path / "wait.py"
    script.write_text(
        "import os, signal, sys, time\nfrom pathlib import Path\n"
        "told = [os.environ[name] for name in ('SELFSAME_BENCH_UNTIL', 'OMP_NUM_THREADS')]\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(f'asked to, {told}'))\n"
        f"Path({str(tmp_path)!r}, 'ready').touch()\n"
        "while True:\n    time.sleep(0.01)\n"
    )
    ours = driver.Driver(tmp_path / "out", {}, 1500.0, grace=100.0)
    ours.run(stage("first", script, threads=3))
    ours.run(stage("second", script))  # never begins
    assert [(one.stage, one.exit, one.late) for one in ours.ended] == [("first", 1, True)]
    assert "asked to, ['1500.0', '3']" in ours.log("first", 0).read_text()


def test_what_ended_because_the_time_was_up_is_done_again(tmp_path, clock):
    script = tmp_path / "late.py"
    script.write_text(f"from pathlib import Path\nPath({str(tmp_path)!r}, 'ready').touch()\n")
    late = []
    for until in (1500.0, 3000.0, 3000.0):
        (tmp_path / "ready").unlink(missing_ok=True)
        ours = driver.Driver(tmp_path / "out", {}, until, grace=10000.0)
        ours.run(stage("only", script))
        late.append([one.late for one in ours.ended])
    assert late == [[True], [False], []]


def test_a_stage_has_its_own_time(tmp_path, clock):
    script = tmp_path / "late.py"
    script.write_text(f"from pathlib import Path\nPath({str(tmp_path)!r}, 'ready').touch()\n")
    ours = driver.Driver(tmp_path / "out", {}, 5000.0, grace=10000.0)
    ours.run(driver.Stage("first", 1, (str(script), str(script)), seconds=500.0))
    ours.run(stage("second", script))
    assert [(one.stage, one.late) for one in ours.ended] == [("first", True), ("second", False)]


WAITER = """
import sys, tarfile, time
from pathlib import Path
out, packed = map(Path, sys.argv[1:])
(out / "begun.json").write_text("1")
while not packed.is_file() or "begun.json" not in tarfile.open(packed).getnames():
    time.sleep(0.02)
(out / "ended.json").write_text("2")
"""


def test_a_copy_is_kept_while_runs_are_at_work(tmp_path):
    """And another at the end; by it a second machine knows what has ended."""
    script, copy = tmp_path / "waiter.py", tmp_path / "o.tgz"
    script.write_text(WAITER)
    plan = f'[[stage]]\nname = "a"\nlanes = 1\ncommands = ["{script} {{out}} {copy}"]\n'
    code, said, state = lanes(tmp_path, plan, "--pack", str(copy), "--every", "0.1")
    assert (code, len(state)) == (0, 1), said
    there = tmp_path / "there"
    there.mkdir()
    with tarfile.open(copy) as packed:
        packed.extractall(there / "out", filter="data")
    assert (there / "out" / "ended.json").read_text() == "2"
    assert [one["exit"] for one in json.loads((there / "out" / "state.json").read_text())] == [0]
    assert not list(tmp_path.glob("*.tmp"))


def test_a_copy_leaves_out_what_is_heavy(tmp_path):
    out, copy = tmp_path / "out", tmp_path / "o.tgz"
    kept = {"a/result.json": b"{}", "a/deep/er/page.md": b"x", "runs.jsonl": b"1\n2\n"}
    left = {"a/model.safetensors": b"x", "a/checkpoint/state.json": b"x", "big.json": b"x" * 3_000_001, "x.lock": b""}
    for name, content in {**kept, **left}.items():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_bytes(content)
    (out / "link.json").symlink_to(out / "runs.jsonl")
    copy.write_text("what lay there")
    driver.pack(out, copy)
    with tarfile.open(copy) as packed:
        assert {one.name: packed.extractfile(one).read() for one in packed} == kept


STAGE = '[[stage]]\nname = "a"\nlanes = 1\ncommands = ["selfsame --version"]\n'


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ("stage = 3", "expected a list of stages"),
        ("[[stage", "not TOML"),
        (STAGE.replace("lanes = 1\n", ""), "stage 1: needs lanes"),
        (STAGE.replace("lanes = 1", "lanes = 0"), "stage 1.lanes: must be at least 1"),
        (STAGE.replace("lanes = 1", 'lanes = 1\nsecond = "x"'), "did you mean 'seconds'?"),
        (STAGE + STAGE, "a word that no other stage has"),
        (STAGE.replace("selfsame --version", "rm all"), "rm all: expected `selfsame` or a script"),
        (STAGE.replace("selfsame --version", "bench/none.py"), "bench/none.py: expected"),
        (STAGE.replace("--version", "{what}"), "give --set what=VALUE"),
        (STAGE + 'copy = { "none.jsonl" = "{out}/x" }\n', "none.jsonl: no such file"),
    ],
)
def test_a_bad_plan_is_refused_in_one_line(tmp_path, monkeypatch, capsys, plan, words):
    said = refused(tmp_path, monkeypatch, capsys, plan)
    assert said.count("\n") == 1 and words in said


def test_a_stage_that_is_not_there_is_refused(tmp_path, monkeypatch, capsys):
    assert "--only b: no such stage" in refused(tmp_path, monkeypatch, capsys, STAGE, "--only", "b")


@pytest.mark.parametrize(
    ("options", "said"),
    [(("--pack", "nowhere/o.tgz"), "--pack nowhere/o.tgz: no such folder"), (("--every", "0"), "--every: must be")],
)
def test_where_nothing_can_be_packed(tmp_path, monkeypatch, capsys, options, said):
    assert said in refused(tmp_path, monkeypatch, capsys, STAGE, *options)


def refused(folder, monkeypatch, capsys, plan, *options):
    """What the driver says where it does not begin."""
    (folder / "plan.toml").write_text(plan)
    words = [str(folder / "plan.toml"), "--out", str(folder / "out"), *options]
    monkeypatch.setattr(sys, "argv", ["lanes.py", *words])
    assert driver.main() == 2
    assert not (folder / "out").exists()
    return capsys.readouterr().err


def test_the_plans_here_are_good():
    for plan in sorted((ROOT / "bench" / "plans").glob("*.toml")):
        assert driver.read_plan(plan, {"data": "DATA", "out": "OUT"}, {})
