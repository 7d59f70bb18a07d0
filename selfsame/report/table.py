"""The results as one table: for the terminal, and as Markdown."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from selfsame.report.view import RunView, duration, percent

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
NOTE = (
    "P@1 on test samples of the training classes; AUROC and EER on pairs of samples of classes unseen in training. "
    "Leakage is FedHide's measure (17); recovered is the share of true prototypes that an attacker who knows the "
    "method gets back. Beside what is listed, every federated method sends its network update to the server."
)


def cells(view: RunView) -> tuple[str, ...]:
    """One row, in the order of `HEADINGS`."""
    rates = (percent(view.figure(name)) for name in ("p@1", "auroc", "eer", "leak", "recovered"))
    more = [what for what in view.left if not what.startswith("network update")]
    left = "; ".join(map(arrow, more)) or ("network update only" if view.left else "nothing")
    return (view.title, *rates, left, duration(view.seconds))


def arrow(words: str) -> str:
    return words.replace("->", "→")


def results_table(views: Sequence[RunView]) -> Table:
    """For the terminal. Titles are text, never markup."""
    table = Table(caption=NOTE, caption_justify="left", box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for heading, short in zip(HEADINGS, _NARROW, strict=True):
        words = heading in ("Method", "Left the device")
        table.add_column(short, justify="left" if words else "right", overflow="fold", no_wrap=heading != HEADINGS[6])
    for view in views:
        title, *rest = cells(view)
        name = Text(_one_line(title))
        for mark, applies in (("collapsed", view.collapsed), ("diverged", view.diverged)):
            if applies:
                name.append("\n" + mark, style="bold red")
        left = Text("\n".join(map(_one_line, rest[5].split("; "))))
        table.add_row(name, *map(Text, rest[:5]), left, rest[6])
    return table


def results_markdown(views: Sequence[RunView]) -> str:
    """The same table in Markdown, with a line feed at its end."""
    lines = ["| " + " | ".join(HEADINGS) + " |", "|---|" + "---:|" * 5 + "---|---:|"]
    for view in views:
        title, *rest = (_markdown(cell) for cell in cells(view))
        marks = "".join(
            f" **{mark}**" for mark, applies in (("collapsed", view.collapsed), ("diverged", view.diverged)) if applies
        )
        lines.append("| " + " | ".join([title + marks, *rest]) + " |")
    return "\n".join([*lines, "", NOTE, ""])


def _one_line(words: str) -> str:
    return " ".join("".join(c if c.isprintable() else " " for c in words).split())


def _markdown(words: str) -> str:
    return re.sub(r"([\\|*_`\[\]#])", r"\\\1", html.escape(_one_line(words), quote=False))
