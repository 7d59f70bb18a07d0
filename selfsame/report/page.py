"""Pages from templates: one HTML file each that asks nothing of the network, runs no script, and suits light and dark.

The shell is `templates/base.html.j2`. What a page shows in a section, a macro of its own template says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from selfsame.report.flows import WIDTH
from selfsame.report.style import THEME, clean, svg
from selfsame.report.words import finding_words, left_words, percent, sight_class, sight_words

if TYPE_CHECKING:
    from jinja2 import Environment
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Panel:
    """A figure with its caption, ready for a page."""

    svg: str
    caption: str


def panels(*drawn: tuple[Figure | None, str, str]) -> list[Panel]:
    """Panels of (figure, name, caption), without those that have nothing to show."""
    return [Panel(svg(figure, name, caption), caption) for figure, name, caption in drawn if figure is not None]


def page(template: str, title: str, lead: Any, sections: Sequence[tuple[str, str, Any]]) -> str:
    """The whole page; a section is (macro of the template, heading, what it shows), left out if it shows nothing."""
    shown = [section for section in sections if section[2]]
    return environment().get_template("base.html.j2").render(
        template=f"{template}.html.j2", title=title, lead=lead, sections=shown
    )  # fmt: skip


@cache
def environment() -> Environment:
    """Templates in which every word is text, never markup."""
    import jinja2

    found = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        finalize=_shown,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    found.globals |= {"theme": THEME, "width": WIDTH}
    said = (percent, sight_words, sight_class, left_words, finding_words)
    found.filters |= {function.__name__: function for function in said}
    return found


def _shown(value: Any) -> Any:
    """Words without the characters that XML and UTF-8 refuse; markup as it is."""
    if hasattr(value, "__html__"):
        return value
    return "\n".join(map(clean, str(value).replace("\r\n", "\n").replace("\t", "    ").split("\n")))
