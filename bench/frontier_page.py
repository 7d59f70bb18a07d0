"""The frontier's table and picture from what bench/frontier.py measured: python bench/frontier_page.py FILE... .

    python bench/frontier_page.py omniglot.jsonl writers.jsonl --table docs/results/frontier.json --picture frontier.svg

A method's leakage is what the strongest attacker gets who can exist under that aggregation; where none gets more than
the group's share, that share is drawn. The error is the EER on unseen people, and for CIFAR-100, which has none, the
share of test images that are not told right. There runs are trained in the clear, in the groups that sums would be
over; such a run stands for both, each with its own attackers.

A dot is the mean over seeds, its bar reaches from the least to the most; a ring is the same method in the clear. The
picture is drawn a second time for narrow screens, NAME-narrow.svg. A FILE.json is a table that was made before.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import defaultdict
from itertools import zip_longest
from pathlib import Path
from typing import Any

from selfsame.runs.sharing import finished

Row = dict[str, Any]
TITLES = {
    "omniglot": "unseen characters",
    "audiomnist": "unseen speakers",
    "mnist_uv": "unseen writers",
    "lfw": "unseen faces",
    "cifar100": "CIFAR-100, test images",
}
CLASSIFIED = ("cifar100",)  # the error is 1 - P@1, and runs in the clear stand for sums as well
COLOURS = {
    "FedCrowd": "#c2185b",
    "FedCrowd, quadratic": "#c2185b",
    "softmax": "#37474f",
    "FedUV": "#1565c0",
    "own fixed": "#2e7d32",
}
OTHER = "#8d8d8d"


def rows(files: list[Path]) -> list[Row]:
    """One row for each data set, method and aggregation."""
    made = [row for file in files if file.suffix == ".json" for row in json.loads(file.read_text())]
    some: dict[tuple[str, str, str], list[Row]] = defaultdict(list)
    for line in (line for file in files if file.suffix != ".json" for line in finished(file)):
        key = line["key"]
        if key["phase"] == "measure":
            for mode in (key["mode"], *(["enclave"] if key["data"] in CLASSIFIED else [])):
                some[key["data"], key["method"], mode].append(line)
    return [*made, *(_row(*key, lines) for key, lines in some.items())]


def _row(data: str, method: str, mode: str, lines: list[Row]) -> Row:
    eer = [1 - line["p@1"] if data in CLASSIFIED else line["eer"] for line in lines]
    counted = [max((_found(line, mode)), default=0.0) for line in lines]
    group = lines[0]["cohort" if data in CLASSIFIED else "group"]
    share = 1 / group if mode != "clear" else 0.0
    return {
        "data": data, "method": method, "aggregation": mode, "seeds": len(lines), "lr": lines[0]["lr"],
        "eer": statistics.mean(eer), "least": min(eer), "most": max(eer), "identified": statistics.mean(counted),
        "group_share": share, "drawn_at": max(share, statistics.mean(counted)),
    }  # fmt: skip


def _found(line: Row, mode: str) -> list[float]:
    """What attackers get who can exist under this aggregation; those that are there to compare are left out."""
    return [
        one["identified"]
        for one in line["findings"]
        if not one["compared"] and (mode == "clear" or one["under"] != "clear")
    ]


def table(found: list[Row], mode: str, beside: str) -> str:
    """One line for each data set and method: as sums, and in the clear."""
    here = {(row["data"], row["method"], row["aggregation"]): row for row in found}
    lines = [
        "| data | method | as sums: error [least, most] | identified | the group's share | "
        "in the clear: error | identified | lr |"
    ]
    lines.append("|---|---|---:|---:|---:|---:|---:|---:|")
    order = {data: place for place, data in enumerate(TITLES)}
    for row in sorted(found, key=lambda row: (order[row["data"]], row["eer"])):
        if row["aggregation"] != mode:
            continue
        clear = here.get((row["data"], row["method"], beside))
        more = ["", ""] if clear is None else [_eer(clear), f"{100 * clear['identified']:.1f}"]
        share = f"{100 * row['group_share']:.1f}"
        cells = [TITLES[row["data"]], row["method"], _eer(row), f"{100 * row['identified']:.1f}", share, *more]
        lines.append("| " + " | ".join([*cells, f"{row['lr']:g}"]) + " |")
    return "\n".join(lines)


def _eer(row: Row) -> str:
    return f"{100 * row['eer']:.1f} [{100 * row['least']:.1f}, {100 * row['most']:.1f}]"


def picture(found: list[Row], mode: str, out: Path, columns: int = 2) -> None:
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    plt.rcParams |= {"svg.fonttype": "none", "font.size": 9, "svg.hashsalt": "selfsame"}
    sets = [data for data in TITLES if any(row["data"] == data for row in found)]
    down = -(-len(sets) // columns)
    size = 4.1 * columns, 3.3 * down
    figure, axes = plt.subplots(down, columns, figsize=size, squeeze=False, layout="constrained")
    for axis, data in zip_longest(axes.flat, sets):
        if data is None:
            axis.axis("off")
            continue
        every = [row for row in found if row["data"] == data]
        here = [row for row in every if row["aggregation"] == mode]
        for row in every:
            if row["aggregation"] != mode:
                colour = COLOURS.get(row["method"], OTHER)
                axis.plot(100 * row["identified"], 100 * row["eer"], "o", mfc="none", mec=colour, ms=6, alpha=0.7)
        _panel(axis, here)
        axis.set_title(TITLES[data])
        axis.set_ylabel("1 - P@1, % (up is better)" if data in CLASSIFIED else "EER, % (up is better)")
    figure.savefig(out, metadata={"Date": None, "Creator": None})
    plt.close(figure)


def _panel(axis: Any, here: list[Row]) -> None:
    for row in here:
        colour, x = COLOURS.get(row["method"], OTHER), 100 * row["drawn_at"]
        low, high = 100 * (row["eer"] - row["least"]), 100 * (row["most"] - row["eer"])
        axis.errorbar(x, 100 * row["eer"], [[low], [high]], fmt="o", color=colour, ms=6, capsize=2, lw=1)
    for left in (True, False):
        side = sorted((row for row in here if (row["drawn_at"] < 0.5) == left), key=lambda row: row["eer"])
        for row, y in zip(side, _apart([100 * row["eer"] for row in side], here), strict=True):
            x = 100 * row["drawn_at"]
            place = {"xytext": (x + (7 if left else -7), y), "ha": "left" if left else "right", "va": "center"}
            line = {"arrowprops": {"arrowstyle": "-", "color": "#bbbbbb", "lw": 0.6}}
            axis.annotate(
                row["method"], (x, 100 * row["eer"]), color=COLOURS.get(row["method"], OTHER), **place, **line
            )
    axis.set_xlim(-4, 104)
    axis.invert_yaxis()
    axis.set_xlabel("owners that the strongest attacker names, %")
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)


def _apart(values: list[float], here: list[Row]) -> list[float]:
    """Heights for labels: as near to the values as they can be without touching."""
    span = 100 * (max(row["most"] for row in here) - min(row["least"] for row in here))
    step, out = max(span, 0.1) * 0.075, list(values)
    for _ in range(200):
        for place in range(1, len(out)):
            short = step - (out[place] - out[place - 1])
            if short > 0:
                out[place - 1], out[place] = out[place - 1] - short / 2, out[place] + short / 2
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--mode", default="enclave", help="the aggregation that is shown")
    parser.add_argument("--beside", default="clear", help="the one that is shown beside it, as rings")
    parser.add_argument("--table", type=Path, help="the rows as JSON")
    parser.add_argument("--picture", type=Path)
    args = parser.parse_args()
    found = [row for row in rows(args.files) if row["aggregation"] in (args.mode, args.beside)]
    print(table(found, args.mode, args.beside))
    if args.table:
        args.table.write_text(json.dumps(found, indent=1) + "\n")
    if args.picture:
        picture(found, args.mode, args.picture)
        picture(found, args.mode, args.picture.with_stem(f"{args.picture.stem}-narrow"), columns=1)


if __name__ == "__main__":
    main()
