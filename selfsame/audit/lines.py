"""The differencing attacker on split rounds: along which line through the middle each client lies.

What an enclave lets out of a split round is the sum over its cohort of (descent direction in z) z'. Derivatives of a
metric loss push samples away from the others, so each member adds about (z - middle)(z - middle)' for its owner's mean
z. Least squares over rounds of different cohorts tells the members' parts apart; the line along which a part is largest
runs through the middle and its owner's mean. On which side the owner lies, it does not say: a mirror image of everybody
has the same sums. So lines are compared with lines. Where the same clients are in every sum, all get one line.

Shapes: T rounds, N clients, D width.
"""

from __future__ import annotations

from itertools import product

import torch
from torch import Tensor

from selfsame.audit.differences import Identified, Way, guesses
from selfsame.audit.transcript import Transcript
from selfsame.methods.base import unit

WAYS = tuple(Way(power, False, ridge) for power, ridge in product((0.0, 1.0), (0.1, 1.0)))


def lines(seen: Transcript, way: Way) -> Tensor:
    """The unit vector along each client's line, from sums of moments (T, D * D); a part of zeros has none: (N, D)."""
    part_NV = guesses(seen, way)
    width = round(part_NV.shape[1] ** 0.5)
    part_NDD = part_NV.unflatten(1, (width, width))
    line_ND = torch.linalg.eigh(part_NDD + part_NDD.mT).eigenvectors[..., -1]
    return torch.where((part_NV != 0).any(1, keepdim=True), line_ND, 0)


def identified(seen: Transcript, truth_ND: Tensor) -> Identified:
    """The best of all `WAYS`, chosen with the answer at hand."""
    found = [judged(lines(seen, way), truth_ND, way) for way in WAYS]
    return max(found, key=lambda one: (one.share, one.cosine))


def judged(line_ND: Tensor, truth_ND: Tensor, way: Way) -> Identified:
    """How many lines are nearest to that of their own client, and the cosine between the two, whatever its sign."""
    truth_ND = truth_ND.double().to(line_ND.device)
    cosine_NN = (line_ND @ unit(truth_ND - truth_ND.mean(0)).T).abs()
    own_N = (cosine_NN.argmax(1) == torch.arange(len(line_ND), device=line_ND.device)) & (line_ND != 0).any(1)
    return Identified(float(own_N.double().mean()), float(cosine_NN.diagonal().mean()), way)
