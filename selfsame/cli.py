"""Every command by name, each written in its file under commands/; how errors end."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from selfsame import __version__
from selfsame.commands import cluster, data, enrol, evaluate, export, privacy, recipes, train, verify
from selfsame.errors import SelfsameError

app = typer.Typer(
    name="selfsame",
    help="Federated metric learning where every device knows only its owner.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command()(train.train)
app.command()(train.compare)
app.command()(train.resume)
app.command()(recipes.recipe)
app.command()(data.methods)
app.command()(data.wire)
app.command()(evaluate.evaluate)
app.command()(evaluate.evaluations)
app.command()(export.export)
app.command()(enrol.enrol)
app.command("warm-up")(enrol.warm_up)
app.command("passphrase")(enrol.change_passphrase)
app.command()(enrol.revoke)
app.command()(verify.verify)
app.command()(verify.users)
app.command()(privacy.privacy)
app.add_typer(data.app, name="data")
app.add_typer(cluster.app, name="cluster")


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
        app()
    except SelfsameError as error:
        print(f"selfsame: {error}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        print(f"selfsame: {error.filename or 'files'}: {error.strerror or error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
