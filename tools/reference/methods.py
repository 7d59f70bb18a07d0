"""The pages of the methods and of their wire fields."""

from __future__ import annotations

import inspect
import re
from typing import Any

from reference.comments import comments
from reference.keys import KEY_HEADS, keys_of
from reference.markdown import page, prose, table
from selfsame.deploy import codec
from selfsame.methods import METHODS, make
from selfsame.methods import wire as wires
from selfsame.report.words import sight_words

_WIRE_HEADS = ("field", "direction", "who sees it", "in sums", "longest row", "what it is")


def methods_page() -> str:
    rows, sections = [], []
    for name, kind in METHODS.items():
        rows.append((f"[`{name}`](#{name})", prose(kind).splitlines()[0], _paper(kind)))
        options = table(("option", *KEY_HEADS[1:]), keys_of(kind)) or "It has no options.\n"
        facts = f"Paper: {_paper(kind)}. Several clients of one class: {kind.shared_class}."
        sections.append(f"## {name}\n\n{prose(kind)}\n\n{facts}\n\n{options}\n{wire_table(name)}")
    opening = """
    Set an option by `--set KEY=VALUE` or in `[method]` of a recipe. Below the options of each method stands its wire:
    every field that leaves the device or stays on it. [The methods](../design/methods.md) has what each does and how we
    read its paper; [wire fields](wire.md) says what the words mean.
    """
    return page("Methods", opening, table(("method", "what it does", "paper"), rows), *sections)


def wire_table(name: str) -> str:
    """The wire of a method: every field, and who sees it where updates are clear and where they are summed."""
    wire = make(name, {}).wire
    rows = []
    for (field, way, sight, what), (_, _, summed, _) in zip(wire.rows(), wire.rows(summed=True), strict=True):
        words = [sight_words(one.name.lower()) for one in (sight, summed)]
        rows.append((f"`{field}`", way, words[0], words[1], wire.bound_words(field, way), what))
    return table(_WIRE_HEADS, rows)


def _paper(kind: Any) -> str:
    """Where a method comes from; a page of the manual as a link."""
    return re.sub(r"docs/(design/(\w+)\.md)", r"[\2](../\1)", kind.paper)


def wire_page() -> str:
    said = comments(wires.Sight)
    sights = [(f"`{one.name}`", sight_words(one.name.lower()), said.get(one.name, "")) for one in wires.Sight]
    moved = [
        (
            f"`{field}`",
            f"[`{name}`](methods.md#{name})",
            way,
            sight_words(sight.name.lower()),
            wire.bound_words(field, way),
        )
        for name in METHODS
        for wire in [make(name, {}).wire]
        for field, way, sight, _ in wire.rows()
        if way != "stays" and not field.startswith("network")
    ]
    reasons = [(f"`{name}`", said) for name, said in _reasons().items()]
    sections = [
        "## Who sees a field\n\n" + table(("sight", "in words", "meaning"), sights),
        "## Every field that moves beside the network\n\n"
        + table(("field", "method", "direction", "who sees it", "longest row"), sorted(moved)),
        f"## Messages\n\n{prose(codec)}\n",
        "## Why a message is refused\n\nBy a device or by the server, each counted by its reason.\n\n"
        + table(("reason", "when"), reasons),
    ]
    opening = """
    A method declares every field that crosses the network, with who may see it and how long its rows may be. The engine
    moves declared fields and nothing else. `selfsame wire METHOD` prints the table of one method. D is the width of the
    embedding.
    """
    return page("Wire fields", opening, *sections)


def _reasons() -> dict[str, str]:
    """The reasons of `deploy.codec`, each with the comment beside it."""
    source = inspect.getsource(codec)
    block = source[source.index("REASONS = (") : source.index(")\n_FORMAT")]
    found = dict(re.findall(r'^    "([^"]+)",(?:  # (.*))?$', block, re.MULTILINE))
    return {name: found[name] for name in codec.REASONS}
