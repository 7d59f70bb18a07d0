"""`selfsame whiten`: one sum over the devices of a run, and a layer behind its network that is made from it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from selfsame.commands.options import Best, Out, Quiet, Settings, TrustCode
from selfsame.errors import SelfsameError

FAINTEST = 120.0  # decibels of noise that change nothing any more


def whiten(
    run: Annotated[Path | None, typer.Argument(help="Folder of a run; none with --net.")] = None,
    share: Annotated[
        float, typer.Option(help="How even the layer is: the larger, the less it shortens; 0.3 to 3 are usual.")
    ] = 1.0,
    noise: Annotated[
        float,
        typer.Option(
            help="Devices count their samples in noise as well, so many dB below the largest value of each. Rates in "
            "such noise are then printed too."
        ),
    ] = 0.0,
    net: Annotated[str | None, typer.Option("--net", help="In place of a run: a network nobody trained here.")] = None,
    start: Annotated[Path | None, typer.Option("--start", help="With --net: its weights.")] = None,
    data: Annotated[str | None, typer.Option("--data", help="With --net: the data set.")] = None,
    settings: Settings = None,
    path: Annotated[Path | None, typer.Option("--path", help="Where the data set's files are now.")] = None,
    out: Out = None,
    trials: Annotated[int, typer.Option(help="Pairs of unseen samples to draw, half of them of one person.")] = 200_000,
    bootstrap: Annotated[int, typer.Option(help="Replicates for the 95 % intervals; 0 for none.")] = 1000,
    seed: Annotated[int, typer.Option(help="Seed of all that is drawn.")] = 0,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1 or auto; by default as the run.")] = None,
    best: Best = False,
    trust_code: TrustCode = False,
    quiet: Quiet = False,
) -> None:
    """Shorten what embeddings of one person differ in, by one sum over all devices and without training.

    Writes a new run, whose network has a layer of constants behind it, and prints error rates before and after.
    """
    from rich.console import Console

    from selfsame.config.recipe import stored_recipe
    from selfsame.files import whole_folder
    from selfsame.report.evaluation import WIDE, change_sheet
    from selfsame.runs.claim import new_claim
    from selfsame.runs.run import open_run, placed
    from selfsame.runs.untrained import untrained_run
    from selfsame.runs.whitening import compared, terms_of, whiten_run

    named = bool(net and start and data)
    if (run is None) != named or (run is not None and (net or start or data or settings)):
        raise SelfsameError("whiten: name the folder of a run, or --net, --start and --data together")
    if best and run is None:
        raise SelfsameError("--best: a network that nobody trained has no checkpoints")
    for option, value, least in (("--trials", trials, 2), ("--bootstrap", bootstrap, 0)):
        if value < least:
            raise SelfsameError(f"{option}: must be at least {least}, got {value}")
    if not 0 <= noise <= FAINTEST:
        raise SelfsameError(f"--noise: must be 0 to {FAINTEST:g}, got {noise:g}")
    with new_claim(out, "whitened") as folder, Console(stderr=True, quiet=quiet).status("loading") as status:
        if run is not None:
            before = open_run(run, path, device, trust_code=trust_code, best=best)
            recipe = placed(stored_recipe(run, trust_code), path)
        else:
            before = untrained_run(str(net), Path(str(start)), str(data), path, settings or [], device)
            recipe = placed(before.recipe)
        terms = terms_of(before)
        with whole_folder(folder) as draft:
            after = whiten_run(before, recipe, draft, share, status.update, noise)
            status.update("measuring")
            found = compared(before, after, trials, bootstrap, seed, noise)
    console = Console()
    console = console if console.is_terminal else Console(width=WIDE)
    heard = f", samples in noise of {noise:g} dB as well" if noise else ""
    console.print(change_sheet(found, f"Whitened, share {share:g}{heard}").terminal())
    print(
        f"each of {terms.devices:,} devices adds {terms.numbers:,} numbers to one sum, once; of fewer than "
        f"{terms.least:,} nothing is released"
    )
    print(f"run: {folder}, report: {folder / 'report.html'}")
