"""What happens on the devices between the forward and the backward pass of a cohort that takes one local step.

Pure functions of tensors, in one piece, so that they can be compiled into a handful of kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from selfsame.methods.base import Cohort, Fields, LocalLoss
from selfsame.methods.wire import finite_rows
from selfsame.streams import Stream


@dataclass(frozen=True)
class Settled:
    """What the cohort's own losses come to."""

    loss_M: Tensor
    mine: Fields  # the working fields after the local step
    stays: Fields
    leaves: Fields
    weight_M: Tensor  # omega_k over the clients that answered with finite values, 0 for the others
    pull_MBD: Tensor  # weighted derivatives in the embeddings
    tail: list[Tensor]  # weighted derivatives in the head, flat


def derivatives(
    loss: Callable[..., Tensor],
    emb_MBD: Tensor,
    mask_MB: Tensor,
    mine: Fields,
    learns: tuple[str, ...],
    sent: Fields,
    head: Fields,
    who: Cohort,
    functional: bool = False,
) -> tuple[Tensor, Tensor, Fields, Fields]:
    """(loss_M, d/d emb, d/d working fields, d/d head), each row from its own client's loss; `head` has a row a client.

    A client whose batch is empty (it has finished its pass) contributes nothing. `functional` differentiates in the way
    that torch.compile can follow; the plain way has less to do.
    """

    def total(emb_MBD: Tensor, learned: Fields, head: Fields) -> tuple[Tensor, Tensor]:
        loss_M = loss(emb_MBD, mask_MB, {**mine, **learned}, sent, head, who) * mask_MB.any(1)
        return loss_M.sum(), loss_M

    if functional:
        moving = {name: mine[name] for name in learns}
        grads, loss_M = torch.func.grad(total, (0, 1, 2), has_aux=True)(emb_MBD, moving, head)
        return loss_M, *grads
    emb = emb_MBD.detach().requires_grad_()
    learned = {name: mine[name].detach().requires_grad_() for name in learns}
    heads = {name: value.detach().requires_grad_() for name, value in head.items()}
    with torch.enable_grad():
        value, loss_M = total(emb, learned, heads)
        wanted = [emb, *learned.values(), *heads.values()]
        found = torch.autograd.grad(value, wanted, allow_unused=True, materialize_grads=True)
    cut = 1 + len(learned)
    fields = (dict(zip(learned, found[1:cut], strict=True)), dict(zip(heads, found[cut:], strict=True)))
    return loss_M.detach(), found[0], *fields


def normalised(who: Cohort, good_M: Tensor, count_M: Tensor | None, dtype: torch.dtype) -> Tensor:
    """omega_k over the clients that answered with finite values: n_k / n, or uniform; zero for the others."""
    weight_M = (who.alive_M & good_M).to(dtype)
    if count_M is not None:
        weight_M = weight_M * count_M
    total = weight_M.sum()
    return weight_M / torch.where(total > 0, total, 1)


def moved(mine: Fields, grads: Fields, lr: Tensor, active_M: Tensor) -> Fields:
    """The working fields after a local SGD step of the clients that still have samples."""
    return {**mine, **{name: mine[name] - lr * grad * over(active_M, grad) for name, grad in grads.items()}}


def over(value_M: Tensor, like: Tensor) -> Tensor:
    """One value a client, shaped to multiply a tensor whose first axis is the client."""
    return value_M.reshape(-1, *(1 for _ in like.shape[1:]))


def settle(
    method: LocalLoss,
    functional: bool,
    emb_MBD: Tensor,
    mask_MB: Tensor,
    sound_M: Tensor,
    own: Fields,
    sent: Fields,
    head: Fields,
    who: Cohort,
    count_M: Tensor | None,
    lr: Tensor,
    seed: int,
    number: int | Tensor,
) -> Settled:
    """Each client's loss and its derivatives, its report, and its weight in the common backward pass."""
    each_head = {name: value.expand(len(who.client_M), *value.shape) for name, value in head.items()}
    mine = method.start(own, sent, who, emb_MBD, mask_MB)
    loss_M, emb_grad, mine_grad, head_grad = derivatives(
        method.loss, emb_MBD, mask_MB, mine, method.learns, sent, each_head, who, functional
    )
    mine = moved(mine, mine_grad, lr, mask_MB.any(1))
    reports = (Stream.named if functional else Stream.later)(seed, "report", who.client_M, number)
    stays, leaves = method.report(mine, sent, who, emb_MBD, mask_MB, reports)
    good_M = sound_M & finite_rows(loss_M, emb_grad, *stays.values(), *leaves.values(), *head_grad.values())
    weight_M = normalised(who, good_M, count_M, emb_MBD.dtype)

    def weighted(grad: Tensor) -> Tensor:
        return torch.where(over(weight_M > 0, grad), grad * over(weight_M, grad), 0)

    tail = [weighted(grad).sum(0).reshape(-1) for grad in head_grad.values()]
    return Settled(loss_M, mine, stays, leaves, weight_M, weighted(emb_grad), tail)
