"""What a user sees while data is read and rounds go by, and at the end."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from selfsame.config.experiment import Job
    from selfsame.data import Federation
    from selfsame.report.view import RunView
    from selfsame.runs.course import Run
    from selfsame.runs.experiments import Campaign


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


def train_and_keep(
    run: Run,
    quiet: bool,
    label: str = "",
    told: bool = False,
    until: int = 0,
    parent: int = 0,
    among: bool = False,
) -> RunView | None:
    """Train, keep the result beside the run and give its view; among several processes, the first alone does so.

    A run that the user stops has a checkpoint, says how it goes on, and ends the command. `told`: the data's notes are
    known already. `until`: the round after which it pauses. `parent`: the process without which it ends. `among`: it is
    one of a command's runs, which goes on with all of them.
    """
    from selfsame.runs.loop import carry_on
    from selfsame.runs.stopping import stoppable
    from selfsame.runs.summary import keep_view, view
    from selfsame.runs.watching import watched

    if not run.problem.ranks.first:
        carry_on(run, until=until)
        return None
    tell_notes(run.problem.federation.notes, quiet or told)
    if run.problem.ranks.active:  # torchrun stops all its processes together
        with watched(run, quiet, label) as tick:
            carry_on(run, tick, until=until)
    else:
        with stoppable(parent=parent) as stop, watched(run, quiet, label) as tick:
            carry_on(run, tick, stop.asked, until)
        if stop.asked() and not run.done and not run.paused(until):
            _tell_stopped(run, among)
            raise typer.Exit(stop.code)
    shown = view(run)
    if run.folder is not None:
        keep_view(shown, run.folder)
    return shown


def train_at_once(
    work: list[tuple[Campaign, Job, Federation]],
    number: int,
    quiet: bool,
    until: int = 0,
    heard: Callable[[Job, Federation], object] = lambda _job, _federation: None,
) -> None:
    """Train so many runs at a time in processes of their own, under one bar that counts them; `heard`: one ended."""
    from rich.console import Console
    from rich.progress import Progress

    from selfsame.runs import experiments
    from selfsame.runs.stopping import stoppable

    with stoppable("stopping every run after its round; once more ends at once") as stop:
        with Progress(console=Console(stderr=True), disable=quiet) as progress:
            task = progress.add_task("runs", total=len(work))

            def ended(job: Job, federation: Federation) -> None:
                progress.update(task, advance=1)
                heard(job, federation)

            experiments.train_at_once(work, number, ended, stop.asked, until)
        if stop.asked():
            print("selfsame: stopped, each run after its round; the same command goes on", file=sys.stderr)
            raise typer.Exit(stop.code)


def train_left(
    campaign: Campaign,
    chosen: list[Job],
    at_once: int,
    quiet: bool,
    heard: Callable[[Job, Federation | None], object] = lambda _job, _federation: None,
) -> None:
    """Train the chosen runs that have not ended yet, so many at a time; `heard` is told of each that has ended.

    Oracles come first, one after another; no federation is at hand for those.
    """
    from selfsame.runs.claim import claimed

    with loading(quiet):
        work = campaign.measure_untrained(campaign.left(chosen))
    fit_left(campaign, chosen, quiet, heard)
    if at_once > 1:
        return train_at_once([(campaign, *one) for one in work], at_once, quiet, heard=heard)
    for job, federation in work:
        current = campaign.open(job, federation)
        with claimed(job.folder):
            shown = train_and_keep(current, quiet, job.title, among=True)
        if shown is not None:
            campaign.keep(job.folder, shown)
            heard(job, federation)


def fit_left(
    campaign: Campaign,
    chosen: Sequence[Job],
    quiet: bool,
    heard: Callable[[Job, None], object] = lambda _job, _none: None,
) -> None:
    """Fit the oracles among the chosen that have not been fitted yet; `heard` is told of each."""
    from rich.console import Console

    from selfsame.runs.stopping import stoppable

    left = campaign.fits_left(chosen)
    if not left:
        return
    with stoppable("stopping after this oracle; once more ends at once") as stop:
        with Console(stderr=True, quiet=quiet).status("") as status:
            status.update(f"fitting: {left[0].title}")
            for job, later in zip(campaign.fit_oracles(left), [*left[1:], None], strict=True):
                heard(job, None)
                if stop.asked() and later is not None:
                    break
                status.update(f"fitting: {later.title}" if later else "")
        if stop.asked():
            print("selfsame: stopped after an oracle; the same command goes on", file=sys.stderr)
            raise typer.Exit(stop.code)


def tell(words: str, quiet: bool = False) -> None:
    """A line on the error stream; no line for no words."""
    if words and not quiet:
        print(words, file=sys.stderr)


def tell_notes(notes: Iterable[str], quiet: bool = False) -> None:
    """What is to be known of the data before it is trained on."""
    for note in () if quiet else notes:
        print(f"note: {note}", file=sys.stderr)


def _tell_stopped(run: Run, among: bool) -> None:
    now, all_of_it = run.state.round, run.recipe.run.rounds
    how = "the same command" if among else f"`selfsame resume {run.folder}`"
    on = f"; checkpoint written, {how} goes on" if run.folder is not None else ""
    print(f"selfsame: stopped after round {now:,} of {all_of_it:,}{on}", file=sys.stderr)


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
            words = f"{run_view.title}: {finding_words(warning)}"
            console.print(words, style="red", markup=False, highlight=False)
    write_report(views, report, title)
    print(f"report: {report}")


def show_run(run: Run, shown: RunView | None, folder: Path | None) -> None:
    """One run, and what crossed between its processes; a process without a view says nothing."""
    if shown is None or folder is None:
        return
    show([shown], folder / "report.html", f"{run.title} on {run.problem.federation.name}")
    if "before training" in shown.facts:
        typer.echo(f"before training: {shown.facts['before training']}")
    if "aggregation" in shown.facts:
        typer.echo(shown.facts["aggregation"])
    ranks = run.problem.ranks
    if ranks.active and ranks.crossed:
        typer.echo(f"{ranks.words}: {ranks.crossing_words()}")


def table_of(rows: Iterable[Sequence[str]], *columns: str, title: str | None = None) -> None:
    """Print a table of plain texts."""
    from rich.console import Console

    from selfsame.report.table import Sheet

    lines = list(rows)
    Console().print(Sheet(columns, lines, title or "", words=range(len(columns)), lose=()).terminal())
