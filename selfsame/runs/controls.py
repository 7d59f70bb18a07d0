"""The controls that stand beside a paper's variants: ours, with the same data, network, seeds and rounds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from selfsame.config.exhibits import FIXED, NO_NEGATIVES, UNTRAINED
from selfsame.config.experiment import Experiment, Paper, Variant
from selfsame.config.recipe import Recipe
from selfsame.methods import options_of

_FOLDERS = {UNTRAINED: "control-untrained", FIXED: "control-fixed", NO_NEGATIVES: "control-no-negatives"}
_FIXED = ("fixed", "fixed-own")
_WEIGHTS = ("negative_weight", "spread_weight")  # of the term that pushes classes apart
_WITHOUT = {  # what a method is without that term; positive-only is not FedAwS's, as its class vectors start elsewhere
    "feduv-negative": "feduv",
    "fedmetric": "fedmetric-pos",
    "fedmetric-true": "fedmetric-pos",
}


def with_controls(experiment: Experiment, method: str) -> Experiment:
    """The experiment and its controls, less those that it has already.

    For each network on which the paper's own method is trained: the network as it starts, fixed vectors, and the method
    without its negative term, where it has one.
    """
    bases = _bases(experiment, method)
    found = list(experiment.variants)
    for place, base in enumerate(bases):
        for kind, recipe in _controls(experiment, base):
            title = kind if len(bases) == 1 else f"{kind}, as in {base.title}"
            folder = _FOLDERS[kind] + (f"-{place + 1}" if place else "")
            found.append(
                Variant(
                    number=len(found) + 1,
                    title=title,
                    recipe=replace(recipe, title=title),
                    seeds=base.seeds,
                    paper=Paper(portions=base.paper.portions),
                    own_rounds=base.own_rounds,
                    name=folder,
                    control=kind,
                    untrained=kind == UNTRAINED,
                    digest=base.digest,
                )
            )
    return replace(experiment, variants=tuple(found), flat=False)


def alike(one: Recipe, other: Recipe) -> bool:
    """Whether they have the same network and data."""
    return (one.net, one.data) == (other.net, other.data)


def _bases(experiment: Experiment, method: str) -> list[Variant]:
    """The first variant of the method on each network and data set; of any method where it has none."""
    own = [variant for variant in experiment.variants if variant.recipe.method.name == method]
    found: list[Variant] = []
    for variant in own or experiment.variants[:1]:
        if not any(alike(variant.recipe, base.recipe) for base in found):
            found.append(variant)
    return found


def _controls(experiment: Experiment, base: Variant) -> Iterator[tuple[str, Recipe]]:
    part, there = base.recipe.method, [v.recipe.method for v in experiment.variants if alike(v.recipe, base.recipe)]
    yield (
        UNTRAINED,
        replace(base.recipe, run=replace(base.recipe.run, rounds=1, eval_every=0)),
    )  # whatever --rounds says
    if not any(one.name in _FIXED for one in there):
        yield FIXED, replace(base.recipe, method=replace(part, name="fixed", options={}))
    weight = next((name for name in _WEIGHTS if name in options_of(part.name)), "")
    without: dict[str, Any] = {**part.options, weight: 0.0}
    if weight and not any(
        one.name == _WITHOUT.get(part.name) or (one.name == part.name and one.options.get(weight) == 0) for one in there
    ):
        yield NO_NEGATIVES, replace(base.recipe, method=replace(part, options=without))
