"""What a user sees while data is read and rounds go by, and at the end."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from selfsame.report.view import RunView
    from selfsame.runs.run import Run


@contextmanager
def loading(quiet: bool = False) -> Iterator[None]:
    """A bar on the error stream while files are decoded, which happens at the first load only."""
    from rich.console import Console
    from rich.progress import Progress

    from selfsame.data import watching

    tasks: dict[str, Any] = {}
    bar = Progress(console=Console(stderr=True), transient=True)

    def tell(name: str, done: int, total: int) -> None:
        if name not in tasks:
            bar.start()
            tasks[name] = bar.add_task(f"decoding {name}", total=total)
        bar.update(tasks[name], completed=done)

    try:
        with watching(None if quiet else tell):
            yield
    finally:
        if tasks:  # a bar that never began would leave an empty line
            bar.stop()


def _describe(record: dict[str, Any]) -> str:
    parts = [f"loss {record['loss']:.3f}"]
    for key, name in (("p@1", "P@1"), ("eer", "EER")):
        if record.get(key) is not None:
            parts.append(f"{name} {100 * record[key]:.1f} %")
    return "  ".join(parts)


def carry_on_with_bar(run: Run, quiet: bool, label: str = "") -> RunView:
    """Train with a progress bar, keep the result beside the run, say what went wrong."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from selfsame.runs.run import carry_on
    from selfsame.runs.summary import keep_view, view

    columns = (
        TextColumn("{task.description:18s}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
        TextColumn("{task.fields[now]}"),
    )  # fmt: skip
    with Progress(*columns, console=Console(stderr=True), disable=quiet) as progress:
        task = progress.add_task(label or run.title, total=run.recipe.run.rounds, completed=run.state.round, now="")

        def tick(rounds: int, record: dict[str, Any] | None) -> None:
            progress.update(task, advance=rounds)
            if record is not None:
                progress.update(task, now=_describe(record))

        try:
            carry_on(run, tick)
        except KeyboardInterrupt:
            progress.stop()
            print(
                f"selfsame: stopped; `selfsame resume {run.folder}` goes on from the last checkpoint", file=sys.stderr
            )
            raise typer.Exit(130) from None
    shown = view(run)
    if run.folder is not None:
        keep_view(shown, run.folder)
    return shown


def show(views: list[RunView], report: Path, title: str) -> None:
    """The table, the warnings, the report."""
    from rich.console import Console

    from selfsame.report.html import write_report
    from selfsame.report.table import results_table
    from selfsame.report.words import finding_words

    console = Console()
    console.print(results_table(views))
    for run_view in views:
        for warning in run_view.warnings:
            console.print(f"{run_view.title}: {finding_words(warning)}", style="red", markup=False, highlight=False)
    write_report(views, report, title)
    console.print(f"report: {report}", markup=False, highlight=False)
