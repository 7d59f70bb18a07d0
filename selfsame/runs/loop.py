"""Training: blocks of rounds, and between them the hooks, each of which does one thing."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from selfsame.config.recipe import merged
from selfsame.data import Federation
from selfsame.engine.machine import choose_machine
from selfsame.engine.plan import make_plan
from selfsame.engine.ranks import shards
from selfsame.engine.rounds import Engine
from selfsame.runs.beginning import by_name, recipe_for
from selfsame.runs.claim import new_claim
from selfsame.runs.course import Run
from selfsame.runs.hooks import Stretch, Tick, keep, usual_hooks
from selfsame.runs.run import start as begin_run
from selfsame.runs.stopping import Stop, never
from selfsame.runs.summary import keep_all
from selfsame.runs.together import decided, looked_at

_PLAN = 2048  # rounds planned at a time
_BLOCK = 0.25  # seconds of rounds between two looks at whether somebody wants to stop


def carry_on(run: Run, tick: Tick | None = None, stop: Stop = never, until: int = 0) -> Run:
    """Train until the recipe's last round, or until `stop` says so: then a checkpoint is written after the round.

    `tick` hears how far it is. With `until` it pauses after that round, looked at and with a checkpoint; what it does
    when it goes on is what it would have done without.
    """
    _look_again(run)
    hooks, trainer = usual_hooks(run, tick, until), Trainer(run, tick, stop)
    going = not run.done and not run.paused(until)
    while going and not trainer.stopped:
        for hook in hooks:
            hook.before(run)
        done = trainer.until(min(hook.due(run) for hook in hooks))
        if done is None:
            break
        with looked_at(run.problem, run.state):
            going = all(hook.after(run, done) for hook in hooks) and not run.done and not run.paused(until)
    shards.collect(run.problem, run.state)
    if run.done:
        run.write_model()
    elif not run.diverged and run.problem.ranks.first:
        keep(run)
    return run


def _look_again(run: Run) -> None:
    """A run may have been stopped between its last checkpoint and its report."""
    if decided(run.problem, lambda: run.done and bool(run.history) and not run.curves):
        with looked_at(run.problem, run.state):
            if run.problem.ranks.first:
                run.look_again()


class Trainer:
    """Runs the rounds of a run; the engine is built anew when clients have joined."""

    def __init__(self, run: Run, tick: Tick | None, stop: Stop = never) -> None:
        self.run, self.heard = run, None if tick is None else lambda rounds: tick(rounds, None)
        self.engine, self.present = self._engine(), run.state.present
        # Processes of torchrun run the same rounds, so none of them stops by itself.
        self.stop = stop if not run.problem.ranks.active else never
        self.block = 1 if self.stop is not never else _PLAN  # rounds until the next look at `stop`

    @property
    def stopped(self) -> bool:
        """Whether somebody has asked for it."""
        return self.stop()

    def _engine(self) -> Engine:
        part = self.run.recipe.run
        name = "cohort" if part.engine == "auto" else part.engine
        return Engine(self.run.problem, name, graphs=choose_machine(part).graphs)

    def until(self, end: int) -> Stretch | None:
        """Rounds up to this one, as many of them as are planned at a time, or fewer where somebody stops it."""
        state = self.run.state
        if state.present != self.present:
            self.engine, self.present = self._engine(), state.present
        end = min(end, state.round + _PLAN)
        first, refused, answers = state.round, int(state.refused), 0
        losses: list[Tensor] = []
        while state.round < end and not self.stopped:
            found, answered = self._rounds(min(self.block, end - state.round))
            losses.append(found)
            answers += answered
        return Stretch(first, answers, torch.cat(losses), int(state.refused) - refused) if losses else None

    def _rounds(self, count: int) -> tuple[Tensor, int]:
        """The losses of the next rounds, and how many clients answered."""
        run, state = self.run, self.run.state
        plan = make_plan(run.recipe, state.round, count, state.present, run.problem.method.rounds_used(state.server))
        begun = time.perf_counter()
        losses = self.engine.run(state, plan, self.heard)
        took = time.perf_counter() - begun
        run.seconds += took
        state.losses += losses.tolist()
        if self.block < _PLAN:
            self.block = max(1, min(2 * self.block, _PLAN, int(_BLOCK * count / max(took, 1e-9))))
        return losses, int(plan.alive_TM.sum())


def train(
    method: str = "fedhide",
    data: str = "digits",
    *,
    path: str | Path | None = None,
    start: str | Path | None = None,
    out: str | Path | None = None,
    tick: Tick | None = None,
    settings: Mapping[str, Any] | None = None,
    federation: Federation | None = None,
    **options: Any,
) -> Run:
    """Train a method on a data set and return the run; `out` gets all that `selfsame train` writes.

    `start` names weights to begin with: a file, or the folder of a run.

    ``options`` go by name to whatever has them: the method (``alpha=0.1``), the data set (``turns=1``) or a part of the
    recipe (``rounds=200``, ``device="cpu"``). ``settings`` are nested tables as in a recipe, for names that several
    parts have: ``{"local": {"lr": 0.05}}``. In a notebook there is a progress bar.
    """
    own: dict[str, dict[str, Any]] = {
        "method": {"name": method},
        "data": {"name": data} | ({} if path is None else {"path": str(path)}),
        "net": {} if start is None else {"start": str(start)},
    }
    given = merged(settings or {}, by_name(method, data, options), own)
    recipe, _ = recipe_for(method, None, given)
    if out is None:
        return _watched(begin_run(recipe, None, federation), tick)
    with new_claim(Path(out)) as folder:
        run = _watched(begin_run(recipe, folder, federation), tick)
        keep_all(run, folder)
    return run


def _watched(run: Run, tick: Tick | None) -> Run:
    """Train, under a bar where a notebook can show one and nobody else listens."""
    from rich.console import Console

    from selfsame.runs.watching import watched

    console = Console()
    if tick is not None or not console.is_jupyter:
        return carry_on(run, tick)
    with watched(run, console=console) as bar:
        return carry_on(run, bar)
