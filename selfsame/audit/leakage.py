"""How much of the true prototypes shows in what is shared: FedHide's own measures.

Rows are scaled to length one first: prototypes are stored as free vectors and their length carries nothing. (17) goes
by cosine for every method, FedMetric among them, whose own scores and whose attacker go by distance.
"""

from __future__ import annotations

import torch
from torch import Tensor

from selfsame.errors import SelfsameError
from selfsame.methods.base import unit
from selfsame.methods.neighbours import nearest

_BLOCK = 1 << 24  # cosines held at a time


def prototype_leakage(truth_RD: Tensor, exposed_RD: Tensor, row_S: Tensor | None = None) -> float:
    """The share of rows whose exposed vector lies closest to their own true vector, FedHide (17).

    `row_S` restricts the exposed rows, not the true ones they are compared with. A zero row exposes nothing.
    """
    _check_pair(truth_RD, exposed_RD)
    row_S = torch.arange(len(truth_RD), device=truth_RD.device) if row_S is None else row_S
    seen_SD = exposed_RD[row_S]
    same_S = (seen_SD == truth_RD[row_S]).all(1)  # ties must not hide it where the prototypes have collapsed
    leaks_S = ((closest(truth_RD, seen_SD) == row_S) | same_S) & (seen_SD != 0).any(1)
    return float(leaks_S.double().mean())


def closest(truth_RD: Tensor, query_SD: Tensor, by_angle: bool = True) -> Tensor:
    """The row of `truth_RD` with the largest cosine, or the least distance, to each query, in blocks: shape (S,)."""
    if not by_angle:
        return torch.cat([torch.cdist(part, truth_RD.double()).argmin(1) for part in query_SD.double().split(16)])
    step = max(1, _BLOCK // len(truth_RD))
    found = [nearest(part.float(), truth_RD, 1, view=_unit_float)[1][:, 0] for part in query_SD.split(step)]
    return torch.cat(found)


def _unit_float(rows: Tensor) -> Tensor:
    return unit(rows.float())


def cosine_statistics(truth_RD: Tensor, exposed_RD: Tensor) -> tuple[float, float]:
    """Mean and standard deviation over rows of the cosine between true and exposed vectors (FedHide, Table 3)."""
    _check_pair(truth_RD, exposed_RD)
    cosine_R = (unit(truth_RD.double()) * unit(exposed_RD.double())).sum(1)
    return float(cosine_R.mean()), float(cosine_R.std(correction=0))


def _check_pair(truth_RD: Tensor, exposed_RD: Tensor) -> None:
    if truth_RD.shape != exposed_RD.shape or truth_RD.dim() != 2 or not len(truth_RD):
        raise SelfsameError(
            f"leakage: expected two tables of one shape (rows, width), "
            f"got {tuple(truth_RD.shape)} and {tuple(exposed_RD.shape)}"
        )
