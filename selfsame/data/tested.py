"""What a federation's figures are measured on, in three digests: by them two federations have the same test or not."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

import torch

from selfsame.data.federation import Federation
from selfsame.data.fingerprint import samples_print

# Options of data sets that change how a sample looks, and not which samples there are or whose.
LOOKS = frozenset({"size", "grey", "rate", "seconds", "standardise", "columns", "without", "longest", "events"})


@dataclass(frozen=True)
class Yardstick:
    """Digests: of people, labels and trials; of who trains on how many samples; of the test's samples themselves."""

    people: str
    training: str
    samples: str

    @staticmethod
    def by(federation: Federation) -> Yardstick:
        """Looks at no more than some thousand samples of each part."""
        test, unseen, trials = federation.test, federation.unseen, federation.trials
        names = json.dumps([federation.name, *federation.class_names]).encode()
        asked = (test.y, unseen.y, trials.index_a, trials.index_b, trials.same, trials.fold)
        prints = [samples_print(part).digest for part in (test, unseen)]
        return Yardstick(
            _digest(names, *map(_bytes, asked)),
            _digest(_bytes(federation.class_of_N), _bytes(federation.count_N)),
            _digest(*(one.encode() for one in prints)),
        )

    def same(self, other: Yardstick, by_looks: bool) -> bool:
        """Whether both measure on the same; where samples may look otherwise, all who train have to be the same too."""
        alike = self.training == other.training if by_looks else self.samples == other.samples
        return alike and self.people == other.people


def _bytes(tensor: torch.Tensor) -> bytes:
    return tensor.detach().cpu().long().contiguous().numpy().tobytes()


def _digest(*parts: bytes) -> str:
    """Of the parts and where each begins."""
    found = hashlib.sha256()
    for part in parts:
        found.update(len(part).to_bytes(8, "little") + part)
    return found.hexdigest()
