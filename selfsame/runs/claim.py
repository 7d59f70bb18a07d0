"""A folder belongs to one process while it writes a run there; what a dead one held is free again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from selfsame.data.fingerprint import FILE
from selfsame.engine.starting import KEPT
from selfsame.errors import SelfsameError
from selfsame.files import lock_holder, locked_folder

RECORDS = "metrics.jsonl"  # the first file of a run
_FIRST = (FILE, KEPT)  # those that follow
_DRAFTS = tuple(f".{name}." for name in (FILE, KEPT, "recipe.toml"))
_MOST = 100_000  # numbers that a name may have


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Nobody else writes to this folder meanwhile; it is refused where somebody does."""
    if not folder.is_dir():
        yield  # what opens it says so
        return
    with locked_folder(folder) as ours:
        if not ours:
            holder = lock_holder(folder)
            who = "" if holder is None else f" (process {holder})"
            raise SelfsameError(f"{folder}: another process is writing to it{who}; wait until it ends, or stop it")
        yield


@contextmanager
def shared_claim(folder: Path) -> Iterator[None]:
    """The same for a folder of several runs, which is made if need be, and gone again where nothing came into it."""
    _no_file(folder)
    made = _made(folder)
    try:
        with claimed(folder):
            yield
    finally:
        _unmade(made)


def vacant(folder: Path) -> None:
    """Raise unless a run can be put there: nothing in it, and no file in the way."""
    if folder.is_dir() and any(folder.iterdir()) and not _cut_off(folder):
        raise SelfsameError(f"{folder}: is there already; resume it, or name another folder with --out")
    _no_file(folder)


def _cut_off(folder: Path) -> bool:
    """Whether all that is there was left by a run that was killed before it had its recipe, which is written last."""
    records = folder / RECORDS
    names = {place.name for place in folder.iterdir()}
    drafts = {name for name in names if name.startswith(_DRAFTS)}
    return records.is_file() and not records.stat().st_size and names - drafts <= {RECORDS, *_FIRST}


def _no_file(folder: Path) -> None:
    for place in (folder, *folder.parents):
        if place.exists() and not place.is_dir():
            raise SelfsameError(f"{folder}: cannot be made, {place} is a file; name another folder with --out")


@contextmanager
def new_claim(out: Path | None, name: str = "run") -> Iterator[Path]:
    """A folder for a new run that no other process gets: `out`, or the next free one under runs/ of this name.

    Where nothing has been put into it in the end, it is gone again.
    """
    with ExitStack() as held:
        made: list[Path] = []
        try:
            yield _take(held, out, made) if out is not None else _next(held, Path("runs"), name, made)
        finally:
            _unmade(made)


def _take(held: ExitStack, folder: Path, made: list[Path]) -> Path:
    """This folder, claimed; `made` gets what was not there."""
    if not folder.is_dir():
        vacant(folder)
        made += _made(folder)
    held.enter_context(claimed(folder))  # before it is looked at: somebody may just be writing
    vacant(folder)
    return folder


def _next(held: ExitStack, home: Path, name: str, made: list[Path]) -> Path:
    """The first free folder of a name, claimed."""
    above = _made(home)
    for number in range(1, _MOST):
        folder = home / f"{name}-{number}"
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        made[:] = [folder, *above]
        if held.enter_context(locked_folder(folder)):
            return folder
    raise SelfsameError("runs/: too many runs; delete some or name a folder with --out")


def _made(folder: Path) -> list[Path]:
    """Make a folder and those above it; gives what was not there, the deepest first."""
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    return missing


def _unmade(made: list[Path]) -> None:
    with suppress(OSError):  # the first that is not empty ends it
        for place in made:
            place.rmdir()
