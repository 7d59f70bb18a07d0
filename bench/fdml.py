"""The accuracy of FDML's section VII-C for finished runs, with as many samples and users as their data have.

`selfsame paper fdml` makes whole pages of them; this prints single runs.

selfsame recipe recipes/fdml-touchauth.toml --path DATA --out runs/touch
python bench/fdml.py runs/touch/* --samples 3 2 2 --others 9
"""

from __future__ import annotations

import argparse
from pathlib import Path

from selfsame.measure.protocols import Portions
from selfsame.runs.beyond import DRAWS, drawn_accuracies
from selfsame.runs.run import open_run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="+", type=Path)
    parser.add_argument("--samples", nargs=3, type=int, default=[20, 10, 10], help="for template, threshold and test")
    parser.add_argument("--others", type=int, default=10, help="users each for the threshold and for the test")
    parser.add_argument("--draws", type=int, default=DRAWS)
    given = parser.parse_args()
    portions = Portions(*given.samples, given.others)
    print("| run | rounds | VII-C % | EER seen % | EER new % |\n|---|---:|---:|---:|---:|")
    for folder in given.run:
        if not (folder / "recipe.toml").is_file():
            continue
        run = open_run(folder)
        right, figures = drawn_accuracies(run, portions, given.draws), run.evaluate().figures
        rates = " | ".join(
            "-" if (rate := figures.get(k)) is None else f"{100 * rate:.1f}" for k in ("eer_seen", "eer")
        )
        print(f"| {run.title} | {run.state.round} | {100 * right.mean():.1f} ± {100 * right.std():.1f} | {rates} |")


if __name__ == "__main__":
    main()
