"""`selfsame privacy`: what FDML's noise is worth, as the paper counts and as it adds up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from selfsame.commands.progress import table_of

if TYPE_CHECKING:
    from selfsame.privacy.mechanisms import Laplace


def privacy(
    clip: Annotated[float, typer.Option(help="T: every coordinate of a derivative is clipped to [-T, T].")],
    scale: Annotated[float, typer.Option(help="b: scale of the Laplace noise.")],
    drop: Annotated[float, typer.Option(help="r: chance of an embedding to be left out of a round.")] = 0.0,
    samples: Annotated[int, typer.Option(help="n: samples of a participant in a round.")] = 8,
    dim: Annotated[int, typer.Option(help="d: width of an embedding.")] = 64,
    rounds: Annotated[int, typer.Option(help="Rounds that one participant takes part in.")] = 1,
    delta: Annotated[float, typer.Option(help="The delta of (epsilon, delta)-differential privacy.")] = 1e-5,
    target: Annotated[
        float | None, typer.Option(help="An epsilon: print the Gaussian noise that keeps the rounds within it.")
    ] = None,
) -> None:
    """Count the privacy loss of FDML's noise.

    The epsilon of its Algorithm 2 as the paper counts it, and the one over all that is sent.
    """
    from selfsame.privacy.accountant import Exchange, gaussian_sigma
    from selfsame.privacy.mechanisms import Laplace

    mechanism = Laplace(clip, scale, drop)
    lines = rows(mechanism, samples, dim, rounds, delta)
    sigma = None if target is None else gaussian_sigma(1.0, Exchange(samples, dim), rounds, target, delta, drop)
    all_rounds = f"{rounds:,} rounds" if rounds != 1 else "all rounds"
    table_of(lines, "epsilon", "neighbours differ in", "1 round", all_rounds)
    print("Of the derivatives that one participant is sent; the network is not covered.")
    if sigma is not None:
        length = clip * (samples * dim) ** 0.5
        print(
            f"Gaussian: sigma = {sigma:.5g} x C keeps a participant's {rounds:,} rounds within epsilon {target:g} at "
            f"delta {delta:g}. With C = {length:.4g}, the longest that T lets through, that is {sigma * length:.4g} a "
            f"coordinate; the Laplace noise above deviates by {2**0.5 * scale:.4g}."
        )


def rows(mechanism: Laplace, samples: int, dim: int, rounds: int, delta: float) -> list[tuple[str, str, str, str]]:
    """The table's lines: which epsilon, what neighbours differ in, one round's, all rounds'."""
    from selfsame.privacy.accountant import Exchange, composed_epsilon, paper_epsilon

    paper = paper_epsilon(mechanism.drop, mechanism.clip, mechanism.scale)
    lines = [("paper, for one coordinate", "one sample", f"{paper:.4g}", "not composed")]
    for unit in ("sample", "participant"):
        exchange = Exchange(samples, dim, unit)
        for name, slack in (("pure", 0.0), (f"at delta {delta:g}", delta)):
            once, often = (f"{composed_epsilon(mechanism, exchange, count, slack):.4g}" for count in (1, rounds))
            lines.append((name, f"one {unit}", once, often))
    return lines
