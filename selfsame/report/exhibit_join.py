"""Two pages of one table or figure, from two calls of the command: one page that tells of the runs of both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from selfsame.errors import SelfsameError
from selfsame.report.beside import LEFT, RUN_WITH, lengths_words
from selfsame.report.exhibit_lines import PAPER
from selfsame.report.picture_cases import attacks_left
from selfsame.report.picture_page import joined_pictures
from selfsame.report.words import FACTS

Plain = Mapping[str, Any]
Made = dict[str, Any]

_SAME = ("digest", "settings", "rounds", "seeds")  # what two pages must agree on where both tell of a variant
_CHOICE, _LENGTHS, _SET, _RUN, _LEFT, _FACT, _MACHINE, _OTHER = range(8)  # the order of a page's remarks


def joined(first: Plain, second: Plain) -> Made:
    """The first page with what the second tells of and the first does not; where both tell, the first stays."""
    for key, name in (("paper", "paper"), ("exhibit", "table or figure")):
        if first[key] != second[key]:
            raise SelfsameError(f"pages of another {name} each: {first[key]} and {second[key]}")
    ours, theirs = ({part["recipe"]: part for part in page["parts"]} for page in (first, second))
    names = [name for name in _order(first, second) if name in ours or name in theirs]
    parts = [
        _part(name, ours[name], theirs[name]) if name in ours and name in theirs else ours.get(name) or theirs[name]
        for name in names
    ]
    pictures = joined_pictures(first.get("pictures", {}), second.get("pictures", {}))
    commands = [line for page in (first, second) for line in page["command"].splitlines()]
    missing = {one["recipe"]: one for page in (second, first) for one in page["missing"]}
    if pictures:
        left = attacks_left(pictures)
        missing = {name: {**one, "runs": len(left)} for name, one in missing.items() if left}
    return {
        **first,
        "command": "\n".join(dict.fromkeys(commands)),
        "parts": parts,
        "timings": first["timings"] or second["timings"],
        **({"pictures": pictures} if pictures else {}),
        "missing": [missing[name] for name in _order(first, second) if name in missing and name not in names],
    }


def _order(first: Plain, second: Plain) -> list[str]:
    """The recipes of both pages; what was run stands before what was not."""
    return list(dict.fromkeys(one["recipe"] for key in ("parts", "missing") for p in (first, second) for one in p[key]))


def _part(name: str, ours: Plain, theirs: Plain) -> Made:
    """One recipe of both pages."""
    for key, words in (("changed", "the command line set"), ("replicates", "the number of replicates is")):
        if ours[key] != theirs[key]:
            told = (", ".join(part[key]) if key == "changed" else part[key] for part in (ours, theirs))
            raise SelfsameError(f"{name}: {words} another each: {' and '.join(str(one) or 'nothing' for one in told)}")
    others = {variant["title"]: variant for variant in theirs["variants"]}
    variants = [_variant(name, mine, others.pop(mine["title"], mine)) for mine in ours["variants"]]
    variants = sorted([*variants, *others.values()], key=lambda one: bool(one["control"]))
    return {
        **ours,
        "variants": variants,
        "remarks": _remarks(ours["remarks"], theirs["remarks"], variants),
        "drawing": _drawing(ours["drawing"], theirs["drawing"], [variant["title"] for variant in variants]),
    }


def _variant(name: str, mine: Plain, other: Plain) -> Plain:
    for key in _SAME:
        if mine[key] and other[key] and mine[key] != other[key]:
            raise SelfsameError(f"{name}: {mine['title']}: {_differing(key, mine[key], other[key])}")
    return other if any(other["ended"]) and not any(mine["ended"]) else mine


def _differing(key: str, mine: Any, other: Any) -> str:
    """What two pages disagree on, in words."""
    if key == "digest":
        return "the recipe says another thing of it each"
    if key != "settings":
        return f"{key} are {mine} and {other}"
    at = [
        f"{part}.{option}"
        for part in {**mine, **other}
        for option in {**mine.get(part, {}), **other.get(part, {})}
        if mine.get(part, {}).get(option) != other.get(part, {}).get(option)
    ]
    return f"was run with another {', '.join(at)} each"


# What is said below a table


def _remarks(ours: Sequence[str], theirs: Sequence[str], variants: Sequence[Plain]) -> list[str]:
    titles = [variant["title"] for variant in variants]
    told: list[tuple[int, int, str]] = []
    facts: dict[str, dict[str, list[str]]] = {}
    for said in dict.fromkeys([*ours, *theirs]):
        kind, place = _kind(said, titles)
        if kind == _FACT:
            fact, _, rest = said.removesuffix(".").partition(": ")
            for value, named in _told(rest, titles):
                facts.setdefault(fact, {}).setdefault(value, []).extend(named)
        elif kind not in (_LENGTHS, _LEFT):
            told.append((kind, place, said))
    told += [
        (_FACT, 0, f"{fact}: {'; '.join(f'{value} ({_listed(named, titles)})' for value, named in values.items())}.")
        for fact, values in facts.items()
    ]
    run = [variant for variant in variants if any(variant["ended"])]
    long = [variant for variant in run if variant["rounds"]]
    short = [one for one in long if one["rounds"] != (one["paper_rounds"] or one["recipe_rounds"])]
    told += [(_LENGTHS, 0, lengths_words(len(short), len(long)))] if short else []
    left = [variant["title"] for variant in variants if variant not in run and not variant["quoted"]]
    told += [(_LEFT, 0, f"{LEFT}{'; '.join(left)}.")] if left else []
    return [said for _, _, said in sorted(told, key=lambda one: one[:2])]


def _kind(said: str, titles: Sequence[str]) -> tuple[int, int]:
    """What a remark is about, and the place of the variant that it names."""
    starts = {"How ": _CHOICE, "Set on the command line": _SET, LEFT: _LEFT, RUN_WITH: _MACHINE}
    starts |= {f"{title[:1].upper()}{title[1:]}: ": _FACT for title, _ in FACTS.values()}
    if said.startswith("In ") and said.endswith(lengths_words(0, 0).partition(" 0 of 0 ")[2]):
        return _LENGTHS, 0
    for start, kind in starts.items():
        if said.startswith(start):
            return kind, 0
    names = [title for title in titles if said.startswith((f"{title}: ", f"{title}, seed "))]
    return (_RUN, titles.index(max(names, key=len))) if names else (_OTHER, 0)


def _told(rest: str, titles: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Each value of a fact, and the variants that have it."""
    for one in rest.removesuffix(")").split("); "):
        value, _, named = one.partition(" (")
        yield value, list(_named(named, titles))


def _named(listed: str, titles: Sequence[str]) -> Iterator[str]:
    """The titles of a list with commas between them, where titles have commas themselves."""
    while listed:
        begun = [title for title in titles if f"{listed}, ".startswith(f"{title}, ")]
        title = max(begun, key=len, default=listed.partition(", ")[0])
        listed = listed[len(title) + 2 :]
        yield title


# Drawings


def _drawing(ours: Plain | None, theirs: Plain | None, titles: Sequence[str]) -> Plain | None:
    """Pane by pane: lines and points that one lacks are the other's."""
    if ours is None or theirs is None:
        return ours or theirs
    others = {_name(pane): pane for pane in theirs["panes"]}
    panes = [_pane(pane, others.pop(_name(pane), None), titles) for pane in ours["panes"]]
    return {**ours, "panes": [*panes, *others.values()]}


def _name(pane: Plain) -> tuple[str, str]:
    return pane["kind"], pane["title"]


def _pane(mine: Plain, other: Plain | None, titles: Sequence[str]) -> Plain:
    if other is None or mine["kind"] != "lines":
        return mine
    if mine.get("ticks") != other.get("ticks"):
        raise SelfsameError(f"drawings name other places each: {mine.get('ticks')} and {other.get('ticks')}")
    others = {(line["title"], line["from"]): line for line in other["lines"]}
    lines = [_line(line, others.pop((line["title"], line["from"]), None)) for line in mine["lines"]]
    both = {"log": mine["log"] and other["log"]} if "log" in mine and "log" in other else {}
    placed = sorted([*lines, *others.values()], key=lambda line: (_row(line["title"], titles), line["from"] == PAPER))
    return {**mine, **both, "lines": placed}


def _row(line: str, titles: Sequence[str]) -> int:
    """Where the first variant of a line stands in the table; a line may be named after several, or be one of two."""
    if line in titles:
        return titles.index(line)
    members = [number for number, title in enumerate(titles) if title.startswith(f"{line}, ")]
    owners = sorted((title for title in titles if line.startswith(f"{title}, ")), key=len)
    return members[0] if members else titles.index(owners[-1]) if owners else len(titles)


def _line(mine: Plain, other: Plain | None) -> Plain:
    if other is None:
        return mine
    points = {x: at for line in (other, mine) for x, at in zip(line["x"], _points(line), strict=True)}
    places = sorted(points)
    several = any(line["low"] for line in (mine, other))
    found = {key: [points[x][number] for x in places] for number, key in enumerate(("y", "low", "high"))}
    return {**mine, "x": places, **found, **({} if several else {"low": [], "high": []})}


def _points(line: Plain) -> Iterator[tuple[float, float, float]]:
    """Mean, least and most at each place; the mean alone where there is one seed."""
    return zip(line["y"], line["low"] or line["y"], line["high"] or line["y"], strict=True)


def _listed(named: Sequence[str], titles: Sequence[str]) -> str:
    """In the table's order, each once."""
    return ", ".join(title for title in titles if title in named)
