"""A signal is told of at once, ends a run after its round with a checkpoint, and a second one ends the process."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from test_run import a_recipe, assert_same

from selfsame.data import load
from selfsame.engine import checkpoint
from selfsame.runs.loop import carry_on
from selfsame.runs.run import load_run, start
from selfsame.runs.stopping import Interrupted, stoppable

ROOT = str(Path(__file__).parents[2])
ENDLESS = """
import sys; sys.path.insert(0, {root!r})
from selfsame.runs.stopping import stoppable
import hashlib
with stoppable():
    print("ready", flush=True)
    {work}
"""
WORK = {"python": "while True: pass", "one operation": "hashlib.pbkdf2_hmac('sha256', b'', b'', 2**31 - 1)"}


@pytest.mark.parametrize("work", WORK)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_once_is_told_of_and_twice_ends(work, number):
    """Also while one operation runs that never comes back to the interpreter."""
    words = [sys.executable, "-c", ENDLESS.format(root=ROOT, work=WORK[work])]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        process.stderr.readline()  # the line of a bar may be open
        assert process.stderr.readline() == "selfsame: stopping after this round; once more ends at once\n"
        for _ in range(100):  # one that comes at once is the same signal sent twice
            process.send_signal(number)
            with suppress(subprocess.TimeoutExpired):
                process.wait(1)
                break
        assert process.returncode == 128 + number


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_has_no_rounds_is_ended_by_the_first(number, capfd):
    """Once, where it is sent twice at once; whoever tidies up meanwhile is not disturbed."""
    tidied = []
    with pytest.raises(Interrupted) as raised, stoppable("stopping here", raises=True):
        try:
            os.kill(os.getpid(), number)
        except Interrupted:
            os.kill(os.getpid(), number)
            tidied.append("all")
            raise
    assert raised.value.code == 128 + number and tidied == ["all"]
    assert "selfsame: stopping here\n" in capfd.readouterr().err


def test_handlers_are_given_back():
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with stoppable() as stop:
        assert signal.getsignal(signal.SIGINT) != before[0] and not stop.asked()
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


@pytest.mark.parametrize("at", [1, 2, 6])
def test_a_stopped_run_has_a_checkpoint_and_goes_on_to_the_last_bit(at, tmp_path, capsys):
    federation = load("digits", turns=1)
    recipe = a_recipe("fedhide", run={"rounds": 12, "eval_every": 12, "checkpoint_every": 12, "device": "cpu"})
    carry_on(start(recipe, tmp_path / "whole", federation))
    run = start(recipe, tmp_path / "cut", federation)
    count = [0]

    def tick(rounds, record):
        count[0] += rounds
        if count[0] == at and rounds:
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)  # as `timeout` does

    with stoppable() as stop:
        carry_on(run, tick, stop.asked)
    assert stop.asked() and stop.code == 143 and not run.done
    assert at <= run.state.round < 12 and not (tmp_path / "cut" / "model.safetensors").exists()
    saved = tmp_path / "cut" / "checkpoint" / "state.safetensors"
    assert checkpoint.peek(saved)["round"] == run.state.round
    carry_on(load_run(tmp_path / "cut", federation))
    assert_same(tmp_path / "whole", tmp_path / "cut")


def test_a_run_that_ends_with_the_signal_is_done(tmp_path, capsys):
    run = start(a_recipe("fedhide"), tmp_path / "run", load("digits", turns=1))

    def tick(rounds, record):
        if record is not None and run.done:
            os.kill(os.getpid(), signal.SIGINT)

    with stoppable() as stop:
        carry_on(run, tick, stop.asked)
    assert stop.code == 130 and run.done and (tmp_path / "run" / "model.safetensors").exists()
