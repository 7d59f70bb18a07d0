"""The server's plan for a block of rounds: who is asked, who answers, and the learning rates; and one round of it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from selfsame.config.recipe import LocalPart, Recipe, ServerPart
from selfsame.engine.batches import Batch
from selfsame.engine.groups import in_turn
from selfsame.engine.turnout import turnout
from selfsame.errors import SelfsameError
from selfsame.methods import SplitLoss, method_class
from selfsame.methods.base import Cohort, Fields
from selfsame.streams import host_generator


@dataclass(frozen=True)
class Turn:
    """One round, as an engine is told of it. A number that changes is a tensor wherever what reads it is compiled."""

    client_M: Tensor
    alive_M: Tensor
    lr: Tensor
    server_lr: Tensor
    number: int | Tensor
    batches: Iterable[Batch] | None = None  # of this process's clients, where they have been drawn ahead
    member_M: Tensor | None = None  # who was asked, where some places are filled with clients that were not


@dataclass(frozen=True)
class Start:
    """What some clients begin a round with."""

    who: Cohort
    own: Fields  # their private fields
    sent: Fields  # what the server sent beside the network
    lr: Tensor
    number: int | Tensor
    count_M: Tensor | None = None  # their numbers of samples, where these weigh their updates


@dataclass(frozen=True)
class Plan:
    """T rounds from `first` on, M clients each."""

    first: int
    client_TM: Tensor
    alive_TM: Tensor
    lr_T: Tensor
    server_lr_T: Tensor
    member_TM: Tensor | None = None  # who is asked: a smaller group than others leaves places empty; None: all

    def __len__(self) -> int:
        return len(self.lr_T)

    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        member_TM = torch.ones_like(self.alive_TM) if self.member_TM is None else self.member_TM
        return self.client_TM, self.alive_TM, self.lr_T, self.server_lr_T, member_TM

    def to(self, device: torch.device | str) -> Plan:
        return Plan(self.first, *(part.to(device) for part in self.tensors()))

    def part(self, begin: int, end: int) -> Plan:
        """The rounds from place `begin` on, up to place `end`."""
        return Plan(self.first + begin, *(part[begin:end] for part in self.tensors()))


def rate(part: LocalPart | ServerPart, round: int, rounds: int) -> float:
    """The learning rate of a round under the part's schedule."""
    if part.schedule == "cosine":
        return part.lr * 0.5 * (1 + math.cos(math.pi * round / rounds))
    if part.schedule == "step":
        return part.lr * part.decay ** (round // (part.every or max(1, rounds // 3)))
    if part.schedule == "inverse":
        return part.lr / (1 + part.decay * round)
    return part.lr


def cohort_size(recipe: Recipe, clients: int) -> int:
    """How many clients a round asks."""
    size = recipe.cohort.size or clients
    if size > clients:
        raise SelfsameError(f"cohort.size: {size} clients asked for, the federation has {clients}")
    return size


def choose(recipe: Recipe, round: int, size: int, present: int) -> np.ndarray:
    """The clients of one round. Costs O(size), not O(clients)."""
    if recipe.cohort.sampling == "round-robin":
        return (round * size + np.arange(size)) % present
    if size == present:
        return np.arange(size)
    draw = host_generator(recipe.run.seed, "cohort", round)
    return np.sort(draw.choice(present, size, replace=False, shuffle=False))


def _turnouts(
    recipe: Recipe, rounds: range, size: int, present: int, taken_N: Tensor | None
) -> tuple[np.ndarray, np.ndarray]:
    """(clients, who answers) of split rounds; each uses up one of its clients' rounds, if only by its embeddings."""
    if taken_N is None and recipe.split.most and rounds.start:
        raise ValueError("split.most: a plan that goes on needs the rounds that every client has spent")
    taken = np.zeros(present, dtype=np.int64) if taken_N is None else taken_N.cpu().numpy().copy()
    found = []
    for t in rounds:
        found.append(turnout(recipe, t, size, present, taken))
        taken[found[-1].client_M] += 1
    return np.stack([one.client_M for one in found]), np.stack([one.alive_M for one in found])


def make_plan(recipe: Recipe, first: int, count: int, present: int, taken_N: Tensor | None = None) -> Plan:
    """Rounds first .. first+count-1 among the `present` registered clients.

    `taken_N` counts the rounds in which the embeddings of each were used, where `split.most` limits them.
    """
    size = min(cohort_size(recipe, present) if not recipe.cohort.late else recipe.cohort.size or present, present)
    rounds = range(first, first + count)
    member: np.ndarray | None = None
    if issubclass(method_class(recipe.method.name), SplitLoss):
        client, alive = _turnouts(recipe, rounds, size, present, taken_N)
    else:
        if recipe.cohort.sampling == "groups":
            client, member = in_turn(recipe, rounds, present)
        else:
            client = np.stack([choose(recipe, t, size, present) for t in rounds])
        alive = np.ones(client.shape, dtype=bool) if member is None else member.copy()
        if recipe.cohort.dropout:
            for row, t in enumerate(rounds):
                draw = host_generator(recipe.run.seed, "dropout", t).random(client.shape[1])
                alive[row] &= draw >= recipe.cohort.dropout
    total = recipe.run.rounds
    return Plan(
        first,
        torch.from_numpy(client.astype(np.int64)),
        torch.from_numpy(alive),
        torch.tensor([rate(recipe.local, t, total) for t in rounds], dtype=torch.float64),
        torch.tensor([rate(recipe.server, t, total) for t in rounds], dtype=torch.float64),
        None if member is None else torch.from_numpy(member),
    )
