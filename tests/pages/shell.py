"""Pages as programs: their fenced blocks, a small shell that runs them, and what counts as the same output."""

from __future__ import annotations

import contextlib
import glob
import io
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from selfsame import cli

PAGES = Path(__file__).parents[2]
_FENCE = re.compile(r"^```(\w*)(.*?)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_NUMBER = re.compile(r"(?<![\w.])-?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?(?!\w)")
_DIGEST = re.compile(r"\b(?=[a-f]*\d)[0-9a-f]{12,}\b")


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, the file that `title="..."` names, its text."""

    language: str
    title: str
    text: str


@dataclass(frozen=True)
class Step:
    """A command of a page, and the lines shown below it."""

    command: str
    shown: tuple[str, ...]


def blocks(page: str) -> list[Block]:
    """The fenced blocks of a page, in order."""
    found = []
    for language, rest, text in _FENCE.findall(page):
        title = re.search(r'title="([^"]*)"', rest)
        found.append(Block(language, title[1] if title else "", text))
    return found


def prose(page: str) -> str:
    """What is left of a page without its fenced blocks."""
    return _FENCE.sub("", page)


def steps(text: str) -> list[Step]:
    """The commands of a console block: lines after `$ `, carried on after a backslash, and the output below each."""
    found: list[Step] = []
    lines = iter(text.splitlines())
    for line in lines:
        if line.startswith("$ "):
            command = line[2:]
            while command.endswith("\\"):
                command = command[:-1].rstrip() + " " + next(lines, "").strip()
            found.append(Step(command, ()))
        else:
            assert found, f"output before the first command: {line}"
            found[-1] = Step(found[-1].command, (*found[-1].shown, line))
    return found


class Shell:
    """Runs a page's commands in the present folder: `selfsame` in this process, `export` for good, the rest by bash."""

    def run(self, command: str) -> list[str]:
        """The lines that a command prints on both streams, and its exit code after `; echo $?`."""
        command, asks, _ = command.partition("; echo $?")
        words = shlex.split(command, comments=True)
        if words[0] == "export":
            for word in words[1:]:
                name, _, value = word.partition("=")
                os.environ[name] = value
            return []
        code, text = self._own(words[1:]) if words[0] == "selfsame" else self._other(command)
        if not asks:
            assert code == 0, f"{command}: exit code {code}\n{text}"
        return [*text.splitlines(), *([str(code)] if asks else [])]

    def _own(self, words: list[str]) -> tuple[int, str]:
        out, before = io.StringIO(), sys.argv
        expanded = [name for word in words for name in (sorted(glob.glob(word)) or [word])]
        try:
            sys.argv = ["selfsame", *expanded]
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
                cli.main()
            return 0, out.getvalue()
        except SystemExit as end:
            return int(end.code or 0), out.getvalue()
        finally:
            sys.argv = before

    def _other(self, command: str) -> tuple[int, str]:
        command = re.sub(r"^python ", f"{shlex.quote(sys.executable)} ", command)
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120)
        return done.returncode, done.stdout + done.stderr


def differences(shown: tuple[str, ...], real: list[str], loose: re.Pattern[str]) -> str:
    """Empty if the shown lines are the real ones; a line `...` stands for any number of them.

    Words must be equal, and so must whole numbers. Figures that another processor rounds differently need only be near;
    on lines that match `loose` (seconds, bytes) any number will do.
    """
    left, anchored = _plain(real), True
    for chunk in _chunks(_plain(list(shown))):
        places = [0] if anchored else range(len(left) + 1)
        at = next((p for p in places if _alike_lines(chunk, left[p : p + len(chunk)], loose)), None)
        if at is None:
            return "shown:\n" + "\n".join(chunk) + "\n\nreal, from there on:\n" + "\n".join(left)
        left, anchored = left[at + len(chunk) :], False
    open_end = bool(shown) and shown[-1].strip() == "..."
    return "" if open_end or not left else "not shown:\n" + "\n".join(left)


def _plain(lines: list[str]) -> list[str]:
    """Lines without spacing, rules and blank ones: tables grow with their figures."""
    plain = (" ".join(re.sub("[─━]+", " ", line).split()) for line in lines)
    return [line for line in plain if line]


def _chunks(lines: list[str]) -> list[list[str]]:
    chunks: list[list[str]] = [[]]
    for line in lines:
        if line == "...":
            chunks.append([])
        else:
            chunks[-1].append(line)
    return chunks


def _alike_lines(shown: list[str], real: list[str], loose: re.Pattern[str]) -> bool:
    return len(shown) == len(real) and all(alike(a, b, loose) for a, b in zip(shown, real, strict=True))


def alike(shown: str, real: str, loose: re.Pattern[str]) -> bool:
    """Whether two lines of output are the same but for what a processor rounds."""
    shown, real = _DIGEST.sub("DIGEST", shown), _DIGEST.sub("DIGEST", real)
    if _NUMBER.sub("0", shown) != _NUMBER.sub("0", real):
        return False
    if loose.search(shown):
        return True
    pairs = zip_longest(_NUMBER.finditer(shown), _NUMBER.finditer(real))
    return all(_near(a[0], b[0], shown[a.end() :].startswith(" %")) for a, b in pairs if a and b)


def _near(shown: str, real: str, percent: bool) -> bool:
    a, b = (float(text.replace(",", "")) for text in (shown, real))
    if "e" in shown:
        return True
    if not percent and "." not in shown + real:
        return a == b
    places = max(len(text.partition(".")[2]) for text in (shown, real))
    return abs(a - b) <= (0.2 if places > 2 else 2 + 0.25 * max(abs(a), abs(b)))
