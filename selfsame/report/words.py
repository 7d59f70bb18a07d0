"""Values in words: what data hold as values is said here, once."""

from __future__ import annotations

from collections.abc import Mapping

_POWER = ", log10"


def attacker_words(how: str, exposed: bool) -> str:
    """What the attacker did: in the method's words, or that there was nothing to do."""
    nothing = "nothing that stands for the owner leaves the device"
    return how or ("the server holds the vectors themselves" if exposed else nothing)


def fact_words(values: Mapping[str, float]) -> dict[str, str]:
    """What a method says of itself; a name that ends in ", log10" tells a power of ten."""
    powers = {name.removesuffix(_POWER): f"10^{value:.1f}" for name, value in values.items() if name.endswith(_POWER)}
    return powers | {name: f"{value:g}" for name, value in values.items() if not name.endswith(_POWER)}
