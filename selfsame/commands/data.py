"""What there is: data sets and what is in their files, methods, and what leaves a device."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from selfsame.commands.options import PathTo, Settings
from selfsame.commands.progress import loading
from selfsame.errors import SelfsameError


def methods(
    name: Annotated[str | None, typer.Argument(help="Show the options of one method.")] = None,
) -> None:
    """List the methods, or one method's options."""
    from rich.console import Console
    from rich.table import Table

    from selfsame.methods import METHODS, method_class, options_of

    console = Console()
    if name is not None:
        kind = method_class(name)
        console.print(f"{name}: {(kind.__doc__ or '').strip().splitlines()[0]}", markup=False, highlight=False)
        console.print(f"paper: {kind.paper}", markup=False, highlight=False)
        console.print(f"several clients of one class: {kind.shared_class}", markup=False, highlight=False)
        table = Table("option", "default")
        for key, value in options_of(name).items():
            table.add_row(key, repr(value))
        console.print(table)
        return
    table = Table("method", "what it does", "options")
    for key, kind in METHODS.items():
        table.add_row(key, (kind.__doc__ or "").strip().splitlines()[0], ", ".join(options_of(key)))
    console.print(table)


def wire(
    method: Annotated[str, typer.Argument(help="Method; `selfsame methods` lists them.")],
    settings: Settings = None,
) -> None:
    """Print every field that a method moves or keeps, and who sees it."""
    from rich.console import Console
    from rich.table import Table

    from selfsame.config.recipe import parse_setting
    from selfsame.methods import make
    from selfsame.runs.summary import wire_rows

    chosen = make(method, {keys[-1]: given for keys, given in map(parse_setting, settings or [])})
    table = Table("field", "direction", "who sees it", "what it is", title=f"{method}: what leaves the device")
    for row in wire_rows(chosen.wire):
        table.add_row(*row)
    Console().print(table)


def _check_data(name: str | None, path: Path | None, settings: list[str] | None) -> None:
    from rich.console import Console
    from rich.table import Table

    from selfsame.config.recipe import parse_setting
    from selfsame.data.inspection import check

    if name is None:
        raise SelfsameError("name a data set: selfsame data check NAME PATH")
    with loading():
        report = check(name, path, **{keys[-1]: given for keys, given in map(parse_setting, settings or [])})
    console = Console()
    if report.found:
        table = Table("what", "value", title=report.name)
        for row in report.found:
            table.add_row(*row)
        console.print(table)
    for line in (*(f"note: {note}" for note in report.notes), *(f"wrong: {line}" for line in report.wrong)):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    if not report.wrong:
        console.print("nothing is wrong")
    if not report.usable:
        raise SelfsameError(f"{name}: cannot be trained on as it is")


def data(
    name: Annotated[str | None, typer.Argument(help="Load this data set and say what is in it; or: check.")] = None,
    checked: Annotated[str | None, typer.Argument(help="After `check`: the data set to look through.")] = None,
    folder: Annotated[Path | None, typer.Argument(help="After `check NAME`: where its files are.")] = None,
    path: PathTo = None,
    settings: Settings = None,
) -> None:
    """List the data sets, load one and describe it, or (check NAME PATH) look through all its files."""
    from rich.console import Console
    from rich.table import Table

    from selfsame.config.recipe import parse_setting
    from selfsame.data import DATASETS, load

    console = Console()
    if name == "check":
        _check_data(checked, folder or path, settings)
        return
    if checked is not None:
        raise SelfsameError(
            f"unexpected argument {checked!r}; to look through the files: selfsame data check NAME PATH"
        )
    if name is None:
        table = Table("data set", "needs", "network", "options")
        for key, entry in DATASETS.items():
            options = ", ".join(f"{k}={v}" for k, v in entry.options.items())
            table.add_row(key, entry.wants, f"{entry.net}, {entry.width}-d", options)
        console.print(table)
        return
    chosen = {keys[-1]: given for keys, given in map(parse_setting, settings or [])}
    with loading():
        found = load(name, path, **chosen)
    table = Table("what", "value", title=name)
    count = found.count_N
    for key, value in (
        ("clients", f"{found.clients:,}"),
        ("classes", f"{found.classes:,}"),
        ("sample shape", "x".join(map(str, found.shape))),
        ("training samples", f"{int(count.sum()):,}"),
        ("samples a client", f"{int(count.min())} to {int(count.max())}"),
        ("test samples of seen classes", f"{len(found.test.x):,}"),
        ("samples of unseen classes", f"{len(found.unseen.x):,} of {len(found.unseen.y.unique()):,}"),
    ):
        table.add_row(key, value)
    console.print(table)
    for note in found.notes:
        console.print(f"note: {note}", markup=False, highlight=False)
