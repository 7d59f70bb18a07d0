"""The audit's tables from what bench/frontier.py measured: python bench/audit_page.py FILE... .

One table for each data set: the share of owners in per cent that each attacker names, the mean over seeds. The group's
sum is the largest that was tried and is no larger than the group. A run in the clear (--mode clear) has no groups: the
sums that are tried on it for comparison are held to its cohort.

    python bench/audit_page.py omniglot.jsonl lfw.jsonl writers.jsonl audiomnist.jsonl digits.jsonl
    python bench/audit_page.py bench/kept/frontier-cifar100.jsonl bench/kept/audit-cifar100.jsonl --mode clear
"""

from __future__ import annotations

import argparse
import re
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

from selfsame.runs.sharing import finished

Row = dict[str, Any]
ORDER = (
    "FedCrowd", "FedCrowd, quadratic", "FedUV", "own fixed", "FDML", "softmax", "FedAwS", "fixed",
    "FedHide", "FedGN(1)", "FedCS(0.05)", "FedMetric",
)  # fmt: skip
COLUMNS = {
    "reports": "reports",
    "one": "one update, in the clear",
    "sum": "the group's sum",
    "differences": "differences, 30 rounds",
    "polls": "polls",
    "table": "a chosen table",
    "networks": "two networks",
    "sybils": "sybils, two honest",
}
ACTIVE = {"a chosen table": "table", "2 networks": "networks", "sybils, 2 honest": "sybils"}


def column(finding: Row, size: int) -> str | None:
    """Where a finding stands, if sums are those of `size`; None: nowhere."""
    attacker, did = finding["attacker"], finding["did"]
    if attacker == "proxies":
        return "reports"
    if attacker in ("differences", "polls"):
        return str(attacker)
    if attacker == "updates":
        return {"one update": "one", f"a sum of {size}": "sum"}.get(did)
    if attacker == "active" and (did != "2 networks" or finding["under"] == "enclave"):
        return ACTIVE.get(did)
    return None


def group_of(line: Row) -> int:
    """The devices whose updates are summed, or would be."""
    return int(line["group"] if line["group"] > 1 else line["cohort"])


def table(lines: list[Row]) -> str:
    """The strongest of each column, by method."""
    named: dict[tuple[str, str], list[float]] = defaultdict(list)
    for line in lines:
        best: dict[str, float] = {}
        every = line["findings"] + line["active"]
        sums = [int(found[1]) for one in every if (found := re.fullmatch(r"a sum of (\d+)", one["did"]))]
        size = max((size for size in sums if size <= group_of(line)), default=0)
        for one in every:
            where = column(one, size)
            if where is not None:
                best[where] = max(best.get(where, 0.0), one["identified"])
        for where, value in best.items():
            named[line["key"]["method"], where].append(value)
    first = lines[0]
    out = [f"Chance is {100 * first['chance']:.1f} %, the group's share {100 / group_of(first):.1f} %.", ""]
    out += ["| method | " + " | ".join(COLUMNS.values()) + " |", "|---|" + "---:|" * len(COLUMNS)]
    for method in (name for name in ORDER if any(name == key[0] for key in named)):
        cells = [named.get((method, where), []) for where in COLUMNS]
        out.append(f"| {method} | " + " | ".join(f"{100 * statistics.mean(c):.1f}" if c else "–" for c in cells) + " |")
    return "\n".join(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--mode", default="enclave", help="the aggregation under which the runs were trained")
    args = parser.parse_args()
    every: dict[str, list[Row]] = defaultdict(list)
    for line in (line for file in args.files for line in finished(file)):
        if line["key"]["phase"] == "measure" and line["key"]["mode"] == args.mode:
            every[line["key"]["data"]].append(line)
    for data, lines in every.items():
        print(f"\n## {data}\n\n{table(lines)}")


if __name__ == "__main__":
    main()
