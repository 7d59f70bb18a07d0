"""Values of the run in words, each in one place."""

from __future__ import annotations

from typing import Protocol


class Spent(Protocol):
    """What privacy has cost: `PrivacySpent` of the engine."""

    @property
    def rounds(self) -> int: ...

    @property
    def delta(self) -> float: ...

    @property
    def epsilon(self) -> float | None: ...

    @property
    def why(self) -> str: ...

    @property
    def paper_epsilon(self) -> float | None: ...

    @property
    def simulated(self) -> bool: ...


def privacy_words(spent: Spent) -> str:
    """Both epsilons of the device that took part most often."""
    known = f"epsilon not known ({spent.why})" if spent.epsilon is None else f"epsilon {spent.epsilon:.4g}"
    words = f"{known} at delta {spent.delta:g} over the {spent.rounds} rounds of the device with most"
    if spent.paper_epsilon is not None:
        words += f"; the paper's epsilon: {spent.paper_epsilon:.4g}"
    return words + (". Noise from the seed of a simulation protects nobody" if spent.simulated else "")
