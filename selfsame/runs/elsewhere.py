"""What was forgotten: a run's network on the people of another data set, before training and after."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor

from selfsame import nets
from selfsame.data import DATASETS, Federation
from selfsame.engine.machine import Machine
from selfsame.engine.model import Model
from selfsame.engine.setup import as_seen, rate_option
from selfsame.errors import SelfsameError
from selfsame.measure.bootstrap import LEAST_PEOPLE, interval, replicates
from selfsame.measure.curves import Floats, Roc, roc
from selfsame.measure.outcome import Measured, Plain
from selfsame.measure.protocols import PROTOCOLS, Bench, Inapplicable
from selfsame.methods import World
from selfsame.nets.whitened import LAYER
from selfsame.runs.course import Run

_ASKED = ("trial list", "unseen pairs", "unseen, enrolled")


@dataclass(kw_only=True)
class RunElsewhere(Run):
    """A run's method with a network for the samples of another data set."""

    model: Model
    theta_P: Tensor

    def embed_each(self, raw: Tensor, client: int | None) -> Tensor:
        """Embeddings (S, D) of single crops."""
        x = self.problem.federation.scale(raw.to(self.model.device)).to(self.model.dtype)
        return self.model.embed_eager(self.theta_P, x).detach()


def elsewhere(
    run: Run,
    data: str,
    federation: Federation,
    options: Mapping[str, Any] | None = None,
    trials: int = 200_000,
    bootstrap: int = 1000,
    seed: int = 0,
) -> Plain:
    """EER on unseen people of another data set by the network that training began with, and by the present one.

    `options` are those of that data set. Both networks meet the same trials, and the change has an interval of its own.
    """
    if run.state.alone_NP is not None:
        raise SelfsameError(f"{run.recipe.method.name}: has a network for each client, none for people elsewhere")
    own = run.problem.model
    there = as_seen(run.recipe.net.name, federation).to(own.device)
    after = _model_for(run, data, there, options or {}, bool(run.recipe.net.whitened))
    before = _model_for(run, data, there, options or {}, False) if run.recipe.net.whitened else after
    both = [
        _bench(run, model, own.net_views(theta), there, trials, seed)
        for model, theta in ((before, own.first_here), (after, run.state.theta_P))
    ]
    found = []
    for name in _ASKED:
        try:
            measured = [PROTOCOLS[name](bench) for bench in both]
        except Inapplicable:
            continue
        found.append(changed(measured[0], measured[1], bootstrap, both[0]))
    if not found:
        raise SelfsameError(f"{data}: holds no unseen people to measure with; set people apart, e.g. held_out=20")
    return {"data": data, "started": run.recipe.net.started, "protocols": found}


def _model_for(run: Run, data: str, there: Federation, options: Mapping[str, Any], whitened: bool) -> Model:
    """The network's structure for other samples, if its parameters are the same."""
    part, own = run.recipe.net, run.problem.model
    rates = {**(DATASETS[data].options if data in DATASETS else {}), **options}
    given = {name: value for name, value in part.options.items() if name != "rate" or "rate" not in rates}
    given |= rate_option(part.name, rates)
    width = run.problem.world.dim
    net = nets.build(part.name, there.shape, width, seed=0, started=part.started, whitened=whitened, **given)
    left_out = () if whitened else LAYER
    wanted = {name: value.shape for name, value in own.net_views(own.first_here).items() if name not in left_out}
    if wanted != {name: value.shape for name, value in net.named_parameters()}:
        shapes = ("x".join(map(str, one.shape)) for one in (there, run.problem.federation))
        raise SelfsameError("{}: samples are {}, the network was trained for {}".format(data, *shapes))
    return Model(net, {}, Machine(own.device, own.dtype, own.autocast))


def _bench(run: Run, model: Model, views: Mapping[str, Tensor], there: Federation, trials: int, seed: int) -> Bench:
    theta_P = model.layout.flatten({f"net.{name}": value for name, value in views.items()})  # what it has of them
    world = World(there.clients, there.classes, run.problem.world.dim, there.class_of_N)
    problem = replace(run.problem, federation=there, world=world)
    away = RunElsewhere(problem, run.state, model=model, theta_P=theta_P.to(model.device))
    return Bench(problem.method, there, world, run.truth().detach(), away.embed, False, seed, trials)


def changed(before: Measured, after: Measured, bootstrap: int, bench: Bench) -> Plain:
    """A protocol's EER of both networks and what it changed by, with intervals by person."""
    drawn: list[Floats] = []
    if bootstrap and before.scored.people >= LEAST_PEOPLE:  # the same people are drawn for both
        name = f"elsewhere/{before.name}"
        drawn = [replicates(one.scored, _eer, bootstrap, bench.rng(name))[:, 0] for one in (before, after)]
    rates = [roc(one.scored.genuine, one.scored.impostor).eer for one in (before, after)]
    return {
        "name": before.name,
        "what": before.what,
        "genuine": len(before.scored.genuine),
        "impostor": len(before.scored.impostor),
        "people": before.scored.people,
        "before": _figure(rates[0], drawn[0] if drawn else None),
        "after": _figure(rates[1], drawn[1] if drawn else None),
        "change": _figure(rates[1] - rates[0], drawn[1] - drawn[0] if drawn else None),
    }


def _eer(curve: Roc) -> Floats:
    return np.array([curve.eer])


def _figure(value: float, drawn: Floats | None) -> Plain:
    low, high = (None, None) if drawn is None else interval(drawn)
    return {"value": float(value), "low": low, "high": high}
