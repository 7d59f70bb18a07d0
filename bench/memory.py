"""Memory against the number of images: python bench/memory.py [--images 20000,40000].

Makes trees of small JPEGs in VGGFace2's layout, then in a process of its own for each case decodes them into the cache,
loads them again, trains rounds and evaluates. Prints one table of peaks, sampled every 5 ms from /proc: anonymous
memory, which a program must have, and file-backed memory, pages of the mapped cache that the system may drop. "mapped"
reads rows from the map as they are used, "held" keeps them all, for comparison. Linux only.
"""

from __future__ import annotations

import argparse
import io
import json
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

_EACH = 50  # images per person
_SIDE = 96  # pixels of the JPEGs, decoded to 64


def make_tree(root: Path, images: int) -> None:
    """As many JPEGs, a tenth of the people in test/."""
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(0)
    bodies = []
    for _ in range(200):
        out = io.BytesIO()
        small = Image.fromarray(rng.integers(0, 256, (12, 12, 3)).astype(np.uint8))
        small.resize((_SIDE, _SIDE)).save(out, "JPEG", quality=85)
        bodies.append(out.getvalue())
    people = images // _EACH
    for person in range(people):
        folder = root / ("test" if person < people // 10 else "train") / f"n{person:06d}"
        folder.mkdir(parents=True)
        for number in range(_EACH):
            (folder / f"{number:04d}_01.jpg").write_bytes(bodies[(7 * person + number) % len(bodies)])


class Watch:
    """The most anonymous and file-backed memory of this process, in MiB, since the last look."""

    def __init__(self) -> None:
        self.peak = {"RssAnon": 0.0, "RssFile": 0.0}
        threading.Thread(target=self._sample, daemon=True).start()

    def _sample(self) -> None:
        while True:
            for line in Path("/proc/self/status").read_text().splitlines():
                key, _, value = line.partition(":")
                if key in self.peak:
                    self.peak[key] = max(self.peak[key], int(value.split()[0]) / 1024)
            time.sleep(0.005)

    def look(self) -> list[float]:
        time.sleep(0.02)
        found, self.peak = self.peak, dict.fromkeys(self.peak, 0.0)
        return list(found.values())


def measure(root: Path, hold: bool, rounds: int) -> dict[str, list[float]]:
    """Peaks before, while loading, in training and in evaluation, each with its seconds."""
    import torch

    from selfsame.config.recipe import from_mapping
    from selfsame.data import load
    from selfsame.engine.plan import make_plan
    from selfsame.engine.rounds import Engine
    from selfsame.runs.run import start

    torch.set_num_threads(1)
    watch = Watch()
    out = {"import": [*watch.look(), 0.0]}

    def timed(name: str, work: Callable[[], Any]) -> Any:
        begun = time.perf_counter()
        result = work()
        seconds = time.perf_counter() - begun
        out[name] = [*watch.look(), seconds]
        return result

    federation = timed("load", lambda: load("vggface2", root, hold_gib=1000.0 if hold else 0.0, trials=2000))
    tables = {
        "method": {"name": "fedhide"},
        "data": {"name": "vggface2"},
        "net": {"name": "lenet", "width": 32},
        "run": {"rounds": 1000, "device": "cpu"},
        "cohort": {"size": 8},
        "local": {"batch": 16},
    }
    run = start(from_mapping(tables), None, federation)
    engine = Engine(run.problem)
    watch.look()
    timed("rounds", lambda: engine.run(run.state, make_plan(run.recipe, 0, rounds, run.state.present)))
    timed("evaluate", run.evaluate)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", default="20000,40000")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--case", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        kind, root = options.case.split(":", 1)
        print(json.dumps(measure(Path(root), kind == "held", options.rounds)))
        return
    import torch

    from bench.common import header

    print(header(torch.device("cpu")))
    print(f"{_SIDE}x{_SIDE} JPEGs as 64x64, {_EACH} a person; peaks in MiB: anonymous + file-backed; seconds")
    print(f"{'case':22s} {'images':>8s} {'load':>24s} {f'{options.rounds} rounds':>24s} {'evaluation':>24s}")
    for images in map(int, options.images.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            make_tree(Path(folder), images)
            for kind, what in (("mapped", "mapped, first load"), ("mapped", "mapped, again"), ("held", "held, again")):
                command = [sys.executable, __file__, "--case", f"{kind}:{folder}", "--rounds", str(options.rounds)]
                done = subprocess.run(command, check=True, capture_output=True, text=True)
                row = json.loads(done.stdout.splitlines()[-1])
                cells = [
                    f"{a:.0f} + {f:.0f}, {s:.1f} s" for a, f, s in (row[k] for k in ("load", "rounds", "evaluate"))
                ]
                print(f"{what:22s} {images:8,d} {cells[0]:>24s} {cells[1]:>24s} {cells[2]:>24s}", flush=True)


if __name__ == "__main__":
    main()
