"""One case, written down for every simulator: what selfsame would draw, as arrays."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bench.common import Case, random_federation
from selfsame.data import Held
from selfsame.engine.plan import make_plan
from selfsame.engine.ranks.group import ALONE, Ranks
from selfsame.methods.fedaws import ClassEmbedding, FedAwS

CLIENTS, SAMPLES, BATCH, LR = 100, 100, 16, 0.1
CHECK = 5  # rounds of warm-up, after which all must agree
METHODS = ("positive-only", "fedaws")


@dataclass(frozen=True)
class Shape:
    """What distinguishes one case from another."""

    method: str
    cohort: int
    steps: int
    image: int
    rounds: int
    repeats: int
    depth: int = 1  # of the images: 3 in colour

    @property
    def name(self) -> str:
        image = f"{self.image}x{self.depth}"
        return f"{self.method}-{self.cohort}-{self.steps}-{image}-{self.rounds}-{self.repeats}"

    @property
    def total(self) -> int:
        return CHECK + self.rounds * self.repeats


def tables(shape: Shape, compile: str = "auto") -> dict[str, Any]:
    """The recipe that selfsame runs."""
    return {
        # (7) over all classes is the form of FedAwS that another simulator has.
        "method": {"name": shape.method, **({"spread": "full"} if shape.method == "fedaws" else {})},
        "data": {"name": "digits"},
        "run": {"rounds": 10**6, "device": "cpu", "compile": compile},
        "cohort": {"size": shape.cohort},
        "local": {"steps": shape.steps, "batch": BATCH, "lr": LR},
    }


def start(shape: Shape, ranks: Ranks = ALONE, compile: str = "auto") -> Case:
    """selfsame before the first round."""
    federation = random_federation(CLIENTS, SAMPLES, (shape.depth, shape.image, shape.image))
    return Case(tables(shape, compile), federation, "cohort", ranks=ranks)


@dataclass(frozen=True)
class Watched(Held):
    """Samples that remember which of them were asked for."""

    asked: list[Tensor] = field(default_factory=list)

    def rows(self, client_M: Tensor, index_MB: Tensor) -> Tensor:
        self.asked.append(self.start_N[client_M][:, None] + index_MB)
        return super().rows(client_M, index_MB)


def held(case: Case) -> Held:
    """The samples, all of which lie in memory."""
    source = case.problem.federation.source
    assert isinstance(source, Held)
    return source


def batches(case: Case, client_TM: Tensor) -> Tensor:
    """The rows of samples, (T, M, S, B), on which selfsame trains in each round, client and local step."""
    problem, recipe = case.problem, case.problem.recipe
    watched = Watched(held(case).x, held(case).start_N)
    watching = replace(problem, federation=replace(problem.federation, source=watched))
    for number, client_M in enumerate(client_TM):
        for _ in watching.batches(client_M, number):
            pass
    asked = torch.stack(watched.asked).unflatten(0, (len(client_TM), recipe.local.steps))
    return asked.transpose(1, 2).contiguous()


def write(shape: Shape, folder: Path) -> None:
    """case.json and case.npz, to be read by `work.read`."""
    case = start(shape)
    problem, state = case.problem, case.state
    client_TM = make_plan(problem.recipe, 0, shape.total, state.present).client_TM
    method, net = problem.method, problem.recipe.net
    assert isinstance(method, ClassEmbedding)
    facts = {
        "method": shape.method,
        "shape": problem.federation.shape,
        "width": net.width,
        "channels": net.options["channels"],
        "lr": LR,
        "margin": method.positive_margin,
        "spread": {"margin": method.margin, "weight": method.spread_weight} if isinstance(method, FedAwS) else {},
        "check": CHECK,
        "rounds": shape.rounds,
        "repeats": shape.repeats,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "case.json").write_text(json.dumps(facts), encoding="utf-8")
    arrays: dict[str, Any] = {
        **{f"net.{name}": value for name, value in problem.model.net_views(state.theta_P).items()},
        "class_ND": state.server["class_embedding"],
        # Standardised: the others need not do that in every round, as selfsame does.
        "x": problem.federation.scale(held(case).x),
        "client_TM": client_TM,
        "index_TMSB": batches(case, client_TM),
    }
    np.savez(folder / "case.npz", **{name: value.numpy() for name, value in arrays.items()})
