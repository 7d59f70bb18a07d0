"""The page of the commands."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

import click
import typer.main

from reference.markdown import page, table
from selfsame import cli


def commands_page() -> str:
    """Every command with every argument and option, as Typer knows them."""
    root = typer.main.get_command(cli.app)
    assert isinstance(root, click.Group)
    sections = []
    for heading, several in cli._COMMANDS.items():
        names = [name for name, *_ in several]
        names += [name for name, (under, *_) in cli._GROUPS.items() if under == heading]
        sections.append(f"## {heading}\n")
        sections += [part for name in names for part in _command(root.commands[name], f"selfsame {name}")]
    opening = """
    Bad input ends with one line on standard error and exit code 2. `selfsame COMMAND --help` prints what stands here.
    `--set KEY=VALUE` takes any key of a [recipe](recipe.md); a bare key is the method's.
    """
    return page("Commands", opening, *sections)


def _command(command: Any, path: str) -> Iterator[str]:
    context = click.Context(command, info_name=path)
    yield f"### {path}\n"
    yield textwrap.dedent(command.help or "").strip().replace("\n\n\b\n", "\n\n") + "\n"
    yield f"```\n{path} {' '.join(command.collect_usage_pieces(context))}\n```\n"
    rows = []
    for parameter in command.params:
        record = parameter.get_help_record(context)
        if record is not None and parameter.name != "help":
            rows.append((f"`{record[0].strip()}`", record[1].strip()))
    yield table(("argument or option", "meaning"), rows)
    for name, one in getattr(command, "commands", {}).items():
        yield from _command(one, f"{path} {name}")
