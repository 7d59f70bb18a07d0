"""SLEEC, the oracle of FedAwS's Table 3: python bench/sleec.py choose|measure|table FILE --data bibtex --path DATA.

choose   settings by a fifth of the training rows, set apart; the test file is not read. One option after another: each
         of its values with the best of the others so far, and the best by the mean of P@1, P@3 and P@5 is kept. How
         many rows vote is chosen in each fit.
measure  what was chosen, learnt from all training rows and tested on the test file; three seeds of the clusters.
table    what is in the file beside the published P@1.

Every finished fit is a line of the file, and one that is there is not repeated; several processes share a file
(`selfsame/runs/sharing.py`). With --labels one, only one label of each training row is known, drawn as for the
federated methods; the rows that judge have all theirs.

    python bench/sleec.py choose sleec.jsonl --data bibtex --path DATA
    python bench/sleec.py measure sleec.jsonl --data bibtex --path DATA
    python bench/sleec.py table sleec.jsonl
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import sparse

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from selfsame.data.formats.xc_text import Sparse, read_xc  # noqa: E402
from selfsame.data.sets.xc import drawn, whole_rows  # noqa: E402
from selfsame.engine.machine import facts  # noqa: E402
from selfsame.errors import SelfsameError  # noqa: E402
from selfsame.measure.ranking import matrix_precision  # noqa: E402
from selfsame.methods.sleec import Csr, Sleec, summed_votes  # noqa: E402
from selfsame.runs.sharing import finished, look_up, share  # noqa: E402
from selfsame.streams import host_generator  # noqa: E402

PUBLISHED = {"bibtex": 65.08, "delicious": 67.59}  # P@1, by the Extreme Classification Repository
START = Sleec(learners=1, clusters=1, rank=100, neighbours=100, steps=5, ridge=1.0)
LADDER: tuple[tuple[dict[str, Any], ...], ...] = (
    ({"neighbours": 50}, {"neighbours": 100}, {"neighbours": 200}),
    ({"rank": 50}, {"rank": 100}, {"rank": 200}),
    ({"steps": 2}, {"steps": 5}, {"steps": 15}),
    ({"ridge": 0.3}, {"ridge": 1.0}, {"ridge": 3.0}),
    ({"sparsity": 0.0}, {"sparsity": 0.01}, {"sparsity": 0.05}),
    ({"unit_labels": True}, {"unit_labels": False}),
    ({"clusters": 1, "learners": 1}, {"clusters": 2, "learners": 5}, {"clusters": 4, "learners": 5}),
)
VOTERS = (5, 10, 15, 20, 30, 40, 60, 80)
APART = 0.2
Line = dict[str, Any]


def matrices(rows: Sparse, one_label: bool) -> tuple[Csr, Csr]:
    """Features and labels of the rows that have any label."""
    found = whole_rows(rows)
    if not one_label:
        return found.x_SF, found.y_SC
    row, label = drawn(rows, 0, "xc/train")
    y_NC = sparse.csr_array((np.ones(len(row), np.float32), (row, label)), shape=(len(rows), rows.labels))
    return found.x_SF, y_NC[row]


def training_rows(args: argparse.Namespace) -> tuple[Csr, Csr, Csr]:
    """Features, the labels that are known, and all labels."""
    rows = read_xc(args.path / f"{args.data}_train.txt")
    return *matrices(rows, args.labels == "one"), matrices(rows, False)[1]


def precisions(vote_SC: Any, y_SC: Csr) -> list[float]:
    """P@1, P@3 and P@5 in per cent."""
    return [100 * value for value in matrix_precision(vote_SC, y_SC).values()]


def best_of(args: argparse.Namespace, some: list[Sleec], data: tuple[Csr, Csr, Csr, Csr]) -> Sleec:
    """The best of some settings on the rows set apart, with its best number of voters."""
    x_NF, y_NC, x_SF, y_SC = data

    def one(key: Line) -> Line:
        begun = time.process_time()
        sums = summed_votes(x_NF, y_NC, x_SF, Sleec(**key["options"]), 0, VOTERS)
        found = {str(k): precisions(vote_SC, y_SC) for k, vote_SC in zip(VOTERS, sums)}
        return {"voters": found, "cpu_seconds": time.process_time() - begun, "machine": facts(torch.device("cpu"))}

    shown = [{name: value for name, value in asdict(options).items() if name != "voters"} for options in some]
    keys = [{"phase": "choose", "data": args.data, "labels": args.labels, "options": options} for options in shown]
    if share(args.file, keys, one, wait=True):  # the next settings depend on all of these
        sys.exit(0)
    found = [(look_up(args.file, key) or {})["voters"] for key in keys]
    worth = [max((statistics.mean(values), int(k)) for k, values in voters.items()) for voters in found]
    for (mean, voters), options in zip(worth, shown):
        print(f"{mean:.2f} {options} voters {voters}", flush=True)
    place = max(range(len(some)), key=lambda place: worth[place][0])
    return replace(some[place], voters=worth[place][1])


def choose(args: argparse.Namespace) -> Sleec:
    """The best setting; fits that are in the file are read from it."""
    x_NF, known_NC, true_NC = training_rows(args)
    order = host_generator(0, "sleec/apart").permutation(x_NF.shape[0])
    cut = round(APART * len(order))
    away, stay = np.sort(order[:cut]), np.sort(order[cut:])
    data = (x_NF[stay], known_NC[stay], x_NF[away], true_NC[away])
    best = best_of(args, [START], data)
    for rung in LADDER:
        best = best_of(args, [replace(best, **change) for change in rung], data)
    return best


def measure(args: argparse.Namespace) -> None:
    options = choose(args)
    x_NF, y_NC, _ = training_rows(args)
    x_SF, y_SC = matrices(read_xc(args.path / f"{args.data}_test.txt"), False)

    def one(key: Line) -> Line:
        begun = time.process_time()
        found = precisions(options.scores(x_NF, y_NC, x_SF, key["seed"]), y_SC)
        print(key["seed"], found, flush=True)
        spent = {"cpu_seconds": time.process_time() - begun, "machine": facts(torch.device("cpu"))}
        return {"precision": found, "rows": y_SC.shape[0], **spent}

    asked = {"phase": "measure", "data": args.data, "labels": args.labels, "options": asdict(options)}
    share(args.file, [{**asked, "seed": seed} for seed in range(args.seeds)], one)


def table(args: argparse.Namespace) -> None:
    lines = [line for line in finished(args.file) if line["key"]["phase"] == "measure"]
    print("| data | labels known | P@1 | P@3 | P@5 | published P@1 | seeds | CPU s per seed |")
    print("|---|---|---:|---:|---:|---:|---:|---:|")
    for data, labels in sorted({(line["key"]["data"], line["key"]["labels"]) for line in lines}):
        some = [line for line in lines if (line["key"]["data"], line["key"]["labels"]) == (data, labels)]
        cells = [_spread(values) for values in zip(*(line["precision"] for line in some))]
        published = PUBLISHED.get(data, "") if labels == "all" else ""
        seconds = statistics.mean(line["cpu_seconds"] for line in some)
        print(f"| {data} | {labels} | {' | '.join(cells)} | {published} | {len(some)} | {seconds:.0f} |")
    for options in sorted({json.dumps([line["key"]["data"], line["key"]["options"]]) for line in lines}):
        print(options)


def _spread(values: tuple[float, ...]) -> str:
    return f"{statistics.mean(values):.2f} ± {statistics.stdev(values) if len(values) > 1 else 0:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("choose", "measure", "table"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--data", default="bibtex", help="bibtex, delicious or another NAME of NAME_train.txt")
    parser.add_argument("--path", type=Path, default=Path("data"), help="where the text files lie")
    parser.add_argument("--labels", choices=("all", "one"), default="all", help="of each training row")
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    try:
        {"choose": choose, "measure": measure, "table": table}[args.what](args)
    except SelfsameError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
