"""A poll: what every device sends at once, now and then, and what is seen as a sum alone."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Poll:
    """The terms of a method's polls.

    Answers of fewer than `least` are not released, and as many devices must have trained between two polls: the
    difference of two sums is a sum over those who have changed.
    """

    every: int  # rounds from one poll to the next; the first comes before the first round
    least: int
    numbers: int  # of a contribution
    longest: float  # and its length
    apart: float  # how far apart the contributions of two owners can be
    noise: float = 0.0  # deviation of the noise on each number of the sum, in `longest`

    def due(self, round: int) -> bool:
        """Whether a poll comes before this round."""
        return round % self.every == 0

    def count(self, rounds: int) -> int:
        """Polls in so many rounds."""
        return -(-rounds // self.every)
