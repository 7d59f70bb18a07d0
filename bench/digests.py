"""Whether a change of the code changed a result: every method trained 20 rounds on digits, and a digest of what it has.

Reference engine, float64, one process per method, through the command line alone, so that the script outlives the
modules behind it. Digests hold for one machine: another processor rounds otherwise.

    python bench/digests.py > before.txt      (on the old tree)
    python bench/digests.py | diff before.txt -
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from safetensors import safe_open

METHODS = (
    "positive-only", "fixed", "softmax", "deepsvdd", "fedaws", "feduv", "feduv-negative", "fedmetric", "fedmetric-pos",
    "fedmetric-true", "fedhide", "fedgn", "fedcs", "fdml", "fl-traditional",
)  # fmt: skip
SEEDED = ("feduv", "feduv-negative")  # whose secrets otherwise come from the system
ROUNDS = 20
UNTIMED = ("seconds",)  # of a record


def digest(*parts: bytes) -> str:
    """Sixteen hexadecimal digits."""
    found = hashlib.sha256()
    for part in parts:
        found.update(part)
    return found.hexdigest()[:16]


def train(method: str, folder: Path, settings: list[str]) -> None:
    """One run in its own process."""
    command = [sys.executable, "-m", "selfsame", "train", method, "--data", "digits", "--rounds", str(ROUNDS)]
    command += ["--engine", "reference", "--precision", "float64", "--out", str(folder), "--quiet"]
    seeded = ["secrets=seeded"] if method in SEEDED else []
    for setting in ("run.eval_every=10", *seeded, *settings):
        command += ["--set", setting]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"})


def digests(folder: Path) -> tuple[str, str, str]:
    """Of the network, the private fields and the server's tables, and the metrics."""
    with safe_open(folder / "checkpoint" / "state.safetensors", framework="np") as file:
        tensors = {name: file.get_tensor(name).tobytes() for name in sorted(file.keys())}
    network = digest(tensors["theta"], tensors.get("alone", b""))
    fields = digest(*(name.encode() + value for name, value in tensors.items() if name not in ("theta", "alone")))
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    plain = [{key: value for key, value in record.items() if key not in UNTIMED} for record in records]
    return network, fields, digest(json.dumps(plain, sort_keys=True).encode())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("methods", nargs="*", default=METHODS)
    parser.add_argument("--set", dest="settings", action="append", default=[])
    options = parser.parse_args()
    print(f"{'method':16} {'network':18} {'fields':18} metrics")
    for method in options.methods:
        with tempfile.TemporaryDirectory() as folder:
            run = Path(folder) / "run"
            train(method, run, options.settings)
            print(f"{method:16} " + " ".join(f"{found:18}" for found in digests(run)).rstrip(), flush=True)


if __name__ == "__main__":
    main()
