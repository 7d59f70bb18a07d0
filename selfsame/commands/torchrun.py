"""A command that torchrun started several times: who speaks, and how all of them end when one does."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

import typer

from selfsame.errors import SelfsameError

if TYPE_CHECKING:
    from selfsame.engine.ranks.group import Ranks

_LOST = 3  # the exit code of a rank that cannot go on without another
_BAD = 2  # of one that has refused its input
_GRACE = 5  # seconds in which a rank that is told to end may do so by itself


@contextmanager
def among_ranks() -> Iterator[Ranks]:
    """This process's place among those of torchrun, for as long as the command runs.

    Whatever ends one rank ends all: torchrun stops the others, and a collective that misses a rank fails. The first
    rank that notices says so in one line; the others end silently.
    """
    from selfsame.engine.ranks.group import ALONE, RankLost, join, launched, leave

    if not launched():
        yield ALONE
        return
    ranks = join()
    _listen(ranks)
    try:
        yield ranks
        leave(ranks)
    except SelfsameError as error:
        _end(ranks, str(error), _BAD)
    except RankLost as error:
        _end(ranks, _lost(str(error)), _LOST)
    except typer.Exit as ending:
        if ending.exit_code in (0, 1):  # trained or diverged, which all ranks know
            leave(ranks)
            raise
        _end(ranks, None, ending.exit_code)
    except KeyboardInterrupt:
        _end(ranks, None, 130)
    except OSError as error:
        _end(ranks, f"{error.filename or 'files'}: {error.strerror or error}", _BAD)
    except BaseException:
        ranks.first_to_tell()
        raise


def one_process(command: str) -> None:
    """Refuse torchrun for a command that does not share its work."""
    from selfsame.engine.ranks.group import launched

    if not launched():
        return
    if os.environ["RANK"] != "0":
        raise typer.Exit(_BAD)
    raise SelfsameError(f"{command}: runs in one process; start `selfsame train` or `selfsame resume` with torchrun")


def _lost(why: str) -> str:
    return f"a process of this run has ended, so all do; resume the run to go on from its last checkpoint ({why})"


def _end(ranks: Ranks, line: str | None, code: int) -> None:
    """End at once: at exit the collectives' threads would wait for ranks that are gone."""
    tell = ranks.first_to_tell()
    if tell and line is not None:
        print(f"selfsame: {line}", file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _listen(ranks: Ranks) -> None:
    """Torchrun's SIGTERM ends this rank like the loss of another, also where it waits in a collective."""
    from selfsame.engine.ranks.group import RankLost

    def told(_number: int, _frame: FrameType | None) -> None:
        raise RankLost("stopped by torchrun")

    def watch() -> None:
        while signal.SIGTERM not in os.read(read, 64):
            pass
        time.sleep(_GRACE)  # the main thread hears of it only between two operations
        _end(ranks, _lost("stopped by torchrun"), _LOST)

    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, told)
    threading.Thread(target=watch, name="selfsame-ranks", daemon=True).start()
