"""A device's own policy: what its owner lets a server ask for, read from a TOML file. Terms that break it are refused.

Without a file the defaults hold. A device in a `trial` without a file takes everything but the most work.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from selfsame.config.recipe import read_toml
from selfsame.deploy.agreement import Agreed
from selfsame.fields import at_least, read_fields
from selfsame.methods import LocalLoss, SplitLoss, make
from selfsame.nets import size


@dataclass(frozen=True)
class DevicePolicy:
    """Every value is a limit that terms must keep."""

    participants: int = 8  # the fewest devices whose updates are added up
    answers: int = 4  # of these, the fewest that must have answered before anything is released
    clear: bool = False  # whether the server may see this device's update by itself
    shown: bool = False  # whether others may be sent the very vector that stands for the owner
    noise: float = 0.0  # the least noise on a sum of updates, in clips
    derivative_noise: float = 0.5  # FDML: the least noise on the derivatives, in clips
    work: int = 100_000  # the most samples to train on in a round, a sample counted each time
    rounds: int = 100_000  # the most rounds
    parameters: int = 50_000_000  # the most that the network may have
    code: bool = False  # whether a network may be named by an import path
    helpers: tuple[str, ...] = ()  # fingerprints of helpers of whom one must take masks off; none: any will do
    measurements: tuple[str, ...] = ()  # enclaves to trust
    statuses: tuple[str, ...] = ("UpToDate",)  # states of their machines
    simulated: bool = False  # whether an enclave will do that no hardware protects

    def __post_init__(self) -> None:
        for name in ("participants", "answers", "work", "rounds", "parameters"):
            at_least(f"policy.{name}", getattr(self, name), 1)
        for name in ("noise", "derivative_noise"):
            at_least(f"policy.{name}", getattr(self, name), 0)

    @staticmethod
    def read(path: Path) -> DevicePolicy:
        """The policy of a file, or one clear line."""
        return read_fields("policy", read_toml(path), DevicePolicy)

    def broken(self, terms: Agreed, samples: int) -> str:
        """What of these terms the policy does not allow, in words; empty: nothing. `samples`: the device's own."""
        method = make(terms.recipe.method.name, terms.recipe.method.options, loaded=True)
        return (
            self._code(terms)
            or self._work(terms, samples)
            or self._sums(terms, method)
            or self._shows(method)
            or self._size(terms, method)
        )

    def _code(self, terms: Agreed) -> str:
        """A method by its import path is code that the device's own program has imported; a network's is not."""
        named = terms.recipe.net.name
        return f"the network {named!r} would run code by its name (code)" if ":" in named and not self.code else ""

    def _work(self, terms: Agreed, samples: int) -> str:
        local, rounds = terms.recipe.local, terms.recipe.run.rounds
        work = local.epochs * samples if local.epochs else local.steps * min(local.batch, max(samples, 1))
        if rounds > self.rounds:
            return f"{rounds:,} rounds, the policy allows {self.rounds:,} (rounds)"
        return f"{work:,} samples of work per round, the policy allows {self.work:,} (work)" if work > self.work else ""

    def _sums(self, terms: Agreed, method: LocalLoss) -> str:
        group, answers, noise = _sum_terms(terms, method)
        if math.isnan(noise):
            return "" if self.clear else "the server would see this device's update by itself (clear)"
        if group < self.participants:
            return f"sums over {group} devices, the policy asks for {self.participants} (participants)"
        if answers < self.answers:
            return f"{answers} answers are enough to release a sum, the policy asks for {self.answers} (answers)"
        if unknown := self._helpers(terms):
            return f"masks would be sealed to {unknown}, whom the policy does not name (helpers)"
        least = self.derivative_noise if isinstance(method, SplitLoss) else self.noise
        named = "derivative_noise" if isinstance(method, SplitLoss) else "noise"
        return f"noise of {noise:g} clips, the policy asks for {least:g} ({named})" if noise < least else ""

    def _helpers(self, terms: Any) -> str:
        """The helpers, where the policy knows none of them. The sum stays hidden while one is honest: one will do."""
        names = [helper.name for helper in terms.sums.helpers] if hasattr(terms, "sums") else []
        known = not names or not self.helpers or set(names) & set(self.helpers)
        return "" if known else ", ".join(names)

    def _size(self, terms: Agreed, method: LocalLoss) -> str:
        """Before a network is built that the device may not have the memory for."""
        net, most = terms.recipe.net, self.parameters
        found = size(net.name, terms.shape, method.width(net.width), started=net.started, **net.options)
        return f"a network of {found:,} parameters, the policy allows {most:,} (parameters)" if found > most else ""

    def _shows(self, method: LocalLoss) -> str:
        said = method.shows()
        return f"{said} (shown)" if said and not self.shown else ""


# A device that tries things out with its own server on its own machine.
TRIAL = DevicePolicy(participants=1, answers=1, clear=True, shown=True, derivative_noise=0.0)


def _sum_terms(terms: Any, method: LocalLoss) -> tuple[int, int, float]:
    """(devices in a sum, answers without which there is none, its noise in clips: NaN where nothing is summed)."""
    if isinstance(method, SplitLoss):
        _, privacy = method.enclave_terms() or ({}, {})
        return terms.required, terms.gradients, privacy["scale"] / privacy["clip"] if "scale" in privacy else 0.0
    sums = getattr(terms, "sums", None)
    if sums is None or sums.aggregation == "clear":
        return 0, 0, math.nan
    return sums.group, sums.least, sums.noise
