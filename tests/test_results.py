"""Pages of results that are written by hand say what the kept figures say."""

import json
import statistics
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
RESULTS, KEPT = ROOT / "docs" / "results", ROOT / "bench" / "kept"


@pytest.fixture
def page_of_frontier(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    return __import__("frontier_page")


def test_the_frontier_is_what_its_rows_say(page_of_frontier):
    found = page_of_frontier.rows([RESULTS / "frontier.json"])
    table = page_of_frontier.table(found, "enclave", "clear")
    assert len(table.splitlines()) > 28 and table in (RESULTS / "frontier.md").read_text(encoding="utf-8")


def test_what_was_found_of_pictures_is_what_the_kept_cases_say():
    text = (RESULTS / "inversion.md").read_text(encoding="utf-8")
    rows = [line for line in text.split("## Full size")[1].splitlines() if line.startswith("|")]
    cases = [json.loads(line) for line in (KEPT / "inversion-cifar100.jsonl").read_text().splitlines()]
    assert len(cases) >= 27
    for case in cases:
        found = case["found"]["found"]
        means = [statistics.fmean(found[name]) for name in ("lpips 0", "lpips 64", "psnr")]
        said = f"{means[0]:.2f} / {means[1]:.2f} / {means[2]:.1f}"
        count = sum(value < 0.1 for value in found["lpips 0"])
        name = "any of the table" if case["method"] == "any method" else case["method"]
        there = [row for row in rows if name in row and (case["attacker"] == "shared" or case["network"] in row)]
        plain = [row.replace("*", "") for row in there]
        assert any(f"| {said} | {count} |" in row for row in plain), (case["key"], said, count)
