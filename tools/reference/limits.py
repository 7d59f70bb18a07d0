"""What the checks of a class let its fields be."""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from typing import Any

from reference.markdown import code


def allowed(kind: type) -> dict[str, str | tuple[Any, ...]]:
    """What the checks in a class's `__post_init__` let its fields be: an interval such as "[0, 1)", or some values."""
    found: dict[str, str | tuple[Any, ...]] = {}
    if "__post_init__" not in vars(kind):
        return found
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(kind.__post_init__))).body  # type: ignore[attr-defined]
    scope = vars(sys.modules[kind.__module__])

    def value(node: ast.AST) -> Any:
        return eval(compile(ast.Expression(node), kind.__name__, "eval"), scope)  # type: ignore[arg-type]

    for node in ast.walk(tree):
        if isinstance(node, ast.For) and isinstance(node.target, ast.Name):
            call = node.body[0].value  # type: ignore[attr-defined]
            if isinstance(call, ast.Call) and ast.unparse(call.func) == "at_least":
                found |= dict.fromkeys(value(node.iter), _from(value(call.args[2]), call))
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if name == "_least":
                found |= {key.arg: _from(value(key.value)) for key in node.keywords if key.arg}
            elif name == "_share":
                found |= {value(arg): value(node.args[2]) for arg in node.args[3:]}
            elif name == "one_of":
                found[node.args[1].attr] = tuple(value(node.args[2]))  # type: ignore[attr-defined]
            elif name == "at_least" and isinstance(node.args[1], ast.Attribute):
                found[node.args[1].attr] = _from(value(node.args[2]), node)
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.NotIn):
            found[node.left.attr] = tuple(value(node.comparators[0]))  # type: ignore[attr-defined]
        elif isinstance(node, ast.Compare) and len(node.ops) == 2 and isinstance(node.comparators[0], ast.Attribute):
            found[node.comparators[0].attr] = f"[{value(node.left):g}, {value(node.comparators[1]):g}]"
    return found


def _from(least: float, call: ast.Call | None = None) -> str:
    strict = call is not None and any(key.arg == "strict" for key in call.keywords)
    return f"{'(' if strict else '['}{least:g}, inf)"


def within_words(within: Any) -> str:
    """Allowed values in words."""
    if isinstance(within, tuple):
        return ", ".join(code(one) for one in within)
    if not within:
        return ""
    low, high = (end.strip() for end in within[1:-1].split(","))
    if high == "inf":
        return f"{'at least' if within[0] == '[' else 'above'} {low}"
    return f"{low} to {high}" if within[0] + within[-1] == "[]" else f"in {within}"
