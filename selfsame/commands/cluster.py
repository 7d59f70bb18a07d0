"""A federation of real processes on this machine, and keys for one on several."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from selfsame.commands.options import Base, Data, Out, PathTo, Quiet, Seed, Settings, TrustCode, given_tables
from selfsame.commands.progress import tell
from selfsame.errors import SelfsameError
from selfsame.fields import short_name
from selfsame.files import private_folder, write

if TYPE_CHECKING:
    from selfsame.config.recipe import Recipe
    from selfsame.deploy.flower.terms import SampleForm, Serving

app = typer.Typer(
    help="Run a federation of real processes over Flower: on this machine to try it, or make keys for several hosts.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_MOST_NODES = 12  # that are started where nobody says how many: each is a process or two
_WELL = ("taken", "registered", "complete", "unmasked")  # what is counted and no reason to worry

Hosts = Annotated[list[str], typer.Option("--host", help="Name or address by which devices reach the server.")]
Devices = Annotated[list[str] | None, typer.Option("--node", help="Name of a device to make a key pair for.")]
Helpers = Annotated[list[str] | None, typer.Option("--helper", help="Name of a helper to make keys for.")]


@app.command(short_help="Start a federation on loopback, run it, take it down again.")
def up(
    nodes: Annotated[
        int | None,
        typer.Option(help="SuperNodes, each with the samples of one client.", show_default="4, or one per person"),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(help="Method; `selfsame methods` lists them.", show_default="fedhide, or the recipe's"),
    ] = None,
    data: Data = None,
    path: PathTo = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds.", show_default="2, or the recipe's")] = None,
    seed: Seed = None,
    settings: Settings = None,
    wait: Annotated[float, typer.Option(help="Seconds until a round goes on without those who are silent.")] = 60.0,
    half: Annotated[bool, typer.Option("--half", help="The network travels in half precision.")] = False,
    seeded: Annotated[
        bool, typer.Option("--seeded", help="Private draws from the seed, as in the simulator: to compare with it.")
    ] = False,
    aggregation: Annotated[
        str | None,
        typer.Option(
            help="What the server sees of updates: clear, masked (sums alone, with helpers) or enclave.",
            show_default="masked; clear with --seeded or --helpers 0",
        ),
    ] = None,
    helpers: Annotated[
        int | None, typer.Option(help="Nodes that take masks off.", show_default="1 where masked")
    ] = None,
    enclave_helper: Annotated[
        bool, typer.Option("--enclave-helper", help="An enclave takes masks off, by itself or beside --helpers.")
    ] = False,
    recipe: Base = None,
    out: Out = None,
    quiet: Quiet = False,
) -> None:
    """Start a SuperLink and SuperNodes on loopback with TLS and keys, run a federation, take all of it down again.

    With --data imagefolder --path FOLDER each node has one person's folder of FOLDER, and nobody else reads it.
    """
    from selfsame.config.recipe import to_toml
    from selfsame.deploy.aggregation.sum_terms import ENCLAVE
    from selfsame.deploy.flower.cluster import REGISTER, helper_names
    from selfsame.deploy.flower.terms import FILE, Serving
    from selfsame.methods import method_class
    from selfsame.runs.beginning import recipe_for
    from selfsame.runs.claim import vacant
    from selfsame.runs.run import new_folder

    _flower()
    method = method or _named(recipe) or "fedhide"
    few = 2 if recipe is None else None  # each takes seconds, and presets have hundreds
    given = given_tables(data, path, rounds=few if rounds is None else rounds, seed=seed, device="cpu")
    made, chosen = recipe_for(method, recipe, given, settings or [])
    if not method_class(method).federated:
        raise SelfsameError(f"{method}: trains on each device alone; there is nothing to send")
    tell(chosen, quiet)
    people = _people(made)
    nodes = _fitting(made, people, nodes)
    made = replace(made, cohort=replace(made.cohort, size=min(made.cohort.size or nodes, nodes)))
    if made.net.start:
        made = replace(made, net=replace(made.net, start=str(Path(made.net.start).expanduser().absolute())))
    folder = out or new_folder(f"cluster-{short_name(method)}-{made.data.name}")
    vacant(folder)
    transport = "half" if half else "exact"
    helpers = 0 if enclave_helper and helpers is None else helpers
    aggregation, helpers = _sums(made, aggregation, helpers, seeded, enclave_helper)
    keys = folder.resolve() / "keys"
    serving = Serving(
        nodes=nodes, answer_wait=wait, embedding_wait=wait, transport=transport,
        seeded=seeded, aggregation=aggregation, samples=_form(made, nodes) if people else None,
        helpers=tuple(str(keys / f"{name}.helper") for name in helper_names(helpers)),
    )  # fmt: skip
    if enclave_helper:
        serving = replace(serving, helpers=(ENCLAVE, *serving.helpers))
    if aggregation == "enclave" or enclave_helper:
        serving = replace(serving, register=str(folder.resolve() / REGISTER))
    place = private_folder(folder, close=True) / "server"
    write(place / "recipe.toml", to_toml(made))
    serving.write(place / FILE)
    _watch(folder, made, serving, quiet)


@app.command(short_help="Go on with a cluster's run after its last complete round.")
def resume(
    folder: Annotated[Path, typer.Argument(help="Folder of a cluster.")],
    trust_code: TrustCode = False,
    quiet: Quiet = False,
) -> None:
    """Go on with a cluster's run after its last complete round, with the same keys and the devices' own state."""
    from selfsame.config.recipe import stored_recipe
    from selfsame.deploy.flower.terms import FILE, Serving

    _flower()
    if not (folder / "server" / "recipe.toml").is_file():
        raise SelfsameError(f"{folder}: not a cluster's folder (no server/recipe.toml in it)")
    made = stored_recipe(folder / "server", trust_code)
    _watch(folder, made, Serving.read(folder / "server" / FILE), quiet)


@app.command(short_help="Make a server's certificates and a key pair for each device.")
def keys(
    folder: Annotated[Path, typer.Argument(help="Folder for the files; nothing in it is written over.")],
    host: Hosts,
    node: Devices = None,
    helper: Helpers = None,
) -> None:
    """Make the certificates of a server and keys for each device and helper; says which file goes where."""
    from selfsame.deploy.flower.keys import make_helper, make_node, make_server, read_fingerprint

    if not (folder / "ca.pem").is_file():
        make_server(folder, host)
        typer.echo(f"{folder}/ca.pem      to every device, to whoever registers keys, and to the server")
        typer.echo(f"{folder}/server.pem  to the server, with server.key")
        typer.echo(f"{folder}/ca.key      off line: it signs further server certificates and nothing else needs it")
    for name in node or ():
        make_node(folder, name)
        public = folder / f"{name}.pub"
        typer.echo(f"{folder}/{name}.key  to that device alone; {name}.pub is registered ({read_fingerprint(public)})")
    for name in helper or ():
        make_helper(folder, name)
        public = folder / f"{name}.pub"
        typer.echo(f"{folder}/{name}.key, {name}.seal  to that helper alone, with the devices' NAME.pub files")
        typer.echo(f"{folder}/{name}.helper  to the server; {name}.pub is registered ({read_fingerprint(public)})")


@app.command(short_help="Write the commands that let a node run selfsame's app alone.")
def guard(
    folder: Annotated[Path, typer.Argument(help="Folder for the commands, to be put first on the path.")],
) -> None:
    """Write the commands with which a SuperNode or SuperLink runs selfsame's app and no other."""
    from selfsame.deploy.flower.guard import write_guard

    _flower()
    typer.echo(f'PATH="{write_guard(folder.resolve())}:$PATH" flower-supernode ...')


@app.command(short_help="Print the digest of a server's terms, which devices are given as `agreed`.")
def terms(
    folder: Annotated[
        Path, typer.Argument(help="Folder with the server's recipe.toml and deploy.toml, or a cluster's.")
    ],
    trust_code: TrustCode = False,
) -> None:
    """Print the digest of the terms that a server offers; a device that is given it as `agreed` takes no others."""
    from selfsame.config.recipe import stored_recipe
    from selfsame.deploy.flower.terms import RUN, open_server
    from selfsame.deploy.folder import RunFolder

    place = folder if (folder / "recipe.toml").is_file() else folder / "server"
    if not (place / "recipe.toml").is_file():
        raise SelfsameError(f"{folder}: neither a server's folder nor a cluster's (no recipe.toml in it)")
    stored_recipe(place, trust_code)
    saved = RunFolder(place / RUN).saved()  # of a run that may be at work: its folder is left alone
    if saved is not None:
        typer.echo(saved.plan)
        return
    with open_server(place) as (server, _, _):
        typer.echo(server.agreement.digest)


@app.command()
def bundle(folder: Annotated[Path, typer.Argument(help="Folder in which selfsame-app is written.")]) -> None:
    """Write the app that `flwr run` submits."""
    from selfsame.deploy.flower.bundle import write_bundle

    typer.echo(str(write_bundle(folder)))


def _flower() -> None:
    from importlib.util import find_spec

    from selfsame.deploy.flower.cluster import MISSING

    if find_spec("flwr") is None:
        raise SelfsameError(MISSING)


def _named(recipe: Path | None) -> str:
    """The method that a recipe file names."""
    from selfsame.config.recipe import read_toml

    part = {} if recipe is None else read_toml(recipe).get("method", {})
    return str(part.get("name", "")) if isinstance(part, dict) else ""


def _sums(recipe: Recipe, aggregation: str | None, helpers: int | None, seeded: bool, inside: bool) -> tuple[str, int]:
    """(how updates are added up, how many helpers): masked, unless something else was asked for."""
    from selfsame.config.recipe import AGGREGATIONS
    from selfsame.fields import one_of
    from selfsame.methods import SplitLoss, method_class
    from selfsame.report import words

    if issubclass(method_class(recipe.method.name), SplitLoss):  # its enclave adds up
        return "", 0
    if aggregation is None:
        asked = recipe.sums.aggregation if recipe.sums.summed else "masked"
        open = not method_class(recipe.method.name).wire.polled  # polls are never in the clear
        aggregation = "clear" if open and (helpers == 0 or (seeded and not helpers)) and not inside else asked
    one_of("--aggregation", aggregation, AGGREGATIONS)
    if aggregation != "masked":
        if helpers or inside:
            raise SelfsameError(f"--helpers, --enclave-helper: {aggregation} sums have no masks to take off")
        if aggregation == "clear":
            print(f"selfsame: clear: {words.AGGREGATIONS['clear']}", file=sys.stderr)
        return aggregation, 0
    if helpers == 0 and not inside:
        raise SelfsameError("--helpers 0: masks need somebody to take them off; name 1 or more, or clear sums")
    return aggregation, 1 if helpers is None else helpers


def _people(recipe: Recipe) -> list[Path]:
    """The folders of the people whose files these are; none where every node makes its own samples."""
    from selfsame.data import DATASETS
    from selfsame.data.formats.pictures import ENDINGS
    from selfsame.data.listing import list_files, subfolders

    name = recipe.data.name
    if name not in DATASETS or not DATASETS[name].needs_path:
        return []
    if name != "imagefolder":
        free = ", ".join(name for name, entry in DATASETS.items() if not entry.needs_path)
        raise SelfsameError(
            f"cluster up: {name} lies in files; nodes take imagefolder, a folder each, or make their own: {free}"
        )
    if not recipe.data.path:
        raise SelfsameError("cluster up: imagefolder lies in files; say where with --path")
    root = Path(recipe.data.path).expanduser().resolve()
    if not root.is_dir():
        raise SelfsameError(f"{root}: no such folder")
    folders = subfolders(root)
    count = list_files(root, folders, folders, "an image", ENDINGS).count_P.tolist()
    return [root / folder for folder, number in zip(folders, count, strict=True) if number]


def _fitting(recipe: Recipe, people: list[Path], nodes: int | None) -> int:
    """How many nodes there are, if the samples are enough for them."""
    from selfsame.data import load

    most = len(people) if recipe.data.path else load(recipe.data.name, None, **recipe.data.options).clients
    nodes = nodes or (min(len(people), _MOST_NODES) if people else 4)
    if not 2 <= nodes <= most:
        whose = "people with pictures in the folder" if recipe.data.path else f"clients of {recipe.data.name}"
        raise SelfsameError(f"--nodes {nodes}: expected 2 to {most}, the {whose}")
    return nodes


def _form(recipe: Recipe, nodes: int) -> SampleForm:
    """What the server knows of pictures that it never sees; brightness is scaled the same way for everybody."""
    from selfsame.data import DATASETS
    from selfsame.deploy.flower.terms import SampleForm

    options = {**DATASETS[recipe.data.name].options, **recipe.data.options}
    colours = 1 if options["grey"] else 3
    shape = (colours, options["size"], options["size"])
    return SampleForm(shape, "uint8", nodes, nodes, (0.5,) * colours, (0.25,) * colours)


def _watch(folder: Path, recipe: Recipe, serving: Serving, quiet: bool) -> None:
    """Everything up, a bar while rounds go by, everything down, the table."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from selfsame.deploy.aggregation.sum_terms import ENCLAVE
    from selfsame.deploy.flower.cluster import Cluster
    from selfsame.deploy.flower.terms import RUN
    from selfsame.deploy.flower.watch import Watch
    from selfsame.engine.starting import KEPT

    people = _people(recipe)
    samples = [str(place) for place in people] or [f"{recipe.data.name}:{number}" for number in range(serving.nodes)]
    samples = samples[: serving.nodes]
    columns = (
        TextColumn("{task.description:18s}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        TextColumn("{task.fields[now]}"),
    )  # fmt: skip
    tried: dict[str, str | bool] = {"simulate": True} if serving.seeded else {"trial": True}
    extra = {"simulated-enclave": True, **tried}
    if ":" in recipe.method.name:  # the nodes have the same owner, who may name the code that they import
        extra["methods"] = recipe.method.name
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), os.getcwd())))
    if recipe.net.anchored:  # written by the server before it invites anybody
        extra["start"] = str(folder.resolve() / "server" / RUN / KEPT)
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # it ends as Ctrl-C does, everything taken down
    try:
        with Progress(*columns, console=Console(stderr=True), disable=quiet) as bar:
            task = bar.add_task(recipe.method.name, total=recipe.run.rounds, now="starting")
            with Cluster(folder, samples, extra, sum(path != ENCLAVE for path in serving.helpers)) as cluster:
                watch = Watch(cluster, folder / "server")
                for completed, now in watch.run():
                    bar.update(task, completed=completed, now=now)
                bar.update(task, now="taking it down")
    except KeyboardInterrupt:
        print(f"selfsame: stopped; `selfsame cluster resume {folder}` goes on after the last round", file=sys.stderr)
        raise typer.Exit(130) from None
    finally:
        signal.signal(signal.SIGTERM, before)
    _table(watch.records(), folder, bool(people))


def _table(records: list[dict[str, Any]], folder: Path, private: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table("round", "seconds", "asked", "taken", "refused or lost", "KB down", "KB up", title="rounds")
    for record in records:
        counts = record.get("counts", {})
        told = [f"{name} {count}" for name, count in counts.items() if name not in _WELL]
        if record["taken"] == 0 < counts.get("taken", 0):  # good answers, of too few devices
            told.insert(0, f"{counts['taken']} answers were too few")
        table.add_row(
            str(record["round"]), f"{record['seconds']:.1f}", str(record["asked"]), str(record["taken"]),
            ", ".join(told) or "0", *(f"{record[way] / 1e3:,.1f}" if way in record else "" for way in ("down", "up")),
        )  # fmt: skip
    console.print(table)
    console.print(f"folder: {folder}", markup=False, highlight=False)
    run = folder / "server" / "run"
    if (run / "model.safetensors").is_file():
        # Nobody but the nodes has the samples, so there is nothing to evaluate on.
        steps = [f"selfsame export {run}"] if private else [f"selfsame evaluate {run}", f"selfsame export {run}"]
        console.print(f"next: {'; '.join(steps)}", markup=False, highlight=False, soft_wrap=True)
