"""What verifying takes on a device: python bench/latency.py MODEL.onnx FOLDER [--repeats 7].

FOLDER holds samples of one person. Prints one table: the whole command, in a process of its own; `Verifier.verify`,
which derives the key each time; an unlocked enrolment; a thousand attempts with it; the memory of a process that does
all this; and the size of selfsame and of all packages that `pip install selfsame` brings, as installed here.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from selfsame.device.rules import Rule  # noqa: E402
from selfsame.device.samples import read_samples  # noqa: E402
from selfsame.device.vault import Vault  # noqa: E402
from selfsame.device.verifier import Verifier  # noqa: E402
from selfsame.export.opened import open_model  # noqa: E402

PASSPHRASE = "a passphrase to measure with"
MANY = 1000


def timed(action, repeats: int) -> list[float]:
    took = []
    for _ in range(repeats):
        begun = time.perf_counter()
        action()
        took.append(time.perf_counter() - begun)
    return took


def shown(took: list[float], times: int = 1) -> str:
    values = [1e3 * value / times for value in (statistics.median(took), min(took), max(took))]
    return "{:.2f} [{:.2f}, {:.2f}]".format(*values)


def needed() -> dict[str, int]:
    """Bytes of selfsame and of all packages that it needs, without extras."""
    found: dict[str, int] = {}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    todo = [_name(line) for line in project["dependencies"]]
    while todo:
        one = re.sub(r"[-_.]+", "-", todo.pop()).lower()
        if one in found:
            continue
        try:
            package = distribution(one)
        except PackageNotFoundError:
            continue
        files = [Path(str(package.locate_file(file))) for file in package.files or []]
        found[one] = sum(file.stat().st_size for file in files if file.is_file() and file.suffix != ".pyc")
        for line in package.requires or []:
            if "extra ==" not in line:
                todo.append(_name(line))
    source = ROOT / "selfsame"
    found["selfsame"] = sum(
        file.stat().st_size for file in source.rglob("*") if file.suffix != ".pyc" and file.is_file()
    )
    return found


def _name(line: str) -> str:
    return re.split(r"[\s;<>=!~\[(]", line, maxsplit=1)[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    table = Table(box=box.MARKDOWN)
    for name in ("what", "median, least and most"):
        table.add_column(name, no_wrap=True)
    with tempfile.TemporaryDirectory() as place:
        store = Path(place) / "store"
        model = open_model(options.model)
        verifier = Verifier(model, Vault(store, lambda: PASSPHRASE))
        samples = read_samples([options.folder], model.card)
        verifier.enrol("owner", samples, Rule("tpr", 1.0), most_fpr=1.0, mixed=True)
        file = sorted(path for path in options.folder.iterdir() if not path.name.startswith("."))[-1]
        words = ["verify", options.model, "owner", file, "--store", store]
        command = [sys.executable, "-m", "selfsame", *map(str, words)]
        settings = {**os.environ, "SELFSAME_PASSPHRASE": PASSPHRASE, "PYTHONPATH": str(ROOT)}

        def whole() -> None:
            subprocess.run(command, env=settings, check=True, capture_output=True)

        table.add_row("`selfsame verify`, whole, ms", shown(timed(whole, options.repeats)))
        table.add_row("opening the model, ms", shown(timed(lambda: open_model(options.model), options.repeats)))
        table.add_row(
            "`Verifier.verify`, ms", shown(timed(lambda: verifier.verify("owner", samples[0]), options.repeats))
        )
        opened = verifier.unlock("owner")
        table.add_row("unlocked, one, ms", shown(timed(lambda: opened.verify(samples[0]), 50 * options.repeats)))
        many = [samples[number % len(samples)] for number in range(MANY)]
        each = timed(lambda: opened.verify_each(many), options.repeats)
        table.add_row(f"unlocked, {MANY:,} at once, ms each", shown(each, MANY))
    table.add_row("memory at its highest, MB", f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3:.0f}")
    sizes = needed()
    largest = sorted(sizes, key=lambda name: -sizes[name])[:5]
    table.add_row("installed, MB", f"{sum(sizes.values()) / 1e6:.0f} in {len(sizes)} packages")
    table.add_row("the largest of them, MB", ", ".join(f"{name} {sizes[name] / 1e6:.1f}" for name in largest))
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
