"""The recipe of a new run: the preset, what the files and the machine advise, and over both what the user asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from itertools import chain
from pathlib import Path
from typing import Any

from selfsame import nets
from selfsame.config.presets import make_recipe
from selfsame.config.recipe import PARTS, Recipe, apply_settings
from selfsame.data import DATASETS
from selfsame.data.advice import Tables, advice_words, advise
from selfsame.engine.machine import choose_machine
from selfsame.errors import SelfsameError
from selfsame.fields import nearest
from selfsame.methods import options_of

_NAMED = ("method", "data", "net")  # parts whose options stand beside a name


def recipe_for(
    method: str, base: Path | None, given: Mapping[str, Any], settings: Sequence[str] = ()
) -> tuple[Recipe, str]:
    """A method's recipe, and what was chosen by a look at the data in words, where something was."""
    plain = make_recipe(method, base, given, settings)
    if base is not None or not plain.data.path:
        return plain, ""
    gpu = choose_machine(plain.run).device.type == "cuda"
    asked = apply_settings(given, settings)
    advice = _left(advise(plain.data.name, Path(plain.data.path).expanduser(), gpu), asked)
    if not advice:
        return plain, ""
    return make_recipe(method, None, given, settings, advice), advice_words(advice, gpu)


def _left(advice: Tables, asked: Mapping[str, Any]) -> Tables:
    """The advice on what nobody asks for; another network has options of its own, and an encoder sizes of its own."""
    out = {part: {k: v for k, v in table.items() if k not in asked.get(part, {})} for part, table in advice.items()}
    net = asked.get("net", {})
    if "name" in net:
        out.pop("net", None)
        if nets.takes_full_scale(str(net["name"])):
            out.pop("data", None)
    cohort, people = asked.get("cohort", {}), asked.get("data", {}).get("people", 0)
    if cohort.get("sampling") == "all" or (people and people < advice.get("cohort", {}).get("size", 0)):
        out.pop("cohort", None)
    return {part: table for part, table in out.items() if table}


def by_name(method: str, data: str, options: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Options given by name alone, as tables: the method's before the data set's before those of the recipe's parts."""
    own = options_of(method)
    sets = DATASETS[data].options if data in DATASETS else {}
    parts = {part: [one.name for one in fields(kind)] for part, kind in PARTS.items() if part not in _NAMED}
    out: dict[str, dict[str, Any]] = {}
    for name, value in options.items():
        homes = ["method"] if name in own else ["data"] if name in sets else [p for p in parts if name in parts[p]]
        if not homes:
            meant = nearest(name, [*own, *sets, *chain(*parts.values())]).partition("; known")[0]
            more = 'the rest goes into settings, e.g. settings={"net": {"width": 64}}'
            raise SelfsameError(f"train: no option {name!r}{meant}; {more}")
        if len(homes) > 1:
            raise SelfsameError(
                f"train: {name!r} is in {' and '.join(homes)}; say which: "
                f"settings={{{homes[0]!r}: {{{name!r}: {value!r}}}}}"
            )
        out.setdefault(homes[0], {})[name] = value
    return out
