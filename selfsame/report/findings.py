"""What attackers got of a run, from its audit.json: a table, and the strongest of them in one line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from selfsame.report.table import Sheet
from selfsame.report.words import finite, percent

HEADINGS = ("Attacker", "What it does", "Who sees it", "Found\n%", "Cosine", "Chance\n%", "Rounds\nor time")
NOTE = (
    "Found: owners whose vector the attacker's guess is closest to. Chance: what a guess finds, or one of a whole "
    "group. Below the line: what other aggregations would show."
)
NOTHING_TRIED = (
    "No attacker here fits this run, so nobody tried to name its owners: that says nothing about what could be read."
)
_FIELDS = ("attacker", "did", "who", "under", "identified", "cosine", "chance", "rounds", "said", "seconds", "applies")


def audit_rows(audit: Mapping[str, Any]) -> list[list[str]]:
    """The cells of the table: what applies to the run first."""
    found = sorted(_found(audit), key=lambda one: not one["applies"])
    return [
        [one["attacker"], one["did"], _seen_by(one), percent(one["identified"], 0), _cosine(one["cosine"]),
         percent(one["chance"], 0), _cost(one)]
        for one in found
    ]  # fmt: skip


def audit_sheet(audit: Mapping[str, Any]) -> Sheet:
    """The whole table."""
    applying = sum(bool(one["applies"]) for one in _found(audit))
    title = (
        f"{audit.get('title', '')}, after round {audit.get('round', '?')}, aggregation {audit.get('aggregation', '?')}"
    )
    headings = [heading.replace("\n", " ") for heading in HEADINGS]
    ends = (applying - 1,) if 0 < applying < len(_found(audit)) else ()
    return Sheet(headings, audit_rows(audit), title=title, note=NOTE, words=(0, 1, 2), ends=ends)


def audit_table(audit: Mapping[str, Any]) -> Sheet:
    """The same for a terminal of 80 columns."""
    return replace(audit_sheet(audit), headings=HEADINGS)


def strongest_words(audit: Mapping[str, Any]) -> str:
    """The strongest attacker in one line."""
    best = audit.get("strongest")
    if not isinstance(best, Mapping):
        return "Nobody gets more than a guess would." if attacked(audit) else NOTHING_TRIED
    got = f"{percent(best['identified'], 0)} % of the owners (a guess: {percent(best['chance'], 0)} %)"
    return f"The strongest attacker: {best['attacker']}, {best['did']} ({_seen_by(best)}), identifies {got}."


def attacked(audit: Mapping[str, Any]) -> bool:
    """Whether somebody tried to name owners, or nothing leaves the devices that could be tried."""
    tried = any(one["applies"] and one.get("vectors", True) for one in _found(audit))
    return tried or not audit.get("sends", True)


def strongest_share(audit: Mapping[str, Any]) -> tuple[float | None, float | None]:
    """(share of the owners that the strongest attacker identifies, a guess); of nobody where there is none."""
    best = audit.get("strongest")
    return (finite(best["identified"]), finite(best["chance"])) if isinstance(best, Mapping) else (None, None)


def audit_remarks(audit: Mapping[str, Any]) -> list[str]:
    """What is to be said of the attacks that are possible in this run, one line each."""
    said: dict[str, list[str]] = {}
    for one in _found(audit):
        if one["applies"] and one["said"]:
            said.setdefault(one["said"], []).append(f"{one['attacker']}, {one['did']}")
    return [f"{'; '.join(names)}: {words}." for words, names in said.items()]


def _found(audit: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The findings; those that lack a field are none."""
    return [one for one in audit.get("findings", ()) if all(name in one for name in _FIELDS)]


def _seen_by(one: Mapping[str, Any]) -> str:
    return str(one["who"]) if one["under"] == "any" else f"{one['who']}, {one['under']}"


def _cosine(value: Any) -> str:
    number = finite(value)
    return "–" if number is None else f"{number:.2f}"


def _cost(one: Mapping[str, Any]) -> str:
    """The rounds watched, or the seconds spent."""
    return str(one["rounds"]) if one["rounds"] else f"{one['seconds']:.1f} s"
