"""Train one method or several, or go on with a run."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from selfsame.commands.options import (
    Aggregation,
    Base,
    Compile,
    Data,
    Device,
    EngineName,
    Out,
    PathTo,
    Precision,
    Quiet,
    Rounds,
    Seed,
    Settings,
    StartFrom,
    TrustCode,
    given_tables,
)  # fmt: skip
from selfsame.commands.progress import loading, show, show_run, tell, tell_notes, train_and_keep
from selfsame.commands.torchrun import among_ranks, one_process
from selfsame.errors import SelfsameError
from selfsame.fields import short_name

DEMO = "positive-only,fixed,softmax,fedaws,feduv,fedmetric,fedgn,fedhide,fedcrowd,feduv/masked,fedcrowd/masked"


def train(
    method: Annotated[str, typer.Argument(help="Method; `selfsame methods` lists them.")],
    data: Data = None,
    path: PathTo = None,
    settings: Settings = None,
    rounds: Rounds = None,
    seed: Seed = None,
    device: Device = None,
    precision: Precision = None,
    compile: Compile = None,
    engine: EngineName = None,
    aggregation: Aggregation = None,
    start_from: StartFrom = None,
    recipe: Base = None,
    out: Out = None,
    quiet: Quiet = False,
) -> None:
    """Train one method. Writes a run folder with metrics, checkpoint, network and report."""
    from selfsame.runs.beginning import recipe_for
    from selfsame.runs.claim import new_claim
    from selfsame.runs.run import start

    given = given_tables(
        data, path, aggregation, start_from,
        rounds=rounds, seed=seed, device=device, precision=precision, compile=compile, engine=engine,
    )  # fmt: skip
    with among_ranks() as ranks:
        made, chosen = recipe_for(method, recipe, given, settings or [])
        tell(chosen, quiet or not ranks.first)
        with new_claim(out, f"{short_name(method)}-{made.data.name}") if ranks.first else nullcontext() as folder:
            with loading(quiet or not ranks.first):
                run = start(made, folder, ranks=ranks)
            show_run(run, train_and_keep(run, quiet), folder)
        if not run.done:
            raise typer.Exit(1)


def compare(
    data: Annotated[str, typer.Option(help="Data set; `selfsame data` lists them.")] = "digits",
    names: Annotated[
        str,
        typer.Option("--methods", help="Methods, separated by commas; METHOD/masked: its updates seen as sums alone."),
    ] = DEMO,
    path: PathTo = None,
    settings: Settings = None,
    rounds: Rounds = None,
    seed: Seed = None,
    device: Device = None,
    precision: Precision = None,
    compile: Compile = None,
    start_from: StartFrom = None,
    out: Out = None,
    quiet: Quiet = False,
) -> None:
    """Train several methods on the same data. Ends with one table and one report.

    A --set with a bare key goes to every method that has that option.
    """
    from selfsame.engine.setup import prepare
    from selfsame.runs.claim import claimed, new_claim
    from selfsame.runs.experiments import load_data, recipes_of, short_title
    from selfsame.runs.run import start

    one_process("selfsame compare")
    chosen = [name.strip() for name in names.split(",") if name.strip()]
    if not chosen:
        raise SelfsameError("--methods: name at least one")
    if len({short_title(name) for name in chosen}) < len(chosen):
        raise SelfsameError(f"--methods {names}: names a method twice")
    given = given_tables(
        data, path, None, start_from,
        rounds=rounds, seed=seed, device=device, precision=precision, compile=compile,
    )  # fmt: skip
    recipes, advised = recipes_of(chosen, given, settings or [])
    tell(advised, quiet)
    part = recipes[0].data
    with new_claim(out, f"compare-{part.name}") as folder:
        with loading(quiet):
            federation = load_data(part)
        for recipe in recipes:  # what does not fit is said before the first one is trained
            prepare(recipe, federation)
        tell_notes(federation.notes, quiet)
        views = []
        for name, recipe in zip(chosen, recipes, strict=True):
            run = start(recipe, folder / short_title(name), federation)
            with claimed(folder / short_title(name)):
                shown = train_and_keep(run, quiet, told=True)
            views += [] if shown is None else [shown]
        show(views, folder / "report.html", f"{len(views)} methods on {part.name}")


def resume(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    path: Annotated[Path | None, typer.Option("--path", help="Where the data set's files are now.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds in all, also beyond the end of a finished run.")] = None,
    until: Annotated[
        int,
        typer.Option(min=0, help="Pause after this round, with a checkpoint and its figures.", show_default="the last"),
    ] = 0,
    device: Device = None,
    trust_code: TrustCode = False,
    parent: Annotated[int, typer.Option(hidden=True, help="End after the round when this process has gone.")] = 0,
    quiet: Quiet = False,
) -> None:
    """Go on with a run from its last checkpoint. A finished one is shown again.

    With --rounds the schedule of the learning rate becomes that of so many rounds. With --device it goes on there.
    """
    from selfsame.runs.claim import claimed
    from selfsame.runs.run import load_run
    from selfsame.runs.summary import read_view

    with among_ranks() as ranks, claimed(run) if ranks.first else nullcontext():
        with loading(quiet or not ranks.first):
            current = load_run(run, ranks=ranks, trust_code=trust_code, path=path, rounds=rounds, device=device)
        if not ranks.agree(current.done and (run / "result.json").is_file()):
            shown = train_and_keep(current, quiet, until=until, parent=parent)
        else:
            shown = read_view(run) if ranks.first else None
        show_run(current, shown, run)
        if not current.done and not current.paused(until):
            raise typer.Exit(1)
