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
from selfsame.device.rules import MOST_FPR, Expected, Rule, check, check_one_person, expect
from selfsame.device.strangers import Strangers, find, upper
from selfsame.device.thresholds import Threshold
from selfsame.device.vault import Vault
from selfsame.errors import SelfsameError

Vector = NDArray[np.float32]

_MOST_PAIRED = 20  # samples that are compared with each other


@dataclass(frozen=True)
class Enrolment:
    """What a device keeps of its user: no sample, and of the warm-up samples nothing but their scores."""

    template_D: Vector
    scores: tuple[float, ...]
    rule: Rule
    threshold: float
    made_from: int = 0  # samples that made the vector; 0: training did
    others: tuple[float, ...] = ()  # scores of other people's samples

    def to_bytes(self) -> bytes:
        vector = base64.b64encode(self.template_D.astype("<f4").tobytes()).decode()
        rest = {"scores": self.scores, "rule": asdict(self.rule), "threshold": self.threshold}
        rest |= {"made_from": self.made_from, "others": self.others}
        return json.dumps({"template": vector, **rest}).encode()

    @staticmethod
    def of(plain: bytes, user: str, width: int) -> Enrolment:
        """The enrolment in an opened file, which an older or newer version may have written."""
        try:
            found = json.loads(plain)
            template_D = np.frombuffer(base64.b64decode(found["template"], validate=True), "<f4").astype(np.float32)
            scores = tuple(float(value) for value in found["scores"])
            rule, threshold = Rule(**found["rule"]), float(found["threshold"])
            others = tuple(float(value) for value in found.get("others", ()))
            made_from = int(found.get("made_from", 1))
        except (ValueError, KeyError, TypeError, SelfsameError) as error:
            raise SelfsameError(f"{user}: the enrolment is not of this version of selfsame; enrol anew") from error
        numbers = (template_D, scores, threshold, others)
        if template_D.shape != (width,) or not all(np.isfinite(x).all() for x in numbers):
            raise SelfsameError(f"{user}: the enrolment does not fit the model; enrol anew")
        return Enrolment(template_D, scores, rule, threshold, made_from, others)


@dataclass(frozen=True)
class Enrolled:
    """What an enrolment was made from."""

    template_samples: int  # 0: the vector was there before
    threshold: Threshold
    expected: Expected
    doubts: tuple[str, ...] = ()  # what about the samples is odd


@dataclass(frozen=True)
class Verdict:
    """One attempt."""

    score: float
    threshold: float
    llr: float | None = None  # log-likelihood ratio (natural logarithm), where the model's card has strangers

    @property
    def accepted(self) -> bool:
        return self.score >= self.threshold


@dataclass(frozen=True)
class Unlocked:
    """One user's enrolment, open: attempts without deriving the key again. Ends with the enrolment."""

    verifier: Verifier
    user: str
    enrolment: Enrolment
    mark: bytes  # of the file that was opened

    def verify(self, sample: Raw) -> Verdict:
        """Whether a sample is the user's."""
        return self.verify_together([sample])

    def verify_each(self, samples: Sequence[Raw]) -> list[Verdict]:
        """A verdict for each sample."""
        self._check_still()
        return [self._verdict([sample]) for sample in samples]

    def verify_together(self, samples: Sequence[Raw]) -> Verdict:
        """One verdict over several samples of one attempt: on the mean of their scores, at a threshold of its own."""
        if not samples:
            raise SelfsameError("samples: at least one is needed to verify")
        self._check_still()
        return self._verdict(samples)

    def _check_still(self) -> None:
        """Refuse where the enrolment has been replaced or revoked since it was opened."""
        if self.verifier.vault.mark(self.user) != self.mark:
            raise SelfsameError(f"{self.user}: the enrolment has changed; unlock it again")

    def _verdict(self, samples: Sequence[Raw]) -> Verdict:
        scores = self.verifier.scores_of(samples, self.enrolment.template_D)
        strangers = self.verifier.strangers(self.enrolment.made_from, len(samples))
        llr = None if strangers is None else float(strangers.calibration.llr(float(np.mean(scores))))
        return Verdict(float(np.mean(scores)), self.threshold(len(samples)), llr)

    def threshold(self, together: int = 1) -> float:
        """The threshold of the mean score of so many samples."""
        own = self.enrolment
        if together == 1:
            return own.threshold
        strangers = self.verifier.strangers(own.made_from, together)
        return float(own.rule.threshold(own.scores, strangers, own.others, together))


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
        others: Sequence[Raw] = (),
        most_fpr: float = MOST_FPR,
        mixed: bool = False,
        replacing: bool = False,
    ) -> Enrolled:
        """Keep a user's vector and threshold.

        Without `vector` it is made from the first samples, and the last `warm_up` of them (half, if not said) set the
        threshold; with it, all samples do. A fixed threshold takes no warm-up samples. A threshold that is expected to
        let in more strangers than `most_fpr` is refused, and so are samples that do not look like one person's unless
        they may be `mixed`. `others` are samples of other people to judge strangers by, in place of the card's.
        """
        self.vault.check_new(user, replacing)  # said before anything is computed or asked
        done, enrolment = self.prepare(
            samples, rule, warm_up=warm_up, vector=vector, others=others, most_fpr=most_fpr, mixed=mixed
        )
        self.keep(user, enrolment, replacing=replacing)
        return done

    def prepare(
        self,
        samples: Sequence[Raw],
        rule: Rule | None = None,
        *,
        warm_up: int | None = None,
        vector: NDArray[Any] | None = None,
        others: Sequence[Raw] = (),
        most_fpr: float = MOST_FPR,
        mixed: bool = False,
    ) -> tuple[Enrolled, Enrolment]:
        """What `enrol` would keep; nothing is written."""
        rule = rule or Rule()
        count = self._warm_up_count(len(samples), rule, warm_up, vector is not None)
        emb_SD = self._embed(samples)
        split = len(samples) - count
        made = template(self.model.card, emb_SD[:split]) if vector is None else np.asarray(vector)
        template_D = self._checked(made)
        scores = self._scores(emb_SD[split:], template_D)
        other = self._scores(self._embed(others), template_D)
        made_from = split if vector is None else 0
        doubts = () if mixed else self._doubts(emb_SD, scores, made_from)
        enrolment = Enrolment(template_D, scores, rule, 0.0, made_from, other)
        try:
            threshold, expected = self._judged(enrolment, most_fpr)
        except SelfsameError as fault:
            more = f"; {doubts[0]}: are they all of one person?" if doubts else ""
            raise SelfsameError(f"{fault}{more}") from None
        kept = replace(enrolment, threshold=float(threshold.value))
        return Enrolled(made_from, threshold, expected, doubts), kept

    def keep(self, user: str, enrolment: Enrolment, *, replacing: bool = False) -> None:
        """Seal a prepared enrolment."""
        self.vault.write(user, self.model.card.digest, enrolment.to_bytes(), replacing=replacing)

    def verify(self, user: str, sample: Raw) -> Verdict:
        """Whether a sample is the user's; every attempt takes the same steps, whatever comes out."""
        return self.unlock(user).verify(sample)

    def unlock(self, user: str) -> Unlocked:
        """The user's enrolment, opened once for many attempts: deriving the key of a passphrase takes most of one."""
        mark = self.vault.mark(user)
        enrolment = Enrolment.of(self.vault.read(user, self.model.card.digest), user, self.model.card.width)
        return Unlocked(self, user, enrolment, mark)

    def add_warm_up(self, user: str, samples: Sequence[Raw], *, most_fpr: float = MOST_FPR) -> Enrolled:
        """Set the threshold anew from the earlier warm-up samples and these."""
        if not samples:
            raise SelfsameError("samples: at least one is needed to warm up")
        now: list[Enrolled] = []

        def edit(plain: bytes) -> bytes:
            before = Enrolment.of(plain, user, self.model.card.width)
            if before.rule.fixed is not None:
                raise SelfsameError(f"{user}: has a fixed threshold, which warm-up samples do not change")
            scores = (*before.scores, *self._scores(self._embed(samples), before.template_D))
            more = replace(before, scores=scores)
            threshold, expected = self._judged(more, most_fpr)
            now.append(Enrolled(before.made_from, threshold, expected))
            return replace(more, threshold=float(threshold.value)).to_bytes()

        self.vault.change(user, self.model.card.digest, edit)
        return now[0]

    def strangers(self, made_from: int, together: int = 1) -> Strangers | None:
        """The population of the card for templates of so many samples (0: left by training) and such attempts."""
        return find(self.model.card.cohort, "enrolled" if made_from else "trained", made_from, together)

    def _judged(self, enrolment: Enrolment, most_fpr: float) -> tuple[Threshold, Expected]:
        """The threshold of the enrolment's rule, if it can work."""
        known = self.strangers(enrolment.made_from)
        threshold = enrolment.rule.threshold(enrolment.scores, known, enrolment.others)
        expected = expect(threshold.value, enrolment.scores, known, enrolment.others)
        check(threshold.value, self.model.card.score, expected, most_fpr)
        return threshold, expected

    def _doubts(self, emb_SD: Vector, scores: Sequence[float], made_from: int) -> tuple[str, ...]:
        """Refuse samples that fit neither each other nor the template as those of one person do, or doubt them."""
        found = []
        pairs = find(self.model.card.cohort, "enrolled", 1)
        if pairs is not None and pairs.template == 1 and len(emb_SD) > 1:
            few_SD = emb_SD[np.linspace(0, len(emb_SD) - 1, min(len(emb_SD), _MOST_PAIRED)).astype(int)]
            square = np.array([self._scores(few_SD, template(self.model.card, one_D[None])) for one_D in few_SD])
            found.append(check_one_person(upper(square).tolist(), pairs, "their pairs"))
        found.append(check_one_person(scores, self.strangers(made_from), "their scores against the template"))
        return tuple(filter(None, found))

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

    def scores_of(self, samples: Sequence[Raw], template_D: Vector) -> tuple[float, ...]:
        """The scores of samples against a template."""
        return self._scores(self._embed(samples), template_D)

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
