"""The recipe of a new run: the preset, what the files and the machine advise, and over both what the user asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from selfsame.config.presets import make_recipe
from selfsame.config.recipe import Recipe, apply_settings
from selfsame.data.advice import Tables, advice_words, advise
from selfsame.engine.machine import choose_machine


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
    """The advice on what nobody asks for; another network has options of its own."""
    out = {part: {k: v for k, v in table.items() if k not in asked.get(part, {})} for part, table in advice.items()}
    if "name" in asked.get("net", {}):
        out.pop("net", None)
    cohort, people = asked.get("cohort", {}), asked.get("data", {}).get("people", 0)
    if cohort.get("sampling") == "all" or (people and people < advice.get("cohort", {}).get("size", 0)):
        out.pop("cohort", None)
    return {part: table for part, table in out.items() if table}
