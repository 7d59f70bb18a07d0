"""What the code says of its fields and parameters in comments and docstrings."""

from __future__ import annotations

import ast
import inspect
import io
import re
import textwrap
import tokenize
from collections.abc import Iterator
from typing import Any

from reference.markdown import prose


def comments(thing: Any) -> dict[str, str]:
    """The comment beside each field of a class, those of its bases included, or beside each parameter of a function."""
    if isinstance(thing, type):
        found: dict[str, str] = {}
        for base in reversed([one for one in thing.__mro__ if one.__module__.startswith("selfsame")]):
            found |= _beside(base)
        return found
    return _beside(thing)


def _beside(thing: Any) -> dict[str, str]:
    """The comments on the lines of each field, or, where there are none, those on the lines above it."""
    source = textwrap.dedent(inspect.getsource(thing))
    lines, said = source.splitlines(), dict[int, str]()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not token.string.startswith(("# fmt", "# noqa", "# type")):
            said[token.start[0]] = token.string.lstrip("# ").strip()
    alone = {line for line in said if lines[line - 1].lstrip().startswith("#")}
    found = {}
    for name, first, last in _declared(ast.parse(source).body[0]):
        above = first
        while above - 1 in alone:
            above -= 1
        words = [said[line] for line in range(first, last + 1) if line in said]
        words = words or [said[line] for line in range(above, first)]
        if words:
            found[name] = " ".join(words)
    return found


def _declared(tree: ast.stmt) -> Iterator[tuple[str, int, int]]:
    """The names that a class or the parameters of a function declare, with their first and last lines."""
    nodes: list[tuple[str, Any]] = []
    if isinstance(tree, ast.ClassDef):
        for node in tree.body:
            target = node.target if isinstance(node, ast.AnnAssign) else None
            target = node.targets[0] if isinstance(node, ast.Assign) else target
            nodes += [(target.id, node)] if isinstance(target, ast.Name) else []
    elif isinstance(tree, ast.FunctionDef):
        nodes = [(arg.arg, arg) for arg in (*tree.args.args, *tree.args.kwonlyargs)]
    return ((name, node.lineno, node.end_lineno) for name, node in nodes)


def meanings(function: Any, described: Any = None) -> dict[str, str]:
    """What the parameters of a function mean: the comment beside each, or the sentences that name it in a docstring."""
    text = prose(described or function).replace("\n", " ")
    sentences = re.split(r"(?<=[.;])\s+(?=[A-Z`])", text)
    found = {}
    for name in inspect.signature(function).parameters:
        said = [one.rstrip(";.") for one in sentences if f"`{name}`" in one]
        if said:
            found[name] = "; ".join(said)
    return found | comments(function)
