"""What devices would enrol before training: the mean place of some of their own samples.

A published encoder tells people apart already. Vectors drawn at random for them would first pull it to pieces, so with
`net.vectors = "enrolled"` a vector that stands for an owner begins where the first network puts the owner's samples. A
device finds it by itself. It goes wherever the method's vectors go: nowhere with FedCrowd and FedHide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from selfsame.engine.problem import Problem
from selfsame.methods.base import Fields

ENROLLED = "enrolled"
_MOST = 32  # samples of a client
_AT_ONCE = 128  # samples in one pass


def own_templates(
    problem: Problem, embed: Callable[[Tensor], Tensor], client_R: Tensor, most: int
) -> tuple[Tensor, Tensor]:
    """(rows of the method's table, what their clients would enrol with up to `most` samples each); some have none."""
    clients = client_R.tolist()
    row_R = client_R if problem.method.row == "client" else problem.world.class_of_N.to(client_R.device)[client_R]
    which, place_R = torch.unique(row_R, return_inverse=True)
    sum_ND = torch.zeros(len(which), problem.world.dim, dtype=torch.float64, device=problem.model.device)
    number_N = sum_ND.new_zeros(len(which))
    for raw, owner_S in _pieces(problem, clients, most):
        place_S = place_R.to(sum_ND.device)[owner_S]
        sum_ND.index_add_(0, place_S, problem.method.place(embed(raw)).double())
        number_N.index_add_(0, place_S, torch.ones_like(place_S, dtype=torch.float64))
    there_N = number_N > 0
    return which.to(there_N.device)[there_N], sum_ND[there_N] / number_N[there_N, None]


def _pieces(problem: Problem, clients: list[int], most: int) -> Iterator[tuple[Tensor, Tensor]]:
    """(raw samples, whose of these clients each is), some at a time."""
    federation, device = problem.federation, problem.model.device
    count_N = federation.count_N.cpu()
    raw: list[Tensor] = []
    owner: list[int] = []
    for place, client in enumerate(clients):
        index_1B = torch.arange(min(most, int(count_N[client])), device=device)[None]
        if index_1B.numel():
            raw.append(federation.source.rows(torch.tensor([client], device=device), index_1B)[0])
            owner += [place] * index_1B.numel()
        if raw and (len(owner) >= _AT_ONCE or place == len(clients) - 1):
            for part, whose in zip(torch.cat(raw).split(_AT_ONCE), torch.tensor(owner).split(_AT_ONCE), strict=True):
                yield part.to(device), whose.to(device)
            raw, owner = [], []


@torch.no_grad()
def enrol_first(problem: Problem, tables: Fields, client_R: Tensor) -> None:
    """Let these clients' vectors, in one of the tables, begin as what they enrol, where the recipe says so."""
    if problem.recipe.net.vectors == ENROLLED and not problem.federation.empty:
        table_ND = tables[problem.method.enrols]
        row_R, template_RD = _first_templates(problem, client_R)
        table_ND[row_R] = problem.method.enrolled(template_RD.to(table_ND.dtype), table_ND[row_R])


@torch.no_grad()
def enrolled_alone(problem: Problem, drawn: Fields, client: int) -> Fields:
    """The private fields of the one client whose device this is, whose only row they hold."""
    if problem.recipe.net.vectors != ENROLLED:
        return drawn
    name = problem.method.enrols
    _, template_RD = _first_templates(problem, torch.tensor([client], device=problem.model.device))
    if not len(template_RD):  # it has no samples
        return drawn
    return {**drawn, name: problem.method.enrolled(template_RD.to(drawn[name].dtype), drawn[name])}


def _first_templates(problem: Problem, client_R: Tensor) -> tuple[Tensor, Tensor]:
    """Rows, and what the first network makes of these clients' samples."""
    model = problem.model

    def embed(raw: Tensor) -> Tensor:
        return model.embed_eager(model.first_here, problem.federation.scale(raw).to(model.dtype))

    return own_templates(problem, embed, client_R, _MOST)
