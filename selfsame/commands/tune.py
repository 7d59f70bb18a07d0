"""`selfsame tune`: the settings of a recipe, chosen on people or samples set apart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from selfsame.commands.options import Device, PathTo, Quiet, Rounds, Settings, given_tables
from selfsame.commands.progress import loading, tell, train_and_keep, train_at_once
from selfsame.errors import SelfsameError

if TYPE_CHECKING:
    from selfsame.config.experiment import Job, Variant
    from selfsame.data import Federation
    from selfsame.report.contenders import Contest
    from selfsame.runs.experiments import Campaign
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
        list[str] | None,
        typer.Option("--only", metavar="TITLE", help="Of a recipe with variants, the one with this title."),
    ] = None,
    every: Annotated[
        bool, typer.Option("--every", help="Tune each variant alike: all of them, or those with an --only text.")
    ] = False,
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
    chosen recipe. With --every each variant has the same settings to choose from, and the recipe has every choice.
    """  # fmt: skip
    from selfsame.commands.torchrun import one_process
    from selfsame.config.ladders import read_ladders
    from selfsame.runs.claim import shared_claim
    from selfsame.runs.tuning import Task, plan
    from selfsame.runs.tuning_alike import plan_alike

    one_process("selfsame tune")
    ladders = read_ladders(over or [])
    if share is not None and not 0 < share < 1:
        raise SelfsameError(f"--share: must lie between 0 and 1, got {share}")
    variants = _variants(file, only or [], every, given_tables(path=path, device=device, rounds=rounds), settings or [])
    changed = [*(settings or []), *([] if rounds is None else [f"--rounds {rounds}"])]
    first = Task(
        file, variants[0].recipe, ladders, (), halving, by or "", share or 0.0, changed,
        placed=path is None, alone=not every and only is None,
    )  # fmt: skip
    tasks = [replace(first, recipe=one.recipe, seeds=_seeds(one, seeds), variant=one) for one in variants]
    folder = out or Path("runs") / f"tune-{file.stem}"
    with loading(quiet):
        alike = plan_alike(tasks, folder) if every else None
        tunings = alike.tunings if alike else [plan(tasks[0], folder)]
    with shared_claim(folder):
        data: dict[Path, Federation] = {}
        with loading(quiet):
            known: dict[str, Federation] = {}
            for tuning in tunings:
                data |= {job.folder: federation for job, federation in tuning.left(tuning.jobs, known)}
        _not_too_many(tunings, data, at_once, yes)
        for rung in range(max(len(tuning.rungs) for tuning in tunings)):
            _train([tuning for tuning in tunings if rung < len(tuning.rungs)], rung, data, at_once, quiet)
        contests = alike.finish() if alike else [tunings[0].finish()]
    _show(contests, folder, every)
    if any(contest.best is None for contest in contests):
        raise typer.Exit(1)


def _variants(
    file: Path, only: list[str], every: bool, given: dict[str, dict[str, object]], settings: list[str]
) -> list[Variant]:
    """The variants of the recipe file that are to be tuned."""
    from selfsame.config.experiment import read_experiment

    chosen = [variant for variant in read_experiment(file, given, settings).select(only) if not variant.oracle]
    if not chosen:
        raise SelfsameError(f"{file}: --only {only[0]}: an oracle is not trained; name a variant that is")
    if len(chosen) > 1 and not every:
        known = "; ".join(variant.title for variant in chosen)
        raise SelfsameError(
            f"{file}: has {len(chosen)} variants; name one with --only, or tune each alike with --every: {known}"
        )
    return chosen


def _seeds(variant: Variant, count: int) -> tuple[int, ...]:
    first = variant.recipe.run.seed
    return tuple(range(first, first + count))


def _not_too_many(tunings: list[Tuning], data: dict[Path, Federation], at_once: int, yes: bool) -> None:
    """Refuse a long wait that nobody has asked for, with how long it would be."""
    from selfsame.report.words import span_words
    from selfsame.runs.tuning import seconds_a_round

    lefts = {tuning.folder: [job for job in tuning.jobs if job.folder in data] for tuning in tunings}
    count = sum(map(len, lefts.values()))
    if yes or count <= MANY:
        return
    rounds, total = 0, 0.0
    for tuning in tunings:
        if left := lefts[tuning.folder]:
            each = seconds_a_round(left[0].recipe, data[left[0].folder])
            rounds += tuning.work()
            total += each * tuning.work() * len(left) / len(tuning.jobs) / at_once
    raise SelfsameError(
        f"--over: {count} runs, {rounds:,} rounds in all, about {span_words(total)} of rounds with --jobs {at_once}, "
        f"starting and evaluating apart; add --yes to begin{'' if tunings[0].task.halving else ', or --halving'}"
    )


def _train(tunings: list[Tuning], rung: int, data: dict[Path, Federation], at_once: int, quiet: bool) -> None:
    """The runs of a rung that are not there yet; those that pause after one round at the same time."""
    groups: dict[int, list[tuple[Campaign, Job, Federation]]] = {}
    for tuning in tunings:
        for job in tuning.missing(rung):
            groups.setdefault(tuning.until(rung), []).append((tuning, job, data[job.folder]))
    for until, some in groups.items():
        if (rungs := max(len(tuning.rungs) for tuning in tunings)) > 1:
            end = until or max(job.recipe.run.rounds for _, job, _ in some)
            tell(f"rung {rung + 1} of {rungs}: {len(some)} runs to round {end:,}", quiet)
        if at_once > 1:
            train_at_once(some, at_once, quiet, until)
        else:
            _one_by_one(some, until, quiet, told=rung > 0)
    for tuning in tunings:
        tuning.check(rung)


def _one_by_one(some: list[tuple[Campaign, Job, Federation]], until: int, quiet: bool, told: bool) -> None:
    from selfsame.runs.claim import claimed

    for number, (tuning, job, federation) in enumerate(some):
        current = tuning.open(job, federation)
        with claimed(job.folder):
            shown = train_and_keep(current, quiet, job.title, told=told or number > 0, until=until)
        if shown is not None:
            tuning.keep(job.folder, shown)


def _show(contests: list[Contest], folder: Path, every: bool) -> None:
    """The table, how it was made, what to know, the files."""
    from rich.console import Console

    from selfsame.report.alike import alike_sheet, how_alike, remarks_alike
    from selfsame.report.contenders import contest_sheet, how, remarks

    first = contests[0]
    sheet = alike_sheet(contests) if every else contest_sheet(first, _SHOWN)
    Console(width=None if Console().is_terminal else 80).print(sheet.terminal())
    if not every and len(first.contenders) > _SHOWN:
        print(f"{len(first.contenders) - _SHOWN} more in {folder / 'tune.md'}")
    told = [*how_alike(contests), *remarks_alike(contests)] if every else [*how(first), *remarks(first)]
    for sentence in told:
        print(sentence)
    best = "" if all(one.best is None for one in contests) else f"chosen: {folder / 'chosen.toml'}, "
    print(f"{best}table: {folder / 'tune.md'}, plots: {folder / 'tune.html'}")
