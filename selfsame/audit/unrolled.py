"""The attacker who unrolls several local steps: it fits a vector and features that would have made the update seen.

It knows the network before, the learning rate, the number of steps and what the server sent. A device's last layer goes
through steps W - lr dW, b - lr db, and so does a vector that it learns; with S made-up features of the owner's samples
at the last layer all of that can be computed, and its end compared with the update. The gap is made small by gradient
descent through the steps, from the analytic answer on. What it does not know is taken to stand still: the features,
although the layers below train too, and the batch, although every step has another.

Shapes: M updates, S made-up samples, D embedding width, H features before the last layer.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from selfsame.audit.layers import Layer
from selfsame.methods.base import Cohort, Fields, LocalLoss, unit

_RATE = 0.03  # of the search, in lengths of what is searched


@dataclass(frozen=True)
class Unrolled:
    """What was fitted: the vectors at the end of the local steps, and how much of each update is left unexplained."""

    vector_MD: Tensor
    gap_M: Tensor  # the squared distance of the update made up from the one seen, over the latter's square


def local_steps(
    method: LocalLoss, before: Layer, feature_MSH: Tensor, vector_MD: Tensor, sent: Fields, who: Cohort, lr: float,
    steps: int,
) -> tuple[Layer, Tensor]:  # fmt: skip
    """(the last layer, the vector) after so many local steps on the same features, differentiable in both."""
    name = next(iter(method.wire.own))
    count = len(feature_MSH)
    weight = before.weight.expand(count, *before.weight.shape[-2:])
    bias = None if before.bias is None else before.bias.expand(count, before.bias.shape[-1])
    mask_MS = torch.ones(feature_MSH.shape[:2], dtype=feature_MSH.dtype, device=feature_MSH.device)
    for _ in range(steps):
        emb_MSD = Layer(weight, bias).embed(feature_MSH)
        loss = method.loss(emb_MSD, mask_MS, {name: vector_MD}, sent, {}, who).sum()
        wanted = [emb_MSD, vector_MD] if name in method.learns else [emb_MSD]
        slope_MSD, *moved = torch.autograd.grad(loss, wanted, create_graph=True)
        weight = weight - lr * slope_MSD.mT @ feature_MSH
        bias = None if bias is None else bias - lr * slope_MSD.sum(1)
        vector_MD = vector_MD - lr * moved[0] if moved else vector_MD
    return Layer(weight, bias), vector_MD


def fit(
    method: LocalLoss, before: Layer, change: Layer, first_MD: Tensor, sent: Fields, who: Cohort, lr: float, steps: int,
    tries: int = 300, samples: int = 4,
) -> Unrolled:  # fmt: skip
    """The vectors that explain these updates best, from a first guess; all tensors in double precision."""
    start_MSH, start_MD = first_features(before, change, samples), first_MD.double()
    size_M11 = start_MSH.square().mean((1, 2), keepdim=True).sqrt().clamp(min=1e-12)
    size_M1 = start_MD.square().mean(1, keepdim=True).sqrt().clamp(min=1e-12)
    free = [(start_MSH / size_M11).requires_grad_(), (start_MD / size_M1).requires_grad_()]
    search = torch.optim.Adam(free, lr=_RATE)
    slower = torch.optim.lr_scheduler.CosineAnnealingLR(search, max(1, tries))
    best_MD = start_MD.clone()
    least_M = torch.full_like(size_M1[:, 0], torch.inf)
    for _ in range(tries + 1):
        with torch.enable_grad():
            after, vector_MD = local_steps(method, before, free[0] * size_M11, free[1] * size_M1, sent, who, lr, steps)
            gap_M = _gap(after, before, change)
            found = torch.autograd.grad(gap_M.sum(), free)
        better_M = gap_M.detach() < least_M
        least_M = torch.where(better_M, gap_M.detach(), least_M)
        best_MD = torch.where(better_M[:, None], vector_MD.detach(), best_MD)
        for value, grad in zip(free, found, strict=True):
            value.grad = grad.nan_to_num()
        search.step()
        slower.step()
    return Unrolled(best_MD, least_M)


def _gap(after: Layer, before: Layer, change: Layer) -> Tensor:
    """How much of each update is unexplained: weights and bias count alike."""
    weight_M = (after.weight - before.weight - change.weight).square().sum((1, 2))
    gap_M = weight_M / change.weight.square().sum((1, 2)).clamp(min=1e-300)
    if change.bias is None or after.bias is None or before.bias is None:
        return gap_M
    bias_M = (after.bias - before.bias - change.bias).square().sum(1)
    return gap_M + bias_M / change.bias.square().sum(1).clamp(min=1e-300)


def first_features(before: Layer, change: Layer, samples: int) -> Tensor:
    """Features to start from: the update's mean feature, and others about it in its own directions, (M, S, H)."""
    toward_MD = change.weight.sum(2) if change.bias is None else change.bias
    mean_MH = (change.weight.mT @ toward_MD[..., None])[..., 0] / toward_MD.square().sum(1, keepdim=True).clamp(
        min=1e-300
    )
    other_MSH = torch.linalg.svd(change.weight, full_matrices=False).Vh[:, :samples]
    sign_S = torch.tensor([(-1.0) ** s for s in range(other_MSH.shape[1])], dtype=mean_MH.dtype, device=mean_MH.device)
    size_M1 = mean_MH.norm(dim=1, keepdim=True)
    return mean_MH[:, None] + 0.1 * size_M1[..., None] * sign_S[:, None] * unit(other_MSH)
