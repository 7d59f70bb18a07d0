"""Run a recipe file: all its variants and seeds, beside the paper's figures."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from selfsame.commands.options import Device, PathTo, Quiet, Rounds, Settings, given_tables
from selfsame.commands.progress import table_of, train_left

if TYPE_CHECKING:
    from selfsame.config.experiment import Job
    from selfsame.runs.experiments import Campaign


def recipe(
    file: Annotated[Path, typer.Argument(help="Recipe (TOML), with [[variant]] tables, a [grid] or seeds.")],
    path: PathTo = None,
    settings: Settings = None,
    rounds: Rounds = None,
    device: Device = None,
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="TITLE", help="Train only variants with this in their title.")
    ] = None,
    listing: Annotated[bool, typer.Option("--list", help="List the runs and which are done; train nothing.")] = False,
    at_once: Annotated[int, typer.Option("--jobs", min=1, help="Runs at a time, each in a process of its own.")] = 1,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for the runs.", show_default="runs/ and the file's name")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Run a recipe file and compare with the paper.

    All its variants and seeds; goes on where an earlier call stopped.
    """
    from selfsame.commands.torchrun import one_process
    from selfsame.config.experiment import read_experiment
    from selfsame.runs.claim import shared_claim
    from selfsame.runs.experiments import Campaign

    one_process("selfsame recipe")
    experiment = read_experiment(file, given_tables(path=path, device=device, rounds=rounds), settings or [])
    changed = [*(settings or []), *([] if rounds is None else [f"--rounds {rounds}"])]
    campaign = Campaign(experiment, out or Path("runs") / file.stem, changed)
    chosen = campaign.chosen(only or [])
    if listing:
        _list(campaign, chosen)
        return
    alone = any(job.folder == campaign.folder for job in campaign.jobs)  # a run that claims it by itself
    with nullcontext() if alone else shared_claim(campaign.folder):
        train_left(campaign, chosen, at_once, quiet)
        _show(campaign)
    if any(campaign.views[job.folder].diverged for job in chosen):
        raise typer.Exit(1)


def _list(campaign: Campaign, jobs: list[Job]) -> None:
    found = [(job, campaign.there[job.folder]) for job in jobs]
    rows = [
        (job.variant.title, str(job.recipe.run.seed), _rounds(job), str(job.folder), now.words) for job, now in found
    ]
    table_of(rows, "variant", "seed", "rounds", "folder", "state")
    done = sum(now.view is not None and not now.differs for _, now in found)
    print(f"{done} of {len(found)} runs have ended")


def _rounds(job: Job) -> str:
    return "–" if job.variant.oracle else f"{job.recipe.run.rounds:,}"


def _show(campaign: Campaign) -> None:
    """The table beside the paper, what to know about it, the files."""
    from rich.console import Console

    from selfsame.report.beside import beside_remarks, beside_table

    rows = campaign.rows()
    Console().print(beside_table([row for row in rows if row.views.count(None) < len(row.views)]))
    for remark in beside_remarks(rows, campaign.changed):
        print(remark)
    print(f"report: {campaign.report()}, results: {campaign.folder / 'results.md'}")
