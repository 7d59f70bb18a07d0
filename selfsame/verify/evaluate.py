"""How well a trained network tells people apart: those it was trained with, and those it has never seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from selfsame.data.federation import Samples
from selfsame.methods.base import LocalLoss, World, unit
from selfsame.verify.scores import Roc, auroc, eer, roc

Embed = Callable[[Tensor], Tensor]  # raw samples (S, *shape) -> embeddings (S, D)

_CHUNK = 256
_MOST_PAIRS = 2000  # unseen samples that are compared with one another, at most


@dataclass(frozen=True)
class Evaluation:
    """Figures of one moment in training, and the curves behind them."""

    figures: dict[str, float | None]
    curves: dict[str, Roc] = field(default_factory=dict)


def class_templates(method: LocalLoss, truth_RD: Tensor, world: World) -> Tensor:
    """One vector a class (C, D): the mean over the rows of its clients."""
    if method.row == "class":
        return truth_RD
    class_R = world.class_of_N[: len(truth_RD)]
    total = truth_RD.new_zeros(world.classes, truth_RD.shape[1]).index_add_(0, class_R, truth_RD)
    return total / torch.bincount(class_R, minlength=world.classes).clamp(min=1)[:, None]


def evaluate(
    method: LocalLoss, embed: Embed, template_CD: Tensor, test: Samples, unseen: Samples, curves: bool = False
) -> Evaluation:
    """P@1 and one-class AUROC of seen classes against their own vectors; AUROC and EER over pairs of unseen samples."""
    figures: dict[str, float | None] = {}
    drawn: dict[str, Roc] = {}
    if len(test.x):
        score_SC = torch.cat([method.score(embed(part), template_CD) for part in test.x.split(_CHUNK)])
        figures |= seen_figures(score_SC, test.y)
        if curves:
            own, other = _own_and_other(score_SC, test.y)
            drawn["seen"] = roc(own, other)
    figures |= {"auroc": None, "eer": None}
    if len(unseen.x):
        genuine, impostor = pair_scores(method, embed, unseen)
        figures["auroc"] = auroc(genuine, impostor)
        figures["eer"] = eer(genuine, impostor)[0]
        if curves:
            drawn["unseen"] = roc(genuine, impostor)
    return Evaluation(figures, drawn)


def seen_figures(score_SC: Tensor, label_S: Tensor) -> dict[str, float | None]:
    """P@1, and AUROC and EER of each sample's own class against all the others."""
    own, other = _own_and_other(score_SC, label_S)
    return {
        "p@1": float((score_SC.argmax(1) == label_S).double().mean()),
        "auroc_seen": auroc(own, other),
        "eer_seen": eer(own, other)[0],
    }


def _own_and_other(score_SC: Tensor, label_S: Tensor, most: int = 2_000_000) -> tuple[np.ndarray, np.ndarray]:
    """Scores of samples against their own class and against others (an even selection where there are too many)."""
    own = score_SC.gather(1, label_S[:, None])[:, 0]
    rest = torch.ones_like(score_SC, dtype=torch.bool).scatter_(1, label_S[:, None], False)
    other = score_SC[rest]
    other = other[:: max(1, -(-len(other) // most))]
    return own.double().cpu().numpy(), other.double().cpu().numpy()


def pair_scores(method: LocalLoss, embed: Embed, samples: Samples) -> tuple[np.ndarray, np.ndarray]:
    """Scores of all genuine and all impostor pairs among the samples (an even selection of at most 2,000 of them)."""
    keep = torch.arange(0, len(samples.x), max(1, -(-len(samples.x) // _MOST_PAIRS)), device=samples.x.device)
    emb = torch.cat([embed(part) for part in samples.x[keep].split(_CHUNK)])
    label = samples.y[keep]
    score = method.score(emb, emb)
    upper = torch.ones_like(score, dtype=torch.bool).triu_(1)
    same = label[:, None] == label[None, :]
    return score[upper & same].double().cpu().numpy(), score[upper & ~same].double().cpu().numpy()


def alikeness(embed: Embed, samples: Samples, most: int = 2000) -> float:
    """Mean cosine between samples of different classes: near 1, the network maps everybody to one point."""
    keep = torch.arange(0, len(samples.x), max(1, -(-len(samples.x) // most)), device=samples.x.device)
    emb = unit(torch.cat([embed(part) for part in samples.x[keep].split(_CHUNK)]).double())
    cosine = emb @ emb.T
    label = samples.y[keep]
    different = label[:, None] != label[None, :]
    return float(cosine[different].mean()) if bool(different.any()) else 0.0
