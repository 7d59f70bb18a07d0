"""Every command by name, each written in its file under commands/; how errors end."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Annotated

import click
import typer
import typer.core
from typer._completion_classes import completion_init

from selfsame import __version__
from selfsame.commands import (
    audit,
    choose,
    cluster,
    data,
    embed,
    enrol,
    evaluate,
    export,
    paper,
    privacy,
    recipes,
    train,
    tune,
    verify,
    weights,
    whiten,
)
from selfsame.errors import SelfsameError, not_installed

typer.core.HAS_RICH = False  # help is plain text; for rich, typer would put a backslash before every "[required]"

# A name, its function, and a summary that fits the list of commands in 80 columns, by what people come to do.
_COMMANDS: dict[str, tuple[tuple[str, Callable[..., None], str], ...]] = {
    "Train": (
        ("train", train.train, "Train one method; write a run folder and a report."),
        ("compare", train.compare, "Train several methods on the same data; print one table."),
        ("resume", train.resume, "Go on with a run from its last checkpoint."),
        ("recipe", recipes.recipe, "Run a recipe file with all its variants and seeds."),
        ("tune", tune.tune, "Choose a recipe's settings, with no test data at hand."),
        ("whiten", whiten.whiten, "Whiten a run's network by one sum over its devices."),
        ("paper", paper.paper, "Repeat a table or figure of a paper, beside what it prints."),
        ("methods", data.methods, "List the methods, or one method's options."),
        ("wire", data.wire, "Print every field a method moves or keeps, and who sees it."),
    ),
    "Measure": (
        ("evaluate", evaluate.evaluate, "Measure a trained network: error rates with intervals."),
        ("evaluations", evaluate.evaluations, "Compare runs that were evaluated."),
        ("audit", audit.audit, "Set every attacker on a run; print what each gets."),
        ("choose", choose.choose, "Find the settings that give away no more than is asked."),
        ("privacy", privacy.privacy, "Count the privacy loss of FDML's Algorithm 2."),
    ),
    "Device": (
        ("enrol", enrol.enrol, "Enrol a user on this device: a template and a threshold."),
        ("warm-up", enrol.warm_up, "Set a user's threshold anew from more samples."),
        ("verify", verify.verify, "Say whether samples are a user's, also by the exit code."),
        ("identify", verify.identify, "Say which of the users somebody is, or none."),
        ("match", embed.match, "Compare two samples; nobody need be enrolled."),
        ("embed", embed.embed, "Write the embeddings of samples to a file."),
        ("users", verify.users, "List the users enrolled on this device."),
        ("passphrase", enrol.change_passphrase, "Change the passphrase of a user's enrolment."),
        ("revoke", enrol.revoke, "Destroy a user's enrolment."),
    ),
    "Deploy": (("export", export.export, "Write a run's network as an ONNX file for devices."),),
}
_GROUPS = {  # commands that have commands
    "data": ("Train", data.app, "List the data sets, describe one, or check its files."),
    "weights": ("Train", weights.app, "List ready encoders, or convert their published weights."),
    "cluster": ("Deploy", cluster.app, "Run a federation of real processes over Flower."),
}


class Grouped(typer.core.TyperGroup):
    """The list of commands under headings, no summary cut."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for heading, several in _COMMANDS.items():
            rows = [(name, summary) for name, _, summary in several]
            rows += [(name, summary) for name, (under, _, summary) in _GROUPS.items() if under == heading]
            with formatter.section(heading):
                formatter.write_dl(rows)


app = typer.Typer(
    name="selfsame",
    cls=Grouped,
    help="Federated metric learning where every device knows only its owner.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for _several in _COMMANDS.values():
    for _name, _command, _summary in _several:
        app.command(_name, short_help=_summary)(_command)
for _name, (_, _app, _summary) in _GROUPS.items():
    app.add_typer(_app, name=_name, short_help=_summary)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"selfsame {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    pass


def main() -> None:
    """The command `selfsame`: bad input ends with one line on standard error and exit code 2."""
    try:
        try:
            if "_SELFSAME_COMPLETE" in os.environ:
                completion_init()  # the scripts that shells ask for
            app(prog_name="selfsame")
        except ModuleNotFoundError as error:
            raise not_installed(error) from error
    except SelfsameError as error:
        print(f"selfsame: {error}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        print(f"selfsame: {error.filename or 'files'}: {error.strerror or error}", file=sys.stderr)
        sys.exit(2)
