"""The adaptive attacker: what somebody learns who knows the method and reads what it shares.

FedHide's measure (17) asks whether the published vector itself gives its owner away. An attacker works backwards from
it, on each method in another way (`LocalLoss.attack`); here all of them are set on a federation and judged alike.

Shapes: M clients attacked, R rows of truth, D width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from selfsame.audit.leakage import closest, cosine_statistics, prototype_leakage
from selfsame.methods.base import Fields, LocalLoss, Scene, World
from selfsame.streams import Stream

_PAIRS = 10**8  # cosines that (17) may cost in an audit; larger tables are sampled


@dataclass(frozen=True)
class Leakage:
    """What an audit found: the paper's measure and, beside it, what an adaptive attacker recovers."""

    paper: float | None  # (17); None: nothing that stands for the owner is shared
    recovered: float | None  # share of clients whose recovered vector lies closest to their own true vector
    recovered_cosine: float | None
    cosine_mean: float | None  # between true and exposed vectors, Table 3
    cosine_std: float | None
    how: str  # what the attacker did, in the method's words; empty: there was nothing to do


def audit(
    method: LocalLoss,
    own: Fields,
    server: Fields,
    head: Fields,
    world: World,
    stream: Stream,
    sample: int = 200,
    reports: int = 32,
    updates: Callable[[Tensor], Tensor] | None = None,
) -> Leakage:
    """(17) beside what an adaptive attacker recovers, on up to `sample` clients; `stream` has one row.

    What the attacker reads is simulated from the state as it stands: one report, `reports` of them where noise is to be
    averaged away, or the clients' own `updates` of the network, seen one by one.
    """
    truth_RD, exposed_RD = method.truth(own, server, head), method.exposed(server, head)
    paper = mean = std = None
    client_M = torch.arange(min(world.clients, sample), device=world.class_of_N.device)
    if exposed_RD is not None:
        most = max(sample, _PAIRS // len(truth_RD))
        paper = prototype_leakage(truth_RD, exposed_RD, _sampled(len(truth_RD), most, stream))
        mean, std = cosine_statistics(truth_RD, exposed_RD)
        client_M = _sampled(world.clients, sample, stream.fold(1)).to(client_M.device)
    stream_M = stream.fold(2).fold(client_M)
    found = method.attack(Scene(own, server, truth_RD, world, client_M, stream_M, reports, updates))
    if found is None:  # whoever looks sees what is exposed, and that is all there is to find
        return Leakage(paper, paper, mean, mean, std, "")
    vector_MD, how = found
    row_M = client_M if method.row == "client" else world.class_of_N[client_M]
    recovered_cosine, _ = cosine_statistics(truth_RD[row_M], vector_MD)
    near_M = closest(truth_RD, vector_MD, method.by_angle)
    own_M = (near_M == row_M) & (vector_MD != 0).any(1)  # a zero vector is no finding
    return Leakage(paper, float(own_M.double().mean()), recovered_cosine, mean, std, how)


def _sampled(rows: int, limit: int, stream: Stream) -> Tensor:
    """Up to `limit` of the rows, in order; all of them where there are no more."""
    if rows <= limit:
        return torch.arange(rows, device=stream.key_M.device)
    return stream.bits(rows)[0].argsort()[:limit].sort().values
