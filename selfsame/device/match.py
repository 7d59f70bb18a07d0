"""Two samples compared with each other, by the pairs of the model's cohort."""

from __future__ import annotations

from dataclasses import dataclass

from selfsame.device.card import Raw, score, template
from selfsame.device.embedder import Embedder
from selfsame.device.strangers import Share, find
from selfsame.device.thresholds import check_range


@dataclass(frozen=True)
class Match:
    """What was found of two samples; None: the model's card does not say."""

    score: float
    threshold: float | None
    llr: float | None  # log-likelihood ratio, natural logarithm
    strangers: Share | None  # pairs of strangers that score as high

    @property
    def match(self) -> bool | None:
        return None if self.threshold is None else self.score >= self.threshold

    @property
    def word(self) -> str:
        return "match" if self.match else "no match"


def matched(model: Embedder, a: Raw, b: Raw, threshold: float | None = None) -> Match:
    """The second sample against the first as a template of one."""
    card = model.card
    if threshold is not None:
        check_range(threshold, card.score)
    emb_a, emb_b = (model.embed(raw[None]) for raw in (a, b))
    value = float(score(card, emb_b, template(card, emb_a))[0])
    pairs = find(card.cohort, "enrolled", 1)
    if pairs is None or pairs.template != 1:
        return Match(value, threshold, None, None)
    limit = pairs.even if threshold is None else threshold
    return Match(value, limit, float(pairs.calibration.llr(value)), pairs.let_in(value))
