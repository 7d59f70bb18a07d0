"""Problems small enough to run every method on every engine in float64."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from selfsame.config.recipe import Recipe, from_mapping
from selfsame.data import Federation, load
from selfsame.engine.plan import make_plan
from selfsame.engine.problem import Problem
from selfsame.engine.rounds import Engine
from selfsame.engine.setup import prepare
from selfsame.engine.state import State, begin

# What each method needs to be small, repeatable and not chaotic.
OPTIONS: dict[str, dict[str, Any]] = {
    "feduv": {"secrets": "seeded", "code_length": 31},
    "feduv-negative": {"secrets": "seeded", "code_length": 31},
    "fedmetric": {"reduction": "mean"},
    "fedmetric-pos": {"reduction": "mean"},
    "fedmetric-true": {"reduction": "mean"},
    "fedaws": {"neighbours": 3},
    "fedhide": {"neighbours": 3},
}


@functools.cache
def people(**options: Any) -> Federation:
    """12 clients with 5 to 9 samples each; the same federation for all tests, none of which changes it."""
    return load("synthetic", **{"clients": 12, "samples": 9, "unequal": True, "held_out": 10, **options})


def recipe(name: str, options: dict[str, Any] | None = None, **parts: dict[str, Any]) -> Recipe:
    """A recipe in float64 on a LeNet of width 8; `parts` are laid over it."""
    lr = 0.01 if name.startswith("fedmetric") else 0.1
    tables: dict[str, Any] = {
        "method": {"name": name, **OPTIONS.get(name, {}), **(options or {})},
        "data": {"name": "synthetic"},
        "net": {"name": "lenet", "width": 8, "channels": [4, 4]},
        "run": {"rounds": 3, "device": "cpu", "precision": "float64", **parts.pop("run", {})},
        "local": {"batch": 4, "lr": lr, **parts.pop("local", {})},
        **parts,
    }
    return from_mapping(tables)


def build(
    name: str, federation: Federation | None = None, options: dict[str, Any] | None = None, **parts: dict[str, Any]
) -> Problem:
    return prepare(recipe(name, options, **parts), people() if federation is None else federation)


def train(problem: Problem, engine: str = "cohort", rounds: int | None = None) -> tuple[State, Tensor]:
    """The state and the losses after the recipe's rounds."""
    state = begin(problem)
    count = problem.recipe.run.rounds if rounds is None else rounds
    losses = Engine(problem, engine).run(state, make_plan(problem.recipe, 0, count, state.present))
    return state, losses


def assert_same(a: State, b: State, tolerance: float = 1e-9) -> None:
    """Every tensor of both states equal, relative to its largest entry."""
    left, right = a.tensors(), b.tensors()
    assert left.keys() == right.keys()
    for name, value in left.items():
        other = right[name]
        assert value.shape == other.shape and value.dtype == other.dtype, name
        scale = float(other.double().abs().max()) if other.numel() else 0.0
        gap = float((value.double() - other.double()).abs().max()) if other.numel() else 0.0
        assert gap <= tolerance * scale, f"{name}: {gap:.1e} apart at scale {scale:.1e}"


def bits(t: Tensor) -> bytes:
    return bytes(t.detach().contiguous().reshape(-1).view(torch.uint8).numpy())
