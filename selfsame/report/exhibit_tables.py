"""The tables of a paper's page, from its JSON: what the paper reports beside ours, then what it does not report."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from selfsame.config.experiment import FIGURES
from selfsame.report.beside import as_printed
from selfsame.report.table import Sheet

_BESIDE = ("Variant", "Figure", "Paper", "Measured", "Difference", "Rounds", "Seeds")
_MORE = "Figures that the paper does not report:"
COLLAPSED = (
    "Collapsed: P@1 ended near chance, or all classes at nearly one place. Such runs stay in the mean; what each said "
    "of it is in the JSON of this page."
)
_ACROSS = 4  # figures side by side in a terminal

Plain = Mapping[str, Any]


def part_sheets(part: Plain) -> list[Sheet]:
    """The tables of one recipe for a page."""
    told, rest = _told(part)
    sheets = [_beside(part, told, " ")] if told else []
    more = [_compact(part, rest, " ", not told, _MORE if told else "")] if rest else []
    return [sheet for sheet in (*sheets, *more) if sheet.rows]


def terminal_sheets(part: Plain) -> list[Sheet]:
    """The same for a terminal: intervals in a line of their own, and no more figures side by side than it has room."""
    told, rest = _told(part)
    sheets = [_beside(part, told, "\n")] if told else []
    for begin in range(0, len(rest), _ACROSS):
        last = begin + _ACROSS >= len(rest)
        title = _MORE if told and not begin else ""
        sheets.append(_compact(part, rest[begin : begin + _ACROSS], "\n", last and not told, title))
    return [sheet for sheet in sheets if sheet.rows]


def _told(part: Plain) -> tuple[list[str], list[str]]:
    """The figures that the paper reports of some variant, and the others."""
    keys = list(dict.fromkeys(key for variant in part["variants"] for key in variant["figures"]))
    told = [key for key in keys if any(_figure(one, key).get("paper") is not None for one in part["variants"])]
    return told, [key for key in keys if key not in told]


def _figure(variant: Plain, key: str) -> Plain:
    found: Plain = variant["figures"].get(key, {})
    return found


def _beside(part: Plain, keys: Sequence[str], between: str) -> Sheet:
    """A row for each variant and figure: the paper's, ours, and ours less the paper's."""
    rows = []
    for variant in part["variants"]:
        for key in (key for key in keys if key in variant["figures"]):
            figure, digits = variant["figures"][key], FIGURES[key].digits
            paper = as_printed(figure["paper"], figure["paper_spread"], digits)
            about = "≈ " if figure["about"] and figure["paper"] is not None else ""
            less = figure["difference"]
            rows.append(
                [
                    _title(variant),
                    FIGURES[key].label,
                    about + paper,
                    measured_words(figure, digits, between),
                    "–" if less is None else f"{round(less, digits) + 0.0:+.{digits}f}",
                    _rounds(variant),
                    _seeds(variant),
                ]
            )
    return Sheet(_BESIDE, rows, words=(0, 1, 6), whole=range(1, 7), lose=(5, 6, 4))


def _compact(part: Plain, keys: Sequence[str], between: str, whole: bool, title: str) -> Sheet:
    """A row for each variant, a column for each figure.

    `whole`: with the rounds and seeds. Otherwise another table has these, and variants without any figure are left out.
    """
    more: dict[str, Callable[[Plain], str]] = {"Rounds": _rounds, "Seeds": _seeds} if whole else {}
    labels = [FIGURES[key].label for key in keys]
    headings = ["Variant", *(_two_lines(one) if between == "\n" else one for one in labels), *more]
    rows = [
        [
            _title(variant),
            *(measured_words(_figure(variant, key), FIGURES[key].digits, between) for key in keys),
            *(words(variant) for words in more.values()),
        ]
        for variant in part["variants"]
        if (whole and not variant["quoted"]) or any(_figure(variant, key).get("measured") is not None for key in keys)
    ]
    end = len(headings)
    seeds, lose = ((0, end - 1), (end - 2, end - 1)) if whole else ((0,), ())
    return Sheet(headings, rows, title, words=seeds, whole=range(1, end), lose=lose)


def _two_lines(label: str) -> str:
    """Broken in its middle."""
    words = label.split(" ")
    half = (len(words) + 1) // 2
    return "\n".join(" ".join(part) for part in (words[:half], words[half:]) if part)


def measured_words(figure: Plain, digits: int, between: str = " ") -> str:
    """The mean over seeds ± half their range, with its interval by person, or the intervals of each seed."""
    value = _pair(figure.get("measured"), figure.get("half_range"), digits)
    found = figure.get("interval")
    if found is None or figure["measured"] is None:
        return value
    pairs = [pair for pair in (found["seeds"] if found["mean"] is None else [found["mean"]]) if pair is not None]
    return value + between + f";{between}".join(f"[{low:.{digits}f}, {high:.{digits}f}]" for low, high in pairs)


def timing_sheet(timings: Plain) -> Sheet:
    """The seconds of the enclave, a row for each number of participants."""
    rows = [
        [f"{one['participants']:,}", f"{one['paper']:g}", _seconds(one), f"{one['paper'] / one['seconds']:,.0f}"]
        for one in timings["rows"]
    ]
    return Sheet(("Participants", "Paper, s", "Measured, s", "Times faster"), rows, words=())


def _seconds(one: Plain) -> str:
    return f"{one['seconds']:.2g} ± {one['half_range']:.1g}"


def _title(variant: Plain) -> str:
    mark = " (control)" if variant["control"] else " (oracle)" if is_oracle(variant) else ""
    return f"{variant['title']}{mark}"


def is_oracle(variant: Plain) -> bool:
    """Whether it was fitted at once and not federated; pages of earlier versions have none."""
    return bool(variant.get("oracle", False))


def _pair(value: float | None, spread: float | None, digits: int) -> str:
    if value is None:
        return "–"
    return f"{value:.{digits}f}" + ("" if spread is None else f" ± {spread:.{digits}f}")


def _rounds(variant: Plain) -> str:
    if variant["quoted"] or is_oracle(variant):
        return "–"
    paper = variant["paper_rounds"]
    return f"{variant['rounds']:,}" + (f" of {paper:,}" if paper and paper != variant["rounds"] else "")


def _seeds(variant: Plain) -> str:
    """Those that have ended and which of them collapsed, those that diverged, and those that have not been run."""
    if variant["quoted"]:
        return "quoted"
    told = list(zip(variant["seeds"], variant["ended"], variant["diverged"], variant["collapsed"], strict=True))
    sound = [seed for seed, ended, diverged, _ in told if ended and not diverged]
    flat = [seed for seed, _, diverged, collapsed in told if collapsed and not diverged]
    lost = [seed for seed, _, diverged, _ in told if diverged]
    left = [seed for seed, ended, _, _ in told if not ended]
    said = [_listed(sound)] if sound else []
    said += [f"collapsed: {'all' if flat == sound and len(flat) > 1 else _listed(flat)}"] if flat else []
    said += [f"diverged: {_listed(lost)}"] if lost else []
    said += [f"not run: {_listed(left)}"] if left else []
    return "; ".join(said)


def said_below(part: Plain) -> list[str]:
    """The remarks under the tables; that a run collapsed stands in its row, and what it means is said once."""
    titles = tuple(str(variant["title"]) for variant in part["variants"])
    said = [one for one in part["remarks"] if not (one.startswith(titles) and ": collapsed: " in one)]
    heads = Counter(title.rpartition(" ")[0] for title in titles if _number(title.rpartition(" ")[2]))
    series = [head for head, count in heads.items() if count > 1]
    return [_brief(one, series) for one in said] + ([COLLAPSED] if len(said) < len(part["remarks"]) else [])


def _brief(said: str, series: Sequence[str]) -> str:
    """The remark with "lambda 1, 2, 3" in place of "lambda 1, lambda 2, lambda 3", or with semicolons between."""
    for head in series:
        one = rf"{re.escape(head)} ([^\s,;)]+)"

        def shared(found: re.Match[str], head: str = head, one: str = one) -> str:
            return f"{head} {', '.join(re.findall(one, found[0]))}"

        for mark in (", ", "; "):
            said = re.sub(rf"(?<![^\s(]){one}(?:{mark}{one})+(?![^\s,.;:)])", shared, said)
    return said


def _number(word: str) -> bool:
    return re.fullmatch(r"-?\d+(\.\d+)?(e-?\d+)?", word) is not None


def _listed(seeds: Sequence[int]) -> str:
    return ", ".join(map(str, seeds))
