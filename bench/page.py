"""How long the page takes to the first verdict: python bench/page.py FOLDER [--repeats 3] [--packages build/web].

FOLDER is what `selfsame export RUN --web FOLDER` wrote for a run on the digits. Serves it on this machine and plays it
in headless Chromium, each time with a new profile: first visit, a later visit (from the service worker), one digit
enrolled with 20 picture files, unlocked with its passphrase, one more file verified, then 20 more. Prints the least
seconds of each, the size of the folder, and the load of the machine before and after. Needs Node and the npm packages
of `make web-test`.
"""

from __future__ import annotations

import argparse
import functools
import http.server
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

DRIVER = ROOT / "tests" / "export" / "web" / "drive.mjs"
ROWS = {
    "ready": "first visit until the page is ready (files loaded and checked, session made)",
    "again": "a later visit, from the service worker",
    "unlocked": "unlocking with a passphrase: 1,000,000 rounds of PBKDF2",
    "first": "first verification after that, picture file to verdict",
    "more": "20 more picture files",
}


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves without a log."""

    def log_message(self, *args: Any) -> None:
        """Nothing."""


def write_digits(folder: Path) -> dict[str, Path]:
    """Pictures of one digit: to enrol, one to verify, and more."""
    from selfsame.data import load

    test = load("digits", turns=1).test
    found = {}
    own = test.x[test.y == 0]
    for name, first, last in (("enrol", 0, 20), ("first", 20, 21), ("more", 21, 41)):
        found[name] = folder / name
        found[name].mkdir()
        for number in range(first, last):
            Image.fromarray(own[number, 0].numpy()).save(found[name] / f"{number}.png")
    return found


def play(url: str, files: dict[str, Path], packages: Path, profile: Path) -> dict[str, float]:
    """The seconds of one visit."""
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    asked = {"scenario": "times", "url": url, "chromium": chromium, "packages": str(packages.absolute())}
    asked |= {"profile": str(profile), **{name: str(folder) for name, folder in files.items()}}
    done = subprocess.run(["node", str(DRIVER), json.dumps(asked)], capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    seen = json.loads(done.stdout)
    return {name: seen[name] for name in ROWS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="what `selfsame export RUN --web FOLDER` wrote")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--packages", type=Path, default=ROOT / "build" / "web", help="where node_modules lies")
    options = parser.parse_args()
    handler = functools.partial(Quiet, directory=str(options.folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url, before, seen = f"http://localhost:{server.server_port}/", os.getloadavg()[0], []
    with tempfile.TemporaryDirectory() as place:
        files = write_digits(Path(place))
        for number in range(options.repeats):
            seen.append(play(url, files, options.packages, Path(place) / f"profile-{number}"))
    print(f"{platform.machine()}, {os.cpu_count()} cores, load {before:.1f} before, {os.getloadavg()[0]:.1f} after")
    print(f"{sum(file.stat().st_size for file in options.folder.iterdir()):,} bytes in {options.folder.name}")
    print(f"\n| least of {options.repeats} | s |\n|---|---|")
    for name, words in ROWS.items():
        print(f"| {words} | {min(one[name] for one in seen):.2f} |")


if __name__ == "__main__":
    main()
