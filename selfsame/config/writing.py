"""A recipe file written from its variants: what all of them have stands at the top, the rest beside each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from selfsame.config.experiment import SHARES
from selfsame.config.recipe import PARTS, Recipe, read_toml, tables_to_toml, to_mapping, toml_value

Tables = dict[str, Any]


@dataclass(frozen=True)
class Written:
    """A variant that is to be written: its title, its recipe, and the table of what the paper says of it.

    Of one that is a control, which `control` says, that is how it was chosen and nothing else.
    """

    title: str
    recipe: Recipe
    paper: Mapping[str, Any] = field(default_factory=dict)
    control: str = ""


def experiment_to_toml(
    variants: Sequence[Written],
    seeds: Sequence[int] = (),
    quoted: Sequence[Mapping[str, Any]] = (),
    oracles: Sequence[Mapping[str, Any]] = (),
) -> str:
    """TOML from which `read_experiment` makes these variants, with the rows that are quoted and the oracles."""
    every = [to_mapping(replace(variant.recipe, title="")) for variant in variants]
    common = {part: shared for part in PARTS if (shared := _shared(part, [one[part] for one in every]))}
    blocks = [tables_to_toml({**({"seeds": list(seeds)} if seeds else {}), **common})]
    for variant, tables in zip(variants, every, strict=True):
        own = {part: rest for part in PARTS if (rest := _rest(tables[part], common.get(part, {})))}
        blocks.append(_block("variant", {"title": variant.title, **own, **_told(variant)}))
    blocks += [_block(name, row) for name, rows in (("quoted", quoted), ("oracle", oracles)) for row in rows]
    return "\n".join(blocks)


def _told(variant: Written) -> Tables:
    """What a file says of the paper, and whether it is a control."""
    if not variant.control:
        return {"paper": dict(variant.paper)}
    return {"control": variant.control, "paper": {key: variant.paper[key] for key in variant.paper if key == "chosen"}}


def quoted_rows(file: Path) -> list[Tables]:
    """The rows that a recipe file quotes from its paper, each with what the file says of the paper."""
    return _untuned(file, "quoted")


def oracle_rows(file: Path) -> list[Tables]:
    """The oracles of a recipe file, likewise."""
    return _untuned(file, "oracle")


def _untuned(file: Path, kind: str) -> list[Tables]:
    tables = read_toml(file)
    common = {key: value for key, value in tables.get("paper", {}).items() if key != "chosen"}
    return [{**row, "paper": {**common, **row.get("paper", {})}} for row in tables.get(kind, [])]


def _shared(part: str, tables: Sequence[Tables]) -> Tables:
    """What every variant has of a part. What options belong to is shared as a whole, or not at all."""
    first = tables[0]
    if part in SHARES:
        return first if all(_same(one, first) for one in tables) else {}
    return {key: value for key, value in first.items() if all(key in one and _same(one[key], value) for one in tables)}


def _rest(own: Tables, common: Tables) -> Tables:
    return {key: value for key, value in own.items() if key not in common}


def _same(one: Any, other: Any) -> bool:
    """Whether they are written alike: true is no 1, and 1 is no 1.0."""
    return toml_value(one) == toml_value(other)


def _block(name: str, tables: Mapping[str, Any]) -> str:
    """One of an array of tables; an empty table is left out."""
    lines = [f"{key} = {toml_value(value)}" for key, value in tables.items() if value != {}]
    return "\n".join([f"[[{name}]]", *lines, ""])
