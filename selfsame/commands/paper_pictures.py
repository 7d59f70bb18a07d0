"""`selfsame paper fedhide --table 2`: the pictures behind an update, attacked as far as the data allow."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from selfsame.commands.progress import loading, tell, tell_notes, train_and_keep
from selfsame.config.exhibits import Exhibit
from selfsame.config.picture_attacks import Key, PictureSettings, cases, chosen, picture_settings
from selfsame.errors import SelfsameError

if TYPE_CHECKING:
    from selfsame.audit.lpips import Lpips
    from selfsame.runs.course import Run
    from selfsame.runs.inversions import Inversions
    from selfsame.runs.picture_table import PictureTable

_LOOK = 0.5  # seconds between looks at processes


@dataclass(frozen=True)
class AskedPictures:
    """What the command line says."""

    exhibit: Exhibit
    folder: Path
    path: Path | None
    lpips: Path | None
    only: Sequence[str]
    settings: Sequence[str]
    rounds: int | None
    because: str | None
    device: str
    at_once: int
    quiet: bool

    @cached_property
    def terms(self) -> PictureSettings:
        return picture_settings(self.settings, self.rounds)

    def words(self) -> list[str]:
        """The command of one of several processes."""
        out = ["paper", "fedhide", "--table", self.exhibit.number, "--out", str(self.folder), "--device", self.device]
        given = {"path": self.path, "lpips": self.lpips, "rounds": self.rounds, "chosen": self.because}
        for name, value in given.items():
            out += [] if value is None else [f"--{name}", str(value)]
        out += [word for text in self.only for word in ("--only", text)]
        return [*out, *(word for setting in self.settings for word in ("--set", setting)), "--quiet"]


def repeat(asked: AskedPictures) -> None:
    """Attack what is left, and write the page with all that is there."""
    from selfsame.runs.picture_table import PictureTable
    from selfsame.runs.stopping import Interrupted, stoppable

    judges = _judges(asked)
    wanted = chosen(list(cases(asked.terms)), asked.only)
    table = PictureTable(asked.exhibit, asked.folder, asked.terms, asked.because or "", asked.only, bool(judges))
    left = table.left(wanted)
    ready = _ready(asked, table, judges, left) if left else None
    for words in table.passed_over():
        tell(words)
    with stoppable("stopping; finished attacks are kept, once more ends at once", raises=True):
        try:
            failed = _work(asked, ready, table, left)
        except Interrupted as end:
            if page := table.write():
                tell(f"page so far: {page}", asked.quiet)
            tell("selfsame: stopped; the same command goes on", asked.quiet)
            raise typer.Exit(end.code) from None
    page = table.write()
    if table.missing:
        tell(f"not run: {table.told}")
    if page is None:
        tell(f"{table.page}: stays; it tells of attacks, and this command has none to tell of")
    else:
        table.draw()
        _show(table)
    if failed or table.missing:
        raise typer.Exit(1)


def _judges(asked: AskedPictures) -> list[Lpips]:
    from selfsame.audit.lpips import Lpips

    return [] if asked.lpips is None else [Lpips.read(asked.lpips, side) for side in asked.terms.sides]


def _ready(
    asked: AskedPictures, table: PictureTable, judges: Sequence[Lpips], left: Sequence[Key]
) -> Inversions | None:
    """The data and what is done with it; None where it is not there, which the page says."""
    from selfsame.config.recipe import RunPart
    from selfsame.data import DATASETS, checked_options, load
    from selfsame.engine.machine import choose_machine
    from selfsame.runs.inversions import Inversions

    data, path = asked.terms.data, asked.path
    checked_options(data, {})
    choose_machine(RunPart(device=asked.device))
    if path is not None:
        path = path / data if (path / data).is_dir() else path
    place = path if DATASETS[data].needs_path else None
    try:
        with loading(asked.quiet):
            federation = load(data, place)
    except SelfsameError as error:
        table.lacks(str(error), asked.path, DATASETS[data].wants, len(left))
        return None

    tell_notes(federation.notes, asked.quiet)

    def train(run: Run, title: str) -> None:
        from selfsame.runs.stopping import Interrupted

        try:
            train_and_keep(run, asked.quiet, title, told=True, among=True)
        except typer.Exit as end:
            raise Interrupted(end.exit_code) from None

    return Inversions(asked.terms, federation, table.file, place, judges, asked.device, train)


def _work(asked: AskedPictures, ready: Inversions | None, table: PictureTable, left: Sequence[Key]) -> bool:
    """Train and attack; gives whether something failed."""
    from selfsame.runs.sharing import RunsFailed

    if ready is None or not left:
        return False
    if asked.at_once > 1:
        return _at_once(asked, table, left)
    failed = False
    try:
        ready.train_networks(left)
    except RunsFailed as error:  # the cases that need them fail, and no others
        tell(str(error))
        failed = True
    try:
        ready.attack(left, table.counts, table.write, lambda words: tell(words, asked.quiet))
    except RunsFailed as error:
        tell(str(error))
        failed = True
    return failed


def _at_once(asked: AskedPictures, table: PictureTable, left: Sequence[Key]) -> bool:
    """So many processes that share the cases; gives whether one failed."""
    from rich.console import Console
    from rich.progress import Progress

    command = [sys.executable, "-m", "selfsame", *asked.words()]
    begun = [
        # A terminal's Ctrl-C reaches this process alone, which tells the others.
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True)
        for _ in range(min(asked.at_once, len(left)))
    ]
    try:
        with Progress(console=Console(stderr=True), disable=asked.quiet) as progress:
            task = progress.add_task("attacks", total=len(left))
            while any(process.poll() is None for process in begun):
                progress.update(task, completed=len(left) - len(table.left(left)))
                time.sleep(_LOOK)
    finally:
        for process in begun:
            process.terminate()
        for process in begun:
            process.wait()
    return any(process.returncode for process in begun)


def _show(table: PictureTable) -> None:
    from rich.console import Console

    from selfsame.report.picture_page import picture_remarks, picture_sheets

    console = Console(width=None if Console().is_terminal else 80)
    pictures: dict[str, Any] = table.plain()["pictures"]
    for sheet in picture_sheets(pictures):
        console.print(sheet.terminal())
    for remark in picture_remarks(pictures):
        print(remark)
    drawn = f", pictures: {table.drawing}" if table.drawing.is_file() else ""
    print(f"page: {table.page}, figures: {table.page.with_suffix('.json')}{drawn}")
