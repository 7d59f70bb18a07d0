"""The adaptive attacker: what somebody learns who knows the method and reads what it shares.

FedHide's measure (17) asks whether the published vector itself gives its owner away. An attacker works backwards from
it, on each method in another way (`LocalLoss.attack`), and from the updates of the network (`attack_updates`), which
the server sees one by one or as sums over groups. All of them are set on a federation here and judged alike.

Shapes: M clients attacked, R rows of truth, D width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from selfsame.audit.leakage import closest, cosine_statistics, prototype_leakage
from selfsame.audit.updates import Watched, over_groups
from selfsame.methods.base import Fields, LocalLoss, Scene, World
from selfsame.streams import Stream

_PAIRS = 10**8  # cosines that (17) may cost in an audit; larger tables are sampled
_WATCHED, _LARGEST = 32, 64  # clients whose updates are read, each at the cost of a round's training; the largest sum


@dataclass(frozen=True)
class Leakage:
    """What an audit found: the paper's measure and, beside it, what an adaptive attacker recovers."""

    paper: float | None  # (17); None: nothing that stands for the owner is shared
    recovered: float | None  # share of clients whose recovered vector lies closest to their own, by the best attack
    recovered_cosine: float | None
    cosine_mean: float | None  # between true and exposed vectors, Table 3
    cosine_std: float | None
    how: str  # what the attacker did, in the method's words; empty: there was nothing to do
    updates: float | None = None  # the share that updates alone give away; None: no attack on them is known
    updates_cosine: float | None = None
    group: int = 1  # clients whose sum is seen: 1 where updates are seen one by one


def audit(
    method: LocalLoss,
    own: Fields,
    server: Fields,
    head: Fields,
    world: World,
    stream: Stream,
    sample: int = 200,
    reports: int = 32,
    watch: Callable[[Tensor], Watched] | None = None,
    group: int = 1,
) -> Leakage:
    """(17) beside what an adaptive attacker recovers, on up to `sample` clients; `stream` has one row.

    What the attacker reads is simulated from the state as it stands: one report, `reports` of them where noise is to be
    averaged away, and the next update of some clients, in sums over `group` of them (`watch`).
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
    found = method.attack(Scene(own, server, truth_RD, world, client_M, stream_M, reports))
    # Without an attack whoever looks sees what is exposed, and that is all there is to find.
    shared = Leakage(paper, paper, mean, mean, std, "")
    if found is not None:
        vector_MD, how = found
        row_M = client_M if method.row == "client" else world.class_of_N[client_M]
        share, cosine = _judged(method, truth_RD, row_M, vector_MD)
        shared = replace(shared, recovered=share, recovered_cosine=cosine, how=how)
    if watch is None:
        return shared
    group = min(group, world.clients, _LARGEST)
    count = min(world.clients, max(group, _WATCHED)) // group * group
    some_M = _sampled(world.clients, count, stream.fold(3))[:count].to(client_M.device)
    return _with_updates(method, shared, truth_RD, world, some_M, watch, group)


def _with_updates(
    method: LocalLoss,
    shared: Leakage,
    truth_RD: Tensor,
    world: World,
    client_M: Tensor,
    watch: Callable[[Tensor], Watched],
    group: int,
) -> Leakage:
    """What was found, beside what these clients' updates tell; the better of both is what is recovered."""
    watched = watch(client_M)
    vector_GD = method.attack_updates(over_groups(watched.seen, group))
    if vector_GD is None:
        return replace(shared, group=group)
    row_M = client_M if method.row == "client" else world.class_of_N[client_M]
    if watched.truth_MD is not None:
        truth_RD = truth_RD.index_copy(0, row_M, watched.truth_MD.to(truth_RD.dtype))
    share, cosine = _judged(method, truth_RD, row_M, vector_GD.to(truth_RD.dtype).repeat_interleave(group, 0))
    both = replace(shared, updates=share, updates_cosine=cosine, group=group)
    if shared.recovered is not None and shared.recovered >= share:
        return both
    how = "read the vector off its update of the last layer" if group == 1 else f"read the sums of {group} updates"
    return replace(both, recovered=share, recovered_cosine=cosine, how=how)


def _judged(method: LocalLoss, truth_RD: Tensor, row_M: Tensor, vector_MD: Tensor) -> tuple[float, float]:
    """(the share of vectors closest to their own row, their mean cosine to it); a zero vector is no finding."""
    cosine, _ = cosine_statistics(truth_RD[row_M], vector_MD)
    near_M = closest(truth_RD, vector_MD, method.by_angle)
    return float(((near_M == row_M) & (vector_MD != 0).any(1)).double().mean()), cosine


def _sampled(rows: int, limit: int, stream: Stream) -> Tensor:
    """Up to `limit` of the rows, in order; all of them where there are no more."""
    if rows <= limit:
        return torch.arange(rows, device=stream.key_M.device)
    return stream.bits(rows)[0].argsort()[:limit].sort().values
