"""Instructions of a round on aarch64, without such a machine: python bench/instructions/run.py --python PYTHON.

The rounds of bench/peers.py run in an aarch64 Python under QEMU's user emulation, whose plugin (count.c) counts what is
executed between two rounds; start, compilation and warm-up are left out. Instructions are no seconds: caches, latency
and how many instructions a processor takes at a time are not in them. The compiled passes' C compiler is that of CC.

PYTHON runs on this machine by emulation and finds its packages by the environment that it is given: PyTorch, NumPy and
the project's others; pfl's in --pfl. One thread each.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import runpy
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PEERS = ROOT / "bench" / "peers"
BUILD = ROOT / "build" / "instructions"
MARK = 7_700_000  # count.c
DRIVERS = ("selfsame", "module", "plain", "pfl")
WARM_UP, ROUNDS = 1, 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True, help="of an aarch64 system")
    parser.add_argument("--qemu", default="qemu-aarch64")
    parser.add_argument("--plugin", type=Path, default=HERE / "count.so", help="count.c, compiled")
    parser.add_argument("--cpu", default="neoverse-n1")
    parser.add_argument("--pfl", default="", help="folder of pfl's packages")
    parser.add_argument("--cases", default="10x1,10x5,64x1", help="clients x steps")
    parser.add_argument("--only", default=",".join(DRIVERS))
    args = parser.parse_args()
    print("| clients x steps | | all | multiply-adds of vectors | loads and stores | all, times selfsame |")
    print("|---|---|---:|---:|---:|---:|", flush=True)
    for case in args.cases.split(","):
        folder, ours = written(case), None
        for driver in args.only.split(","):
            found = counted(args, driver, folder)
            ours = found[0] if driver == "selfsame" else ours
            times = f"{found[0] / ours:.2f}" if ours else "–"
            print(f"| {case} | {driver} | {' | '.join(f'{value:.0f}' for value in found)} | {times} |", flush=True)


def written(name: str) -> Path:
    """The folder of a case that the drivers read."""
    sys.path[:0] = [str(ROOT), str(PEERS)]
    import case

    case.CHECK = WARM_UP
    cohort, steps = map(int, name.split("x"))
    folder = BUILD / name
    case.write(case.Shape("positive-only", cohort, steps, 28, 1, ROUNDS), folder)
    return folder


def counted(args: argparse.Namespace, driver: str, folder: Path) -> list[float]:
    """Millions of instructions of a round, by kind: from the first mark after the warm-up to the last."""
    out = folder / f"{driver}.tsv"
    out.unlink(missing_ok=True)
    more = {
        "PYTHONPATH": os.pathsep.join(filter(None, (args.pfl * (driver == "pfl"), os.environ.get("PYTHONPATH", ""))))
    }
    plugin = f"{args.plugin},out={out}"
    command = [args.qemu, "-cpu", args.cpu, "-plugin", plugin, args.python, __file__, driver, str(folder)]
    told = {**os.environ, **more, "OMP_NUM_THREADS": "1", "SELFSAME_COUNTED": "1"}
    subprocess.run(command, env=told, check=True, stdout=subprocess.DEVNULL)
    marks = [[int(value) for value in line.split("\t")] for line in out.read_text(encoding="utf-8").splitlines()]
    (_, *first), (_, *last) = marks[0], marks[-1]
    return [(b - a) / (len(marks) - 1) / 1e6 for a, b in zip(first, last, strict=True)]


def inside(driver: str, folder: str) -> None:
    """In the emulation: a driver, with a mark wherever its clock is stopped."""
    sys.path[:0] = [str(ROOT), str(PEERS)]
    import work

    plain = work.Clock.tick

    def tick(self, *given):
        before = len(self.stamps)
        plain(self, *given)
        if len(self.stamps) > before:
            with contextlib.suppress(ProcessLookupError):
                os.getpgid(MARK + len(self.stamps))

    work.Clock.tick = tick
    sys.argv = [driver, folder, f"{folder}/{driver}.json", "--threads", "1", "--workers", "1"]
    runpy.run_path(str(PEERS / f"drive_{driver}.py"), run_name="__main__")


if __name__ == "__main__":
    if os.environ.get("SELFSAME_COUNTED"):
        inside(*sys.argv[1:])
    else:
        main()
