"""The accuracy of FDML's section VII-C for finished runs, with as many samples and users as their data have.

selfsame recipe recipes/fdml-touchauth.toml --path DATA --out runs/touch
python bench/fdml.py runs/touch/* --samples 3 2 2 --others 9
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch

from selfsame.measure.protocols import Portions, portioned_accuracy
from selfsame.runs.run import Run, open_run
from selfsame.streams import host_generator


def accuracies(run: Run, portions: Portions, draws: int) -> np.ndarray:
    """The mean over unseen users, for each draw of their samples and of the users they are set against."""
    unseen = run.problem.federation.unseen
    emb_SD = torch.cat([run.embed(part) for part in unseen.x.split(256)])
    person_S = unseen.y.cpu().numpy()
    found = [
        portioned_accuracy(run.problem.method, emb_SD, person_S, host_generator(0, "VII-C", draw), portions).mean()
        for draw in range(draws)
    ]
    return np.array(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="+", type=Path)
    parser.add_argument("--samples", nargs=3, type=int, default=[20, 10, 10], help="for template, threshold and test")
    parser.add_argument("--others", type=int, default=10, help="users each for the threshold and for the test")
    parser.add_argument("--draws", type=int, default=20)
    given = parser.parse_args()
    portions = Portions(*given.samples, given.others)
    print("| run | rounds | VII-C % | EER seen % | EER new % |\n|---|---:|---:|---:|---:|")
    for folder in given.run:
        if not (folder / "recipe.toml").is_file():
            continue
        run = open_run(folder)
        right, figures = accuracies(run, portions, given.draws), run.evaluate().figures
        rates = " | ".join(
            "-" if (rate := figures.get(k)) is None else f"{100 * rate:.1f}" for k in ("eer_seen", "eer")
        )
        print(f"| {run.title} | {run.state.round} | {100 * right.mean():.1f} ± {100 * right.std():.1f} | {rates} |")


if __name__ == "__main__":
    main()
