"""Train one method or several, or go on with a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from selfsame.commands.options import (
    Base,
    Compile,
    Data,
    Device,
    EngineName,
    Out,
    PathTo,
    Precision,
    Quiet,
    Rounds,
    Seed,
    Settings,
)  # fmt: skip
from selfsame.commands.progress import carry_on_with_bar, loading, show
from selfsame.commands.torchrun import among_ranks, carry_on_together, one_process, show_together
from selfsame.errors import SelfsameError
from selfsame.fields import short_name

if TYPE_CHECKING:
    from selfsame.config.recipe import Recipe

DEMO = "positive-only,fixed,softmax,fedaws,feduv,fedmetric,fedgn,fedhide"


def layers(
    method: str,
    data: str | None,
    path: Path | None,
    base: Path | None,
    overrides: dict[str, Any],
    settings: list[str] | None,
) -> dict[str, Any]:
    """The recipe's tables: preset or file, then options, then --set."""
    from selfsame.config.presets import preset
    from selfsame.config.recipe import apply_settings, from_mapping, merged, read_toml
    from selfsame.data import DATASETS
    from selfsame.methods import method_class

    tables: dict[str, Any] = read_toml(base) if base is not None else {}
    tables.pop("paper", None)
    if any(tables.pop(key, None) is not None for key in ("variant", "grid", "seeds")):
        raise SelfsameError(f"{base}: has variants; run it with `selfsame recipe {base}`")
    from_mapping(tables)
    method_class(method)
    data = data or tables.get("data", {}).get("name") or "digits"
    if base is None:
        if data not in DATASETS:
            raise SelfsameError(f"unknown data set {data!r}; the data sets are: {', '.join(DATASETS)}")
        tables = dict(preset(method, data))
    given: dict[str, Any] = {
        "method": {"name": method},
        "data": {"name": data},
        "run": {k: v for k, v in overrides.items() if v is not None},
    }
    if path is not None:
        given["data"]["path"] = str(path)
    return apply_settings(merged(tables, given), settings or [])


def new_folder(name: str) -> Path:
    """The next free folder under runs/."""
    for number in range(1, 100000):
        folder = Path("runs") / f"{name}-{number}"
        if not folder.exists():
            return folder
    raise SelfsameError("runs/: too many runs; delete some or name a folder with --out")


def read_recipe(tables: dict[str, Any]) -> Recipe:
    from selfsame.config.recipe import from_mapping

    return from_mapping(tables)


def train(
    method: Annotated[str, typer.Argument(help="Method; `selfsame methods` lists them.")],
    data: Data = None,
    path: PathTo = None,
    settings: Settings = None,
    rounds: Rounds = None,
    seed: Seed = None,
    device: Device = None,
    precision: Precision = None,
    compile: Compile = None,
    engine: EngineName = None,
    recipe: Base = None,
    out: Out = None,
    quiet: Quiet = False,
) -> None:
    """Train one method; writes a run folder with metrics, checkpoint, network and report."""
    from selfsame.runs.run import start

    overrides = {
        "rounds": rounds, "seed": seed, "device": device, "precision": precision, "compile": compile, "engine": engine
    }  # fmt: skip
    with among_ranks() as ranks:
        tables = layers(method, data, path, recipe, overrides, settings)
        folder = out or new_folder(f"{short_name(method)}-{tables['data']['name']}")
        with loading(quiet or not ranks.first):
            run = start(read_recipe(tables), folder, ranks=ranks)
        shown = carry_on_together(run, quiet)
        show_together(run, shown, folder)
        if not run.done:
            raise typer.Exit(1)


def compare(
    data: Annotated[str, typer.Option(help="Data set; `selfsame data` lists them.")] = "digits",
    names: Annotated[str, typer.Option("--methods", help="Methods, separated by commas.")] = DEMO,
    path: PathTo = None,
    settings: Settings = None,
    rounds: Rounds = None,
    seed: Seed = None,
    device: Device = None,
    precision: Precision = None,
    compile: Compile = None,
    out: Out = None,
    quiet: Quiet = False,
) -> None:
    """Train several methods on the same data; ends with one table and one report.

    A --set with a bare key goes to every method that has that option.
    """
    from selfsame.config.recipe import parse_setting
    from selfsame.data import load
    from selfsame.engine.setup import prepare
    from selfsame.methods import method_class, options_of
    from selfsame.runs.run import start, vacant

    one_process("selfsame compare")
    chosen = [name.strip() for name in names.split(",") if name.strip()]
    if not chosen:
        raise SelfsameError("--methods: name at least one")
    if len({short_name(name) for name in chosen}) < len(chosen):
        raise SelfsameError(f"--methods {names}: names a method twice")
    for name in chosen:
        method_class(name)
    bare = [s for s in settings or [] if len(parse_setting(s)[0]) == 1]
    for setting in bare:
        key = parse_setting(setting)[0][0]
        if not any(key in options_of(name) for name in chosen):
            raise SelfsameError(f"--set {setting}: none of these methods has an option {key!r}")
    overrides = {"rounds": rounds, "seed": seed, "device": device, "precision": precision, "compile": compile}
    recipes = []
    for name in chosen:
        mine = [s for s in settings or [] if s not in bare or parse_setting(s)[0][0] in options_of(name)]
        tables = layers(name, data, path, None, overrides, mine)
        recipes.append(read_recipe({"title": short_name(name), **tables}))
    part = recipes[0].data
    folder = out or new_folder(f"compare-{part.name}")
    vacant(folder)
    with loading(quiet):
        federation = load(part.name, part.path or None, **part.options)
    for recipe in recipes:  # what does not fit is said before the first one is trained
        prepare(recipe, federation)
    views = []
    for name, recipe in zip(chosen, recipes, strict=True):
        run = start(recipe, folder / short_name(name), federation)
        views.append(carry_on_with_bar(run, quiet))
    show(views, folder / "report.html", f"{len(views)} methods on {part.name}")


def resume(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    quiet: Quiet = False,
) -> None:
    """Go on with a run from its last checkpoint; a finished one is shown again."""
    from selfsame.runs.run import load_run
    from selfsame.runs.summary import read_view

    with among_ranks() as ranks:
        with loading(quiet or not ranks.first):
            current = load_run(run, ranks=ranks)
        if not ranks.agree(current.done and (run / "result.json").is_file()):
            shown = carry_on_together(current, quiet)
        else:
            shown = read_view(run) if ranks.first else None
        show_together(current, shown, run)
        if not current.done:
            raise typer.Exit(1)
