"""How an owner's threshold is chosen, what it will do, and when it is refused."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from selfsame.device.strangers import Share, Strangers
from selfsame.device.thresholds import Threshold, balanced, bounded, check_range, fixed, needed, share_interval, warm_up
from selfsame.errors import SelfsameError

Floats = NDArray[np.float64]

RULES = ("tpr", "bounded", "fpr", "balanced", "paper", "fixed")
SURE_OWNERS = 19  # of a cohort that honest samples are refused by once in twenty times
MOST_FPR = 0.1  # strangers that may be expected to be let in, unless the user says more
_OLD_NAMES = {"warm-up": "tpr"}
_MOST_MEANS = 2000
_NO_COHORT = "the model carries no cohort of strangers: an old export, or of data with fewer than 5 people"


@dataclass(frozen=True)
class Rule:
    """Where a threshold comes from.

    From the owner's scores: FedUV's Algorithm 2 (tpr), the same with a guarantee (bounded). From the strangers of the
    model's card: at most some (fpr), as many as owners fail (balanced). From samples of others: FDML's Algorithm 4
    (paper). Or from the user (fixed).
    """

    name: str = "tpr"
    tpr: float = 0.9  # q: the share of the owner's attempts that must pass
    confidence: float = 0.95  # of the bounded rule and of fpr's
    fixed: float | None = None
    fpr: float | None = None  # the share of strangers that may pass

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", _OLD_NAMES.get(self.name, self.name))
        if self.name not in RULES:
            raise SelfsameError(f"--rule: expected {', '.join(RULES)}, got {self.name!r}")
        if not 0 < self.tpr <= 1:
            raise SelfsameError(f"--tpr: expected a share above 0 and up to 1, got {self.tpr}")
        if not 0 < self.confidence < 1:
            raise SelfsameError(f"--confidence: expected a share between 0 and 1, got {self.confidence}")
        if (self.name == "fixed") != (self.fixed is not None):
            raise SelfsameError("--threshold: a number goes with --rule fixed, and with no other rule")
        if self.fixed is not None:
            fixed(self.fixed)  # refuses what is no number
        if (self.name == "fpr") != (self.fpr is not None):
            raise SelfsameError("--fpr: a share goes with --rule fpr, and with no other rule")
        if self.fpr is not None and not 0 < self.fpr < 1:
            raise SelfsameError(f"--fpr: expected a share between 0 and 1, got {self.fpr}")

    def threshold(
        self,
        scores: Sequence[float],
        strangers: Strangers | None = None,
        others: Sequence[float] = (),
        together: int = 1,
    ) -> Threshold:
        """The threshold of some warm-up scores, for the mean score of `together` samples.

        `strangers` is a population of attempts that are no larger, `others` are scores of other people's samples.
        """
        if self.fixed is not None:
            return fixed(self.fixed)
        own = mean_scores(scores, together, apart=self.name == "bounded")
        if self.name == "tpr":
            return warm_up(own, self.tpr)
        if self.name == "bounded":
            return self._bounded(own, together)
        if self.name == "paper":
            if not len(others):
                raise SelfsameError(
                    "--rule paper: takes samples of other people, FDML's Algorithm 4; name them with --others"
                )
            found = balanced(own, others)
        else:
            if strangers is None:
                raise SelfsameError(
                    f"--rule {self.name}: the model carries no cohort of strangers; export it from its run again, "
                    "where the data hold 5 people or more"
                )
            found = balanced(own, strangers.typical()) if self.fpr is None else self._at_most(self.fpr, strangers)
        return Threshold(found.value, self.name, None, found.confidence, len(scores), False, found.note)

    def _bounded(self, own: Floats, together: int) -> Threshold:
        """With its guarantee, or not at all: an extrapolated one lets in whom it will."""
        enough = needed(float(self.tpr), float(self.confidence))
        if len(own) < enough:
            each = "" if together == 1 else f" groups of {together}"
            raise SelfsameError(
                f"--rule bounded: TPR {100 * self.tpr:.4g} % with {100 * self.confidence:.4g} % confidence takes "
                f"{enough} warm-up samples{each}, got {len(own)}; give more, promise less (--tpr) or take another rule"
            )
        return bounded(own, self.tpr, self.confidence)

    def _at_most(self, fpr: float, strangers: Strangers) -> Threshold:
        value, confidence = strangers.bound(fpr, self.confidence)
        note = (
            f"at most {100 * fpr:.4g} % of strangers for {100 * confidence:.3g} % of owners, "
            f"by {strangers.words}; no TPR is promised"
        )
        return Threshold(value, "fpr", None, confidence, 0, False, note)


def mean_scores(scores: Sequence[float], together: int, *, apart: bool = False) -> Floats:
    """The means of so many of the scores: of all choices, or of an even draw of 2,000 of them.

    With `apart` no score counts twice, so that the means are as independent as the scores.
    """
    each = np.asarray(scores, np.float64).reshape(-1)
    if together == 1:
        return each
    if not 1 <= together <= len(each):
        raise SelfsameError(
            f"together: a decision over {together} samples takes as many warm-up scores, {len(each)} are there"
        )
    if apart:
        whole = len(each) // together * together
        return each[:whole].reshape(-1, together).mean(1)
    if math.comb(len(each), together) <= _MOST_MEANS:
        return np.array([float(np.mean(some)) for some in itertools.combinations(each.tolist(), together)])
    rng = np.random.default_rng(0)
    return np.array([each[rng.permutation(len(each))[:together]].mean() for _ in range(_MOST_MEANS)])


@dataclass(frozen=True)
class Expected:
    """What a threshold will do: the owner's samples that it refuses, the strangers that it lets in; None: unknown."""

    refused: Share | None
    let_in: Share | None
    source: str  # of the second, in words


def expect(value: float, scores: Sequence[float], strangers: Strangers | None, others: Sequence[float]) -> Expected:
    """By the owner's warm-up scores, and by scores of others or else by the card's population.

    Of n scores r lie below the threshold. Where it is the (r + 1)-th smallest, the next one lies below with a chance of
    (r + 1) / (n + 1); where it comes from elsewhere that is a little more than r / n.
    """
    refused = None
    if len(scores):
        below = int(np.sum(np.asarray(scores) < value))
        refused = Share((below + 1) / (len(scores) + 1), *share_interval(below, len(scores)))
    if len(others):
        passed = int(np.sum(np.asarray(others) >= value))
        let_in = Share(passed / len(others), *share_interval(passed, len(others)))
        return Expected(refused, let_in, f"{len(others)} samples of others")
    if strangers is None:
        return Expected(
            refused,
            None,
            "the model carries no cohort of strangers: it was exported before there were, or knows fewer than 5 people",
        )
    return Expected(refused, strangers.let_in(value), strangers.words)


def check(value: float, score: str, expected: Expected, most_fpr: float) -> None:
    """Refuse a threshold that cannot work."""
    check_range(value, score)
    if not 0 <= most_fpr <= 1:
        raise SelfsameError(f"--most-fpr: expected a share from 0 to 1, got {most_fpr}")
    found = expected.let_in
    if found is not None and found.value > most_fpr:
        raise SelfsameError(
            f"threshold {value:.4f}: {percent(found.value)} of strangers are expected to be let in, more than "
            f"{percent(most_fpr)}; give more or better samples, take --rule fpr, or allow it with --most-fpr"
        )


def check_one_person(own: Sequence[float], strangers: Strangers | None, what: str) -> str:
    """Refuse scores that strangers would have: more of them under the line than any owner of the cohort had.

    An honest new owner has more than all of O others with a chance of 1 / (O + 1). Where that is above one in twenty,
    nothing is refused: what is odd is the answer, in words.
    """
    found = None if strangers is None else strangers.alike(own)
    if strangers is None or found is None or found[0] <= found[1]:
        return ""
    odd = (
        f"{percent(found[0])} of {what} score as strangers do (below {strangers.even:.4f}), "
        f"of {strangers.owners} owners nobody had more than {percent(found[1])}"
    )
    if strangers.owners < SURE_OWNERS:
        return odd
    raise SelfsameError(
        f"samples: {odd}: are they all of one person, and of the right one? --mixed takes them all the same"
    )


def percent(share: float) -> str:
    return f"{100 * share:.2g} %" if share < 0.1 else f"{100 * share:.3g} %"
