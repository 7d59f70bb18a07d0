"""What all tests share: one thread, the same numbers and cases in every run, and where kernels can run."""

from __future__ import annotations

import functools
import os
import shutil
import signal
import subprocess
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import typer.main
from hypothesis import HealthCheck, settings

# The tests are many and small, and the machine is shared. Processes that tests start have one thread too: sums over
# other numbers of threads round differently.
torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"

# `make test` draws the same cases everywhere and times nothing; `make fuzz` draws new ones.
_UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("suite", _UNTIMED, derandomize=True, database=None, max_examples=50)
settings.register_profile("fuzz", _UNTIMED, print_blob=True)
settings.load_profile(os.environ.get("SELFSAME_CASES", "suite"))


if not torch.cuda.is_available():  # read where a kernel is defined, Triton's own among them: before its first import
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture(autouse=True)
def same_numbers():
    """A test draws the same numbers in every run, whichever tests its process ran before."""
    torch.manual_seed(0)


@pytest.fixture(scope="module", autouse=True)
def quick_pictures(request):
    """Reports of runs and pages of papers have figures without marks, and principal components in place of t-SNE:
    drawing takes longer than a short run. The tests of reports, the manual's commands and processes that tests start
    draw everything."""
    drawn = request.path.parent.name in ("report", "pages") or request.path.name == "test_assess.py"
    with pytest.MonkeyPatch.context() as patch:
        if not drawn:
            patch.setattr("selfsame.report.figures._tsne", lambda _, begin, _metric: begin)
            patch.setattr("selfsame.report.page.svg", lambda figure, name, what: f'<svg id="{name}" role="img"></svg>')
            patch.setattr("selfsame.report.exhibit_page.exhibit_svg", _unmarked)
        yield


def _unmarked(drawing):
    """A page's figure is made, and named by its numbers, but not written out."""
    from selfsame.report import exhibit_figures

    exhibit_figures.draw_exhibit(drawing)
    return f"<svg><!-- {exhibit_figures.digest(drawing)} --></svg>".encode()


@pytest.fixture(scope="session", autouse=True)
def commands_once():
    """Typer makes all commands anew at every call in a process, longer than most calls take: here it does once."""
    made = functools.cache(typer.main.get_command)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("typer.main.get_command", made)
        patch.setattr("typer.testing._get_command", made)
        yield


@pytest.fixture(scope="session")
def operators_once():
    """PyTorch's exporter writes its table of operators once for all networks, not anew for each: half of a small one's
    time."""
    with pytest.MonkeyPatch.context() as patch:
        with suppress(ImportError):  # where PyTorch keeps it elsewhere, exports are as slow as ever
            from torch.onnx._internal.exporter._registration import ONNXRegistry

            patch.setattr(ONNXRegistry, "from_torchlib", staticmethod(functools.cache(ONNXRegistry.from_torchlib)))
        yield


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
                from selfsame.cli import main

                main()
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
    """Runs at a time are processes forked from this one, with its quick pictures; runs/test_parallel.py has real ones
    too. A process that has been on a GPU cannot be forked: there they are all real."""
    from selfsame.runs import parallel

    if not torch.cuda.is_available():
        ways = {"DEVNULL": subprocess.DEVNULL, "STDOUT": subprocess.STDOUT}
        monkeypatch.setattr(parallel, "subprocess", SimpleNamespace(Popen=Forked, **ways))


@pytest.fixture(scope="session")
def kernel_device() -> str:
    """Where Triton's kernels run: on CUDA, and without it on the CPU, in Triton's interpreter."""
    if torch.cuda.is_available():
        return "cuda"
    pytest.importorskip("triton", reason="neither CUDA nor Triton is here to run the kernels")
    return "cpu"


@pytest.fixture(scope="session")
def browser():
    """(Node, Chromium, the folder of npm's packages), or the reason why nothing is tried in a browser."""
    packages = Path(os.environ.get("SELFSAME_WEB_PACKAGES", Path(__file__).parents[1])).absolute()
    node = shutil.which("node")
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    for what, found in (("node", node), ("chromium", chromium)):
        if found is None:
            pytest.skip(f"{what} is not installed: pages are not tried in a browser")
    if not (packages / "node_modules" / "playwright-core").is_dir():
        pytest.skip("pages are not tried in a browser: type: npm install playwright-core")
    return node, chromium, packages
