"""An attacker who looks for the pictures behind updates, as one of the audit's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from selfsame.audit.attackers import CLEAR, SUMS, Audited, Finding
from selfsame.audit.inversion import Inversion, invert
from selfsame.audit.updates import trains_alone

_GROUP = 4  # devices of a sum that is looked into: every picture is one more to look for
_LARGEST = 2**20  # numbers of a network: beyond, `selfsame paper fedhide --table 2` has the time


@dataclass(frozen=True)
class PictureReader:
    """Inverts the gradients of one device, and of a small sum."""

    name: str = "pictures"

    def fits(self, case: Audited) -> bool:
        shape = case.problem.federation.shape
        small = case.problem.model.parameters <= _LARGEST
        return len(shape) == 3 and shape[0] in (1, 3) and small and trains_alone(case.problem)

    def run(self, case: Audited) -> Iterator[Finding]:
        terms = Inversion(iterations=2 * case.steps, seed=case.seed)
        for size in (1, min(_GROUP, case.state.present)):
            found = invert(case.problem, case.state, case.everyone[:size], size, terms, case.judge)
            said = f"{found.found.psnr:.1f} dB to the pictures; {found.chance.psnr:.1f} for as many of others"
            if found.found.lpips is not None and found.chance.lpips is not None and found.unrelated.lpips is not None:
                said += (
                    f"; LPIPS {found.found.lpips:.3f}, {found.chance.lpips:.3f} for as many of others, "
                    f"{found.unrelated.lpips:.3f} for one of them"
                )
            did, under = ("one update", CLEAR) if size == 1 else (f"a sum of {size}", SUMS)
            yield Finding(self.name, did, "server", under, None, None, case.chance, 1, said=said, vectors=False)
