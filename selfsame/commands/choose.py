"""`selfsame choose`: the settings that give away no more than is asked, and what they cost."""

from __future__ import annotations

from typing import Annotated

import typer

from selfsame.commands.options import PathTo, Quiet
from selfsame.commands.progress import loading


def choose(
    most_leakage: Annotated[
        float, typer.Option("--most-leakage", help="The largest share of owners that an attacker may identify, 0 to 1.")
    ],
    data: Annotated[str, typer.Option(help="Data set; `selfsame data` lists them.")] = "digits",
    path: PathTo = None,
    names: Annotated[str, typer.Option("--methods", help="Methods to try, with commas; by default seven.")] = "",
    ways: Annotated[str, typer.Option("--aggregations", help="Aggregations to try, with commas.")] = "clear,masked",
    rounds: Annotated[int, typer.Option(help="Training rounds of each setting.")] = 150,
    size: Annotated[int, typer.Option(help="Devices in a round, and in a group where only sums leave.")] = 7,
    watched: Annotated[int, typer.Option(help="Rounds that a watching attacker goes on.")] = 30,
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1 or auto.")] = "auto",
    quiet: Quiet = False,
) -> None:
    """Find the settings that give away no more than is asked.

    Each method is trained at small scale with several options and aggregations and attacked as `selfsame audit` does.
    """
    from rich.console import Console

    from selfsame.commands.options import given_tables
    from selfsame.config.recipe import DataPart
    from selfsame.errors import SelfsameError
    from selfsame.methods import method_class
    from selfsame.report.table import Sheet
    from selfsame.report.words import duration, percent
    from selfsame.runs import choice
    from selfsame.runs.experiments import load_data

    if not 0 <= most_leakage <= 1:
        raise SelfsameError(f"--most-leakage: must lie between 0 and 1, got {most_leakage}")
    methods = [name.strip() for name in names.split(",") if name.strip()] or list(choice.TRIED)
    aggregations = [name.strip() for name in ways.split(",") if name.strip()]
    for method in methods:
        method_class(method)
    for way in aggregations:
        if way not in choice.NEEDS:
            raise SelfsameError(f"--aggregations {way}: must be one of {', '.join(choice.NEEDS)}")
    if min(rounds, size, watched) < 1:
        raise SelfsameError("--rounds, --size and --watched: must be at least 1")
    given = given_tables(data, path, rounds=rounds, seed=seed, device=device)
    with loading(quiet):
        federation = load_data(DataPart(data, {}, "" if path is None else str(path)))
    with Console(stderr=True, quiet=quiet).status("training") as status:
        tried = choice.choose(methods, aggregations, given, size, watched, federation, status.update)
    kept = choice.kept_within(tried, most_leakage)
    rows = [
        (one.candidate.words, one.candidate.aggregation, percent(one.leaks, 0), one.by, percent(one.eer),
         percent(one.right), choice.NEEDS[one.candidate.aggregation], duration(one.seconds))
        for one in kept
    ]  # fmt: skip
    if rows:
        heads = ("Setting", "Updates", "Leaks\n%", "To", "EER\n%", "P@1\n%", "Needs", "Sec")
        sheet = Sheet(heads, rows, words=(0, 1, 3, 6), whole=(1, 2, 4, 5, 6, 7))
        Console(width=None if Console().is_terminal else 80).print(sheet.terminal())
    said = f"{len(kept)} of {len(tried)} settings let no attacker identify more than {percent(most_leakage, 0)} %"
    print(f"{said}. One seed, {rounds} rounds, attackers who only read.")
