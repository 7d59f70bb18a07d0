"""A plan of long commands, several at a time, within a time limit: python bench/lanes.py PLAN.toml [options].

A plan is a list of stages that follow each other:

    [[stage]]
    name = "faces"
    lanes = 4                     # commands at a time
    share = true                  # every lane runs every command, and they share the runs (`selfsame/runs/sharing.py`);
                                  # otherwise each command is run once, by the next free lane
    threads = 1                   # of each command; by default the machine's cores in equal parts
    seconds = 600                 # at most; a run that is going then ends by itself
    copy = { "bench/kept/joint-lfw.jsonl" = "{out}/faces.jsonl" }    # files to begin with, where they are not there yet
    commands = ["bench/joint.py measure {out}/faces.jsonl --data lfw --path {data}"]

A command is a script of this repo with its options, or `selfsame`. {out}, {data} and each NAME of --set are filled in.
When the time is up no command is begun, and SELFSAME_BENCH_UNTIL tells scripts to begin no run. Who is at work --grace
seconds later gets SIGTERM, by which `selfsame` writes a checkpoint; nobody is killed.

OUT/logs/STAGE-LANE.log has what a lane says, OUT/state.json what ended with which exit code. A second call goes on:
what ended well in a stage without `share` is not repeated, unless it ended because the time was up.

    python bench/lanes.py bench/plans/gpu.toml --data DATA --out OUT --seconds 1500

On a machine that may be taken away, --pack FILE.tgz keeps a copy of OUT: every --every seconds, and at the end, FILE is
replaced by one with all files of OUT but weights, checkpoints and what is larger than 3 MB. Where it is unpacked as an
OUT, runs that had ended count as ended.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import tomllib
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from selfsame.errors import SelfsameError  # noqa: E402
from selfsame.fields import at_least, nearest, read_fields, typed  # noqa: E402
from selfsame.files import read_json, read_text, write_json  # noqa: E402
from selfsame.runs.sharing import UNTIL  # noqa: E402

_LOOK = 0.05  # seconds between two looks at the lanes
_LARGE = 3_000_000  # bytes of a file that is not packed
_HEAVY = (".safetensors", ".tmp", ".lock")  # files that are not packed, nor is a folder named checkpoint


@dataclass(frozen=True)
class Stage:
    """Commands that run beside each other."""

    name: str
    lanes: int
    commands: tuple[str, ...]
    share: bool = False
    seconds: float | None = None
    threads: int = 0  # of each command; 0: the cores in equal parts
    copy: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Ended:
    """A command that a lane ran; `late`: it ended when the time was up, perhaps with runs left."""

    stage: str
    lane: int
    command: str
    exit: int
    seconds: float
    late: bool


@dataclass
class Lane:
    """One command at a time, of those in its queue, which lanes that do not share the runs have in common."""

    number: int
    queue: deque[str]
    command: str = ""
    begun: float = 0.0
    process: subprocess.Popen[bytes] | None = None


def read_plan(path: Path, names: Mapping[str, str], own: Mapping[str, str]) -> list[Stage]:
    """The stages of a plan, each command known to be one; of its names the user's `own` are filled in."""
    own = {**{name: f"{{{name}}}" for name in names}, **{name: shlex.quote(value) for name, value in own.items()}}
    try:
        tables = tomllib.loads(read_text(path))
    except tomllib.TOMLDecodeError as error:
        raise SelfsameError(f"{path}: not TOML ({error})") from None
    if set(tables) != {"stage"} or not isinstance(tables["stage"], list):
        raise SelfsameError(f"{path}: expected a list of stages, [[stage]], and nothing else")
    stages: list[Stage] = []
    for place, table in enumerate(tables["stage"]):
        where = f"stage {place + 1}"
        stage = read_fields(where, table, Stage)
        if not re.fullmatch(r"[\w-]+", stage.name) or stage.name in [other.name for other in stages]:
            raise SelfsameError(f"{where}.name: expected a word that no other stage has, got {stage.name!r}")
        at_least(f"{where}.lanes", stage.lanes, 1)
        at_least(f"{where}.threads", stage.threads, 0)
        at_least(f"{where}.seconds", 1 if stage.seconds is None else stage.seconds, 0, strict=True)
        stages.append(replace(stage, commands=tuple(filled(command, own) for command in stage.commands)))
        for command in stages[-1].commands:
            words(command, names)
        for source, target in stage.copy.items():
            if filled(target, names) and not (ROOT / filled(source, names)).is_file():
                raise SelfsameError(f"{where}.copy: {source}: no such file")
    return stages


def filled(text: str, names: Mapping[str, str]) -> str:
    """The text with a value in place of each {NAME}."""
    missing = [name for name in re.findall(r"\{(\w+)\}", text) if name not in names]
    if missing:
        raise SelfsameError(f"{{{missing[0]}}} has no value: give --set {missing[0]}=VALUE; it stands in: {text}")
    return re.sub(r"\{(\w+)\}", lambda found: names[found[1]], text)


def words(command: str, names: Mapping[str, str]) -> list[str]:
    """What is started for a command."""
    try:
        first, *rest = shlex.split(command) or [""]
    except ValueError as error:
        raise SelfsameError(f"{command}: {error}") from None
    rest = [filled(word, names) for word in rest]
    if first == "selfsame":
        return [sys.executable, "-m", "selfsame", *rest]
    if not (first.endswith(".py") and (ROOT / first).is_file()):
        raise SelfsameError(f"{command}: expected `selfsame` or a script of this repo, such as bench/joint.py")
    return [sys.executable, str(ROOT / first), *rest]


def pack(out: Path, file: Path) -> None:
    """The light files of a folder as one, which replaces what lay there at once."""
    beside = file.with_name(f"{file.name}.tmp")
    with tarfile.open(beside, "w:gz") as packed:
        for place in sorted(out.rglob("*")):
            name = place.relative_to(out)
            if place.is_symlink() or "checkpoint" in name.parts or place.suffix in _HEAVY:
                continue
            try:
                if not place.is_file() or place.stat().st_size > _LARGE:
                    continue
                content, at = place.read_bytes(), place.stat().st_mtime
            except OSError:  # a run has replaced it
                continue
            entry = tarfile.TarInfo(str(name))
            entry.size, entry.mtime = len(content), int(at)
            packed.addfile(entry, io.BytesIO(content))
    beside.replace(file)


class Driver:
    """Runs stages, and keeps what ended; `packed` is written every so many seconds."""

    def __init__(
        self,
        out: Path,
        names: Mapping[str, str],
        until: float,
        grace: float,
        packed: Path | None = None,
        every: float = 60.0,
    ) -> None:
        self.out, self.names, self.until, self.grace = out, names, until, grace
        self.packed, self.every, self.next = packed, every, time.time() + every
        self.file = out / "state.json"
        known = read_json(self.file) if self.file.is_file() else []
        self.before = list(typed(str(self.file), known, tuple[Ended, ...]))
        self.ended: list[Ended] = []
        (out / "logs").mkdir(parents=True, exist_ok=True)

    def run(self, stage: Stage) -> None:
        """One stage to its end."""
        until = min(self.until, time.time() + (stage.seconds or float("inf")))
        for source, target in stage.copy.items():
            begin, there = ROOT / filled(source, self.names), Path(filled(target, self.names))
            if not there.exists():
                shutil.copyfile(begin, there)
        well = {e.command for e in self.before if e.stage == stage.name and e.exit == 0 and not e.late}
        queue = deque(one for one in stage.commands if stage.share or one not in well)
        lanes = [Lane(number, queue.copy() if stage.share else queue) for number in range(stage.lanes)]
        told = False
        try:
            while sum(self._step(stage, lane, until) for lane in lanes):
                if not told and time.time() > until + self.grace:
                    told = True
                    terminate(lanes)
                if self.packed is not None and time.time() >= self.next:
                    pack(self.out, self.packed)
                    self.next = time.time() + self.every
                time.sleep(_LOOK)
            if left := dict.fromkeys(command for lane in lanes for command in lane.queue):
                print(f"{stage.name}: the time is up, commands not begun: {len(left)}")
        except BaseException:  # Ctrl-C, or SIGTERM to this process
            terminate(lanes)
            while sum(self._step(stage, lane, 0.0) for lane in lanes):
                time.sleep(_LOOK)
            raise

    def _step(self, stage: Stage, lane: Lane, until: float) -> bool:
        """Look at a lane, and let it begin its next command; gives whether it is at work."""
        if lane.process is not None and (code := lane.process.poll()) is not None:
            spent, lane.process = round(time.time() - lane.begun, 1), None
            late = time.time() >= until
            self.ended.append(Ended(stage.name, lane.number, lane.command, code, spent, late))
            write_json(self.file, [asdict(one) for one in (*self.before, *self.ended)])
        if lane.process is None and lane.queue and time.time() < until:
            lane.command, lane.begun = lane.queue.popleft(), time.time()
            threads = str(stage.threads or max(1, (os.cpu_count() or 1) // stage.lanes))
            path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
            given = {**os.environ, "OMP_NUM_THREADS": threads, "PYTHONPATH": path}
            given |= {UNTIL: repr(until)} if until < float("inf") else {}
            with self.log(stage.name, lane.number).open("ab") as log:
                log.write(f"$ {lane.command}\n".encode())
                log.flush()
                started = words(lane.command, self.names)
                lane.process = subprocess.Popen(started, cwd=ROOT, env=given, stdout=log, stderr=log)
        return lane.process is not None

    def log(self, stage: str, lane: int) -> Path:
        return self.out / "logs" / f"{stage}-{lane}.log"

    def table(self) -> None:
        """What ended in this call, and the last line of whoever failed."""
        print(f"{'stage':<14} {'exit':>4} {'seconds':>8}  command")
        for one in self.ended:
            print(f"{one.stage:<14} {one.exit:>4} {one.seconds:>8.1f}  {one.command}")
        for stage, lane in dict.fromkeys((one.stage, one.lane) for one in self.ended if one.exit):
            log = self.log(stage, lane)
            said = log.read_text(encoding="utf-8", errors="replace").split("\n")
            print(f"{log}: {next((line for line in reversed(said) if line.strip()), '')}")


def terminate(lanes: list[Lane]) -> None:
    for lane in lanes:
        if lane.process is not None:
            lane.process.terminate()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/lanes"), help="folder of results, logs and state.json")
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder of the data sets")
    parser.add_argument("--seconds", type=float, help="for all stages")
    parser.add_argument("--grace", type=float, default=120.0, help="seconds that runs have to end by themselves")
    parser.add_argument("--only", action="append", default=[], metavar="STAGE")
    parser.add_argument("--pack", type=Path, metavar="FILE.tgz", help="where to keep a copy of OUT's light files")
    parser.add_argument("--every", type=float, default=60.0, help="seconds between two copies")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a value for {NAME}")
    args = parser.parse_args()
    until = min(float(os.environ.get(UNTIL) or "inf"), time.time() + (args.seconds or float("inf")))
    try:
        names = {"data": str(args.data.absolute()), "out": str(args.out.absolute())}
        own = dict(one.partition("=")[::2] for one in args.set)
        names |= own
        stages = read_plan(args.plan, names, own)
        for word in args.only:
            if word not in [stage.name for stage in stages]:
                raise SelfsameError(f"--only {word}: no such stage{nearest(word, [stage.name for stage in stages])}")
        if args.pack is not None and not args.pack.absolute().parent.is_dir():
            raise SelfsameError(f"--pack {args.pack}: no such folder as {args.pack.parent}")
        at_least("--every", args.every, 0, strict=True)
        driver = Driver(args.out.absolute(), names, until, args.grace, args.pack, args.every)
    except SelfsameError as error:
        print(f"lanes: {error}", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        for stage in stages:
            if not args.only or stage.name in args.only:
                driver.run(stage)
    except KeyboardInterrupt:
        print("lanes: stopped", file=sys.stderr)
        return 1
    finally:
        if args.pack is not None:
            pack(driver.out, args.pack)
        driver.table()
    return int(any(one.exit for one in driver.ended))


if __name__ == "__main__":
    sys.exit(main())
