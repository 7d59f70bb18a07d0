"""What tests of commands share."""

import os
import signal
import subprocess
import sys
import traceback
from types import SimpleNamespace

import pytest
import torch

from selfsame import cli
from selfsame.runs import parallel


@pytest.fixture
def call(monkeypatch, capsys):
    """The command in this process: (exit code, standard output, standard error)."""

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["selfsame", *map(str, words)])
        capsys.readouterr()
        try:
            cli.main()
            code = 0
        except SystemExit as end:
            code = end.code or 0
        return code, *capsys.readouterr()

    return run


class Forked(subprocess.Popen):
    """A process that goes on from here with a command of selfsame, in the stead of a Python that imports all anew."""

    def __init__(self, command, *, stdout, **_):
        assert command[:3] == [sys.executable, "-m", "selfsame"]
        self.returncode = None
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                os.setsid()
                for stream in (1, 2):
                    os.dup2(stdout.fileno(), stream)
                sys.stdout = sys.stderr = open(1, "w", closefd=False)  # noqa: SIM115
                sys.argv = ["selfsame", *command[3:]]
                cli.main()
                code = 0
            except SystemExit as end:
                code = end.code or 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                os._exit(code)

    def poll(self, options=os.WNOHANG):
        if self.returncode is None:
            gone, status = os.waitpid(self.pid, options)
            self.returncode = os.waitstatus_to_exitcode(status) if gone else None
        return self.returncode

    def wait(self):
        return self.poll(0)

    def terminate(self):
        if self.poll() is None:
            os.kill(self.pid, signal.SIGTERM)


@pytest.fixture
def forked(monkeypatch):
    """Runs at a time are processes forked from this one, with its quick pictures; runs/test_parallel.py has the real
    ones. A process that has been on a GPU cannot be forked: there they are real here too."""
    if not torch.cuda.is_available():
        ways = {"DEVNULL": subprocess.DEVNULL, "STDOUT": subprocess.STDOUT}
        monkeypatch.setattr(parallel, "subprocess", SimpleNamespace(Popen=Forked, **ways))
