"""Enrolment and verification on a device: a user's vector and threshold, kept in a vault and compared with new samples.

The vector is the one that training left on the device (prototype, codeword, centre, class embedding), or is made from
enrolment samples. A sample that made it fits it too well, so the threshold comes from other ones: warm-up samples.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfsame.device.card import Raw, score, template
from selfsame.device.embedder import Embedder
from selfsame.device.thresholds import CEILINGS, Threshold, bounded, fixed, warm_up
from selfsame.device.vault import Vault
from selfsame.errors import SelfsameError

Vector = NDArray[np.float32]

RULES = ("warm-up", "bounded", "fixed")


@dataclass(frozen=True)
class Rule:
    """How a threshold comes from warm-up scores: FedUV's Algorithm 2, with a guarantee, or one that is given."""

    name: str = "warm-up"
    tpr: float = 0.9  # q: the share of the owner's attempts that must pass
    confidence: float = 0.95  # of the bounded rule
    fixed: float | None = None

    def __post_init__(self) -> None:
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

    def threshold(self, scores: Sequence[float], ceiling: float | None = None) -> Threshold:
        """The threshold of some warm-up scores."""
        if self.fixed is not None:
            return fixed(self.fixed)
        if self.name == "warm-up":
            return warm_up(scores, self.tpr)
        return bounded(scores, self.tpr, self.confidence, ceiling)


@dataclass(frozen=True)
class Enrolment:
    """What a device keeps of its user: no sample, and of the warm-up samples nothing but their scores."""

    template_D: Vector
    scores: tuple[float, ...]
    rule: Rule
    threshold: float

    def to_bytes(self) -> bytes:
        vector = base64.b64encode(self.template_D.astype("<f4").tobytes()).decode()
        rest = {"scores": self.scores, "rule": asdict(self.rule), "threshold": self.threshold}
        return json.dumps({"template": vector, **rest}).encode()

    @staticmethod
    def of(plain: bytes, user: str, width: int) -> Enrolment:
        """The enrolment in an opened file, which an older or newer version may have written."""
        try:
            found = json.loads(plain)
            template_D = np.frombuffer(base64.b64decode(found["template"], validate=True), "<f4").astype(np.float32)
            scores = tuple(float(value) for value in found["scores"])
            rule, threshold = Rule(**found["rule"]), float(found["threshold"])
        except (ValueError, KeyError, TypeError, SelfsameError) as error:
            raise SelfsameError(f"{user}: the enrolment is not of this version of selfsame; enrol anew") from error
        if template_D.shape != (width,) or not all(np.isfinite(x).all() for x in (template_D, scores, threshold)):
            raise SelfsameError(f"{user}: the enrolment does not fit the model; enrol anew")
        return Enrolment(template_D, scores, rule, threshold)


@dataclass(frozen=True)
class Enrolled:
    """What an enrolment was made from."""

    template_samples: int  # 0: the vector was there before
    threshold: Threshold


@dataclass(frozen=True)
class Verdict:
    """One attempt."""

    score: float
    threshold: float

    @property
    def accepted(self) -> bool:
        return self.score >= self.threshold


@dataclass(frozen=True)
class Verifier:
    """A model and a vault: everything that a device needs."""

    model: Embedder
    vault: Vault

    def enrol(
        self,
        user: str,
        samples: Sequence[Raw],
        rule: Rule | None = None,
        *,
        warm_up: int | None = None,
        vector: NDArray[Any] | None = None,
        replacing: bool = False,
    ) -> Enrolled:
        """Keep a user's vector and threshold.

        Without `vector` it is made from the first samples, and the last `warm_up` of them (half, if not said) set the
        threshold; with it, all samples do. A fixed threshold takes no warm-up samples.
        """
        rule = rule or Rule()
        self.vault.check_new(user, replacing)  # said before anything is computed or asked
        count = self._warm_up_count(len(samples), rule, warm_up, vector is not None)
        emb_SD = self._embed(samples)
        split = len(samples) - count
        made = template(self.model.card, emb_SD[:split]) if vector is None else np.asarray(vector)
        template_D = self._checked(made)
        scores = self._scores(emb_SD[split:], template_D)
        threshold = rule.threshold(scores, CEILINGS[self.model.card.score])
        enrolment = Enrolment(template_D, scores, rule, float(threshold.value))
        self.vault.write(user, self.model.card.digest, enrolment.to_bytes(), replacing=replacing)
        return Enrolled(split if vector is None else 0, threshold)

    def verify(self, user: str, sample: Raw) -> Verdict:
        """Whether a sample is the user's; every attempt takes the same steps, whatever comes out."""
        enrolment = Enrolment.of(self.vault.read(user, self.model.card.digest), user, self.model.card.width)
        found = self._scores(self._embed([sample]), enrolment.template_D)
        return Verdict(found[0], enrolment.threshold)

    def add_warm_up(self, user: str, samples: Sequence[Raw]) -> Threshold:
        """Set the threshold anew from the earlier warm-up samples and these."""
        if not samples:
            raise SelfsameError("samples: at least one is needed to warm up")
        now: list[Threshold] = []

        def edit(plain: bytes) -> bytes:
            before = Enrolment.of(plain, user, self.model.card.width)
            if before.rule.fixed is not None:
                raise SelfsameError(f"{user}: has a fixed threshold, which warm-up samples do not change")
            scores = (*before.scores, *self._scores(self._embed(samples), before.template_D))
            now.append(before.rule.threshold(scores, CEILINGS[self.model.card.score]))
            return replace(before, scores=scores, threshold=float(now[0].value)).to_bytes()

        self.vault.change(user, self.model.card.digest, edit)
        return now[0]

    def revoke(self, user: str) -> None:
        """Destroy a user's enrolment; a copy of it that comes back does not open."""
        self.vault.remove(user)

    def _warm_up_count(self, samples: int, rule: Rule, asked: int | None, has_vector: bool) -> int:
        """How many of the samples, the last ones, set the threshold."""
        if rule.fixed is not None:
            if asked:
                raise SelfsameError("--warm-up: a fixed threshold takes no warm-up samples")
            if has_vector == bool(samples):
                fault = "are not needed" if has_vector else "are needed to make a template"
                raise SelfsameError(f"samples: with --threshold they {fault}")
            return 0
        if has_vector:
            if not samples or (asked is not None and asked != samples):
                raise SelfsameError(
                    f"samples: with --client all are warm-up samples, and there must be one; got {samples}"
                )
            return samples
        if samples < 2:
            raise SelfsameError(
                f"samples: {samples} given, at least 2 are needed: some make the template and others the threshold; "
                "or give a threshold with --threshold"
            )
        count = samples // 2 if asked is None else asked
        if not 1 <= count < samples:
            raise SelfsameError(f"--warm-up: expected 1 to {samples - 1} of the {samples} samples, got {count}")
        return count

    def _embed(self, samples: Sequence[Raw]) -> Vector:
        """(S, D), one sample at a time: lengths may differ, and no embedding depends on the others in its batch."""
        width = self.model.card.width
        emb = [np.asarray(self.model.embed(sample[None]), np.float32) for sample in samples]
        emb_SD = np.concatenate(emb) if emb else np.empty((0, width), np.float32)
        if emb_SD.shape != (len(samples), width) or not np.isfinite(emb_SD).all():
            raise SelfsameError("model: gives embeddings of another width than its card says, or not finite ones")
        return emb_SD

    def _scores(self, emb_SD: Vector, template_D: Vector) -> tuple[float, ...]:
        """One at a time too: a product of matrices rounds otherwise, and a score at the threshold must stay there."""
        scores = tuple(float(score(self.model.card, emb_D[None], template_D)[0]) for emb_D in emb_SD)
        if not np.isfinite(scores).all():
            raise SelfsameError("model: gives scores that are not finite")
        return scores

    def _checked(self, vector: NDArray[Any]) -> Vector:
        template_D = np.asarray(vector, np.float32)
        if template_D.shape != (self.model.card.width,):
            raise SelfsameError(
                f"template: shape {template_D.shape}, the model gives vectors of {self.model.card.width}"
            )
        if not np.isfinite(template_D).all() or not template_D.any():
            raise SelfsameError("template: a vector that is zero or not finite stands for nobody")
        return template_D
