"""Tables for the terminal, as Markdown and for pages, and that of the results of runs."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from selfsame.report.view import RunView
from selfsame.report.words import duration, left_words, percent

HEADINGS = (
    "Method",
    "P@1 %",
    "AUROC %",
    "EER %",
    "Leakage % (17)",
    "Recovered % (adaptive)",
    "Left the device",
    "Seconds",
)
_NARROW = ("Method", "P@1\n%", "AUROC\n%", "EER\n%", "Leak %\n(17)", "Recovered\n%", "Left the device", "Sec")
LEFT = HEADINGS.index("Left the device")
NOTE = (
    "P@1 on test samples of the training classes; AUROC and EER on pairs of samples of classes unseen in training. "
    "Leakage is FedHide's measure (17); recovered is the share of true prototypes that an attacker who knows the "
    "method gets back. Beside what is listed, every federated method whose updates are not summed sends its own to the "
    "server, FDML to the enclave."
)
_GAP = 2  # characters between two columns
_READABLE = 18  # characters that a column of words needs


@dataclass(frozen=True)
class Sheet:
    """A table before it is drawn: in a terminal, as Markdown, or on a page. Cells are text, never markup."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    note: str = ""
    words: Sequence[int] = (0,)  # the columns that are flush left; all others hold figures
    whole: Sequence[int] = ()  # the columns that are never wrapped
    ends: Sequence[int] = ()  # the rows with a gap below
    marks: Sequence[Sequence[str]] = ()  # what stands in red below the first cell of each row
    lose: Sequence[int] | None = None  # the columns that a narrow terminal loses, in turn; None: the last, up to two

    def without(self, *headings: str) -> Sheet:
        """The same without some columns of figures."""
        kept = [number for number, heading in enumerate(self.headings) if heading not in headings]
        rows = [[row[number] for number in kept] for row in self.rows]
        words = [place for place, number in enumerate(kept) if number in self.words]
        return replace(self, headings=[self.headings[number] for number in kept], rows=rows, words=words)

    def terminal(self) -> Fitted:
        """For the terminal, as wide as that is."""
        return Fitted(self)

    def markdown(self) -> str:
        """In Markdown, with a line feed at the end."""
        rule = ["---" if number in self.words else "---:" for number in range(len(self.headings))]
        rows = [[marked_down(c) if n in self.words else c for n, c in enumerate(row)] for row in self.rows]
        lines = [f"| {' | '.join(line)} |" for line in (list(map(marked_down, self.headings)), *rows)]
        lines.insert(1, f"|{'|'.join(rule)}|")
        return "\n".join([*lines, *(["", self.note] if self.note else []), ""])


@dataclass(frozen=True)
class Fitted:
    """A sheet drawn as wide as the terminal.

    Words are wrapped between words, and columns are left out before any becomes too narrow to be read.
    """

    sheet: Sheet

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self.table(options.max_width)

    def table(self, width: int) -> Table:
        """For a terminal of this width."""
        sheet = self.sheet
        shown, lost = self._columns(width)
        missing = f"Too narrow for: {', '.join(_one_line(sheet.headings[n]) for n in lost)}." if lost else ""
        table = Table(
            title=Text(_one_line(sheet.title)) if sheet.title else None,
            caption=" ".join(part for part in (missing, sheet.note) if part) or None,
            title_justify="left",
            caption_justify="left",
            box=SIMPLE_HEAD,
            pad_edge=False,
            show_edge=False,
            padding=(0, 1, 0, 0),
        )
        for number, wide in shown.items():
            justify: Literal["left", "right"] = "left" if number in sheet.words else "right"
            table.add_column(_lines(sheet.headings[number]), justify=justify, overflow="fold", width=wide)
        for number, row in enumerate(sheet.rows):
            cells = [_lines(row[column]) for column in shown]
            for mark in sheet.marks[number] if sheet.marks else ():
                cells[0].append("\n" + mark, style="bold red")
            table.add_row(*cells, end_section=number in sheet.ends)
        return table

    def _columns(self, width: int) -> tuple[dict[int, int], list[int]]:
        """(columns and their widths, columns that are left out)."""
        sheet = self.sheet
        number = len(sheet.headings)
        ideal = {n: self._widest(n, "\n") for n in range(number)}
        least = {n: min(ideal[n], max(self._widest(n, None), _READABLE)) if self._wraps(n) else ideal[n] for n in ideal}
        lose = list(range(number - 1, 1, -1)) if sheet.lose is None else [n for n in sheet.lose if n < number]
        lost: list[int] = []
        while lose and sum(least[n] + _GAP for n in ideal if n not in lost) > width:
            lost.append(lose.pop(0))
        shown = {n: wide for n, wide in ideal.items() if n not in lost}
        while sum(shown.values()) + _GAP * len(shown) > width:
            open_ones = [n for n in shown if shown[n] > least[n]]
            if not open_ones:
                break
            shown[max(open_ones, key=lambda n: shown[n])] -= 1
        return shown, sorted(lost)

    def _wraps(self, column: int) -> bool:
        return column in self.sheet.words and column not in self.sheet.whole

    def _widest(self, column: int, between: str | None) -> int:
        """The widest line of a column, or, between blanks, the widest word."""
        marks = [mark for marks in self.sheet.marks for mark in marks] if column == 0 else []
        cells = [self.sheet.headings[column], *(row[column] for row in self.sheet.rows), *marks]
        parts = [part for cell in cells for part in (cell.split(between) if between else cell.split())]
        return max((cell_len(_one_line(part)) for part in parts), default=1)


def _one_line(words: str) -> str:
    return " ".join("".join(c if c.isprintable() else " " for c in words).split())


def _lines(words: str) -> Text:
    return Text("\n".join(map(_one_line, words.split("\n"))))


def marked_down(words: str) -> str:
    """Words on one line, none of them markup."""
    return re.sub(r"([\\|*_`\[\]#])", r"\\\1", html.escape(_one_line(words), quote=False))


def cells(view: RunView) -> list[str]:
    """One row, in the order of `HEADINGS`."""
    rates = (percent(view.figure(name)) for name in ("p@1", "auroc", "eer", "leak", "recovered"))
    more = [left_words(name, sight) for name, sight in view.left if name != "network update" or sight == "sum"]
    left = "; ".join(more) or ("network update only" if view.left else "nothing")
    return [view.title, *rates, left, duration(view.seconds)]


def results_sheet(views: Sequence[RunView]) -> Sheet:
    """Every run's figures and what left the device."""
    return Sheet(HEADINGS, [cells(view) for view in views], note=NOTE, words=(0, LEFT))


def results_table(views: Sequence[RunView]) -> Fitted:
    """For the terminal, narrower: what left the device has a line each."""
    sheet = results_sheet(views)
    rows = [[_one_line(row[0]), *row[1:LEFT], row[LEFT].replace("; ", "\n"), *row[LEFT + 1 :]] for row in sheet.rows]
    lose = (HEADINGS.index("Seconds"), *range(4, LEFT), LEFT)
    return replace(sheet, headings=_NARROW, rows=rows, marks=[view.marks for view in views], lose=lose).terminal()
