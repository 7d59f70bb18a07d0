"""Run a recipe file: all its variants and seeds, beside the paper's figures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from selfsame.commands.options import Device, Out, PathTo, Quiet, Rounds, Settings
from selfsame.commands.progress import carry_on_with_bar, loading
from selfsame.errors import SelfsameError

if TYPE_CHECKING:
    from selfsame.config.experiment import Experiment, Job
    from selfsame.report.table import Row
    from selfsame.report.view import RunView
    from selfsame.runs.summary import Standing


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
    out: Out = None,
    quiet: Quiet = False,
) -> None:
    """Run a recipe file, all its variants and seeds, compare with the paper; goes on where an earlier call stopped."""
    from selfsame.commands.torchrun import one_process
    from selfsame.config.experiment import read_experiment
    from selfsame.data import load
    from selfsame.engine.setup import prepare
    from selfsame.runs.run import load_run, start, vacant
    from selfsame.runs.summary import standing

    one_process("selfsame recipe")
    given: dict[str, Any] = {}
    if path is not None:
        given["data"] = {"path": str(path)}
    run_part = {key: value for key, value in (("device", device), ("rounds", rounds)) if value is not None}
    if run_part:
        given["run"] = run_part
    experiment = read_experiment(file, given, settings or [])
    folder = out or Path("runs") / file.stem
    jobs = experiment.jobs(folder)
    chosen = experiment.select(only or [])
    there = {job.folder: standing(job.folder, job.recipe) for job in jobs}
    if listing:
        _list([(job, there[job.folder]) for job in jobs if job.variant in chosen])
        return
    work, federations, fits = [], {}, set()
    for job in jobs:  # what does not fit is said before the first one is trained
        now = there[job.folder]
        if job.variant not in chosen:
            continue
        if now.differs:
            keys = ", ".join(now.differs)
            raise SelfsameError(f"{job.folder}: holds a run of another recipe ({keys}); name another folder with --out")
        if now.view is not None:
            continue
        if not now.there:
            vacant(job.folder)
        if (key := repr(job.recipe.data)) not in federations:
            with loading(quiet):
                federations[key] = load(job.recipe.data.name, job.recipe.data.path or None, **job.recipe.data.options)
        if job.variant.number not in fits:
            prepare(job.recipe, federations[key])
            fits.add(job.variant.number)
        work.append((job, federations[key]))
    views = {place: now.view for place, now in there.items() if now.view is not None and not now.differs}
    changed = [*(settings or []), *([] if rounds is None else [f"--rounds {rounds}"])]
    if at_once > 1:
        for job, federation in work:
            if not there[job.folder].there:
                start(job.recipe, job.folder, federation)
        federations.clear()
        folders = [job.folder for job, _ in work]
        _at_once(folders, at_once, quiet, views, lambda: _keep_results(experiment, jobs, views, folder, changed))
        work = []
    for job, federation in work:
        run = load_run(job.folder, federation) if there[job.folder].there else start(job.recipe, job.folder, federation)
        views[job.folder] = carry_on_with_bar(run, quiet, job.title)
        _keep_results(experiment, jobs, views, folder, changed)
    _show_experiment(experiment, jobs, views, folder, changed)
    if any(views[job.folder].diverged for job in jobs if job.variant in chosen):
        raise typer.Exit(1)


def _at_once(
    folders: list[Path], at_once: int, quiet: bool, views: dict[Path, RunView], keep: Callable[[], None]
) -> None:
    """Resume the runs in processes of their own, under one bar that counts them."""
    from rich.console import Console
    from rich.progress import Progress

    from selfsame.runs.parallel import resume_all
    from selfsame.runs.summary import read_view

    with Progress(console=Console(stderr=True), disable=quiet) as progress:
        task = progress.add_task("runs", total=len(folders))

        def ended(folder: Path) -> None:
            views[folder] = read_view(folder)
            keep()
            progress.update(task, advance=1)

        resume_all(folders, at_once, ended)


def _list(found: list[tuple[Job, Standing]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table("variant", "seed", "rounds", "folder", "state")
    for job, now in found:
        plan = job.recipe.run
        words = (job.variant.title, str(plan.seed), f"{plan.rounds:,}", str(job.folder), now.words)
        table.add_row(*map(Text, words))
    Console().print(table)
    done = sum(now.view is not None and not now.differs for _, now in found)
    print(f"{done} of {len(found)} runs have ended")


def _rows(experiment: Experiment, jobs: list[Job], views: dict[Path, RunView]) -> list[Row]:
    from selfsame.report.table import Row

    return [
        Row(variant, tuple(views.get(job.folder) for job in jobs if job.variant is variant))
        for variant in experiment.variants
    ]


def _keep_results(
    experiment: Experiment, jobs: list[Job], views: dict[Path, RunView], folder: Path, changed: list[str]
) -> None:
    """results.md and results.json of what there is so far."""
    import json

    from selfsame.files import write
    from selfsame.report.table import beside_markdown, beside_plain

    rows, title = _rows(experiment, jobs, views), experiment.file.stem
    write(folder / "results.md", beside_markdown(rows, title, changed).encode())
    plain = json.dumps(beside_plain(rows, title, changed), indent=1, allow_nan=False)
    write(folder / "results.json", plain.encode())


def _show_experiment(
    experiment: Experiment, jobs: list[Job], views: dict[Path, RunView], folder: Path, changed: list[str]
) -> None:
    """The table beside the paper, what to know about it, the files."""
    from dataclasses import replace

    from rich.console import Console

    from selfsame.report.html import write_report
    from selfsame.report.table import beside_remarks, beside_table

    console = Console()
    rows = [row for row in _rows(experiment, jobs, views) if row.views.count(None) < len(row.views)]
    console.print(beside_table(rows))
    for remark in beside_remarks(_rows(experiment, jobs, views), changed):
        console.print(remark, markup=False, highlight=False, soft_wrap=True)
    _keep_results(experiment, jobs, views, folder, changed)
    named = [replace(views[job.folder], title=job.title) for job in jobs if job.folder in views]
    write_report(named, folder / "report.html", experiment.file.stem)
    console.print(f"report: {folder / 'report.html'}, results: {folder / 'results.md'}", markup=False, highlight=False)
