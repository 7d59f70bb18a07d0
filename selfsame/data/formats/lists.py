"""Text files that publishers send along: lists of names, trials and partitions, one to a line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from selfsame.errors import SelfsameError

_MOST_BYTES = 1 << 28


def read_lines(path: Path) -> list[str]:
    """The lines of a text file that came with a data set."""
    try:
        with path.open("rb") as stream:
            raw = stream.read(_MOST_BYTES + 1)
    except OSError as error:
        raise SelfsameError(f"{path}: cannot be read ({error.strerror or type(error).__name__})") from error
    if len(raw) > _MOST_BYTES:
        raise SelfsameError(f"{path}: longer than {_MOST_BYTES} bytes, not a list of names")
    try:
        return raw.decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise SelfsameError(f"{path}: byte {error.start} is not UTF-8 text") from error


def read_list(path: Path, expected: str, fits: Callable[[list[str]], bool]) -> list[tuple[int, list[str]]]:
    """The number and the words of each line that is not blank; one that does not fit is refused."""
    numbered = [(number, line.split()) for number, line in enumerate(read_lines(path), 1)]
    rows = [(number, words) for number, words in numbered if words]
    for number, words in rows:
        if not fits(words):
            raise SelfsameError(f"{path}: line {number}: expected {expected}, got {' '.join(words)[:80]!r}")
    if not rows:
        raise SelfsameError(f"{path}: empty, expected lines of {expected}")
    return rows
