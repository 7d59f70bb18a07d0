"""Every command by name, each written in its file under commands/; how errors end."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated

import typer
import typer.core

from selfsame import __version__
from selfsame.commands import audit, choose, cluster, data, enrol, evaluate, export, privacy, recipes, train, verify
from selfsame.errors import SelfsameError, not_installed

typer.core.HAS_RICH = False  # help is plain text; for rich, typer would put a backslash before every "[required]"

app = typer.Typer(
    name="selfsame",
    help="Federated metric learning where every device knows only its owner.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

# A name, its function, and a summary that fits the list of commands in 80 columns.
_COMMANDS: tuple[tuple[str, Callable[..., None], str], ...] = (
    ("train", train.train, "Train one method; write a run folder and a report."),
    ("compare", train.compare, "Train several methods on the same data; print one table."),
    ("resume", train.resume, "Go on with a run from its last checkpoint."),
    ("recipe", recipes.recipe, "Run a recipe file with all its variants and seeds."),
    ("methods", data.methods, "List the methods, or one method's options."),
    ("wire", data.wire, "Print every field a method moves or keeps, and who sees it."),
    ("evaluate", evaluate.evaluate, "Measure a trained network: error rates with intervals."),
    ("evaluations", evaluate.evaluations, "Compare runs that were evaluated."),
    ("audit", audit.audit, "Set every attacker on a run; print what each gets."),
    ("choose", choose.choose, "Find the settings that give away no more than is asked."),
    ("export", export.export, "Write a run's network as an ONNX file for devices."),
    ("enrol", enrol.enrol, "Enrol a user on this device: a template and a threshold."),
    ("warm-up", enrol.warm_up, "Set a user's threshold anew from more samples."),
    ("passphrase", enrol.change_passphrase, "Change the passphrase of a user's enrolment."),
    ("revoke", enrol.revoke, "Destroy a user's enrolment."),
    ("verify", verify.verify, "Say whether a sample is a user's, also by the exit code."),
    ("users", verify.users, "List the users enrolled on this device."),
    ("privacy", privacy.privacy, "Count the privacy loss of FDML's Algorithm 2."),
)
for _name, _command, _summary in _COMMANDS:
    app.command(_name, short_help=_summary)(_command)
app.add_typer(data.app, name="data", short_help="List the data sets, describe one, or check its files.")
app.add_typer(cluster.app, name="cluster", short_help="Run a federation of real processes over Flower.")


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
            app()
        except ModuleNotFoundError as error:
            raise not_installed(error) from error
    except SelfsameError as error:
        print(f"selfsame: {error}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        print(f"selfsame: {error.filename or 'files'}: {error.strerror or error}", file=sys.stderr)
        sys.exit(2)
