"""How much of the true prototypes shows in what is shared: FedHide's own measures, and a collapse indicator.

Rows are scaled to length one first: prototypes are stored as free vectors and their length carries nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor

from selfsame.errors import SelfsameError
from selfsame.methods.base import unit

_BLOCK = 1 << 24  # cosines held at a time


def prototype_leakage(truth_RD: Tensor, exposed_RD: Tensor, row_S: Tensor | None = None) -> float:
    """The share of rows whose exposed vector lies closest to their own true vector, FedHide (17).

    `row_S` restricts the exposed rows, not the true ones they are compared with. Nothing exposed differently: 1.
    """
    _check_pair(truth_RD, exposed_RD)
    if torch.equal(truth_RD, exposed_RD):
        return 1.0  # equal rows would otherwise be lost to ties where the prototypes have collapsed
    row_S = torch.arange(len(truth_RD), device=truth_RD.device) if row_S is None else row_S
    return float((nearest(truth_RD, exposed_RD[row_S]) == row_S).double().mean())


def nearest(truth_RD: Tensor, query_SD: Tensor) -> Tensor:
    """The row of `truth_RD` with the largest cosine to each query, in blocks of bounded memory: shape (S,)."""
    truth_RD, query_SD = unit(truth_RD.float()), query_SD.float()
    step = max(1, _BLOCK // len(truth_RD))
    return torch.cat([(block @ truth_RD.T).argmax(1) for block in query_SD.split(step)])


def cosine_statistics(truth_RD: Tensor, exposed_RD: Tensor) -> tuple[float, float]:
    """Mean and standard deviation over rows of the cosine between true and exposed vectors (FedHide, Table 3)."""
    _check_pair(truth_RD, exposed_RD)
    cosine_R = (unit(truth_RD.double()) * unit(exposed_RD.double())).sum(1)
    return float(cosine_R.mean()), float(cosine_R.std(correction=0))


def spread(truth_RD: Tensor) -> float:
    """Mean cosine between different rows in O(RD): near 1 the classes have collapsed; 0 where there is one row."""
    rows = len(truth_RD)
    if rows < 2:
        return 0.0
    unit_RD = unit(truth_RD.double())
    total = unit_RD.sum(0).square().sum() - unit_RD.square().sum()
    return float(total) / (rows * (rows - 1))


def _check_pair(truth_RD: Tensor, exposed_RD: Tensor) -> None:
    if truth_RD.shape != exposed_RD.shape or truth_RD.dim() != 2 or not len(truth_RD):
        raise SelfsameError(
            f"leakage: expected two tables of one shape (rows, width), "
            f"got {tuple(truth_RD.shape)} and {tuple(exposed_RD.shape)}"
        )
