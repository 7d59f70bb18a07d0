"""What happens between blocks of rounds, one hook a thing; every process of torchrun calls the same hooks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from selfsame.config.ladders import rung_ends
from selfsame.engine import checkpoint
from selfsame.engine.batches import steps_a_round
from selfsame.engine.plan import cohort_size
from selfsame.engine.problem import Problem
from selfsame.files import Record
from selfsame.measure.trials import MOST_PAIRED
from selfsame.runs.course import Run, best_record, ended_early
from selfsame.runs.events import keep_events
from selfsame.runs.together import decided, let_others_in

_LOOKS = 10  # evaluations of a run, and checkpoints
_EVALUATION = 0.05  # of the work that evaluations may take

Tick = Callable[[int, Record | None], None]  # rounds done since the last call, and a new record if there is one


@dataclass(frozen=True)
class Stretch:
    """A block of rounds that has been run."""

    first: int  # its first round
    answers: int  # of clients, in all rounds
    losses: Tensor
    refused: int  # client updates that were not finite


class Hook:
    """Something to do before or after a block of rounds."""

    def due(self, run: Run) -> int:
        """The round at which the block must end for its sake."""
        return run.recipe.run.rounds

    def before(self, run: Run) -> None:
        """Before the block."""

    def after(self, run: Run, done: Stretch) -> bool:
        """After the block, when rank 0 has the whole state; whether the run may go on."""
        return True


@dataclass(frozen=True)
class Joining(Hook):
    """The late clients register before this round."""

    at: int

    def due(self, run: Run) -> int:
        missing = run.state.present < run.problem.world.clients
        return self.at if missing and self.at > run.state.round else run.recipe.run.rounds

    def before(self, run: Run) -> None:
        if run.state.round == self.at and run.state.present < run.problem.world.clients:
            let_others_in(run.problem, run.state)


class Divergence(Hook):
    """A loss or a network that is not finite ends the run; its last checkpoint is from before."""

    def after(self, run: Run, done: Stretch) -> bool:
        # The block went wrong as a whole: a loss that is not finite, or most clients refused.
        wrong = not bool(torch.isfinite(done.losses).all()) or 2 * done.refused > done.answers
        run.diverged = decided(run.problem, lambda: wrong or not run.sound())
        if run.diverged:
            rates = {"local_lr": run.recipe.local.lr, "server_lr": run.recipe.server.lr}
            run.warnings.append({"kind": "diverged", "first": done.first, "round": run.state.round, **rates})
        return not run.diverged


@dataclass(frozen=True)
class Regular(Hook):
    """Something done every so many rounds, and at the end."""

    every: int
    act: Callable[[Run], None]
    also: frozenset[int] = frozenset()  # rounds after which it is done as well

    def due(self, run: Run) -> int:
        regular = (run.state.round // self.every + 1) * self.every
        return min([regular, *(also for also in self.also if also > run.state.round)])

    def after(self, run: Run, done: Stretch) -> bool:
        if run.state.round % self.every == 0 or run.state.round in self.also or run.done:
            self.act(run)
        return True


def look(run: Run, tick: Tick | None = None) -> None:
    """Evaluate, audit and record; somebody who waits hears of it."""
    loss = sum(run.state.losses) / len(run.state.losses)
    run.state.losses = []
    if run.problem.ranks.first:
        run.record(loss)
        if run.folder is not None:
            keep_events(run.history, run.folder)
    if tick is not None:
        tick(0, run.final)


def keep(run: Run) -> None:
    """Write a checkpoint."""
    if run.folder is not None:
        checkpoint.save_state(run.state, run.folder / "checkpoint" / "state.safetensors")


class Best(Hook):
    """The state that validated best is kept beside the last one; a run that gets no better may end."""

    def after(self, run: Run, done: Stretch) -> bool:
        if not run.problem.ranks.first or run.final.get("round") != run.state.round:
            return True
        if run.folder is not None and best_record(run.history) is run.final:
            checkpoint.save_state(run.state, run.folder / "checkpoint" / checkpoint.BEST)
        if ended_early(run.history, run.recipe.run.patience) and run.state.round < run.recipe.run.rounds:
            run.look_again()
            keep(run)
        return True


def usual_hooks(run: Run, tick: Tick | None, until: int = 0) -> list[Hook]:
    """What a run does between its rounds, in this order.

    It is also looked at after round `until`; one that settings are chosen by, wherever such runs may be compared.
    """
    looks, checkpoints = marks(run.problem)
    compared = rung_ends(run.recipe.run.rounds) if run.recipe.data.options.get("apart") else []
    looking = Regular(looks, partial(look, tick=tick), frozenset({until, *compared}))
    return [Joining(run.recipe.cohort.join_round), Divergence(), looking, Best(), Regular(checkpoints, keep)]


def marks(problem: Problem) -> tuple[int, int]:
    """Rounds between evaluations and between checkpoints.

    Unless the recipe says otherwise there are ten of each; fewer evaluations, but two, where embedding the test samples
    would cost more than a twentieth of the training, of whose samples each counts as three passes.
    """
    recipe, federation = problem.recipe, problem.federation
    tenth = max(1, recipe.run.rounds // _LOOKS)
    local = recipe.local
    steps = steps_a_round(local, problem.longest)
    trained = 3 * recipe.run.rounds * cohort_size(recipe, federation.clients) * steps * local.batch
    tested = len(federation.test.x) + min(len(federation.unseen.x), MOST_PAIRED)
    looks = max(2, min(_LOOKS, int(_EVALUATION * trained / max(1, tested))))
    every = recipe.run.eval_every or max(1, -(-recipe.run.rounds // looks))
    return every, recipe.run.checkpoint_every or recipe.run.eval_every or tenth
