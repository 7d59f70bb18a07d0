"""What there is: data sets and what is in their files, methods, and what leaves a device."""

from __future__ import annotations

import shutil
import textwrap
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from selfsame.commands.options import Aggregation, Own, PathTo, given_tables
from selfsame.commands.progress import loading, table_of
from selfsame.errors import SelfsameError

_ELSEWHERE = ("net.", "data.", "sums.")  # settings that are not a method's own
WireData = Annotated[str | None, typer.Option("--data", help="Data set, to say how large a network update is.")]


def methods(
    name: Annotated[str | None, typer.Argument(help="Show the options of one method.")] = None,
) -> None:
    """List the methods, or one method's options."""
    from selfsame.methods import METHODS, method_class, options_of

    if name is None:
        rows = [(key, _first_line(kind), ", ".join(options_of(key))) for key, kind in METHODS.items()]
        table_of(rows, "method", "what it does", "options")
        return
    kind = method_class(name)
    typer.echo(f"{name}: {_first_line(kind)}")
    typer.echo(f"paper: {kind.paper}")
    typer.echo(f"several clients of one class: {kind.shared_class}")
    table_of([(key, repr(value)) for key, value in options_of(name).items()], "option", "default")


def _first_line(kind: type) -> str:
    return (kind.__doc__ or "").strip().splitlines()[0]


def wire(
    method: Annotated[str, typer.Argument(help="Method; `selfsame methods` lists them.")],
    settings: Own = None,
    aggregation: Aggregation = None,
    data: WireData = None,
    path: PathTo = None,
) -> None:
    """Print every field that leaves or stays, and who sees it.

    With --data also the bytes of a network update; --set net.adapters=4 and the like say what of it learns.
    """
    from selfsame.config.recipe import NamedPart, Recipe, SumsPart, bare_options
    from selfsame.engine.sums import check_sums
    from selfsame.methods import make
    from selfsame.report.words import aggregation_words, sight_words
    from selfsame.runs.summary import wire_rows

    sums = SumsPart(aggregation or "clear")
    own = [setting for setting in settings or () if not setting.startswith(_ELSEWHERE)]
    if data is None and len(own) < len(settings or ()):
        raise SelfsameError("--set net.*, data.*, sums.*: a network's size goes with its data; name that with --data")
    made = make(method, bare_options(own))
    check_sums(Recipe(NamedPart(method), sums=sums), made)
    found = wire_rows(made.wire, sums.summed)
    rows = [(name, way, sight_words(sight), made.wire.bound_words(name, way), what) for name, way, sight, what in found]
    update = ""
    if data is not None:
        update = _update_words(method, given_tables(data, path, aggregation, device="cpu"), settings or [])
    heads = ("field", "direction", "who sees it", "longest", "what it is")
    table_of(rows, *heads, title=f"{method}: what leaves the device")
    said = aggregation_words(sums.aggregation, found)
    if said:
        typer.echo(said)
    if update:
        typer.echo(update)


def _update_words(method: str, given: dict[str, dict[str, Any]], settings: list[str]) -> str:
    """How large a network update is, whole and of what learns."""
    from selfsame.config.presets import make_recipe
    from selfsame.engine.setup import prepare

    problem = prepare(make_recipe(method, None, given, settings))
    if not problem.method.federated:
        return "a network update: none, since every device trains a network of its own and sends nothing"
    model, sums = problem.model, problem.recipe.sums
    head = model.parameters - model.size
    wide = sums.bits // 8 if sums.aggregation == "masked" else 4
    part = "" if model.size == model.whole else f" of {model.whole:,} in the network"
    beside = f" and {head:,} beside it" if head else ""
    return (
        f"a network update: {model.size:,} parameters{part}{beside} learn, "
        f"{wide * model.parameters:,} bytes up per round"
        f" ({wide * (model.whole + head):,} where all learn)"
    )


def _below(words: str) -> str:
    """Wrapped between words and set in; no address is cut."""
    wide = min(shutil.get_terminal_size().columns, 120)
    lines = textwrap.wrap(words, wide - 4, break_long_words=False, break_on_hyphens=False)
    return "\n".join(("  " if number == 0 else "    ") + line for number, line in enumerate(lines))


class _Data(TyperGroup):
    """`selfsame data NAME` is short for `selfsame data show NAME`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        known = args and (args[0] in self.commands or args[0] in ctx.help_option_names)
        return super().parse_args(ctx, args if known else ["show", *args])


app = typer.Typer(
    cls=_Data,
    help="List the data sets; `data NAME` describes one, `data check NAME FOLDER` looks through its files.",
    subcommand_metavar="[NAME | COMMAND [ARGS]...]",
    rich_markup_mode=None,
)


@app.command()
def show(
    name: Annotated[str | None, typer.Argument(help="Load this data set and say what is in it.")] = None,
    path: PathTo = None,
    settings: Own = None,
) -> None:
    """List the data sets, or load one and describe it."""
    from selfsame.config.recipe import bare_options
    from selfsame.data import DATASETS, inspection, load

    if name is None:
        for key, one in DATASETS.items():
            options = ", ".join(f"{k}={v}" for k, v in one.options.items())
            typer.echo(f"{key} (network {one.net}, {one.width}-d)")
            typer.echo(_below(f"needs {one.wants}"))
            typer.echo(_below(f"options: {options}") if options else "", nl=bool(options))
        return
    with loading():
        found = load(name, path, **bare_options(settings))
    table_of(inspection.counts(found), "what", "value", title=name)
    for note in found.notes:
        typer.echo(f"note: {note}")


@app.command()
def check(
    name: Annotated[str, typer.Argument(help="The data set.")],
    folder: Annotated[Path | None, typer.Argument(help="Where its files are.")] = None,
    path: PathTo = None,
    settings: Own = None,
) -> None:
    """Look through all files of a data set: what is wrong, where.

    The exit code is 0 where nothing is, 1 where something is, 2 where it cannot be trained on.
    """
    from selfsame.config.recipe import bare_options
    from selfsame.data import inspection

    with loading():
        report = inspection.check(name, folder or path, **bare_options(settings))
    if report.found:
        table_of(report.found, "what", "value", title=report.name)
    for line in (*(f"note: {note}" for note in report.notes), *(f"wrong: {line}" for line in report.wrong)):
        typer.echo(line)
    if not report.wrong:
        typer.echo("nothing is wrong")
    if not report.usable:
        raise SelfsameError(f"{name}: cannot be trained on as it is")
    if report.wrong:
        raise typer.Exit(1)
