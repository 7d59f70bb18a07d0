"""The manual's reference, written from the code so that it cannot drift: a page by name, as Markdown.

What a key, an option or a field means stands beside it in the code as a comment; its type, default and allowed values
are read from the declaration and from the checks of the class. `python tools/reference.py FOLDER` writes the pages.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
import inspect
import io
import re
import sys
import textwrap
import tokenize
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

import click
import typer.main

import selfsame
from selfsame import cli
from selfsame.config import experiment, recipe
from selfsame.data import DATASETS
from selfsame.data.choosing import OPTIONS as APART
from selfsame.deploy import codec, policy
from selfsame.deploy.flower import node_keys, terms
from selfsame.fields import options_of
from selfsame.methods import METHODS, make
from selfsame.methods import wire as wires
from selfsame.nets import NETS, size
from selfsame.report.words import sight_words

_WORDS = {bool: "true or false", int: "whole number", float: "number", str: "text"}
_MANY = {int: "whole numbers", float: "numbers", str: "texts"}


# Markdown


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table without the columns that are empty in every row."""
    found = [[" ".join(str(cell).replace("|", "\\|").split()) for cell in row] for row in rows]
    if not found:
        return ""
    keep = [i for i in range(len(heads)) if any(row[i] for row in found)]
    lines = [[heads[i] for i in keep], ["---"] * len(keep), *([row[i] for i in keep] for row in found)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def code(value: Any) -> str:
    """A value as a recipe writes it."""
    return f"`{recipe.toml_value(value)}`"


def prose(thing: Any) -> str:
    """A docstring as paragraphs: double backticks are single ones, and no underscore or angle bracket is markup."""
    text = (inspect.getdoc(thing) or "").replace("``", "`")
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"([*_<\[\]])", r"\\\1", part) for part in parts)


def page(title: str, opening: str, *sections: str) -> str:
    return "\n".join([f"# {title}\n", textwrap.dedent(opening).strip() + "\n", *sections]).rstrip() + "\n"


# What the code says of its fields


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


def kind_words(kind: Any) -> str:
    """A type in words."""
    if get_origin(kind) in (Union, types.UnionType):
        return " or ".join(kind_words(part) for part in get_args(kind) if part is not type(None))
    if kind is tuple:
        return "list"
    if get_origin(kind) is tuple:
        return f"list of {_MANY.get(get_args(kind)[0], 'values')}"
    if get_origin(kind) in (dict, Mapping) or dataclasses.is_dataclass(kind):
        return "table"
    return _WORDS.get(kind, getattr(kind, "__name__", str(kind)))


def default_of(part: dataclasses.Field[Any]) -> Any:
    return part.default if part.default_factory is dataclasses.MISSING else part.default_factory()


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


_KEY_HEADS = ("key", "type", "default", "allowed", "meaning")


def keys_of(kind: type, without: tuple[str, ...] = ()) -> list[tuple[str, str, str, str, str]]:
    """Every field of a dataclass: name, type, default, allowed values, meaning."""
    said, limits, hints = comments(kind), allowed(kind), get_type_hints(kind)
    rows = []
    for part in dataclasses.fields(kind):
        if part.name in without:
            continue
        default = default_of(part)
        shown = "" if default is None or default is dataclasses.MISSING else code(default)
        within = part.metadata.get("within") or limits.get(part.name, "")
        if "bounds" in part.metadata:
            within = "[{:g}, {:g}]".format(*part.metadata["bounds"])
        rows.append(
            (f"`{part.name}`", kind_words(hints[part.name]), shown, within_words(within), said.get(part.name, ""))
        )
    return rows


# Pages


def commands() -> str:
    """Every command with every argument and option, as Typer knows them."""
    root = typer.main.get_command(cli.app)
    assert isinstance(root, click.Group)
    sections = []
    for heading, several in cli._COMMANDS.items():
        names = [name for name, *_ in several]
        names += [name for name, (under, *_) in cli._GROUPS.items() if under == heading]
        sections.append(f"## {heading}\n")
        sections += [part for name in names for part in _command(root.commands[name], f"selfsame {name}")]
    opening = """
    Bad input ends with one line on standard error and exit code 2. `selfsame COMMAND --help` prints what stands here.
    `--set KEY=VALUE` takes any key of a [recipe](recipe.md); a bare key is the method's.
    """
    return page("Commands", opening, *sections)


def _command(command: Any, path: str) -> Iterator[str]:
    context = click.Context(command, info_name=path)
    yield f"### {path}\n"
    yield textwrap.dedent(command.help or "").strip().replace("\n\n\b\n", "\n\n") + "\n"
    yield f"```\n{path} {' '.join(command.collect_usage_pieces(context))}\n```\n"
    rows = []
    for parameter in command.params:
        record = parameter.get_help_record(context)
        if record is not None and parameter.name != "help":
            rows.append((f"`{record[0].strip()}`", record[1].strip()))
    yield table(("argument or option", "meaning"), rows)
    for name, one in getattr(command, "commands", {}).items():
        yield from _command(one, f"{path} {name}")


def recipe_page() -> str:
    sections = [f"## `title`\n\nText, {code('')} by default: what reports call the run.\n"]
    named = {
        "method": "[a method's own options](methods.md)",
        "data": "[a data set's own options](data.md)",
        "net": "[a network's own options](networks.md)",
    }
    for name, kind in recipe.PARTS.items():
        rows = keys_of(kind, without=("options",))
        if name in named:
            rows.append(("", "", "", "", f"and {named[name]}"))
        about = "The method and its options." if kind is recipe.NamedPart else prose(kind)
        sections.append(f"## `[{name}]`\n\n{about}\n\n{table(_KEY_HEADS, rows)}")
    figures = [(f"`{name}`", figure.label) for name, figure in experiment.FIGURES.items()]
    sections.append(
        "## Experiments\n\nA recipe file may also have `seeds` (whole numbers), `[[variant]]` tables (each with "
        "`title`, any part of a recipe, `grid` and `paper`), a `[grid]` over all variants, and `[paper]`:\n\n"
        + table(_KEY_HEADS, keys_of(experiment.Paper, without=("figures",)))
        + "\nFigures of a paper are named by\n\n"
        + table(("name", "printed as"), figures)
    )
    opening = """
    A recipe is a TOML file: everything that defines a run. A run keeps its own as `recipe.toml`. What a file does not
    name has its default; for `selfsame train METHOD --data NAME` a tuned preset comes in between. See
    [the guide](../guides/compare.md#writing-one).
    """
    return page("Recipe keys", opening, *sections)


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
        options = table(_KEY_HEADS, _data_options(one, load)) or "It has no options of its own.\n"
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


_SHAPES = {  # an example of what each network takes
    "feduv-mnist": (4, 28, 28),
    "feduv-celeba": (3, 64, 64),
    "mobilefacenet": (3, 64, 64),
    "feduv-voxceleb": (1, 2**14),
    "fast-resnet34": (1, 40, 200),
    "fast-resnet34-mel": (1, 32000),
    "lenet-mel": (1, 8000),
    "lenet": (1, 28, 28),
    "touchauth": (1, 30, 10),
    "embedding-bag": (2, 20),
    "mlp": (30,),
    "dlib-face": (3, 64, 64),
    "ge2e-voice": (1, 16000),
}
_EXAMPLES = {"embedding-bag": {"features": 203_882}}


def networks_page() -> str:
    rows, sections = [], []
    for name, factory in NETS.items():
        shape, options = _SHAPES.get(name, (3, 32, 32)), _EXAMPLES.get(name, {})
        count = f"{size(name, shape, 64, **options):,}"
        rows.append((f"[`{name}`](#{name})", " x ".join(map(str, shape)), count))
        made = factory.func if isinstance(factory, functools.partial) else factory
        source = made.__init__ if isinstance(made, type) else made
        said = meanings(source, made)
        own = [(f"`{key}`", kind_words(type(v)), code(v), said.get(key, "")) for key, v in options_of(factory).items()]
        about = prose(sys.modules[made.__module__]).splitlines()[0]
        listed = table(("option", "type", "default", "meaning"), own) or "It has no options.\n"
        sections.append(f"## {name}\n\n*{about.rstrip('.')}.*\n\n{prose(made)}\n\n{listed}")
    opening = """
    Set one by `--set net.name=NAME` or in `[net]` of a recipe, which also has [the keys that all networks
    share](recipe.md#net). Parameters are counted with `width` 64 for samples of the shape beside them.
    [The guide](../guides/network.md) says what the options of residual networks do, and how to bring your own network.
    """
    return page("Networks", opening, table(("network", "samples of shape", "parameters"), rows), *sections)


_WIRE_HEADS = ("field", "direction", "who sees it", "in sums", "longest row", "what it is")


def wire_table(name: str) -> str:
    """The wire of a method: every field, and who sees it where updates are clear and where they are summed."""
    wire = make(name, {}).wire
    rows = []
    for (field, way, sight, what), (_, _, summed, _) in zip(wire.rows(), wire.rows(summed=True), strict=True):
        words = [sight_words(one.name.lower()) for one in (sight, summed)]
        rows.append((f"`{field}`", way, words[0], words[1], wire.bound_words(field, way), what))
    return table(_WIRE_HEADS, rows)


def methods_page() -> str:
    rows, sections = [], []
    for name, kind in METHODS.items():
        rows.append((f"[`{name}`](#{name})", prose(kind).splitlines()[0], _paper(kind)))
        options = table(("option", *_KEY_HEADS[1:]), keys_of(kind)) or "It has no options.\n"
        facts = f"Paper: {_paper(kind)}. Several clients of one class: {kind.shared_class}."
        sections.append(f"## {name}\n\n{prose(kind)}\n\n{facts}\n\n{options}\n{wire_table(name)}")
    opening = """
    Set an option by `--set KEY=VALUE` or in `[method]` of a recipe. Below the options of each method stands its wire:
    every field that leaves the device or stays on it. [The methods](../design/methods.md) has what each does and how we
    read its paper; [wire fields](wire.md) says what the words mean.
    """
    return page("Methods", opening, table(("method", "what it does", "paper"), rows), *sections)


def _link(method: str) -> str:
    return f"[`{method}`](methods.md#{method})"


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


def deployment_page() -> str:
    nodes = [(f"`{name}`", what) for name, what in node_keys.DEVICE.items()]
    helpers = [(f"`{name}`", what) for name, what in node_keys.HELPER.items()]
    sections = [
        f"## deploy.toml\n\n{prose(terms.Serving)}\n\n" + table(_KEY_HEADS, keys_of(terms.Serving)),
        f"## deploy.toml: `[samples]`\n\n{prose(terms.SampleForm)}\n\n" + table(_KEY_HEADS, keys_of(terms.SampleForm)),
        "## Node configuration of a device\n\nGiven to `flower-supernode --node-config`.\n\n"
        + table(("key", "meaning"), nodes),
        "## Node configuration of a helper\n\n" + table(("key", "meaning"), helpers),
        f"## A device's policy\n\nA TOML file of the device's owner. {prose(policy.DevicePolicy)}\n\n"
        + table(_KEY_HEADS, keys_of(policy.DevicePolicy)),
    ]
    return page(
        "Deployment", "What a server and its devices read. [The guide](../guides/deploy.md) has the steps.", *sections
    )


_FORMATS = (
    ("A checkpoint and a network", "engine.checkpoint"),
    ("The fingerprint of a run's data", "data.fingerprint"),
    ("Figures for other tools", "runs.events"),
    ("An enrolment", "device.vault"),
    ("Failed attempts", "device.attempts"),
    ("A model file", "device.model_file"),
    ("A web page", "export.webpage"),
    ("Converted weights", "nets.ready"),
    ("Decoded files", "data.cache"),
    ("A device's state", "deploy.memory"),
    ("The server's folder", "deploy.folder"),
    ("A message", "deploy.codec"),
    ("A record for a helper or an enclave", "enclave.records"),
    ("What crosses the enclave's boundary", "enclave.message"),
)


def files_page() -> str:
    from selfsame.device.card import Card

    sections = [f"## How files are written\n\n{prose(importlib.import_module('selfsame.files'))}\n"]
    for title, name in _FORMATS:
        module = importlib.import_module(f"selfsame.{name}")
        names = [
            value for key, value in vars(module).items() if key.strip("_").endswith("FORMAT") and type(value) is str
        ]
        known = f"\n\nFormat: {', '.join(f'`{one}`' for one in names)}." if names else ""
        sections.append(f"## {title}\n\n`selfsame.{name}`. {prose(module)}{known}\n")
        if name == "device.model_file":
            rows = [(key, kind, meaning) for key, kind, _, _, meaning in keys_of(Card)]
            sections.append(f"### The card inside it\n\n{prose(Card)}\n\n" + table(("field", "type", "meaning"), rows))
    opening = """
    The files that selfsame writes, as the modules that read and write them describe them. [The guide to
    runs](../guides/runs.md) lists the files of a run; [recipe keys](recipe.md) and [deployment](deployment.md) have
    what you write yourself.
    """
    return page("File formats", opening, *sections)


_ALSO = (  # beside `selfsame` itself: what a program of one's own may need
    ("selfsame.methods", ("LocalLoss", "register")),
    ("selfsame.methods.wire", ("Wire", "Bound")),
    ("selfsame.nets", ("register", "build")),
    ("selfsame.data", ("DataSet", "register")),
    ("selfsame.device.rules", ("Rule",)),
    ("selfsame.device.verifier", ("Verdict",)),
    ("selfsame.device.card", ("template", "score")),
    ("selfsame.device.samples", ("read_samples",)),
    ("selfsame.device.thresholds", ("Threshold", "warm_up", "bounded", "needed")),
    ("selfsame.audit.attackers", ("Finding", "register")),
    ("selfsame.privacy.accountant", ("Exchange", "composed_epsilon", "gaussian_sigma", "rounds_within")),
    ("selfsame.deploy.device", ("Device",)),
    ("selfsame.deploy.server", ("Server",)),
)


def python_page() -> str:
    names = [name for name in selfsame.__all__ if not name.startswith("_")]
    sections = ["## selfsame\n", *(_described(getattr(selfsame, name), f"selfsame.{name}") for name in names)]
    for module, several in _ALSO:
        home = importlib.import_module(module)
        sections.append(f"## {module}\n")
        sections += [_described(getattr(home, name), f"{module}.{name}") for name in several]
    opening = """
    `import selfsame` is quick: each name is imported when it is first used. What is not installed is said in one line.
    Bad input raises `selfsame.SelfsameError`. Other modules may change.
    """
    return page("Python", opening, *sections)


def _described(thing: Any, path: str) -> str:
    """Signature and docstring; of a class also its public methods and properties."""
    lines = [f"### {path}\n", _signed(thing, path.rpartition(".")[2]), prose(thing) + "\n"]
    if isinstance(thing, type) and not issubclass(thing, Exception):
        lines.append(table(("member", "what it does"), _members(thing)))
    return "\n".join(lines)


def _members(kind: type) -> list[tuple[str, str]]:
    """The public methods and properties of a class that say what they do."""
    found: dict[str, tuple[str, str]] = {}
    for base in reversed([one for one in kind.__mro__ if one.__module__.startswith("selfsame")]):
        for name, member in vars(base).items():
            if name.startswith("_") or not (inspect.isroutine(member) or isinstance(member, property)):
                continue
            shown = name if isinstance(member, property) else name + _shape(getattr(kind, name))
            found[name] = (f"`{shown}`", prose(getattr(kind, name)).replace("\n", " "))
    return [row for row in found.values() if row[1]]


def _signed(thing: Any, name: str) -> str:
    try:
        return f"```python\n{name}{_shape(thing, wide=110 - len(name))}\n```\n"
    except (TypeError, ValueError):
        return ""


def _shape(thing: Any, wide: int = 1000) -> str:
    """A signature as it is written, without `self`, without modules of types, and in lines where it is long."""
    made = inspect.signature(thing)
    parts: list[str] = []
    for name, one in made.parameters.items():
        if name == "self":
            continue
        if one.kind is one.KEYWORD_ONLY and "*" not in parts and not any(part.startswith("*") for part in parts):
            parts.append("*")
        star = {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}.get(one.kind, "")
        typed = "" if one.annotation is one.empty else f": {_plain(one.annotation)}"
        parts.append(star + name + typed + ("" if one.default is one.empty else f" = {_default(one.default)}"))
    ends = "" if isinstance(thing, type) or made.return_annotation is made.empty else _plain(made.return_annotation)
    ends = f" -> {ends}" if ends else ""
    text = f"({', '.join(parts)}){ends}"
    return text if len(text) <= wide else "(\n    " + ",\n    ".join(parts) + f",\n){ends}"


def _plain(annotation: Any) -> str:
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return re.sub(r"\b(?:[a-z_]+\.)+(?=[A-Z])", "", text.replace("'", ""))


def _default(value: Any) -> str:
    """A default as code would write it; a dataclass at its own defaults by its name."""
    text = repr(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        changed = [part.name for part in dataclasses.fields(value) if getattr(value, part.name) != default_of(part)]
        inside = ", ".join(f"{name}={getattr(value, name)!r}" for name in changed)
        return f"{type(value).__name__}({inside})"
    return "..." if text.startswith("<") else text


PAGES: dict[str, Callable[[], str]] = {
    "commands.md": commands,
    "recipe.md": recipe_page,
    "data.md": data_page,
    "networks.md": networks_page,
    "methods.md": methods_page,
    "wire.md": wire_page,
    "deployment.md": deployment_page,
    "files.md": files_page,
    "python.md": python_page,
}


def main(folder: str) -> None:
    for name, write in PAGES.items():
        path = Path(folder) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(write(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
