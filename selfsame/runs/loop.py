"""Training: blocks of rounds, and between them the hooks, each of which does one thing."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from selfsame.config.presets import make_recipe
from selfsame.config.recipe import merged
from selfsame.data import Federation
from selfsame.engine.machine import choose_machine
from selfsame.engine.plan import make_plan
from selfsame.engine.ranks import shards
from selfsame.engine.rounds import Engine
from selfsame.runs.hooks import Stretch, Tick, usual_hooks
from selfsame.runs.run import Run, start
from selfsame.runs.together import decided, looked_at

_PLAN = 2048  # rounds planned at a time


def carry_on(run: Run, tick: Tick | None = None) -> Run:
    """Train until the recipe's last round; `tick` hears how far it is."""
    _look_again(run)
    hooks, trainer = usual_hooks(run, tick), Trainer(run, tick)
    going = not run.done
    while going:
        for hook in hooks:
            hook.before(run)
        done = trainer.until(min(hook.due(run) for hook in hooks))
        with looked_at(run.problem, run.state):
            going = all(hook.after(run, done) for hook in hooks) and not run.done
    shards.collect(run.problem, run.state)
    if run.done:
        run.write_model()
    return run


def _look_again(run: Run) -> None:
    """A run may have been stopped between its last checkpoint and its report."""
    if decided(run.problem, lambda: run.done and bool(run.history) and not run.curves):
        with looked_at(run.problem, run.state):
            if run.problem.ranks.first:
                run.look_again()


class Trainer:
    """Runs the rounds of a run; the engine is built anew when clients have joined."""

    def __init__(self, run: Run, tick: Tick | None) -> None:
        self.run, self.heard = run, None if tick is None else lambda rounds: tick(rounds, None)
        self.engine, self.present = self._engine(), run.state.present

    def _engine(self) -> Engine:
        part = self.run.recipe.run
        name = "cohort" if part.engine == "auto" else part.engine
        return Engine(self.run.problem, name, graphs=choose_machine(part).graphs)

    def until(self, stop: int) -> Stretch:
        """Rounds up to this one, or as many of them as are planned at a time."""
        run, state = self.run, self.run.state
        if state.present != self.present:
            self.engine, self.present = self._engine(), state.present
        count = min(stop - state.round, _PLAN)
        plan = make_plan(run.recipe, state.round, count, state.present, run.problem.method.rounds_used(state.server))
        refused, begun = int(state.refused), time.perf_counter()
        losses = self.engine.run(state, plan, self.heard)
        run.seconds += time.perf_counter() - begun
        state.losses += losses.tolist()
        return Stretch(plan, losses, int(state.refused) - refused)


def train(
    method: str = "fedhide",
    data: str = "digits",
    *,
    out: str | Path | None = None,
    tick: Tick | None = None,
    settings: Mapping[str, Any] | None = None,
    federation: Federation | None = None,
    **options: Any,
) -> Run:
    """Train a method on a data set and return the run.

    ``options`` are the method's hyper-parameters; ``settings`` are nested tables as in a recipe, e.g.
    ``{"run": {"rounds": 200}, "local": {"lr": 0.05}}``.
    """
    given = merged(settings or {}, {"method": {"name": method, **options}, "data": {"name": data}})
    run = start(make_recipe(method, None, given), None if out is None else Path(out), federation)
    return carry_on(run, tick)
