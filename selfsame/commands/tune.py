"""`selfsame tune`: the settings of a recipe, chosen on people or samples set apart."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from selfsame.commands.options import Device, PathTo, Quiet, Rounds, Settings, given_tables
from selfsame.commands.progress import loading, tell, train_and_keep, train_at_once
from selfsame.errors import SelfsameError

if TYPE_CHECKING:
    from selfsame.config.experiment import Variant
    from selfsame.data import Federation
    from selfsame.report.contenders import Contest
    from selfsame.runs.tuning import Tuning

MANY = 48  # runs that are begun without a question
_SHOWN = 20  # settings in the terminal's table


def tune(
    file: Annotated[Path, typer.Argument(help="Recipe (TOML) whose settings are chosen.")],
    over: Annotated[
        list[str] | None,
        typer.Option(
            "--over",
            metavar="KEY=V1,V2,...",
            help="Values to try of a recipe's key; of several keys, every combination. A bare key is the method's.",
        ),
    ] = None,
    halving: Annotated[
        bool, typer.Option("--halving", help="Successive halving: the best third goes on to three times the rounds.")
    ] = False,
    by: Annotated[
        str | None,
        typer.Option(
            help="The figure that decides: eer, auroc (people set apart); p@1, eer_seen, auroc_seen, "
            "one_class_auroc (samples).",
            show_default="eer, or p@1 where no test has unseen people",
        ),
    ] = None,
    share: Annotated[
        float | None,
        typer.Option(help="The share that is set apart.", show_default="0.2 of the people, 0.1 of the samples"),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each setting, with seeds of their own.")] = 1,
    at_once: Annotated[int, typer.Option("--jobs", min=1, help="Runs at a time, each in a process of its own.")] = 1,
    only: Annotated[
        str | None, typer.Option("--only", metavar="TITLE", help="Of a recipe with variants, the one with this title.")
    ] = None,
    path: PathTo = None,
    settings: Settings = None,
    rounds: Rounds = None,
    device: Device = None,
    yes: Annotated[bool, typer.Option("--yes", help=f"Begin also where there are more than {MANY} runs.")] = False,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for the runs.", show_default="runs/tune- and the file's name")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Choose settings of a recipe on people or samples set apart.

    Nothing of the test is at hand. Goes on where an earlier call stopped; ends with a table, a page with plots, and the
    chosen recipe.
    """  # fmt: skip
    from selfsame.commands.torchrun import one_process
    from selfsame.config.ladders import read_ladders
    from selfsame.runs.claim import shared_claim
    from selfsame.runs.tuning import Task, plan

    one_process("selfsame tune")
    ladders = read_ladders(over or [])
    if share is not None and not 0 < share < 1:
        raise SelfsameError(f"--share: must lie between 0 and 1, got {share}")
    variant = _variant(file, only, given_tables(path=path, device=device, rounds=rounds), settings or [])
    first = variant.recipe.run.seed
    changed = [*(settings or []), *([] if rounds is None else [f"--rounds {rounds}"])]
    task = Task(
        file, variant.recipe, ladders, tuple(range(first, first + seeds)), halving, by or "", share or 0.0, changed,
        placed=path is None, variant=variant,
    )  # fmt: skip
    with loading(quiet):
        tuning = plan(task, out or Path("runs") / f"tune-{file.stem}")
    with shared_claim(tuning.folder):
        with loading(quiet):
            data = {job.folder: federation for job, federation in tuning.left(tuning.jobs)}
        _not_too_many(tuning, data, at_once, yes)
        for rung in range(len(tuning.rungs)):
            _train(tuning, rung, data, at_once, quiet)
            tuning.check(rung)
        found = tuning.finish()
    _show(found, tuning.folder)
    if found.best is None:
        raise typer.Exit(1)


def _variant(file: Path, only: str | None, given: dict[str, dict[str, object]], settings: list[str]) -> Variant:
    """The one variant of the recipe file that is to be tuned."""
    from selfsame.config.experiment import read_experiment

    experiment = read_experiment(file, given, settings)
    chosen = experiment.select([] if only is None else [only])
    if len(chosen) > 1:
        known = "; ".join(variant.title for variant in chosen)
        raise SelfsameError(f"{file}: has {len(chosen)} variants; name one with --only: {known}")
    return chosen[0]


def _not_too_many(tuning: Tuning, data: dict[Path, Federation], at_once: int, yes: bool) -> None:
    """Refuse a long wait that nobody has asked for, with how long it would be."""
    from selfsame.report.words import span_words
    from selfsame.runs.tuning import seconds_a_round

    left = [job for job in tuning.jobs if job.folder in data]
    if yes or len(left) <= MANY:
        return
    each = seconds_a_round(left[0].recipe, data[left[0].folder])
    total = each * tuning.work() * len(left) / len(tuning.jobs) / at_once
    raise SelfsameError(
        f"--over: {len(left)} runs, {tuning.work():,} rounds in all, about {span_words(total)} of rounds with --jobs "
        f"{at_once}, starting and evaluating apart; add --yes to begin{'' if tuning.task.halving else ', or --halving'}"
    )


def _train(tuning: Tuning, rung: int, data: dict[Path, Federation], at_once: int, quiet: bool) -> None:
    """The runs of a rung that are not there yet."""
    from selfsame.runs.claim import claimed

    jobs, until = tuning.missing(rung), tuning.until(rung)
    if jobs and len(tuning.rungs) > 1:
        tell(f"rung {rung + 1} of {len(tuning.rungs)}: {len(jobs)} runs to round {tuning.rungs[rung][1]:,}", quiet)
    if at_once > 1 and jobs:
        train_at_once(tuning, [(job, data[job.folder]) for job in jobs], at_once, quiet, until)
        return
    for number, job in enumerate(jobs):
        current = tuning.open(job, data[job.folder])
        with claimed(job.folder):
            shown = train_and_keep(current, quiet, job.title, told=rung + number > 0, until=until)
        if shown is not None:
            tuning.keep(job.folder, shown)


def _show(found: Contest, folder: Path) -> None:
    """The table, how it was made, what to know, the files."""
    from rich.console import Console

    from selfsame.report.contenders import contest_sheet, how, remarks

    Console(width=None if Console().is_terminal else 80).print(contest_sheet(found, _SHOWN).terminal())
    if len(found.contenders) > _SHOWN:
        print(f"{len(found.contenders) - _SHOWN} more in {folder / 'tune.md'}")
    for sentence in [*how(found), *remarks(found)]:
        print(sentence)
    best = "" if found.best is None else f"chosen: {folder / 'chosen.toml'}, "
    print(f"{best}table: {folder / 'tune.md'}, plots: {folder / 'tune.html'}")
