"""The page of the data sets."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

from reference.comments import meanings
from reference.keys import KEY_HEADS, keys_of, kind_words
from reference.markdown import code, page, prose, table
from selfsame.data import DATASETS
from selfsame.data.choosing import OPTIONS as APART
from selfsame.fields import options_of


def data_page() -> str:
    rows = [(f"[`{name}`](#{name})", one.net, str(one.width), one.wants) for name, one in DATASETS.items()]
    every = [(f"`{name}`", kind_words(type(value)), code(value)) for name, value in APART.items()]
    sections = [
        table(("data set", "network", "width", "files it wants"), rows),
        "Every data set takes these, with which it is loaded for [choosing settings](../guides/tune.md):\n\n"
        + table(("key", "type", "default"), every),
    ]
    for name, one in DATASETS.items():
        load = one.load.func if isinstance(one.load, functools.partial) else one.load
        options = table(KEY_HEADS, _data_options(one, load)) or "It has no options of its own.\n"
        sections.append(f"## {name}\n\n{prose(load)}\n\nFiles: {one.wants}.\n\n{options}")
    opening = """
    Set an option by `--set data.KEY=VALUE` or in `[data]` of a recipe. [The guide](../guides/data.md) says what a
    loaded data set promises, and how to use your own files.
    """
    return page("Data sets", opening, *sections)


def _data_options(one: Any, load: Callable[..., Any]) -> Iterator[tuple[str, ...]]:
    said = meanings(load)
    own = options_of(one.load)
    for name, value in own.items():
        yield f"`{name}`", kind_words(type(value)), code(value), "", said.get(name, "")
    if one.shared is None:
        return
    for row in keys_of(type(one.shared), without=(*one.fixed, *own)):
        value = getattr(one.shared, row[0].strip("`"))
        yield row[0], row[1], code(value), row[3], row[4]
