"""Every command, thin: parse, call, print."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from selfsame import __version__
from selfsame.commands import enrol, evaluate, export, privacy, verify
from selfsame.errors import SelfsameError

if TYPE_CHECKING:
    from selfsame.experiment import Experiment, Job
    from selfsame.recipe import Recipe
    from selfsame.report.table import Row
    from selfsame.report.view import RunView
    from selfsame.run import Run
    from selfsame.summary import Standing

app = typer.Typer(
    name="selfsame",
    help="Federated metric learning where every device knows only its owner.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Data = Annotated[
    str | None, typer.Option(help="Data set; `selfsame data` lists them.", show_default="digits, or the recipe's")
]
PathTo = Annotated[Path | None, typer.Option("--path", help="Folder with the data set's files, as published.")]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Any recipe value, e.g. local.lr=0.05; a bare key is the method's: alpha=0.1.",
    ),
]
Rounds = Annotated[int | None, typer.Option(help="Training rounds.")]
Seed = Annotated[int | None, typer.Option(help="Seed of everything random but secrets.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1 or auto.")]
Precision = Annotated[str | None, typer.Option(help="auto, float32, float64 or bfloat16 (autocast).")]
Compile = Annotated[
    str | None,
    typer.Option(help="torch.compile and CUDA graphs: auto (on CUDA), on, off, or graphs alone."),
]
EngineName = Annotated[str | None, typer.Option("--engine", help="auto, cohort or reference (one client at a time).")]
Base = Annotated[
    Path | None, typer.Option("--recipe", help="Recipe (TOML) to start from in place of the tuned preset.")
]
Out = Annotated[Path | None, typer.Option("--out", help="Folder for the run; by default a new one under runs/.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress bar.")]

DEMO = "positive-only,fixed,softmax,fedaws,feduv,fedmetric,fedgn,fedhide"


def _layers(
    method: str,
    data: str | None,
    path: Path | None,
    base: Path | None,
    overrides: dict[str, Any],
    settings: list[str] | None,
) -> dict[str, Any]:
    """The recipe's tables: preset or file, then options, then --set."""
    from selfsame import recipe as recipes
    from selfsame.data import DATASETS
    from selfsame.methods import method_class
    from selfsame.presets import preset

    tables: dict[str, Any] = recipes.read_toml(base) if base is not None else {}
    tables.pop("paper", None)
    if any(tables.pop(key, None) is not None for key in ("variant", "grid", "seeds")):
        raise SelfsameError(f"{base}: has variants; run it with `selfsame recipe {base}`")
    recipes.from_mapping(tables)
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
    return recipes.apply_settings(recipes.merged(tables, given), settings or [])


def _new_folder(name: str) -> Path:
    """The next free folder under runs/."""
    for number in range(1, 100000):
        folder = Path("runs") / f"{name}-{number}"
        if not folder.exists():
            return folder
    raise SelfsameError("runs/: too many runs; delete some or name a folder with --out")


def _describe(record: dict[str, Any]) -> str:
    parts = [f"loss {record['loss']:.3f}"]
    for key, name in (("p@1", "P@1"), ("eer", "EER")):
        if record.get(key) is not None:
            parts.append(f"{name} {100 * record[key]:.1f} %")
    return "  ".join(parts)


def _carry_on(run: Run, quiet: bool, label: str = "") -> RunView:
    """Train with a progress bar, keep the result beside the run, say what went wrong."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from selfsame.run import carry_on
    from selfsame.summary import keep_view, view

    columns = (
        TextColumn("{task.description:18s}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
        TextColumn("{task.fields[now]}"),
    )  # fmt: skip
    with Progress(*columns, console=Console(stderr=True), disable=quiet) as progress:
        task = progress.add_task(label or run.title, total=run.recipe.run.rounds, completed=run.state.round, now="")

        def tick(rounds: int, record: dict[str, Any] | None) -> None:
            progress.update(task, advance=rounds)
            if record is not None:
                progress.update(task, now=_describe(record))

        try:
            carry_on(run, tick)
        except KeyboardInterrupt:
            progress.stop()
            print(
                f"selfsame: stopped; `selfsame resume {run.folder}` goes on from the last checkpoint", file=sys.stderr
            )
            raise typer.Exit(130) from None
    shown = view(run)
    if run.folder is not None:
        keep_view(shown, run.folder)
    return shown


def _show(views: list[RunView], report: Path, title: str) -> None:
    """The table, the warnings, the report."""
    from rich.console import Console

    from selfsame.report.html import write_report
    from selfsame.report.table import results_table

    console = Console()
    console.print(results_table(views))
    for run_view in views:
        for warning in run_view.warnings:
            console.print(f"{run_view.title}: {warning}", style="red", markup=False, highlight=False)
    write_report(views, report, title)
    console.print(f"report: {report}", markup=False, highlight=False)


def _recipe(tables: dict[str, Any]) -> Recipe:
    from selfsame.recipe import from_mapping

    return from_mapping(tables)


@app.command()
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
    from selfsame.run import start

    overrides = {
        "rounds": rounds, "seed": seed, "device": device, "precision": precision, "compile": compile, "engine": engine
    }  # fmt: skip
    tables = _layers(method, data, path, recipe, overrides, settings)
    with _loading(quiet):
        run = start(_recipe(tables), out or _new_folder(f"{method}-{tables['data']['name']}"))
    assert run.folder is not None
    shown = _carry_on(run, quiet)
    _show([shown], run.folder / "report.html", f"{run.title} on {run.problem.federation.name}")
    if not run.done:
        raise typer.Exit(1)


@app.command()
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
    from selfsame.data import load
    from selfsame.engine.setup import prepare
    from selfsame.methods import method_class, options_of
    from selfsame.recipe import parse_setting
    from selfsame.run import start, vacant

    chosen = [name.strip() for name in names.split(",") if name.strip()]
    if not chosen:
        raise SelfsameError("--methods: name at least one")
    if len(set(chosen)) < len(chosen):
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
        tables = _layers(name, data, path, None, overrides, mine)
        recipes.append(_recipe({"title": name, **tables}))
    part = recipes[0].data
    folder = out or _new_folder(f"compare-{part.name}")
    vacant(folder)
    with _loading(quiet):
        federation = load(part.name, part.path or None, **part.options)
    for recipe in recipes:  # what does not fit is said before the first one is trained
        prepare(recipe, federation)
    views = []
    for name, recipe in zip(chosen, recipes, strict=True):
        run = start(recipe, folder / name, federation)
        views.append(_carry_on(run, quiet))
    _show(views, folder / "report.html", f"{len(views)} methods on {part.name}")


@app.command()
def resume(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    quiet: Quiet = False,
) -> None:
    """Go on with a run from its last checkpoint; a finished one is shown again."""
    from selfsame.run import load_run
    from selfsame.summary import read_view

    with _loading(quiet):
        current = load_run(run)
    finished = current.done and (run / "result.json").is_file()
    shown = read_view(run) if finished else _carry_on(current, quiet)
    _show([shown], run / "report.html", f"{current.title} on {current.problem.federation.name}")
    if not current.done:
        raise typer.Exit(1)


@app.command()
def recipe(
    file: Annotated[Path, typer.Argument(help="Recipe (TOML), with [[variant]] tables, a [grid] or seeds.")],
    path: PathTo = None,
    settings: Settings = None,
    rounds: Rounds = None,
    device: Device = None,
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="TITLE", help="Train only variants with this in their title.")
    ] = None,
    listing: Annotated[bool, typer.Option("--list", help="List the runs and which are done; train nothing.")] = False,
    at_once: Annotated[int, typer.Option("--jobs", min=1, help="Runs at a time, each in a process of its own.")] = 1,
    out: Out = None,
    quiet: Quiet = False,
) -> None:
    """Run a recipe file, all its variants and seeds, compare with the paper; goes on where an earlier call stopped."""
    from selfsame.data import load
    from selfsame.engine.setup import prepare
    from selfsame.experiment import read_experiment
    from selfsame.run import load_run, start, vacant
    from selfsame.summary import standing

    given: dict[str, Any] = {}
    if path is not None:
        given["data"] = {"path": str(path)}
    run_part = {key: value for key, value in (("device", device), ("rounds", rounds)) if value is not None}
    if run_part:
        given["run"] = run_part
    experiment = read_experiment(file, given, settings or [])
    folder = out or Path("runs") / file.stem
    jobs = experiment.jobs(folder)
    chosen = experiment.select(only or [])
    there = {job.folder: standing(job.folder, job.recipe) for job in jobs}
    if listing:
        _list([(job, there[job.folder]) for job in jobs if job.variant in chosen])
        return
    work, federations, fits = [], {}, set()
    for job in jobs:  # what does not fit is said before the first one is trained
        now = there[job.folder]
        if job.variant not in chosen:
            continue
        if now.differs:
            keys = ", ".join(now.differs)
            raise SelfsameError(f"{job.folder}: holds a run of another recipe ({keys}); name another folder with --out")
        if now.view is not None:
            continue
        if not now.there:
            vacant(job.folder)
        if (key := repr(job.recipe.data)) not in federations:
            with _loading(quiet):
                federations[key] = load(job.recipe.data.name, job.recipe.data.path or None, **job.recipe.data.options)
        if job.variant.number not in fits:
            prepare(job.recipe, federations[key])
            fits.add(job.variant.number)
        work.append((job, federations[key]))
    views = {place: now.view for place, now in there.items() if now.view is not None and not now.differs}
    changed = [*(settings or []), *([] if rounds is None else [f"--rounds {rounds}"])]
    if at_once > 1:
        for job, federation in work:
            if not there[job.folder].there:
                start(job.recipe, job.folder, federation)
        federations.clear()
        folders = [job.folder for job, _ in work]
        _at_once(folders, at_once, quiet, views, lambda: _keep_results(experiment, jobs, views, folder, changed))
        work = []
    for job, federation in work:
        run = load_run(job.folder, federation) if there[job.folder].there else start(job.recipe, job.folder, federation)
        views[job.folder] = _carry_on(run, quiet, job.title)
        _keep_results(experiment, jobs, views, folder, changed)
    _show_experiment(experiment, jobs, views, folder, changed)
    if any(views[job.folder].diverged for job in jobs if job.variant in chosen):
        raise typer.Exit(1)


def _at_once(
    folders: list[Path], at_once: int, quiet: bool, views: dict[Path, RunView], keep: Callable[[], None]
) -> None:
    """Resume the runs in processes of their own, under one bar that counts them."""
    from rich.console import Console
    from rich.progress import Progress

    from selfsame.parallel import resume_all
    from selfsame.summary import read_view

    with Progress(console=Console(stderr=True), disable=quiet) as progress:
        task = progress.add_task("runs", total=len(folders))

        def ended(folder: Path) -> None:
            views[folder] = read_view(folder)
            keep()
            progress.update(task, advance=1)

        resume_all(folders, at_once, ended)


def _list(found: list[tuple[Job, Standing]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table("variant", "seed", "rounds", "folder", "state")
    for job, now in found:
        plan = job.recipe.run
        words = (job.variant.title, str(plan.seed), f"{plan.rounds:,}", str(job.folder), now.words)
        table.add_row(*map(Text, words))
    Console().print(table)
    done = sum(now.view is not None and not now.differs for _, now in found)
    print(f"{done} of {len(found)} runs have ended")


def _rows(experiment: Experiment, jobs: list[Job], views: dict[Path, RunView]) -> list[Row]:
    from selfsame.report.table import Row

    return [
        Row(variant, tuple(views.get(job.folder) for job in jobs if job.variant is variant))
        for variant in experiment.variants
    ]


def _keep_results(
    experiment: Experiment, jobs: list[Job], views: dict[Path, RunView], folder: Path, changed: list[str]
) -> None:
    """results.md and results.json of what there is so far."""
    import json

    from selfsame.engine.checkpoint import write_atomically
    from selfsame.report.table import beside_markdown, beside_plain

    rows, title = _rows(experiment, jobs, views), experiment.file.stem
    write_atomically(folder / "results.md", beside_markdown(rows, title, changed).encode())
    plain = json.dumps(beside_plain(rows, title, changed), indent=1, allow_nan=False)
    write_atomically(folder / "results.json", plain.encode())


def _show_experiment(
    experiment: Experiment, jobs: list[Job], views: dict[Path, RunView], folder: Path, changed: list[str]
) -> None:
    """The table beside the paper, what to know about it, the files."""
    from dataclasses import replace

    from rich.console import Console

    from selfsame.report.html import write_report
    from selfsame.report.table import beside_table, remarks

    console = Console()
    rows = [row for row in _rows(experiment, jobs, views) if row.views.count(None) < len(row.views)]
    console.print(beside_table(rows))
    for remark in remarks(_rows(experiment, jobs, views), changed):
        console.print(remark, markup=False, highlight=False, soft_wrap=True)
    _keep_results(experiment, jobs, views, folder, changed)
    named = [replace(views[job.folder], title=job.title) for job in jobs if job.folder in views]
    write_report(named, folder / "report.html", experiment.file.stem)
    console.print(f"report: {folder / 'report.html'}, results: {folder / 'results.md'}", markup=False, highlight=False)


@app.command()
def methods(
    name: Annotated[str | None, typer.Argument(help="Show the options of one method.")] = None,
) -> None:
    """List the methods, or one method's options."""
    from rich.console import Console
    from rich.table import Table

    from selfsame.methods import METHODS, method_class, options_of

    console = Console()
    if name is not None:
        kind = method_class(name)
        console.print(f"{name}: {(kind.__doc__ or '').strip().splitlines()[0]}", markup=False, highlight=False)
        console.print(f"paper: {kind.paper}", markup=False, highlight=False)
        console.print(f"several clients of one class: {kind.shared_class}", markup=False, highlight=False)
        table = Table("option", "default")
        for key, value in options_of(name).items():
            table.add_row(key, repr(value))
        console.print(table)
        return
    table = Table("method", "what it does", "options")
    for key, kind in METHODS.items():
        table.add_row(key, (kind.__doc__ or "").strip().splitlines()[0], ", ".join(options_of(key)))
    console.print(table)


@app.command()
def wire(
    method: Annotated[str, typer.Argument(help="Method; `selfsame methods` lists them.")],
) -> None:
    """Print every field that a method moves or keeps, and who sees it."""
    from rich.console import Console
    from rich.table import Table

    from selfsame.methods import method_class
    from selfsame.summary import wire_rows

    table = Table("field", "direction", "who sees it", "what it is", title=f"{method}: what leaves the device")
    for row in wire_rows(method_class(method).wire):
        table.add_row(*row)
    Console().print(table)


def _check_data(name: str | None, path: Path | None, settings: list[str] | None) -> None:
    from rich.console import Console
    from rich.table import Table

    from selfsame.data.check import check
    from selfsame.recipe import parse_setting

    if name is None:
        raise SelfsameError("name a data set: selfsame data check NAME PATH")
    with _loading():
        report = check(name, path, **{keys[-1]: given for keys, given in map(parse_setting, settings or [])})
    console = Console()
    if report.found:
        table = Table("what", "value", title=report.name)
        for row in report.found:
            table.add_row(*row)
        console.print(table)
    for line in (*(f"note: {note}" for note in report.notes), *(f"wrong: {line}" for line in report.wrong)):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    if not report.wrong:
        console.print("nothing is wrong")
    if not report.usable:
        raise SelfsameError(f"{name}: cannot be trained on as it is")


@contextmanager
def _loading(quiet: bool = False) -> Iterator[None]:
    """A bar on the error stream while files are decoded, which happens at the first load only."""
    from rich.console import Console
    from rich.progress import Progress

    from selfsame.data import watching

    tasks: dict[str, Any] = {}
    bar = Progress(console=Console(stderr=True), transient=True)

    def tell(name: str, done: int, total: int) -> None:
        if name not in tasks:
            bar.start()
            tasks[name] = bar.add_task(f"decoding {name}", total=total)
        bar.update(tasks[name], completed=done)

    try:
        with watching(None if quiet else tell):
            yield
    finally:
        if tasks:  # a bar that never began would leave an empty line
            bar.stop()


@app.command()
def data(
    name: Annotated[str | None, typer.Argument(help="Load this data set and say what is in it; or: check.")] = None,
    checked: Annotated[str | None, typer.Argument(help="After `check`: the data set to look through.")] = None,
    folder: Annotated[Path | None, typer.Argument(help="After `check NAME`: where its files are.")] = None,
    path: PathTo = None,
    settings: Settings = None,
) -> None:
    """List the data sets, load one and describe it, or (check NAME PATH) look through all its files."""
    from rich.console import Console
    from rich.table import Table

    from selfsame.data import DATASETS, load
    from selfsame.recipe import parse_setting

    console = Console()
    if name == "check":
        _check_data(checked, folder or path, settings)
        return
    if checked is not None:
        raise SelfsameError(
            f"unexpected argument {checked!r}; to look through the files: selfsame data check NAME PATH"
        )
    if name is None:
        table = Table("data set", "needs", "network", "options")
        for key, entry in DATASETS.items():
            options = ", ".join(f"{k}={v}" for k, v in entry.options.items())
            table.add_row(key, entry.wants, f"{entry.net}, {entry.width}-d", options)
        console.print(table)
        return
    chosen = {keys[-1]: given for keys, given in map(parse_setting, settings or [])}
    with _loading():
        found = load(name, path, **chosen)
    table = Table("what", "value", title=name)
    count = found.count_N
    for key, value in (
        ("clients", f"{found.clients:,}"),
        ("classes", f"{found.classes:,}"),
        ("sample shape", "x".join(map(str, found.shape))),
        ("training samples", f"{int(count.sum()):,}"),
        ("samples a client", f"{int(count.min())} to {int(count.max())}"),
        ("test samples of seen classes", f"{len(found.test.x):,}"),
        ("samples of unseen classes", f"{len(found.unseen.x):,} of {len(found.unseen.y.unique()):,}"),
    ):
        table.add_row(key, value)
    console.print(table)
    for note in found.notes:
        console.print(f"note: {note}", markup=False, highlight=False)


app.command()(evaluate.evaluate)
app.command()(export.export)
app.command()(privacy.privacy)
app.command()(enrol.enrol)
app.command("warm-up")(enrol.warm_up)
app.command("passphrase")(enrol.change_passphrase)
app.command()(enrol.revoke)
app.command()(verify.verify)
app.command()(verify.users)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"selfsame {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    pass


def main() -> None:
    """The command `selfsame`: bad input ends with one line on standard error and exit code 2."""
    try:
        app()
    except SelfsameError as error:
        print(f"selfsame: {error}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        print(f"selfsame: {error.filename or 'files'}: {error.strerror or error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
