"""What happens on the devices between the forward and the backward pass of a cohort that takes one local step.

Pure functions of tensors, in one piece, so that they can be compiled into a handful of kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from selfsame.engine.batches import Batch
from selfsame.engine.optimisers import Update
from selfsame.engine.plan import Start
from selfsame.methods.base import Cohort, Fields, LocalLoss, sample_mean, unit
from selfsame.methods.wire import finite_rows
from selfsame.streams import Stream

OwnLoss = Callable[[Tensor, Fields, Fields], Tensor]  # of embeddings, learned fields and heads: one value each


@dataclass(frozen=True)
class LocalWork:
    """What the clients' local training comes to."""

    loss_M: Tensor
    mine: Fields  # the working fields after it
    stays: Fields
    leaves: Fields
    weight_M: Tensor  # omega_k over the clients that answered with finite values, 0 for the others
    update: Update | None = None
    alone_MP: Tensor | None = None  # the networks of clients that are not federated
    change_MP: Tensor | None = None  # each client's update, 0 without an answer, where only their sum is released


@dataclass(frozen=True)
class Kept:
    """Where the network that training began with puts a batch, as unit vectors, and how hard that pulls."""

    weight: float
    first_MBD: Tensor

    def loss(self, emb_MBD: Tensor, mask_MB: Tensor) -> Tensor:
        """The mean squared distance of unit embeddings from the first network's, times the weight: (M,)."""
        return self.weight * sample_mean((unit(emb_MBD) - self.first_MBD).square().sum(-1), mask_MB)


def own_loss(
    loss: Callable[..., Tensor], mask_MB: Tensor, mine: Fields, sent: Fields, who: Cohort, kept: Kept | None = None
) -> OwnLoss:
    """A method's loss of what is learned, and the pull to the first network where there is one.

    A client whose batch is empty (it has finished its pass) contributes 0.
    """

    def value(emb_MBD: Tensor, learned: Fields, head: Fields) -> Tensor:
        loss_M = loss(emb_MBD, mask_MB, {**mine, **learned}, sent, head, who)
        if kept is not None:
            loss_M = loss_M + kept.loss(emb_MBD, mask_MB)
        return loss_M * mask_MB.any(1)

    return value


def derivatives(loss: OwnLoss, emb_MBD: Tensor, learned: Fields, head: Fields) -> tuple[Tensor, Tensor, Fields, Fields]:
    """(loss_M, d/d emb, d/d learned, d/d head), each row from its own client's loss; `head` has one row per client."""

    def total(emb_MBD: Tensor, learned: Fields, head: Fields) -> tuple[Tensor, Tensor]:
        loss_M = loss(emb_MBD, learned, head)
        return loss_M.sum(), loss_M

    if torch.compiler.is_compiling():  # which cannot follow the plain way; that one has less to do
        grads, loss_M = torch.func.grad(total, (0, 1, 2), has_aux=True)(emb_MBD, learned, head)
        return loss_M, *grads
    emb = emb_MBD.detach().requires_grad_()
    learned = {name: value.detach().requires_grad_() for name, value in learned.items()}
    heads = {name: value.detach().requires_grad_() for name, value in head.items()}
    with torch.enable_grad():
        value, loss_M = total(emb, learned, heads)
        wanted = [emb, *learned.values(), *heads.values()]
        found = torch.autograd.grad(value, wanted, allow_unused=True, materialize_grads=True)
    cut = 1 + len(learned)
    fields = (dict(zip(learned, found[1:cut], strict=True)), dict(zip(heads, found[cut:], strict=True)))
    return loss_M.detach(), found[0], *fields


def shared_derivatives(
    loss: OwnLoss, emb_MBD: Tensor, learned: Fields, head: Fields
) -> tuple[Tensor, Tensor, Fields, Callable[[Tensor], list[Tensor]]]:
    """(loss_M, d/d emb, d/d learned, weights -> d (weighted sum) / d head), of one head without replicas."""
    emb = emb_MBD.detach().requires_grad_()
    learned = {name: value.detach().requires_grad_() for name, value in learned.items()}
    heads = [value.detach().requires_grad_() for value in head.values()]
    with torch.enable_grad():
        loss_M = loss(emb, learned, dict(zip(head, heads, strict=True)))
        wanted = [emb, *learned.values()]
        found = torch.autograd.grad(loss_M.sum(), wanted, retain_graph=True, allow_unused=True, materialize_grads=True)

    def pull(weight_M: Tensor) -> list[Tensor]:
        return list(torch.autograd.grad(loss_M, heads, weight_M, allow_unused=True, materialize_grads=True))

    return loss_M.detach(), found[0], dict(zip(learned, found[1:], strict=True)), pull


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
    seed: int,
    start: Start,
    batch: Batch,
    emb_MBD: Tensor,
    head: Fields,
    kept: Kept | None = None,
    replicas: bool | None = None,
) -> tuple[LocalWork, Tensor, list[Tensor]]:
    """(the work of a single step, its weighted derivatives in the embeddings and, flat, in the head).

    A head that all share needs no replicas, which are clients x head numbers, unless something in it is not finite:
    then each client's own derivatives tell whose fault that is. On CUDA asking would wait for the device.
    """
    if replicas is None:
        if head and emb_MBD.device.type == "cpu" and not torch.compiler.is_compiling():
            found = settle(method, seed, start, batch, emb_MBD, head, kept, replicas=False)
            if all(bool(torch.isfinite(piece).all()) for piece in found[2]):
                return found
        replicas = True
    who, mask_MB = start.who, batch.mask_MB
    mine = method.start(start.own, start.sent, who, emb_MBD, mask_MB)
    loss = own_loss(method.loss, mask_MB, mine, start.sent, who, kept)
    learned = {name: mine[name] for name in method.learns}
    head_grad: Fields = {}
    pull: Callable[[Tensor], list[Tensor]] | None = None
    if replicas:
        each_head = {name: value.expand(len(who.client_M), *value.shape) for name, value in head.items()}
        loss_M, emb_grad, mine_grad, head_grad = derivatives(loss, emb_MBD, learned, each_head)
    else:
        loss_M, emb_grad, mine_grad, pull = shared_derivatives(loss, emb_MBD, learned, head)
    mine = moved(mine, mine_grad, start.lr, mask_MB.any(1))
    named = Stream.named if torch.compiler.is_compiling() else Stream.later
    reports = named(seed, "report", who.client_M, start.number)
    stays, leaves = method.report(mine, start.sent, who, emb_MBD, mask_MB, reports)
    good_M = batch.sound_M & finite_rows(loss_M, emb_grad, *stays.values(), *leaves.values(), *head_grad.values())
    weight_M = normalised(who, good_M, start.count_M, emb_MBD.dtype)

    def weighted(grad: Tensor) -> Tensor:
        return torch.where(over(weight_M > 0, grad), grad * over(weight_M, grad), 0)

    tail = [weighted(grad).sum(0) for grad in head_grad.values()] if pull is None else pull(weight_M)
    work = LocalWork(loss_M, mine, stays, leaves, weight_M)
    return work, weighted(emb_grad), [piece.reshape(-1) for piece in tail]
