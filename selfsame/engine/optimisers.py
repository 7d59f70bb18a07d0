"""Server optimisers on the averaged update, a step in place on one parameter vector."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from selfsame.config.recipe import ServerPart
from selfsame.engine.model import Layout
from selfsame.errors import SelfsameError
from selfsame.methods.base import Fields
from selfsame.nets.learned import fits


def begin(part: ServerPart, theta_P: Tensor, layout: Layout) -> Fields:
    """The optimiser's own state."""
    zeros = torch.zeros_like(theta_P)
    plain = {"plain": _plain(part.plain, layout).to(theta_P.device)} if part.plain else {}
    if part.optimiser == "momentum":
        return {"velocity": zeros, **plain}
    if part.optimiser == "adam":
        step = torch.zeros((), dtype=torch.float64, device=theta_P.device)
        return {"velocity": zeros, "square": zeros.clone(), "step": step, **plain}
    if part.optimiser == "adagrad":
        return {"square": zeros, **plain}
    return plain


def _plain(patterns: Sequence[str], layout: Layout) -> Tensor:
    """Where in theta the tensors lie that these patterns name."""
    names = [name.removeprefix("net.") for name in layout.names if name.startswith("net.")]
    for pattern in patterns:
        if not any(fits(name, pattern) for name in names):
            raise SelfsameError(f"server.plain: nothing fits {pattern!r}; there are: {', '.join(names)}")
    chosen = {f"net.{name}" for name in names if any(fits(name, pattern) for pattern in patterns)}
    return torch.cat(
        [torch.full((size,), name in chosen) for name, size in zip(layout.names, layout.sizes, strict=True)]
    )


@dataclass(frozen=True)
class Update:
    """Theta minus the weighted mean of the clients' thetas, once it is scaled."""

    pieces: Sequence[Tensor]  # in theta's order, some of lower precision
    scale: Tensor | float


def apply(
    part: ServerPart, optim: Fields, theta_P: Tensor, update: Update, lr: Tensor | float, server_lr: Tensor | float
) -> None:
    """A step on the clients' update."""
    pieces = update.pieces
    whole = pieces[0] if len(pieces) == 1 else torch.cat([piece.to(theta_P.dtype) for piece in pieces])
    step(part, optim, theta_P, update.scale * whole.to(theta_P.dtype), lr, server_lr)


def step(
    part: ServerPart, optim: Fields, theta_P: Tensor, delta_P: Tensor, lr: Tensor | float, server_lr: Tensor | float
) -> None:
    """theta <- theta - server_lr * f(delta), where delta is theta minus the clients' weighted mean.

    "average" with server_lr 1 is federated averaging. Weight decay acts as if each client had decayed its weights in
    its own step (times the local lr) for average and momentum, and is decoupled from the scaling for Adam and Adagrad.
    Tensors that are plain are averaged, at a learning rate of their own.
    """
    move_P = _move(part, optim, theta_P, delta_P, lr)
    if "plain" in optim:
        if part.weight_decay:
            delta_P = delta_P + (lr * part.weight_decay) * theta_P
        move_P = torch.where(optim["plain"], part.plain_lr / part.lr * delta_P, move_P)
    theta_P.sub_(server_lr * move_P)


def _move(part: ServerPart, optim: Fields, theta_P: Tensor, delta_P: Tensor, lr: Tensor | float) -> Tensor:
    """f(delta); the optimiser's state goes on."""
    decay = part.weight_decay
    if part.optimiser in ("average", "momentum"):
        if decay:
            delta_P = delta_P + (lr * decay) * theta_P
        if part.optimiser == "momentum":
            velocity = optim["velocity"].mul_(part.momentum).add_(delta_P)
            return delta_P + part.momentum * velocity if part.nesterov else velocity
        return delta_P
    if part.optimiser == "adam":
        count = optim["step"].add_(1)
        first = optim["velocity"].mul_(part.momentum).add_(delta_P, alpha=1 - part.momentum)
        second = optim["square"].mul_(part.beta2).addcmul_(delta_P, delta_P, value=1 - part.beta2)
        mean = first / (1 - part.momentum**count).to(theta_P.dtype)
        scale = (second / (1 - part.beta2**count).to(theta_P.dtype)).sqrt_().add_(part.epsilon)
        move = mean / scale
    else:
        second = optim["square"].addcmul_(delta_P, delta_P)
        move = delta_P / (second.sqrt() + part.epsilon)
    return move + decay * theta_P if decay else move
