"""How well a trained network tells people apart: those it was trained with, and those it has never seen."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from selfsame.data.federation import Samples, Trials
from selfsame.measure.scores import Roc, auroc, eer, one_class_auroc, roc
from selfsame.methods.base import Comparison, LocalLoss, World, unit

Embed = Callable[[Tensor], Tensor]  # raw samples (S, *shape) -> embeddings (S, D)

_CHUNK = 256
_MOST_SCORES = 2_000_000
_MOST_NUMBERS = 2**24  # that a chunk of samples may hold
MOST_PAIRS = 2000  # samples that are compared with one another, at most


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
    method: LocalLoss,
    embed: Embed,
    template_CD: Tensor,
    test: Samples,
    unseen: Samples,
    curves: bool = False,
    trials: Trials | None = None,
    shared_CD: Tensor | None = None,
) -> Evaluation:
    """P@1 and one-class AUROC of seen classes against their own vectors; AUROC and EER over pairs of unseen samples.

    The pairs are those of the trial list, where there is one, and otherwise all of them. `shared_CD` is what others see
    in place of the classes' own vectors: P@1 by these tells how well somebody without the true ones can name a sample.
    """
    figures: dict[str, float | None] = {}
    drawn: dict[str, Roc] = {}
    if len(test.x):
        rows = max(1, min(_chunk(test), _MOST_SCORES // max(1, len(template_CD))))
        step = max(1, -(-len(test.x) // MOST_PAIRS))
        kept: list[Tensor] = []
        named = 0

        def parts() -> Iterator[Tensor]:
            nonlocal named
            for begin, x in zip(range(0, len(test.x), rows), test.x.split(rows), strict=True):
                emb = embed(x)
                kept.append(emb[-begin % step :: step])
                if shared_CD is not None:
                    named += int((method.score(emb, shared_CD).argmax(1) == test.y[begin : begin + rows]).sum())
                yield method.score(emb, template_CD)

        figures, own, other = seen_figures(parts(), test.y, len(template_CD))
        figures["p@1_shared"] = None if shared_CD is None else named / len(test.x)
        figures["alike"] = alikeness(torch.cat(kept), test.y[::step]) if method.by_angle else None
        if curves:
            drawn["seen"] = roc(own, other)
    figures |= {"auroc": None, "eer": None}
    if len(unseen.x):
        if trials is not None and len(trials):
            genuine, impostor = trial_scores(method, embed, unseen, trials)
        else:
            genuine, impostor = pair_scores(method, embed, unseen)
        figures["auroc"] = auroc(genuine, impostor)
        figures["eer"] = eer(genuine, impostor)[0]
        if curves:
            drawn["unseen"] = roc(genuine, impostor)
    return Evaluation(figures, drawn)


def seen_figures(
    parts: Iterable[Tensor], label_S: Tensor, classes: int
) -> tuple[dict[str, float | None], np.ndarray, np.ndarray]:
    """(figures, scores against the own class, scores against others) from score matrices (rows, C) that come in pieces.

    P@1; AUROC and EER of the own class against the others; FedMetric's mean one-class AUROC. Memory does not grow with
    the number of classes: beyond two million scores an even selection of the others is kept, and no one-class AUROC.
    """
    stride = max(1, -(-len(label_S) * classes // _MOST_SCORES))
    right, at = 0, 0
    own: list[Tensor] = []
    other: list[Tensor] = []
    whole: list[Tensor] = []
    for score_RC in parts:
        label_R = label_S[at : at + len(score_RC)]
        at += len(score_RC)
        right += int((score_RC.argmax(1) == label_R).sum())
        own.append(score_RC.gather(1, label_R[:, None])[:, 0].double().cpu())
        rest = torch.ones_like(score_RC, dtype=torch.bool).scatter_(1, label_R[:, None], False)
        other.append(score_RC[rest][::stride].double().cpu())
        if stride == 1:
            whole.append(score_RC)
    mine, others = torch.cat(own).numpy(), torch.cat(other).numpy()
    figures: dict[str, float | None] = {
        "p@1": right / len(label_S),
        "auroc_seen": auroc(mine, others),
        "eer_seen": eer(mine, others)[0],
        "one_class_auroc": one_class_auroc(torch.cat(whole).cpu(), label_S.cpu(), torch.arange(classes))
        if whole
        else None,
    }
    return figures, mine, others


def pair_scores(method: Comparison, embed: Embed, samples: Samples) -> tuple[np.ndarray, np.ndarray]:
    """Scores of all genuine and all impostor pairs among the samples (an even selection of at most 2,000 of them)."""
    keep = torch.arange(0, len(samples.x), max(1, -(-len(samples.x) // MOST_PAIRS)), device=samples.x.device)
    keep = keep[samples.y[keep].argsort(stable=True)]
    emb = torch.cat([embed(part) for part in samples.x[keep].split(_chunk(samples))])
    score = method.score(emb, emb).cpu().numpy()
    # Class after class: genuine pairs are triangles on the diagonal, impostors all that lies right of them.
    genuine, impostor, first = [], [], 0
    for end in itertools.accumulate(torch.unique_consecutive(samples.y[keep], return_counts=True)[1].tolist()):
        genuine.append(score[first:end, first:end][np.triu_indices(end - first, 1)])
        impostor.append(score[first:end, end:].ravel())
        first = end
    return np.concatenate(genuine), np.concatenate(impostor)


def trial_scores(method: LocalLoss, embed: Embed, samples: Samples, trials: Trials) -> tuple[np.ndarray, np.ndarray]:
    """Scores of the genuine and of the impostor pairs of a trial list; every sample in it is embedded once."""
    needed, place = torch.unique(torch.cat([trials.index_a, trials.index_b]), return_inverse=True)
    emb = torch.cat([embed(samples.x[part]) for part in needed.split(_chunk(samples))])
    one, two = emb[place[: len(trials)]], emb[place[len(trials) :]]
    parts = zip(one.split(_CHUNK), two.split(_CHUNK), strict=True)
    score = torch.cat([method.score(a, b).diagonal() for a, b in parts]).double().cpu().numpy()
    same = trials.same.cpu().numpy()
    return score[same], score[~same]


def _chunk(samples: Samples) -> int:
    """How many samples to embed at a time: fewer where each comes as several crops."""
    return max(1, min(_CHUNK, _MOST_NUMBERS // max(1, math.prod(samples.x.shape[1:]))))


def alikeness(emb_SD: Tensor, label_S: Tensor) -> float:
    """Mean cosine between samples of different classes: near 1, the network maps everybody to one point.

    Over all pairs the cosines of unit vectors add up to the square of their sum, and over those of a class likewise.
    """
    class_S, size_C = torch.unique(label_S, return_inverse=True, return_counts=True)[1:]
    unit_SD = unit(emb_SD.double())
    sum_CD = unit_SD.new_zeros(len(size_C), unit_SD.shape[1]).index_add_(0, class_S, unit_SD)
    pairs = len(label_S) ** 2 - int(size_C.square().sum())
    return float(sum_CD.sum(0).square().sum() - sum_CD.square().sum()) / pairs if pairs else 0.0
