"""Batches drawn for several rounds at once: the many small steps of a draw take as long for one round as for many.

A draw is a function of the seed, the client and the round alone, so how many rounds are drawn together changes nothing.
It also happens outside a captured CUDA graph, so that samples may come from the host.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from selfsame.engine.batches import Batch, steps_a_round
from selfsame.engine.state import Problem


class Ahead:
    """Draws the batches of up to `rounds` rounds of `size` clients; 0 rounds: passes over the data are not drawn so."""

    def __init__(self, problem: Problem, size: int, most: int, memory: int) -> None:
        local = problem.recipe.local
        samples = steps_a_round(local, problem.longest) * size * min(local.batch, problem.longest)
        each = samples * math.prod(problem.federation.shape) * problem.model.dtype.itemsize
        self.problem, self.size = problem, size
        self.rounds = 0 if local.epochs else max(1, min(most, memory // max(1, each)))

    def draw(self, client_AM: Tensor, first: int) -> list[Batch]:
        """The batches of A rounds from number `first` on, one for each local step, with an axis A in front."""
        problem, recipe = self.problem, self.problem.recipe
        device = problem.model.device
        number_AM = torch.arange(first, first + len(client_AM), device=device).repeat_interleave(self.size)
        out = []
        for step in range(recipe.local.steps):
            drawn = problem.tools.draw(
                problem.federation,
                client_AM.flatten(),
                problem.longest,
                recipe.local,
                recipe.augment,
                recipe.run.seed,
                number_AM,
                torch.full((), step, dtype=torch.int64, device=device),
                problem.model.dtype,
            )
            out.append(Batch(*(part.unflatten(0, client_AM.shape) for part in drawn.parts())))
        return out
