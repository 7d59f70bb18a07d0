"""`selfsame evaluate`: how well the network of a run tells people apart, on every protocol that its data allow."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def evaluate(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    path: Annotated[Path | None, typer.Option("--path", help="Where the data set's files are now.")] = None,
    trials: Annotated[int, typer.Option(help="Pairs of unseen samples to draw, half of them of one person.")] = 200_000,
    bootstrap: Annotated[int, typer.Option(help="Replicates for the 95 % intervals; 0 for none.")] = 1000,
    seed: Annotated[int, typer.Option(help="Seed of all that is drawn.")] = 0,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for evaluation.json and .html; by default the run's.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1 or auto; by default as the run.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress line.")] = False,
) -> None:
    """Measure a trained network: error rates with intervals by person, per user, on every protocol the data allow."""
    import json

    from rich.console import Console

    from selfsame.assess import assess
    from selfsame.engine.checkpoint import write_atomically
    from selfsame.report.evaluation import WIDE, protocol_tables, remarks, render, user_table
    from selfsame.run import open_run

    folder = out or run
    folder.mkdir(parents=True, exist_ok=True)  # what cannot be written is said before anything is measured
    errors = Console(stderr=True, quiet=quiet)
    with errors.status("loading"):
        opened = open_run(run, path, device)
    with errors.status("measuring") as status:
        result = assess(opened, trials, bootstrap, seed, lambda what: status.update(f"measuring: {what}"))
    write_atomically(folder / "evaluation.json", json.dumps(result, allow_nan=False).encode())
    write_atomically(folder / "evaluation.html", render(result).encode())
    console = Console()
    if not console.is_terminal:  # a file has no width: one line a protocol
        console = Console(width=WIDE)
    for table in (*protocol_tables(result, console.width), user_table(result)):
        console.print(table)
    for remark in remarks(result):
        console.print(remark, markup=False, highlight=False, soft_wrap=True)
    console.print(f"report: {folder / 'evaluation.html'}", markup=False, highlight=False, soft_wrap=True)
