"""What a look at a network in training computes: how well it tells people apart whom it knows, and whom it does not."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from selfsame.data.federation import Samples, Trials
from selfsame.data.sets.xc import MultiLabelled
from selfsame.errors import SelfsameError
from selfsame.measure.curves import Floats, Roc, auroc, corners
from selfsame.measure.ranking import label_precision, places, places_in, precision
from selfsame.measure.trials import (
    MOST_PAIRED,
    Embed,
    Scored,
    alone_blocks,
    embedded,
    pair_scores,
    pieces,
    template_blocks,
)
from selfsame.methods.base import Comparison, LocalLoss, World, unit

_MOST_SCORES = 2_000_000  # that are kept


@dataclass(frozen=True)
class Evaluation:
    """Figures of one moment in training, and the curves behind them, thinned."""

    figures: dict[str, float | None]
    curves: dict[str, Roc] = field(default_factory=dict)


def class_templates(method: LocalLoss, truth_RD: Tensor, world: World) -> Tensor:
    """One vector per class (C, D): the mean over the rows of its clients."""
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
        emb_SD = embedded(embed, test.x)
        figures, drawn["seen"] = seen_figures(template_blocks(method, emb_SD, template_CD), test.y, len(template_CD))
        if isinstance(test, MultiLabelled):
            figures |= {f"p@{k}": value for k, value in label_precision(method, emb_SD, template_CD, test).items()}
        figures["p@1_shared"] = None
        if shared_CD is not None:
            same = shared_CD is template_CD
            figures["p@1_shared"] = figures["p@1"] if same else _precision_at_1(method, emb_SD, shared_CD, test)
        step = max(1, -(-len(test.x) // MOST_PAIRED))
        figures["alike"] = alikeness(emb_SD[::step], test.y[::step]) if method.by_angle else None
    figures |= {"auroc": None, "eer": None}
    if len(unseen.x):
        drawn["unseen"] = curve = pair_curve(method, embed, unseen, trials)
        figures |= {"auroc": curve.area, "eer": curve.eer}
    return Evaluation(figures, {name: curve.thin() for name, curve in drawn.items()} if curves else {})


def evaluate_alone(
    method: LocalLoss, embed: Embed, truth_ND: Tensor, world: World, test: Samples, curves: bool = False
) -> Evaluation:
    """Every client judges by its own network; people it has never seen have no network, so no figure."""
    blocks = alone_blocks(method, embed, truth_ND, world, pieces(test.x))
    figures, curve = seen_figures(blocks, test.y.cpu(), world.classes)
    return Evaluation({**figures, "auroc": None, "eer": None}, {"seen": curve.thin()} if curves else {})


def seen_figures(blocks: Iterable[Tensor], label_S: Tensor, classes: int) -> tuple[dict[str, float | None], Roc]:
    """(figures, ROC of the own class against others) from score matrices (rows, C) that come in pieces.

    P@1; AUROC and EER of the own class against the others; FedMetric's mean one-class AUROC. Memory does not grow with
    the number of classes: beyond two million scores an even selection of the others is kept, and no one-class AUROC.
    """
    stride = max(1, -(-len(label_S) * classes // _MOST_SCORES))
    at = 0
    place: list[Tensor] = []
    own: list[Tensor] = []
    other: list[Tensor] = []
    whole: list[Tensor] = []
    for score_RC in blocks:
        label_R = label_S[at : at + len(score_RC)]
        at += len(score_RC)
        place.append(places(score_RC, label_R))
        own.append(score_RC.gather(1, label_R[:, None])[:, 0].double().cpu())
        rest = torch.ones_like(score_RC, dtype=torch.bool).scatter_(1, label_R[:, None], False)
        other.append(score_RC[rest][::stride].double().cpu())
        if stride == 1:
            whole.append(score_RC)
    curve = corners(torch.cat(own).numpy(), torch.cat(other).numpy())
    figures: dict[str, float | None] = {
        "p@1": precision(torch.cat(place), len(label_S), (1,))[1],
        "auroc_seen": curve.area,
        "eer_seen": curve.eer,
        "one_class_auroc": one_class_auroc(torch.cat(whole), label_S) if whole else None,
    }
    return figures, curve


def one_class_auroc(score_SC: Tensor, label_S: Tensor) -> float:
    """Mean over classes of the AUROC of their own samples against all others (FedMetric, Table 2).

    Classes without samples on both sides are left out.
    """
    label = label_S.cpu().numpy()
    rates = []
    for number, column in enumerate(score_SC.cpu().numpy().T):
        own = label == number
        if own.any() and not own.all():
            rates.append(auroc(column[own], column[~own]))
    if not rates:
        raise SelfsameError("one-class AUROC: no class has both samples of its own and others")
    return float(np.mean(rates))


def unseen_trials(method: Comparison, embed: Embed, samples: Samples, trials: Trials | None = None) -> Scored:
    """The trials of a list, or all pairs of samples (an even selection of at most 2,000), with their people."""
    if trials is not None and len(trials):
        needed, place = torch.unique(torch.cat([trials.index_a, trials.index_b]).cpu(), return_inverse=True)
        left, right = place.numpy().reshape(2, -1)
        person = samples.y.cpu()[needed].numpy()
        same = trials.same.cpu().numpy()
    else:
        needed = torch.arange(0, len(samples.x), max(1, -(-len(samples.x) // MOST_PAIRED)))
        needed = needed[samples.y.cpu()[needed].argsort(stable=True)]  # rounding depends on the order: class by class
        left, right = np.triu_indices(len(needed), 1)
        person = samples.y.cpu()[needed].numpy()
        same = person[left] == person[right]
    score = pair_scores(method, embedded(embed, samples.x, needed), left, right)
    return Scored(score, same, person[left], person[right])


def unseen_scores(
    method: Comparison, embed: Embed, samples: Samples, trials: Trials | None = None
) -> tuple[Floats, Floats]:
    """Their genuine and their impostor scores."""
    scored = unseen_trials(method, embed, samples, trials)
    return scored.genuine, scored.impostor


def pair_curve(method: Comparison, embed: Embed, samples: Samples, trials: Trials | None = None) -> Roc:
    """The ROC over these pairs."""
    return corners(*unseen_scores(method, embed, samples, trials))


def _precision_at_1(method: LocalLoss, emb_SD: Tensor, vector_CD: Tensor, test: Samples) -> float:
    """P@1 by other vectors: against all true labels, where samples have several."""
    if isinstance(test, MultiLabelled):
        return label_precision(method, emb_SD, vector_CD, test, (1,))[1]
    place_S = places_in(template_blocks(method, emb_SD, vector_CD), test.y)
    return precision(place_S, len(test.y), (1,))[1]


def alikeness(emb_SD: Tensor, label_S: Tensor) -> float:
    """Mean cosine between samples of different classes: near 1, the network maps everybody to one point.

    Over all pairs the cosines of unit vectors add up to the square of their sum, and over those of a class likewise.
    """
    class_S, size_C = torch.unique(label_S, return_inverse=True, return_counts=True)[1:]
    unit_SD = unit(emb_SD.double())
    sum_CD = unit_SD.new_zeros(len(size_C), unit_SD.shape[1]).index_add_(0, class_S, unit_SD)
    pairs = len(label_S) ** 2 - int(size_C.square().sum())
    return float(sum_CD.sum(0).square().sum() - sum_CD.square().sum()) / pairs if pairs else 0.0
