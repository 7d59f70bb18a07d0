"""What a run costs beside its rounds: python bench/around.py [--cases digits,mnist] [--rounds 1000] [--repeats 3].

Starts `selfsame train fedhide` as a user would, on the CPU, in a process of its own that writes to a terminal: on the
digits that come with scikit-learn, and on random 28x28 images in MNIST's files (60,000 and 10,000 of them). Each step
is timed without the other steps that it calls, so that the rows of a table add up to the time from the start of the
process to its end. Prints a table per case: seconds (median, half range) and the share of the run. MORE marks a step
beside the rounds with more than 5 %; `import` and Python's own start cost the same however long the run. POSIX only.
"""

from __future__ import annotations

import argparse
import builtins
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

ALLOWED = 0.05  # of a run, for each step beside the rounds
PYTHON, FIRST, ROUNDS, REST = "Python starts and ends", "first round, above a usual one", "rounds", "all the rest"
LIBRARIES = ("torch", "sklearn", "matplotlib")  # whose imports have a row each, with all that they import in turn
IMPORTS = (*(f"import {name}" for name in LIBRARIES), "import all the rest")
STEPS: dict[str, tuple[str, ...]] = {  # the functions of each step, as their callers find them
    "load the data": ("selfsame.engine.setup:load",),
    "build": ("selfsame.runs.run:prepare", "selfsame.runs.run:begin", "selfsame.runs.loop:Engine.__init__"),
    "plan": ("selfsame.runs.loop:make_plan",),
    FIRST: (),
    ROUNDS: ("selfsame.runs.loop:Engine.run",),
    "progress bar": tuple(f"rich.{n}" for n in ("progress:Progress.update", "live:Live.start", "live:Live.refresh")),
    "check that all is finite": ("selfsame.runs.course:Run.sound",),
    "evaluation": ("selfsame.runs.course:Run.evaluate",),
    "audit": ("selfsame.runs.course:Run.audit",),
    "metrics": ("selfsame.runs.course:Run.record",),
    "checkpoints": ("selfsame.engine.checkpoint:save_state",),
    "the network's file": ("selfsame.runs.course:Run.write_model",),
    "collecting what is reported": ("selfsame.runs.summary:view", "selfsame.runs.summary:keep_view"),
    "the table": ("selfsame.report.table:results_table", "rich.console:Console.print"),
    "the report": ("selfsame.report.html:write_report",),
}


class Clock:
    """Seconds by step; where one step runs inside another, only the inner one's seconds count on."""

    def __init__(self, begun: float) -> None:
        self.running = [PYTHON]
        self.seconds = dict.fromkeys((PYTHON, *IMPORTS, *STEPS, REST), 0.0)
        self.beside = 0.0  # processor seconds of the thread that redraws the progress bar
        self.last = begun
        self.thread = threading.get_ident()

    def turn(self) -> float:
        """Charge what has passed to the step that runs; returns the seconds of the rounds so far."""
        now = time.perf_counter()
        self.seconds[self.running[-1]] += now - self.last
        self.last = now
        return self.seconds[ROUNDS]

    def timed(self, step: str, work: Callable[..., Any]) -> Callable[..., Any]:
        """`work` as a part of `step`."""

        def inside(*args: Any, **options: Any) -> Any:
            if threading.get_ident() != self.thread:
                begun = time.thread_time()
                try:
                    return work(*args, **options)
                finally:
                    self.beside += time.thread_time() - begun
            self.turn()
            self.running.append(step)
            try:
                return work(*args, **options)
            finally:
                self.turn()
                self.running.pop()

        return inside

    def importing(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        """The import statement, whose time is charged to the library that it brings in."""
        steps = {step: self.timed(step, plain) for step in IMPORTS}

        def load(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
            module = sys.modules.get(name) if level == 0 else None
            loaded = module is not None and all(hasattr(module, word) for word in fromlist or ())
            # What a library imports in turn is its own, and a thread's imports are nobody's.
            if loaded or self.running[-1] in IMPORTS[:-1] or threading.get_ident() != self.thread:
                return plain(name, globals, locals, fromlist, level)
            root = name if level == 0 else str((globals or {}).get("__package__", ""))
            step = f"import {root.partition('.')[0]}"
            return steps[step if step in steps else IMPORTS[-1]](name, globals, locals, fromlist, level)

        return load


def inside(out: Path, begun: float, arguments: list[str]) -> None:
    """Run the command line in this process and write the seconds of every step to `out`."""
    clock = Clock(begun)
    clock.turn()
    clock.running = [REST]
    builtins.__import__ = clock.importing(builtins.__import__)
    for step, places in STEPS.items():
        for place in places:
            module, _, path = place.partition(":")
            __import__(module)
            *owners, name = path.split(".")
            owner: Any = sys.modules[module]
            for part in owners:
                owner = getattr(owner, part)
            setattr(owner, name, clock.timed(step, getattr(owner, name)))

    cohort: Any = sys.modules["selfsame.engine.cohort"]
    plain, rounds = cohort.run_round, []

    def run_round(*args: Any, **options: Any) -> Any:
        before = clock.turn()
        loss = plain(*args, **options)
        rounds.append(clock.turn() - before)
        return loss

    cohort.run_round = run_round
    sys.argv = ["selfsame", *arguments]
    from selfsame.cli import main as selfsame

    try:
        selfsame()
    except SystemExit as end:
        if end.code:
            raise
    clock.turn()
    clock.seconds[FIRST] = max(0.0, rounds[0] - statistics.median(rounds))
    clock.seconds[ROUNDS] -= clock.seconds[FIRST]
    told = {"steps": clock.seconds, "beside": clock.beside, "rounds": len(rounds), "end": clock.last}
    out.write_text(json.dumps(told), encoding="utf-8")


def once(arguments: list[str], folder: Path) -> dict[str, Any]:
    """One run from start to end: its seconds by step."""
    out = folder / "seconds.json"
    ours, theirs = os.openpty()
    begun = time.perf_counter()
    command = [sys.executable, __file__, "--inside", str(out), repr(begun), *arguments]
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100"}
    process = subprocess.Popen(command, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    shown = b""
    try:
        while part := os.read(ours, 65536):
            shown = (shown + part)[-10000:]
    except OSError:  # on Linux, how reading a terminal ends that nobody writes to any more
        pass
    os.close(ours)
    if process.wait():
        sys.exit(f"{' '.join(arguments)}: ended with {process.returncode}\n{shown.decode(errors='replace')}")
    end = time.perf_counter()
    told: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    told["steps"][PYTHON] += end - told["end"]
    told["total"] = end - begun
    return told


def random_mnist(folder: Path) -> None:
    """MNIST's four files with random pixels and labels."""
    import numpy as np

    draw = np.random.default_rng(0)
    for part, number in (("train", 60000), ("t10k", 10000)):
        for kind, values in (
            ("images-idx3", draw.integers(0, 256, (number, 28, 28), dtype=np.uint8)),
            ("labels-idx1", draw.integers(0, 10, number, dtype=np.uint8)),
        ):
            sizes = b"".join(size.to_bytes(4, "big") for size in values.shape)
            head = bytes([0, 0, 8, values.ndim]) + sizes
            (folder / f"{part}-{kind}-ubyte").write_bytes(head + values.tobytes())


def table(name: str, runs: list[dict[str, Any]]) -> None:
    """The steps in the order in which a run comes to them."""
    total = statistics.median(run["total"] for run in runs)
    each = statistics.median(1000 * run["steps"][ROUNDS] / run["rounds"] for run in runs)
    beside = statistics.median(run["beside"] for run in runs)
    print(f"\n{name}: {total:.2f} s, {each:.2f} ms per round")
    print(f"{'step':32s} {'seconds':>9s} {'+-':>7s} {'share':>7s}")
    for step in runs[0]["steps"]:
        times = [run["steps"][step] for run in runs]
        share = statistics.median(run["steps"][step] / run["total"] for run in runs)
        mark = "  MORE" if share > ALLOWED and step not in (ROUNDS, PYTHON, *IMPORTS) else ""
        spread = (max(times) - min(times)) / 2
        print(f"{step:32s} {statistics.median(times):9.3f} {spread:7.3f} {100 * share:6.1f}%{mark}", flush=True)
    print(f"(the progress bar's own thread: {beside:.2f} s of processor time, beside the rounds)", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default="digits,mnist", help="digits, mnist or both")
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--inside", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        out, begun, *arguments = options.inside
        inside(Path(out), float(begun), arguments)
        return
    import torch

    from bench.common import header

    print(header(torch.device("cpu")))
    print(f"selfsame train fedhide, {options.rounds} rounds, {options.repeats} runs")
    for case in [name for name in ("digits", "mnist") if name in options.cases.split(",")]:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            where = []
            if case == "mnist":
                random_mnist(folder)
                where = ["--path", place]
            common = ["train", "fedhide", "--data", case, *where, "--rounds", str(options.rounds), "--device", "cpu"]
            runs = [once([*common, "--out", str(folder / f"run-{n}")], folder) for n in range(options.repeats)]
        table(case, runs)


if __name__ == "__main__":
    main()
